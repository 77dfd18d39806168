"""Texts of any number to a folder of vectors: in shards, shared by processes, going on where it was cut off.

A shard is a run of texts in their own order. Process r of w makes every w-th of those that are not there yet. A shard
that is there is compared, by a hash of its ids and texts, with the texts that are given: what was encoded of another
collection, or by another encoder, is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import numpy as np
from attrs import frozen
from filelock import FileLock
from pyarrow import ArrowException

from drkit.core.files import make_folder
from drkit.core.ranks import Shard
from drkit.data.generation import blocks
from drkit.errors import DrkitError
from drkit.search.adapters import Encoder
from drkit.search.ids import read_table, write_table
from drkit.search.shards import write_shard
from drkit.search.vectors import ABOUT, Storage, Vectors, ids_file, read_about, vectors_file, write_about

if TYPE_CHECKING:
    from numpy.typing import NDArray

Text: TypeAlias = "str | NDArray[np.int32]"
LOCK = ".lock"
_HASH = "texts"
LARGEST_HALF = float(np.finfo(np.float16).max)


def encode_corpus(
    encoder: Encoder,
    texts: Iterable[tuple[str, Text]],
    folder: str | Path,
    *,
    storage: Storage | None = None,
    shard: Shard | None = None,
) -> Vectors | None:
    """Encode (id, text) pairs into a folder of vectors; None where other processes are still at their shards.

    encoder: a `TextEncoder`, a `DualEncoder`, a `SentenceTransformerEncoder`, or any `Encoder`.
    texts: streamed, all of them to every process; a text may be its token ids (special ones included, cut to length).
    storage: dtype, file format, shard size, and whether these are passages or queries. shard: which of how many
    processes this is; as torchrun says where None. Called again, with any number of processes, it goes on; only shards
    that are missing are encoded.

    Raises DrkitError where the folder holds vectors of another encoder, other settings or other texts, there are no
    texts, an id is empty, or a vector is not finite or has no room in float16.
    """
    how, mine, place = storage or Storage(), shard or Shard.of_environment(), Path(folder)
    _claim(place, encoder, how)
    number = -1
    for number, (first, batch) in enumerate(blocks(texts, how.shard_size)):
        made = Work(encoder, how, place, number)
        told = _hash_texts(batch)
        if ids_file(place, number).is_file():
            made.compare(told, first)
        elif number % mine.processes == mine.rank:
            made.write(batch, told)
    if number < 0:
        raise DrkitError(f"there are no texts to encode into {place}; is the collection empty?")
    return _finish(place, number + 1)


@frozen
class Work:
    """One shard of a folder, to be made or compared."""

    encoder: Encoder
    how: Storage
    folder: Path
    number: int

    def write(self, batch: Sequence[tuple[str, Text]], told: str) -> None:
        """Encode and write: the vectors, then, as the mark that they are whole, the ids."""
        names, texts = [name for name, _ in batch], [text for _, text in batch]
        if "" in names:
            raise DrkitError(f"text {self.number * self.how.shard_size + names.index('') + 1} has an empty id")
        vectors = self._encode(texts)
        _check_values(vectors, names, self.how.dtype)
        write_shard(vectors_file(self.folder, self.number, self.how.format), vectors.astype(self.how.dtype))
        write_table(ids_file(self.folder, self.number), _column(names), {_HASH: told})

    def compare(self, told: str, first: int) -> None:
        """Raises DrkitError where the shard that is there was made of other texts, or is broken."""
        path = ids_file(self.folder, self.number)
        try:
            held = (read_table(path).schema.metadata or {}).get(_HASH.encode(), b"").decode()
        except (OSError, ArrowException) as error:
            raise DrkitError(f"cannot read {path}: {error}; remove this file, and it is made again") from error
        if held != told:
            raise DrkitError(
                f"{self.folder} holds vectors of other texts (from text {first + 1} on): "
                f"choose another folder, or remove this one"
            )

    def _encode(self, texts: Sequence[Text]) -> NDArray[np.float32]:
        if not isinstance(texts[0], str):
            if not hasattr(self.encoder, "encode_tokens"):
                raise DrkitError(f"{type(self.encoder).__name__} reads texts, no token ids; give texts")
            vectors: NDArray[np.float32] = self.encoder.encode_tokens(texts)
            return vectors
        if self.how.role == "queries":
            return self.encoder.encode_queries(texts)  # type: ignore[arg-type]
        return self.encoder.encode_passages(texts)  # type: ignore[arg-type]


def _claim(folder: Path, encoder: Encoder, how: Storage) -> None:
    """Write what is to be made into a new folder, or see that an old one is for the same."""
    identity = encoder.identity()
    ours = {"format_version": 1, "encoder": identity, "dimension": encoder.dimension, **attrs.asdict(how)}
    if folder.exists() and not folder.is_dir():
        raise DrkitError(f"{folder} is a file; give the name of a folder")
    if not (folder / ABOUT).is_file() and folder.is_dir() and any(p.name[0] != "." for p in folder.iterdir()):
        raise DrkitError(f"{folder} is not empty and holds no vectors; choose another folder")
    make_folder(folder)
    with FileLock(folder / LOCK):
        theirs = read_about(folder)
        if theirs is None:
            write_about(folder, {**ours, "count": None, "shards": None})
            return
    changed = [key for key in identity if theirs["encoder"].get(key) != identity[key]]
    changed += [key for key in ours if key != "encoder" and theirs.get(key) != ours[key]]
    if changed:
        raise DrkitError(
            f"{folder} holds vectors of another encoder or other settings ({', '.join(changed)} differ): "
            f"encode with those, choose another folder, or remove this one"
        )


def _finish(folder: Path, shards: int) -> Vectors | None:
    """Note the number of vectors once all shards are there."""
    with FileLock(folder / LOCK):
        about = read_about(folder)
        if about is None or not all(ids_file(folder, number).is_file() for number in range(shards)):
            return None
        if ids_file(folder, shards).is_file() or about["shards"] not in (None, shards):
            raise DrkitError(
                f"{folder} holds vectors of more texts than the {shards} shards of these: "
                f"choose another folder, or remove this one"
            )
        if about["count"] is None:
            count = sum(read_table(ids_file(folder, number)).num_rows for number in range(shards))
            write_about(folder, {**about, "count": count, "shards": shards})
            for left in folder.glob(".*.tmp"):  # of processes that were killed
                left.unlink(missing_ok=True)
    return Vectors.open(folder)


def _check_values(vectors: NDArray[np.float32], names: Sequence[str], dtype: str) -> None:
    largest = LARGEST_HALF if dtype == "float16" else np.inf
    wrong = np.flatnonzero(~(np.abs(vectors) < largest).all(axis=1))
    if len(wrong):
        name, finite = names[int(wrong[0])], bool(np.isfinite(vectors[wrong[0]]).all())
        raise DrkitError(
            f"the vector of {name!r} has values above {largest:g}: keep them as float32"
            if finite
            else f"the vector of {name!r} is not finite; training may have diverged: lower its rate"
        )


def _hash_texts(batch: Sequence[tuple[str, Text]]) -> str:
    """Of ids and texts, each with its length before it, so that no two lists give the same bytes."""
    state = hashlib.blake2b(digest_size=16)
    for name, text in batch:
        for part in (name, text):
            content = _utf8(part, name) if isinstance(part, str) else np.asarray(part, dtype=np.int64).tobytes()
            state.update(len(content).to_bytes(8, "little"))
            state.update(content)
    return state.hexdigest()


def _utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DrkitError(f"text {name!r}: its id or its words are no valid Unicode ({error.reason})") from None


def _column(names: Sequence[str]) -> Any:
    import pyarrow as pa

    return pa.array(names, type=pa.large_string())
