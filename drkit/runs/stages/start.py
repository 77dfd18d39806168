"""The stages of the encoder that training starts from: an existing model, or one made from scratch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from drkit.core.files import path_state
from drkit.core.types import EncoderSizes
from drkit.data.titles import JOINED
from drkit.encoders.architectures import DECLARED
from drkit.encoders.pooling import POOLINGS, is_weighted
from drkit.evaluate.names import INITIAL
from drkit.recipe.schema import Recipe
from drkit.recipe.toml import changed_settings
from drkit.runs.stage import WEIGHT_FILES, PlanBuilder, Stage, StageSpec, from_recipe
from drkit.runs.stages.texts import TOKENS, VOCABULARY, tokens_of_pretraining
from drkit.runs.work import (
    Sizes,
    Work,
)


@frozen
class PoolingPart:
    """A pooling with settings or weights: its name, settings (plain, those that are not the defaults), and seed."""

    name: str
    settings: Mapping[str, Any]
    seed: int


@frozen
class NewEncoderSettings:
    """Sizes and initialisation of an encoder made from scratch.

    positions: tokens of the longest text. token_weights: whether the pooling has learned weights of tokens, which start
    from idf. learned_pooling: the pooling, if it has settings or weights of its own.
    """

    positions: int
    token_weights: bool
    learned_pooling: PoolingPart | None
    architecture: str | None = from_recipe("encoder.architecture", absent_when=None)
    architecture_settings: Mapping[str, Any] | None = from_recipe("encoder.architecture_settings", absent_when=None)
    attention: str = from_recipe("encoder.attention", absent_when=DECLARED)
    sizes: EncoderSizes = from_recipe("encoder", converter=EncoderSizes.of)
    dropout: float = from_recipe("encoder.dropout")
    lm_head: str = from_recipe("encoder.lm_head")
    init_embeddings: str = from_recipe("encoder.init_embeddings")
    titles: str = from_recipe("encoder.titles", absent_when=JOINED)
    seed: int = from_recipe("seed")


@frozen
class ExistingEncoderSettings:
    """The path or hub id of the encoder; token_weights: whether the pooling has learned weights of tokens.

    Weights that the encoder lacks start from idf. learned_pooling: the pooling, if it is a part; an encoder that was
    saved with the same one keeps its weights.
    """

    token_weights: bool
    learned_pooling: PoolingPart | None
    pretrained: str = from_recipe("encoder.pretrained")
    attention: str = from_recipe("encoder.attention", absent_when=DECLARED)
    titles: str = from_recipe("encoder.titles", absent_when=JOINED)


def _scratch_work(stage: Stage[NewEncoderSettings], sizes: Sizes) -> Work:
    init = stage.settings.init_embeddings
    tokens = 0.0 if init == "random" else sizes.tokens
    return Work(tokens, f"tokens for {init} embeddings", disk=4.0 * sizes.encoder.weights)


ENCODER_FROM_SCRATCH = StageSpec(
    name="encoder-from-scratch",
    version=1,
    settings=NewEncoderSettings,
    run="drkit.runs.making.start:make_encoder",
    inputs={"vocabulary": "the tokenizer", "tokens": "passages, for frequencies and embeddings"},
    folders=(INITIAL,),
    prunable=WEIGHT_FILES,
    work=_scratch_work,
)
EXISTING_ENCODER = StageSpec(
    name="existing-encoder",
    version=1,
    settings=ExistingEncoderSettings,
    run="drkit.runs.making.start:start_from_encoder",
    inputs={"vocabulary": "the tokenizer", "tokens": "passages, for token weights that the encoder lacks"},
    folders=(INITIAL,),
    prunable=WEIGHT_FILES,
    work=lambda _stage, sizes: Work(disk=4.0 * sizes.encoder.weights),
)


def plan_initial(builder: PlanBuilder) -> None:
    """Add the stage of the encoder that the run starts from."""
    encoder = builder.recipe.encoder
    pooling = {"token_weights": is_weighted(encoder.pooling.use), "learned_pooling": _learned_pooling(builder.recipe)}
    if encoder.pretrained:
        builder.add(
            INITIAL,
            EXISTING_ENCODER,
            "load the encoder to start from",
            {"vocabulary": VOCABULARY, **({"tokens": TOKENS} if pooling["token_weights"] else {})},
            sources={"encoder.pretrained": path_state(encoder.pretrained)},
            extra=pooling,
        )
    else:
        builder.add(
            INITIAL,
            ENCODER_FROM_SCRATCH,
            "make the encoder from scratch",
            {"vocabulary": VOCABULARY, "tokens": tokens_of_pretraining(builder)},
            extra={"positions": max(encoder.passage_length, encoder.query_length), **pooling},
        )


def _learned_pooling(recipe: Recipe) -> PoolingPart | None:
    """Return the pooling if it has settings or weights of its own."""
    chosen = recipe.encoder.pooling
    if chosen.use in POOLINGS:
        return None
    return PoolingPart(chosen.use, changed_settings(chosen.config), recipe.seed)
