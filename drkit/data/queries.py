"""Queries of every text: given ones from a file or a model, and queries made from the texts themselves.

Candidate queries are contexts in pre-training, tokenised (`Queries`). Extractive ones need no model: they are the spans
of a text whose tokens are most important (PMI). A text without a given query keeps its extractive ones, so that every
text has a context.

Pseudo-queries are training queries, made without a judgement. Each `PassageQueries` turns a batch of passages into the
queries of each; which ones depends on the seed and the passage alone. So it is with the parts of plugins.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import attrs
import numpy as np
from attrs import field, frozen
from numpy.typing import ArrayLike, NDArray

from drkit.core.draws import Draws
from drkit.core.engine import Engine, Loaded, loaded_value
from drkit.core.file_chunks import FileChunk, FileChunks
from drkit.core.files import write_lines
from drkit.core.protocols import QuerySource
from drkit.core.quantities import counted
from drkit.core.types import Passage
from drkit.data.arrays import Arrays, ArrayWriter, SignalValues
from drkit.data.columns import NamedColumns
from drkit.data.corpus import StoredCorpus
from drkit.data.rows import FORMATS, FileRow, batched, read_rows, require_file
from drkit.data.spans import NamedTexts, SentenceSplitter
from drkit.data.store import TokenStore, TokenWriter, encode_texts, kept_tokens
from drkit.data.titles import Titles
from drkit.data.words import word_spans
from drkit.errors import DrkitError

_Indices: TypeAlias = "NDArray[np.int64]"
CANDIDATES_FILE = "candidates.arrow"
EXTRACT_TOKENS = 12  # tokens of an extractive query: a short question
ID_COLUMNS = ("doc_id", "_id", "id")
QUERY_COLUMNS = ("queries", "query")
_BATCH = 4096
# Two chosen spans may share at most a quarter of the shorter one.
_OVERLAP = 4

Slice = tuple[TokenStore, int, int]


def read_queries(path: Path) -> Iterator[tuple[str, str]]:
    """Stream (passage id, query) of a file of queries: .jsonl, .tsv, .csv (compressed or not) or .parquet.

    JSON: `doc_id` (or `_id`, `id`) and `query` or `queries`, a string or a list of strings. Tables: two columns, id and
    query, or a header that names them; an id may be in many rows.

    Raises DrkitError naming `file:line` at any other row.
    """
    path = require_file(str(path), "file of queries", FORMATS)
    rows = read_rows(path, NamedColumns((ID_COLUMNS, QUERY_COLUMNS), ("doc_id", "query")))
    return ((row.id(row.first(ID_COLUMNS)), query) for row in rows for query in _queries_of(row))


def _queries_of(row: FileRow) -> list[str]:
    column = row.first(QUERY_COLUMNS)
    found = row.values[column]
    queries = found if isinstance(found, list) else [found]
    if not all(isinstance(query, str) for query in queries):
        raise DrkitError(f"{column!r} must be a string or a list of strings, got {found!r:.60}", where=row)
    return queries


def extractive_queries(
    store: TokenStore, importance: SignalValues, indices: ArrayLike | None = None, *, count: int = 5, length: int = 12
) -> Iterator[list[tuple[int, int]]]:
    """Yield for each text the `count` spans with the highest mean importance, best first, as ranges of `flat_ids`.

    A span is a run of whole words, as many as fit `length` tokens; shorter than half of that only if the text has no
    other. Two spans of a text share at most a quarter of the shorter one, so short texts have fewer. An empty text has
    one empty span. indices: of the texts; None: all.

        for ranges in extractive_queries(store, importance):
            print([tokenizer.decode(store.flat_ids[start:stop]) for start, stop in ranges])
    """
    for index in np.arange(len(store)) if indices is None else np.asarray(indices, dtype=np.int64):
        start, stop = (int(offset) for offset in store.offsets[index : index + 2])
        if start == stop:
            yield [(start, stop)]
            continue
        windows = word_windows(store.flat_words[start:stop], length)
        long = 2 * (windows[:, 1] - windows[:, 0]) >= length  # the means of few tokens are extreme
        windows = windows[long] if long.any() else windows
        sums = np.concatenate([[0.0], np.cumsum(importance.values[start:stop], dtype=np.float64)])
        means = (sums[windows[:, 1]] - sums[windows[:, 0]]) / np.diff(windows, axis=1)[:, 0]
        yield [(start + a, start + b) for a, b in best_windows(windows, means, count).tolist()]


def word_windows(words: NDArray[np.signedinteger], length: int) -> NDArray[np.int64]:
    """Return every maximal run of whole words of at most `length` tokens, i64[n,2].

    words: the word of each token. A word of more than `length` tokens counts with its first ones.

    >>> word_windows(np.array([0, 0, 1, 2, 2, 2]), 4).tolist()
    [[0, 3], [2, 6]]
    """
    begins = np.flatnonzero(np.concatenate([[True], words[1:] != words[:-1]]))
    boundaries = np.append(begins, len(words))
    ends = boundaries[np.searchsorted(boundaries, begins + length, side="right") - 1]
    ends = np.maximum(ends, np.minimum(begins + length, boundaries[1:]))
    grows = np.concatenate([[True], ends[1:] > ends[:-1]])
    windows: NDArray[np.int64] = np.stack([begins, ends], axis=1)[grows]
    return windows


def best_windows(windows: NDArray[np.int64], scores: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the windows of highest score, best first, i64[<=count,2]; none overlaps a better one by over a quarter."""
    sizes = windows[:, 1] - windows[:, 0]
    left = np.asarray(scores, dtype=np.float64).copy()
    chosen: list[int] = []
    while len(chosen) < count and np.isfinite(left).any():
        best = int(np.argmax(left))
        chosen.append(best)
        shared = np.minimum(windows[:, 1], windows[best, 1]) - np.maximum(windows[:, 0], windows[best, 0])
        left[shared * _OVERLAP > np.minimum(sizes, sizes[best])] = -np.inf
    return windows[chosen]


@frozen(eq=False)
class GivenQueries:
    """Queries that a file or a model gives: a store of them, and the index of each one's text, i64[queries]."""

    store: TokenStore
    texts: NDArray[np.int64]


def tokenise_given(
    pairs: Iterable[tuple[str, str]], texts: NamedTexts, tokenizer: Any, folder: Path, *, max_length: int
) -> tuple[GivenQueries, dict[str, int]]:
    """Tokenise (text's name, query) pairs into a store in `folder`; a passage's query belongs to all its spans.

    Memory: 8 bytes per query. Returns counts: given (queries), unknown (queries of unknown texts).

    Raises DrkitError if no query belongs to any of the texts.
    """
    counts, indices, shown = {"given": 0, "unknown": 0}, array("q"), ""
    room = max_length - tokenizer.num_special_tokens_to_add()
    with TokenWriter(folder, tokenizer, max_length=max_length) as writer:
        for batch in batched(encode_texts(pairs, tokenizer), _BATCH):
            found = texts.find([name for name, _, _ in batch])
            repeated = [encoding for (_, _, encoding), own in zip(batch, found, strict=True) for _ in own]
            words = writer.words.of_encodings(repeated)
            kept = [kept_tokens(len(encoding.ids), room, tokenizer) for encoding in repeated]
            writer.append(
                [encoding.ids[part] for encoding, part in zip(repeated, kept, strict=True)],
                [own[part] for own, part in zip(words, kept, strict=True)],
            )
            indices.extend(index for own in found for index in own.tolist())
            counts["given"] += len(batch)
            counts["unknown"] += sum(not len(own) for own in found)
            shown = shown or batch[0][0]
    if not indices:
        example = next(iter(texts))[0]
        raise DrkitError(
            f"none of the {counted(counts['given'], 'given query')} belongs to a text of this collection: their "
            f"ids look like "
            f"{shown!r}, the collection's like {example!r}; use the ids of the collection"
        )
    return GivenQueries(TokenStore.open(folder), np.frombuffer(indices, dtype=np.int64)), counts


def write_candidates(
    texts: TokenStore,
    importance: SignalValues,
    tokenizer: Any,
    folder: Path,
    *,
    count: int,
    max_length: int,
    given: GivenQueries | None = None,
) -> dict[str, int]:
    """Write at most `count` candidate queries of every text to `folder`: the first given ones, else extractive ones.

    Memory: 16 bytes per given query. Returns counts: texts, queries, extractive (texts without a given query), surplus
    (given queries beyond `count`).
    """
    given = given or GivenQueries(texts, np.empty(0, np.int64))
    order = np.argsort(given.texts, kind="stable")
    order = order[np.diff(given.store.offsets)[order] > 0]  # empty queries are left out
    sorted_texts = given.texts[order]
    counts = {"texts": len(texts), "queries": 0, "extractive": 0, "surplus": 0}
    folder, room = Path(folder), max_length - tokenizer.num_special_tokens_to_add()
    with (
        TokenWriter(folder, tokenizer, max_length=max_length) as writer,
        ArrayWriter(folder / CANDIDATES_FILE, {"counts": np.int32}) as arrays,
    ):
        for start in range(0, len(texts), _BATCH):
            indices = np.arange(start, min(start + _BATCH, len(texts)))
            bounds = np.searchsorted(sorted_texts, [*indices, indices[-1] + 1])
            own = np.diff(bounds) == 0
            ranges = extractive_queries(texts, importance, indices[own], count=count, length=min(EXTRACT_TOKENS, room))
            rows = [
                [(texts, *span) for span in next(ranges)]
                if first == last
                else _slices(given, order[first : min(last, first + count)])
                for first, last in pairwise(bounds.tolist())
            ]
            spans = [query for row in rows for query in row]
            writer.append(
                [store.flat_ids[a:b].tolist() for store, a, b in spans],
                [store.flat_words[a:b].tolist() for store, a, b in spans],
            )
            arrays.append(counts=np.array([len(row) for row in rows]))
            counts["queries"] += sum(map(len, rows))
            counts["extractive"] += int(own.sum())
            counts["surplus"] += int(np.maximum(np.diff(bounds) - count, 0).sum())
    return counts


def _slices(given: GivenQueries, indices: NDArray[np.int64]) -> list[Slice]:
    starts, stops = given.store.offsets[indices], given.store.offsets[indices + 1]
    return [(given.store, int(a), int(b)) for a, b in zip(starts, stops, strict=True)]


class Queries:
    """Candidate queries of every text, as `write_candidates` wrote them to a folder; memory-mapped, picklable.

    `store`: all of them, tokenised. `offsets` i64[texts + 1]: those of text i are at offsets[i] .. offsets[i + 1], at
    least one.

    Raises DrkitError if they are missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.store = TokenStore.open(self.folder)
        counts = Arrays(self.folder / CANDIDATES_FILE)["counts"]
        self.offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

    def __reduce__(self) -> tuple[type[Queries], tuple[Path]]:
        return Queries, (self.folder,)

    def __len__(self) -> int:
        return len(self.offsets) - 1


# The fewest words of a text without a title that a query can be made from.
LEAST_WORDS = 8
_SHORTEST, LONGEST = 4, 16  # words of a crop
_PASSAGES_AT_ONCE = 1024
# Added to the seed of a run, which is smaller, so that crops, sentences and masks are drawn independently.
_CROPS, _SENTENCES = 4 << 40, 5 << 40


def gives_query(passage: Passage) -> bool:
    """Return whether a query that is not all of it can be made from a passage."""
    return bool(passage.title.strip() and passage.text.strip()) or len(passage.text.split()) >= LEAST_WORDS


class PassageQueries(Protocol):
    """Takes queries from passages, which it knows by their indices in the corpus."""

    def __call__(self, passages: Sequence[Passage], indices: _Indices) -> list[list[str]]:
        """Return the queries of each passage; indices: of the passages in their corpus."""


@frozen
class Crops:
    """Runs of 4 to 16 words, drawn at random: independent cropping (Izacard et al. 2022, section 3.1) of the query.

    The passage stays whole.
    """

    count: int
    seed: int

    def __call__(self, passages: Sequence[Passage], indices: _Indices) -> list[list[str]]:
        """Return `count` crops of each passage; equal ones once."""
        words = [word_spans(passage.content) for passage in passages]
        totals = np.array([len(own) for own in words])[:, None]
        sizes, offsets = np.moveaxis(Draws(self.seed + _CROPS, 0, indices).uniform(2, self.count), 1, 0)
        lengths = np.minimum(_SHORTEST + (sizes * (LONGEST - _SHORTEST + 1)).astype(np.int64), totals)
        starts = (offsets * (totals - lengths + 1)).astype(np.int64)
        return [
            [passage.content[own[a][0] : own[a + n - 1][1]] for a, n in zip(first, size, strict=True) if n]
            for passage, own, first, size in zip(passages, words, starts.tolist(), lengths.tolist(), strict=True)
        ]


@frozen
class Sentences:
    """Sentences, drawn at random: the inverse cloze task (Lee et al. 2019) with the sentence left in its passage."""

    count: int
    seed: int
    splitter: SentenceSplitter

    def __call__(self, passages: Sequence[Passage], indices: _Indices) -> list[list[str]]:
        """Return at most `count` sentences of each passage, in random order; none if it is a single sentence."""
        found = [[passage.content[a:b] for a, b in self.splitter(passage.content)] for passage in passages]
        longest = max(map(len, found), default=0)
        order = Draws(self.seed + _SENTENCES, 0, indices).uniform(longest)
        return [
            [own[i] for i in np.argsort(keys[: len(own)], kind="stable")[: self.count]] if len(own) > 1 else []
            for own, keys in zip(found, order, strict=True)
        ]


@frozen(eq=False)
class ImportantSpans:
    """The spans of highest mean importance (`extractive_queries`), as the passage spells them.

    store, importance: of the passages; prompt_tokens: their number before every text of the store; titles: how they
    are read there.
    """

    count: int
    store: TokenStore
    importance: SignalValues
    tokenizer: Any
    prompt_tokens: int = 0
    titles: Titles = field(factory=Titles)

    def __call__(self, passages: Sequence[Passage], indices: _Indices) -> list[list[str]]:
        """Return at most `count` spans of each passage, best first."""
        texts = ((passage.doc_id, self.titles.read(passage)) for passage in passages)
        encodings = encode_texts(texts, self.tokenizer)
        ranges = extractive_queries(self.store, self.importance, indices, count=self.count, length=EXTRACT_TOKENS)
        begins = self.store.offsets[indices] + self.prompt_tokens
        found = [
            [text[_beginning(e.offsets, max(a - begin, 0)) : e.offsets[b - begin - 1][1]] for a, b in own if b > begin]
            for (_, text, e), own, begin in zip(encodings, ranges, begins.tolist(), strict=True)
        ]
        return [[self.titles.without_separator(query) for query in own] for own in found]


def _beginning(offsets: Sequence[tuple[int, int]], token: int) -> int:
    """Return the first character of a token; some tokenizers count the character before a word to it."""
    return max(offsets[token][0], offsets[token - 1][1] if token else 0)


def titles(passages: Sequence[Passage], indices: _Indices) -> list[list[str]]:  # noqa: ARG001
    """Return the title of each passage that has one."""
    return [[passage.title] if passage.title else [] for passage in passages]


def made_queries(corpus: StoredCorpus, source: PassageQueries) -> Iterator[tuple[int, str]]:
    """Yield (passage index, query) of all passages, each query once per passage, none that is the whole passage."""
    for number, passages in enumerate(batched(corpus, _PASSAGES_AT_ONCE)):
        indices = number * _PASSAGES_AT_ONCE + np.arange(len(passages))
        for index, passage, queries in zip(indices.tolist(), passages, source(passages, indices), strict=True):
            for query in dict.fromkeys(" ".join(query.split()) for query in queries):
                if query and query != " ".join(passage.content.split()):
                    yield index, query


# Passages whose queries are lost if a run is killed: minutes of a large model.
_PASSAGES_PER_CHUNK = 256


def write_computed(
    source: QuerySource | Loaded[QuerySource],
    passages: Iterable[Passage],
    path: Path,
    *,
    made_by: Any,
    name: str,
    engine: Engine | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Path:
    """Write the queries that a part makes of passages to a JSON Lines file, which `read_queries` reads; returns it.

    Called again after a kill, it goes on with the first unfinished 256 passages. source: `Loaded` for an engine of
    several machines. made_by: plain data that identifies the part and its settings. name: of the part, in errors.
    on_progress: called with the number of passages done.

    Raises DrkitError as `checked_queries` does.
    """
    if not path.exists():
        kept = FileChunks.beside(path)
        chunks = (
            FileChunk(
                f"{name}: passages {first + 1} to {first + len(some)}",
                len(some),
                [made_by, [attrs.astuple(one) for one in some]],
                query_lines,
                (source, name, some),
                "gpu",
            )
            for first, some in _numbered(batched(passages, _PASSAGES_PER_CHUNK))
        )
        files = kept.write(chunks, write_lines, engine, on_progress)
        write_lines((line for file in files for line in file.read_bytes().splitlines(keepends=True)), path)
        kept.remove()
    return path


def _numbered(batches: Iterable[list[Passage]]) -> Iterator[tuple[int, list[Passage]]]:
    return ((number * _PASSAGES_PER_CHUNK, batch) for number, batch in enumerate(batches))


def query_lines(source: QuerySource | Loaded[QuerySource], name: str, passages: Sequence[Passage]) -> Iterator[bytes]:
    """Yield a line of JSON for each passage that a part makes queries of: its id, and its queries."""
    for doc_id, queries in checked_queries(loaded_value(source), name, passages).items():
        yield json.dumps({"doc_id": doc_id, "queries": queries}, ensure_ascii=False).encode() + b"\n"


def checked_queries(source: QuerySource, name: str, passages: Sequence[Passage]) -> dict[str, list[str]]:
    """Return the queries that a part makes of passages, by passage id: each once, none that is the whole passage.

    Raises DrkitError unless it yields the id of one of these passages and a text for each query.
    """
    contents = {passage.doc_id: " ".join(passage.content.split()) for passage in passages}
    found: dict[str, list[str]] = {}
    for pair in source.queries(passages):
        is_pair = isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(one, str) for one in pair)
        if not is_pair:
            raise DrkitError(f"the source {name!r} must yield (passage id, query), two texts; got {pair!r:.80}")
        doc_id, query = pair[0], " ".join(pair[1].split())
        if doc_id not in contents:
            raise DrkitError(f"the source {name!r} names the passage {doc_id!r:.80}, which it was not called with")
        own = found.setdefault(doc_id, [])
        if query and query != contents[doc_id] and query not in own:
            own.append(query)
    return {doc_id: found[doc_id] for doc_id in contents if found.get(doc_id)}


def given_queries(corpus: StoredCorpus, path: Path) -> Iterator[tuple[int, str]]:
    """Yield (passage index, query) of a file of queries (see `read_queries`), -1 for an unknown passage."""
    stream = (pair for pair in read_queries(path) if pair[1].strip())
    for batch in batched(stream, _PASSAGES_AT_ONCE):
        yield from zip(corpus.find([name for name, _ in batch]).tolist(), (query for _, query in batch), strict=True)
