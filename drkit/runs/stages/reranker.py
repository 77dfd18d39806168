"""Stage: train the cross-encoder that re-ranks and teaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from drkit.core.spec import Kind
from drkit.errors import DrkitError
from drkit.recipe.schema import Choice, Training
from drkit.runs.stage import StageRun, StageSpec, from_recipe

if TYPE_CHECKING:
    from drkit.data.tables import StoredCollection
    from drkit.train.pairs import TrainingPairs


@frozen
class RerankerSettings:
    """How the cross-encoder is trained; pretrained: what it starts from, None for the input `start`."""

    pretrained: str | None = from_recipe("reranker.pretrained")
    layers: int = from_recipe("reranker.layers")
    training: Training = from_recipe("reranker")
    loss: Choice = from_recipe("reranker.loss")
    negatives: int = from_recipe("reranker.negatives")
    forward_factor: int = from_recipe("reranker.forward_factor")
    max_length: int = from_recipe("reranker.max_length")
    seed: int = from_recipe("seed")


def run(stage: StageRun[RerankerSettings]) -> Mapping[str, Any]:
    """Write the cross-encoder; returns steps, losses, and the groups that it really had."""
    import numpy as np

    from drkit.core import processes
    from drkit.core.types import BuildContext
    from drkit.data.tables import collection_of
    from drkit.encoders import CrossEncoder
    from drkit.train.reranker import GroupCollator, GroupRanker
    from drkit.train.trainer import train_in

    settings = stage.settings
    start = settings.pretrained or str(stage.inputs["start"])
    layers = 0 if settings.pretrained else settings.layers
    encoder = CrossEncoder.start_from(start, max_length=_longest(stage, start), seed=settings.seed, layers=layers)
    context = BuildContext(tokenizer=encoder.tokenizer, seed=settings.seed)
    loss = stage.registry.build(Kind.LOSS, settings.loss.use, settings.loss.config, context)
    collection = collection_of(stage.inputs)
    queries = list(collection.queries("train"))
    pairs = _pairs(stage, collection, [query.query_id for query in queries])
    collate = GroupCollator(
        pairs=pairs,
        texts=[queries[index].text for index in pairs.queries],
        corpus=collection.corpus,
        tokens=encoder.pairs,
        negatives=settings.negatives,
        seed=settings.seed,
    )
    effective = _effective_batch(pairs, settings)
    stage.progress.note(_in_words(effective))
    result = train_in(
        stage.folder,
        GroupRanker(encoder, loss, forward_factor=settings.forward_factor),
        collate,
        training=settings.training,
        lengths=np.ones(len(pairs), dtype=np.int32),  # groups are drawn anew every epoch: none is longer beforehand
        seed=settings.seed,
        progress=stage.progress,
    )
    if processes.rank() == 0:
        encoder.save_into(stage.folder)
    return {"steps": result.steps, "loss": result.loss, "seconds": result.seconds, **effective}


def _longest(stage: StageRun[RerankerSettings], start: str) -> int:
    """Tokens a pair at most: without an encoder of its own, no more than the rounds' encoder has positions for."""
    from drkit.encoders.architectures import longest_text
    from drkit.encoders.masked_lm import read_config

    wanted = stage.settings.max_length
    if stage.settings.pretrained:
        return wanted
    positions = longest_text(read_config(start, trust_remote_code=False))
    if wanted > positions:
        stage.progress.note(f"the re-ranker reads {positions} tokens a pair, as many as the encoder has positions for")
    return min(wanted, positions)


def _pairs(stage: StageRun[RerankerSettings], collection: StoredCollection, query_ids: Sequence[str]) -> TrainingPairs:
    """The judged queries that have at least one negative: a positive alone teaches a listwise loss nothing."""
    import numpy as np

    from drkit.train.negatives import read_negatives
    from drkit.train.pairs import training_pairs

    negatives = read_negatives(stage.inputs["negatives"])
    positives = collection.positive_indices("train")
    # Wherever the list comes from: what answers a query is not a negative of it.
    mined = {query: own[~np.isin(own, positives.get(query, ()))] for query, own in negatives.items()}
    pairs = training_pairs(query_ids, positives, mined)
    kept = np.flatnonzero([len(own) > 0 for own in pairs.negatives])
    if not len(kept):
        raise DrkitError(
            "no training query has both a passage judged relevant and a mined negative, and the re-ranker needs both; "
            "loosen the filters behind reranker.miners, or take another source"
        )
    if len(kept) < len(pairs):
        stage.progress.note(
            f"{len(pairs) - len(kept):,} queries have no negative: the re-ranker is trained without them"
        )
    return pairs.subset(kept)


def _in_words(effective: Mapping[str, Any]) -> str:
    return (
        f"{effective['training_queries']:,} training queries, {effective['queries_per_batch']:,} a batch; "
        f"negatives a query: {effective['negatives_per_query']:g}, pairs a batch: {effective['pairs_per_batch']:,g}"
    )


def _effective_batch(pairs: TrainingPairs, settings: RerankerSettings) -> dict[str, Any]:
    """The batch a step really sees."""
    import numpy as np

    from drkit.core import processes

    training = settings.training
    queries = min(training.per_device_train_batch_size * processes.count(), len(pairs))
    hard = float(np.mean([min(len(own), settings.negatives) for own in pairs.negatives]))
    return {
        "training_queries": len(pairs),
        "processes": processes.count(),
        "queries_per_batch": queries,
        "queries_per_step": queries * training.gradient_accumulation_steps,
        "negatives_per_query": round(hard, 3),
        "pairs_per_batch": round(queries * (1 + hard), 1),
    }


RERANKER = StageSpec(
    name="reranker",
    version=1,
    settings=RerankerSettings,
    run=run,
    inputs={
        "start": "the checkpoint that it starts from",
        "passages": "the corpus",
        "train": "training queries and judgements",
        "negatives": "mined negatives",
    },
    records=("log.jsonl", "training.json"),
    resumable=True,
    joint=True,
)
