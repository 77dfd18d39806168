"""Mine negatives for the queries of a collection into a file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from attrs import define, field

from drkit.commands.collections import NamedCollection
from drkit.commands.inputs import OpenedEncoder, find_index, open_encoder, open_reranker
from drkit.core.files import SCRATCH, replacing
from drkit.core.quantities import counted
from drkit.core.registry import installed
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.data.corpus import StoredCollection, StoredCorpus, open_collection
from drkit.data.rows import batched
from drkit.errors import DrkitError, UnknownNameError
from drkit.miners.chain import (
    MiningCounts,
    build_chain,
    mining_requests,
    model_hashes,
    parse_chain,
    requirements_of,
)
from drkit.miners.specs import refresh_settings
from drkit.miners.training_rows import as_triplets, as_tuples, text_rows
from drkit.recipe.start import RECIPE
from drkit.search import Retriever, open_index
from drkit.search.encode import passage_texts

_FORMATS = ("ids", "triplets", "sentence-transformers")
_QUERIES_PER_BATCH = 64
MinedQuery: TypeAlias = "tuple[MiningRequest, Mined]"


@define
class Miners:
    """A chain of miners by name with their settings (`margin.absolute=0.1`), and the models they search and score with.

    encoder: for `dense`: an encoder folder, a run, or a hub id; if None, the encoder of the mined run.
    encoder_settings: its `pooling`, `query_prompt`, `passage_prompt`; see `open_encoder`. reranker: for a
    `cross-encoder-filter` without a model of its own. exclude_self: never use a passage whose id equals the query's as
    its negative.
    """

    names: Sequence[str]
    settings: Sequence[str] = ()
    encoder: str | None = None
    encoder_settings: Mapping[str, Any] = field(factory=dict)
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

    @property
    def fewest(self) -> int:
        """Negatives that a query must have to get a line with negatives."""
        return (self.count or 5) if self.format == "sentence-transformers" else 1

    def rows(self, mined: Iterable[MinedQuery], corpus: StoredCorpus) -> Iterable[Mapping[str, Any]]:
        """Return the lines of some queries as plain data."""
        if self.format == "ids":
            return _rows_of_ids(mined, self.count or None)
        count = self.count or 5
        rows = text_rows(((request.text, sorted(request.positives), found) for request, found in mined), corpus, count)
        return as_triplets(rows) if self.format == "triplets" else as_tuples(rows, count)


def _rows_of_ids(mined: Iterable[MinedQuery], count: int | None) -> Iterator[dict[str, Any]]:
    for request, found in mined:
        yield {
            "query_id": request.query_id,
            "query": request.text,
            "positives": sorted(request.positives),
            "negatives": list(found.doc_ids[:count]),
            "scores": list(found.scores[:count]),
        }


def mine_to_file(
    collection: str,
    miners: Miners,
    output: Output,
    *,
    split: str = "train",
    settings: Sequence[str] = (),
    depth: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Mine negatives for a split's judged queries into a file; returns counts, hashes of the models, and the lines.

    collection, settings: see `NamedCollection`. depth: negatives per query; None: as deep as the source's
    ranking is read. on_progress: called with (queries done, total). Passages are encoded into a temporary folder,
    unless the mined run has an index of the encoder.

    Raises DrkitError if the chain lacks something it needs, the split has no judged query, a name is unknown, or no
    query has a negative.
    """
    if output.format not in _FORMATS:
        raise UnknownNameError("format", output.format, _FORMATS)
    registry = installed().registry
    choices = parse_chain(miners.names, miners.settings, registry)
    if refresh_settings(choices):
        raise DrkitError(
            "the miner 'refresh' works only while a run trains; use the miner 'dense' with a finished encoder"
        )
    needed = requirements_of(choices, registry)
    if miners.encoder and "retriever" not in needed:
        used = ", ".join(choice.use for choice in choices)
        raise DrkitError(f"--encoder has no effect on {used}: leave it out, or search with it (--miner dense)")
    named = NamedCollection(collection, tuple(settings))
    _ = named.source  # names may be wrong: the collection is found and models are loaded before anything is read
    encoder = _open_encoder(miners, collection) if "retriever" in needed else None
    reranker = open_reranker(miners.reranker, miners.device) if miners.reranker else None
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as scratch:
        stored = open_collection(named.store(Path(scratch))[0])
        if not (total := len(stored.positives(split))):
            raise DrkitError(
                f"{collection} has no {split!r} query with a passage judged relevant; its splits: "
                f"{', '.join(stored.splits()) or 'none'}"
            )
        context = BuildContext(
            retriever=_make_retriever(encoder, miners, collection, stored, Path(scratch)) if encoder else None,
            reranker=reranker,
            negatives=stored.negatives(split),
            seed=miners.seed,
        )
        chain = build_chain(choices, registry, context)
        chain.index(stored.corpus)
        counts, queries = MiningCounts(), partial(mining_requests, stored, split, exclude_self=miners.exclude_self)
        found = zip(queries(), counts.count(chain.mine(queries(), depth or chain.depth)), strict=True)
        lines = _write(output, stored.corpus, found, counts, on_progress and (lambda done: on_progress(done, total)))
    return {**counts.summary(), "models": model_hashes(context), "lines": lines}


def _has_own_index(miners: Miners, collection: str) -> bool:
    """Return whether the encoder to search with is that of the mined run, which has an index."""
    return (Path(collection) / RECIPE).is_file() and miners.encoder in (None, collection)


def _open_encoder(miners: Miners, collection: str) -> OpenedEncoder:
    """Open the miners' encoder, or that of the run or index which is mined; raises DrkitError if there is neither."""
    if miners.encoder is None and not _has_own_index(miners, collection):
        raise DrkitError(f"the miner {miners.names[0]} needs an encoder: give one with --encoder FOLDER_OR_RUN")
    return open_encoder(miners.encoder or collection, device=miners.device, **miners.encoder_settings)


def _make_retriever(
    encoder: OpenedEncoder, miners: Miners, collection: str, stored: StoredCollection, scratch: Path
) -> Retriever:
    """Return the retriever of the mined run, if it has the index of this encoder, or one over vectors in `scratch`."""
    if _has_own_index(miners, collection):
        return Retriever(encoder, open_index(find_index(collection)))
    return Retriever.build(encoder, passage_texts(stored.corpus, encoder), scratch / "vectors")


def _write(
    output: Output,
    corpus: StoredCorpus,
    mined: Iterable[MinedQuery],
    counts: MiningCounts,
    on_progress: Callable[[int], None] | None,
) -> int:
    """Write the file and return its number of lines; on_progress: called with the number of queries done.

    counts: of `mined`. Raises DrkitError, and writes no file, without a negative, or without a line.
    """
    lines = done = 0
    with replacing(output.path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for batch in batched(mined, _QUERIES_PER_BATCH):
            for row in output.rows(batch, corpus):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                lines += 1
            done += len(batch)
            if on_progress:
                on_progress(done)
        counts.check_ids()
        if not counts.negatives or not lines:
            fewest = f"{output.fewest:,} negatives" if output.fewest > 1 else "a negative"
            raise DrkitError(
                f"none of the {counted(counts.queries, 'query')} has {fewest} (dropped: "
                f"{counts.describe_dropped()}); use "
                f"another source, filter less, or write fewer (--negatives)"
            )
    return lines
