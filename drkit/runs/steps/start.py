"""Make, train or load the models that training starts from: the encoder and the generator."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from transformers import AutoModelForMaskedLM

from drkit.core.files import local_path
from drkit.core.types import BuildContext
from drkit.data.contexts import PretrainingTexts
from drkit.data.special_tokens import special_ids
from drkit.data.store import TokenStore
from drkit.data.titles import JOINED, PAIR, SEPARATED, Titles
from drkit.data.word_embeddings import log_frequencies, ppmi_svd
from drkit.encoders import BertSizes, MaskedLmEncoder, check_same_vocabulary
from drkit.encoders.architectures import STATIC, longest_text
from drkit.encoders.folder import is_lexical
from drkit.encoders.heads import seeded
from drkit.encoders.learned_pooling import LearnedPooling, read_learned_pooling
from drkit.encoders.token_weights import read_token_weights, weights_from_idf
from drkit.errors import DrkitError
from drkit.losses import MlmLoss
from drkit.maskers import UniformConfig, UniformMasker
from drkit.recipe.schema import Training
from drkit.runs.stage import StageRun
from drkit.runs.stages.start import (
    MASK_RATIO,
    EncoderSizes,
    ExistingEncoderSettings,
    ExistingGeneratorSettings,
    GeneratorSizes,
    TrainedGeneratorSettings,
)
from drkit.signals.idf import document_frequencies, idf
from drkit.train.batches import SubsetCollator, count_steps
from drkit.train.checkpoints import copy_parts, load_tokenizer, save_masked_lm
from drkit.train.pretrain import ENCODER, AutoEncoder, MaskingCollator, Term
from drkit.train.probes import held_out
from drkit.train.trainer import train_in


def make_encoder(stage: StageRun[EncoderSizes]) -> Mapping[str, Any]:
    """Write an untrained masked-LM checkpoint; returns its number of parameters.

    With `init_embeddings = "ppmi-svd"` its word embeddings are the truncated SVD of the collection's PPMI matrix. The
    LM head's bias starts from the log frequencies of words, so vectors need not encode them.
    """
    settings, tokenizer = stage.settings, load_tokenizer(str(stage.inputs["vocabulary"]))
    named = ("layers", "hidden", "heads", "intermediate", "dropout", "lm_head")
    sizes = BertSizes(max_positions=settings.positions, **{name: getattr(settings, name) for name in named})
    encoder = MaskedLmEncoder.from_scratch(
        sizes,
        tokenizer,
        model_type=settings.architecture or "bert",
        pooling=_pooling(settings),
        seed=settings.seed,
        **(settings.architecture_settings or {}),
    )
    store = TokenStore.open(stage.inputs["tokens"])
    encoder.set_lm_bias(torch.from_numpy(log_frequencies(store, vocab_size=len(tokenizer))))
    if settings.init_embeddings == "ppmi-svd":
        matrix = ppmi_svd(
            store,
            vocab_size=len(tokenizer),
            dim=settings.hidden,
            seed=settings.seed,
            std=0.1,
            folder=stage.folder,
        )
        encoder.set_word_embeddings(torch.from_numpy(matrix))
    if settings.token_weights:
        _start_token_weights(encoder, tokenizer, stage.inputs)
    if settings.learned_pooling:
        encoder = _with_learned_pooling(encoder, tokenizer, stage)
    _read_titles(encoder, tokenizer, settings.titles)
    save_masked_lm(encoder, tokenizer, stage.folder)
    return {"parameters": sum(p.numel() for p in encoder.backbone.parameters())}


def load_encoder(stage: StageRun[ExistingEncoderSettings]) -> Mapping[str, Any]:
    """Write the existing encoder as a masked-LM checkpoint, with its decoders, losses and generator if it has them."""
    source = stage.settings.pretrained
    tokenizer = load_tokenizer(str(stage.inputs["vocabulary"]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*has no language-model head")  # pre-training says what it does then
        encoder = MaskedLmEncoder.from_pretrained(source, pooling=_pooling(stage.settings))
    if stage.settings.token_weights and read_token_weights(local_path(source)) is None:
        _start_token_weights(encoder, tokenizer, stage.inputs)
    if stage.settings.learned_pooling:
        encoder = _with_learned_pooling(encoder, tokenizer, stage, source=local_path(source))
    _read_titles(encoder, tokenizer, stage.settings.titles)
    save_masked_lm(encoder, tokenizer, stage.folder)
    copy_parts(Path(source), stage.folder)
    return {"parameters": sum(p.numel() for p in encoder.backbone.parameters())}


def _pooling(settings: EncoderSizes | ExistingEncoderSettings) -> str:
    """Return a pooling with or without token weights; which one it is exactly does not affect a checkpoint."""
    return "weighted" if settings.token_weights else "mean"


def _read_titles(encoder: MaskedLmEncoder, tokenizer: Any, titles: str) -> None:
    """Set how a model reads titles. Raises DrkitError if it cannot read them so."""
    if titles in (SEPARATED, PAIR) and encoder.config.model_type == STATIC:
        raise DrkitError(
            f"a static encoder reads words in no order, and no separator between them: --set encoder.titles={JOINED} "
            f"@ encoder.titles"
        )
    Titles.of(titles, tokenizer, encoder.config).save(encoder.config)


def _with_learned_pooling(
    encoder: MaskedLmEncoder,
    tokenizer: Any,
    stage: StageRun[EncoderSizes] | StageRun[ExistingEncoderSettings],
    source: Path | None = None,
) -> MaskedLmEncoder:
    """Return the encoder with the pooling of its settings: that of `source` if it was saved with the same, else new.

    An LM head that is to score words from now on gets a centered bias.
    """
    part = stage.settings.learned_pooling
    assert part is not None
    saved = read_learned_pooling(source, stage.registry) if source else None
    pooling = saved
    if pooling is None or (pooling.name, pooling.settings) != (part.name, part.settings):
        backbone = encoder.info(tokenizer)
        pooling = LearnedPooling(part.name, part.settings, backbone, seed=part.seed, registry=stage.registry)
    scored_words = (saved and saved.is_sparse) or (source and is_lexical(source))
    if pooling.is_sparse and not scored_words:
        encoder.center_lm_bias()
    return MaskedLmEncoder(encoder.model, pooling=pooling)


def _start_token_weights(encoder: MaskedLmEncoder, tokenizer: Any, inputs: Mapping[str, Path]) -> None:
    """Set the token weights to the inverse document frequencies of the passages."""
    store = TokenStore.open(inputs["tokens"])
    frequencies = document_frequencies(store, vocab_size=encoder.config.vocab_size)
    weights = weights_from_idf(idf(frequencies, texts=len(store)), special_ids(tokenizer))
    encoder.set_token_weights(weights)


def load_generator(stage: StageRun[ExistingGeneratorSettings]) -> Mapping[str, Any]:
    """Write a masked-LM checkpoint with the run's vocabulary; returns its number of parameters."""
    settings, tokenizer = stage.settings, load_tokenizer(str(stage.inputs["vocabulary"]))
    if settings.sizes is not None:
        generator = _from_scratch(settings.sizes, tokenizer, settings.seed)
    else:
        generator = MaskedLmEncoder.from_pretrained(settings.model)
        generator = _randomised(generator, settings.seed) if settings.random else generator
        backbone = attrs.evolve(generator.info(tokenizer), vocab=len(tokenizer))
        check_same_vocabulary(generator, BuildContext(backbone=backbone, tokenizer=tokenizer, seed=settings.seed))
        longest = longest_text(generator.config)
        if longest < settings.passage_length:
            raise DrkitError(
                f"the generator {settings.model!r} reads at most {longest} tokens, but passages have up to "
                f"{settings.passage_length}: --set encoder.passage_length={longest}, or use another generator"
            )
    _read_titles(generator, tokenizer, settings.titles)
    save_masked_lm(generator, tokenizer, stage.folder)
    return {"parameters": sum(p.numel() for p in generator.backbone.parameters())}


def train_generator(stage: StageRun[TrainedGeneratorSettings]) -> Mapping[str, Any]:
    """Train a small masked LM on the passages and write its checkpoint; returns parameters, steps and loss."""
    settings, tokenizer = stage.settings, load_tokenizer(str(stage.inputs["vocabulary"]))
    generator = _from_scratch(settings.sizes, tokenizer, settings.seed)
    _read_titles(generator, tokenizer, settings.titles)
    backbone = attrs.evolve(generator.info(tokenizer), vocab=len(tokenizer))
    context = BuildContext(backbone=backbone, tokenizer=tokenizer, seed=settings.seed)
    store = TokenStore.open(stage.inputs["tokens"])
    generator.set_lm_bias(torch.from_numpy(log_frequencies(store, vocab_size=len(tokenizer))))
    mlm: Any = MlmLoss()
    module = AutoEncoder(
        generator,
        {},
        {"mlm": Term(mlm, receives=("token_states",), on=ENCODER)},
    )
    collate = MaskingCollator(
        texts=PretrainingTexts(store),
        masker=UniformMasker(UniformConfig(ratio=MASK_RATIO), context),
        seed=settings.seed,
    )
    trained, _ = held_out(len(store), settings.held_out, seed=settings.seed)
    steps = count_steps(settings.training, len(trained), compares=False)
    result = train_in(
        stage.folder,
        module,
        SubsetCollator(collate, trained),
        training=schedule(settings.training, settings.steps, steps),
        lengths=store.lengths[trained],
        seed=settings.seed,
        progress=stage.progress,
    )
    save_masked_lm(generator, tokenizer, stage.folder)
    parameters = sum(p.numel() for p in generator.backbone.parameters())
    return {"parameters": parameters, **result.metrics}


def _from_scratch(sizes: GeneratorSizes, tokenizer: Any, seed: int) -> MaskedLmEncoder:
    named = attrs.asdict(sizes)
    bert_sizes = BertSizes(max_positions=named.pop("positions"), dropout=0.0, **named)
    return MaskedLmEncoder.from_scratch(bert_sizes, tokenizer, seed=seed + 1)  # other weights than the encoder


def _randomised(like: MaskedLmEncoder, seed: int) -> MaskedLmEncoder:
    """Return a masked LM of the same architecture and sizes with random weights."""
    with seeded(seed, "generator"):
        return MaskedLmEncoder(AutoModelForMaskedLM.from_config(like.config))


def schedule(pretrain: Training, steps: int, pretraining: int) -> Training:
    """Return pre-training's settings for the generator's steps: a third of `pretraining`'s if `steps` is 0.

    >>> schedule(Training(), 0, 300).max_steps
    100
    """
    max_steps = steps or math.ceil(pretraining / 3)
    return attrs.evolve(pretrain, max_steps=max_steps, gradient_cache_chunk=0)
