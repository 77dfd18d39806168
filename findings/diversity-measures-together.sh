#!/usr/bin/env bash
# ir_measures: of diversity measures with different parameters, only one group is measured; the others are 0.
#
# Guess: measures that are asked for together have the values that they have one by one.
# Behaviour of ir-measures 0.4.3 with pyndeval 0.0.8: measures that differ in alpha or rel go to pyndeval in groups, and
# all groups share one iterator over the run. The first group exhausts it, and every later one measures an empty run:
# alpha_nDCG(alpha=0.2)@20 is 1.0 by itself and 0.0 beside alpha_nDCG@20, without a word.
#
# Exits with 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet ir-measures==0.4.3 pyndeval==0.0.8
"$folder/venv/bin/python" - <<'PYTHON'
import sys
from importlib.metadata import version

import ir_measures

qrels = [ir_measures.Qrel("q", "a", 1, "1"), ir_measures.Qrel("q", "b", 1, "2")]
run = {"q": {"a": 2.0, "b": 1.0}}
measures = [ir_measures.parse_measure(name) for name in ("alpha_nDCG@20", "alpha_nDCG(alpha=0.2)@20")]
alone = [measure.calc_aggregate(qrels, run) for measure in measures]
found = ir_measures.calc_aggregate(measures, qrels, run)
together = [found[measure] for measure in measures]
print("ir-measures", version("ir-measures"), "pyndeval", version("pyndeval"))
print("asked for one by one: ", dict(zip(map(str, measures), alone)))
print("asked for together:   ", dict(zip(map(str, measures), together)))
sys.exit(not (alone == [1.0, 1.0] and sorted(together) == [0.0, 1.0]))
PYTHON
# Seen:
#   ir-measures 0.4.3 pyndeval 0.0.8
#   asked for one by one:  {'alpha_nDCG@20': 1.0, 'alpha_nDCG(alpha=0.2)@20': 1.0}
#   asked for together:    {'alpha_nDCG@20': 1.0, 'alpha_nDCG(alpha=0.2)@20': 0.0}
