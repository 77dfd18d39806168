"""Mining of what has a name on the command line: a collection, an encoder, a chain of miners; into a file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from attrs import define, field

from drkit.core.discovery import installed
from drkit.core.files import replacing
from drkit.core.recipe import Choice
from drkit.core.registry import Registry
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.data.corpus import StoredCorpus
from drkit.data.tables import StoredCollection, open_collection
from drkit.data.writing import write_collection
from drkit.errors import DrkitError
from drkit.miners.chain import Chain, build_chain, refresh_of
from drkit.miners.known import KnownIds
from drkit.miners.mining import chain_named, wanted_by
from drkit.miners.tally import Tally
from drkit.runs.execute import RECIPE
from drkit.runs.files.collections import kept_collection, named_collection
from drkit.runs.files.encoders import open_encoder
from drkit.runs.files.rerankers import open_reranker
from drkit.runs.files.searching import find_index
from drkit.runs.finetuning.negatives import requests, weights_of
from drkit.search import FlatIndex, Retriever, Vectors, encode_corpus, open_index
from drkit.search.hits import batched

FORMATS = ("ids", "triplets", "sentence-transformers")
QUERIES = 64
Answer: TypeAlias = "tuple[MiningRequest, Mined]"


@define
class Miners:
    """What is to mine: names with their settings (`margin.absolute=0.1`), and the models they search and score with.

    encoder: for `dense`: an encoder folder, a run, a hub id; None: that of the run that is mined. pooling: of a
    checkpoint that does not say it. reranker: for `cross-encoder-filter`, where it names no model. exclude_self: a
    passage whose id is the query's own is no negative of it.
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
    """Where mined negatives go: JSON lines, atomically.

    format: `ids`, a line a query: query_id, query, positives, negatives, scores. `triplets`, texts: anchor, positive,
    negative. `sentence-transformers`, texts: anchor, positive, negative_1 to negative_n, a line a positive; none for a
    query with fewer negatives. count: negatives a query that are written; 0: all, but 5 as texts.
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
    told: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Mine negatives of a split's judged queries into a file; returns counts, what was dropped, weights' hashes, lines.

    collection: a run's folder, or as `compose` takes it (`beir:FOLDER`) with its settings (`collection.limit=100`).
    depth: negatives a query; None: as deep as the source's ranking is read. told: (queries done, of how many).
    Passages are encoded into a temporary folder, unless the run that is mined has an index of the encoder.

    Raises DrkitError where the chain lacks what it needs, the split has no judged query, or a name leads nowhere.
    """
    if output.format not in FORMATS:
        raise DrkitError(f"no format {output.format!r}; known: {', '.join(FORMATS)}")
    registry = installed().registry
    choices = chain_named(miners.names, miners.settings, registry)
    if refresh_of(choices):
        raise DrkitError("refresh mines with a model in training, in a run; with a finished encoder the miner is dense")
    with tempfile.TemporaryDirectory(prefix="drkit-mine-") as scratch:
        stored = _stored(collection, settings, Path(scratch))
        total = len(stored.positives(split))
        if not total:
            raise DrkitError(
                f"{collection} has no {split!r} query with a passage judged relevant; its splits: "
                f"{', '.join(stored.splits()) or 'none'}"
            )
        context = _context(collection, miners, wanted_by(choices, registry), stored, Path(scratch), split)
        chain = _chain(choices, registry, context, stored)
        tally = Tally()
        asked = partial(requests, stored, split, exclude_self=miners.exclude_self)
        lines = _write(_answers(chain, asked, depth, tally), stored.corpus, output, _counter(told, total))
    return {**tally.figures(), "weights": weights_of(context), "lines": lines}


def _chain(choices: Sequence[Choice], registry: Registry, context: BuildContext, stored: StoredCollection) -> Chain:
    chain = build_chain(choices, registry, context)
    chain.index(stored.corpus)
    return chain


def _stored(collection: str, settings: Sequence[str], scratch: Path) -> StoredCollection:
    kept = kept_collection(collection)
    if kept is None:
        kept = scratch / "collection"
        write_collection(named_collection(collection, settings), kept)
    return open_collection(kept)


def _context(
    collection: str, miners: Miners, needs: frozenset[str], stored: StoredCollection, scratch: Path, split: str
) -> BuildContext:
    return BuildContext(
        retriever=_retriever(collection, miners, stored.corpus, scratch) if "retriever" in needs else None,
        reranker=open_reranker(miners.reranker, miners.device) if miners.reranker else None,
        negatives=stored.negatives(split),
        seed=miners.seed,
    )


def _retriever(collection: str, miners: Miners, corpus: StoredCorpus, scratch: Path) -> Retriever:
    run = Path(collection)
    of_run = (run / RECIPE).is_file() and miners.encoder in (None, collection)
    if miners.encoder is None and not of_run:
        raise DrkitError("the miner dense searches with an encoder: give one with --encoder FOLDER_OR_RUN")
    encoder = open_encoder(miners.encoder or collection, pooling=miners.pooling, device=miners.device)
    if of_run:
        return Retriever(encoder, open_index(find_index(run)))
    encode_corpus(encoder, ((p.doc_id, p.content) for p in corpus), scratch / "vectors")
    vectors = Vectors.open(scratch / "vectors")
    return Retriever(encoder, FlatIndex.build(vectors.shards, vectors.doc_ids, encoder=vectors.encoder))


def _answers(
    chain: Chain, asked: Callable[[], Iterator[MiningRequest]], depth: int | None, tally: Tally
) -> Iterator[Answer]:
    """Each judged query with its negatives."""
    mined = tally.watch(chain.mine(asked(), depth or chain.depth))
    return zip(asked(), mined, strict=True)


def _counter(told: Callable[[int, int], None] | None, total: int) -> Callable[[int], None]:
    return lambda done: told(done, total) if told else None


def _write(answers: Iterator[Answer], corpus: StoredCorpus, output: Output, told: Callable[[int], None]) -> int:
    """Write the file; returns how many lines it has."""
    rows = _as_ids if output.format == "ids" else _as_triplets if output.format == "triplets" else _as_columns
    lines = done = 0
    with replacing(output.path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for batch in batched(answers, QUERIES):
            for row in rows(batch, corpus, output.count):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                lines += 1
            done += len(batch)
            told(done)
    return lines


def _as_ids(batch: Sequence[Answer], _corpus: StoredCorpus, count: int) -> Iterator[dict[str, Any]]:
    for request, mined in batch:
        stop = count or None
        yield {
            "query_id": request.query_id,
            "query": request.text,
            "positives": sorted(request.positives),
            "negatives": list(mined.doc_ids[:stop]),
            "scores": list(mined.scores[:stop]),
        }


def _as_triplets(batch: Sequence[Answer], corpus: StoredCorpus, count: int) -> Iterator[dict[str, Any]]:
    for anchor, positive, negatives in _texts(batch, corpus, count or 5):
        for negative in negatives:
            yield {"anchor": anchor, "positive": positive, "negative": negative}


def _as_columns(batch: Sequence[Answer], corpus: StoredCorpus, count: int) -> Iterator[dict[str, Any]]:
    wanted = count or 5
    for anchor, positive, negatives in _texts(batch, corpus, wanted):
        if len(negatives) == wanted:
            columns = {f"negative_{place}": text for place, text in enumerate(negatives, start=1)}
            yield {"anchor": anchor, "positive": positive, **columns}


def _texts(batch: Sequence[Answer], corpus: StoredCorpus, count: int) -> Iterator[tuple[str, str, list[str]]]:
    """(query, positive, its first negatives) as texts, for every positive that the corpus has."""
    named: Iterable[str] = (d for r, m in batch for d in (*sorted(r.positives), *m.doc_ids[:count]))
    ids = list(dict.fromkeys(named))
    present = [name for name, there in zip(ids, KnownIds(corpus)(ids), strict=True) if there]
    contents = {passage.doc_id: passage.content for passage in corpus.get_many(present)} if present else {}
    for request, mined in batch:
        negatives = [contents[doc_id] for doc_id in mined.doc_ids[:count]]
        for positive in sorted(request.positives):
            if positive in contents:
                yield request.text, contents[positive], negatives
