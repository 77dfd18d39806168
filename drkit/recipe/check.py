"""The check of a recipe: do its parts go together? It runs before torch is imported.

Each part *receives* names, reads *signals*, *requires* capabilities of the run and *provides* names. The check follows
a recipe from the collection through pre-training to the rounds of fine-tuning (`drkit.recipe.rounds`). For every gap it
reports which part needs what, what is provided instead, and which other parts would fit. `drkit.core.spec` lists the
names that drkit itself provides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

from drkit.core.files import local_path, read_json
from drkit.core.registry import Registry
from drkit.core.schedules import schedules_in
from drkit.core.spec import (
    BATCH,
    DECODING,
    ENCODER,
    OFFERED_TO_PRETRAINING,
    PROVIDED,
    WORD_SCORES,
    Choice,
    Kind,
    builtin_names,
    provided_by,
    scope_problems,
    vector_name,
    vector_names,
)
from drkit.data.mixture import OWN
from drkit.data.prompts import prompt_problem
from drkit.data.special_tokens import AUTO, mask_token_in
from drkit.encoders.architectures import (
    BIDIRECTIONAL,
    CAUSAL,
    GELU,
    TIED,
    Architecture,
    architecture,
    attention_keys,
    check_start_model,
    reads_both_ways,
)
from drkit.encoders.declarations import CONFIG, MODULES
from drkit.encoders.folder import read_modules
from drkit.encoders.pooling import is_weighted, static_problem
from drkit.errors import DrkitError, ProblemsError, did_you_mean
from drkit.recipe.data_sets import data_set_problems
from drkit.recipe.encoder_settings import MEAN, EncoderSettings
from drkit.recipe.parts import (
    PartInUse,
    join_names,
    losses_that_fit,
    maskers_that_fit,
    missing_extras,
    parts_in_use,
    parts_of,
    pooling_vectors,
    vector_problems,
)
from drkit.recipe.rounds import kept_problems, rounds_problems
from drkit.recipe.schema import ITSELF, NONE, REPLACED, DecoderTask, Pretrain, Recipe
from drkit.recipe.start import declared_settings_of


def check(recipe: Recipe, registry: Registry) -> None:
    """Raise ProblemsError that lists every combination in the recipe that cannot work."""
    problems = [*_collection_problems(recipe, registry), *_encoder_problems(recipe, registry)]
    problems += [*_pooling_problems(recipe, registry), *_schedule_problems(recipe)]
    if recipe.pretrain:
        problems += pretrain_problems(recipe.pretrain, registry, recipe.pretraining_pooling)
    problems += [*rounds_problems(recipe, registry), *_baseline_problems(recipe, registry)]
    if problems:
        raise ProblemsError(f"recipe {recipe.name!r} cannot work", problems)


def _baseline_problems(recipe: Recipe, registry: Registry) -> Iterator[str]:
    """Yield the baselines whose part does not exist; one that does not fit into its slot has no row, and a note."""
    for baseline in recipe.finetune.baselines if recipe.finetune else ():
        slot, _, part = baseline.partition("=")
        if part and (slot, part) != ("decoder", NONE):
            try:
                registry.split(REPLACED[slot][0], part)
            except DrkitError as error:
                yield f"{baseline}: {error} @ finetune.baselines"


def _collection_problems(recipe: Recipe, registry: Registry) -> list[str]:
    spec = registry.get(Kind.COLLECTION, recipe.collection.use)
    given = {f"collections.{name}": one.collection for name, one in (recipe.collections or {}).items()}
    named = (given or {OWN: recipe.collection}).items()
    problems = [problem for path, one in named for problem in _value_problems(one, registry, path)]
    problems += data_set_problems(recipe, registry)
    is_trained = recipe.pretrain or (recipe.finetune and recipe.finetune.rounds)
    if not is_trained and recipe.encoder.pretrained is None:
        problems.append(
            "the recipe trains nothing: add [pretrain] or [finetune], or evaluate an existing encoder (--encoder)"
        )
    if recipe.pseudo_queries and not (recipe.finetune and recipe.finetune.rounds):
        problems.append(
            "pseudo-queries are trained on by fine-tuning, which is missing: add [finetune] @ pseudo_queries"
        )
    has_queries = recipe.pseudo_queries or "queries" in spec.provides
    if recipe.finetune and recipe.pretrain is None and not has_queries:
        problems.append(
            f"collection {spec.name!r} has no queries and judgements to fine-tune on; --pipeline texts makes them from "
            f"the passages @ finetune"
        )
    return problems


def _value_problems(chosen: Choice, registry: Registry, path: str) -> Iterator[str]:
    spec = registry.get(Kind.COLLECTION, chosen.use)
    if spec.shorthand and not getattr(chosen.config, spec.shorthand):
        written = f"--collection {spec.name}:VALUE" if path == OWN else f"--set {path}.{spec.shorthand}=VALUE"
        yield f"collection {spec.name!r} needs {spec.shorthand!r}: write `{written}` @ {path}"


def _schedule_problems(recipe: Recipe) -> Iterator[str]:
    """Yield schedules of settings that cannot change over a training, which only Python can write."""
    for path, schedule, is_schedulable in schedules_in(recipe):
        if not is_schedulable:
            yield f"the setting cannot change over a training, got {schedule!r}; give one number @ {path}"


def _pooling_problems(recipe: Recipe, registry: Registry) -> Iterator[str]:
    """Yield what poolings do not support, and those of several trainings that do not go together."""
    trained = {chosen.use for chosen in recipe.poolings.values()}
    if any(map(is_weighted, trained)) and len(trained) > 1:
        yield (
            f"the weights of the pooling 'weighted' are those of all trainings, and this recipe has others, too "
            f"({join_names(sorted(trained))}): set `weighted` everywhere, or nowhere @ encoder.pooling"
        )
    own = recipe.pretraining_pooling
    is_single = not pooling_vectors(own, registry)
    if recipe.pretrain and _is_sparse(own, registry) and is_single:
        yield (
            f"the pooling {own.use!r} makes scores of words, which no decoder reads: pre-train with another pooling, "
            f"and fine-tune with this one: --set pretrain.encoder.pooling=cls @ pretrain"
        )
    rounds = recipe.finetune.rounds if recipe.finetune else ()
    searched = [recipe.encoder.pooling, *map(recipe.pooling_of, rounds)]
    if recipe.pretrain and (not rounds or recipe.evaluation.pretrained):
        searched.append(own)
    for chosen in [one for index, one in enumerate(searched) if one not in searched[:index]]:
        if _is_sparse(chosen, registry):
            yield from _lexical_problems(recipe, chosen)
        elif recipe.similarity == "cosine" and (names := pooling_vectors(chosen, registry)):
            yield (
                f"the scores of the vectors of the pooling {chosen.use!r} ({', '.join(names)}) add up, which those of "
                f"cosines cannot: set the similarity of the loss to dot @ finetune.loss.similarity"
            )


def _is_sparse(pooling: Choice, registry: Registry) -> bool:
    return WORD_SCORES in registry.get(Kind.POOLING, pooling.use).provides_of(pooling.config)


def _lexical_problems(recipe: Recipe, pooling: Choice) -> Iterator[str]:
    """Yield settings that an encoder whose vectors are scores of words does not support."""
    encoder = recipe.encoder
    what = f"the pooling {pooling.use!r} makes scores of words"
    config = local_path(encoder.pretrained or "") / CONFIG
    is_tied = read_json(config, "give the folder of a model").get(TIED) if config.is_file() else False
    if is_tied or (encoder.pretrained is None and encoder.lm_head == "tied"):
        yield (
            f"{what} by the LM head, and transformers cannot load the head 'tied': train the encoder with --set "
            f"encoder.lm_head=transform @ encoder.lm_head"
        )
    if recipe.finetune and recipe.finetune.encoders == "separate":
        yield f"{what}, which only a shared encoder does: --set finetune.encoders=shared @ finetune.encoders"
    if recipe.similarity == "cosine":
        yield f"{what}, compared by dot product: set the similarity of the loss to dot @ finetune.loss.similarity"
    if recipe.evaluation.index != "flat":
        yield f"{what}, which only an exact index searches: --set evaluation.index=flat @ evaluation.index"


def _encoder_problems(recipe: Recipe, registry: Registry) -> list[str]:
    encoder = recipe.encoder
    if encoder.pretrained is None:
        if encoder.hidden % encoder.heads:
            return [f"hidden ({encoder.hidden}) must be a multiple of heads ({encoder.heads}) @ encoder"]
        return [
            *_reading_problems(encoder),
            *_architecture_problems(recipe, registry),
            *([] if encoder.layers else _static_problems(recipe, registry)),
        ]
    folder = local_path(encoder.pretrained)
    if (folder / MODULES).is_file() and "StaticEmbedding" in read_modules(folder):
        return [
            f"{folder} is an exported static encoder, which has neither its LM head nor separate token weights: start "
            f"from its run or its checkpoint @ encoder.pretrained"
        ]
    poolings = recipe.poolings.values()
    try:
        found, reads_both = _start_model(recipe, registry)
    except DrkitError as error:
        return [_with_path(error, "encoder.pretrained")]
    if found and found.is_causal and not reads_both and any(chosen.use == "cls" for chosen in poolings):
        return [
            f"{encoder.pretrained!r} reads a text from left to right, so its first token has seen no other one: "
            f"--set encoder.pooling=last @ encoder.pooling"
        ]
    if found and found.is_causal and recipe.reranker and not recipe.reranker.pretrained:
        return [
            f"a re-ranker reads in both directions, so it cannot start from {encoder.pretrained!r}, a decoder-only "
            f"model: set reranker.pretrained to the path or hub id of a masked LM, or --set reranker=none "
            f"@ reranker.pretrained"
        ]
    problems = [*_prompt_problems(encoder, folder)]
    if found and found.layer is None:
        problems += _unlike_bert_problems(recipe, registry, encoder.pretrained)
    declared = None if encoder.declared == "ignore" else declared_settings_of(folder)
    return problems + (declared.clashes(encoder) if declared else [])


def _start_model(recipe: Recipe, registry: Registry) -> tuple[Architecture | None, bool]:
    """Return the architecture that training starts from, None for a hub id, and whether it reads in both directions.

    Raises DrkitError if it does not read texts as the recipe needs it, or has no token for what is hidden.
    """
    encoder = recipe.encoder
    folder = local_path(encoder.pretrained or "")
    received = [registry.get(Kind.POOLING, one.use).receives_of(one.config) for one in recipe.poolings.values()]
    scores_words = any("heads" in names for names in received)
    found = check_start_model(str(encoder.pretrained), causal=not scores_words)
    if found is None:
        return None, encoder.attention == BIDIRECTIONAL
    config = read_json(folder / CONFIG, "give the folder of a model")
    reads_both = bool(attention_keys(config, encoder.attention)) or reads_both_ways(config)
    if recipe.pretrain and not reads_both:
        check_start_model(str(encoder.pretrained))
    if encoder.mask_token != AUTO or (found.is_causal and reads_both and recipe.pretrain):
        mask_token_in(folder, encoder.mask_token)
    return found, reads_both


def _with_path(error: DrkitError, path: str) -> str:
    """Return an error with the path of the setting that causes it, if it has none."""
    return str(error) if " @ " in str(error) else f"{error} @ {path}"


def _prompt_problems(encoder: EncoderSettings, folder: Path) -> Iterator[str]:
    """Yield the prompts that leave no room for text, where the tokenizer is that of a folder."""
    for kind in ("query", "passage"):
        prompt, length = getattr(encoder, f"{kind}_prompt"), getattr(encoder, f"{kind}_length")
        if problem := prompt_problem(prompt, folder, length):
            yield f"{problem} @ encoder.{kind}_prompt"


def _reading_problems(encoder: EncoderSettings) -> Iterator[str]:
    """Yield settings of how an encoder made from scratch reads texts that it does not have."""
    if encoder.mask_token != AUTO:
        yield "an encoder made from scratch has the mask token [MASK]; leave mask_token out @ encoder.mask_token"
    if encoder.attention == CAUSAL and encoder.architecture is None:
        yield "a bert reads a text in both directions; leave attention out @ encoder.attention"


def _architecture_problems(recipe: Recipe, registry: Registry) -> Iterator[str]:
    """Yield why an encoder of the recipe's architecture cannot be made from scratch, and which parts cannot use it."""
    encoder, more = recipe.encoder, recipe.encoder.architecture_settings or {}
    if encoder.architecture is None:
        if more:
            yield "architecture_settings needs encoder.architecture, the model type @ encoder.architecture_settings"
        return
    if not encoder.layers:
        yield "an encoder without layers is word vectors, of no architecture: set encoder.layers @ encoder.architecture"
    try:
        config = {**more, "model_type": encoder.architecture}
        reads_both = bool(attention_keys(config, encoder.attention)) or reads_both_ways(config)
        found = architecture(encoder.architecture, causal=reads_both)
    except DrkitError as error:
        yield _with_path(error, "encoder.architecture")
        return
    if taken := sorted({*_DECIDED, *map(str, attrs.asdict(found.sizes).values())} & more.keys()):
        yield f"{taken[0]!r} follows from other settings of [encoder]; leave it out @ encoder.architecture_settings"
    is_narrow = found.embeddings_project and more.get("embedding_size") != encoder.hidden
    if is_narrow and (encoder.init_embeddings != "random" or encoder.lm_head == "tied"):
        yield (
            f"word embeddings of {encoder.architecture!r} have a size of their own, which init_embeddings and a tied "
            f"head need to be that of the hidden states: --set encoder.architecture_settings.embedding_size="
            f"{encoder.hidden} @ encoder.architecture"
        )
    if encoder.lm_head == "tied" and GELU in found.transform:
        yield (
            f"the LM head of {encoder.architecture!r} cannot be reduced to the tied projection: --set "
            f"encoder.lm_head=transform @ encoder.lm_head"
        )
    if found.layer is None:
        yield from _unlike_bert_problems(recipe, registry, encoder.architecture)


# Keys of a configuration that the recipe's vocabulary and lengths decide.
_DECIDED = ("model_type", "vocab_size", "pad_token_id", "max_position_embeddings", "attn_implementation")


def _start_problems(recipe: Recipe, registry: Registry, what: str) -> Iterator[str]:
    """Yield the parts that copy the encoder's layers; what: why they cannot."""
    for part in parts_in_use(recipe.pretrain, registry) if recipe.pretrain else ():
        if "encoder-layers" in part.spec.requires_of(part.config):
            has_init = hasattr(part.config, "init")
            advice = f"--set {part.path}.init=random" if has_init else "choose another part"
            yield f"{what}, so {part.title} cannot start from them: {advice} @ {part.path}"


def _unlike_bert_problems(recipe: Recipe, registry: Registry, model: str) -> Iterator[str]:
    """Yield parts that copy the layers of the encoder `model`, which must be built like BERT's."""
    what = f"the layers of {model!r} are not built like BERT's"
    yield from _start_problems(recipe, registry, what)
    adds_layers = recipe.encoder.pretrained is None and recipe.reranker
    if adds_layers and adds_layers.pretrained is None and adds_layers.layers > recipe.encoder.layers:
        yield f"{what}, so a re-ranker cannot repeat them: --set reranker.layers=0 @ reranker.layers"


def _static_problems(recipe: Recipe, registry: Registry) -> Iterator[str]:
    """Yield settings that an encoder without layers does not support."""
    encoder = recipe.encoder
    for path, chosen in recipe.poolings.items():
        problem = static_problem(chosen.use, has_unit_length=recipe.similarity == "cosine")
        if problem:
            yield f"{problem}, or --set encoder.layers=1 for a transformer layer (encoder.layers is 0) @ {path}"
    if encoder.lm_head != "tied":
        yield "a static encoder (encoder.layers = 0) has only the LM head 'tied' @ encoder.lm_head"
    yield from _start_problems(recipe, registry, "a static encoder (encoder.layers = 0) has no layers")
    if recipe.reranker and recipe.reranker.pretrained is None:
        yield (
            "a re-ranker cannot start from a static encoder (encoder.layers = 0): set reranker.pretrained to a path or "
            "hub id, or encoder.layers to 1 or more @ reranker.pretrained"
        )


def pretrain_problems(pretrain: Pretrain, registry: Registry, pooling: Choice = MEAN) -> list[str]:
    """Return every combination of parts in a pre-training that cannot work, each with its path in the recipe.

    pooling: of the encoder.
    """
    parts = list(parts_in_use(pretrain, registry))
    problems = [problem for part in parts for problem in _declaration_problems(part)]
    problems += [*_signal_problems(parts, registry), *_capability_problems(parts)]
    if not pretrain.losses():
        problems.append("pre-training has no loss: add one to the encoder or to a decoder @ pretrain")
    problems += [*kept_problems(pretrain, "pretrain"), *_text_problems(pretrain, registry)]
    problems += _encoder_task_problems(pretrain, registry, pooling)
    outer = PartInUse.of(Kind.MASKER, pretrain.encoder.masker, registry)
    for name, task in pretrain.decoders.items():
        path = f"pretrain.decoders.{name}"
        problems += _decoder_task_problems(task, registry, path, pooling)
        if task.nested and "view" not in outer.spec.provides_of(outer.config):
            problems.append(
                f"nested hides what is hidden from the encoder, but {outer.title} gives the encoder another text: set "
                f"{path}.nested = false @ {path}.nested"
            )
    return problems


def _text_problems(pretrain: Pretrain, registry: Registry) -> Iterator[str]:
    """Yield problems of further collections, of their weights, and of the signal that weighs texts."""
    texts, weights = pretrain.texts or {}, pretrain.text_weights or {}
    for name, chosen in texts.items():
        yield from _value_problems(chosen, registry, f"pretrain.texts.{name}")
    sources = (OWN, *texts)
    for name in weights.keys() - {*sources}:
        yield (
            f"text_weights names {name!r}, which is not among pretrain.texts{did_you_mean(name, sources)} known: "
            f"{', '.join(sources)} @ pretrain.text_weights.{name}"
        )
    if weights and not texts:
        yield "text_weights weighs texts of several collections, but there is one: add texts @ pretrain.text_weights"
    if not any(weights.get(name, 1.0) for name in sources):
        yield "no text is drawn: every weight is 0 @ pretrain.text_weights"
    scopes = {spec.name: spec.scope_of(spec.config()) for spec in registry.specs(Kind.SIGNAL)}
    if pretrain.weigh_by and scopes.get(pretrain.weigh_by) != "text":
        known = [name for name, scope in scopes.items() if scope == "text"]
        yield (
            f"{pretrain.weigh_by!r} is not a signal of texts{did_you_mean(pretrain.weigh_by, known)} known: "
            f"{', '.join(known) or 'none'} @ pretrain.weigh_by"
        )


def _encoder_task_problems(pretrain: Pretrain, registry: Registry, pooling: Choice) -> list[str]:
    masker, context, *losses = parts_of(pretrain.encoder, registry, "pretrain.encoder")
    offered = provided_by(ENCODER, BATCH, masker=masker.spec.provides_of(masker.config))
    problems = [
        problem
        for loss in losses
        for problem in (
            vector_problems(loss.spec, loss.config, loss.path, pooling, registry)
            or _loss_problems(loss, offered, "the encoder", registry)
        )
    ]
    compare = any("partners" in part.spec.receives_of(part.config) for part in parts_in_use(pretrain, registry))
    if pretrain.encoder.context != ITSELF and not compare:
        problems.append(
            f"{context.title} chooses a partner for each text, but no loss compares two texts; a decoder rebuilds "
            f"another text by its own context @ {context.path}"
        )
    return problems


def _decoder_task_problems(task: DecoderTask, registry: Registry, path: str, pooling: Choice) -> list[str]:
    decoder = PartInUse.of(Kind.DECODER, task.decoder, registry, f"{path}.decoder")
    masker = PartInUse.of(Kind.MASKER, task.masker, registry, f"{path}.masker") if task.masker else None
    problems = vector_problems(decoder.spec, decoder.config, decoder.path, pooling, registry)
    problems = problems or _decoder_problems(decoder, masker, registry)
    if task.nested and task.context != ITSELF:
        problems.append(
            f"nested hides what is hidden from the encoder, but the decoder rebuilds another text (context "
            f"{task.context.use!r}): set {path}.nested = false @ {path}.nested"
        )
    offered = tuple(sorted({*decoder.spec.provides_of(decoder.config), *provided_by(BATCH)}))
    for name, term in task.losses.items():
        loss = PartInUse.of(Kind.LOSS, term, registry, f"{path}.losses.{name}")
        problems += _loss_problems(loss, offered, decoder.title, registry)
    return problems


def _declaration_problems(part: PartInUse) -> list[str]:
    """Return problems of a part's declaration under these settings, regardless of the other parts."""
    receives, spec = part.spec.receives_of(part.config), part.spec
    problems = [f"{problem} @ {part.path}" for problem in missing_extras(spec)]
    problems += [
        f"{part.title} requires {word!r}, which no stage of pre-training provides"
        f"{did_you_mean(word, OFFERED_TO_PRETRAINING)} allowed: "
        f"{', '.join(OFFERED_TO_PRETRAINING)} @ {part.path}"
        for word in spec.requires_of(part.config)
        if word not in OFFERED_TO_PRETRAINING
    ]
    problems += [
        f"{part.title}: {problem} @ {part.path}"
        for problem in scope_problems(spec.kind, spec.scope_of(part.config), receives)
    ]
    return problems


def _signal_problems(parts: Iterable[PartInUse], registry: Registry) -> Iterator[str]:
    """Yield unknown signals, settings that a signal refuses, and settings on which two parts disagree."""
    seen: dict[tuple[str, str], tuple[PartInUse, Any]] = {}
    available = registry.names(Kind.SIGNAL)
    for part in parts:
        for name, settings in part.spec.signals_of(part.config).items():
            if name not in available:
                yield (
                    f"{part.title} reads the signal {name!r}, which is not installed{did_you_mean(name, available)} "
                    f"known: {', '.join(available) or 'none'}; see `drkit list signal` @ {part.path}"
                )
                continue
            try:
                registry.get(Kind.SIGNAL, name).config(**settings)
            except (TypeError, ValueError) as error:
                yield f"{part.title} reads the signal {name!r} with invalid settings: {error} @ {part.path}"
            for key, value in settings.items():
                other, earlier = seen.setdefault((name, key), (part, value))
                if earlier != value:
                    yield (
                        f"{part.title} needs the signal {name!r} with {key} = {value!r}, but {other.title} needs it "
                        f"with {earlier!r}, and a run computes each signal once: set both to the same @ {part.path}"
                    )


def _capability_problems(parts: Iterable[PartInUse]) -> Iterator[str]:
    """Yield capabilities that two parts require with different settings, although a run makes each once."""
    seen: dict[str, tuple[PartInUse, Any]] = {}
    for part in parts:
        for name, settings in part.spec.requires_of(part.config).items():
            other, earlier = seen.setdefault(name, (part, settings)) if settings is not None else (part, None)
            if earlier != settings:
                yield (
                    f"{part.title} requires {name} with other settings than {other.title} at {other.path}, and a run "
                    f"makes it once: give both the same settings @ {part.path}"
                )


def _decoder_problems(decoder: PartInUse, masker: PartInUse | None, registry: Registry) -> list[str]:
    receives = decoder.spec.receives_of(decoder.config)
    views = masker.spec.provides_of(masker.config) if masker else frozenset()
    from_masker = receives - {*provided_by(DECODING), *map(vector_name, vector_names(receives))}
    lacking = sorted(from_masker - views)
    if not lacking:
        return []
    offer = f"{masker.title} provides {join_names(sorted(views))}" if masker else "it has no masker"
    return [
        f"{decoder.title} needs {join_names(lacking)}; {offer}. "
        f"{_unknown_names(lacking, Kind.MASKER, registry)}{maskers_that_fit(registry, from_masker)} @ {decoder.path}"
    ]


def _loss_problems(loss: PartInUse, offered: tuple[str, ...], source: str, registry: Registry) -> list[str]:
    receives = loss.spec.receives_of(loss.config)
    named = {*map(vector_name, vector_names(receives))} if source == "the encoder" else set()
    lacking = sorted(receives - {*offered} - named)
    if not lacking:
        return _gathering_problems(loss)
    return [
        f"{loss.title} needs {join_names(lacking)}; {source} provides {join_names(offered)}. "
        f"{_unknown_names(lacking, Kind.DECODER, registry)}{losses_that_fit(registry, offered)} @ {loss.path}"
    ]


def _gathering_problems(loss: PartInUse) -> list[str]:
    """A loss that compares the rows of the whole batch must receive plain tensors: bundles cannot be gathered."""
    if loss.spec.scope_of(loss.config) != "batch":
        return []
    bundles = {p.name for p in PROVIDED if p.source == ENCODER and not p.per_text}
    wrong = sorted(bundles & loss.spec.receives_of(loss.config))
    if not wrong:
        return []
    return [
        f"{loss.title} has scope 'batch' and receives {join_names(wrong)}, which cannot be gathered from chunks and "
        f"processes; it must receive tensors with one row per text, such as bottleneck @ {loss.path}"
    ]


def _unknown_names(names: Iterable[str], kind: Kind, registry: Registry) -> str:
    """Return a sentence for each name that neither drkit nor any installed part of this kind provides."""
    available = builtin_names() | {name for spec in registry.specs(kind) for name in spec.provides}
    unknown = [name for name in names if name not in available]
    return "".join(f"No installed part provides {name!r}{did_you_mean(name, sorted(available))} " for name in unknown)


def unread_choices(pretrain: Pretrain, registry: Registry) -> list[str]:
    """Return a sentence for each choice that no part reads: the recipe works, but the choice has no effect."""
    found = []
    for task in pretrain.decoders.values():
        decoder = registry.get(Kind.DECODER, task.decoder.use)
        if task.masker is None or reads_mask(task, registry):
            continue
        masker = PartInUse.of(Kind.MASKER, task.masker, registry)
        if signals := sorted(masker.spec.signals_of(masker.config)):
            found.append(
                f"the decoder {decoder.name!r} reads no masked view of the text, so what {masker.title} hides from it "
                f"by the signal {join_names(signals)} has no effect: --masker uniform trains the same encoder, "
                f"--encoder-masker {masker.spec.name} masks what the encoder reads"
            )
    return found


def reads_mask(task: DecoderTask, registry: Registry) -> bool:
    """Return whether a decoder reads what its masker makes."""
    decoder = registry.get(Kind.DECODER, task.decoder.use)
    return bool(decoder.receives_of(task.decoder.config) & {*_DECODER_VIEWS})


# What a masker makes for the decoder alone.
_DECODER_VIEWS = ("view", "rows")
