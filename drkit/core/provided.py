"""The names that parts receive, provide and require, each with its meaning: what the engine itself brings.

Plugins add names of their own to `provides` (a decoder's output) and `signals`; these are the ones that are always
there. The check, its suggestions and the documentation read this table and no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import frozen

# Where a name comes from.
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
    """A name that a part's call may receive, who provides it, and what it means.

    if_masked: the encoder has it only where the masker provides the name. whole_batch: it relates rows of the batch to
    each other, so only a part with `scope = "batch"` can receive it. per_text: a plain tensor with one row a text,
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
    Provided("replaced", MASKER, "masked positions are filled with a generator's samples"),
    Provided("context", MASKER, "the decoder's text is another one than the encoder's"),
    Provided("token_states", ENCODER, "states at target positions, with their labels and the LM head"),
    Provided("text_states", ENCODER, "states of whole texts, with their tokens and the LM head"),
    Provided("bottleneck", ENCODER, "the vector of each text, f[B,D]", per_text=True),
    Provided("replaced", ENCODER, "which targets hold another token than the text, bool[N]", if_masked=True),
    Provided("partners", BATCH, "the row that belongs to each row, i64[B]", whole_batch=True, per_text=True),
    Provided("pairs", FINETUNING, "vectors of queries and passages (`EmbeddedPairs`)", whole_batch=True),
    Provided("groups", RERANKING, "a cross-encoder's scores of each query's passages (`ScoredGroups`)"),
    Provided("candidates", MINING, "what the miner before it in the chain found"),
)

# What a run can be asked for, beside the calls of its parts. The first three are made by stages of their own.
CAPABILITIES: Mapping[str, str] = {
    "spans": "documents cut into spans of whole sentences, which are the texts then",
    "generated-queries": "candidate queries of every text; settings: `QuerySettings`",
    "generator": "a masked LM that fills masked positions; settings: `GeneratorConfig`",
    "characters": "the characters of every text, beside its tokens",
    "teacher": "a cross-encoder's scores in `pairs` or `groups`",
    "retriever": "the retriever of the round before",
    "reranker": "the run's own re-ranker",
}
MADE_FOR_PRETRAINING = ("spans", "generated-queries", "generator")
FOR_LOSSES = ("teacher",)
FOR_MINERS = ("retriever", "reranker")
FOR_SIGNALS = ("characters",)


def provided_by(*sources: str, masker: Iterable[str] = ()) -> tuple[str, ...]:
    """The names that these sources provide, beside a masker that provides `masker`.

    >>> provided_by("encoder", "batch")
    ('token_states', 'text_states', 'bottleneck', 'partners')
    """
    views = set(masker)
    return tuple(p.name for p in PROVIDED if p.source in sources and (not p.if_masked or p.name in views))


def relating_rows() -> frozenset[str]:
    """The names that relate rows of a batch to each other."""
    return frozenset(p.name for p in PROVIDED if p.whole_batch)


def engine_names() -> frozenset[str]:
    """Every name that the engine or a masker's call brings."""
    return frozenset(p.name for p in PROVIDED)
