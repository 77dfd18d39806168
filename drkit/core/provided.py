"""The built-in names that parts receive, provide and require, each with its meaning.

Plugins can add names to `provides` (a decoder's outputs) and `signals`; the names here always exist. The check, its
suggestions and the documentation all read these tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import frozen

# The sources of names.
MASKER, ENCODER, BATCH, FINETUNING, RERANKING, MINING = (
    "masker",
    "encoder",
    "batch",
    "fine-tuning",
    "re-ranking",
    "mining",
)


@frozen
class Provided:
    """A name that the call of a part may receive, its source, and its meaning.

    if_masked: the encoder provides it only if the masker provides the name. whole_batch: it relates rows of the batch
    to each other, so only a part with `scope = "batch"` can receive it. per_text: a plain tensor with one row per text,
    which can be gathered from chunks and processes.
    """

    name: str
    source: str
    meaning: str
    if_masked: bool = False
    whole_batch: bool = False
    per_text: bool = False


PROVIDED = (
    Provided("view", MASKER, "a masked copy of the decoder's text"),
    Provided("rows", MASKER, "a visibility pattern for each row of the decoder"),
    Provided("replaced", MASKER, "masked positions filled with samples of a generator"),
    Provided("context", MASKER, "another text for the decoder than for the encoder"),
    Provided("token_states", ENCODER, "states at target positions, with their labels and the LM head"),
    Provided("text_states", ENCODER, "states of whole texts, with their tokens and the LM head"),
    Provided("bottleneck", ENCODER, "the vector of each text, f[B,D]", per_text=True),
    Provided("replaced", ENCODER, "which targets differ from the original token, bool[N]", if_masked=True),
    Provided("partners", BATCH, "the row that belongs to each row, i64[B]", whole_batch=True, per_text=True),
    Provided("pairs", FINETUNING, "vectors of queries and passages (`EmbeddedPairs`)", whole_batch=True),
    Provided("groups", RERANKING, "a cross-encoder's scores of each query's passages (`ScoredGroups`)"),
    Provided("candidates", MINING, "results of the previous miner in the chain"),
)

# What a part can require of the run, besides the arguments of its call. The first three have their own stages.
CAPABILITIES: Mapping[str, str] = {
    "spans": "documents split into spans of whole sentences, which become the texts",
    "generated-queries": "candidate queries for every text; settings: `QuerySettings`",
    "generator": "a masked LM that fills masked positions; settings: `GeneratorConfig`",
    "characters": "the characters of every text, besides its tokens",
    "teacher": "a cross-encoder's scores in `pairs` or `groups`",
    "retriever": "the retriever of the previous round",
    "reranker": "the run's own re-ranker",
}
MADE_FOR_PRETRAINING = ("spans", "generated-queries", "generator")
FOR_LOSSES = ("teacher",)
FOR_MINERS = ("retriever", "reranker")
FOR_SIGNALS = ("characters",)


def provided_by(*sources: str, masker: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the names that these sources provide, next to a masker that provides `masker`.

    >>> provided_by("encoder", "batch")
    ('token_states', 'text_states', 'bottleneck', 'partners')
    """
    views = set(masker)
    return tuple(p.name for p in PROVIDED if p.source in sources and (not p.if_masked or p.name in views))


def relating_rows() -> frozenset[str]:
    """Return the names that relate rows of a batch to each other."""
    return frozenset(p.name for p in PROVIDED if p.whole_batch)


def engine_names() -> frozenset[str]:
    """Return every built-in name."""
    return frozenset(p.name for p in PROVIDED)
