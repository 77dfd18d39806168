"""Try every part of a recipe once on a toy batch, before a run starts.

Within seconds, one line names a broken part, its package and version, what was expected and what it returned. Without
the trial, the part would fail with a traceback, after the stages before it. The toy encoder has as many layers and
heads as the recipe's; widths and texts are tiny. The trial changes neither the run nor global random states.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import numpy as np
import torch
from attrs import frozen
from torch import Tensor, nn

from drkit.core.draws import Draws
from drkit.core.files import SCRATCH, local_path
from drkit.core.protocols import CountsItems, FittedSignal, ReplacingMasker, StartsFromEncoder
from drkit.core.registry import Registry
from drkit.core.spec import Kind
from drkit.core.types import BuildContext, Mined, TokenBatch, Views
from drkit.data.arrays import SignalValues, write_signal
from drkit.data.contexts import batch_signals
from drkit.data.store import StoredTexts, TokenStore, tokenise
from drkit.encoders.heads import seeded
from drkit.encoders.masked_lm import MaskedLmEncoder
from drkit.losses.specs import LONGEST_VECTOR
from drkit.maskers.views import keep_targets
from drkit.recipe.parts import PartInUse, all_parts, call_signals, required_signals, signal_scopes
from drkit.recipe.schema import RERANKER, Choice, EncoderSettings, Pretrain, Recipe
from drkit.runs.attribution import build_part, refuse_unless, require_methods, target_of, try_collection, trying
from drkit.runs.stages.pretrain import vocabulary_signals
from drkit.runs.work import local_config
from drkit.testing import toys
from drkit.testing.decoders import check_outputs, scalar_of
from drkit.testing.losses import check_step
from drkit.testing.maskers import check_rows, check_view
from drkit.testing.miners import check_kept, check_mined, toy_candidates
from drkit.testing.specs import check_facts, require
from drkit.train.pretrain import AutoEncoder, Term, batch_tensors

LONGEST_TEXT = 40
HEAD_WIDTH, QUERIES, DEPTH = 8, 5, 5
# Assumed for a hub id, because its configuration is not downloaded for a trial.
UNKNOWN_LAYERS, UNKNOWN_HEADS = 12, 12


def try_parts(recipe: Recipe, registry: Registry) -> None:
    """Build every part of a recipe and run it once on a toy batch, forward and backward.

    For a collection or miner with a setting that names a local file or model, only the target is imported. Raises a
    one-line DrkitError for the first broken part.
    """
    with preserve_random_states(recipe.seed):
        try_collection(recipe, registry)
        context = _context(recipe.encoder, recipe.seed)
        if recipe.pretrain:
            with TemporaryDirectory(prefix=SCRATCH) as folder:
                batch = _toy_batch(recipe.pretrain, registry, context, Path(folder))
                _try_pretraining(recipe, recipe.pretrain, registry, batch)
        for part, inputs in _comparing_losses(recipe, registry):
            _try_loss(part, build_part(part, context), inputs, _learnt(inputs))
        for miners in _chains(recipe):
            _try_miners([PartInUse.of(Kind.MINER, miner, registry) for miner in miners], context)


def describe_trial(recipe: Recipe, registry: Registry) -> str:
    """Return in words what `try_parts` has tried, and what was looked up of the models that the recipe names."""
    named = [recipe.encoder.pretrained, recipe.reranker.pretrained if recipe.reranker else None]
    named += [one.teacher for one in recipe.finetune.rounds if one.teacher != RERANKER] if recipe.finetune else []
    parts = list(all_parts(recipe, registry))
    sources = [*(recipe.pseudo_queries.sources if recipe.pseudo_queries else ())]
    sources += [str(getattr(part.config, "queries", "")) for part in parts]
    named += [source.partition(":")[2] for source in sources if source.startswith("model:")]
    named += [getattr(part.config, "model", None) for part in parts]
    models = dict.fromkeys(str(model) for model in named if model)
    folders, ids = ([model for model in models if local_path(model).is_dir() == local] for local in (True, False))
    said = ["trial: every part of the recipe passes on a toy batch"]
    said += [f"of {', '.join(folders)}, the configuration was read, not the weights"] if folders else []
    said += [f"not looked up, since no such folder exists: {', '.join(ids)} (a hub id?)"] if ids else []
    return "; ".join(said)


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


def _context(sizes: EncoderSettings, seed: int) -> BuildContext:
    """Return the context of the parts: toy encoder sizes, tokenizer, retriever, re-ranker and generator."""
    encoder = _encoder(sizes)
    tokenizer = toys.toy_tokenizer()
    return attrs.evolve(
        toys.toy_context(seed),
        backbone=encoder.info(tokenizer),
        tokenizer=tokenizer,
        generator=toys.toy_encoder(seed),
        signals={},
    )


def _encoder(sizes: EncoderSettings) -> MaskedLmEncoder:
    layers, heads = sizes.layers, sizes.heads
    if sizes.pretrained:
        from drkit.encoders.masked_lm import read_config

        config = read_config(sizes.pretrained) if local_path(sizes.pretrained).is_dir() else None
        layers = getattr(config, "num_hidden_layers", UNKNOWN_LAYERS)
        heads = getattr(config, "num_attention_heads", UNKNOWN_HEADS)
    return toys.toy_encoder(pooling=sizes.pooling, layers=layers, heads=heads, hidden=HEAD_WIDTH * heads)


# Pre-training


@frozen(eq=False)
class ToyBatch:
    """Toy texts with the signals that the parts read, their contexts, and the context that parts are built with."""

    tokens: TokenBatch
    contexts: TokenBatch
    context: BuildContext

    @property
    def length(self) -> int:
        """The longest text, in tokens."""
        return int(self.tokens.ids.shape[1])


def _toy_batch(settings: Pretrain, registry: Registry, context: BuildContext, folder: Path) -> ToyBatch:
    """Tokenise the toy texts and compute every signal that the parts read, like the stages of a run."""
    texts = toys.toy_texts()
    tokenise(((str(n), text) for n, text in enumerate(texts)), context.tokenizer, folder, max_length=LONGEST_TEXT)
    stored = StoredTexts(TokenStore.open(folder), context.tokenizer, len(context.tokenizer), lambda: iter(texts))
    signals = {
        name: _try_signal(PartInUse.of(Kind.SIGNAL, choice, registry), stored, context, folder / name)
        for name, choice in required_signals(settings, registry).items()
    }
    indices = np.arange(len(texts))
    return ToyBatch(
        tokens=stored.store.batch(indices, signals=batch_signals(signals)),
        contexts=stored.store.batch(indices[::-1].copy(), signals=batch_signals(signals)),
        context=attrs.evolve(context, signals=vocabulary_signals(signals)),
    )


def _try_signal(part: PartInUse, texts: StoredTexts, context: BuildContext, folder: Path) -> SignalValues:
    """Compute a signal for the toy texts and check that it has as many values as its scope requires."""
    signal, scope = build_part(part, context, methods=("values",)), part.spec.scope_of(part.config)
    counts = {"token": len(texts.store.flat_ids), "text": len(texts), "vocabulary": texts.vocab_size}
    with trying(part, "while computing its values"):
        (folder / "fitted").mkdir(parents=True)
        if isinstance(signal, FittedSignal):
            check_facts(signal.fit(texts, folder / "fitted"), f"{part.full_title}: fit(texts, folder)")
        values = signal.values(texts, folder / "fitted")
        return write_signal(part.spec.name, values, folder, scope=scope, count=counts[scope])


def _try_pretraining(recipe: Recipe, settings: Pretrain, registry: Registry, batch: ToyBatch) -> None:
    """Run the masker, the decoder and the losses on one toy batch, combined as in a run."""
    context = batch.context
    masker_part = PartInUse.of(Kind.MASKER, settings.masker, registry)
    decoder_part = PartInUse.of(Kind.DECODER, settings.decoder, registry)
    masker, decoder = build_part(masker_part, context), build_part(decoder_part, context)
    refuse_unless(callable(masker), f"{masker_part.full_title}: {type(masker).__name__} is not callable")
    encoder = _encoder(recipe.encoder)
    with trying(decoder_part, "while reading its rows and layers"):
        _check_decoder(decoder_part, decoder, encoder, batch)
    parts = {name: PartInUse.of(Kind.LOSS, term, registry) for name, term in settings.losses.items()}
    scopes = signal_scopes(settings, registry)
    terms = {
        name: Term(
            build_part(part, context),
            tuple(sorted(part.spec.receives_of(part.config))),
            settings.losses[name].on,
            settings.losses[name].weight,
            part.spec.scope_of(part.config),
            call_signals(part.spec, part.config, scopes),
        )
        for name, part in parts.items()
    }
    with trying(masker_part, "while building its replacer"):
        replacer = masker.replacer(context) if isinstance(masker, ReplacingMasker) else None
    module = AutoEncoder(encoder, decoder, terms, replacer).train()
    tensors = _masked(masker_part, masker, decoder, batch)
    _try_decoder(decoder_part, masker_part, module, tensors)
    for name, part in parts.items():
        _try_term(part, terms[name], module, tensors)


def _masked(part: PartInUse, masker: Any, decoder: Any, batch: ToyBatch) -> dict[str, Tensor]:
    """Return a masked toy batch as tensors for `AutoEncoder`; each text's partner is another text of the batch."""
    tokens, length, count = batch.tokens, batch.length, len(batch.tokens.ids)
    if "context" in part.spec.provides_of(part.config):
        tokens = attrs.evolve(tokens, context=batch.contexts)
    clean = tokens.context or tokens
    rows, draws = decoder.rows(length), Draws(1, 0, tokens.keys.numpy())
    with trying(part, "called with (tokens, rng, rows=..)"):
        views = masker(tokens, draws, rows=rows)
        title = part.full_title
        require(isinstance(views, Views), f"{title}: expected Views, got {_kind_of(views)}")
        check_view(views.encoder, tokens, f"{title}, encoder's view")
        check_view(views.decoder, clean, f"{title}, decoder's view")
        if rows and "rows" in part.spec.provides_of(part.config):
            check_rows(views, rows, title)
    if 0 < rows < length:
        views = attrs.evolve(views, decoder=keep_targets(views.decoder, decoder.rows, draws))
    return {**batch_tensors(tokens, views), "partners": torch.arange(count).roll(count // 2)}


def _check_decoder(part: PartInUse, decoder: Any, encoder: MaskedLmEncoder, batch: ToyBatch) -> None:
    title = part.full_title
    require(isinstance(decoder, nn.Module), f"{title}: expected an nn.Module, got {_kind_of(decoder)}")
    require_methods(part, decoder, ("rows",))
    require(hasattr(decoder, "needs_layers"), f"{title}: {type(decoder).__name__} has no attribute needs_layers")
    rows = decoder.rows(batch.length)
    require(isinstance(rows, int), f"{title}: rows(length) must be an int, got {_kind_of(rows)}")
    if isinstance(decoder, StartsFromEncoder):
        decoder.init_from(encoder)
    encoder.encode(batch.tokens.ids, batch.tokens.attention, tuple(decoder.needs_layers))


def _try_decoder(part: PartInUse, masker: PartInUse, module: AutoEncoder, tensors: Mapping[str, Tensor]) -> None:
    """Check a decoder's outputs by name, and that a gradient reaches each of its weights."""
    title = part.full_title
    with trying(masker, "while filling masked positions"):
        inputs = module.decoder_input(module.encode(tensors), tensors)
    with trying(part, "called with (inputs, heads)"):
        out = module.decoder(inputs, module.encoder.heads())
        require(isinstance(out, Mapping), f"{title}: expected a mapping of names to outputs, got {_kind_of(out)}")
        provided = part.spec.provides_of(part.config)
        missing = sorted(provided - set(out))
        names = ", ".join(map(str, out)) or "nothing"
        require(not missing, f"{title}: its spec provides {', '.join(missing)}; its output has {names}")
        width = module.encoder.config.hidden_size
        check_outputs(out, title, texts=len(toys.toy_texts()), words=toys.VOCAB, width=width)
        _check_weights(part, module.decoder, [scalar_of(value) for value in out.values()])


def _check_weights(part: PartInUse, module: Any, scalars: list[Tensor | None]) -> None:
    """Check that every weight that requires a gradient gets one from one of `scalars`."""
    title = part.full_title
    if not isinstance(module, nn.Module):
        return
    weights = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    total = [scalar for scalar in scalars if scalar is not None and scalar.requires_grad]
    if not weights:
        return
    require(total, f"{title}: no output carries a gradient; do not detach what the decoder or loss computes")
    found = torch.autograd.grad(torch.stack(total).sum(), list(weights.values()), retain_graph=True, allow_unused=True)
    idle = [name for name, gradient in zip(weights, found, strict=True) if gradient is None]
    require(
        not idle,
        f"{title}: no gradient reaches its weights {', '.join(idle)}; use them, or set requires_grad to False",
    )


def _try_term(part: PartInUse, term: Term, module: AutoEncoder, tensors: Mapping[str, Tensor]) -> None:
    outputs = module.outputs(module.encode(tensors), tensors)
    inputs = term.inputs(outputs[term.on])
    weights = [
        weight for weight in (*module.encoder.parameters(), *module.decoder.parameters()) if weight.requires_grad
    ]
    _try_loss(part, term.loss, inputs, weights)


# Losses


def _try_loss(part: PartInUse, loss: Any, inputs: Mapping[str, Any], learnt: list[Tensor]) -> None:
    """Check that a loss is a finite scalar with a gradient for its inputs (`learnt`) and for its own weights."""
    title = part.full_title
    refuse_unless(callable(loss), f"{title}: {type(loss).__name__} is not callable")
    with trying(part, f"called with ({', '.join(f'{name}=..' for name in inputs)})"):
        value = check_step(loss(**inputs), f"{title}: the loss").loss
        require(
            value.requires_grad,
            f"{title}: the loss carries no gradient; compute it from what the call receives, without detach()",
        )
        gradients = torch.autograd.grad(value, learnt, retain_graph=True, allow_unused=True)
        reached = [gradient for gradient in gradients if gradient is not None]
        require(reached, f"{title}: no gradient of the loss reaches its inputs")
        finite = all(bool(gradient.isfinite().all()) for gradient in reached)
        require(finite, f"{title}: a gradient of the loss is nan or infinite, expected finite numbers")
        _check_weights(part, loss, [value])
        if isinstance(loss, CountsItems):
            items = loss.items(**inputs)
            require(isinstance(items, Tensor), f"{title}: items(..) must be a tensor, got {_kind_of(items)}")


def _comparing_losses(recipe: Recipe, registry: Registry) -> Iterator[tuple[PartInUse, dict[str, Any]]]:
    """Yield the losses of fine-tuning and of the re-ranker with toy inputs, each loss once."""
    seen: list[tuple[Choice, bool]] = []
    for current in recipe.finetune.rounds if recipe.finetune else ():
        assert recipe.finetune is not None
        loss, has_teacher = recipe.finetune.for_round(current).loss, bool(current.teacher)
        if (loss, has_teacher) not in seen:
            seen.append((loss, has_teacher))
            pairs = toys.toy_pairs(_vector_length(recipe.encoder))
            yield (
                PartInUse.of(Kind.LOSS, loss, registry),
                {"pairs": pairs if has_teacher else attrs.evolve(pairs, teacher=None)},
            )
    if recipe.reranker:
        groups = attrs.evolve(toys.toy_groups(), teacher=None)
        yield PartInUse.of(Kind.LOSS, recipe.reranker.loss, registry), {"groups": groups}


def _vector_length(encoder: EncoderSettings) -> int:
    """Return the numbers in a vector of the encoder; of a model on the hub, the largest number that losses allow."""
    if encoder.pretrained is None:
        return encoder.hidden
    size = local_config(encoder.pretrained).get("hidden_size")
    return size if isinstance(size, int) else LONGEST_VECTOR


def _learnt(inputs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors in bundles of inputs that require gradients."""
    values = [getattr(bundle, a.name) for bundle in inputs.values() for a in attrs.fields(type(bundle))]
    return [value for value in values if isinstance(value, Tensor) and value.requires_grad]


# Miners


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
    requests = list(toys.toy_requests(QUERIES))
    doc_ids = {passage.doc_id for passage in toys.ToyCorpus()}
    with trying(part, "while mining negatives"):
        require_methods(part, miner, ("index", "mine"))
        miner.index(toys.ToyCorpus())
        answers = list(miner.mine(iter(requests), DEPTH))
        _check_answers(part, [request.query_id for request in requests], answers)
        for request, mined in zip(requests, answers, strict=True):
            check_mined(request, mined, DEPTH, doc_ids, part.full_title)


def _try_filter(part: PartInUse, miner_filter: Any) -> None:
    pairs = list(toy_candidates(QUERIES))
    with trying(part, "while filtering candidates"):
        require_methods(part, miner_filter, ("keep",))
        answers = list(miner_filter.keep(iter(pairs), toys.ToyCorpus()))
        _check_answers(part, [mined.query_id for _, mined in pairs], answers)
        for (_, before), after in zip(pairs, answers, strict=True):
            check_kept(before, after, part.full_title)


def _check_answers(part: PartInUse, query_ids: list[str], answers: list[Any]) -> None:
    wrong = next((answer for answer in answers if not isinstance(answer, Mined)), None)
    require(wrong is None, f"{part.full_title}: expected Mined, got {_kind_of(wrong)}")
    found = [answer.query_id for answer in answers]
    require(
        found == query_ids,
        f"{part.full_title}: expected results for {', '.join(query_ids)} in this order, got {', '.join(found)}",
    )


def _kind_of(value: Any) -> str:
    return type(value).__name__
