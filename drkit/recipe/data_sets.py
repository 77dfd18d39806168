"""The check of several labelled data sets in one recipe: what works with them, and what is refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import evolve

from drkit.batching.specs import RANDOM, OneDataSetConfig
from drkit.core.protocols import RefreshesNegatives
from drkit.core.registry import Registry
from drkit.core.spec import Choice, Kind
from drkit.recipe.parts import received_columns
from drkit.recipe.schema import Finetune, Recipe

# The batches of a recipe with several data sets that names none.
ONE_DATA_SET = "one-data-set"


def data_set_problems(recipe: Recipe, registry: Registry) -> Iterator[str]:
    """Yield every setting of a recipe with several labelled data sets that cannot work with them."""
    if recipe.collections is None:
        return
    yield from _collection_problems(recipe, registry)
    yield from _training_problems(recipe, registry)
    yield from _evaluation_problems(recipe)


def _collection_problems(recipe: Recipe, registry: Registry) -> Iterator[str]:
    for name, one in (recipe.collections or {}).items():
        spec = registry.get(Kind.COLLECTION, one.collection.use)
        if "queries" not in spec.provides:
            yield (
                f"the collection {spec.name!r} has no queries and judgements, so it cannot be a data set; its texts "
                f"are read by pre-training: --set 'pretrain.texts={{{name}={{use=\"{spec.name}\", ..}}}}' "
                f"@ collections.{name}"
            )
    texts = (recipe.pretrain.texts if recipe.pretrain else None) or {}
    for name in sorted(recipe.collections.keys() & texts.keys() if recipe.collections else ()):
        yield f"{name!r} is the name of a data set, and of further texts of pre-training: rename one @ pretrain.texts"
    if recipe.passage_prompts and recipe.pretrain:
        yield (
            "pre-training reads all passages with one prompt: set encoder.passage_prompt instead of those of data "
            f"sets, or pre-train in a run of its own (--encoder RUN --set pretrain=none) "
            f"@ collections.{next(iter(recipe.passage_prompts))}.passage_prompt"
        )
    if recipe.passage_prompts and recipe.encoder.passages_per_document:
        yield (
            "documents that are cut into passages are read with one prompt: set encoder.passage_prompt, or --set "
            "encoder.passages_per_document=none @ encoder.passages_per_document"
        )


def _training_problems(recipe: Recipe, registry: Registry) -> Iterator[str]:
    sets, finetune = recipe.collections or {}, recipe.finetune
    if recipe.pseudo_queries:
        yield (
            "queries are made from the passages of a single collection: --set pseudo_queries=none, and a pipeline "
            "that learns from judged queries (--pipeline two-stage) @ pseudo_queries"
        )
    if finetune is None:
        return
    if finetune.validation.every:
        yield (
            "validation ranks the passages of all data sets together: --set finetune.validation.every=0; the dev "
            "queries of each data set choose the exported retriever @ finetune.validation.every"
        )
    rounds = [one.miners for one in finetune.rounds if one.miners]
    chains = {name: one.miners for name, one in sets.items() if one.miners}
    for name, chain in chains.items():
        if not rounds and recipe.reranker is None:
            yield (
                f"no round mines negatives, so the miners of {name!r} have no effect: give the round miners, as in "
                f"--miner bm25 @ collections.{name}.miners"
            )
        if any(isinstance(one.config, RefreshesNegatives) for one in chain) or any(
            isinstance(one.config, RefreshesNegatives) for miners in rounds for one in miners
        ):
            yield (
                f"'refresh' mines for all data sets with the same chain: leave out the miners of {name!r}, or use "
                f"dense in place of refresh @ collections.{name}.miners"
            )
    yield from _weight_problems(recipe, finetune, registry)


def _weight_problems(recipe: Recipe, finetune: Finetune, registry: Registry) -> Iterator[str]:
    """Yield the batches of rounds that cannot draw data sets by their weights."""
    if not recipe.data_set_weights:
        return
    for index, current in enumerate(finetune.rounds):
        settings, path = finetune.for_round(current), f"finetune.rounds.{index}"
        use = settings.batches.use
        if use not in (RANDOM.use, ONE_DATA_SET):
            yield (
                f"the batches {use!r} do not draw data sets by their weights: --batches {ONE_DATA_SET}, or leave the "
                f"weights out @ {path}"
            )
        if use == RANDOM.use and received_columns(settings.loss, registry):
            yield (
                f"columns are made for the queries of batches, and random ones do not draw data sets by their weights "
                f"then: --batches {ONE_DATA_SET}, or leave the weights out @ {path}"
            )


def with_weights(batches: Choice, weights: Mapping[str, float]) -> Choice:
    """Return batches of one data set with the weights of the data sets, unless they have their own.

    >>> from drkit.batching.specs import OneDataSetConfig
    >>> with_weights(Choice(ONE_DATA_SET, OneDataSetConfig()), {"nq": 2.0}).config.weights
    {'nq': 2.0}
    """
    config = batches.config
    if not weights or not isinstance(config, OneDataSetConfig) or config.weights is not None or config.column:
        return batches
    return evolve(batches, config=evolve(config, weights=dict(weights)))


def _evaluation_problems(recipe: Recipe) -> Iterator[str]:
    evaluation = recipe.evaluation
    if evaluation.index != "flat":
        yield (
            f"an index of kind {evaluation.index!r} has no exact part for each data set: --set evaluation.index=flat "
            f"@ evaluation.index"
        )
