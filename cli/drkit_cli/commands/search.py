"""`drkit search`: ask a finished run."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("query")
@click.option("-k", "--depth", default=5, show_default=True, type=click.IntRange(1, 1000), help="Passages to print.")
def search(run: Path, query: str, depth: int) -> None:
    """Print the passages of RUN's collection that answer QUERY best, with scores and text."""
    from drkit.data.tables import open_collection
    from drkit.errors import DrkitError
    from drkit.runs.retriever import open_run
    from drkit_cli.render import console

    if not query.strip():
        raise DrkitError("the query is empty; give the words to search for")
    (hits,) = open_run(run).search([query], depth)
    passages = open_collection(run / "collection").corpus.get_many(hits.doc_ids)
    screen = console()
    for rank, (passage, score) in enumerate(zip(passages, hits.scores, strict=True), start=1):
        screen.print(f"[bold]{rank:3d}[/]  {score:.4f}  ", end="")
        screen.print(passage.doc_id, style="cyan", markup=False)
        screen.print(_excerpt(passage.content), markup=False, style="dim")


def _excerpt(text: str, limit: int = 300) -> str:
    line = " ".join(text.split())
    return "     " + (line if len(line) <= limit else f"{line[:limit].rsplit(' ', 1)[0]} ..")
