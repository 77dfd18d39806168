"""Mining requests, and mined negatives on disk: a list of passage indices per query, as Arrow, with counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from drkit.core.files import replacing
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.data.corpus import StoredCollection, StoredCorpus
from drkit.miners.chain import MiningCounts
from drkit.search.text_encoder import weights_hash

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    with replacing(folder / name) as path, pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        rows: list[tuple[str, list[int], list[float]]] = []
        for item in counts.count(mined):
            rows.append((item.query_id, [int(p) for p in corpus.positions(item.doc_ids)], list(item.scores)))
            if len(rows) == _BATCH_ROWS:
                writer.write_batch(_record_batch(rows))
                rows = []
        writer.write_batch(_record_batch(rows))
    return counts.summary()


def _record_batch(rows: list[tuple[str, list[int], list[float]]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


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
