"""BM25 over stems and the words within identifiers, without stop words, by bm25s: a baseline, and a miner."""

from __future__ import annotations

import json
import re
import unicodedata
from array import array
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from drkit.core.checksums import check_unchanged
from drkit.core.files import digest, read_json, write_text
from drkit.core.types import Passage
from drkit.data.words import find_words, is_unspaced
from drkit.errors import DrkitError, UnknownNameError, import_extra
from drkit.recipe.schema import LANGUAGES
from drkit.search.postings import Postings, best_positions
from drkit.search.rankings import Found, Hits, Rankings, check_one_list_per_query, check_queries
from drkit.search.vectors import DocIds

Texts: TypeAlias = "Iterable[Passage] | Iterable[tuple[str, str]] | Mapping[str, str]"
IDS = "ids.arrow"
_ANALYZER = "analyzer.json"
# Raised when a text gets other terms, as an index must be searched with the terms that it was made of.
ANALYZER_VERSION = 2
# In the kinds of a word's characters (`_kind`): capitals of an abbreviation, a word with or without a capital, digits.
_INNER_WORD = re.compile(r"U+(?!l)|U?l+|D+")


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case, an identifier followed by the words within it.

    Words are those of `find_words`, without single characters but those of scripts without spaces. Queries say `remove
    suffix` where texts have `removeSuffix` or `remove_suffix` (what Lucene's WordDelimiterGraphFilter does with
    `preserveOriginal`).

    >>> split_words("The removeSuffix of HTTP_headers, as UTF8")
    ['the', 'removesuffix', 'remove', 'suffix', 'of', 'http_headers', 'http', 'headers', 'as', 'utf8', 'utf']
    """
    words = []
    for word in find_words(text):
        words.append(word.lower())
        if not (word.isalpha() and (word[1:].islower() or word.isupper())):
            kinds = "".join(map(_kind, word))
            within = [word[slice(*found.span())] for found in _INNER_WORD.finditer(kinds)]
            words += [inner.lower() for inner in within] if within != [word] else []
    return [word for word in words if len(word) > 1 or is_unspaced(word)]


def _kind(character: str) -> str:
    if character == "_":
        return "_"
    return "D" if character.isdigit() else "U" if character.isupper() else "l"


class Bm25Retriever:
    """Ranks passages by BM25 (Lucene's variant: Kamphuis et al. 2020).

    k1 saturates term frequency, b normalises length. Terms are stems of `split_words`; language: of the stemmer and
    of the stop words (Snowball's and NLTK's, if they have it), `none` for whole words. A passage that shares
    no term with the query is not a hit; ties are in corpus order. Results are deterministic.

    Raises DrkitError for an unknown language, and MissingExtraError without bm25s or PyStemmer.
    """

    def __init__(self, *, k1: float = 1.2, b: float = 0.75, language: str = "english") -> None:
        if language not in LANGUAGES:
            raise UnknownNameError("language", language, LANGUAGES, where="BM25")
        library, stemmer = import_extra("bm25s", "BM25"), import_extra("Stemmer", "BM25")
        # Lucene's 33 for English; nothing for `none`.
        stop_words = getattr(library.stopwords, f"STOPWORDS_{'EN' if language == 'english' else language.upper()}", ())
        self._language, self._stop_words = language, frozenset(stop_words)
        self._tokenizer = library.tokenization.Tokenizer(
            lower=False,
            splitter=split_words,
            stopwords=stop_words,
            stemmer=None if language == "none" else stemmer.Stemmer(language),
        )
        self._engine: Any = library.BM25(k1=k1, b=b, method="lucene", csc_backend="scipy")
        self._ids = DocIds.of(())

    def __len__(self) -> int:
        return len(self._ids)

    def index(self, passages: Texts) -> Bm25Retriever:
        """Index a stream of passages, (id, text) pairs, or texts by id; only ids and term numbers stay in memory.

        Raises DrkitError without a passage that has terms.

        >>> Bm25Retriever().index({"d1": "remove a suffix", "d2": "copy a file"}).search(["suffixes"], depth=10)[0]
        Hits(doc_ids=('d1',), scores=(0.3150...,))
        """
        self._weigh(self._read(passages))
        return self

    @classmethod
    def variants(
        cls, passages: Texts, parameters: Iterable[tuple[float, float]], language: str = "english"
    ) -> Iterator[Bm25Retriever]:
        """Yield a retriever for each k1 and b; the passages are read once, and their terms stay in memory.

        Raises DrkitError without a passage that has terms, and for an unknown language.
        """
        read = cls(language=language)
        terms = read._read(passages)
        for k1, b in parameters:
            made = cls(k1=k1, b=b, language=language)
            made._tokenizer, made._ids = read._tokenizer, read._ids
            made._weigh(terms)
            yield made
            del made  # an index less in memory while the next one is made

    def _read(self, passages: Texts) -> list[array[int]]:
        """Return the terms of each passage, 4 bytes each."""
        ids: list[str] = []
        self._tokenizer.reset_vocab()
        read = self._tokenizer.streaming_tokenize(_contents(passages, ids), allow_empty=False)
        terms = [array("i", numbers) for numbers in read]
        if not any(terms):
            raise DrkitError("BM25 has no words to index; is the collection empty?")
        self._ids = DocIds.of(ids)
        return terms

    def _weigh(self, terms: list[array[int]]) -> None:
        """Compute the score of each term in each passage."""
        vocabulary = self._tokenizer.get_vocab_dict()
        self._engine.index((terms, vocabulary), create_empty_token=False, show_progress=False)

    def save(self, folder: str | Path) -> None:
        """Write the index into a folder: bm25s' arrays and JSON, `ids.arrow`, and how it splits words."""
        self._tokenizer.save_vocab(folder)
        self._engine.save(folder, show_progress=False)
        self._ids.write(Path(folder) / IDS)
        facts = {"version": ANALYZER_VERSION, "language": self._language, "made_with": self._made_with()}
        write_text(Path(folder) / _ANALYZER, json.dumps(facts))

    def _made_with(self) -> dict[str, str]:
        """Return the versions of what decides terms, and a hash of the stop words."""
        stemmer = {} if self._language == "none" else {"PyStemmer": version("PyStemmer")}
        return {**stemmer, "unicode": unicodedata.unidata_version, "stop words": digest(sorted(self._stop_words))}

    @classmethod
    def load(cls, folder: str | Path) -> Bm25Retriever:
        """Open a saved index; its arrays are memory-mapped.

        Raises DrkitError if it is missing, cannot be read, has changed since it was written, or was made by versions of
        drkit, PyStemmer or Python that make other terms of its words.
        """
        check_unchanged(folder)
        facts = _read_analyzer(Path(folder))
        opened = cls(language=str(facts.get("language")))
        try:
            opened._ids = DocIds.read([Path(folder) / IDS])
            opened._tokenizer.load_vocab(folder)
            opened._engine = type(opened._engine).load(folder, mmap=True, show_progress=False)
        except Exception as error:  # bm25s reads damaged files without checking them
            raise DrkitError(f"{folder} is not an index of BM25 ({error}); rebuild it") from None
        opened._check_terms(Path(folder), facts.get("made_with") or {})
        return opened

    def _check_terms(self, folder: Path, made_with: Mapping[str, str]) -> None:
        """Raise DrkitError if the words of this opened index would get other terms here and now."""
        here = self._made_with()
        if made_with == here:
            return
        rebuild = f"Rebuild it, for a run with `drkit run {folder.parent}`."
        if made_with.get("stop words", here["stop words"]) != here["stop words"]:
            raise DrkitError(
                f"{folder} is an index of BM25 that leaves out other stop words than this bm25s. {rebuild}"
            )
        stems: Mapping[str, str] = self._tokenizer.word_to_stem
        for word in self._tokenizer.word_to_id:
            if not word.isascii() and word not in split_words(word):
                made = made_with.get("unicode", "another version")
                raise DrkitError(
                    f"{folder} is an index of BM25 whose words were split by Unicode {made}; this Python has Unicode "
                    f"{here['unicode']}, which does not know {word!r} as a word. {rebuild}"
                )
            if word in stems and (now := self._tokenizer.stemmer(word)) != stems[word]:
                made = made_with.get("PyStemmer", "another version")
                raise DrkitError(
                    f"{folder} is an index of BM25 with the stems of PyStemmer {made}; PyStemmer {here['PyStemmer']} "
                    f"has others ({word!r}: {stems[word]!r}, now {now!r}), so its words would not be found. {rebuild}"
                )

    def search(self, texts: Sequence[str], depth: int) -> list[Hits]:
        """Return the best `depth` passages of each text; none for a text of stop words or unknown words only.

        Raises DrkitError for an empty text.
        """
        return self.rankings([*map(str, range(len(texts)))], texts, depth).hits()

    def rankings(self, query_ids: Sequence[str], texts: Sequence[str], depth: int) -> Rankings:
        """Return what `search` returns, as arrays."""
        check_queries(texts)
        return Rankings.at(self._ids.array, query_ids, (self._found(query, depth) for query in self._terms(texts)))

    def score(self, texts: Sequence[str], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        """Score each text against its own list of passages: 0 without a shared term, NaN for an unknown id.

        Raises DrkitError for an empty text, or if the numbers of texts and lists differ.
        """
        check_queries(texts)
        check_one_list_per_query(len(doc_ids), len(texts))
        found = zip(self._terms(texts), doc_ids, strict=True)
        return [self._scores(query, self._ids.find(names)) for query, names in found]

    def _terms(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """Yield the terms of queries; bm25s would keep every word of theirs, and save them with the index."""
        reader = copy(self._tokenizer)
        reader.word_to_stem = ChainMap({}, self._tokenizer.word_to_stem)
        reader.word_to_id = ChainMap({}, self._tokenizer.word_to_id)
        terms: Iterator[list[int]] = reader.streaming_tokenize(texts, update_vocab=False, allow_empty=False)
        return terms

    def _scores(self, query: list[int], positions: NDArray[np.int64]) -> list[float]:
        """Add up what each term gives the passages at these positions, without scoring the others."""
        found = self._engine.scores
        postings = Postings(found["indices"], found["data"], found["indptr"], len(self))
        scores = postings.scores_at(query, np.ones(len(query), dtype=np.float32), positions)
        return [float(score) for score in scores]

    def _found(self, query: list[int], depth: int) -> Found:
        if not query:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        scores = self._engine.get_scores_from_ids(query)
        positions = best_positions(scores, depth)
        return positions, scores[positions]


def _read_analyzer(folder: Path) -> dict[str, Any]:
    """Return how a saved index makes terms. Raises DrkitError if it is not as this version of drkit does."""
    found = read_json(folder / _ANALYZER, f"{folder} is not an index of BM25; rebuild it")
    if not isinstance(found, dict) or found.get("version") != ANALYZER_VERSION:
        raise DrkitError(
            f"{folder} is an index of BM25 that another version of drkit made, which splits words differently; rebuild "
            f"it, for a run with `drkit run {folder.parent}`"
        )
    return found


def _contents(passages: Texts, ids: list[str]) -> Iterator[str]:
    """Yield the text of every passage, and add its id to `ids`."""
    for passage in passages.items() if isinstance(passages, Mapping) else passages:
        doc_id, text = (passage.doc_id, passage.content) if isinstance(passage, Passage) else passage
        ids.append(doc_id)
        yield text
