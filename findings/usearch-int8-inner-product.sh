#!/usr/bin/env bash
# usearch 2.26.6, dtype i8: the metric ip ranks by the angle alone.
#
# Guess: 8-bit vectors are coarser, but a vector three times as long keeps three times the inner product.
# Behaviour: each vector is scaled to one length before it is rounded, so vectors of one direction are stored alike, and `ip`
# gives both the same distance. Encoders trained with inner products rank differently than with f32 or f16.
# drkit: the example on searching elsewhere stores f32, and says why.
#
# Exits with 1 if that changes.
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
