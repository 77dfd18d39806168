"""`drkit fuse`: fuse two rankings of the same queries, such as BM25's and a retriever's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drkit.core.quantities import counted
from drkit.errors import DrkitError
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
    r"""Fuse the rankings A and B, two TREC runs of the same queries.

    A document missing from one run gets that run's lowest score.

    Tune on the rankings of dev queries, and fuse those of other queries with the weight that is printed:

    \b
    drkit fuse bm25.dev.trec dense.dev.trec --tune qrels.dev.txt -o fused.dev.trec
    drkit fuse bm25.test.trec dense.test.trec --weight 0.45 -o fused.test.trec
    """
    from drkit.data.qrels import read_qrels
    from drkit.evaluate import tune_weight
    from drkit.search.fusion import DEFAULT_WEIGHT, align, convex, reciprocal_ranks
    from drkit.search.run_files import read_run, write_run

    of_others = [name for other, names in _OF_METHOD.items() if other != method for name in names]
    refuse_options(of_others, f"with --method {method}")
    if weight is not None and tune:
        raise click.UsageError("give --weight or --tune, not both")
    one, two = read_run(first), read_run(second)
    shared = len({*one.query_ids} & {*two.query_ids})
    if not shared:
        raise DrkitError(
            f"{first} ({counted(len(one), 'query')}) and {second} ({len(two):,}) have no query in common; "
            f"give two rankings of the same queries"
        )
    tuned: TunedWeight | None = None
    if method == "rrf":
        fused = reciprocal_ranks(one, two, rrf_k, depth)
    else:
        if tune:
            tuned = tune_weight(one, two, tuple(read_qrels(tune)), measure)
            weight = tuned.weight
        weight = DEFAULT_WEIGHT if weight is None else weight
        fused = convex(align(one, two), weight, depth)
    queries = write_run(output, fused, tag="fused")
    found = {"file": output, "queries": queries, "shared": shared, "method": method, "weight": weight}
    _print(found, tuned)


def _print(found: Mapping[str, Any], tuned: TunedWeight | None) -> None:
    """Print the fused file, and the tuned weight with the means of A alone, B alone, and both."""
    means = {}
    if tuned:
        means = {name: tuned.means[weight] for name, weight in (("A", 0.0), ("B", 1.0), ("fused", tuned.weight))}

    def draw() -> None:
        if tuned:
            values = ", ".join(f"{name} {mean:.3f}" for name, mean in means.items())
            echo(
                f"weight   {tuned.weight:g} for B, tuned on {counted(tuned.queries, 'query')}: {tuned.measure} {values}"
            )
        echo(f"run      {found['file']}: {counted(found['queries'], 'query')}")

    facts = {"queries": tuned.queries, "measure": tuned.measure, "means": means} if tuned else None
    print_result({**found, "tuned": facts}, draw)
    if tuned:
        print_note(f"the weight was tuned on these queries; use --weight {tuned.weight:g} for others")
    if found["shared"] < found["queries"]:
        print_note(f"only one of the two files has hits for {found['queries'] - found['shared']:,} of the queries")
