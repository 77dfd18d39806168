"""The first half of a plan: from texts to the encoder that fine-tuning starts from.

    collection -> vocabulary -> tokens -> [spans -> queries] -> initial -> [signals, generator] -> pretrained

A stage in brackets is planned if a part needs it (`drkit.recipe.parts.required_signals` and `required_capabilities`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drkit.core.spec import Kind
from drkit.errors import DrkitError
from drkit.maskers.specs import GeneratorConfig, QuerySettings
from drkit.recipe.parts import FOR_EXTRACTIVE, required_capabilities, required_signals
from drkit.recipe.schema import Choice, Pretrain
from drkit.runs import estimate
from drkit.runs.draft import PASSAGES, Draft, files_state, path_state, queries_of, split_of
from drkit.runs.retriever import TextReading
from drkit.runs.stage import Part, settings_from
from drkit.runs.stages import generator, initial, vocabulary
from drkit.runs.stages.collection import COLLECTION
from drkit.runs.stages.generator import GeneratorSizes
from drkit.runs.stages.pretrain import PRETRAIN
from drkit.runs.stages.queries import QUERIES
from drkit.runs.stages.signals import FITTED, QUERY_SIGNAL, SIGNAL, VALUES
from drkit.runs.stages.spans import SPANS
from drkit.runs.stages.tokens import PASSAGE_TOKENS

VOCABULARY, TOKENS = Part("vocabulary"), Part("tokens")


def plan_texts(draft: Draft) -> None:
    """Add the stages that read the collection and tokenise its passages."""
    recipe = draft.recipe
    source = draft.registry.get(Kind.COLLECTION, recipe.collection.use)
    draft.add(
        "collection",
        COLLECTION,
        "read texts, queries and judgements",
        sources={"collection": files_state(source, recipe.collection.config)},
    )
    if recipe.encoder.pretrained:
        state = {"encoder.pretrained": path_state(recipe.encoder.pretrained)}
        draft.add("vocabulary", vocabulary.EXISTING, "take the encoder's tokenizer", sources=state)
    else:
        queries = {"queries": queries_of("train")} if "train" in draft.splits else {}
        texts = {"passages": PASSAGES, **queries}
        draft.add("vocabulary", vocabulary.WORDPIECE, "train a WordPiece vocabulary", texts)
    inputs = {"passages": PASSAGES, "vocabulary": VOCABULARY}
    draft.add("tokens", PASSAGE_TOKENS, "tokenise every passage once, memory-mapped", inputs)


def plan_encoder(draft: Draft) -> str:
    """Add the stages up to the encoder that fine-tuning starts from; returns the last one's name."""
    recipe = draft.recipe
    signals = required_signals(recipe.pretrain, draft.registry)
    required = required_capabilities(recipe.pretrain, draft.registry)
    texts = _plan_contexts(draft, signals, required)
    _plan_initial(draft)
    texts |= _plan_signals(draft, signals, texts)
    pretrain = recipe.pretrain
    if pretrain is None:
        return "initial"
    inputs = {"start": Part("initial"), **texts}
    if "generator" in required:
        wanted = required["generator"] or GeneratorConfig()
        inputs["generator"] = Part(_plan_generator(draft, pretrain, wanted))
    return draft.add(
        "pretrained",
        PRETRAIN,
        f"pre-train with masker {pretrain.masker.use} and decoder {pretrain.decoder.use}, "
        f"{estimate.schedule(pretrain)}",
        {**inputs, **_probed(draft)},
        own={"reading": settings_from(TextReading, recipe)},
        cost=estimate.pretraining(recipe),
    )


def _probed(draft: Draft) -> dict[str, Part]:
    """What probes search in; nothing that they read changes the result."""
    split = next((split for split in ("dev", "train") if split in draft.splits), None)
    parts: dict[str, Part] = {"tokens": TOKENS, "passages": PASSAGES}
    if split:
        parts[split] = split_of(split)
    return {f"probe/{name}": Part(part.stage, part.path, observed=True) for name, part in parts.items()}


def _texts(draft: Draft) -> Part:
    """The tokens of the texts that pre-training reads: those of the spans where there are any, else of the passages."""
    return Part("spans") if "spans" in draft.stages else TOKENS


def _plan_initial(draft: Draft) -> None:
    encoder = draft.recipe.encoder
    if encoder.pretrained:
        draft.add(
            "initial",
            initial.EXISTING,
            "load the encoder to start from",
            {"vocabulary": VOCABULARY},
            sources={"encoder.pretrained": path_state(encoder.pretrained)},
        )
    else:
        draft.add(
            "initial",
            initial.FROM_SCRATCH,
            "make the encoder from scratch",
            {"vocabulary": VOCABULARY, "tokens": TOKENS},
            own={"positions": max(encoder.passage_length, encoder.query_length)},
        )


def _plan_contexts(draft: Draft, signals: Mapping[str, Choice], required: Mapping[str, Any]) -> dict[str, Part]:
    """Add the stages that make other texts of the texts, and what is known of both; returns the inputs they give."""
    inputs = {"tokens": TOKENS}
    if "spans" in required:
        cut = {"passages": PASSAGES, "vocabulary": VOCABULARY}
        inputs = {"spans": Part(draft.add("spans", SPANS, "cut documents into spans of whole sentences", cut))}
    if "generated-queries" in required:
        weighed = _plan_signal(draft, signals[FOR_EXTRACTIVE])
        wanted = required["generated-queries"] or QuerySettings()
        inputs["queries"] = Part(_plan_queries(draft, wanted, {**inputs, "importance": Part(weighed, VALUES)}))
    return inputs


def _plan_signals(draft: Draft, signals: Mapping[str, Choice], texts: Mapping[str, Part]) -> dict[str, Part]:
    """Add a stage for every signal, and one for its values of the queries that are contexts; returns the inputs."""
    inputs = {}
    for name, chosen in signals.items():
        stage = _plan_signal(draft, chosen)
        inputs[f"signals/{name}"] = Part(stage, VALUES)
        scope = draft.registry.get(Kind.SIGNAL, name).scope_of(chosen.config)
        if "queries" in texts and scope != "vocabulary":
            read = {"texts": texts["queries"], "fitted": Part(stage, FITTED), **_beside_tokens(draft, chosen)}
            summary, own = f"the signal {name} of the candidate queries", {"signal": chosen}
            made = draft.add(f"{stage}-queries", QUERY_SIGNAL, summary, read, own=own)
            inputs[f"query-signals/{name}"] = Part(made, VALUES)
    return inputs


def _plan_signal(draft: Draft, chosen: Choice) -> str:
    """Add the stage of a signal of the texts; it reads what the signal's spec says, and no more."""
    spec, read = draft.registry.get(Kind.SIGNAL, chosen.use), {"texts": _texts(draft)}
    own: dict[str, Any] = {"signal": chosen}
    read |= _beside_tokens(draft, chosen)
    if "characters" in spec.requires_of(chosen.config):
        read["passages"] = PASSAGES
        read |= {"spans": Part("spans")} if "spans" in draft.stages else {}
    else:
        own["prompt"] = ""
    sources = {"signal": files_state(spec, chosen.config)}
    return draft.add(f"signal-{chosen.use}", SIGNAL, spec.summary, read, sources=sources, own=own)


def _beside_tokens(draft: Draft, chosen: Choice) -> dict[str, Part]:
    """What a signal reads beside the tokens of texts, whatever texts they are."""
    spec, read = draft.registry.get(Kind.SIGNAL, chosen.use), {}
    if "characters" in spec.requires_of(chosen.config):
        read["vocabulary"] = VOCABULARY
    if spec.scope_of(chosen.config) == "vocabulary":
        read["encoder"] = Part("initial", "config.json")
    return read


def _plan_queries(draft: Draft, wanted: QuerySettings, texts: dict[str, Part]) -> str:
    kind, _, source = wanted.origin.partition(":")
    if kind == "file" and not Path(source).expanduser().is_file():
        raise DrkitError(f"the file of queries {source} does not exist @ pretrain.masker.queries")
    how = {"file": f"read from {source}", "model": f"generated by {source}"}.get(kind, "the text's own best spans")
    given: dict[str, Part] = {} if kind == "extractive" else {"passages": PASSAGES}
    return draft.add(
        "queries",
        QUERIES,
        f"candidate queries: {how}",
        {"vocabulary": VOCABULARY, **given, **texts},
        sources={"pretrain.masker.queries": path_state(source)},
        own={"queries": wanted.origin, "candidates": wanted.count, "prefix": wanted.prefix},
    )


def _plan_generator(draft: Draft, pretrain: Pretrain, wanted: GeneratorConfig) -> str:
    """Add the masked LM that fills masked positions: a given one, random weights, or one that is trained first."""
    encoder = draft.recipe.encoder
    sizes = GeneratorSizes(
        positions=max(encoder.passage_length, encoder.query_length),
        layers=wanted.generator_layers,
        hidden=wanted.generator_hidden,
        heads=wanted.generator_heads,
        intermediate=wanted.generator_intermediate,
    )
    if wanted.trained_first:
        return draft.add(
            "generator",
            generator.TRAINED,
            "the generator: train a small masked LM",
            {"vocabulary": VOCABULARY, "tokens": TOKENS},
            own={"sizes": sizes, "steps": wanted.generator_steps, "training": pretrain.training_only()},
        )
    how = "random weights" if wanted.random else "load"
    return draft.add(
        "generator",
        generator.EXISTING,
        f"the generator: {' '.join(filter(None, (how, wanted.model)))}",
        {"vocabulary": VOCABULARY},
        sources={"pretrain.masker.model": path_state(wanted.model)},
        own={"model": wanted.model, "random": wanted.random, "sizes": None if wanted.model else sizes},
    )
