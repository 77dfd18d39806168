"""BM25 over stems and the words within identifiers, without stop words, by bm25s: a baseline, and a miner."""

from __future__ import annotations

import json
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from drkit.recipe.evaluation import ALWAYS, IDENTIFIER_SPLITS, LANGUAGES, NEVER, QUERY_LANGUAGES, SAME_LANGUAGE, UNKNOWN
from drkit.search.postings import Postings, best_positions
from drkit.search.rankings import Found, Hits, Rankings, check_one_list_per_query, check_query_texts
from drkit.search.vectors import DocIds

Texts: TypeAlias = "Iterable[Passage] | Iterable[tuple[str, str]] | Mapping[str, str]"
_IDS = "ids.arrow"
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
    return [word for words in _identifiers(text) for word in words]


def _identifiers(text: str) -> Iterator[list[str]]:
    """Yield each word of a text, in lower case, followed by the words within it; see `split_words`."""
    for word in find_words(text):
        words = [word.lower()]
        if not (word.isalpha() and (word[1:].islower() or word.isupper())):
            kinds = "".join(map(_kind, word))
            within = [word[slice(*found.span())] for found in _INNER_WORD.finditer(kinds)]
            words += [inner.lower() for inner in within] if within != [word] else []
        yield [word for word in words if len(word) > 1 or is_unspaced(word)]


def stop_words_of(language: str) -> Sequence[str]:
    """Return the stop words of a language: Lucene's 33 for English, NLTK's for others, nothing without a list.

    Raises MissingExtraError without bm25s.
    """
    lists, name = import_extra("bm25s", "BM25").stopwords, "EN" if language == "english" else language.upper()
    found: Sequence[str] = getattr(lists, f"STOPWORDS_{name}", ())
    return found


def _stemmer(language: str) -> Callable[[str], str] | None:
    """Return the stemmer of a language, a function of a word; None for `none`."""
    if language == "none":
        return None
    stem: Callable[[str], str] = import_extra("Stemmer", "BM25").Stemmer(language).stemWord
    return stem


def _checked_split(value: str) -> str:
    if value not in IDENTIFIER_SPLITS:
        raise UnknownNameError("value of split_queries", value, IDENTIFIER_SPLITS, where="BM25")
    return value


def _kind(character: str) -> str:
    if character == "_":
        return "_"
    return "D" if character.isdigit() else "U" if character.isupper() else "l"


class Bm25Retriever:
    """Ranks passages by BM25 (Lucene's variant: Kamphuis et al. 2020).

    k1 saturates term frequency, b normalises length. Terms are stems of `split_words`; language: of the stemmer and
    of the stop words (Snowball's and NLTK's, if they have it), `none` for whole words. A passage that shares
    no term with the query is not a hit; ties are in corpus order. Results are deterministic.

    query_language: of the queries, `same` for that of the passages. Queries in another language are without the stop
    words of theirs; a word that no passage has, stemmed as the passages are, is stemmed in the queries' language.
    split_queries: whether identifiers in queries are followed by the words within them: `always`, `never`, or
    `unknown`, if no passage has the whole identifier. Those of passages always are.

    Raises DrkitError for an unknown language or value, and MissingExtraError without bm25s or PyStemmer.
    """

    def __init__(
        self,
        *,
        k1: float = 1.2,
        b: float = 0.75,
        language: str = "english",
        query_language: str = SAME_LANGUAGE,
        split_queries: str = UNKNOWN,
    ) -> None:
        if language not in LANGUAGES:
            raise UnknownNameError("language", language, LANGUAGES, where="BM25")
        if query_language not in QUERY_LANGUAGES:
            raise UnknownNameError("language", query_language, QUERY_LANGUAGES, where="BM25's queries")
        library = import_extra("bm25s", "BM25")
        stop_words = stop_words_of(language)
        self._language, self._stop_words = language, frozenset(stop_words)
        self._tokenizer = library.tokenization.Tokenizer(
            lower=False, splitter=split_words, stopwords=stop_words, stemmer=_stemmer(language)
        )
        self._query_language = query_language
        own = language if query_language == SAME_LANGUAGE else query_language
        self._query_stop_words = frozenset(stop_words_of(own))
        self._query_stemmer = None if own == language else _stemmer(own)
        self._split_queries = _checked_split(split_queries)
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
        cls, passages: Texts, parameters: Iterable[tuple[float, float]], **analysis: Any
    ) -> Iterator[Bm25Retriever]:
        """Yield a retriever for each k1 and b; the passages are read once, and their terms stay in memory.

        analysis: the other arguments of `Bm25Retriever`. Raises DrkitError without a passage that has terms, and as
        `Bm25Retriever` does.
        """
        read = cls(k1=1.2, b=0.75, **analysis)
        terms = read._read(passages)
        for k1, b in parameters:
            made = cls(k1=k1, b=b, **analysis)
            made._tokenizer, made._ids = read._tokenizer, read._ids
            made._weigh(terms)
            yield made
            del made  # an index less in memory while the next one is made

    @property
    def language(self) -> str:
        """The language whose stemmer and stop words the passages were indexed with."""
        return self._language

    @property
    def query_language(self) -> str:
        """The queries' language; that of the passages if it is `same`."""
        return self._language if self._query_language == SAME_LANGUAGE else self._query_language

    @property
    def stemmed_words(self) -> tuple[int, int]:
        """How many different words of the passages the stemmer changes, and of how many; letters alone count."""
        stems: Mapping[str, str] = self._tokenizer.word_to_stem
        words = [word for word in stems if word.isalpha() and not is_unspaced(word)]
        return sum(stems[word] != word for word in words), len(words)

    def splitting(self, split_queries: str) -> Bm25Retriever:
        """Return a retriever with the same index that treats identifiers in queries otherwise; see `split_queries`.

        Raises DrkitError for an unknown value.
        """
        other = copy(self)
        other._split_queries = _checked_split(split_queries)
        return other

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
        self._ids.write(Path(folder) / _IDS)
        facts = {
            "version": ANALYZER_VERSION,
            "language": self._language,
            "query_language": self._query_language,
            "split_queries": self._split_queries,
            "made_with": self._made_with(),
        }
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
        # Indexes of earlier versions do not say how queries are read.
        opened = cls(
            language=str(facts.get("language")),
            query_language=str(facts.get("query_language", SAME_LANGUAGE)),
            split_queries=str(facts.get("split_queries", ALWAYS)),
        )
        try:
            opened._ids = DocIds.read([Path(folder) / _IDS])
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
        check_query_texts(texts)
        return Rankings.at(self._ids.array, query_ids, (self._found(query, depth) for query in self._terms(texts)))

    def score(self, texts: Sequence[str], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        """Score each text against its own list of passages: 0 without a shared term, NaN for an unknown id.

        Raises DrkitError for an empty text, or if the numbers of texts and lists differ.
        """
        check_query_texts(texts)
        check_one_list_per_query(len(doc_ids), len(texts))
        found = zip(self._terms(texts), doc_ids, strict=True)
        return [self._scores(query, self._ids.find(names)) for query, names in found]

    def _terms(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """Yield the terms of queries that passages have; nothing is remembered, so that queries change no index."""
        for text in texts:
            words = [word for words in _identifiers(text) for word in self._asked(words)]
            yield [term for word in words if (term := self._term(word)) is not None]

    def _asked(self, words: list[str]) -> list[str]:
        """Return the words that a query asks for by one of its words, which the words within it follow."""
        if self._split_queries == ALWAYS or len(words) < 2:
            return words
        is_whole = self._split_queries == NEVER or self._term(words[0]) is not None
        return words[:1] if is_whole else words

    def _term(self, word: str) -> int | None:
        """Return the term of a query's word; None for a stop word, and if no passage has the term."""
        if word in self._query_stop_words:
            return None
        tokenizer, own = self._tokenizer, self._query_stemmer
        if tokenizer.stemmer is None:
            whole: int | None = tokenizer.word_to_id.get(word)
            return whole
        terms: Mapping[str, int] = tokenizer.stem_to_sid
        found = terms.get(tokenizer.stemmer(word))
        return terms.get(own(word)) if found is None and own else found

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
