#!/usr/bin/env bash
# ranx 0.3.21: RBP is above 1 with graded judgements; bpref is NaN for a query whose judged documents are all relevant.
#
# `rbp.50` sums the grades themselves, though its documentation has r_i = 0 or 1 and RBP is defined within 0 .. 1
# (Moffat and Zobel 2008): a document of grade 3 at rank 1 gives 1.5. `bpref` divides by the number of judged
# documents that are not relevant: without one the query is NaN, and so is the mean over all queries, with no warning.
# trec_eval (pytrec_eval-terrier 0.5.11) gives such a query 1 if its relevant documents are found.
# drkit: measures come from trec_eval and ir_measures; bpref is 1 there, and no mean is NaN.
# (ranx compiles its measures first, which takes a minute or more.)
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --target "$work" \
  ranx==0.3.21 numba==0.68.1 numpy==2.4.6 pytrec-eval-terrier==0.5.11
PYTHONPATH=$work NUMBA_CACHE_DIR=$work/cache "${PYTHON:-python3}" -W ignore - <<'PY'
import math
from importlib.metadata import version

import pytrec_eval
from ranx import Qrels, Run, evaluate

print("ranx", version("ranx"), "and pytrec_eval-terrier", version("pytrec-eval-terrier"))
run = {"one": {"a": 2.0, "b": 1.0}, "two": {"a": 2.0, "b": 1.0}}
found = [float(evaluate(Qrels({"one": {"a": grade}}), Run({"one": run["one"]}), "rbp.50")) for grade in (1, 2, 3)]
print("rbp.50 of a document at rank 1 with grade 1, 2, 3:", found)

judged = {"one": {"a": 1}, "two": {"a": 1, "b": 0}}
mean = float(evaluate(Qrels(judged), Run(run), "bpref"))
trec = pytrec_eval.RelevanceEvaluator(judged, {"bpref"}).evaluate(run)
print("bpref, one query of two without a judged irrelevant document: ranx", mean, "trec_eval", trec)
assert found == [0.5, 1.0, 1.5]
assert math.isnan(mean) and trec == {"one": {"bpref": 1.0}, "two": {"bpref": 1.0}}
PY
