#!/usr/bin/env bash
# rank-bm25 0.2.2, BM25L: the score of a word is multiplied by its frequency in the passage once more.
#
# BM25L (Lv and Zhai 2011) lets a word that occurs three times score a little more than one that occurs once. In
# rank-bm25's `BM25L` it scores more than three times as much: the saturated term is multiplied by the raw frequency.
# So for passages that have the word once its scores are those of bm25s 0.3.16 (method "bm25l"); for three times they are
# three times those, and a passage that repeats one word passes one that has all words of the query.
# Also seen: a passage without the word scores 0 in rank-bm25, but .547 in bm25s (the lower bound delta counts there for
# absent words too), so that there every passage is a hit.
# drkit: BM25 is bm25s' Lucene variant, and a passage without a word of the query is not a hit.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --target "$work" \
  rank-bm25==0.2.2 bm25s==0.3.16 numpy==2.4.6 scipy==1.17.1
PYTHONPATH=$work "${PYTHON:-python3}" - <<'PY'
from importlib.metadata import version

import bm25s
import numpy as np
from rank_bm25 import BM25L

print("rank-bm25", version("rank-bm25"), "and bm25s", version("bm25s"))
passages = [["salt", "pepper"], ["salt", "oil"], ["salt", "bread"], ["rice", "salt"], ["salt", "pepper", "pepper", "pepper"]]
other = bm25s.BM25(method="bm25l", k1=1.5, b=0.75, delta=0.5)
other.index([list(passage) for passage in passages], show_progress=False)
ranked, reference = BM25L(passages, k1=1.5, b=0.75, delta=0.5).get_scores(["pepper"]), other.get_scores(["pepper"])
print("passages", passages)
print("rank-bm25's BM25L for 'pepper':", np.round(ranked, 4).tolist())
print("bm25s' bm25l      for 'pepper':", np.round(reference, 4).tolist())
ratio = ranked[[0, 4]] / reference[[0, 4]]
print("ratio where 'pepper' occurs once, three times:", np.round(ratio, 4).tolist())

words = [["salt", "oil", "rice"], ["oil"] * 3, ["bread"], ["wine"], ["milk"], ["eggs"]]
query = ["salt", "oil", "rice"]
best = int(np.argmax(BM25L(words, k1=1.5, b=0.75, delta=0.5).get_scores(query)))
other = bm25s.BM25(method="bm25l", k1=1.5, b=0.75, delta=0.5)
other.index([list(passage) for passage in words], show_progress=False)
print(f"first for {query}: rank-bm25 {words[best]}, bm25s {words[int(np.argmax(other.get_scores(query)))]}")
assert np.allclose(ratio, [1, 3], atol=1e-4), ratio
assert np.allclose(ranked[1:4], 0) and np.allclose(reference[1:4], 0.547, atol=1e-3)
PY
