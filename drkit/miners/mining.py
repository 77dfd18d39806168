"""Mine hard negatives for all queries of a collection; write them by passage index, or as training rows of texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from drkit.core.protocols import Corpus, NegativeFilter, NegativeMiner
from drkit.core.registry import Registry, installed
from drkit.core.spec import Kind
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.data.arrays import arrow_file, record_batch
from drkit.data.corpus import StoredCollection, StoredCorpus
from drkit.errors import DrkitError, ProblemsError
from drkit.miners.chain import Chain, MiningCounts, PassageLookup, build_chain
from drkit.recipe.compose import part_table
from drkit.recipe.schema import Choice, MinerChoice
from drkit.recipe.toml import assign, problems_of, recipe_converter
from drkit.search.retrieve import batched
from drkit.search.text_encoder import weights_hash

if TYPE_CHECKING:
    from numpy.typing import NDArray


def mine(
    corpus: Corpus,
    requests: Iterable[MiningRequest],
    miners: Sequence[str | NegativeMiner | NegativeFilter],
    *,
    depth: int | None = None,
    settings: Sequence[str] = (),
    context: BuildContext | None = None,
    registry: Registry | None = None,
) -> Iterator[Mined]:
    """Yield the hard negatives of each request, in the order of the requests; never a judged positive.

    corpus: passages by id (`drkit.data.open_collection(folder).corpus`, or any `Corpus`). miners: a source, then
    filters: either names as on the command line (`bm25`, `ranks:10-100`) with their settings (`margin.absolute=0.1`),
    or objects. depth: maximum number of negatives per query; None: as deep as the source's ranking is read. context:
    what miners are built with: `retriever` for dense, `reranker` for cross-encoder-filter, `negatives` for given, and
    `seed`. registry: the miners that names refer to; None: all installed ones.

    Raises DrkitError if the chain cannot be built, and UnknownNameError for an unknown name.

    >>> from drkit.testing.toys import ToyCorpus, toy_requests
    >>> found = next(mine(ToyCorpus(), toy_requests(1), ["bm25", "ranks:1-2"]))
    >>> found.query_id, found.doc_ids, found.dropped
    ('q0', ('d2', 'd3'), {'judged-positive': 2, 'ranks': 36})
    """
    objects = [part for part in miners if not isinstance(part, str)]
    if not objects:
        names = [part for part in miners if isinstance(part, str)]
        registry = registry or installed().registry
        chain = build_chain(parse_chain(names, settings, registry), registry, context or BuildContext())
    elif len(objects) < len(miners) or not (
        isinstance(objects[0], NegativeMiner) and all(isinstance(part, NegativeFilter) for part in objects[1:])
    ):
        raise DrkitError("give the miners all as names or all as objects: a source with `mine`, filters with `keep`")
    else:
        source, *filters = objects
        chain = Chain(source, filters)  # type: ignore[arg-type]
    chain.index(corpus)
    return chain.mine(requests, depth or chain.depth)


def parse_chain(names: Sequence[str], settings: Sequence[str], registry: Registry) -> tuple[Choice, ...]:
    """Return the miners named `NAME` or `NAME:VALUE`, with settings given as `NAME.SETTING=VALUE`.

    Raises UnknownNameError, ProblemsError for invalid settings, and DrkitError for settings of a miner not chosen.
    """
    tables = [part_table(Kind.MINER, name, registry) for name in names]
    by_name: dict[str, Any] = {}
    for table in tables:
        by_name.setdefault(table["use"], table)
    for assignment in settings:
        owner = assignment.partition("=")[0].partition(".")[0].strip()
        if owner not in by_name:
            raise DrkitError(
                f"--set {assignment}: the miner {owner!r} is not chosen; chosen: {', '.join(by_name) or 'none'}"
            )
        assign(by_name, assignment)
    converter = recipe_converter(registry)
    try:
        choices: tuple[Choice, ...] = converter.structure(tables, tuple[MinerChoice, ...])
    except Exception as error:
        named = partial(re.sub, r"@ recipe\[(\d+)\]", lambda found: f"@ {tables[int(found[1])]['use']}")
        raise ProblemsError("miners", [named(problem) for problem in problems_of(error)]) from None
    return choices


def requirements_of(choices: Sequence[Choice], registry: Registry) -> frozenset[str]:
    """Return what the miners of a chain require of their context, as in `retriever`."""
    return frozenset(
        name for choice in choices for name in registry.get(Kind.MINER, choice.use).requires_of(choice.config)
    )


# An anchor, one of its positives, and negatives, as texts.
TextRow: TypeAlias = "tuple[str, str, list[str]]"

_QUERIES_PER_LOOKUP = 64


def text_rows(mined: Iterable[tuple[str, Sequence[str], Mined]], corpus: Corpus, count: int) -> Iterator[TextRow]:
    """Yield (anchor, positive, up to `count` negatives) for every positive that is in the corpus.

    mined: each anchor's text, the ids of its positives, and its negatives.
    """
    lookup = PassageLookup(corpus)
    for batch in batched(mined, _QUERIES_PER_LOOKUP):
        texts = lookup.contents(d for _, positives, found in batch for d in (*positives, *found.doc_ids[:count]))
        for anchor, positives, found in batch:
            negatives = [texts[doc_id] for doc_id in found.doc_ids[:count]]
            yield from ((anchor, texts[doc_id], negatives) for doc_id in positives if doc_id in texts)


def as_triplets(rows: Iterable[TextRow]) -> Iterator[dict[str, str]]:
    """Yield the columns anchor, positive and negative, once for each negative.

    >>> list(as_triplets([("q", "p", ["n", "m"])]))
    [{'anchor': 'q', 'positive': 'p', 'negative': 'n'}, {'anchor': 'q', 'positive': 'p', 'negative': 'm'}]
    """
    for anchor, positive, negatives in rows:
        yield from ({"anchor": anchor, "positive": positive, "negative": text} for text in negatives)


def as_tuples(rows: Iterable[TextRow], count: int) -> Iterator[dict[str, str]]:
    """Yield the columns anchor, positive, negative_1 .. negative_n; rows with fewer than `count` negatives are skipped.

    >>> list(as_tuples([("q", "p", ["n", "m"]), ("r", "s", ["n"])], 2))
    [{'anchor': 'q', 'positive': 'p', 'negative_1': 'n', 'negative_2': 'm'}]
    """
    for anchor, positive, negatives in rows:
        if len(negatives) >= count:
            columns = {f"negative_{number}": text for number, text in enumerate(negatives[:count], start=1)}
            yield {"anchor": anchor, "positive": positive, **columns}


FILE = "negatives.arrow"
SCHEMA = pa.schema([("query_id", pa.string()), ("passages", pa.list_(pa.int64())), ("scores", pa.list_(pa.float32()))])
_BATCH_ROWS = 4096


def mining_requests(
    collection: StoredCollection, split: str = "train", *, exclude_self: bool = False
) -> Iterator[MiningRequest]:
    """Yield every query of a split that has a positive, with all passages judged relevant to it.

    exclude_self: a passage with the query's own id is never its negative.
    """
    positives = collection.positives(split)
    for query in collection.queries(split):
        if judged := positives.get(query.query_id):
            excluded = frozenset([query.query_id] if exclude_self else [])
            yield MiningRequest(query.query_id, query.text, frozenset(judged), excluded)


def write_negatives(mined: Iterable[Mined], corpus: StoredCorpus, folder: Path, name: str = FILE) -> dict[str, Any]:
    """Stream mined negatives to a file in `folder`, atomically; passages as indices in the corpus. Returns counts."""
    counts = MiningCounts()
    with arrow_file(folder / name, SCHEMA) as writer:
        for batch in batched(counts.count(mined), _BATCH_ROWS):
            passages = [corpus.positions(item.doc_ids) for item in batch]
            columns = [item.query_id for item in batch], passages, [item.scores for item in batch]
            writer.write_batch(record_batch(columns, SCHEMA))
    return counts.summary()


def read_negatives(folder: Path, name: str = FILE) -> Mapping[str, NDArray[np.int64]]:
    """Return the corpus indices of each query's negatives, best first, by query id."""
    with pa.memory_map(str(folder / name)) as source:
        table = pa.ipc.open_file(source).read_all()
    lists = table["passages"].combine_chunks()
    flat, offsets = lists.flatten().to_numpy(zero_copy_only=False), lists.offsets.to_numpy()
    offsets = offsets - offsets[0] if len(offsets) else offsets
    return {q: flat[offsets[i] : offsets[i + 1]] for i, q in enumerate(table["query_id"].to_pylist())}


def weight_hashes(context: BuildContext) -> dict[str, str]:
    """Return hashes of the weights that a chain searches and scores with; names and paths do not identify weights."""
    encoder, model = getattr(context.retriever, "encoder", None), getattr(context.reranker, "model", None)
    hashes = {} if encoder is None else {"retriever": encoder.identity()["weights"]}
    return hashes if model is None else {**hashes, "reranker": weights_hash(model)}
