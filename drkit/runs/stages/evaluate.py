"""Stage: the table. Measures of every system, and a paired t-test against the row above."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from drkit.core.files import write_text
from drkit.data.tables import open_collection
from drkit.evaluate import compare_rows, evaluate, to_markdown
from drkit.runs.stage import StageRun
from drkit.search import read_run, write_qrels


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes `table.md`, `scores.json` (per query) and `qrels.txt`; returns the table's rows."""
    settings = stage.stage.settings
    collection = open_collection(stage.inputs["collection"])
    qrels = list(collection.judgements(settings["split"]))
    systems = {
        name: evaluate(read_run(stage.inputs["runs"] / f"{name}.trec"), qrels, settings["measures"])
        for name in settings["systems"]
    }
    rows = compare_rows(systems, settings["measures"])
    write_qrels(stage.folder / "qrels.txt", qrels)
    write_text(stage.folder / "table.md", to_markdown(rows, settings["measures"]))
    write_text(stage.folder / "scores.json", json.dumps({name: s.per_query for name, s in systems.items()}))
    return {"queries": len(next(iter(systems.values())).query_ids), "rows": rows}
