"""The first half of a plan: from texts to the encoder that fine-tuning starts from.

    collection -> vocabulary -> tokens -> [spans -> statistics -> queries] -> initial
               -> [frequencies, generator] -> pretrained

What stands in brackets is there because a part needs it (`drkit.core.compose.wanted_signals` and `capabilities`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, fields

from drkit.core.compose import capabilities, wanted_signals
from drkit.core.recipe import Choice, Pretrain, Training
from drkit.errors import DrkitError
from drkit.maskers.config import GeneratorConfig, QuerySettings
from drkit.runs.plans import estimate
from drkit.runs.plans.drafting import COSMETIC, Draft, Table, lasting
from drkit.runs.plans.sources import config_state, path_state

_GENERATOR_SIZES = ("layers", "hidden", "heads", "intermediate")


def plan_texts(draft: Draft) -> None:
    """Stages that read the collection and tokenise it."""
    recipe, encoder = draft.recipe, draft.table["encoder"]
    draft.add(
        "collection",
        "collection",
        "read texts, queries and judgements",
        (),
        settings={"collection": draft.table["collection"], "files": config_state(recipe.collection.config)},
    )
    wordpiece = {"vocab_size": encoder["vocab_size"]}
    existing = {"pretrained": recipe.encoder.pretrained, "files": path_state(recipe.encoder.pretrained)}
    draft.add(
        "vocabulary",
        "vocabulary",
        "take the encoder's tokenizer" if recipe.encoder.pretrained else "train a WordPiece vocabulary",
        ("collection",),
        settings=existing if recipe.encoder.pretrained else wordpiece,
    )
    draft.add(
        "tokens",
        "tokens",
        "tokenise once, memory-mapped",
        ("collection", "vocabulary"),
        settings={key: encoder[key] for key in ("passage_length", "query_length", *_prompts(encoder))},
    )


def _prompts(encoder: Table) -> list[str]:
    """The prompts that are not empty."""
    return [key for key in ("query_prompt", "passage_prompt") if encoder.get(key)]


def plan_encoder(draft: Draft) -> str:
    """Stages up to the encoder that fine-tuning starts from; returns the last one's name."""
    recipe = draft.recipe
    signals = wanted_signals(recipe.pretrain, draft.registry)
    required = capabilities(recipe.pretrain, draft.registry)
    needs: tuple[str, ...] = ("collection", "tokens", "initial")
    needs += _contexts(draft, signals, required)
    draft.add(
        "initial",
        "initial",
        "load the encoder to start from" if recipe.encoder.pretrained else "make the encoder from scratch",
        ("vocabulary", "tokens"),
        settings={
            "encoder": draft.table["encoder"],
            "files": path_state(recipe.encoder.pretrained),
            "seed": recipe.seed,
        },
    )
    if recipe.pretrain is None:
        return "initial"
    if "idf" in signals:
        texts = tuple(name for name in ("tokens", "spans") if name in draft.stages)
        draft.add("frequencies", "frequencies", "in how many texts each token occurs", (*texts, "initial"))
        needs += ("frequencies",)
    if "generator" in required:
        needs += (_generator(draft, recipe.pretrain, required["generator"] or GeneratorConfig()),)
    return draft.add(
        "pretrained",
        "pretrain",
        f"pre-train with masker {recipe.pretrain.masker.use} and decoder {recipe.pretrain.decoder.use}, "
        f"{estimate.schedule(recipe.pretrain)}",
        needs,
        settings={"pretrain": _trained(draft.table["pretrain"]), "seed": recipe.seed},
        resumable=True,
        joint=True,
        cost=estimate.pretraining(recipe),
    )


def _contexts(draft: Draft, signals: Mapping[str, Choice], required: Mapping[str, Any]) -> tuple[str, ...]:
    """Stages that make other texts of the texts, and what is known of both; returns those that were added."""
    lengths, texts, made = draft.table["encoder"], "tokens", []
    if "spans" in required:
        texts = draft.add(
            "spans",
            "spans",
            "cut documents into spans of whole sentences",
            ("collection", "vocabulary"),
            settings={
                "max_length": lengths["passage_length"],
                "seed": draft.recipe.seed,
                **{key: lengths[key] for key in _prompts(lengths) if key == "passage_prompt"},
            },
        )
        made.append(texts)
    if "importance" in signals:
        settings = asdict(signals["importance"].config)
        made.append(draft.add("statistics", "statistics", "PMI importance of every token", (texts,), settings=settings))
    if "generated-queries" in required:
        wanted = required["generated-queries"] or QuerySettings()
        made.append(_queries(draft, wanted, signals["importance"].config.pmi, (texts, "statistics")))
    return tuple(made)


def _queries(draft: Draft, wanted: QuerySettings, pmi: str, texts: tuple[str, ...]) -> str:
    kind, _, source = wanted.origin.partition(":")
    if kind == "file" and not Path(source).expanduser().is_file():
        raise DrkitError(f"there is no file of queries {source} @ pretrain.masker.queries")
    how = {"file": f"read from {source}", "model": f"generated by {source}"}.get(kind, "the text's own best spans")
    return draft.add(
        "queries",
        "queries",
        f"candidate queries: {how}",
        ("collection", "vocabulary", *texts),
        settings={
            "queries": wanted.origin,
            "files": path_state(source),
            "candidates": wanted.count,
            "prefix": wanted.prefix,
            "pmi": pmi,
            "max_length": draft.table["encoder"]["query_length"],
            "passage_length": draft.table["encoder"]["passage_length"],
            "seed": draft.recipe.seed,
        },
        resumable=True,
    )


def _generator(draft: Draft, pretrain: Pretrain, wanted: GeneratorConfig) -> str:
    """The masked LM that fills masked positions: how it is trained counts where the run trains it alone."""
    table = draft.table["pretrain"]
    settings: dict[str, Any] = {
        "model": wanted.model,
        "files": path_state(wanted.model),
        "random": wanted.random,
        "passage_length": draft.table["encoder"]["passage_length"],
        "seed": draft.recipe.seed,
    }
    if not wanted.model:
        settings["sizes"] = [getattr(wanted, f"generator_{name}") for name in _GENERATOR_SIZES]
    if wanted.trained_first:
        training = {a.name: table[a.name] for a in fields(Training) if a.name in table and a.name not in COSMETIC}
        settings |= {"steps": wanted.generator_steps, "training": training, "held_out": pretrain.probe.texts}
    how = "train a small masked LM" if wanted.trained_first else "random weights" if wanted.random else "load"
    return draft.add(
        "generator",
        "generator",
        f"the generator: {' '.join(filter(None, (how, wanted.model)))}",
        ("vocabulary", "tokens"),
        settings=settings,
        resumable=True,
        joint=wanted.trained_first,
    )


def _trained(table: Table) -> dict[str, Any]:
    """What pre-training depends on: of the probes, the texts that they keep out of it; how often, is no matter."""
    return {**lasting(table, "probe"), "held_out": table["probe"]["texts"]}
