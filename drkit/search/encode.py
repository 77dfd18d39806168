"""Encode texts into a folder of vectors: in shards, by several processes, and resumable; with any encoder.

A shard holds consecutive texts. Process r of w writes every w-th missing shard. A finished shard is compared with the
given texts by a hash of ids and texts, so vectors of another collection or another encoder are refused.

Long documents: an encoder whose card has `passages_per_document` gets several passages of each text, `ID#n`, and a
`Retriever` scores the text by the best of them (MaxP, Dai and Callan 2019).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import attrs
import numpy as np
import pyarrow as pa
from attrs import define
from filelock import FileLock
from numpy.typing import NDArray

from drkit.core.engine import Engine, Loaded, Task, count_done, loaded_value
from drkit.core.files import digest, file_hash, make_folder, remove_temporaries, write_json
from drkit.core.processes import Shard
from drkit.core.protocols import DenseAndSparse, ReadsPassages, ReadsTokenIds, SparseEncoder
from drkit.core.types import Passage
from drkit.data.corpus import StoredCorpus
from drkit.data.generation import blocks
from drkit.data.rows import batched
from drkit.data.spans import pack
from drkit.data.store import TokenStore, encode_texts, prompt_tokens
from drkit.data.whole_words import WholeWords
from drkit.errors import DrkitError
from drkit.search.dual_encoder import AnyEncoder, DualEncoder
from drkit.search.text_encoder import Encoder, TextEncoder
from drkit.search.vectors import (
    ENCODE_AGAIN,
    NPY,
    SHARDS_FILE,
    SPARSE,
    TEXTS_HASH,
    VECTORS_HASH,
    SparseRows,
    Storage,
    Vectors,
    check_shard,
    ids_file,
    read_id_table,
    read_shards,
    vectors_file,
    write_id_table,
    write_shard,
)

Text: TypeAlias = "str | NDArray[np.int32]"
# The setting of an encoder that reads a long text as several passages.
DOCUMENTS_SETTING = "passages_per_document"
_LOCK = ".lock"
FLOAT16_MAX = float(np.finfo(np.float16).max)
_TEXTS_AT_ONCE = 1024
# Numbers of sparse vectors, zeros included, before only the others are kept: 128 MB.
_NUMBERS_AT_ONCE = 2**25


def encode_corpus(
    encoder: Encoder | Loaded[Encoder],
    texts: Iterable[tuple[str, Text]],
    folder: str | Path,
    *,
    storage: Storage | None = None,
    shard: Shard | None = None,
    engine: Engine | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Vectors | None:
    """Encode (id, text) pairs into a folder of vectors; None while other processes still write their shards.

    encoder: a `TextEncoder`, a `DualEncoder`, a `SentenceTransformerEncoder`, or any `Encoder`; `Loaded` for an engine
    of several machines, each of which loads it. texts: streamed; every process gets all of them. A text may be its
    token ids (with special tokens, truncated). An encoder whose card has `passages_per_document` encodes the
    passages of each text, `ID#n`. storage: dtype, shard size, and whether these are passages or queries. shard: rank
    and number of processes; from torchrun's environment if None. engine: where shards are encoded; in this process if
    None. on_progress: called with the number of texts done. Repeated calls, with any number of processes and any
    engine, encode only the missing shards.

    Raises DrkitError if the folder holds vectors of another encoder, other settings or other texts, there are no
    texts, an id is empty, a vector is not finite or exceeds float16, or documents to cut are given as token ids.
    """
    storage, shard, path = storage or Storage(), shard or Shard.from_environment(), Path(folder)
    loaded = loaded_value(encoder)
    if storage.role == "passages" and _cuts_documents(loaded):
        texts = cut_documents(loaded, _whole_texts(texts))
    identity = _prepare(path, loaded, storage)
    if isinstance(encoder, Loaded):
        encoder = same_everywhere(encoder, identity)
    written = _ShardTasks(encoder, storage, path, shard, on_progress)
    for count in count_done(written.missing(texts), engine):
        written.add(count)
    if not written.shards:
        raise DrkitError(f"no texts to encode into {path}; is the collection empty?")
    return _finish(path, written.shards)


@define
class _ShardTasks:
    """The shards of a folder that one process has to write; shards: how many there are, once all texts are read.

    done: texts that are encoded, or left to other processes.
    """

    encoder: Encoder | Loaded[Encoder]
    storage: Storage
    folder: Path
    share: Shard
    on_progress: Callable[[int], None] | None
    shards: int = 0
    done: int = 0

    def add(self, count: int) -> None:
        """Report that so many more texts are done."""
        self.done += count
        if self.on_progress:
            self.on_progress(self.done)

    def missing(self, texts: Iterable[tuple[str, Text]]) -> Iterator[Task[Iterator[int]]]:
        """Yield a task for each missing shard. Raises DrkitError if an existing shard has other texts."""
        for number, (first, batch) in enumerate(blocks(texts, self.storage.shard_size)):
            self.shards = number + 1
            text_hash = _hash_texts(batch)
            if ids_file(self.folder, number).is_file():
                _check_texts(self.folder, number, format_of(loaded_value(self.encoder)), text_hash, first)
                self.add(len(batch))
            elif number % self.share.processes != self.share.rank:
                self.add(len(batch))
            else:
                given = (self.encoder, self.storage, self.folder, number, batch, text_hash)
                yield Task(f"shard {number:05d} of {self.folder}", encode_shard, given, uses="gpu")


def encode_shard(
    encoder: Encoder | Loaded[Encoder],
    storage: Storage,
    folder: Path,
    number: int,
    batch: Sequence[tuple[str, Text]],
    text_hash: str,
) -> Iterator[int]:
    """Encode (id, text) pairs as one shard of a folder of vectors; yields how many texts more are encoded.

    Raises DrkitError for an empty id, or a vector that is not finite or exceeds float16.
    """
    names = [name for name, _ in batch]
    if "" in names:
        raise DrkitError(f"text {number * storage.shard_size + names.index('') + 1} has an empty id")
    pieces: list[Any] = []
    form = format_of(loaded_value(encoder))
    keep, join = (SparseRows.of, SparseRows.joined) if form == SPARSE else (np.asarray, np.concatenate)
    at_once = max(1, min(_TEXTS_AT_ONCE, _NUMBERS_AT_ONCE // loaded_value(encoder).dimension))
    for piece in batched(batch, at_once if form == SPARSE else _TEXTS_AT_ONCE):
        vectors = _encode(loaded_value(encoder), [text for _, text in piece], storage.role)
        _check_values(vectors, [name for name, _ in piece], storage.dtype)
        pieces.append(keep(vectors.astype(storage.dtype)))
        yield len(piece)
    write_shard(vectors_file(folder, number, form), join(pieces))
    # The ids mark the shard as complete.
    hashes = {TEXTS_HASH: text_hash, VECTORS_HASH: file_hash(vectors_file(folder, number, form))}
    write_id_table(ids_file(folder, number), pa.array(names, type=pa.large_string()), hashes)


def _cuts_documents(encoder: Encoder) -> TypeGuard[AnyEncoder]:
    """Return whether an encoder reads several passages of a text; one without a card reads its beginning."""
    return isinstance(encoder, (TextEncoder, DualEncoder)) and encoder.card.passages_per_document is not None


def cut_documents(encoder: AnyEncoder, documents: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the passages of (id, text) documents as (`ID#n`, text), n counted from 0; an empty document is one passage.

    encoder: a `TextEncoder` whose card has `passages_per_document`, or a `DualEncoder` of them. A document is cut
    between words into equal spans of at most `passage_length` tokens, prompt and special ones included; what does not
    fit the allowed number of passages is left out.
    """
    reader = encoder.passages if isinstance(encoder, DualEncoder) else encoder
    tokenizer, most, passages = reader.tokenizer, reader.card.passages_per_document or 1, reader.card.passages
    prompt = prompt_tokens(passages.prompt, tokenizer, passages.length)
    room = passages.length - tokenizer.num_special_tokens_to_add() - len(prompt)
    words = WholeWords.of(tokenizer)
    for doc_id, text, encoding in encode_texts(documents, tokenizer):
        offsets = encoding.offsets[: most * room]
        (numbers,) = words.of_encodings([encoding])
        cuts = pack([0, len(offsets)], numbers.tolist(), room)[: most + 1] if offsets else [0, 0]
        for n, (start, stop) in enumerate(pairwise(cuts)):
            yield f"{doc_id}#{n}", text[offsets[start][0] : offsets[stop - 1][1]] if stop else ""


def _whole_texts(texts: Iterable[tuple[str, Text]]) -> Iterator[tuple[str, str]]:
    for name, text in texts:
        if not isinstance(text, str):
            raise DrkitError(f"text {name!r} is given as token ids, but this encoder cuts documents; give texts")
        yield name, text


def passage_texts(passages: Iterable[Passage], encoder: Any) -> Iterator[tuple[str, str]]:
    """Yield (id, text) of passages for `encode_corpus`, with titles as the encoder reads them.

    An encoder that is not a `ReadsPassages` is given titles joined to their texts.
    """
    loaded = loaded_value(encoder)
    reads = isinstance(loaded, ReadsPassages)
    return ((passage.doc_id, loaded.read(passage) if reads else passage.content) for passage in passages)


def stored_texts(corpus: StoredCorpus, store: TokenStore | None, encoder: Any) -> Iterator[tuple[str, Text]]:
    """Yield (id, text) of each passage of a corpus for `encode_corpus`; its tokens, if they are in a store."""
    if store is None:
        return passage_texts(corpus, encoder)
    return ((doc_id, store.tokens(number)) for number, doc_id in enumerate(corpus.ids()))


def format_of(encoder: Encoder) -> str:
    """Return the format in which the vectors of an encoder are stored."""
    return SPARSE if isinstance(encoder, SparseEncoder) and encoder.is_sparse else NPY


def _encode(encoder: Any, texts: Sequence[Any], role: str) -> NDArray[np.float32]:
    if not isinstance(texts[0], str):
        if not isinstance(encoder, ReadsTokenIds):
            raise DrkitError(f"{type(encoder).__name__} cannot encode token ids; give texts")
        vectors: NDArray[np.float32] = encoder.encode_tokens(texts)
    elif role == "queries":
        vectors = encoder.encode_queries(texts)
    else:
        vectors = encoder.encode_passages(texts)
    return vectors


def same_everywhere(encoder: Loaded[Encoder], identity: Mapping[str, Any]) -> Loaded[Encoder]:
    """Return an encoder that other processes refuse to work with if theirs has another identity than this one's."""
    return encoder.checked(check_identity, digest(dict(identity)))


def check_identity(encoder: Encoder, expected: str) -> Encoder:
    """Return the encoder that a worker has loaded. Raises DrkitError if the hash of its identity is another one."""
    if digest(dict(encoder.identity())) != expected:
        raise DrkitError(
            "a worker loaded another encoder than the one in the first process; install the same versions and mount "
            "the same file system on all machines"
        )
    return encoder


def _check_texts(folder: Path, number: int, format: str, text_hash: str, first: int) -> None:
    """Raise DrkitError if an existing shard holds vectors of other texts, or is damaged."""
    advice = f"delete {ids_file(folder, number)} to encode its shard again"
    if check_shard(folder, number, format, advice).get(TEXTS_HASH) != text_hash:
        raise DrkitError(
            f"{folder} holds vectors of other texts (they differ after text {first}): "
            f"choose another folder, or delete this one"
        )


def _prepare(folder: Path, encoder: Encoder, storage: Storage) -> Mapping[str, Any]:
    """Describe the vectors in a new folder, or check that an existing folder has the same description.

    Returns the encoder's identity.
    """
    identity = encoder.identity()
    stored = {**attrs.asdict(storage), "format": format_of(encoder)}
    ours = {"format_version": 1, "encoder": identity, "dimension": encoder.dimension, **stored}
    if stored["format"] == SPARSE:
        ours["dense"] = encoder.dense_dimension if isinstance(encoder, DenseAndSparse) else 0
    if folder.exists() and not folder.is_dir():
        raise DrkitError(f"{folder} is a file; give the name of a folder")
    # Listed before the description is looked for, which is written first: another process may begin in between.
    held = [path for path in folder.iterdir() if path.name[0] != "."] if folder.is_dir() else []
    if held and not (folder / SHARDS_FILE).is_file():
        raise DrkitError(f"{folder} is not empty and does not hold vectors; choose another folder")
    make_folder(folder)
    with FileLock(folder / _LOCK):
        theirs = read_shards(folder)
        if theirs is None:
            write_json(folder / SHARDS_FILE, {**ours, "count": None, "shards": None})
            return identity
    changed = [key for key in {**theirs["encoder"], **identity} if theirs["encoder"].get(key) != identity.get(key)]
    changed += [key for key in ours if key != "encoder" and theirs.get(key) != ours[key]]
    if changed:
        raise DrkitError(
            f"{folder} holds vectors of another encoder or other settings ({', '.join(changed)} differ): "
            f"use the same encoder and settings, choose another folder, or delete this one"
        )
    return identity


def _finish(folder: Path, shards: int) -> Vectors | None:
    """Record the number of vectors once all shards are written."""
    with FileLock(folder / _LOCK):
        about = read_shards(folder)
        if about is None or not all(ids_file(folder, number).is_file() for number in range(shards)):
            return None
        if ids_file(folder, shards).is_file() or about["shards"] not in (None, shards):
            raise DrkitError(
                f"{folder} holds vectors of more texts than were given (these texts fill {shards} shards): "
                f"choose another folder, or delete this one"
            )
        if about["count"] is None:
            ids = [read_id_table(ids_file(folder, number), ENCODE_AGAIN) for number in range(shards)]
            count = sum(table.num_rows for table in ids)
            write_json(folder / SHARDS_FILE, {**about, "count": count, "shards": shards})
            remove_temporaries(folder)
    return Vectors.open(folder)


def _check_values(vectors: NDArray[np.float32], names: Sequence[str], dtype: str) -> None:
    largest = FLOAT16_MAX if dtype == "float16" else np.inf
    wrong = np.flatnonzero(~(np.abs(vectors) < largest).all(axis=1))
    if len(wrong):
        name, is_finite = names[int(wrong[0])], bool(np.isfinite(vectors[wrong[0]]).all())
        raise DrkitError(
            f"the vector of {name!r} has values above {largest:g}, the largest float16; use dtype float32"
            if is_finite
            else f"the vector of {name!r} is not finite; training may have diverged: try a lower learning rate"
        )


def _hash_texts(batch: Sequence[tuple[str, Text]]) -> str:
    """Hash ids and texts, each preceded by its length, so that different lists never give the same bytes."""
    state = hashlib.blake2b(digest_size=16)
    for name, text in batch:
        for value in (name, text):
            content = _utf8(value, name) if isinstance(value, str) else np.asarray(value, dtype=np.int64).tobytes()
            state.update(len(content).to_bytes(8, "little"))
            state.update(content)
    return state.hexdigest()


def _utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DrkitError(f"text {name!r}: its id or its text is not valid Unicode ({error.reason})") from None
