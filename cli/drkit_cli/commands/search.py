"""`drkit search`: search a finished run, or rank the passages of an index for a file of queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drkit.core.engine import LOCAL, Loaded, loaded_value, open_engine
from drkit.core.escaping import escape_line
from drkit.core.quantities import counted
from drkit.core.types import Query
from drkit.errors import DrkitError
from drkit_cli.names import CollectionName, LocalPath, PathOrId, count
from drkit_cli.options import OF_ENCODER, backend_option, encoder_options, engine_option, refuse_options
from drkit_cli.output import output_options, print_note, print_result
from drkit_cli.terminal import echo

if TYPE_CHECKING:
    from drkit.commands import SearchSystem
    from drkit.search import Retriever
    from drkit.search.fusion import Searcher

_SHOWN, _RANKED = 5, 1000
# Columns before the text of a hit: those of its rank, and two spaces.
_INDENT = 5
_LONGEST = 300  # characters of a passage


@click.command(short_help="Search a run or an index.")
@click.argument("where", metavar="RUN_OR_INDEX", type=LocalPath())
@click.argument("words", metavar="[QUERY]", nargs=-1)
@click.option("-k", "--depth", type=count(1), help=f"Passages per query ({_SHOWN}; {_RANKED} with -o).")
@click.option("--encoder", metavar="PATH_OR_ID", type=PathOrId(), help="The encoder of the index (a run has its own).")
@click.option("--queries", metavar="FILE", help="Queries: .tsv, .jsonl, TREC topics ..")
@click.option(
    "--collection", metavar="RUN|NAME:VALUE", type=CollectionName(), help="Search for a collection's queries."
)
@click.option("--split", default="test", show_default=True, help="Split of the collection.")
@backend_option
@click.option(
    "--system",
    metavar="NAME",
    help="hybrid, bm25, retriever-1 .. of a run (default: the best on its dev queries).",
)
@click.option("--hybrid", "system", flag_value="hybrid", hidden=True)
@click.option("--data-set", metavar="NAME", help="Which of a run's data sets to search, if it has several.")
@engine_option
@click.option("-o", "--output", type=LocalPath(dir_okay=False), help="Write a TREC run to this file.")
@output_options
@encoder_options
def search(
    where: Path,
    words: tuple[str, ...],
    depth: int | None,
    encoder: str | None,
    queries: str | None,
    collection: str | None,
    split: str,
    backend: str,
    system: str | None,
    data_set: str | None,
    engine: str,
    output: Path | None,
    encoder_settings: Mapping[str, Any],
) -> None:
    r"""Print the best passages for QUERY, or write the rankings of many queries as a TREC run.

    A run is searched with its best system, as chosen on its dev queries.

    \b
    drkit search runs/R "remove a suffix"
    drkit search runs/R "remove a suffix" --system bm25
    drkit search runs/R "remove a suffix" --data-set nq
    drkit search runs/R --split test -o test.trec
    drkit search runs/R --collection beir:FOLDER -o other.trec
    drkit search index/ --encoder runs/R --queries topics.tsv -k 100 -o t.trec
    drkit search index/ --encoder runs/R --queries many.tsv \
        --engine ray:auto -o many.trec
    """
    from drkit.commands import NamedCollection, find_queries
    from drkit.commands.systems import note_other_passages

    if len(words) > 1:
        raise click.UsageError(f'quote a query of several words: drkit search {where} "{" ".join(words)}"')
    query = words[0] if words else None
    many = bool(queries or collection or output)
    if (query is None) != many or (queries and collection) or (many and not output):
        raise click.UsageError("give one QUERY, or --queries or --collection with -o FILE")
    if query is not None and not query.strip():
        raise DrkitError("the query is empty; it must contain at least one word")
    if query is not None:
        refuse_options(("engine",), "with a QUERY")
    opening = {**encoder_settings, "backend": backend, "data_set": data_set}
    name, retriever = _open(where, system, encoder, opening, engine)
    if query is not None:
        _print_hits(where, name, loaded_value(retriever), query, depth or _SHOWN)
    elif output is not None:
        named = NamedCollection(collection or str(where))
        asked = find_queries(queries) if queries else named.queries(split)
        if name is not None and not queries and (warned := note_other_passages(where, named, split)):
            print_note(warned)
        _write_rankings(name, retriever, asked, output, depth or _RANKED, engine)


def _open(
    where: Path, system: str | None, encoder: str | None, how: Mapping[str, Any], engine: str
) -> tuple[SearchSystem | None, Searcher | Loaded[Retriever]]:
    """Return what searches, and for a run its system; where: a run, or an index; how: settings of `open_encoder`."""
    from drkit.commands import data_sets_of, find_index, find_system, open_retriever, open_system

    index, plain = find_index(where), {name: value for name, value in how.items() if name != "data_set"}
    if index == where:
        if how["data_set"] is not None:
            raise DrkitError(f"{where} is an index, not a run: it has no data sets; leave out --data-set")
        if system is not None:
            raise DrkitError(f"{where} is an index, not a run: it has no systems to choose from; leave out --system")
        if encoder is None and (where / "index.json").is_file():
            raise DrkitError(
                f"{where} is an index without an encoder: give the encoder that it was built with (--encoder)"
            )
        return None, Loaded(open_retriever, index, encoder or str(where), **plain)
    found = find_system(where, system)
    if not found.encoder:
        refuse_options(("encoder", "backend", *OF_ENCODER), f"with {found.description}, which has no encoder")
    is_plain = not found.retriever and found.encoder and not found.part
    if is_plain and how["data_set"] is None and not data_sets_of(where):
        return found, Loaded(open_retriever, where / found.index, encoder or str(where / found.encoder), **plain)
    if engine != LOCAL:
        name = found.retriever or found.encoder or "RETRIEVER"
        raise click.UsageError(f"--engine searches with one retriever, not with {found.description}: --system {name}")
    return found, open_system(where, found.name, encoder=encoder, **how)


def _write_rankings(
    system: SearchSystem | None,
    retriever: Searcher | Loaded[Retriever],
    queries: Iterable[Query],
    output: Path,
    depth: int,
    engine: str,
) -> None:
    from drkit.commands import rank_to_run

    with open_engine(engine) as opened:
        done = rank_to_run(retriever, queries, output, depth=depth, engine=opened)
    passages = len(loaded_value(retriever))
    found = min(depth, passages)
    lines = [f"system   {system.description}"] if system else []
    lines.append(f"run      {output}: {counted(done, 'query')}, {found:,} of {counted(passages, 'passage')} each")
    print_result(
        {**_named(system), "file": output, "queries": done, "depth": found, "passages": passages},
        lambda: echo("\n".join(lines)),
    )


def _named(system: SearchSystem | None) -> dict[str, str]:
    """Return a run's system as a field of a result."""
    return {"system": system.name} if system else {}


def _print_hits(where: Path, system: SearchSystem | None, retriever: Searcher, query: str, depth: int) -> None:
    from drkit.data.corpus import open_collection

    (hits,) = retriever.search([query], depth)
    texts = [""] * len(hits.doc_ids)
    if (where / "collection").is_dir():
        passages = open_collection(where / "collection").corpus.get_many(hits.doc_ids)
        texts = [passage.content for passage in passages]
    rows = zip(hits.doc_ids, hits.scores, texts, strict=True)
    found = [
        {"rank": rank, "doc_id": doc_id, "score": float(score), "text": text}
        for rank, (doc_id, score, text) in enumerate(rows, start=1)
    ]
    described = system.description if system else ""
    print_result({"query": query, **_named(system), "hits": found}, lambda: _draw_hits(described, found))


def _draw_hits(system: str, hits: Iterable[Mapping[str, Any]]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from drkit_cli.render import console

    screen = console()
    if system:
        screen.print(Text(system, style="bold"))
    for hit in hits:
        line = Text(f"{hit['rank']:3d}", style="bold").append(f"  {hit['score']:.4f}  ", style="not bold")
        screen.print(line.append(escape_line(hit["doc_id"]), style="not bold cyan"))
        text = " ".join(hit["text"].split())
        if len(text) > _LONGEST:
            text = f"{text[:_LONGEST].rsplit(' ', 1)[0]} .."
        if text:
            screen.print(Padding(Text(text), (0, 0, 0, _INDENT), expand=False), style="dim")
