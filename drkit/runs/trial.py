"""Try every part of a recipe once on a toy batch, before a run starts.

Within seconds, one line names a broken part, its package and version, what was expected and what it returned. Without
the trial, the part would fail with a traceback, after the stages before it. The toy encoder has as many layers and
heads as the recipe's; widths are tiny. Texts, queries and values of columns are the first of a collection in files,
which a part that looks texts up may know; otherwise they are made up. The trial changes neither the run nor global
random states.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import attrs
import numpy as np
import torch
from torch import Tensor, nn

from drkit.batching.drawing import checked_batches
from drkit.core.draws import Draws
from drkit.core.files import SCRATCH, local_path
from drkit.core.protocols import Collection, CountsItems, ReplacingMasker
from drkit.core.registry import Registry
from drkit.core.schedules import is_scheduled, settings_at
from drkit.core.spec import VECTOR_VALUES, Choice, ComponentSpec, Kind, is_stage_output
from drkit.core.types import BuildContext, MaskedView, TokenBatch
from drkit.data.arrays import SignalValues, write_signal
from drkit.data.collection import FileCollection
from drkit.data.column_sources import FileConfig, is_computed
from drkit.data.contexts import batch_signals
from drkit.data.queries import checked_queries
from drkit.data.store import StoredTexts, TokenStore, tokenise
from drkit.data.values import PAIR, read_values
from drkit.decoders.layers import layers_read, visibility_rows
from drkit.encoders.architectures import attention_keys
from drkit.encoders.heads import seeded
from drkit.encoders.learned_pooling import LearnedPooling
from drkit.encoders.masked_lm import MaskedLmEncoder, read_config
from drkit.encoders.pooling import POOLINGS
from drkit.errors import DrkitError, MissingExtraError, ProblemsError
from drkit.losses.specs import LONGEST_VECTOR
from drkit.recipe.encoder_settings import EncoderSettings
from drkit.recipe.lora import choose_targets, lora_trainings
from drkit.recipe.parts import PartInUse, query_parts, received_columns, required_signals
from drkit.recipe.schema import ENCODER_SIDE, Pretrain, Recipe
from drkit.recipe.toml import changed_settings
from drkit.runs.attribution import (
    build_part,
    describe_error,
    require_methods,
    target_of,
    trying,
)
from drkit.runs.making.pretrain import (
    auto_encoder,
    build_maskers,
    masking_collator,
    signal_sizes,
    vocabulary_signals,
)
from drkit.runs.stages.columns import column_scope, holds_vectors
from drkit.runs.work import local_config
from drkit.search.index import check_kind
from drkit.testing import toys
from drkit.testing.batches import toy_batch_rows
from drkit.testing.contexts import require_contexts, toy_pretraining_texts
from drkit.testing.data import check_values, check_vector_values, written_signal
from drkit.testing.decoders import (
    check_counts,
    check_declarations,
    check_decoder_gradients,
    check_outputs,
    check_saving,
    require_outputs,
)
from drkit.testing.losses import check_loss_gradients, check_step_output, learned_tensors
from drkit.testing.maskers import check_view, require_view
from drkit.testing.miners import check_kept, check_negatives, toy_candidates
from drkit.testing.specs import require
from drkit.train.lora import linear_names
from drkit.train.pretrain import REPLACER, AutoEncoder, MaskingCollator, Term, trains_replacer

LONGEST_TEXT = 40
HEAD_WIDTH, _QUERIES, _DEPTH = 8, 5, 5
# Passages among which texts of so many words are looked for; values of a column.
_LOOKED_AT, _WORDS, _VALUES = 100, 5, 16
# Assumed for a hub id, because its configuration is not downloaded for a trial.
UNKNOWN_LAYERS, UNKNOWN_HEADS = 12, 12


def try_parts(recipe: Recipe, registry: Registry, collection: Collection | None = None) -> None:
    """Build every part of a recipe but its collection, and run it once on a toy batch, forward and backward.

    collection: that of the recipe, whose first texts the parts are tried on; None: toy texts. For a miner with a
    setting that names a local file or model, only the target is imported. Schedules are tried at both ends. Raises a
    one-line DrkitError for the first broken part, or an index that faiss cannot build.
    """
    examples = first_examples(collection)
    try:
        _try_parts(recipe, registry, examples)
    except DrkitError as error:
        if examples == toys.toy_examples() or isinstance(error, (MissingExtraError, ProblemsError)):
            raise
        raise DrkitError(f"{error} (tried on {examples.source})") from error


def first_examples(collection: Collection | None) -> toys.Examples:
    """Return the first texts and queries of a collection in files; toy texts of any other, or if there are too few."""
    made = toys.toy_examples()
    if not isinstance(collection, FileCollection):  # others may read everything first, or download
        return made
    passages = list(islice(collection.passages(), _LOOKED_AT))
    texts = tuple(one.content for one in passages if len(one.content.split()) >= _WORDS)[: len(made.texts)]
    if len(texts) < len(made.texts) or _is_unknown(texts):
        return made
    split = next(iter(collection.splits()), None)
    queries = tuple(islice(collection.queries(split), _QUERIES)) if split else ()
    return toys.Examples(
        texts=texts,
        queries=queries or made.queries,
        passages=tuple(passages[:3]),
        source=f"the first texts{' and queries' * bool(queries)} of {collection.name}",
    )


def _is_unknown(texts: Sequence[str]) -> bool:
    """Return whether a toy vocabulary made for texts lacks most of their words, as for thousands of signs."""
    ids = toys.tokenizer_for(texts)(list(texts), add_special_tokens=False)["input_ids"]
    return any(2 * row.count(toys.UNK) > len(row[:LONGEST_TEXT]) for row in ids)


def _try_parts(recipe: Recipe, registry: Registry, examples: toys.Examples) -> None:
    _check_torch()
    if is_scheduled(recipe):
        for progress in (0.0, 1.0):
            _try_parts(settings_at(recipe, progress), registry, examples)
        return
    registry = AttributedRegistry(registry, registry.failed)
    if (length := _vector_length(recipe.encoder)) < LONGEST_VECTOR:
        check_kind(recipe.evaluation.index, length)
    with preserve_random_states(recipe.seed):
        context = _context(recipe.encoder, recipe.seed, registry)
        _try_poolings(recipe, registry)
        if recipe.pretrain:
            _try_pretraining(recipe, recipe.pretrain, registry, context, examples)
        _try_lora(recipe, registry)
        values = _column_values(recipe, registry, examples)
        for part, inputs, sizes in _comparing_losses(recipe, registry, values):
            sized = attrs.evolve(context, vector_sizes=sizes)
            loss = build_part(part, sized)
            _try_loss(part, loss, inputs, learned_tensors(inputs))
            _try_saving(part, loss, build_part(part, attrs.evolve(sized, seed=recipe.seed + 1)))
        for part in _batches(recipe, registry):
            _try_batches(part, context)
        for stage in (recipe.stages or {}).values():
            target_of(PartInUse.of(Kind.STAGE, stage, registry))
        for part in query_parts(recipe, registry):
            _try_queries(part, context, examples)
        for miners in _chains(recipe):
            _try_miners([PartInUse.of(Kind.MINER, miner, registry) for miner in miners], context)


def _check_torch() -> None:
    """Raise DrkitError if the program set torch up in a way that no part is written for."""
    dtype, device = (torch.get_default_dtype(), torch.float32), (torch.get_default_device(), torch.device("cpu"))
    for name, (found, usual) in {"dtype": dtype, "device": device}.items():
        if found != usual:
            raise DrkitError(
                f"torch's default {name} is {found}, which was set before the run, but parts expect {usual}: set it "
                f"back by torch.set_default_{name}"
            )


@contextmanager
def preserve_random_states(seed: int) -> Iterator[None]:
    """Run a block with a seed of its own, and restore the random states of torch, numpy and Python afterwards."""
    python, numbers = random.getstate(), np.random.get_state()
    try:
        with seeded(seed, "trial"), torch.enable_grad():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)


def _context(sizes: EncoderSettings, seed: int, registry: Registry) -> BuildContext:
    """Return the context of the parts: toy encoder sizes, tokenizer, retriever, re-ranker and generator."""
    encoder = _encoder(sizes, registry)
    tokenizer = toys.toy_tokenizer()
    return attrs.evolve(
        toys.toy_context(seed),
        backbone=encoder.info(tokenizer),
        tokenizer=tokenizer,
        generator=toys.toy_encoder(seed),
        signals={},
        registry=registry,
    )


def _encoder(sizes: EncoderSettings, registry: Registry) -> MaskedLmEncoder:
    layers, heads = sizes.layers, sizes.heads
    if sizes.pretrained:
        config = read_config(sizes.pretrained) if local_path(sizes.pretrained).is_dir() else None
        layers = getattr(config, "num_hidden_layers", UNKNOWN_LAYERS)
        heads = getattr(config, "num_attention_heads", UNKNOWN_HEADS)
    shape: dict[str, Any] = {"layers": layers, "heads": heads, "hidden": HEAD_WIDTH * heads}
    if sizes.architecture and not sizes.pretrained:
        more = {"model_type": sizes.architecture, **(sizes.architecture_settings or {})}
        more |= attention_keys(more, sizes.attention)
        shape |= {"model_type": more.pop("model_type"), "more": more}
    is_plain = sizes.pooling.use in POOLINGS
    pooling = sizes.pooling.use if is_plain else "cls"
    try:
        encoder = toys.toy_encoder(pooling=pooling, **shape)
    except Exception as error:  # transformers refuses settings in any way
        raise DrkitError(f"cannot make an encoder from scratch: {describe_error(error)} @ encoder") from error
    if is_plain:
        return encoder
    backbone = encoder.info(toys.toy_tokenizer())
    settings = changed_settings(sizes.pooling.config)
    learned, other = (
        LearnedPooling(sizes.pooling.use, settings, backbone, seed=seed, registry=registry) for seed in (42, 43)
    )
    part = PartInUse.of(Kind.POOLING, sizes.pooling, registry)
    _try_saving(part, learned.part, other.part)
    made = MaskedLmEncoder(encoder.model, pooling=learned)
    with trying(part, "called with hidden states and attention"):
        tokens = toys.toy_tokens()
        found = tuple(made.vectors(tokens.ids, tokens.attention).shape)
        expected = (len(tokens.ids), learned.dimension)
        require(found == expected, f"{part.full_title}: vectors of shape {found}, expected {expected}")
    return made


def _try_poolings(recipe: Recipe, registry: Registry) -> None:
    """Build the poolings that trainings have of their own, and run them once."""
    for pooling in recipe.poolings.values():
        if pooling != recipe.encoder.pooling:
            _encoder(attrs.evolve(recipe.encoder, pooling=pooling), registry)


def _try_lora(recipe: Recipe, registry: Registry) -> None:
    """Check the targets of LoRA in an encoder from scratch, whose layers the plan may not know."""
    for setting, training, origin in lora_trainings(recipe):
        if training.lora and origin is None:
            names = linear_names(_encoder(recipe.encoder, registry).backbone)
            try:
                choose_targets(names, training.lora)
            except DrkitError as error:
                raise DrkitError(f"{error} @ {setting}") from None


# Pre-training


class AttributedRegistry(Registry):
    """The parts of a registry; an error in one that is built names the part in one line."""

    def make(self, spec: ComponentSpec, settings: Any, context: BuildContext | None) -> Any:
        """Build a part; see `build_part`. Raises a one-line DrkitError for a decoder that is not a module."""
        part = PartInUse(spec, settings)
        built = build_part(part, context)
        if spec.kind is Kind.DECODER and not isinstance(built, nn.Module):
            raise DrkitError(f"{part.full_title}: expected an nn.Module, got {type(built).__name__}")
        return built


def _try_pretraining(
    recipe: Recipe, settings: Pretrain, registry: Registry, context: BuildContext, examples: toys.Examples
) -> None:
    """Run the signals, the maskers, the contexts, the decoders and the losses on one toy batch, as in a run."""
    if examples.texts != toys.toy_examples().texts:
        context = attrs.evolve(context, tokenizer=toys.tokenizer_for(examples.texts))
    with TemporaryDirectory(prefix=SCRATCH) as folder:
        stored = _stored_texts(context, examples.texts, Path(folder))
        signals = _signals(settings, registry, stored, context, Path(folder))
        encoder = _encoder(attrs.evolve(recipe.encoder, pooling=recipe.pretraining_pooling), registry)
        sizes = {**encoder.vector_sizes, **signal_sizes(signals)}
        context = attrs.evolve(context, signals=vocabulary_signals(signals), vector_sizes=sizes)
        maskers = build_maskers(settings, registry, context)
        module = auto_encoder(settings, registry, encoder, context, maskers).train()
        other = auto_encoder(
            settings, registry, module.encoder, attrs.evolve(context, seed=recipe.seed + 1), maskers
        ).train()
        decoders = {
            name: PartInUse.of(Kind.DECODER, task.decoder, registry) for name, task in settings.decoders.items()
        }
        texts = toy_pretraining_texts(stored.store, batch_signals(signals), Path(folder))
        tokens = texts.batch(np.arange(len(stored)))
        for name, part in decoders.items():
            decoder: Any = module.decoders[name]
            with trying(part, "while reading its rows and layers"):
                check_declarations(decoder, part.full_title, tokens.ids.shape[1])
                module.encoder.encode(tokens.ids, tokens.attention, layers_read(decoder))
        _try_maskers(settings, registry, maskers, module, tokens)
        collate = masking_collator(settings, registry, module, context, maskers, texts)
        _try_contexts(settings, registry, collate, tokens)
        tensors = collate([(0, index) for index in range(len(stored))])
        views = _filled_views(settings, registry, maskers, module, tensors, Path(folder))
        for name, part in decoders.items():
            _try_decoder(part, module, name, views, tensors)
            _try_saving(part, module.decoders[name], other.decoders[name])
        for name, (_, term) in settings.losses().items():
            part = PartInUse.of(Kind.LOSS, term, registry)
            _try_term(part, module.terms[name], module, views, tensors)
            _try_saving(part, module.terms[name].loss, other.terms[name].loss)


def _try_maskers(
    settings: Pretrain, registry: Registry, maskers: Mapping[str, Any], module: AutoEncoder, tokens: TokenBatch
) -> None:
    """Check the view of each side, with what is hidden from the encoder if the side hides it, too."""
    views, decoders = dict[str, MaskedView](), cast("Mapping[str, Any]", module.decoders)
    for side, masker in maskers.items():
        task: Any = settings.encoder if side == ENCODER_SIDE else settings.decoders[side]
        part = PartInUse.of(Kind.MASKER, task.masker, registry)
        title, draws = part.full_title, Draws(0, 0, tokens.keys.numpy())
        rows = 0 if side == ENCODER_SIDE else visibility_rows(decoders[side], tokens.ids.shape[1])
        nested = views[ENCODER_SIDE] if side != ENCODER_SIDE and task.nested else None
        with trying(part, "called with (tokens, rng, rows=.., nested=..)"):
            require(callable(masker), f"{title}: {type(masker).__name__} is not callable")
            views[side] = require_view(masker(tokens, draws, rows=rows, nested=nested), title)
            check_view(views[side], tokens, rows, part.spec.provides_of(part.config), title)


def _filled_views(
    settings: Pretrain,
    registry: Registry,
    maskers: Mapping[str, Any],
    module: AutoEncoder,
    tensors: Mapping[str, Tensor],
    folder: Path,
) -> Mapping[str, MaskedView]:
    """Return the views with masked positions filled, and check that what fills them can be trained and saved."""
    side = next((side for side, masker in maskers.items() if isinstance(masker, ReplacingMasker)), ENCODER_SIDE)
    task: Any = settings.encoder if side == ENCODER_SIDE else settings.decoders[side]
    part = PartInUse.of(Kind.MASKER, task.masker, registry)
    with trying(part, "while filling masked positions"):
        views, own_loss = module.filled_views(tensors)
        learns = trains_replacer(module.replacer)
        require(
            own_loss is None or learns,
            f"{part.full_title}: its replacer has a loss of its own, so it must be a LearningReplacer: `learns`, "
            f"save(folder) and load(folder)",
        )
    if learns:
        with trying(part, "while its replacer was saved and loaded, as for a checkpoint"):
            (folder / REPLACER).mkdir()
            module.replacer.save(folder / REPLACER)
            module.replacer.load(folder / REPLACER)
    return views


def _try_contexts(settings: Pretrain, registry: Registry, collate: MaskingCollator, tokens: TokenBatch) -> None:
    """Check the other texts that a decoder rebuilds, and the partners of the encoder's."""
    contexts: list[tuple[Choice, Any]]
    contexts = [(settings.decoders[name].context, text.context) for name, text in collate.decoders.items()]
    contexts += [(settings.encoder.context, collate.partner)] if collate.partner else []
    for choice, context in contexts:
        part = PartInUse.of(Kind.CONTEXT, choice, registry)
        with trying(part, "called with (tokens, texts, seed=.., epoch=..)"):
            require_contexts(context(tokens, collate.texts, seed=0, epoch=0), tokens, part.full_title)


def _stored_texts(context: BuildContext, texts: Sequence[str], folder: Path) -> StoredTexts:
    tokenizer = context.tokenizer
    tokenise(((str(n), text) for n, text in enumerate(texts)), tokenizer, folder, max_length=LONGEST_TEXT)
    return StoredTexts(TokenStore.open(folder), tokenizer, len(tokenizer), lambda: iter(texts))


def _signals(
    settings: Pretrain, registry: Registry, texts: StoredTexts, context: BuildContext, folder: Path
) -> dict[str, SignalValues]:
    """Compute every signal that the parts read for the toy texts."""
    found = {}
    for name, choice in required_signals(settings, registry).items():
        part = PartInUse.of(Kind.SIGNAL, choice, registry)
        if VECTOR_VALUES in part.spec.provides_of(part.config):  # made of the texts of the run
            toy = np.random.default_rng(0).normal(size=(len(texts), toys.TEACHER_SIZE))
            found[name] = write_signal(name, [toy], folder / name, scope="text", count=len(texts))
            continue
        signal = build_part(part, context, methods=("values",))
        with trying(part, "while computing its values"):
            scope = part.spec.scope_of(part.config)
            found[name] = written_signal(signal, name, scope, texts, folder / name, part.full_title)
    return found


def _try_decoder(
    part: PartInUse,
    module: AutoEncoder,
    name: str,
    views: Mapping[str, MaskedView],
    tensors: Mapping[str, Tensor],
) -> None:
    """Check a decoder's outputs by name, and that a gradient reaches the bottleneck and each of its weights."""
    title, decoder = part.full_title, module.decoders[name]
    inputs = module.decoder_input(name, module.encode(views, tensors), views, tensors)
    with trying(part, "called with (inputs, heads)"):
        provided = part.spec.provides_of(part.config)
        out = require_outputs(decoder(inputs, module.encoder.heads()), title, provided)
        width = module.encoder.config.hidden_size
        check_outputs(out, title, texts=len(inputs.tokens.ids), words=toys.VOCAB, width=width)
        check_counts(decoder, inputs, out, title)
        if out:
            check_decoder_gradients(title, out, inputs, decoder, receives=part.spec.receives_of(part.config))


def _try_saving(part: PartInUse, built: Any, other: Any) -> None:
    """Check that a training can save a part that was called, and resume with another one that is built alike."""
    if isinstance(built, nn.Module):
        with trying(part, "while its weights were saved and loaded, as for a checkpoint"):
            check_saving(part.full_title, built, other)


def _try_term(
    part: PartInUse, term: Term, module: AutoEncoder, views: Mapping[str, MaskedView], tensors: Mapping[str, Tensor]
) -> None:
    outputs = module.outputs(module.encode(views, tensors), views, tensors)
    weights = [*module.encoder.parameters(), *module.decoders.parameters()]
    _try_loss(part, term.loss, term.inputs(outputs[term.on]), [weight for weight in weights if weight.requires_grad])


# Losses


def _try_loss(part: PartInUse, loss: Any, inputs: Mapping[str, Any], learned: list[Tensor]) -> None:
    """Check that a loss is a finite scalar with a gradient for its inputs (`learned`) and for its own weights."""
    title = part.full_title
    with trying(part, f"called with ({', '.join(f'{name}=..' for name in inputs)})"):
        require(callable(loss), f"{title}: {type(loss).__name__} is not callable")
        value = check_step_output(loss(**inputs), f"{title}: the loss").loss
        check_loss_gradients(title, value, learned, loss)
        if isinstance(loss, CountsItems):
            items = loss.items(**inputs)
            require(isinstance(items, Tensor), f"{title}: items(..) must be a tensor, got {type(items).__name__}")


def _comparing_losses(
    recipe: Recipe, registry: Registry, values: Mapping[str, Sequence[float]]
) -> Iterator[tuple[PartInUse, dict[str, Any], Mapping[str, int]]]:
    """Yield the losses of fine-tuning and of the re-ranker with toy inputs and lengths of vectors, each loss once.

    values: of columns.
    """
    rounds = recipe.finetune.rounds if recipe.finetune else ()
    losses = [(recipe.finetune.for_round(one).loss, recipe.pooling_of(one)) for one in rounds if recipe.finetune]
    for loss, pooling in [pair for index, pair in enumerate(losses) if pair not in losses[:index]]:
        columns = {name: _scope(recipe, name, registry) for name in received_columns(loss, registry)}
        own = {name: found for name, found in values.items() if name in columns}
        encoder = _encoder(attrs.evolve(recipe.encoder, pooling=pooling), registry)
        sections = encoder.learned_pooling.sections if encoder.learned_pooling else {}
        length = encoder.dimension if sections else _vector_length(recipe.encoder)
        vectors = {name: toys.TEACHER_SIZE for name in columns if _holds_vectors(recipe, name, registry)}
        pairs = attrs.evolve(toys.toy_pairs(length, columns, own, vectors), sections=sections)
        sizes = {**encoder.vector_sizes, "bottleneck": length, **vectors}
        yield PartInUse.of(Kind.LOSS, loss, registry), {"pairs": pairs}, sizes
    if recipe.reranker:
        groups = attrs.evolve(toys.toy_groups(), columns={})
        yield PartInUse.of(Kind.LOSS, recipe.reranker.loss, registry), {"groups": groups}, {}


def _scope(recipe: Recipe, column: str, registry: Registry) -> str:
    """Return what a column has a value for in the first round that has it."""
    return next((column_scope(column, one, registry) for one in _sources(recipe, column)), PAIR)


def _holds_vectors(recipe: Recipe, column: str, registry: Registry) -> bool:
    """Return whether a column holds vectors in the first round that has it."""
    return next((holds_vectors(one, registry) for one in _sources(recipe, column)), False)


def _sources(recipe: Recipe, column: str) -> Iterator[Choice]:
    """Yield the source of a column in each round that has it."""
    assert recipe.finetune is not None
    found = (recipe.finetune.columns_for(current).get(column) for current in recipe.finetune.rounds)
    yield from (one for one in found if one)


def _vector_length(encoder: EncoderSettings) -> int:
    """Return the numbers in a vector of the encoder; of a model on the hub, the largest number that losses allow."""
    if encoder.pretrained is None:
        return encoder.hidden
    size = local_config(encoder.pretrained).get("hidden_size")
    return size if isinstance(size, int) else LONGEST_VECTOR


# Columns and miners


def _column_values(recipe: Recipe, registry: Registry, examples: toys.Examples) -> dict[str, list[float]]:
    """Return some values of each column as the run has them: the first ones, and the default; others are not known."""
    if recipe.finetune is None:
        return {}
    chosen = {
        name: one for current in recipe.finetune.rounds for name, one in recipe.finetune.columns_for(current).items()
    }
    found = {name: _first_values(name, one, registry, examples) for name, one in chosen.items()}
    for name, values in found.items():
        if (default := chosen[name].default) is not None:  # as a number of their type, if it is one, too
            kinds = {type(value) for value in values}
            values.append(next((kind(default) for kind in kinds if kind(default) == default), default))
    return {name: values for name, values in found.items() if values}


def _first_values(name: str, source: Choice, registry: Registry, examples: toys.Examples) -> list[float]:
    """Return the first values of a column that a part computes, or a file has. Raises DrkitError for a broken part."""
    if isinstance(source.config, FileConfig) and is_stage_output(source.config.path):
        return []
    if isinstance(source.config, FileConfig):
        return [one.value for one in islice(read_values(local_path(source.config.path), name), _VALUES)]
    if not is_computed(source):
        return []
    part = PartInUse.of(Kind.COLUMN, source, registry)
    if any(part.spec.paths_of(part.config)):
        target_of(part)
        return []
    built, scope = build_part(part, None, methods=("values",)), part.spec.scope_of(part.config)
    with trying(part, "while computing its values"):
        if holds_vectors(source, registry):
            check_vector_values(built, scope, part.full_title, examples.items(scope))
            return []
        values = [one.value for one in check_values(built, scope, part.full_title, examples.items(scope))]
        require(values or source.default is not None, f"{part.full_title}: every value is None, and it has no default")
    return values[:_VALUES]


def _batches(recipe: Recipe, registry: Registry) -> list[PartInUse]:
    """Return the batches of the rounds, each once."""
    found = [recipe.finetune.for_round(one).batches for one in recipe.finetune.rounds] if recipe.finetune else []
    chosen = [one for index, one in enumerate(found) if one not in found[:index]]
    return [PartInUse.of(Kind.BATCHES, one, registry) for one in chosen]


def _try_batches(part: PartInUse, context: BuildContext) -> None:
    """Compose an epoch of toy queries; what a part refuses with a DrkitError may be only the toys' fault."""
    rows = toy_batch_rows(part.spec.receives_of(part.config))
    batches = build_part(part, context)
    size, count = len(rows) // 4, 4
    with trying(part, "called with (rows, size=.., count=.., seed=.., epoch=..)"):
        require(callable(batches), f"{part.full_title}: {type(batches).__name__} is not callable")
        try:
            found = batches(rows, size=size, count=count, seed=0, epoch=0)
        except DrkitError:
            return
    checked_batches(found, rows, size=size, count=count, title=part.full_title)


def _try_queries(part: PartInUse, context: BuildContext, examples: toys.Examples) -> None:
    if any(part.spec.paths_of(part.config)):
        target_of(part)
        return
    source = build_part(part, context, methods=("queries",))
    with trying(part, "while making queries"):
        checked_queries(source, part.full_title, examples.passages)


def _chains(recipe: Recipe) -> list[tuple[Choice, ...]]:
    """Return the chains of miners, each once."""
    found = [one.miners for one in recipe.finetune.rounds if one.miners] if recipe.finetune else []
    found += [recipe.reranker.miners] if recipe.reranker else []
    return [chain for index, chain in enumerate(found) if chain not in found[:index]]


def _try_miners(parts: list[PartInUse], context: BuildContext) -> None:
    for part in parts:
        is_filter = "candidates" in part.spec.receives_of(part.config)
        if any(part.spec.paths_of(part.config)):
            target_of(part)
        else:
            (_try_filter if is_filter else _try_source)(part, build_part(part, context))


def _try_source(part: PartInUse, miner: Any) -> None:
    requests = list(toys.toy_requests(_QUERIES))
    with trying(part, "while mining negatives"):
        require_methods(part, miner, ("index", "mine"))
        miner.index(toys.ToyCorpus())
        check_negatives(requests, list(miner.mine(iter(requests), _DEPTH)), _DEPTH, part.full_title)


def _try_filter(part: PartInUse, miner_filter: Any) -> None:
    pairs = list(toy_candidates(_QUERIES))
    with trying(part, "while filtering candidates"):
        require_methods(part, miner_filter, ("keep",))
        check_kept(pairs, list(miner_filter.keep(iter(pairs), toys.ToyCorpus())), part.full_title)
