"""Languages that BM25 may have wrong: guessed by shares of stop words, and by words that a stemmer does not change."""

from __future__ import annotations

from collections.abc import Iterable

from drkit.data.words import find_words
from drkit.errors import MissingExtraError
from drkit.recipe.evaluation import LANGUAGES
from drkit.search.bm25 import Bm25Retriever, stop_words_of

# Texts of one language have 15 to 35 % of its stop words, and at most half of that of another language's.
_LEAST_SHARE, _AHEAD, _LEAST_WORDS = 0.15, 1.5, 100
# A stemmer changes a quarter to a half of a collection's different words, of another language of the script a sixth.
_FEW_CHANGED = 0.05


def likely_language(texts: Iterable[str]) -> str | None:
    """Return the language whose stop words texts are full of; None if that is open, or bm25s is not installed.

    Only languages of `LANGUAGES` with a list of stop words are recognised, in texts of at least 100 words.

    >>> likely_language(["the parts of a word that are not in the list of the words"] * 9)
    'english'
    """
    words = [word.lower() for text in texts for word in find_words(text)]
    try:
        lists = {language: frozenset(stop_words_of(language)) for language in LANGUAGES}
    except MissingExtraError:
        return None
    if len(words) < _LEAST_WORDS:
        return None
    shares = {language: sum(word in stops for word in words) / len(words) for language, stops in lists.items() if stops}
    (best, first), (_, second), *_ = sorted(shares.items(), key=lambda pair: -pair[1])
    return best if first >= max(_LEAST_SHARE, _AHEAD * second) else None


def note_query_language(retriever: Bm25Retriever, texts: Iterable[str], what: str) -> str:
    """Say that queries look like another language than BM25 reads them as; empty if they do not."""
    found = likely_language(texts)
    if found is None or found == retriever.query_language:
        return ""
    return (
        f"the {what} look like {found.capitalize()}, and BM25 reads them as {retriever.query_language}: "
        f"--set evaluation.bm25_query_language={found}"
    )


def note_stemmer(retriever: Bm25Retriever) -> str:
    """Say that BM25's stemmer changes almost no word of the indexed passages; else, or without one, an empty string."""
    changed, words = retriever.stemmed_words
    if words < _LEAST_WORDS or changed >= _FEW_CHANGED * words:
        return ""
    return (
        f"BM25's stemmer, {retriever.language}, changes {changed:,} of the passages' {words:,} different words: "
        f"--set evaluation.bm25_language=LANGUAGE if they are in another language, or none"
    )
