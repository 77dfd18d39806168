"""Stages that provide the models training starts from: the encoder, and the generator that fills masked positions.

Each is an existing model or one made from scratch. ELECTRA's generators have a quarter to half of the encoder's width.
The small scale follows this: one layer, trained by plain masked language modelling on the texts of pre-training.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from drkit.core.files import LOG, TRAINING, local_path
from drkit.errors import DrkitError
from drkit.recipe.schema import Training
from drkit.runs.stage import WEIGHTS, Stage, StageRun, StageSpec, from_recipe
from drkit.runs.work import ModelSize, Sizes, Work, batch_size, count_examples, target_work, training_work

if TYPE_CHECKING:
    from drkit.encoders import MaskedLmEncoder


@frozen
class EncoderSizes:
    """Sizes and initialisation of an encoder made from scratch.

    positions: tokens of the longest text. token_weights: whether the pooling has learned weights, which start from idf.
    """

    positions: int
    token_weights: bool
    layers: int = from_recipe("encoder.layers")
    hidden: int = from_recipe("encoder.hidden")
    heads: int = from_recipe("encoder.heads")
    intermediate: int = from_recipe("encoder.intermediate")
    dropout: float = from_recipe("encoder.dropout")
    lm_head: str = from_recipe("encoder.lm_head")
    init_embeddings: str = from_recipe("encoder.init_embeddings")
    seed: int = from_recipe("seed")


@frozen
class ExistingEncoderSettings:
    """The path or hub id of the encoder; token_weights: whether the pooling has learned weights.

    Weights that the encoder lacks start from idf.
    """

    token_weights: bool
    pretrained: str = from_recipe("encoder.pretrained")


def make_encoder(stage: StageRun[EncoderSizes]) -> Mapping[str, Any]:
    """Write an untrained masked-LM checkpoint; returns its number of parameters.

    With `init_embeddings = "ppmi-svd"` its word embeddings are the truncated SVD of the collection's PPMI matrix. The
    LM head's bias starts from the log frequencies of words, so vectors need not encode them.
    """
    import torch

    from drkit.data.ppmi import log_frequencies, ppmi_svd
    from drkit.data.repeats import unmarked
    from drkit.data.store import TokenStore
    from drkit.encoders import BertSizes, MaskedLmEncoder
    from drkit.train.checkpoints import load_tokenizer, save_masked_lm

    settings, tokenizer = stage.settings, load_tokenizer(str(stage.inputs["vocabulary"]))
    named = ("layers", "hidden", "heads", "intermediate", "dropout", "lm_head")
    sizes = BertSizes(max_positions=settings.positions, **{name: getattr(settings, name) for name in named})
    encoder = MaskedLmEncoder.from_scratch(sizes, tokenizer, pooling=_pooling(settings), seed=settings.seed)
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
            same_as=unmarked(tokenizer),
        )
        encoder.set_word_embeddings(torch.from_numpy(matrix))
    if settings.token_weights:
        _start_token_weights(encoder, tokenizer, stage.inputs)
    save_masked_lm(encoder, tokenizer, stage.folder)
    return {"parameters": sum(p.numel() for p in encoder.backbone.parameters())}


def load_encoder(stage: StageRun[ExistingEncoderSettings]) -> Mapping[str, Any]:
    """Write the existing encoder as a masked-LM checkpoint, with its decoder and generator if it has them."""
    from drkit.encoders import MaskedLmEncoder
    from drkit.encoders.token_weights import read_token_weights
    from drkit.train.checkpoints import copy_parts, load_tokenizer, save_masked_lm

    source = stage.settings.pretrained
    tokenizer = load_tokenizer(str(stage.inputs["vocabulary"]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*has no language-model head")  # pre-training says what it does then
        encoder = MaskedLmEncoder.from_pretrained(source, pooling=_pooling(stage.settings))
    if stage.settings.token_weights and read_token_weights(local_path(source)) is None:
        _start_token_weights(encoder, tokenizer, stage.inputs)
    save_masked_lm(encoder, tokenizer, stage.folder)
    copy_parts(Path(source), stage.folder)
    return {"parameters": sum(p.numel() for p in encoder.backbone.parameters())}


def _pooling(settings: EncoderSizes | ExistingEncoderSettings) -> str:
    """Return a pooling with or without token weights; which one it is exactly does not affect a checkpoint."""
    return "weighted" if settings.token_weights else "mean"


def _start_token_weights(encoder: MaskedLmEncoder, tokenizer: Any, inputs: Mapping[str, Path]) -> None:
    """Set the token weights to the inverse document frequencies of the passages; repeated words start from less."""
    import numpy as np

    from drkit.data.repeats import unmarked
    from drkit.data.store import TokenStore
    from drkit.encoders.token_weights import weights_from_idf
    from drkit.signals.idf import document_frequencies, idf

    store = TokenStore.open(inputs["tokens"])
    frequencies = document_frequencies(store, vocab_size=encoder.config.vocab_size)
    weights = weights_from_idf(idf(frequencies, texts=len(store)), tokenizer.all_special_ids)
    plain = unmarked(tokenizer)
    marked = np.flatnonzero(plain != np.arange(len(plain)))
    weights[marked] = _REPEATED * weights[plain[marked]]
    encoder.set_token_weights(weights)


# 1 + 0.4 (n - 1) is near the root of n for words that occur up to five times.
_REPEATED = 0.4

# The folder of the encoder that a run starts from.
INITIAL = "initial"
# Seconds for each token whose neighbours are counted, of these for each dimension, and for each number of the vectors.
_NEIGHBOURS, _MULTIPLIED, _FACTORED = 1.2e-6, 5e-9, 1.6e-6
# Bytes for each token while pairs are counted, and at most.
_PAIR_BYTES, _MOST_BYTES = 120, 256 * 2**20


def _scratch_work(stage: Stage[EncoderSizes], sizes: Sizes) -> Work:
    model = sizes.encoder
    if stage.settings.init_embeddings == "random":
        return Work(disk=4.0 * model.weights)
    tokens = sizes.passage_tokens(stage.settings.positions)
    return Work(
        parallel=(_NEIGHBOURS + _MULTIPLIED * model.hidden) * tokens + _FACTORED * model.table,
        memory=max(min(_PAIR_BYTES * tokens, _MOST_BYTES), 8.0 * model.table),
        disk=4.0 * model.weights,
    )


def _existing_work(_stage: Stage[ExistingEncoderSettings], sizes: Sizes) -> Work:
    return Work(memory=4.0 * sizes.encoder.weights, disk=4.0 * sizes.encoder.weights)


ENCODER_FROM_SCRATCH = StageSpec(
    name="encoder-from-scratch",
    version=1,
    settings=EncoderSizes,
    run=make_encoder,
    inputs={"vocabulary": "the tokenizer", "tokens": "passages, for frequencies and embeddings"},
    folders=(INITIAL,),
    prunable=WEIGHTS,
    work=_scratch_work,
)
EXISTING_ENCODER = StageSpec(
    name="existing-encoder",
    version=1,
    settings=ExistingEncoderSettings,
    run=load_encoder,
    inputs={"vocabulary": "the tokenizer", "tokens": "passages, for token weights that the encoder lacks"},
    folders=(INITIAL,),
    prunable=WEIGHTS,
    work=_existing_work,
)


# BERT's rate: the generator should be a good language model, not a bottleneck.
MASK_RATIO = 0.15


@frozen
class GeneratorSizes:
    """Sizes of a generator made from scratch; positions: tokens of the longest text."""

    positions: int
    layers: int
    hidden: int
    heads: int
    intermediate: int


@frozen
class ExistingGeneratorSettings:
    """A generator that is not trained first: the weights of `model`, or random weights of its sizes or of `sizes`."""

    model: str
    random: bool
    sizes: GeneratorSizes | None
    passage_length: int = from_recipe("encoder.passage_length")
    seed: int = from_recipe("seed")


@frozen
class TrainedGeneratorSettings:
    """A small masked LM trained on the texts; steps: 0 means a third of the steps of pre-training.

    held_out: number of texts that are held out, the same as in pre-training.
    """

    sizes: GeneratorSizes
    steps: int
    training: Training = from_recipe("pretrain")
    held_out: int = from_recipe("pretrain.probe.texts")
    seed: int = from_recipe("seed")


def load_generator(stage: StageRun[ExistingGeneratorSettings]) -> Mapping[str, Any]:
    """Write a masked-LM checkpoint with the run's vocabulary; returns its number of parameters."""
    from drkit.core.types import BuildContext
    from drkit.encoders import MaskedLmEncoder, check_same_vocabulary
    from drkit.encoders.architectures import longest_text
    from drkit.train.checkpoints import load_tokenizer, save_masked_lm

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
    save_masked_lm(generator, tokenizer, stage.folder)
    return {"parameters": sum(p.numel() for p in generator.backbone.parameters())}


def train_generator(stage: StageRun[TrainedGeneratorSettings]) -> Mapping[str, Any]:
    """Train a small masked LM on the passages and write its checkpoint; returns parameters, steps and loss."""
    import torch

    from drkit.core import processes
    from drkit.core.types import BuildContext
    from drkit.data.ppmi import log_frequencies
    from drkit.data.store import TokenStore
    from drkit.decoders import NoDecoder
    from drkit.losses import MlmLoss
    from drkit.maskers import UniformConfig, UniformMasker
    from drkit.train.batches import SubsetCollator, count_batches
    from drkit.train.checkpoints import load_tokenizer, save_masked_lm
    from drkit.train.pretrain import AutoEncoder, MaskingCollator, Term
    from drkit.train.probes import held_out
    from drkit.train.trainer import train_in

    settings, tokenizer = stage.settings, load_tokenizer(str(stage.inputs["vocabulary"]))
    generator = _from_scratch(settings.sizes, tokenizer, settings.seed)
    backbone = attrs.evolve(generator.info(tokenizer), vocab=len(tokenizer))
    context = BuildContext(backbone=backbone, tokenizer=tokenizer, seed=settings.seed)
    store = TokenStore.open(stage.inputs["tokens"])
    generator.set_lm_bias(torch.from_numpy(log_frequencies(store, vocab_size=len(tokenizer))))
    mlm: Any = MlmLoss()
    module = AutoEncoder(
        generator,
        NoDecoder(),
        {"mlm": Term(mlm, receives=("token_states",), on="encoder")},
    )
    collate = MaskingCollator(
        store=store,
        masker=UniformMasker(UniformConfig(encoder_ratio=MASK_RATIO), context),
        rows=module.decoder.rows,
        seed=settings.seed,
    )
    trained, _ = held_out(len(store), settings.held_out, seed=settings.seed)
    batches = count_batches(settings.training, len(trained), processes=processes.count())
    result = train_in(
        stage.folder,
        module,
        SubsetCollator(collate, trained),
        training=schedule(settings.training, settings.steps, batches),
        lengths=store.lengths[trained],
        seed=settings.seed,
        progress=stage.progress,
    )
    save_masked_lm(generator, tokenizer, stage.folder)
    parameters = sum(p.numel() for p in generator.backbone.parameters())
    return {"parameters": parameters, **result.metrics}


def _from_scratch(sizes: GeneratorSizes, tokenizer: Any, seed: int) -> MaskedLmEncoder:
    from drkit.encoders import BertSizes, MaskedLmEncoder

    named = attrs.asdict(sizes)
    bert_sizes = BertSizes(max_positions=named.pop("positions"), dropout=0.0, **named)
    return MaskedLmEncoder.from_scratch(bert_sizes, tokenizer, seed=seed + 1)  # other weights than the encoder


def _randomised(like: MaskedLmEncoder, seed: int) -> MaskedLmEncoder:
    """Return a masked LM of the same architecture and sizes with random weights."""
    from transformers import AutoModelForMaskedLM

    from drkit.encoders import MaskedLmEncoder
    from drkit.encoders.heads import seeded

    with seeded(seed, "generator"):
        return MaskedLmEncoder(AutoModelForMaskedLM.from_config(like.config))


def schedule(pretrain: Training, steps: int, batches: int) -> Training:
    """Return pre-training's settings for the generator's steps: a third of pre-training's if `steps` is 0.

    >>> schedule(Training(), 0, 300).max_steps
    100
    """
    max_steps = steps or math.ceil(batches / pretrain.gradient_accumulation_steps / 3)
    return attrs.evolve(pretrain, max_steps=max_steps, gradient_cache_chunk=0)


def _generator_work(stage: Stage[TrainedGeneratorSettings], sizes: Sizes) -> Work:
    settings, made = stage.settings, stage.settings.sizes
    model = ModelSize(made.hidden, made.layers, made.heads, made.intermediate, sizes.encoder.vocabulary, dropout=0.0)
    pretraining = count_examples(settings.training, sizes.passages)
    examples = settings.steps * batch_size(settings.training) or pretraining / 3
    tokens = sizes.collection.passage_tokens(made.positions)
    at_once = settings.training.per_device_train_batch_size * tokens * MASK_RATIO
    trained = training_work(model, settings.training, examples=examples, texts=1, tokens=tokens, length=made.positions)
    return trained + target_work(model, examples * tokens * MASK_RATIO, at_once)


EXISTING_GENERATOR = StageSpec(
    name="existing-generator",
    version=1,
    settings=ExistingGeneratorSettings,
    run=load_generator,
    inputs={"vocabulary": "the run's tokenizer, which a model must share"},
    folders=("generator",),
)
TRAINED_GENERATOR = StageSpec(
    name="trained-generator",
    version=2,
    settings=TrainedGeneratorSettings,
    run=train_generator,
    inputs={"vocabulary": "the tokenizer", "tokens": "the passages' tokens"},
    records=(LOG, TRAINING),
    resumable=True,
    joint=True,
    folders=("generator",),
    work=_generator_work,
)
