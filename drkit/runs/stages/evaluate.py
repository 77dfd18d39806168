"""Stage: the table. Measures of every system, and a paired t-test against the row above."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from drkit.core.files import write_text
from drkit.data.tables import open_collection
from drkit.evaluate import comparison, evaluate, to_markdown
from drkit.runs.stage import StageRun
from drkit.search import read_run, write_qrels


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes `table.md`, `scores.json` (per query) and `qrels.txt`; returns the table's rows."""
    settings = stage.stage.settings
    collection = open_collection(stage.inputs["collection"])
    qrels = list(collection.judgements(settings["split"]))
    systems = [
        (name, evaluate(read_run(stage.inputs["runs"] / f"{name}.trec"), qrels, settings["measures"]))
        for name in settings["systems"]
    ]
    rows = comparison(systems)
    write_qrels(stage.folder / "qrels.txt", qrels)
    write_text(stage.folder / "table.md", to_markdown(rows) + "\n")
    write_text(stage.folder / "scores.json", json.dumps({name: dict(s.per_query) for name, s in systems}))
    return {"queries": rows[0].queries, "rows": [attrs.asdict(row) for row in rows]}
