"""Stage: the results table, with the measures of every system and a paired t-test against the row above."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from drkit.core.escaping import escape_paragraph
from drkit.core.files import write_text
from drkit.recipe.toml import json_text
from drkit.runs.stage import StageRun, StageSpec, from_recipe
from drkit.runs.stages.hybrid import NAME as HYBRID
from drkit.search.fusion import WEIGHT

if TYPE_CHECKING:
    from drkit.core.types import Judgement
    from drkit.evaluate import Scores

# Stages of the encoder from which a run starts.
STARTS = ("initial", "as-it-is")


@frozen
class EvaluationSettings:
    """Measures and systems; draws: the runs that are averaged for a system with several draws, by system.

    last: the last retriever; the input `choice` names the one that the run exports, if there are several.
    """

    systems: tuple[str, ...]
    draws: Mapping[str, tuple[str, ...]]
    last: str
    measures: tuple[str, ...] = from_recipe("evaluation.measures")
    split: str = from_recipe("evaluation.split")
    exclude_self: bool = from_recipe("evaluation.exclude_self")


def run(stage: StageRun[EvaluationSettings]) -> Mapping[str, Any]:
    """Write `table.md`, `results.json`, `scores.json` (per query) and `qrels.txt`; returns those results.

    The row of a system with several draws has means over the draws, query by query. `against`: the p-values of tests of
    the `compared` system against each other one; hybrid is tested against BM25 only, in `hybrid`.
    """
    from drkit.data.corpus import collection_of
    from drkit.evaluate import average, comparison, to_markdown
    from drkit.evaluate.systems import table_caption
    from drkit.search import write_qrels

    settings, split = stage.settings, stage.settings.split
    judgements = list(collection_of({split: stage.inputs["judged"]}).judgements(split))
    measured = {name: _evaluate_system(stage, name, judgements) for name in settings.systems}
    systems = [(name, average(scores)) for name, scores in measured.items()]
    single = {name: scores for name, scores in systems if name != HYBRID}
    compared = _compared(stage)
    rows = comparison(systems)
    positive = {judgement.query_id for judgement in judgements if judgement.relevance > 0}
    if lost := rows[0].queries - len(positive):
        stage.progress.note(f"{lost:,} of {rows[0].queries:,} judged queries have no relevant passage and score 0")
    write_qrels(stage.folder / "qrels.txt", judgements)
    caption = table_caption({name: len(scores) for name, scores in measured.items()})
    results = {
        "split": split,
        "measures": list(settings.measures),
        "exclude_self": settings.exclude_self,
        "runs": {name: list(settings.draws.get(name, (name,))) for name in settings.systems},
        "queries": rows[0].queries,
        "rows": [attrs.asdict(row) for row in rows],
        "draws": {name: [one.means() for one in scores] for name, scores in measured.items() if len(scores) > 1},
        "compared": compared,
        "against": {name: _p_values(single[compared], scores) for name, scores in single.items() if name != compared},
    }
    if HYBRID in stage.inputs:
        facts = json.loads((stage.inputs[HYBRID] / WEIGHT).read_text(encoding="utf-8"))
        tests = _p_values(systems[-1][1], systems[0][1])
        results[HYBRID] = {**facts, "against": {"bm25": tests}}
    write_text(stage.folder / "table.md", f"{to_markdown(rows)}\n\n{escape_paragraph(caption)}\n")
    write_text(stage.folder / "scores.json", json.dumps({name: dict(s.per_query) for name, s in systems}))
    write_text(stage.folder / "results.json", json_text(results))
    return results


def _compared(stage: StageRun[EvaluationSettings]) -> str:
    """Return the row that the verdicts are on: the exported retriever's; a draw stands in the row of its round.

    If that is the encoder from which the run started, it is the row of the last retriever, which did not beat it.
    """
    path, settings = stage.inputs.get("choice"), stage.settings
    exported = settings.last if path is None else path.read_text(encoding="utf-8")
    compared = settings.last if exported in STARTS else exported
    return next((name for name, draws in settings.draws.items() if compared in draws), compared)


def _p_values(one: Scores, other: Scores) -> dict[str, float]:
    """Return the p-values of paired t-tests between two systems, by measure."""
    from drkit.evaluate import paired_t_test

    return {m: paired_t_test(values, other.per_query[m]).p for m, values in one.per_query.items()}


def _evaluate_system(stage: StageRun[EvaluationSettings], name: str, judgements: Sequence[Judgement]) -> list[Scores]:
    """Return the scores of a system, one per draw."""
    from drkit.evaluate import evaluate
    from drkit.search import read_run

    settings, folder = stage.settings, stage.inputs[HYBRID if name == HYBRID else "runs"]
    runs = (read_run(folder / f"{one}.trec") for one in settings.draws.get(name, (name,)))
    return [evaluate(found, judgements, settings.measures, exclude_self=settings.exclude_self) for found in runs]


EVALUATION = StageSpec(
    name="evaluation",
    version=2,
    settings=EvaluationSettings,
    run=run,
    inputs={
        "judged": "the evaluated split of the collection",
        "runs": "the systems' rankings",
        "hybrid": "the fused ranking, and its weight",
        "choice": "which retriever is exported, if there are several",
    },
)
