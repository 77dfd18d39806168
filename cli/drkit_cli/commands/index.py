"""`drkit index`: build an index of a folder of vectors."""

from __future__ import annotations

from pathlib import Path

import click

from drkit_cli.names import LocalPath, count
from drkit_cli.options import refuse_options
from drkit_cli.output import output_options, print_next, print_note, print_result
from drkit_cli.terminal import echo


@click.command(short_help="Build an index of vectors.")
@click.argument("vectors", type=LocalPath())
@click.option(
    "--kind",
    default="flat",
    show_default=True,
    help="flat, hnsw, ivf-pq, int8, binary, or a factory string of faiss, such as IVF1024,PQ32.",
)
@click.option(
    "--parameters",
    help="faiss's parameters of building and searching, such as nprobe=64 or efConstruction=400,efSearch=256.",
)
@click.option(
    "--rescore",
    type=click.Choice(["vectors", "codes"]),
    help="Score candidates with the vectors, which are stored too, or only with their codes.  "
    "[default: codes for hnsw and ivf-pq, else vectors]",
)
@click.option("--candidates", type=count(1), help="Candidates that are scored for each hit.  [default: 4; 1 for hnsw]")
@click.option("-o", "--output", required=True, type=LocalPath(), help="The folder of the index.")
@output_options
def index(
    vectors: Path, kind: str, parameters: str | None, rescore: str | None, candidates: int | None, output: Path
) -> None:
    r"""Build an index of VECTORS made by `drkit encode`. flat is exact; the recall of other kinds is measured.

    \b
    drkit index vectors/ -o index/
    drkit index vectors/ --kind hnsw --parameters efSearch=256 -o index/
    drkit index vectors/ --kind binary --candidates 8 -o index/
    drkit index vectors/ --kind IVF1024,PQ32 --parameters nprobe=64 -o index/
    """
    from drkit.search import FaissSettings, build_index
    from drkit.search.index import LOW_RECALL

    if kind == "flat":
        refuse_options(("parameters", "rescore", "candidates"), "with --kind flat, which is exact")
    settings = None if kind == "flat" else FaissSettings(parameters or "", rescore or "", candidates or 0)
    made = build_index(vectors, output, kind=kind, settings=settings)
    recall = made.facts.get("recall@10")

    def draw() -> None:
        echo(f"index    {output}: {kind}, {len(made):,} vectors of {made.dimension}")
        if recall is not None:
            echo(f"recall   {recall:.1%} of the 10 nearest, of {made.facts['recall_sample']} vectors")

    found = {"folder": output, "kind": kind, "vectors": len(made), "dimension": made.dimension, "recall@10": recall}
    print_result(found, draw)
    if recall is not None and recall < LOW_RECALL:
        name = "candidates" if made.settings["rescore"] == "vectors" else "parameters"
        print_note(
            f"the recall is below {LOW_RECALL:.0%}: raise --{name} (now {made.settings[name]}), or use --kind flat, "
            f"which is exact"
        )
    print_next(f'use      drkit search {output} --encoder .. "a query"')
