#!/usr/bin/env bash
# torchmetrics 1.9.0, retrieval: average precision at k forgets the relevant documents that it did not find, and two
# measures of one ranking break its ties differently.
#
# `retrieval_average_precision(top_k=k)` divides by the number of relevant documents *within* the first k. So a query with
# four relevant documents scores 1.0 at k = 1 as soon as the first hit is relevant, and finding one more can lower
# the value. trec_eval's `map_cut_k` divides by all relevant documents, sentence-transformers' MAP@k by min(k, relevant).
# Among equal scores, NDCG averages over all orders (as scikit-learn does), while the reciprocal rank and the hit rate
# of the same call take one order, whatever a sort gives: NDCG@1 is 1/3 where the hit rate at 1 is 0.
# drkit: AP@k divides by all relevant documents, and all measures see one order, that of trec_eval.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --target "$work" \
  torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6 pytrec-eval-terrier==0.5.11
PYTHONPATH=$work "${PYTHON:-python3}" -W ignore - <<'PY'
from importlib.metadata import version

import pytrec_eval
import torch
from torchmetrics.functional.retrieval import (
    retrieval_average_precision,
    retrieval_hit_rate,
    retrieval_normalized_dcg,
)

print("torchmetrics", version("torchmetrics"), "and pytrec_eval-terrier", version("pytrec-eval-terrier"))
scores, relevant = torch.arange(9.0, 0, -1), torch.tensor([1, 0, 0, 0, 1, 0, 0, 1, 1])
ours = [round(float(retrieval_average_precision(scores, relevant, top_k=k)), 4) for k in (1, 5, 9)]
ids = [f"d{i}" for i in range(9)]
judged = {"q": {name: int(grade) for name, grade in zip(ids, relevant)}}
found = pytrec_eval.RelevanceEvaluator(judged, {"map_cut.1,5,9"}).evaluate({"q": dict(zip(ids, scores.tolist()))})["q"]
trec = [round(found[f"map_cut_{k}"], 4) for k in (1, 5, 9)]
print("AP@1, AP@5, AP@9, relevant at ranks 1, 5, 8, 9: torchmetrics", ours, "trec_eval", trec)

tied, third = torch.tensor([0.5, 0.5, 0.5]), torch.tensor([0, 0, 1])
ndcg, hit = retrieval_normalized_dcg(tied, third, top_k=1), retrieval_hit_rate(tied, third, top_k=1)
print("three equal scores, one relevant: NDCG@1", round(float(ndcg), 4), "hit rate@1", float(hit))
assert ours == [1.0, 0.7, 0.5549] and trec == [0.25, 0.35, 0.5549], (ours, trec)
assert abs(float(ndcg) - 1 / 3) < 1e-4 and float(hit) in (0.0, 1.0)
PY
