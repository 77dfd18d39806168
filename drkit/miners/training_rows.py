"""Training rows of texts, (anchor, positive, negatives), from what a chain has mined; `drkit mine` writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from drkit.core.protocols import Corpus
from drkit.core.types import Mined
from drkit.data.rows import batched
from drkit.miners.chain import contents

# An anchor, one of its positives, and negatives, as texts.
TextRow: TypeAlias = "tuple[str, str, list[str]]"
_QUERIES_PER_LOOKUP = 64


def text_rows(mined: Iterable[tuple[str, Sequence[str], Mined]], corpus: Corpus, count: int) -> Iterator[TextRow]:
    """Yield (anchor, positive, up to `count` negatives) for every positive that is in the corpus.

    mined: each anchor's text, the ids of its positives, and its negatives.
    """
    for batch in batched(mined, _QUERIES_PER_LOOKUP):
        texts = contents(corpus, (d for _, positives, found in batch for d in (*positives, *found.doc_ids[:count])))
        for anchor, positives, found in batch:
            negatives = [texts[doc_id] for doc_id in found.doc_ids[:count]]
            yield from ((anchor, texts[doc_id], negatives) for doc_id in positives if doc_id in texts)


def as_triplets(rows: Iterable[TextRow]) -> Iterator[dict[str, str]]:
    """Yield the columns anchor, positive and negative, once for each negative.

    >>> list(as_triplets([("q", "p", ["n", "m"])]))
    [{'anchor': 'q', 'positive': 'p', 'negative': 'n'}, {'anchor': 'q', 'positive': 'p', 'negative': 'm'}]
    """
    for anchor, positive, negatives in rows:
        yield from ({"anchor": anchor, "positive": positive, "negative": text} for text in negatives)


def as_tuples(rows: Iterable[TextRow], count: int) -> Iterator[dict[str, str]]:
    """Yield the columns anchor, positive, negative_1 .. negative_n; rows with fewer than `count` negatives are skipped.

    >>> list(as_tuples([("q", "p", ["n", "m"]), ("r", "s", ["n"])], 2))
    [{'anchor': 'q', 'positive': 'p', 'negative_1': 'n', 'negative_2': 'm'}]
    """
    for anchor, positive, negatives in rows:
        if len(negatives) >= count:
            columns = {f"negative_{number}": text for number, text in enumerate(negatives[:count], start=1)}
            yield {"anchor": anchor, "positive": positive, **columns}
