"""Pooling: how the hidden states of a text become one vector, by name. No torch at import.

Every pooling is a part. Those of `POOLINGS` have no settings and no weights, or those of tokens, and any encoder folder
may declare them; the others have weights or settings of their own (`drkit.encoders.learned_pooling`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen
from attrs.validators import in_

from drkit.core.citations import SPLADE
from drkit.core.registry import Registry
from drkit.core.settings import at_least, setting
from drkit.core.spec import WORD_SCORES, ComponentSpec, Kind, NoSettings, vector_name
from drkit.errors import DrkitError, UnknownNameError

if TYPE_CHECKING:
    from torch import Tensor


@frozen
class PlainPooling:
    """One way of pooling that has no settings; summary: a line about it.

    part: its class in `drkit.encoders.state_pooling`. pool: hidden f[B,L,D], attention [B,L] (1 or True: a real token)
    -> f[B,D]. saved_as: its name in the Pooling module of sentence-transformers. weighted: attention is
    multiplied by the learned weight of each token (`TokenWeights`, which sentence-transformers calls WordWeights).
    """

    part: str
    pool: Callable[[Tensor, Tensor], Tensor]
    saved_as: str
    summary: str
    weighted: bool = False


def first_token(hidden: Tensor, _attention: Tensor) -> Tensor:
    """Return the last hidden state of the first token, [CLS]."""
    return hidden[:, 0]


def last_token(hidden: Tensor, attention: Tensor) -> Tensor:
    """Return the last hidden state of the last real token, [SEP] in most encoders; padding may be on either side."""
    import torch

    last = attention.shape[1] - 1 - attention.flip(1).to(torch.int).argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


def max_over_tokens(hidden: Tensor, attention: Tensor) -> Tensor:
    """Return the largest value of each dimension over all real tokens, special ones included."""
    return hidden.masked_fill(~attention.unsqueeze(-1).bool(), float("-inf")).max(1).values


def mean_over_tokens(hidden: Tensor, attention: Tensor) -> Tensor:
    """Return the mean over all real tokens, special ones included, as sentence-transformers does.

    With weights f[B,L] as attention (0: padding), it is the weighted mean.
    """
    real = attention.unsqueeze(-1).to(hidden.dtype)
    return (hidden * real).sum(1) / real.sum(1).clamp(min=1e-9)


# The poolings without settings: their parts, and what folders of sentence-transformers call them.
POOLINGS: Mapping[str, PlainPooling] = {
    "cls": PlainPooling("FirstToken", first_token, "cls", "The state of the first token"),
    "mean": PlainPooling("Mean", mean_over_tokens, "mean", "The mean over all tokens"),
    "weighted": PlainPooling(
        "WeightedMean", mean_over_tokens, "mean", "The mean, weighted by a learned weight of each word", weighted=True
    ),
    "max": PlainPooling("Largest", max_over_tokens, "max", "The largest value of each dimension over all tokens"),
    "last": PlainPooling("LastToken", last_token, "lasttoken", "The state of the last token"),
}


# The poolings that have neither weights nor settings.
POOLINGS_OF_STATES = tuple(name for name, pooling in POOLINGS.items() if not pooling.weighted)


# The two sections of a vector of the pooling `lexical` with the setting `dense`.
VECTOR_PARTS = (DENSE, SCORES) = ("dense", "lexical")


@frozen
class LexicalConfig:
    """Settings of `LexicalPooling`: a score for each word of the vocabulary, stored sparse (SPLADE)."""

    over_positions: str = setting("max", in_(("max", "sum")), "how the scores of a word at all positions become one")
    top_k: int = setting(0, at_least(0), "words that a text keeps, those with the largest scores; 0: all")
    dense: str = setting("", in_(("", *POOLINGS_OF_STATES)), "pooling of a vector that is kept before the scores, too")

    @property
    def provides(self) -> tuple[str, ...]:
        """Both vectors, if there are two."""
        return tuple(map(vector_name, VECTOR_PARTS)) if self.dense else ()


POOLING_PARTS = (
    *(
        ComponentSpec(
            kind=Kind.POOLING,
            name=name,
            target=f"drkit.encoders.state_pooling:{pooling.part}",
            config=NoSettings,
            summary=pooling.summary,
        )
        for name, pooling in POOLINGS.items()
    ),
    ComponentSpec(
        kind=Kind.POOLING,
        name="lexical",
        target="drkit.encoders.learned_pooling:LexicalPooling",
        config=LexicalConfig,
        summary="Scores of the vocabulary's words by the LM head, stored sparse",
        cite=SPLADE,
        receives=("heads",),
        provides=(WORD_SCORES,),
    ),
)


def built_in_pooling(name: str) -> str:
    """Return the name of a supported pooling. Raises DrkitError for any other."""
    if name not in POOLINGS:
        raise UnknownNameError("pooling", name, POOLINGS)
    return name


def is_weighted(name: str) -> bool:
    """Return whether a pooling has learned weights of tokens."""
    return name in POOLINGS and POOLINGS[name].weighted


def pooling_config(registry: Registry, name: str, settings: Mapping[str, Any]) -> Any:
    """Return the config of a pooling. Raises DrkitError for settings that it does not have or refuses."""
    spec = registry.get(Kind.POOLING, name)
    try:
        return spec.config(**settings)
    except (TypeError, ValueError) as error:
        raise DrkitError(f"pooling {name!r}: {error.args[0]}; see `drkit show pooling {name}`") from None


def between_ends(attention: Tensor) -> Tensor:
    """Return attention [B,L] without the first and last real token, [CLS] and [SEP]; texts are padded on the right."""
    inner = attention.clone()
    inner[:, 0] = inner[:, -1] = 0
    inner[:, :-1] *= attention[:, 1:]
    return inner


def check_token_weights(pooling: str, token_weights: object | None) -> None:
    """Raise DrkitError unless token weights are given exactly if the pooling needs them."""
    if is_weighted(pooling) and token_weights is None:
        raise DrkitError(
            f"the pooling {pooling!r} needs token weights: pass `token_weights`, or load a folder that has them"
        )
    if token_weights is not None and not is_weighted(pooling):
        raise DrkitError(f"the pooling {pooling!r} has no token weights; use 'weighted', or omit `token_weights`")


def static_problem(pooling: str, *, has_unit_length: bool) -> str:
    """Return why a static encoder cannot have a pooling, or an empty string; has_unit_length: of its vectors."""
    if pooling not in ("mean", "weighted"):
        return f"a static encoder has no {pooling!r} pooling; use mean or weighted"
    if pooling == "weighted" and not has_unit_length:
        return (
            "a static encoder with weighted pooling needs vectors of length 1, but the similarity is dot; use mean "
            "pooling, or a loss with cosine similarity"
        )
    return ""


def pool(hidden: Tensor, attention: Tensor, pooling: str) -> Tensor:
    """Pool hidden states f[B,L,D] under attention [B,L], or under weights of tokens, to f[B,D].

    Raises DrkitError for an unknown pooling.
    """
    return POOLINGS[built_in_pooling(pooling)].pool(hidden, attention)
