"""The report of one or several runs as one self-contained HTML page.

The page holds its data, charts and styles. Its content security policy names the hash of its script and allows no
request, so that a text of a collection can neither run nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote

from attrs import frozen

from drkit import __version__
from drkit.charts import Line, Panel
from drkit.commands.records import (
    RunRecord,
    collection_counts,
    describe_recipe,
    hide_local_paths,
    is_comparable,
    open_run,
)
from drkit.core.escaping import page_asset, page_templates
from drkit.core.files import LOG, PROBES, VALIDATION
from drkit.core.registry import Installed
from drkit.errors import DrkitError
from drkit.evaluate.names import system_in_words, system_name
from drkit.recipe.published import BesideThePaper, beside_the_paper
from drkit.recipe.toml import recipe_toml
from drkit.runs.manifest import Manifest
from drkit.runs.stage import TRUNCATED, read_truncations
from drkit.runs.stages.evaluation import choices_made
from drkit_report.charts import Chart, loss_panels, probe_panels, validation_panel
from drkit_report.comparison import Comparison, compare_runs, curves_of_systems
from drkit_report.conclusion import Conclusion, conclude_run, conclude_runs
from drkit_report.masking import Masking, masking_or_note
from drkit_report.systems import (
    PASSAGES,
    QueryDetails,
    ReportedSystem,
    SystemTable,
    baseline_index,
    choose_compared,
    compared_notes,
    interval_chart,
    query_details,
    spread_over_gains,
    system_table,
    systems_of,
)

SHOWN = 200
ALL_LOSSES = "Loss of every training"


@frozen
class ReportOptions:
    """Options of a report.

    baseline: the system that the others are compared with. queries: how many are shown in detail. system: which one of
    each run is compared, if there are several runs; see `choose_compared`.
    """

    baseline: str | None = None
    queries: int = SHOWN
    system: str | None = None


@frozen
class RunSection:
    """What a page says about one run.

    conclusion: what it shows; verdict: each comparison by itself, in words. rows: what each of its systems is. table:
    its systems, if the page has no table of its own for them. beside: values of the paper that it reproduces. memory:
    the peak of all stages in bytes, by `host` and `gpu`, as far as it was recorded. command: what repeats the run.
    """

    name: str
    conclusion: Conclusion | None
    verdict: Sequence[str]
    rows: Sequence[tuple[str, str]]
    recipe: Sequence[tuple[str, str, str]]
    counts: Sequence[tuple[str, int]]
    chosen: Sequence[str]
    truncated: Sequence[str]
    missing: Sequence[str]
    table: SystemTable | None
    beside: Sequence[BesideThePaper]
    curves: Sequence[Chart]
    masking: Masking | None
    manifests: Mapping[str, Manifest]
    memory: Mapping[str, int]
    command: str
    recipe_toml: str


@frozen
class ReportPage:
    """Everything that a page shows; notes: what it cannot show, and why."""

    title: str
    conclusion: Conclusion | None
    runs: Sequence[RunSection]
    table: SystemTable | None
    intervals: Chart | None
    queries: QueryDetails | None
    comparison: Comparison | None
    notes: Sequence[str]


def report_page(folders: Sequence[Path], parts: Installed, options: ReportOptions) -> str:
    """Return the page of one or several runs, which may be unfinished.

    Raises DrkitError if a folder is not a run or is given twice, nothing of it is finished, or the baseline is unknown.
    """
    page = collect_page(folders, parts, options)
    templates = page_templates("drkit_report")
    own = page_asset("drkit_report", "report.js")
    return templates.get_template("report.html.jinja").render(
        page=page,
        version=__version__,
        policy=_content_policy(own),
        shown_passages=PASSAGES,
    )


def collect_page(folders: Sequence[Path], parts: Installed, options: ReportOptions) -> ReportPage:
    """Return everything that the page of these runs shows; raises as `report_page` does."""
    runs = [open_run(folder, parts) for folder in folders]
    _check_names(runs)
    together = len(runs) > 1 and is_comparable(runs)
    runs = choose_compared(runs, options.system) if together else runs
    systems = systems_of(runs)
    chosen = _baseline(runs, systems, options.baseline)
    table = system_table(systems, chosen) if systems else None
    several = len(runs) > 1
    return ReportPage(
        title=runs[0].recipe.name if not several else f"{len(runs)} runs: {', '.join(run.name for run in runs)}",
        conclusion=conclude_runs(systems, chosen) if several else conclude_run(runs[0], systems, chosen),
        runs=[_collect_section(run, parts, with_table=several) for run in runs],
        table=table,
        intervals=Chart(interval_chart(table), is_wide=True) if table else None,
        queries=_choose_queries(systems, chosen, options.queries),
        comparison=compare_runs(runs, [hide_local_paths(run, parts.registry) for run in runs]) if several else None,
        notes=[*(compared_notes(runs) if together else ()), *_notes(runs, systems)],
    )


def _baseline(runs: Sequence[RunRecord], systems: Sequence[ReportedSystem], name: str | None) -> int:
    """Return the index of the named baseline; None: of the one that a single run names."""
    if name is None and len(runs) == 1 and runs[0].results is not None:
        name = runs[0].results.baseline
    return baseline_index(systems, name)


def _check_names(runs: Sequence[RunRecord]) -> None:
    names = [run.name for run in runs]
    duplicate = next((run for run in runs if names.count(run.name) > 1), None)
    if duplicate is not None:
        raise DrkitError(f"two runs are named {duplicate.name!r}; give each run once, and rename folders if necessary")


def _notes(runs: Sequence[RunRecord], systems: Sequence[ReportedSystem]) -> Iterator[str]:
    for run in runs:
        if run.results is None:
            yield f"{run.name} has no finished evaluation, so its retrievers have no values yet."
    if len(runs) > 1 and not systems and all(run.results for run in runs):
        yield "The runs were evaluated on different queries or by different measures, so they are not tested together."


def _choose_queries(systems: Sequence[ReportedSystem], chosen: int, count: int) -> QueryDetails | None:
    if not systems or not count:
        return None
    run = systems[0].run
    if run.collection is None or run.results is None:
        return None
    return query_details(systems, run.collection, run.results.split, spread_over_gains(systems, chosen, count))


def _collect_section(run: RunRecord, parts: Installed, *, with_table: bool) -> RunSection:
    table = conclusion = None
    if with_table and run.results is not None:
        systems = systems_of([run])
        chosen = _baseline([run], systems, None)
        table, conclusion = system_table(systems, chosen), conclude_run(run, systems, chosen)
    shown = hide_local_paths(run, parts.registry)
    truncated = (str(one) for stage in run.manifests for one in read_truncations(run.folder / stage / TRUNCATED))
    peaks = [manifest.memory for manifest in run.manifests.values()]
    return RunSection(
        name=run.name,
        conclusion=conclusion,
        verdict=[line for line in run.verdict if not line.startswith("Warning: ")],
        rows=[*_describe_systems(shown)],
        recipe=describe_recipe(shown, parts.registry),
        counts=collection_counts(run),
        chosen=_describe_choices(run),
        truncated=list(dict.fromkeys(truncated)),
        missing=shown.missing,
        table=table,
        beside=_beside_the_paper(run, parts),
        curves=[*curves_of_systems(run), *_training_charts(run)],
        masking=masking_or_note(run, parts),
        manifests=run.manifests,
        memory={
            device: max(peak.get(device, 0) for peak in peaks)
            for device in ("host", "gpu")
            if any(device in peak for peak in peaks)
        },
        command=f"drkit run recipe.toml --run-dir runs/{quote(run.name)}-again",
        recipe_toml=recipe_toml(shown.recipe),
    )


def _beside_the_paper(run: RunRecord, parts: Installed) -> list[BesideThePaper]:
    means = {name: {measure: one.mean(measure) for measure in one.measures} for name, one in run.scores.items()}
    stored = run.manifests.get("collection")
    try:
        return beside_the_paper(run.recipe, means, parts.recipes, stored.metrics if stored else None)
    except DrkitError:  # another version's name of the row, or a plugin that is not installed
        return []


def _describe_systems(run: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield each system with what the stage that makes it does."""
    for name, stages in run.results.runs.items() if run.results else ():
        if stages[0] in run.summaries:
            yield system_name(name), run.summaries[stages[0]]


def _describe_choices(run: RunRecord) -> list[str]:
    """Describe the exported retriever, BM25's k1 and b, and the labels of training."""
    lines = choices_made(run.manifests)
    if "choice" not in run.manifests and "encoder" in run.manifests:
        lines = [f"exported: {system_in_words(run.manifests['encoder'].metrics['from'])}", *lines]
    return [line[:1].upper() + line[1:] for line in lines if line]


def _training_charts(run: RunRecord) -> list[Chart]:
    """Return the charts of losses, probes and validations."""
    logs = {stage: log for stage in run.manifests if (log := run.log(stage, LOG))}
    probes = {stage: log for stage in run.manifests if (log := run.log(stage, PROBES))}
    validations = {stage: log for stage in run.manifests if (log := run.log(stage, VALIDATION))}
    panels = [*_all_losses(logs), *loss_panels(logs, probes), *(probe_panels(probes) if probes else [])]
    panels += [validation_panel(validations)] if validations else []
    return [
        Chart(panel, is_wide=panel.title == ALL_LOSSES) for panel in panels if any(line.points for line in panel.lines)
    ]


def _all_losses(logs: Mapping[str, Sequence[Mapping[str, float]]]) -> Iterator[Panel]:
    """Yield one chart of the losses of all trainings, if there are several, over the share of their steps."""
    lines = []
    for name, log in logs.items():
        losses = [(entry["step"], entry["loss"]) for entry in log if "loss" in entry]
        lines.append(Line(name, [(100 * step / losses[-1][0], loss) for step, loss in losses]))
    if len(lines) > 1:
        yield Panel(ALL_LOSSES, "nats", lines, x="% of each training's steps")


def _content_policy(script: str) -> str:
    """Return a content security policy that allows this script, and no request."""
    allowed = f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        f"base-uri 'none'; form-action 'none'"
    )
