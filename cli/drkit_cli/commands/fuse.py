"""`drkit fuse`: fuse two rankings of the same queries, such as BM25's and a retriever's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drkit.core.files import require_no_pipe
from drkit_cli.names import Between, InputPath, LocalPath, count
from drkit_cli.options import refuse_options
from drkit_cli.output import output_options, print_note, print_result
from drkit_cli.terminal import echo

if TYPE_CHECKING:
    from drkit.evaluate import TunedWeight

_FILE, _INPUT = LocalPath(dir_okay=False), InputPath(dir_okay=False)
_OF_METHOD = {"convex": ("weight", "tune", "measure"), "rrf": ("rrf_k",)}


@click.command(short_help="Fuse two rankings of the same queries.")
@click.argument("first", metavar="A", type=_INPUT)
@click.argument("second", metavar="B", type=_INPUT)
@click.option(
    "--method",
    type=click.Choice(list(_OF_METHOD)),
    default="convex",
    show_default=True,
    help="A weighted sum of scaled scores, or of reciprocal ranks (rrf).",
)
@click.option("--weight", type=Between(0, 1), help="Weight of B; A has the rest.  [default: 0.5]")
@click.option("--tune", metavar="QRELS", type=_INPUT, help="Choose the weight by these judgements of dev queries.")
@click.option("--measure", default="RR@10", show_default=True, help="The measure to tune for.")
@click.option("--rrf-k", default=60, show_default=True, type=count(0), help="rrf: added to every rank.")
@click.option("-k", "--depth", default=1000, show_default=True, type=count(1), help="Passages per query.")
@click.option("-o", "--output", required=True, type=_FILE, help="The new TREC run.")
@output_options
def fuse(
    first: Path,
    second: Path,
    method: str,
    weight: float | None,
    tune: Path | None,
    measure: str,
    rrf_k: int,
    depth: int,
    output: Path,
) -> None:
    r"""Fuse the rankings A and B, two TREC runs of the same queries. A hit that one lacks gets its lowest score.

    Tune on the rankings of dev queries, and fuse those of other queries with the weight that is printed:

    \b
    drkit fuse bm25.dev.trec dense.dev.trec --tune qrels.dev.txt -o fused.dev.trec
    drkit fuse bm25.test.trec dense.test.trec --weight 0.45 -o fused.test.trec
    """
    from drkit.commands import fuse_files
    from drkit.search.fusion import DEFAULT_WEIGHT, align, convex, reciprocal_ranks

    refuse_options(
        [name for other, names in _OF_METHOD.items() if other != method for name in names], f"with --method {method}"
    )
    if weight is not None and tune:
        raise click.UsageError("give --weight or --tune, not both")
    combine: Callable[..., Any] = partial(reciprocal_ranks, k=rrf_k, depth=depth)
    tuned: TunedWeight | None = None
    if method == "convex":
        if tune:
            tuned = _tuned(first, second, tune, measure)
            weight = tuned.weight
        chosen = weight = DEFAULT_WEIGHT if weight is None else weight
        combine = lambda a, b: convex(align(a, b), chosen, depth)  # noqa: E731
    queries, shared = fuse_files(first, second, output, combine)

    def draw() -> None:
        if tuned:
            means = ", ".join(f"{name} {mean:.3f}" for name, mean in _means_of(tuned).items())
            echo(f"weight   {tuned.weight:g} for B, tuned on {tuned.queries:,} queries: {tuned.measure} {means}")
        echo(f"run      {output}: {queries:,} queries")

    facts = {"queries": tuned.queries, "measure": tuned.measure, "means": _means_of(tuned)} if tuned else None
    found = {"method": method, "weight": weight, "tuned": facts}
    print_result({"file": output, "queries": queries, "shared": shared, **found}, draw)
    if tuned:
        print_note(f"the weight was tuned on these queries; use --weight {tuned.weight:g} for others")
    if shared < queries:
        print_note(f"only one of the two files has hits for {queries - shared:,} of the queries")


def _tuned(first: Path, second: Path, qrels: Path, measure: str) -> TunedWeight:
    from drkit.evaluate import tune_weight
    from drkit.search import read_qrels, read_run

    for run in (first, second):
        require_no_pipe(run)
    judgements = tuple(read_qrels(qrels))
    return tune_weight(read_run(first), read_run(second), judgements, measure)


def _means_of(tuned: TunedWeight) -> dict[str, float]:
    """Return the mean of the measure for A alone, B alone, and both with the tuned weight."""
    return {name: tuned.means[weight] for name, weight in (("A", 0.0), ("B", 1.0), ("fused", tuned.weight))}
