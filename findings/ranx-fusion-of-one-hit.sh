#!/usr/bin/env bash
# ranx 0.3.21, fusion with norm="min-max" or "zmuv": a ranking of one document counts as if it had found none.
#
# Min-max scaling maps the lowest score of each ranking to 0, which is also what a document counts that a ranking lacks. A
# keyword search often finds exactly one document, which has the rare word of the query: its only score is the lowest,
# so it becomes 0, and the document comes last, beside the worst hit of the other ranking. The same holds for several hits
# with equal scores. A second, lower hit in its ranking would lift it to 1; with method="rrf" it is first.
# drkit: where all scores of a ranking are equal, min-max scaling gives them 1; a missing hit gets 0.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --target "$work" \
  ranx==0.3.21 numba==0.68.1 numpy==2.4.6
PYTHONPATH=$work NUMBA_CACHE_DIR=$work/cache "${PYTHON:-python3}" -W ignore - <<'PY'
from importlib.metadata import version

from ranx import Run, fuse

print("ranx", version("ranx"))
vectors = {"q": {"a": 0.83, "b": 0.81, "c": 0.78, "rare": 0.75}}


def fused(words, **how):
    run = fuse([Run(vectors), Run({"q": words})], **how).to_dict()["q"]
    return {doc: round(float(score), 3) for doc, score in run.items()}


for norm in ("min-max", "zmuv"):
    one, equal, none = (fused(words, norm=norm, method="sum") for words in ({"rare": 9.0}, {"rare": 9.0, "b": 9.0}, {"z": 9.0}))
    print(f"{norm}: words find only 'rare'", one)
    print(f"{norm}: words find 'rare' and 'b' with one score", equal)
    print(f"{norm}: words find neither", none)
    assert all(run[doc] == none[doc] for run in (one, equal) for doc in vectors["q"]), (one, equal, none)
    assert min(one, key=one.get) == "rare"
two = fused({"rare": 9.0, "c": 8.0}, norm="min-max", method="sum")
print("min-max: words find 'rare' before 'c'", two)
ranks = fused({"rare": 9.0}, method="rrf")
print("rrf: words find only 'rare'", ranks)
assert max(ranks, key=ranks.get) == "rare" and two["rare"] == 1.0
PY
