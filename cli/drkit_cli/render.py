"""Output of the commands, drawn with rich."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TextIO

from attrs import field, frozen
from rich.console import (
    Console,
    ConsoleOptions,
    ConsoleRenderable,
    Group,
    JustifyMethod,
    RenderableType,
    RenderHook,
    RenderResult,
)
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from drkit.core.escaping import escape_controls
from drkit.core.quantities import counted
from drkit.core.registry import Registry
from drkit.core.spec import Kind
from drkit.errors import DrkitError
from drkit.evaluate.names import system_name
from drkit.recipe.parts import parts_of
from drkit.recipe.paths import describe_schedules
from drkit.recipe.schema import ITSELF, DecoderTask, EncoderTask, Pretrain, Recipe
from drkit.recipe.start import RECIPE
from drkit.recipe.toml import recipe_table
from drkit_cli.terminal import EscapedStream, ending_with_the_reader, results_stream

# Results of a run, by what they are.
_PATHS = {
    "encoder": "encoder",
    "index": "index",
    "rankings": "runs",
    "table": "evaluation",
    "recipe": RECIPE,
}
# Bytes of memory or disk of a stage that a plan names.
_WORTH_SAYING = 1e8
# Columns where COLUMNS is 0, or less than a name needs.
_USUAL, _LEAST = 80, 10
_GREEN = "not bold green"
STYLES = {"kept": _GREEN, "pruned": _GREEN, "to do": "not bold", "resumed": "not bold cyan", "again": "not bold yellow"}

if TYPE_CHECKING:
    from drkit.runs.costs import Cost
    from drkit.runs.manifest import Manifest
    from drkit.runs.plan import Plan
    from drkit.runs.survey import Finding
    from drkit.runs.work import Work


class _Console(Console):
    """A console whose reader may end early, as `| head` does: that is not an error."""

    def on_broken_pipe(self) -> None:
        """End the program with 0, not with 1."""
        with ending_with_the_reader(self.file.fileno()):
            raise BrokenPipeError


def console() -> Console:
    """Return a console for standard output: as wide as the terminal or as COLUMNS, else wide enough for tables."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit():
        return _console(results_stream(), width=int(columns) if int(columns) >= _LEAST else _USUAL)
    screen = _console(results_stream())
    return screen if screen.is_terminal else _console(results_stream(), width=max(screen.width, 110))


def error_console() -> Console:
    """Return a console for notes and progress, which go to standard error."""
    return _console(sys.stderr)


def _console(stream: TextIO, **options: Any) -> Console:
    # rich needs its own control characters. Text is never read as markup: `[link=..]` in a name would be one.
    file = stream.stream if isinstance(stream, EscapedStream) else stream
    made = _Console(file=file, highlight=False, markup=False, emoji=False, **options)
    made.push_render_hook(_EscapeText())
    return made


class _EscapeText(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Escaped(each) for each in renderables]


@frozen
class _Escaped:
    """Another renderable, with the control characters of its text spelled out."""

    inner: RenderableType

    def __rich_console__(self, screen: Console, options: ConsoleOptions) -> RenderResult:
        for segment in screen.render(self.inner, options):
            yield segment if segment.control else Segment(escape_controls(segment.text), segment.style)


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, justify: JustifyMethod = "left"
) -> Table:
    """Return a plain table; cells are printed literally, without markup. justify: of all columns but the first."""
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    drawn = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    # Names and paths stay whole as long as others can give way.
    longest = max((row[0].cell_len for row in cells), default=0)
    for position, name in enumerate(columns):
        least = min(longest, console().width // 2) if position == 0 else None
        drawn.add_column(name, overflow="fold", min_width=least, justify=justify if position else "left")
    for row in cells:
        drawn.add_row(*row)
    return drawn


def score_table(title: str, measures: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return a table of systems by measures; rows: `Row`s as plain data."""
    from drkit.evaluate.systems import format_cell

    cells = [[system_name(row["system"]), *(format_cell(row, measure) for measure in measures)] for row in rows]
    return table(title, ("system", *measures), cells, justify="right")


@frozen
class PlanFacts:
    """What is known of a plan besides its stages.

    cost: of the whole run. work: of stages, by name. downloads: collections and models that are not here yet.
    """

    cost: Cost | None = None
    work: Mapping[str, Work] = field(factory=dict)
    downloads: tuple[str, ...] = ()


def cost_document(cost: Cost | None) -> dict[str, Any] | None:
    """Return a cost as plain data; seconds are None if those of a stage are unknown."""
    if cost is None:
        return None
    return {"seconds": cost.time, "memory": cost.memory, "disk": cost.disk, "unknown": list(cost.unknown)}


def plan_document(recipe: Recipe, plan: Plan, run: Path, facts: PlanFacts) -> dict[str, Any]:
    """Return a plan as plain data: the complete recipe, notes, downloads, the cost, and what each stage needs."""
    from drkit.runs.survey import survey

    stages = [
        {
            "stage": found.stage.name,
            "does": found.stage.summary,
            "state": found.state.value,
            "reasons": list(found.reasons),
            "reads": list(found.stage.needs),
            "memory": work.memory if (work := facts.work.get(found.stage.name)) else None,
            "disk": work.disk if work else None,
        }
        for found in survey(plan.stages, run)
    ]
    cost = cost_document(facts.cost)
    known = {"run": run, "notes": list(plan.notes), "downloads": list(facts.downloads), "cost": cost}
    return {**known, "stages": stages, "recipe": recipe_table(recipe)}


def plan_summary(recipe: Recipe, registry: Registry, plan: Plan, run: Path, facts: PlanFacts) -> RenderableType:
    """Return the plan in a line each: its texts, encoder, parts, trainings and systems, what is to do, and its cost."""
    from drkit.runs.survey import State, survey
    from drkit.runs.work import describe_encoder

    found = [*survey(plan.stages, run)]
    to_do = [one for one in found if one.state not in (State.KEPT, State.PRUNED)]
    spec = registry.get(Kind.COLLECTION, recipe.collection.use)
    value = getattr(recipe.collection.config, spec.shorthand) if spec.shorthand else ""
    lines = [("texts", f"{recipe.collection.use}{f':{value}' if value else ''}  {spec.summary}")]
    lines.append(("encoder", describe_encoder(recipe.encoder)))
    lines += _describe_tasks(recipe.pretrain, registry) if recipe.pretrain else ()
    for one in to_do:
        if one.stage.is_training:
            state = "" if one.state is State.TO_DO else f" ({one.state})"
            lines.append((one.stage.name, f"{one.stage.summary}{state}"))
    lines += [("changes", text) for text in describe_schedules(recipe)]
    lines += [("evaluates", text) for text in _describe_evaluations(plan, recipe.evaluation.split)]
    lines.append(("stages", _describe_progress(len(to_do), len(found))))
    if facts.downloads:
        lines.append(("downloads", f"{', '.join(facts.downloads)} (not on this machine yet)"))
    if facts.cost and to_do:
        lines.append(("in all", f"{facts.cost} on this machine"))
    drawn = Table.grid(padding=(0, 2))
    for label, text in lines:
        drawn.add_row(Text(label, style="bold"), Text(text))
    notes = [Text(f"note: {note}", style="yellow") for note in plan.notes]
    return Group(Text(f"{recipe.name}  ->  {run}", style="bold"), *notes, drawn)


def _describe_tasks(pretrain: Pretrain, registry: Registry) -> Iterator[tuple[str, str]]:
    """Yield the tasks of pre-training, of the encoder and of each decoder, with their parts."""
    tasks: dict[str, EncoderTask | DecoderTask] = {"encoder task": pretrain.encoder}
    tasks |= {f"decoder {name}": task for name, task in pretrain.decoders.items()}
    for label, task in tasks.items():
        chosen = [f"{part.spec.kind} {part.spec.name}" for part in parts_of(task, registry, label)]
        yield label, ", ".join(one for one in chosen if one != f"context {ITSELF.use}")


def _describe_evaluations(plan: Plan, split: str) -> Iterator[str]:
    """Yield a line for each evaluation: its systems and measures."""
    from drkit.runs.stages.evaluation import EVALUATION

    for stage in plan.stages:
        if stage.spec is EVALUATION:
            names = ", ".join(map(system_name, stage.settings.systems))
            yield f"{names}; {stage.summary} of the {split} queries"


def _describe_progress(to_do: int, stages: int) -> str:
    if not to_do:
        return f"nothing to do: all {stages} are kept"
    kept = f", {stages - to_do} are kept" if to_do < stages else ""
    return f"{to_do} of {stages} to do{kept}; -v lists them, with what each reads"


def stage_lines(plan: Plan, run: Path, work: Mapping[str, Work]) -> Iterator[RenderableType]:
    """Yield the stages of a plan: what each does, its state, what it reads, and its memory and disk if they matter."""
    from drkit.runs.costs import gigabytes
    from drkit.runs.survey import State, survey

    for found in survey(plan.stages, run):
        label = Text(found.stage.name, style="bold").append(f"  {found.stage.summary}", style="not bold")
        if found.state is not State.TO_DO:
            label.append(f"  {found.summary}", style=STYLES[found.state])
        yield label
        needed = work.get(found.stage.name)
        amounts = {"memory": needed.memory, "disk": needed.disk} if needed else {}
        takes = [f"{gigabytes(amount)} of {what}" for what, amount in amounts.items() if amount >= _WORTH_SAYING]
        reads = [f"reads {', '.join(found.stage.needs)}"] if found.stage.needs else []
        if reads or takes:
            text = "; ".join([*reads, *([f"takes {' and '.join(takes)}"] if takes else [])])
            yield Padding(Text(text, style="dim"), (0, 0, 0, 4))


def status_table(findings: Iterable[Finding]) -> Table:
    """Return a row per stage, and one for all: its seconds, its size, what resuming the run would do with it.

    Versions of libraries and plugins that have changed since are in a last column, if there are any.
    """
    rows: list[tuple[str | Text, ...]] = []
    states = stage_states(findings)
    for stage in states:
        other = [f"{name} {one['then']} (now {one['now'] or 'missing'})" for name, one in stage["versions"].items()]
        summary = Text(stage["summary"], style=STYLES[stage["state"]])
        known = stage["seconds"] is not None
        effort = (f"{stage['seconds']:7,.1f} s", f"{format_megabytes(stage['bytes']):>10}") if known else ("", "")
        rows.append((stage["stage"], *effort, summary, ", ".join(other)))
    seconds, size = (sum(stage[name] or 0 for stage in states) for name in ("seconds", "bytes"))
    rows.append(("all", f"{seconds:7,.1f} s", f"{format_megabytes(size):>10}", "", ""))
    columns = ("stage", "time", "size", "state", "made with")
    shown = len(columns) if any(stage["versions"] for stage in states) else len(columns) - 1
    return table("", columns[:shown], [row[:shown] for row in rows])


def stage_states(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return the state of each stage as plain data; `versions` are those of libraries that have changed since."""
    from drkit.runs.manifest import versions

    now = versions()
    return [
        {
            "stage": found.stage.name,
            "state": found.state.value,
            "summary": found.summary,
            "reasons": list(found.reasons),
            "step": found.step,
            "seconds": found.manifest.seconds if found.manifest else None,
            "bytes": found.manifest.bytes if found.manifest else None,
            "versions": {
                name: {"then": version, "now": now.get(name)}
                for name, version in (found.manifest.versions if found.manifest else {}).items()
                if version != now.get(name)
            },
        }
        for found in findings
    ]


def describe_truncations(run: Path, stages: Iterable[str]) -> list[str]:
    """Return a line for each kind of texts that finished stages truncated, with the setting that reads more of them.

    Of a damaged record, the line says what is wrong.
    """
    from drkit.runs.stage import TRUNCATED, read_truncations

    lines: list[str] = []
    for name in stages:
        try:
            lines += map(str, read_truncations(run / name / TRUNCATED))
        except DrkitError as error:
            lines.append(str(error))
    return list(dict.fromkeys(lines))


def print_results(run: Path, done: Mapping[str, Manifest], space: tuple[int, int]) -> None:
    """Print the table of systems, the verdict, the exported retriever, truncated texts, and what to do next.

    space: the bytes of the run, and how many of them `drkit prune` frees.
    """
    from drkit.evaluate.systems import describe_contributions, table_caption
    from drkit.evaluate.ties import tie_lines

    screen = console()
    if "evaluation" in done:
        metrics = done["evaluation"].metrics
        title = counted(metrics["queries"], f"{metrics['split']} query")
        if added := describe_contributions(metrics["parts"]):
            screen.print(Text(added, style="bold"), soft_wrap=True)
        screen.print(score_table(title, metrics["measures"], metrics["rows"]))
        if metrics.get("warning"):
            screen.print(Text(metrics["warning"], style="yellow"))
        draws = {name: len(draws) for name, draws in metrics.get("draws", {}).items()}
        screen.print(table_caption(draws, metrics["baseline"]))
        for line in tie_lines(metrics):
            screen.print(line, soft_wrap=True)
    for line in _describe_findings(run, done):
        screen.print(line, soft_wrap=True)
    size, freed = space
    smaller = f"; drkit prune {quote(str(run))} leaves {format_megabytes(size - freed)}" if freed else ""
    rows = [("run", f"{run}, {format_megabytes(size)}{smaller}")]
    rows += [("encoder", str(run / "encoder"))] if "encoder" in done else []
    rows += [("next" if number == 0 else "", command) for number, command in enumerate(_next_commands(run, done))]
    for label, text in rows:  # on a line each, whatever the width: to be copied
        screen.print(f"{label:<7}  {text}", soft_wrap=True)


def format_megabytes(number: int) -> str:
    """Format a number of bytes.

    >>> format_megabytes(1_250_000_000)
    '1,250.0 MB'
    """
    return f"{number / 1e6:,.1f} MB"


def results_document(run: Path, done: Mapping[str, Manifest], space: tuple[int, int]) -> dict[str, Any]:
    """Return what `results` prints as plain data, and the paths of all results."""
    return {
        "run": run,
        "evaluation": done["evaluation"].metrics if "evaluation" in done else None,
        "findings": _describe_findings(run, done),
        "paths": {label: str(run / path) for label, path in _PATHS.items() if Path(path).parts[0] in {*done, RECIPE}},
        "bytes": space[0],
        "prunable_bytes": space[1],
    }


def _describe_findings(run: Path, done: Mapping[str, Manifest]) -> list[str]:
    from drkit.evaluate.gains import gain_lines
    from drkit.evaluate.systems import VERDICT_CAPTION, verdict
    from drkit.runs.stages.evaluation import choices_made

    metrics = done["evaluation"].metrics if "evaluation" in done else {}
    chosen, cut = choices_made(done), describe_truncations(run, done)
    if "gains" in metrics:
        return [*chosen, *cut, *gain_lines(metrics["gains"])]
    verdicts = verdict({**metrics, "parts": ()}) if metrics else []  # what they add stands above the table
    verdicts = [VERDICT_CAPTION, *verdicts] if verdicts else []
    return [*verdicts, *chosen, *cut]


def _next_commands(run: Path, done: Mapping[str, Manifest]) -> Iterator[str]:
    """Yield commands that use the run: they search it, and show it on pages."""
    if "index" in done:
        yield f"drkit search {quote(str(run))} {quote(_example_query(run, done))}"
        yield f"drkit serve {quote(str(run))}"
    if "encoder" in done:
        yield f"drkit report {quote(str(run))}"


def _example_query(run: Path, done: Mapping[str, Manifest]) -> str:
    """Return a short query of the collection to try the run with."""
    from drkit.data.corpus import open_collection
    from drkit.data.examples import example_queries

    split = done["evaluation"].metrics["split"] if "evaluation" in done else ""
    return next(iter(example_queries(open_collection(run / "collection"), split, 1) if split else ()), "a query")
