#!/usr/bin/env bash
# usearch stores vectors of dtype i8 scaled to one length each, so the metric ip ranks by the angle alone.
# Exits 0 while the behaviour is as printed, 1 when it has changed.
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet "usearch==2.26.6" "numpy==2.4.6"
"$work/venv/bin/python" - <<'PY'
from importlib.metadata import version

import numpy as np
from usearch.index import Index

print("usearch", version("usearch"))
direction = np.full(8, 0.1, dtype=np.float32)
found = {}
for dtype in ("f32", "i8"):
    index = Index(ndim=8, metric="ip", dtype=dtype)
    index.add(1, direction)
    index.add(2, 3 * direction)  # three times as long: three times the inner product
    found[dtype] = {int(hit.key): float(hit.distance) for hit in index.search(direction, 2)}
    print(dtype, "distances by key:", found[dtype], "stored:", index.get(1)[:2], index.get(2)[:2])
assert found["f32"][2] < found["f32"][1], "f32 prefers the longer vector"
assert found["i8"][2] == found["i8"][1], "i8 does not tell them apart"
PY
