"""What is mined for, and mined negatives on disk: a list of passage numbers a query, as Arrow, and counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from drkit.core.files import replacing
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.data.corpus import StoredCorpus
from drkit.data.tables import StoredCollection
from drkit.miners.chain import MiningCounts
from drkit.search.text_encoder import weights_hash

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILE = "negatives.arrow"
SCHEMA = pa.schema([("query_id", pa.string()), ("passages", pa.list_(pa.int64())), ("scores", pa.list_(pa.float32()))])
_ROWS = 4096


def requests(
    collection: StoredCollection, split: str = "train", *, exclude_self: bool = False
) -> Iterator[MiningRequest]:
    """Every query of a split with a positive, and all passages judged relevant to it.

    exclude_self: the passage whose id is the query's own is no negative of it.
    """
    positives = collection.positives(split)
    for query in collection.queries(split):
        if judged := positives.get(query.query_id):
            own = frozenset([query.query_id] if exclude_self else [])
            yield MiningRequest(query.query_id, query.text, frozenset(judged), own)


def write_negatives(mined: Iterable[Mined], corpus: StoredCorpus, folder: Path, name: str = FILE) -> dict[str, Any]:
    """Stream mined negatives to a file in `folder`, atomically; passages as places in the corpus. Returns counts."""
    counts = MiningCounts()
    with replacing(folder / name) as path, pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        rows: list[tuple[str, list[int], list[float]]] = []
        for item in counts.count(mined):
            rows.append((item.query_id, [int(p) for p in corpus.positions(item.doc_ids)], list(item.scores)))
            if len(rows) == _ROWS:
                writer.write_batch(_batch(rows))
                rows = []
        writer.write_batch(_batch(rows))
    return counts.summary()


def _batch(rows: list[tuple[str, list[int], list[float]]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def read_negatives(folder: Path, name: str = FILE) -> Mapping[str, NDArray[np.int64]]:
    """Places in the corpus of each query's negatives, best first."""
    with pa.memory_map(str(folder / name)) as source:
        table = pa.ipc.open_file(source).read_all()
    lists = table["passages"].combine_chunks()
    flat, offsets = lists.flatten().to_numpy(zero_copy_only=False), lists.offsets.to_numpy()
    offsets = offsets - offsets[0] if len(offsets) else offsets
    return {q: flat[offsets[i] : offsets[i + 1]] for i, q in enumerate(table["query_id"].to_pylist())}


def weights_of(context: BuildContext) -> dict[str, str]:
    """Return hashes of the weights that a chain searches and scores with: names and paths say nothing of them."""
    encoder, model = getattr(context.retriever, "encoder", None), getattr(context.reranker, "model", None)
    found = {} if encoder is None else {"retriever": encoder.identity()["weights"]}
    return found if model is None else {**found, "reranker": weights_hash(model)}
