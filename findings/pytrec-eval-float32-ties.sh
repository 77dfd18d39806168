#!/usr/bin/env bash
# pytrec_eval-terrier 0.5.11: scores that differ beyond 32-bit floats tie.
#
# Guess: a run is a dictionary of Python floats, and is ordered by them.
# Behaviour: trec_eval's C code holds scores as 32-bit floats: 0.100000001 and 0.1, or 16777217 and 16777216, are equal there,
# and the greater document id comes first. The relevant document at rank 1 then has recip_rank 0.5.
# drkit: orders hits itself, by float32 score and then id, and gives the engine their ranks as scores.
#
# Exits with 1 if that changes.
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet "pytrec_eval-terrier==0.5.11" "numpy==2.4.6"
"$work/venv/bin/python" - <<'PY'
from importlib.metadata import version

import pytrec_eval

print("pytrec_eval-terrier", version("pytrec_eval-terrier"))
measure = pytrec_eval.RelevanceEvaluator({"q": {"a": 1}}, {"recip_rank"})
ranks = {}
for first, second in ((0.1 + 1e-7, 0.1), (0.1 + 1e-9, 0.1), (16777217.0, 16777216.0)):
    assert first > second
    ranks[first] = measure.evaluate({"q": {"a": first, "b": second}})["q"]["recip_rank"]
    print(f"a {first!r} > b {second!r}, a is relevant: recip_rank {ranks[first]}")
assert list(ranks.values()) == [1.0, 0.5, 0.5]
PY
