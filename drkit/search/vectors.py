"""A folder of vectors: numbered shards of float32 or float16, their ids, and the identity of the encoder.

vectors.json     the encoder's identity, dtype, and, once all shards are written, the number of vectors
00000.npy        vectors of the first 16,384 texts
                 or 00000.csr.safetensors: values, columns and row lengths of vectors that are mostly 0
00000.arrow      their ids (`DocIds`), column `doc_id`; the metadata holds a hash of the texts and one of the vectors

Shards are memory-mapped while they are read and released afterwards, so a corpus may be larger than memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from attrs import asdict, evolve, field, frozen
from attrs.validators import ge, in_
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from drkit.core.files import file_hash, read_json, replacing
from drkit.data.arrays import arrow_file, read_arrow
from drkit.data.corpus import equal_ids, find_ids, id_hash, take_values
from drkit.errors import DrkitError

SHARDS_FILE = "vectors.json"
# The formats of vectors: of any encoder, and of a sparse one.
_FORMATS = (NPY, SPARSE) = ("npy", "csr.safetensors")
BLOCK_BYTES = 2**26
# The keys of the ids' metadata: the hash of the texts, and that of the file of vectors.
TEXTS_HASH, VECTORS_HASH = "texts", "vectors"
ENCODE_AGAIN = "delete the folder and encode the texts again"
_DTYPES = ("<f4", "<f2")


@frozen
class Storage:
    """How vectors are stored.

    role: `passages` or `queries`, which decides length and prompt. dtype: float32 or float16. shard_size: texts per
    shard; an interrupted process loses only its current shard.
    """

    role: str = field(default="passages", validator=in_(("passages", "queries")))
    dtype: str = field(default="float32", validator=in_(("float32", "float16")))
    shard_size: int = field(default=16_384, validator=ge(1))


@frozen(slots=False)
class Vectors:
    """A complete folder of vectors, opened; no vector is in memory."""

    folder: Path
    about: Mapping[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> Vectors:
        """Open a folder of vectors.

        Raises DrkitError if it is missing or incomplete, or files are missing, broken, inconsistent, or have changed
        since they were written.
        """
        path = Path(folder)
        about = read_shards(path)
        if about is None:
            raise DrkitError(
                f"{path} is not a folder of vectors (missing {SHARDS_FILE}); create one with `drkit encode`"
            )
        if about.get("count") is None:
            raise DrkitError(f"the vectors in {path} are incomplete; repeat the same `drkit encode` to finish them")
        counts = [about.get(name) for name in ("count", "dimension", "shards")]
        are_counts = all(type(count) is int and 0 <= count < 2**40 for count in counts)
        if not are_counts or about.get("format") not in _FORMATS:
            raise DrkitError(f"{path / SHARDS_FILE} does not describe vectors; delete the folder and encode them again")
        for number in range(about["shards"]):
            check_shard(path, number, about["format"], ENCODE_AGAIN)
        found = cls(path, about)
        expected = (about["count"], about["dimension"])
        shape = (len(found.sparse), about["dimension"]) if found.is_sparse else found.shards.shape
        if len(found.doc_ids) != about["count"] or shape != expected:
            raise DrkitError(
                f"{SHARDS_FILE} declares vectors of shape {expected}, but the files hold {len(found.doc_ids)} ids "
                f"and vectors of shape {shape}; encode them again",
                where=path,
            )
        return found

    def __len__(self) -> int:
        return int(self.about["count"])

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""
        return int(self.about["dimension"])

    @property
    def is_sparse(self) -> bool:
        """Whether only the numbers other than 0 are stored."""
        return bool(self.about["format"] == SPARSE)

    @property
    def encoder(self) -> dict[str, Any]:
        """The identity of the encoder that made the vectors."""
        return dict(self.about["encoder"])

    @cached_property
    def shards(self) -> Shards:
        """The vectors [N,D], read when they are sliced. Raises DrkitError if they are sparse."""
        if self.is_sparse:
            raise DrkitError(
                f"{self.folder} holds sparse vectors, scores of words, which only an inverted index reads; build it "
                f"with `drkit index`, or use vectors of a dense encoder"
            )
        return Shards.read(self._files)

    @cached_property
    def sparse(self) -> SparseRows:
        """The sparse vectors, in memory. Raises DrkitError if a file is broken."""
        return SparseRows.joined([SparseRows.read(file, self.dimension) for file in self._files])

    @property
    def _files(self) -> list[Path]:
        return [vectors_file(self.folder, number, self.about["format"]) for number in range(self.about["shards"])]

    @cached_property
    def doc_ids(self) -> DocIds:
        """The ids of the passages, or of the queries."""
        files = [ids_file(self.folder, number) for number in range(self.about["shards"])]
        return DocIds.read(files, ENCODE_AGAIN)


def vectors_file(folder: Path, number: int, format: str) -> Path:
    """Return the file with the vectors of one shard, numbered from 0; format: how its name ends."""
    return folder / f"{number:05d}.{format}"


def ids_file(folder: Path, number: int) -> Path:
    """Return the file with the ids of one shard; it is written after the vectors, so it marks a complete shard."""
    return folder / f"{number:05d}.arrow"


def check_shard(folder: Path, number: int, format: str, advice: str) -> Mapping[str, str]:
    """Compare the vectors of a finished shard with the hash beside its ids; return the metadata of the ids.

    Raises DrkitError, with the advice, if a file is missing or damaged.
    """
    path = vectors_file(folder, number, format)
    found = read_id_table(ids_file(folder, number), advice).schema.metadata or {}
    metadata = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in found.items()}
    if not path.is_file():
        raise DrkitError(f"is missing; {advice}", where=path)
    if VECTORS_HASH in metadata and file_hash(path) != metadata[VECTORS_HASH]:
        raise DrkitError(f"the vectors have changed since they were written; {advice}", where=path)
    return metadata


def read_shards(folder: Path) -> dict[str, Any] | None:
    """Read vectors.json; None if it does not exist. Raises DrkitError if it is broken."""
    path = folder / SHARDS_FILE
    if not path.is_file():
        return None
    try:
        about = read_json(path, "delete the folder and encode again")
        return {**about, "encoder": dict(about["encoder"])}
    except (ValueError, TypeError, KeyError) as error:
        raise DrkitError(f"cannot read {path}: {error}; delete the folder and encode again") from error


@frozen
class ShardFile:
    """One file of vectors [rows, dimension], float32 or float16, which start at byte `offset`."""

    path: Path
    rows: int
    dimension: int
    dtype: np.dtype[Any]
    offset: int

    @classmethod
    def read(cls, path: Path) -> ShardFile:
        """Read the header of a .npy file. Raises DrkitError if it is not one, is truncated, or has another dtype."""
        try:
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)
            rows, dimension = mapped.shape
        except (OSError, ValueError) as error:
            raise DrkitError(f"cannot read the vectors in {path}: {error}; encode them again") from error
        if mapped.dtype not in _DTYPES:
            raise DrkitError(
                f"the vectors in {path} are of dtype {mapped.dtype}, not float32 or float16; encode them again"
            )
        return cls(path, rows, dimension, mapped.dtype, int(mapped.offset))

    def within(self, start: int, stop: int) -> ShardFile:
        """Return rows `start` to `stop` of the file."""
        offset = self.offset + start * self.dimension * self.dtype.itemsize
        return evolve(self, rows=stop - start, offset=offset)

    def open(self) -> NDArray[Any]:
        """Return the vectors, memory-mapped; the map is released with the array."""
        return np.memmap(self.path, self.dtype, mode="r", offset=self.offset, shape=(self.rows, self.dimension))

    def take(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        """Return the vectors at these positions.

        The operating system is advised not to read ahead: it would read megabytes around each vector, which with little
        memory takes many times as long as the search.
        """
        with self.path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)
        values = np.frombuffer(mapped, self.dtype, self.rows * self.dimension, self.offset)
        return np.array(values.reshape(self.rows, self.dimension)[positions])


def write_shard(path: Path, vectors: NDArray[Any] | SparseRows) -> None:
    """Write float32 or float16 vectors [n,D], or sparse ones, atomically."""
    with replacing(path) as temporary:
        if isinstance(vectors, SparseRows):
            save_file(asdict(vectors), temporary)
        else:
            with temporary.open("wb") as file:
                np.save(file, vectors, allow_pickle=False)


class Shards:
    """The rows of several files, sliced and gathered like one array.

    Raises DrkitError if the files differ in dimension or dtype.
    """

    def __init__(self, files: Sequence[ShardFile]) -> None:
        self.files = tuple(files)
        kinds = {(file.dimension, file.dtype) for file in files}
        if len(kinds) != 1:
            raise DrkitError(
                f"{len(files)} shards have {len(kinds)} different combinations of dimension and dtype; "
                f"encode them again"
            )
        ((dimension, self.dtype),) = kinds
        self._starts = np.cumsum([0, *(file.rows for file in files)])
        self.shape = (int(self._starts[-1]), dimension)
        self.ndim = 2

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Shards:
        """Open these files, in this order."""
        return cls([ShardFile.read(path) for path in paths])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, positions: slice | NDArray[np.int64]) -> NDArray[Any]:
        if isinstance(positions, slice):
            start, stop, _ = positions.indices(len(self))
            nothing = np.empty((0, self.shape[1]), self.dtype)
            blocks = [block for _, block in self.blocks(max(1, stop - start), start, stop)] or [nothing]
            return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        positions = np.asarray(positions)
        out = np.empty((len(positions), self.shape[1]), dtype=self.dtype)
        file_of = np.searchsorted(self._starts, positions, side="right") - 1
        for number in np.unique(file_of).tolist():
            in_file = np.flatnonzero(file_of == number)
            out[in_file] = self.files[number].take(positions[in_file] - self._starts[number])
        return out

    def within(self, positions: range) -> Shards:
        """Return the rows at a range of positions, in their files; none is read."""
        files = []
        for file, first in zip(self.files, self._starts.tolist(), strict=False):
            start, stop = max(positions.start - first, 0), min(positions.stop - first, file.rows)
            files += [file.within(start, stop)] if start < stop else []
        return Shards(files)

    def blocks(self, rows: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield (position of the first row, rows) in blocks of at most `rows`; no block crosses two files."""
        end = len(self) if stop is None else stop
        while start < end:
            number = int(np.searchsorted(self._starts, start, side="right")) - 1
            block_end = min(start + rows, end, int(self._starts[number + 1]))
            first = int(self._starts[number])
            yield start, self.files[number].open()[start - first : block_end - first]
            start = block_end


@frozen(eq=False)
class SparseRows:
    """Vectors that are mostly 0: the other numbers, row by row.

    values: f32[n] or f16[n]; columns: i32[n], ascending in each row; lengths: i64[rows], how many each row has.
    """

    values: NDArray[Any]
    columns: NDArray[np.int32]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, vectors: NDArray[Any]) -> SparseRows:
        """Return the numbers of vectors [rows,D] that are not 0."""
        rows, columns = np.nonzero(vectors)
        return cls(vectors[rows, columns], columns.astype(np.int32), np.bincount(rows, minlength=len(vectors)))

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def rows(self) -> NDArray[np.int32]:
        """The row of each number, i32[n], ascending."""
        return np.repeat(np.arange(len(self), dtype=np.int32), self.lengths)

    @classmethod
    def joined(cls, chunks: Sequence[SparseRows]) -> SparseRows:
        """Return the rows of all chunks."""
        names = ("values", "columns", "lengths")
        return cls(*(np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in names))

    @classmethod
    def read(cls, path: Path, dimension: int) -> SparseRows:
        """Read a .csr.safetensors file. Raises DrkitError if it is broken, or has columns beyond `dimension`."""
        try:
            found = cls(**load_file(path))
        except (OSError, SafetensorError, TypeError) as error:
            raise DrkitError(f"cannot read the vectors in {path}: {error}; encode them again") from error
        columns, lengths = found.columns, found.lengths
        is_whole = len(columns) == len(found.values) == lengths.sum() and (lengths >= 0).all()
        if not is_whole or (len(columns) and not 0 <= columns.min() <= columns.max() < dimension):
            raise DrkitError(f"the vectors in {path} are inconsistent; encode them again")
        return found


def float32_blocks(vectors: Any) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield (position, f32[n,D]) of an array or `Shards`; in blocks of 64 MB if vectors are read or converted."""
    rows = max(1, BLOCK_BYTES // (4 * vectors.shape[1]))
    if isinstance(vectors, Shards):
        pieces = vectors.blocks(rows)
    elif vectors.dtype == np.float32:
        pieces = iter([(0, vectors)])
    else:
        pieces = ((start, vectors[start : start + rows]) for start in range(0, len(vectors), rows))
    for start, piece in pieces:
        yield start, np.ascontiguousarray(piece, dtype=np.float32)


_COLUMN = "doc_id"


class DocIds:
    """Document ids by position, stored in Arrow memory; the first `find` hashes all of them, 16 bytes per id.

    >>> ids = DocIds.of(["a", "b c", "é"])
    >>> ids.take(np.array([2, 0])), ids.find(["b c", "none"]).tolist()
    (['é', 'a'], [1, -1])
    """

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column
        self._starts = np.cumsum([0, *(len(chunk) for chunk in column.chunks)])

    @classmethod
    def of(cls, doc_ids: DocIds | Iterable[str]) -> DocIds:
        """Return `DocIds` of any iterable of ids."""
        if isinstance(doc_ids, DocIds):
            return doc_ids
        return cls(pa.chunked_array([pa.array(list(doc_ids), type=pa.large_string())]))

    @classmethod
    def read(cls, paths: Sequence[Path], advice: str = "rebuild the index with `drkit index`") -> DocIds:
        """Memory-map the ids of several files, in order. Raises DrkitError, with the advice, if one is damaged."""
        chunks = [chunk for path in paths for chunk in read_id_table(path, advice).column(_COLUMN).chunks]
        return cls(pa.chunked_array(chunks, type=pa.large_string()))

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, position: int) -> str:
        return str(self._column[position].as_py())

    def within(self, positions: range) -> DocIds:
        """Return the ids at a range of positions."""
        return DocIds(self._column.slice(positions.start, len(positions)))

    def write(self, path: Path) -> None:
        """Write the ids as an Arrow file with one column, `doc_id`."""
        write_id_table(path, self._column)

    @cached_property
    def array(self) -> Any:
        """All ids as one Arrow array, as `Rankings` has them."""
        return self._column.combine_chunks()

    def take(self, positions: NDArray[np.int64]) -> list[str]:
        """Return the ids at these positions, in order."""
        return take_values(self._column.chunks, self._starts, positions)

    def find(self, doc_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the position i64[n] of each id, or -1 if it is unknown."""
        return find_ids(doc_ids, *self._sorted_hashes, self.take)

    def check_unique(self) -> None:
        """Raise DrkitError for a duplicate id."""
        duplicate = next(equal_ids(*self._sorted_hashes, self.take), None)
        if duplicate:
            raise DrkitError(f"duplicate document id {duplicate[0]!r}; every document needs its own id")

    @cached_property
    def _sorted_hashes(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        hashes = np.empty(len(self), dtype=np.uint64)
        done = 0
        for chunk in self._column.chunks:
            for start in range(0, len(chunk), 65_536):
                names = chunk.slice(start, 65_536).to_pylist()
                hashes[done : done + len(names)] = list(map(id_hash, names))
                done += len(names)
        positions = np.argsort(hashes, kind="stable")
        return hashes[positions], positions


def write_id_table(path: Path, column: Any, metadata: Mapping[str, str] | None = None) -> None:
    """Write one column `doc_id` as an Arrow file, atomically; metadata: plain text stored with it."""
    table = pa.table({_COLUMN: column}).replace_schema_metadata(dict(metadata or {}))
    with arrow_file(path, table.schema) as writer:
        writer.write_table(table)


def read_id_table(path: Path, advice: str) -> Any:
    """Memory-map the table of `write_id_table`. Raises DrkitError, with the advice, if it is missing or damaged."""
    table = read_arrow(path, advice)
    if table.schema.names != [_COLUMN] or table.schema.field(_COLUMN).type != pa.large_string():
        raise DrkitError(f"expected document ids (one column {_COLUMN!r} of large_string); {advice}", where=path)
    return table
