"""Every paper, scale and pipeline, and some replaced parts, compose into the recipes on record, setting by setting."""

import json

from tests.goldens.composed import GOLDEN, recipes


def test_every_recipe_is_the_one_on_record():
    recorded, composed = json.loads(GOLDEN.read_text(encoding="utf-8")), recipes()
    assert composed.keys() == recorded.keys()
    changed = {line: (recorded[line], found) for line, found in composed.items() if found != recorded[line]}
    assert not changed
