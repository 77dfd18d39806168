"""Output of the commands, drawn with rich."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TextIO

from attrs import asdict, astuple, evolve, frozen
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
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from drkit.core.escaping import escape_controls
from drkit.core.spec import Kind
from drkit.evaluate.names import BM25_NAME, HYBRID_NAME, system_name
from drkit.recipe.parts import parts_in_use, parts_of
from drkit.recipe.start import RECIPE
from drkit_cli.terminal import EscapedStream, ending_with_the_reader

# Results of a run, by what they are.
_PATHS = {
    "encoder": "encoder",
    "index": "index",
    "rankings": "runs",
    "table": "evaluation",
    "report": "report/report.md",
    "recipe": RECIPE,
}
# Columns of a terminal below which tables that do not fit become lists.
_NARROW = 60
# Columns where COLUMNS is 0, or less than a name needs.
_USUAL, _LEAST = 80, 10
_GREEN = "not bold green"
STYLES = {"kept": _GREEN, "pruned": _GREEN, "to do": "not bold", "resumed": "not bold cyan", "again": "not bold yellow"}

if TYPE_CHECKING:
    from drkit.core.registry import Registry
    from drkit.evaluate import Row
    from drkit.recipe.schema import DecoderTask, EncoderTask, Pretrain, Recipe
    from drkit.runs.costs import Cost
    from drkit.runs.manifest import Manifest
    from drkit.runs.plan import Plan
    from drkit.runs.survey import Finding


class _Console(Console):
    """A console whose reader may end early, as `| head` does: that is not an error."""

    def on_broken_pipe(self) -> None:
        """End the program with 0, not with 1."""
        with ending_with_the_reader():
            raise BrokenPipeError


def console() -> Console:
    """Return a console for standard output: as wide as the terminal or as COLUMNS, else wide enough for tables."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit():
        return _console(sys.stdout, width=int(columns) if int(columns) >= _LEAST else _USUAL)
    screen = _console(sys.stdout)
    return screen if screen.is_terminal else _console(sys.stdout, width=max(screen.width, 110))


def error_console() -> Console:
    """Return a console for standard error."""
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


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> FittingTable:
    """Return a plain table; cells are printed literally, without markup."""
    return FittingTable(title, tuple(columns), [tuple(map(Text, row)) for row in rows])


@frozen
class FittingTable:
    """A table that is drawn as a list of rows, a line per cell, where the terminal is too narrow for its columns.

    justify: of all columns but the first.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Text]]
    justify: JustifyMethod = "left"

    def __rich_console__(self, screen: Console, options: ConsoleOptions) -> RenderResult:
        drawn = Table(title=self.title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        longest = max((row[0].cell_len for row in self.rows), default=0)
        for position, name in enumerate(self.columns):
            # Names and paths stay whole as long as others can give way.
            least = min(longest, options.max_width // 2) if position == 0 else None
            drawn.add_column(name, overflow="fold", min_width=least, justify=self.justify if position else "left")
        for row in self.rows:
            drawn.add_row(*row)
        if options.max_width < _NARROW and _least_width(drawn, screen) > options.max_width:
            yield from self._lines()
        else:
            yield drawn

    def _lines(self) -> Iterator[RenderableType]:
        if self.title:
            yield Text(self.title, style="bold")
        for row in self.rows:
            yield row[0]
            for name, cell in zip(self.columns[1:], row[1:], strict=True):
                if cell:
                    yield Padding(Text(f"{name}: " if name else "").append(cell), (0, 0, 0, 2))


def score_table(rows: Sequence[Row]) -> FittingTable:
    """Return a table of systems by measures."""
    from drkit.evaluate.systems import cell

    measures = list(rows[0].values)
    cells = [[system_name(row["system"]), *(cell(row, measure) for measure in measures)] for row in map(asdict, rows)]
    return evolve(table(f"{rows[0].queries:,} queries", ("system", *measures), cells), justify="right")


def _least_width(drawn: Table, screen: Console) -> int:
    """Return the columns that a table needs so that no word is broken."""
    return Measurement.get(screen, screen.options.update(max_width=10_000), drawn).minimum


def plan_document(recipe: Recipe, plan: Plan, run: Path, cost: Cost | None) -> dict[str, Any]:
    """Return a plan as plain data: the complete recipe, notes, the run's cost, and each stage's state and inputs."""
    from drkit.recipe.toml import recipe_table
    from drkit.runs.survey import survey

    stages = [
        {
            "stage": found.stage.name,
            "does": found.stage.summary,
            "state": found.state.value,
            "reasons": list(found.reasons),
            "reads": list(found.stage.needs),
        }
        for found in survey(plan.stages, run)
    ]
    known = {"run": run, "notes": list(plan.notes), "cost": asdict(cost) if cost else None}
    return {**known, "stages": stages, "recipe": recipe_table(recipe)}


def plan_summary(recipe: Recipe, registry: Registry, plan: Plan, run: Path, cost: Cost | None) -> RenderableType:
    """Return the plan in a line each: its texts, encoder, parts, trainings and systems, what is to do, and its cost."""
    from drkit.recipe.schema import Training
    from drkit.runs.survey import State, survey

    found = [*survey(plan.stages, run)]
    to_do = [one for one in found if one.state not in (State.KEPT, State.PRUNED)]
    spec = registry.get(Kind.COLLECTION, recipe.collection.use)
    value = getattr(recipe.collection.config, spec.shorthand) if spec.shorthand else ""
    lines = [("texts", f"{recipe.collection.use}{f':{value}' if value else ''}  {spec.summary}")]
    lines.append(("encoder", _sizes(recipe).removeprefix("encoder: ")))
    lines += _sides(recipe.pretrain, registry) if recipe.pretrain else ()
    for one in to_do:
        if any(isinstance(value, Training) for value in astuple(one.stage.settings, recurse=False)):
            state = "" if one.state is State.TO_DO else f" ({one.state})"
            lines.append((one.stage.name, f"{one.stage.summary}{state}"))
    lines += [("evaluates", text) for text in _evaluated(plan, recipe.evaluation.split)]
    lines.append(("stages", _progress(len(to_do), len(found))))
    if cost:
        lines.append(("in all", f"{cost} on this machine"))
    drawn = Table.grid(padding=(0, 2))
    for label, text in lines:
        drawn.add_row(Text(label, style="bold"), Text(text))
    notes = [Text(f"note: {note}", style="yellow") for note in plan.notes]
    return Group(Text(f"{recipe.name}  ->  {run}", style="bold"), *notes, drawn)


def _sides(pretrain: Pretrain, registry: Registry) -> Iterator[tuple[str, str]]:
    """Yield what pre-training gives the encoder and each decoder to do, and their parts."""
    from drkit.recipe.schema import ITSELF

    tasks: dict[str, EncoderTask | DecoderTask] = {"its task": pretrain.encoder}
    tasks |= {f"decoder {name}": task for name, task in pretrain.decoders.items()}
    for label, task in tasks.items():
        chosen = [f"{part.spec.kind} {part.spec.name}" for part in parts_of(task, registry, label)]
        yield label, ", ".join(one for one in chosen if one != f"context {ITSELF.use}")


def _evaluated(plan: Plan, split: str) -> Iterator[str]:
    """Yield the systems that are evaluated, in words; nothing if none is."""
    from drkit.runs.stages.evaluation import EVALUATION, HYBRID, SEARCH

    searches = [stage for stage in plan.stages if stage.spec is SEARCH]
    is_fused = any(stage.spec is HYBRID for stage in plan.stages)
    for stage in plan.stages:
        if stage.spec is not EVALUATION:
            continue
        (search,) = (one for one in searches if one.name == stage.inputs["runs"].stage)
        words = [BM25_NAME] if BM25_NAME in search.inputs else []
        names = [*words, *search.settings.retrievers, *search.settings.reranked, *([HYBRID_NAME] if is_fused else [])]
        yield f"{', '.join(system_name(name) for name in names)}; {stage.summary} of the {split} queries"


def _progress(to_do: int, stages: int) -> str:
    if not to_do:
        return f"nothing to do: all {stages} are kept"
    kept = f", {stages - to_do} are kept" if to_do < stages else ""
    return f"{to_do} of {stages} to do{kept}; -v lists them, with what each reads"


def plan_tree(recipe: Recipe, registry: Registry, plan: Plan, run: Path, cost: Cost | None) -> Tree:
    """Return the plan as a tree: what each part needs, each stage with its state and inputs, and the run's cost."""
    from drkit.runs.survey import State, survey

    tree = Tree(Text(f"{recipe.name}  ->  {run}", style="bold"))
    for note in plan.notes:
        tree.add(Text(f"note: {note}", style="yellow"))
    parts = tree.add("parts")
    for line in _parts(recipe, registry):
        parts.add(Text(line))
    stages = tree.add(f"{len(plan.stages)} stages")
    for found in survey(plan.stages, run):
        stage = found.stage
        label = Text(stage.name, style="bold").append(f"  {stage.summary}", style="not bold")
        if found.state is not State.TO_DO:
            label.append(f"  {found.summary}", style=STYLES[found.state])
        node = stages.add(label)
        if stage.needs:
            node.add(Text("reads " + ", ".join(stage.needs), style="dim"))
    tree.add(Text(_sizes(recipe)))
    if cost:
        tree.add(Text(f"in all: {cost} on this machine"))
    return tree


def status_table(findings: Iterable[Finding]) -> FittingTable:
    """Return a row per stage, and one for all: its seconds, its size, what resuming the run would do with it.

    Library versions that have changed since are in a last column.
    """
    rows = []
    states = stage_states(findings)
    for stage in states:
        other = [f"{name} {one['then']} (now {one['now'] or 'missing'})" for name, one in stage["versions"].items()]
        summary = Text(stage["summary"], style=STYLES[stage["state"]])
        known = stage["seconds"] is not None
        effort = (f"{stage['seconds']:7,.1f} s", f"{megabytes(stage['bytes']):>10}") if known else ("", "")
        rows.append((Text(stage["stage"]), *map(Text, effort), summary, Text(", ".join(other))))
    seconds, size = (sum(stage[name] or 0 for stage in states) for name in ("seconds", "bytes"))
    rows.append((Text("all"), Text(f"{seconds:7,.1f} s"), Text(f"{megabytes(size):>10}"), Text(), Text()))
    return FittingTable("", ("stage", "time", "size", "state", "made with"), rows)


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


def truncations(run: Path, stages: Iterable[str]) -> list[str]:
    """Return a line for each kind of texts that finished stages truncated, with the setting that reads more of them."""
    from drkit.runs.stage import TRUNCATED, read_truncations

    return list(dict.fromkeys(str(one) for name in stages for one in read_truncations(run / name / TRUNCATED)))


def _parts(recipe: Recipe, registry: Registry) -> list[str]:
    chosen = [("collection", recipe.collection.use)]
    if recipe.pretrain:
        chosen += [(part.spec.kind, part.spec.name) for part in parts_in_use(recipe.pretrain, registry)]
    if recipe.finetune:
        rounds = recipe.finetune.rounds
        chosen += [("loss", recipe.finetune.for_round(current).loss.use) for current in rounds]
        chosen += [("miner", miner.use) for current in rounds for miner in current.miners]
    if recipe.reranker:
        chosen += [("loss", recipe.reranker.loss.use), *(("miner", miner.use) for miner in recipe.reranker.miners)]
    lines = []
    for kind, name in dict.fromkeys(chosen):
        spec = registry.get(kind, name)
        required = (*spec.receives, *spec.signals, *spec.requires)
        needs = f"  needs {', '.join(required)}" if required else ""
        gives = f"  provides {', '.join(spec.provides)}" if spec.provides else ""
        lines.append(f"{kind} {name}{needs}{gives}")
    return lines


def _sizes(recipe: Recipe) -> str:
    from drkit.runs.work import encoder_size

    model = encoder_size(recipe.encoder)
    if recipe.encoder.pretrained or model is None:
        size = recipe.encoder.pretrained
    else:
        size = f"about {model.weights / 1e6:.1f}M parameters ({model.table / 1e6:.1f}M of them word embeddings)"
    query, passage = recipe.encoder.query_length, recipe.encoder.passage_length
    return f"encoder: {size}; reads {query} tokens of a query, {passage} of a passage"


def results(run: Path, done: Mapping[str, Manifest], space: tuple[int, int]) -> None:
    """Print the table of systems, the verdict, the exported retriever, truncated texts, and what to do next.

    space: the bytes of the run, and how many of them `drkit prune` frees.
    """
    from drkit.evaluate.systems import table_caption

    screen = console()
    if "evaluation" in done:
        metrics = done["evaluation"].metrics
        screen.print(_scores(metrics))
        if metrics.get("warning"):
            screen.print(Text(metrics["warning"], style="yellow"))
        screen.print(table_caption({name: len(draws) for name, draws in metrics.get("draws", {}).items()}))
    for line in _findings(run, done):
        screen.print(line, soft_wrap=True)
    size, freed = space
    smaller = f"; drkit prune {quote(str(run))} leaves {megabytes(size - freed)}" if freed else ""
    rows = [("run", f"{run}, {megabytes(size)}{smaller}")]
    rows += [("encoder", str(run / "encoder"))] if "encoder" in done else []
    rows += [("next" if number == 0 else "", command) for number, command in enumerate(_commands(run, done))]
    for label, text in rows:  # on a line each, whatever the width: to be copied
        screen.print(f"{label:<7}  {text}", soft_wrap=True)


def megabytes(number: int) -> str:
    """Format a number of bytes.

    >>> megabytes(1_250_000_000)
    '1,250.0 MB'
    """
    return f"{number / 1e6:,.1f} MB"


def results_document(run: Path, done: Mapping[str, Manifest], space: tuple[int, int]) -> dict[str, Any]:
    """Return what `results` prints as plain data, and the paths of all results."""
    return {
        "run": run,
        "evaluation": done["evaluation"].metrics if "evaluation" in done else None,
        "findings": _findings(run, done),
        "paths": {label: str(run / path) for label, path in _PATHS.items() if Path(path).parts[0] in {*done, RECIPE}},
        "bytes": space[0],
        "prunable_bytes": space[1],
    }


def _findings(run: Path, done: Mapping[str, Manifest]) -> list[str]:
    from drkit.evaluate.systems import VERDICT_CAPTION, verdict
    from drkit.runs.stages.retriever import choices_made

    metrics = done["evaluation"].metrics if "evaluation" in done else {}
    verdicts = verdict(metrics) if metrics else []
    verdicts = [VERDICT_CAPTION, *verdicts] if verdicts else []
    chosen = choices_made(done)
    return [*verdicts, *chosen, *truncations(run, done)]


def _scores(metrics: Mapping[str, Any]) -> FittingTable:
    from drkit.evaluate.systems import cell

    measures = list(metrics["measures"])
    rows = [[Text(system_name(row["system"])), *(Text(cell(row, m)) for m in measures)] for row in metrics["rows"]]
    title = f"{metrics['queries']:,} {metrics['split']} queries"
    return FittingTable(title, ("system", *measures), rows, justify="right")


def _commands(run: Path, done: Mapping[str, Manifest]) -> Iterator[str]:
    """Yield commands that use the run: they search it, and show it on pages."""
    if "index" in done:
        hybrid = " --hybrid" if HYBRID_NAME in done else ""
        yield f"drkit search {quote(str(run))} {quote(_example_query(run, done))}{hybrid}"
        yield f"drkit serve {quote(str(run))}"
    if "report" in done:
        yield f"drkit report {quote(str(run))}"


def _example_query(run: Path, done: Mapping[str, Manifest]) -> str:
    """Return a short query of the collection to try the run with."""
    from drkit.data.corpus import open_collection

    split = done["evaluation"].metrics["split"] if "evaluation" in done else ""
    queries = open_collection(run / "collection").queries(split) if split else iter(())
    return min((" ".join(query.text.split()) for query in islice(queries, 50)), key=len, default="a query")
