"""Plan the first half of a run: from texts to the encoder that fine-tuning starts from.

    collection -> vocabulary -> tokens -> [spans -> queries] -> [pseudo-queries] -> initial -> [signals, generator]
               -> pretrained

A stage in brackets is planned if a part needs it (`drkit.recipe.parts.required_signals` and `required_capabilities`);
pseudo-queries if the recipe has a table of them (after the last encoder, if their round trip searches with it).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from drkit.core.files import local_path, path_state
from drkit.core.hub import check_model_path
from drkit.core.spec import GeneratorSettings, Kind, QuerySettings
from drkit.encoders.architectures import check_start_model
from drkit.encoders.pooling import POOLINGS, is_weighted
from drkit.errors import DrkitError
from drkit.evaluate.names import INITIAL
from drkit.recipe.parts import FOR_EXTRACTIVE, join_names, required_capabilities, required_signals, signal_scopes
from drkit.recipe.schema import (
    FROM_SCRATCH,
    GIVEN,
    PRETRAINED,
    PSEUDO,
    Choice,
    EncoderSettings,
    Pretrain,
    PseudoQueries,
    Recipe,
)
from drkit.runs.stage import PlanBuilder, StageOutput, TextReading, files_state, settings_from
from drkit.runs.stages.pretrain import KEPT, PRETRAIN, PRETRAINED_ALONE
from drkit.runs.stages.queries import PSEUDO_QUERIES, QUERIES, SPLIT
from drkit.runs.stages.start import (
    ENCODER_FROM_SCRATCH,
    EXISTING_ENCODER,
    EXISTING_GENERATOR,
    TRAINED_GENERATOR,
    GeneratorSizes,
    PoolingPart,
)
from drkit.runs.stages.texts import (
    COLLECTION,
    EXISTING_VOCABULARY,
    FITTED,
    MIXTURE,
    PASSAGE_TOKENS,
    QUERY_SIGNAL,
    SIGNAL,
    SOURCES,
    SPANS,
    VALUES,
    WORDPIECE,
)
from drkit.runs.work import describe_schedule

VOCABULARY, TOKENS = StageOutput("vocabulary"), StageOutput("tokens")
PASSAGES = StageOutput("collection", "passages")
# What pre-training reads if it has further collections: all texts, and their tokens.
MIXED_PASSAGES, MIXED_TOKENS = StageOutput("mixture", "passages"), StageOutput("tokens-mixture")


def split_of(name: str) -> StageOutput:
    """Return a split of the collection: its queries, judgements and given negatives."""
    return StageOutput("collection", name)


def training_split(pairs: str) -> StageOutput:
    """Return the split that a round learns from: pseudo-queries, or the collection's training queries."""
    return StageOutput(PSEUDO_QUERIES.name, SPLIT) if pairs == PSEUDO else split_of("train")


def queries_of(name: str) -> StageOutput:
    """Return the queries of a split, without its judgements."""
    return StageOutput("collection", f"{name}/queries.arrow")


def plan_texts(builder: PlanBuilder) -> None:
    """Add the stages that read the collection and tokenise its passages."""
    recipe = builder.recipe
    source = builder.registry.get(Kind.COLLECTION, recipe.collection.use)
    builder.add(
        "collection",
        COLLECTION,
        "read texts, queries and judgements",
        sources={"collection": files_state(source, recipe.collection.config)},
        extra={"scored": recipe.finetune is not None and GIVEN in recipe.finetune.column_sources()},
    )
    if recipe.pretrain and recipe.pretrain.texts:
        _plan_mixture(builder, recipe.pretrain.texts)
    if recipe.encoder.pretrained:
        if ignored := [
            name for name in FROM_SCRATCH if getattr(recipe.encoder, name) != getattr(EncoderSettings(), name)
        ]:
            names = ", ".join(f"encoder.{name}" for name in ignored)
            builder.notes.append(
                f"only an encoder made from scratch has {names}; {recipe.encoder.pretrained} keeps its own"
            )
        state = {"encoder.pretrained": path_state(recipe.encoder.pretrained)}
        builder.add("vocabulary", EXISTING_VOCABULARY, "take the encoder's tokenizer", sources=state)
    else:
        queries = {"queries": queries_of("train")} if builder.learns_from_judgements else {}
        texts = {"passages": _passages_of_pretraining(builder), **queries}
        builder.add("vocabulary", WORDPIECE, "train a WordPiece vocabulary", texts)
    inputs = {"passages": PASSAGES, "vocabulary": VOCABULARY}
    builder.add("tokens", PASSAGE_TOKENS, "tokenise every passage once, memory-mapped", inputs)
    if builder.has(MIXTURE):
        mixed = {"passages": MIXED_PASSAGES, "vocabulary": VOCABULARY}
        builder.add(MIXED_TOKENS.stage, PASSAGE_TOKENS, "tokenise the texts of pre-training", mixed)


def _plan_mixture(builder: PlanBuilder, texts: Mapping[str, Choice]) -> None:
    """Add the stage that reads further collections for pre-training."""
    specs = {name: builder.registry.get(Kind.COLLECTION, chosen.use) for name, chosen in texts.items()}
    builder.add(
        MIXTURE.name,
        MIXTURE,
        f"the texts of pre-training: the collection's, and those of {join_names(texts)}",
        {"passages": PASSAGES},
        sources={f"pretrain.texts.{name}": files_state(specs[name], texts[name].config) for name in texts},
    )
    builder.notes.append("time, memory and disk are counted without the texts of pretrain.texts")


def _passages_of_pretraining(builder: PlanBuilder) -> StageOutput:
    return MIXED_PASSAGES if builder.has(MIXTURE) else PASSAGES


def _tokens_of_pretraining(builder: PlanBuilder) -> StageOutput:
    """Return the tokens of whole texts that pre-training reads."""
    return MIXED_TOKENS if builder.has(MIXTURE) else TOKENS


def plan_encoder(builder: PlanBuilder) -> str:
    """Add the stages up to the encoder that fine-tuning starts from; returns the name of the last one."""
    recipe, registry = builder.recipe, builder.registry
    signals, required = required_signals(recipe.pretrain, registry), required_capabilities(recipe.pretrain, registry)
    texts = _plan_contexts(builder, signals, required)
    if recipe.pseudo_queries and not recipe.pseudo_queries.searches_with_encoder:
        plan_pseudo_queries(builder, recipe.pseudo_queries)
    _plan_initial(builder)
    pretrain = recipe.pretrain
    if pretrain is None:
        return INITIAL
    name = _plan_pretraining(builder, PRETRAINED, pretrain, texts)
    for kept, step in pretrain.kept.items():
        checkpoint = {"checkpoint": StageOutput(name, kept)}
        builder.add(kept, KEPT, f"the checkpoint of step {step:,}", checkpoint, extra={"step": step})
    return name


def plan_masked_lm(builder: PlanBuilder, pretrain: Pretrain) -> str:
    """Add the pre-training without decoders, which a baseline starts from."""
    alone, spans = pretrain.without_decoders(), builder.has(SPANS)
    return _plan_pretraining(
        builder, PRETRAINED_ALONE, alone, {"spans" if spans else "tokens": _pretraining_texts(builder)}
    )


def _plan_pretraining(builder: PlanBuilder, name: str, pretrain: Pretrain, texts: Mapping[str, StageOutput]) -> str:
    """Add a pre-training, its signals and generator."""
    required = required_capabilities(pretrain, builder.registry)
    inputs = {"start": StageOutput(INITIAL), **texts}
    inputs |= _plan_signals(builder, required_signals(pretrain, builder.registry), texts)
    if builder.has(MIXTURE):
        inputs["sources"] = StageOutput(MIXTURE.name, SOURCES)
    if "generator" in required:
        settings = required["generator"] or GeneratorSettings()
        inputs["generator"] = StageOutput(_plan_generator(builder, pretrain, settings))
    return builder.add(
        name,
        PRETRAIN,
        f"pre-train with {_tasks_in_words(pretrain)}, {describe_schedule(pretrain)}",
        {**inputs, **_probe_inputs(builder)},
        extra={
            "reading": evolve(settings_from(TextReading, builder.recipe), passages_per_document=None),
            "pretrain": pretrain,
        },
    )


def _tasks_in_words(pretrain: Pretrain) -> str:
    """Return the maskers and decoders of a pre-training in words."""
    tasks = pretrain.decoders.values()
    if not tasks:
        return f"masker {pretrain.encoder.masker.use}, without a decoder"
    return join_names(
        f"masker {(task.masker or pretrain.encoder.masker).use} and decoder {task.decoder.use}" for task in tasks
    )


def plan_pseudo_queries(
    builder: PlanBuilder, settings: PseudoQueries, retriever: Mapping[str, StageOutput] | None = None
) -> str:
    """Add the stage that makes training queries from the passages, with the inputs that its sources read.

    retriever: `encoder` and `index` of the encoder that the round trip searches with, if it does.

    Raises DrkitError for a file or model that does not exist.
    """
    signals = required_signals(builder.recipe.pretrain, builder.registry)
    paths = {source: source.partition(":")[2] for source in settings.sources if ":" in source}
    for source, path in paths.items():
        if source.startswith("file:") and not local_path(path).is_file():
            raise DrkitError(f"the file of queries {path} does not exist @ pseudo_queries.sources")
        if source.startswith("model:"):
            check_model_path(path)
    inputs = {"passages": PASSAGES, "vocabulary": VOCABULARY, **(retriever or {})}
    if "extractive" in settings.sources:
        default = Choice(FOR_EXTRACTIVE, builder.registry.get(Kind.SIGNAL, FOR_EXTRACTIVE).config())
        importance = _plan_signal(builder, signals.get(FOR_EXTRACTIVE, default), TOKENS)
        inputs |= {"tokens": TOKENS, "importance": StageOutput(importance, VALUES)}
    return builder.add(
        PSEUDO_QUERIES.name,
        PSEUDO_QUERIES,
        f"training queries from the passages: {', '.join(settings.sources)}",
        inputs,
        sources={f"pseudo_queries.{source}": path_state(path) for source, path in paths.items()},
        extra={
            "reading": settings_from(TextReading, builder.recipe) if retriever else None,
            "language": builder.recipe.evaluation.bm25_language if "bm25" in settings.found_by else None,
        },
    )


def _probe_inputs(builder: PlanBuilder) -> dict[str, StageOutput]:
    """Return the inputs of probes, which only measure.

    They search for the queries of dev, else of train, but never of the evaluated split. If all training queries are
    made from the passages, nothing reads those of the collection.
    """
    splits = [*(["dev"] if "dev" in builder.splits else []), *(["train"] if builder.learns_from_judgements else [])]
    split = next((split for split in splits if split != builder.recipe.evaluation.split), None)
    parts = {"tokens": TOKENS, "passages": PASSAGES, **({split: split_of(split)} if split else {})}
    return {f"probe/{name}": StageOutput(part.stage, part.path, observed=True) for name, part in parts.items()}


def _pretraining_texts(builder: PlanBuilder) -> StageOutput:
    """Return the tokens that pre-training reads: of the spans if there are any, else of the passages."""
    return StageOutput("spans") if builder.has(SPANS) else _tokens_of_pretraining(builder)


def _plan_initial(builder: PlanBuilder) -> None:
    encoder = builder.recipe.encoder
    pooling = {"token_weights": is_weighted(encoder.pooling), "learned_pooling": _learned_pooling(builder.recipe)}
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
            {"vocabulary": VOCABULARY, "tokens": _tokens_of_pretraining(builder)},
            extra={"positions": max(encoder.passage_length, encoder.query_length), **pooling},
        )


def _learned_pooling(recipe: Recipe) -> PoolingPart | None:
    """Return the pooling if it is a part."""
    encoder = recipe.encoder
    if encoder.pooling in POOLINGS:
        return None
    return PoolingPart(encoder.pooling, encoder.pooling_settings or {}, recipe.seed)


def _plan_contexts(
    builder: PlanBuilder, signals: Mapping[str, Choice], required: Mapping[str, Any]
) -> dict[str, StageOutput]:
    """Add the stages that make spans and candidate queries from the texts; returns the resulting inputs."""
    inputs = {"tokens": _tokens_of_pretraining(builder)}
    if "spans" in required:
        documents = {"passages": _passages_of_pretraining(builder), "vocabulary": VOCABULARY}
        inputs = {
            "spans": StageOutput(builder.add("spans", SPANS, "cut documents into spans of whole sentences", documents))
        }
    if "generated-queries" in required:
        importance = StageOutput(_plan_signal(builder, signals[FOR_EXTRACTIVE], _pretraining_texts(builder)), VALUES)
        settings = required["generated-queries"] or QuerySettings()
        inputs["queries"] = StageOutput(_plan_queries(builder, settings, {**inputs, "importance": importance}))
    return inputs


def _plan_signals(
    builder: PlanBuilder, signals: Mapping[str, Choice], texts: Mapping[str, StageOutput]
) -> dict[str, StageOutput]:
    """Add a stage for every signal, and one for its values of candidate queries; returns the resulting inputs."""
    inputs: dict[str, StageOutput] = {}
    scopes = signal_scopes(builder.recipe.pretrain, builder.registry) if builder.recipe.pretrain else {}
    for name, chosen in signals.items():
        stage = _plan_signal(builder, chosen, _pretraining_texts(builder))
        inputs[f"signals/{name}"] = StageOutput(stage, VALUES)
        if "queries" in texts and scopes[name] != "vocabulary":
            read = {"texts": texts["queries"], "fitted": StageOutput(stage, FITTED), **_signal_inputs(builder, chosen)}
            summary, extra = f"the signal {name} of the candidate queries", {"signal": chosen}
            query_stage = builder.add(f"{stage}-queries", QUERY_SIGNAL, summary, read, extra=extra)
            inputs[f"query-signals/{name}"] = StageOutput(query_stage, VALUES)
    return inputs


def _plan_signal(builder: PlanBuilder, chosen: Choice, texts: StageOutput) -> str:
    """Add the stage of a signal of the texts, with exactly the inputs that the signal's spec requires."""
    spec, read = builder.registry.get(Kind.SIGNAL, chosen.use), {"texts": texts}
    extra: dict[str, Any] = {"signal": chosen}
    read |= _signal_inputs(builder, chosen)
    if "characters" in spec.requires_of(chosen.config):
        read["passages"] = PASSAGES if texts == TOKENS else _passages_of_pretraining(builder)
        read |= {"spans": texts} if texts == StageOutput("spans") else {}
    else:
        extra["prompt"] = ""
    sources = {"signal": files_state(spec, chosen.config)}
    name = f"signal-{chosen.use}" if texts == _pretraining_texts(builder) else f"signal-{chosen.use}-passages"
    return builder.add(name, SIGNAL, spec.summary, read, sources=sources, extra=extra)


def _signal_inputs(builder: PlanBuilder, chosen: Choice) -> dict[str, StageOutput]:
    """Return the inputs of a signal besides the tokens, the same for passages and queries."""
    spec, read = builder.registry.get(Kind.SIGNAL, chosen.use), {}
    if "characters" in spec.requires_of(chosen.config):
        read["vocabulary"] = VOCABULARY
    if spec.scope_of(chosen.config) == "vocabulary":
        read["encoder"] = StageOutput(INITIAL, "config.json")
    return read


def _plan_queries(builder: PlanBuilder, settings: QuerySettings, texts: dict[str, StageOutput]) -> str:
    kind, _, source = settings.origin.partition(":")
    if kind == "file" and not local_path(source).is_file():
        raise DrkitError(f"the file of queries {source}, which a context names, does not exist @ pretrain")
    origin = {"file": f"read from {source}", "model": f"generated by {source}"}.get(kind, "the text's best spans")
    passages = {} if kind == "extractive" else {"passages": _passages_of_pretraining(builder)}
    return builder.add(
        "queries",
        QUERIES,
        f"candidate queries: {origin}",
        {"vocabulary": VOCABULARY, **passages, **texts},
        sources={"pretrain.queries": path_state(source)},
        extra={"queries": settings.origin, "candidates": settings.count, "prefix": settings.prefix},
    )


def _plan_generator(builder: PlanBuilder, pretrain: Pretrain, settings: GeneratorSettings) -> str:
    """Add the masked LM that fills masked positions: an existing model, random weights, or one trained first."""
    encoder = builder.recipe.encoder
    sizes = GeneratorSizes(
        positions=max(encoder.passage_length, encoder.query_length),
        layers=settings.layers,
        hidden=settings.hidden,
        heads=settings.heads,
        intermediate=settings.intermediate,
    )
    if settings.is_trained_first:
        return builder.add(
            "generator",
            TRAINED_GENERATOR,
            "the generator: train a small masked LM",
            {"vocabulary": VOCABULARY, "tokens": _tokens_of_pretraining(builder)},
            extra={"sizes": sizes, "steps": settings.steps, "training": pretrain.training_only()},
        )
    if settings.model:
        check_start_model(settings.model)
    action = "random weights" if settings.random else "load"
    return builder.add(
        "generator",
        EXISTING_GENERATOR,
        f"the generator: {' '.join(filter(None, (action, settings.model)))}",
        {"vocabulary": VOCABULARY},
        sources={"pretrain.generator": path_state(settings.model)},
        extra={"model": settings.model, "random": settings.random, "sizes": None if settings.model else sizes},
    )
