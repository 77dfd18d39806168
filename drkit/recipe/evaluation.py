"""The table `[evaluation]` of a recipe, and what BM25 may be set to, there and as a miner."""

from __future__ import annotations

from attrs import frozen
from attrs.validators import and_, deep_iterable, ge, in_, le, min_len, optional

from drkit.core.settings import at_least, more_than, setting
from drkit.data.splits import PSEUDO
from drkit.data.splits import SPLITS as QUERY_SPLITS

# Those of Snowball, without second stemmers of a language.
LANGUAGES = (
    *("none", "arabic", "armenian", "basque", "catalan", "danish", "dutch", "english", "finnish", "french", "german"),
    *("greek", "hindi", "hungarian", "indonesian", "irish", "italian", "lithuanian", "nepali", "norwegian"),
    *("portuguese", "romanian", "russian", "serbian", "spanish", "swedish", "tamil", "turkish", "yiddish"),
)
# The queries' language, if it is that of the passages.
SAME_LANGUAGE = "same"
QUERY_LANGUAGES = (SAME_LANGUAGE, *LANGUAGES)
# Whether BM25 splits identifiers in queries: if no passage has the whole one, always, or never.
IDENTIFIER_SPLITS = (UNKNOWN, ALWAYS, NEVER) = ("unknown", "always", "never")
# The choice to export the last retriever if the evaluation favours it, else the encoder as it is.
PROVEN = "proven"


@frozen
class Evaluation:
    """Evaluation: measures, queries, and systems to compare with."""

    measures: tuple[str, ...] = setting(
        ("RR@10", "nDCG@10", "R@100", "R@1000"), min_len(1), "measures by their ir_measures names"
    )
    depth: int = setting(1000, and_(ge(1), le(100_000)), "passages retrieved per query")
    split: str = setting(
        "test",
        in_((*QUERY_SPLITS, PSEUDO)),
        "split whose queries are evaluated; pseudo: queries made from pseudo_queries.held_out passages",
    )
    baseline: str | None = setting(
        None,
        optional(min_len(1)),
        "system that the others are tested against; none: labels-only, else the encoder as it starts, else bm25",
    )
    bm25: bool = setting(True, None, "also rank by BM25, for comparison")
    bm25_k1: tuple[float, ...] = setting(
        (1.2, 0.9),
        deep_iterable(more_than(0), min_len(1)),
        "BM25's term-frequency saturation; of several values, the best on the dev queries, or the first without any",
    )
    bm25_b: tuple[float, ...] = setting(
        (0.75, 0.4, 1.0),
        deep_iterable(at_least(0, 1), min_len(1)),
        "BM25's length normalisation; of several values, the best on the dev queries, or the first without any",
    )
    bm25_language: str = setting(
        "english", in_(LANGUAGES), "language of BM25's stemmer and stop words; none for whole words"
    )
    bm25_query_language: str = setting(
        SAME_LANGUAGE, in_(QUERY_LANGUAGES), "language of the queries, for BM25; same: that of bm25_language"
    )
    bm25_split_queries: tuple[str, ...] = setting(
        (UNKNOWN, ALWAYS),
        deep_iterable(in_(IDENTIFIER_SPLITS), min_len(1)),
        "identifiers in BM25's queries that are split into words: those that no passage has (unknown), always, never; "
        "of several values, the best on the dev queries, or the first without any",
    )
    hybrid: bool = setting(True, None, "also fuse BM25 with the exported retriever, if bm25 is on")
    start: bool = setting(True, None, "also evaluate the initial encoder, for comparison")
    pretrained: bool = setting(False, None, "also rank by the pre-trained encoder before any fine-tuning")
    rerank: bool = setting(True, None, "also re-rank with the re-ranker, if the recipe has one")
    exclude_self: bool = setting(False, None, "ignore the passage whose id equals the query's")
    export: str = setting(
        "best",
        in_(("best", "last", PROVEN)),
        "retriever to export: the best on the dev queries, the last, or (proven) the last if it is no worse than the "
        "encoder as it is and a system that gains needs it, else that encoder",
    )
    folds: int | None = setting(
        None,
        optional(at_least(2, 100)),
        "cross-validate on the evaluated queries: as many trainings, each ranking the queries that it has not seen; "
        "the retriever itself learns from all of them",
    )
    passages: int | None = setting(
        None,
        optional(at_least(1)),
        "read only this many passages of the collection: those that are judged, and a random rest",
    )
    index: str = setting(
        "flat",
        min_len(1),
        "index to search: flat (exact), hnsw, ivf-pq, int8, binary, or a factory string of faiss",
    )
