"""Vector stores of other projects: LanceDB, Qdrant, usearch, OpenSearch, and Lucene by way of Anserini.

Passages go there with their vectors, ids, titles and texts, in batches. Every store ranks by inner product, as drkit's
own indexes do. A folder is complete or absent; nothing is sent anywhere unless the target is a URL.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from drkit.core.files import local_path, make_folder, replacing_folder, write_text
from drkit.errors import DrkitError, MissingExtraError, did_you_mean

if TYPE_CHECKING:
    from opensearchpy import OpenSearch
    from qdrant_client import QdrantClient

# The file that describes a pushed folder, and marks it as one that a push may replace.
ABOUT = "drkit.json"
ENTRIES_AT_ONCE = 512
# Below what a server of OpenSearch accepts in one request, 100 MB.
_PART_BYTES = 50 << 20
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,127}")
_URL = re.compile(r"https?://", re.IGNORECASE)


@frozen(eq=False)
class Entries:
    """Passages with their vectors f32[n,D]; first: index of the first; columns: their titles and texts, by field."""

    first: int
    doc_ids: Sequence[str]
    vectors: NDArray[np.float32]
    columns: Mapping[str, Sequence[str]]

    def __len__(self) -> int:
        return len(self.doc_ids)

    @property
    def keys(self) -> range:
        """The index of each passage."""
        return range(self.first, self.first + len(self))

    def payloads(self) -> Iterator[dict[str, str]]:
        """Yield the id, and the title and text if they are pushed, of each passage."""
        columns = {"doc_id": self.doc_ids, **self.columns}
        return (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


@frozen(eq=False)
class Content:
    """What is pushed: `count` entries in batches; fields: of `title` and `text`; encoder: its identity."""

    count: int
    dimension: int
    fields: tuple[str, ...]
    encoder: Mapping[str, Any] | None
    batches: Iterable[Entries]


@frozen
class StoreTarget:
    """Where to push: a store, a folder or URL, the name of the table, collection or index there."""

    store: str
    where: str
    name: str = "passages"

    @classmethod
    def parse(cls, text: str, name: str = "passages") -> StoreTarget:
        """Read `STORE:FOLDER` or `STORE:URL`.

        Raises DrkitError for an unknown store, a missing folder, a URL for a store without a server, or a name that
        not every store allows.
        """
        store, _, where = text.partition(":")
        known = ", ".join(STORES)
        if store not in STORES:
            raise DrkitError(f"no store named {store!r}{did_you_mean(store, STORES)} known: {known}; give STORE:FOLDER")
        if not where:
            raise DrkitError(f"{text!r} has no folder; give one, as in {store}:pushed/")
        if _URL.match(where) and store not in _SERVERS:
            raise DrkitError(
                f"{store} is written to a folder, not to a URL; only {' and '.join(_SERVERS)} have a server"
            )
        if not _NAME.fullmatch(name):
            raise DrkitError(f"invalid name {name!r}; use at most 128 lower-case letters, digits, - and _")
        return cls(store, where, name)

    @property
    def url(self) -> str:
        """The address of a server; empty for a folder."""
        return self.where if _URL.match(self.where) else ""

    def __str__(self) -> str:
        """Return the target as it was given, without a password."""
        parts = urlsplit(self.url)
        shown = self.url.replace(f"{parts.netloc}", parts.netloc.rpartition("@")[2], 1) if self.url else self.where
        return f"{self.store}:{shown}"


def write_to_store(target: StoreTarget, content: Content, *, replace: bool = False) -> None:
    """Write all entries to a store.

    replace: whether to replace an earlier push of the same name. A folder, and a table of LanceDB, is replaced at the
    end and at once; of a server, the collection or index is deleted first.

    Raises DrkitError if the target exists and is not to be replaced, holds something else, or the server refuses;
    MissingExtraError without the store's client.
    """
    STORES[target.store](target, content, replace)


def _lancedb(target: StoreTarget, content: Content, replace: bool) -> None:
    """Write a table of the columns `doc_id`, `vector`, and the fields."""
    try:
        import lancedb
    except ImportError:
        raise MissingExtraError("pushing to LanceDB", "lancedb", "lancedb") from None
    import pyarrow as pa

    make_folder(local_path(target.where))
    database = lancedb.connect(str(local_path(target.where)))
    try:
        database.open_table(target.name)
        exists = True
    except ValueError:  # no such table
        exists = False
    if exists and not replace:
        raise _exists(f"the table {target.name!r} of {target}")
    vector = pa.list_(pa.float32(), content.dimension)
    schema = pa.schema([("doc_id", pa.utf8()), ("vector", vector), *((field, pa.utf8()) for field in content.fields)])
    schema = schema.with_metadata({"drkit": _about(target, content)})

    def batches() -> Iterator[Any]:
        for some in content.batches:
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(some.vectors.ravel()), content.dimension)
            yield pa.record_batch([pa.array(some.doc_ids), vectors, *map(pa.array, some.columns.values())], schema)

    failed: list[BaseException] = []
    rows = pa.RecordBatchReader.from_batches(schema, _remembering(batches(), failed))
    try:
        database.create_table(target.name, rows, mode="overwrite" if exists else "create")
    except RuntimeError:
        if failed:  # LanceDB reports only that reading failed
            raise failed[0] from None
        raise
    finally:
        if failed and not exists:
            database.drop_table(target.name, ignore_missing=True)


def _remembering(batches: Iterable[Any], failed: list[BaseException]) -> Iterator[Any]:
    """Yield the batches; append the error that ends them early."""
    try:
        yield from batches
    except Exception as error:
        failed.append(error)
        raise


def _qdrant(target: StoreTarget, content: Content, replace: bool) -> None:
    """Write a collection, on a server or embedded in a folder; the points are numbered, their payload has the ids."""
    try:
        from qdrant_client import QdrantClient
    except ImportError:
        raise MissingExtraError("pushing to Qdrant", "qdrant-client", "qdrant") from None

    if not target.url:
        with (
            _pushed_folder(target, content, replace) as folder,
            closing(QdrantClient(path=str(folder))) as client,
        ):
            _fill_qdrant(client, target.name, content)
        return
    with _asking_server(target):
        client = QdrantClient(url=target.url, api_key=os.environ.get("QDRANT_API_KEY"))
        if client.collection_exists(target.name):
            if not replace:
                raise _exists(f"the collection {target.name!r} of {target}")
            client.delete_collection(target.name)
        with _undone(lambda: client.delete_collection(target.name)):
            _fill_qdrant(client, target.name, content)


def _fill_qdrant(client: QdrantClient, name: str, content: Content) -> None:
    from qdrant_client import models

    space = models.VectorParams(size=content.dimension, distance=models.Distance.DOT)
    client.create_collection(name, vectors_config=space)
    for some in content.batches:
        points = models.Batch(ids=list(some.keys), vectors=some.vectors.tolist(), payloads=list(some.payloads()))
        client.upsert(name, points, wait=True)


def _usearch(target: StoreTarget, content: Content, replace: bool) -> None:
    """Write index.usearch, whose keys are the lines, from 0, of passages.jsonl; memory holds all vectors."""
    try:
        from usearch.index import Index
    except ImportError:
        raise MissingExtraError("pushing to usearch", "usearch", "usearch") from None

    with _pushed_folder(target, content, replace) as folder:
        index = Index(ndim=content.dimension, metric="ip", dtype="f32")
        with (folder / "passages.jsonl").open("w", encoding="utf-8") as file:
            for some in content.batches:
                index.add(np.array(some.keys, dtype=np.uint64), some.vectors)
                file.writelines(json.dumps(each, ensure_ascii=False) + "\n" for each in some.payloads())
        index.save(str(folder / "index.usearch"))


def _opensearch(target: StoreTarget, content: Content, replace: bool) -> None:
    """Write requests of the bulk API and the mapping of the index to a folder, or send them to a server."""
    if target.url:
        _send_to_opensearch(target, content, replace)
        return
    with _pushed_folder(target, content, replace) as folder, closing(JsonLines(folder / "bulk")) as bulk:
        write_text(folder / "mapping.json", json.dumps(_mapping(content), indent=2) + "\n")
        for some in content.batches:
            for doc_id, document in _documents(some):
                bulk.write({"index": {"_index": target.name, "_id": doc_id}}, document)


def _send_to_opensearch(target: StoreTarget, content: Content, replace: bool) -> None:
    try:
        from opensearchpy import OpenSearch
    except ImportError:
        raise MissingExtraError("pushing to an OpenSearch server", "opensearch-py", "opensearch") from None

    with _asking_server(target):
        client = OpenSearch(hosts=[target.url])
        if client.indices.exists(index=target.name):
            if not replace:
                raise _exists(f"the index {target.name!r} of {target}")
            client.indices.delete(index=target.name)
        client.indices.create(index=target.name, body=_mapping(content))
        with _undone(lambda: client.indices.delete(index=target.name)):
            _fill_opensearch(client, target.name, content)


def _fill_opensearch(client: OpenSearch, name: str, content: Content) -> None:
    from opensearchpy import helpers

    actions = (
        {"_index": name, "_id": doc_id, "_source": document}
        for some in content.batches
        for doc_id, document in _documents(some)
    )
    for _ in helpers.streaming_bulk(client, actions, max_chunk_bytes=_PART_BYTES):
        pass
    client.indices.refresh(index=name)


def _documents(entries: Entries) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the id and the document, with its vector, of each passage."""
    for payload, vector in zip(entries.payloads(), entries.vectors, strict=True):
        yield payload["doc_id"], {**payload, "vector": vector.tolist()}


def _mapping(content: Content) -> dict[str, Any]:
    """Return the body that creates an index of OpenSearch for these vectors."""
    method = {"name": "hnsw", "engine": "faiss", "space_type": "innerproduct"}
    vector = {"type": "knn_vector", "dimension": content.dimension, "method": method}
    texts = {field: {"type": "text"} for field in content.fields}
    properties = {"doc_id": {"type": "keyword"}, **texts, "vector": vector}
    return {"settings": {"index": {"knn": True}}, "mappings": {"properties": properties}}


def _anserini(target: StoreTarget, content: Content, replace: bool) -> None:
    """Write vectors/ for Anserini's JsonDenseVectorCollection and, with texts, texts/ for its JsonCollection."""
    with (
        _pushed_folder(target, content, replace) as folder,
        closing(JsonLines(folder / "vectors")) as vectors,
        closing(JsonLines(folder / "texts")) as texts,
    ):
        for some in content.batches:
            for doc_id, vector in zip(some.doc_ids, some.vectors, strict=True):
                vectors.write({"docid": doc_id, "vector": vector.tolist()})
            for payload in some.payloads() if content.fields else ():
                read = " ".join(payload[field] for field in content.fields if payload[field])
                texts.write({"id": payload["doc_id"], "contents": read})


class JsonLines:
    """A folder of numbered files, 00000.jsonl and so on, with an object a line; a file ends when it has 50 MB."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count, self._bytes = folder, 0, 0
        self._file: BinaryIO | None = None

    def write(self, *objects: Mapping[str, Any]) -> None:
        """Write objects that belong into one file."""
        lines = b"".join(json.dumps(each, ensure_ascii=False).encode() + b"\n" for each in objects)
        if self._file is None or self._bytes + len(lines) > _PART_BYTES:
            self.close()
            make_folder(self._folder)
            self._file, self._bytes = (self._folder / f"{self._count:05d}.jsonl").open("wb"), 0
            self._count += 1
        self._file.write(lines)
        self._bytes += len(lines)

    def close(self) -> None:
        """End the current file."""
        if self._file is not None:
            self._file.close()


@contextmanager
def _pushed_folder(target: StoreTarget, content: Content, replace: bool) -> Iterator[Path]:
    """Yield the folder to fill, which is put in place, with its description, once it is complete."""
    folder = local_path(target.where)
    if not replace and folder.is_dir() and any(folder.iterdir()):
        raise _exists(str(folder))
    with replacing_folder(folder) as temporary:
        yield temporary
        write_text(temporary / ABOUT, _about(target, content))


def _about(target: StoreTarget, content: Content) -> str:
    """Return the description of a push as JSON; an encoder's identity says how to encode queries."""
    about = {"format": 1, "store": target.store, "name": target.name, "count": content.count}
    about |= {"dimension": content.dimension, "metric": "inner_product", "fields": list(content.fields)}
    return json.dumps({**about, "encoder": content.encoder}, indent=2, ensure_ascii=False) + "\n"


def _exists(what: str) -> DrkitError:
    return DrkitError(f"{what} already exists; add --replace to replace it, or choose another name or folder")


@contextmanager
def _asking_server(target: StoreTarget) -> Iterator[None]:
    """Turn what a client raises into a DrkitError."""
    try:
        yield
    except DrkitError:
        raise
    except Exception as error:  # of the client, or of the HTTP library below it
        advice = "check the address, the key and your rights there"
        raise DrkitError(f"cannot push to {target}: {error}; {advice}") from error


@contextmanager
def _undone(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` if the block does not finish."""
    try:
        yield
    except BaseException:
        undo()
        raise


STORES: Mapping[str, Callable[[StoreTarget, Content, bool], None]] = {
    "lancedb": _lancedb,
    "qdrant": _qdrant,
    "usearch": _usearch,
    "opensearch": _opensearch,
    "anserini": _anserini,
}
_SERVERS = ("qdrant", "opensearch")
