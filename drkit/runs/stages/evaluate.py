"""Stage: the table. Measures of every system, and a paired t-test against the row above."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from drkit.core.files import write_text
from drkit.core.types import Judgement
from drkit.data.tables import open_collection
from drkit.evaluate import Scores, average, comparison, evaluate, paired_t_test, to_markdown
from drkit.evaluate.systems import table_caption
from drkit.runs.stage import StageRun
from drkit.search import read_run, write_qrels


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes `table.md`, `scores.json` (per query) and `qrels.txt`; returns the table's rows.

    A system of several draws has a row of its own, whose values are means over the draws, query by query. `against`:
    the p of the last system's test against each other one.
    """
    settings = stage.stage.settings
    collection = open_collection(stage.inputs["collection"])
    qrels = list(collection.judgements(settings["split"]))
    draws = settings.get("draws", {})
    measured = {name: [_scores(stage, one, qrels) for one in draws.get(name, [name])] for name in settings["systems"]}
    systems = [(name, average(scores)) for name, scores in measured.items()]
    rows = comparison(systems)
    if lost := rows[0].queries - len(collection.positives(settings["split"])):
        stage.progress.note(f"{lost:,} of {rows[0].queries:,} judged queries have no relevant passage: they count 0")
    write_qrels(stage.folder / "qrels.txt", qrels)
    said = table_caption({name: len(scores) for name, scores in measured.items()})
    write_text(stage.folder / "table.md", f"{to_markdown(rows)}\n\n{said}\n")
    write_text(stage.folder / "scores.json", json.dumps({name: dict(s.per_query) for name, s in systems}))
    told = {name: [one.means() for one in scores] for name, scores in measured.items() if len(scores) > 1}
    return {
        "queries": rows[0].queries,
        "rows": [attrs.asdict(row) for row in rows],
        "draws": told,
        "against": {name: _p(systems[-1][1], scores) for name, scores in systems[:-1]},
    }


def _p(one: Scores, other: Scores) -> dict[str, float]:
    """The p of a paired t-test between two systems, by measure."""
    return {m: paired_t_test(values, other.per_query[m]).p for m, values in one.per_query.items()}


def _scores(stage: StageRun, name: str, qrels: Sequence[Judgement]) -> Scores:
    settings = stage.stage.settings
    found = read_run(stage.inputs["runs"] / f"{name}.trec")
    return evaluate(found, qrels, settings["measures"], exclude_self=settings.get("exclude_self", False))
