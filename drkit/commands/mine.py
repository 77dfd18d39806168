"""Mine hard negatives of a collection with a chain of miners, into a file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from attrs import define, field

from drkit.commands.inputs import NamedCollection, find_index
from drkit.commands.models import open_encoder, open_reranker
from drkit.core.discovery import Installed, installed
from drkit.core.files import replacing
from drkit.core.registry import Registry
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.data.corpus import StoredCollection, StoredCorpus, open_collection
from drkit.data.writing import write_collection
from drkit.errors import DrkitError
from drkit.miners.chain import MiningCounts, build_chain, refresh_settings
from drkit.miners.mining import (
    as_triplets,
    as_tuples,
    mining_requests,
    parse_chain,
    requirements_of,
    text_rows,
    weight_hashes,
)
from drkit.runs.execute import RECIPE
from drkit.search import Retriever, open_index
from drkit.search.retrieve import batched

FORMATS = ("ids", "triplets", "sentence-transformers")
QUERIES_PER_BATCH = 64
MinedQuery: TypeAlias = "tuple[MiningRequest, Mined]"


@define
class Miners:
    """A chain of miners by name with their settings (`margin.absolute=0.1`), and the models they search and score with.

    encoder: for `dense`: an encoder folder, a run, or a hub id; if None, the encoder of the mined run. pooling: of a
    checkpoint that does not declare it. reranker: for a `cross-encoder-filter` without a model of its own.
    exclude_self: never use a passage whose id equals the query's as its negative.
    """

    names: Sequence[str]
    settings: Sequence[str] = ()
    encoder: str | None = None
    pooling: str | None = None
    reranker: str | None = None
    device: str = "auto"
    seed: int = 42
    exclude_self: bool = False


@define
class Output:
    """The file of mined negatives: JSON Lines, written atomically.

    format: `ids`, one line per query: query_id, query, positives, negatives, scores. `triplets`, texts: anchor,
    positive, negative. `sentence-transformers`, texts: anchor, positive, negative_1 to negative_n, one line per
    positive, without queries that have fewer negatives. count: negatives per query to write; 0: all, or 5 as texts.
    """

    path: Path = field(converter=Path)
    format: str = "ids"
    count: int = 0


def mine_to_file(
    collection: str,
    miners: Miners,
    output: Output,
    *,
    split: str = "train",
    settings: Sequence[str] = (),
    depth: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    parts: Installed | None = None,
) -> dict[str, Any]:
    """Mine negatives for a split's judged queries into a file; returns counts, weight hashes and the number of lines.

    collection, settings, parts: see `NamedCollection`. depth: negatives per query; None: as deep as the source's
    ranking is read. on_progress: called with (queries done, total). Passages are encoded into a temporary folder,
    unless the mined run has an index of the encoder.

    Raises DrkitError if the chain lacks something it needs, the split has no judged query, or a name is unknown.
    """
    if output.format not in FORMATS:
        raise DrkitError(f"unknown format {output.format!r}; use one of: {', '.join(FORMATS)}")
    parts = parts or installed()
    registry = parts.registry
    choices = parse_chain(miners.names, miners.settings, registry)
    if refresh_settings(choices):
        raise DrkitError(
            "the miner refresh needs a model in training, within a run; for a finished encoder use the miner dense"
        )
    with tempfile.TemporaryDirectory(prefix="drkit-mine-") as scratch:
        stored = _stored(NamedCollection(collection, tuple(settings), parts), Path(scratch))
        total = len(stored.positives(split))
        if not total:
            raise DrkitError(
                f"{collection} has no {split!r} query with a passage judged relevant; its splits: "
                f"{', '.join(stored.splits()) or 'none'}"
            )
        context = BuildContext(
            retriever=_retriever(collection, miners, stored.corpus, Path(scratch), registry)
            if "retriever" in requirements_of(choices, registry)
            else None,
            reranker=open_reranker(miners.reranker, miners.device) if miners.reranker else None,
            negatives=stored.negatives(split),
            seed=miners.seed,
        )
        chain = build_chain(choices, registry, context)
        chain.index(stored.corpus)
        counts = MiningCounts()
        queries = partial(mining_requests, stored, split, exclude_self=miners.exclude_self)
        mined = zip(queries(), counts.count(chain.mine(queries(), depth or chain.depth)), strict=True)
        lines = _write(_reported(mined, total, on_progress), stored.corpus, output)
    return {**counts.summary(), "weights": weight_hashes(context), "lines": lines}


def _stored(collection: NamedCollection, scratch: Path) -> StoredCollection:
    source = collection.source
    if isinstance(source, StoredCollection):
        return source
    write_collection(source, scratch / "collection")
    return open_collection(scratch / "collection")


def _retriever(collection: str, miners: Miners, corpus: StoredCorpus, scratch: Path, registry: Registry) -> Retriever:
    run = Path(collection)
    is_of_run = (run / RECIPE).is_file() and miners.encoder in (None, collection)
    if miners.encoder is None and not is_of_run:
        raise DrkitError("the miner dense needs an encoder: give one with --encoder FOLDER_OR_RUN")
    encoder = open_encoder(
        miners.encoder or collection, pooling=miners.pooling, device=miners.device, registry=registry
    )
    if is_of_run:
        return Retriever(encoder, open_index(find_index(run)))
    return Retriever.build(encoder, ((p.doc_id, p.content) for p in corpus), scratch / "vectors")


def _reported(
    mined: Iterator[MinedQuery], total: int, on_progress: Callable[[int, int], None] | None
) -> Iterator[list[MinedQuery]]:
    """Yield batches, and report each one once it is written."""
    done = 0
    for batch in batched(mined, QUERIES_PER_BATCH):
        yield batch
        done += len(batch)
        if on_progress:
            on_progress(done, total)


def _write(batches: Iterator[list[MinedQuery]], corpus: StoredCorpus, output: Output) -> int:
    """Write the file and return its number of lines."""
    lines = 0
    with replacing(output.path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for batch in batches:
            for row in _rows(batch, corpus, output):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                lines += 1
    return lines


def _rows(batch: Sequence[MinedQuery], corpus: StoredCorpus, output: Output) -> Iterable[Mapping[str, Any]]:
    if output.format == "ids":
        return _as_ids(batch, output.count)
    count = output.count or 5
    rows = text_rows(((request.text, sorted(request.positives), mined) for request, mined in batch), corpus, count)
    return as_triplets(rows) if output.format == "triplets" else as_tuples(rows, count)


def _as_ids(batch: Sequence[MinedQuery], count: int) -> Iterator[dict[str, Any]]:
    for request, mined in batch:
        stop = count or None
        yield {
            "query_id": request.query_id,
            "query": request.text,
            "positives": sorted(request.positives),
            "negatives": list(mined.doc_ids[:stop]),
            "scores": list(mined.scores[:stop]),
        }
