"""Long documents: every passage has a vector, and the best one ranks its document (MaxP, Dai and Callan 2019).

An encoder says how many passages it reads of a document (`passages_per_document`); vectors and indexes, which carry
its identity, then hold passages by the name `DOC#n`. Hits become documents here, before a ranking exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise, tee
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from drkit.data.spans import pack
from drkit.data.store import encoded, prompt_tokens
from drkit.search.rankings import Hits, Rankings

if TYPE_CHECKING:
    from drkit.search.index import AnyIndex

SETTING = "passages_per_document"


def cut_documents(encoder: Any, documents: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the passages of (id, text) documents as (`ID#n`, text), n counted from 0; an empty document is one passage.

    encoder: a `TextEncoder` that has `passages_per_document`, or a `DualEncoder` of them. A document is cut between
    words into equal parts of at most `passage_length` tokens, prompt and special ones included; what does not fit the
    allowed number of passages is left out.
    """
    reader = getattr(encoder, "passages", encoder)
    tokenizer, most, length = reader.tokenizer, reader.passages_per_document, reader.passage_length
    room = length - tokenizer.num_special_tokens_to_add() - len(prompt_tokens(reader.passage_prompt, tokenizer, length))
    own, read = tee(documents)
    encodings = chain.from_iterable(encoded((text for _, text in read), tokenizer))
    for (doc_id, text), encoding in zip(own, encodings, strict=True):
        offsets = encoding.offsets[: most * room]
        cuts = pack([0, len(offsets)], encoding.word_ids, room)[: most + 1] if offsets else [0, 0]
        for n, (start, stop) in enumerate(pairwise(cuts)):
            yield f"{doc_id}#{n}", text[offsets[start][0] : offsets[stop - 1][1]] if stop else ""


def document_rankings(index: AnyIndex, query_ids: Sequence[str], queries: NDArray[np.float32], depth: int) -> Rankings:
    """Return the best `depth` documents of queries f32[Q,D] with these ids, scored by their best passages.

    Exact if the index is, as `depth` documents have at most `depth` times `passages_per_document` passages. An index of
    whole texts is searched as it is. Raises DrkitError as the index does.
    """
    most = passages_per_document(index)
    if most == 1:
        return Rankings.at(index.doc_ids.array, query_ids, index.rank(queries, depth))
    rows = []
    for query_id, found in zip(query_ids, index.rank(queries, depth * most), strict=True):
        best: dict[str, float] = {}
        for name, score in Hits.at(index.doc_ids, *found).pairs():
            best.setdefault(name.rpartition("#")[0], score)
        rows.append((query_id, list(best.items())[:depth]))
    return Rankings.of(rows)


def score_documents(
    index: AnyIndex, queries: NDArray[np.float32], doc_ids: Sequence[Sequence[str]]
) -> list[list[float]]:
    """Score each query f32[Q,D] against its own documents by their best passages; NaN for an unknown id.

    Raises DrkitError if the numbers of queries and lists differ.
    """
    most = passages_per_document(index)
    if most == 1:
        return index.score(queries, doc_ids)
    passages = [[f"{doc_id}#{n}" for doc_id in names for n in range(most)] for names in doc_ids]
    scored = [np.reshape(scores, (-1, most)) for scores in index.score(queries, passages)]
    return [np.fmax.reduce(scores, axis=1).tolist() for scores in scored]


def passages_per_document(index: Any) -> int:
    """Return how many passages an index holds of a document, at most; 1 if it holds whole texts."""
    return int((getattr(index, "encoder", None) or {}).get(SETTING) or 1)
