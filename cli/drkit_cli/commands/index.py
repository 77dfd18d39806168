"""`drkit index`: build an index of a folder of vectors."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from drkit_cli.names import LocalPath, count
from drkit_cli.output import output_options, print_next, print_note, print_result
from drkit_cli.terminal import echo

_OF_CODES = ("rescore", "candidates")
_SETTINGS = {
    "hnsw": ("links", "construction", "effort", "half"),
    "ivf-pq": ("lists", "code_bytes", "probes"),
    "int8": _OF_CODES,
    "binary": _OF_CODES,
}
_RAISES_RECALL = {
    "hnsw": ("effort", "links"),
    "ivf-pq": ("code_bytes", "probes"),
    "int8": ("candidates",),
    "binary": ("candidates",),
}


@click.command(short_help="Build an index of vectors.")
@click.argument("vectors", type=LocalPath())
@click.option(
    "--kind", type=click.Choice(["flat", "hnsw", "ivf-pq", "int8", "binary"]), default="flat", show_default=True
)
@click.option("--links", default=32, show_default=True, type=count(2), help="hnsw: neighbours per vector.")
@click.option(
    "--construction",
    default=200,
    show_default=True,
    type=count(1),
    help="hnsw: candidates followed while building.",
)
@click.option(
    "--effort",
    default=128,
    show_default=True,
    type=count(1),
    help="hnsw: candidates followed while searching.",
)
@click.option("--half", is_flag=True, help="hnsw: store float16 vectors.")
@click.option("--lists", default=0, type=count(0), help="ivf-pq: inverted lists (0: automatic).")
@click.option("--code-bytes", default=0, type=count(0), help="ivf-pq: bytes per vector (0: automatic).")
@click.option("--probes", default=0, type=count(0), help="ivf-pq: lists read per search (0: automatic).")
@click.option(
    "--rescore",
    type=click.Choice(["vectors", "codes"]),
    default="vectors",
    show_default=True,
    help="int8, binary: score candidates again with the vectors, which are stored too, or only with the codes.",
)
@click.option(
    "--candidates",
    default=4,
    show_default=True,
    type=count(1),
    help="int8, binary: candidates that are scored again for each hit.",
)
@click.option("-o", "--output", required=True, type=LocalPath(), help="The folder of the index.")
@output_options
def index(
    vectors: Path,
    kind: str,
    links: int,
    construction: int,
    effort: int,
    half: bool,
    lists: int,
    code_bytes: int,
    probes: int,
    rescore: str,
    candidates: int,
    output: Path,
) -> None:
    r"""Build an index of VECTORS made by `drkit encode`. flat is exact; the recall of other kinds is measured.

    \b
    drkit index vectors/ -o index/
    drkit index vectors/ --kind hnsw --effort 256 -o index/
    drkit index vectors/ --kind binary --candidates 8 -o index/
    """
    from drkit.search import Hnsw, IvfPq, Quantized, Vectors, build_index
    from drkit.search.index import LOW_RECALL

    _check_kind(kind)

    settings: Hnsw | IvfPq | Quantized | None = None
    opened = Vectors.open(vectors)
    if kind == "hnsw":
        half = half or opened.about["dtype"] == "float16"
        settings = Hnsw(links=links, construction=construction, effort=effort, half=half)
    elif kind == "ivf-pq":
        settings = IvfPq(lists=lists, code_bytes=code_bytes, probes=probes)
    elif kind in ("int8", "binary"):
        settings = Quantized(rescore=rescore, candidates=candidates)
    made = build_index(opened, output, kind=kind, settings=settings)
    recall = made.facts.get("recall@10")

    def draw() -> None:
        echo(f"index    {output}: {kind}, {len(made):,} vectors of {made.dimension}")
        if recall is not None:
            echo(f"recall   {recall:.1%} of the 10 nearest, of {made.facts['recall_sample']} vectors")

    found = {"folder": output, "kind": kind, "vectors": len(made), "dimension": made.dimension, "recall@10": recall}
    print_result(found, draw)
    if recall is not None and recall < LOW_RECALL:
        raised = " or ".join(f"--{n.replace('_', '-')} (now {made.settings[n]})" for n in _RAISES_RECALL[kind])
        print_note(f"the recall is below {LOW_RECALL:.0%}: raise {raised}, or use --kind flat, which is exact")
    print_next(f'use      drkit search {output} --encoder .. "a query"')


def _check_kind(kind: str) -> None:
    """Raise UsageError for a setting of another kind of index, which would have no effect."""
    given = click.get_current_context().get_parameter_source
    for other, names in _SETTINGS.items():
        for name in names:
            if name not in _SETTINGS.get(kind, ()) and given(name) is not ParameterSource.DEFAULT:
                raise click.UsageError(f"--{name.replace('_', '-')} is a setting of --kind {other}, not of {kind}")
