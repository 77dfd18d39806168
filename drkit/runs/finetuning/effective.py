"""The batch that fine-tuning really has: how many queries and negatives stand against each other in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from drkit.core.protocols import InBatchNegatives
from drkit.runs import processes

if TYPE_CHECKING:
    from drkit.core.recipe import Choice, Training
    from drkit.runs.finetuning.pairs import PairCollator


def effective_batch(collate: PairCollator, training: Training, loss: Choice) -> dict[str, Any]:
    """Return the batch a step really sees: papers' numbers are lower elsewhere because nobody prints this.

    A batch is that of all processes together, whatever chunks it is read in; accumulation adds up gradients of several,
    and no negatives.
    """
    queries = min(training.per_device_train_batch_size * processes.count(), len(collate.pairs))
    lists = collate.refreshed(0) if collate.refreshed else collate.pairs.negatives
    hard = float(np.array([min(len(n), collate.negatives) for n in lists]).mean())
    return {
        "training_queries": len(collate.pairs),
        "processes": processes.count(),
        "queries_per_batch": queries,
        "queries_per_step": queries * training.gradient_accumulation_steps,
        "hard_negatives_per_query": round(hard, 3),
        "negatives_per_query": round(queries * (1 + hard) - 1 if in_batch(loss) else hard, 1),
    }


def in_words(effective: Mapping[str, Any]) -> str:
    """Return the effective batch in a line."""
    return (
        f"{effective['training_queries']:,} training queries, {effective['queries_per_batch']:,} a batch; "
        f"negatives a query: {effective['negatives_per_query']:,} in the batch, "
        f"{effective['hard_negatives_per_query']:g} of them mined for it"
    )


def in_batch(loss: Choice) -> bool:
    """Whether a query stands against the passages of others."""
    return loss.config.in_batch if isinstance(loss.config, InBatchNegatives) else True


def mean_of(log: Sequence[Mapping[str, Any]], metric: str) -> float:
    """Return the mean of a metric over all steps: a line of the log has that of the steps since the line before."""
    steps = np.diff([0, *(line["step"] for line in log)])
    return float(np.average([line[metric] for line in log], weights=steps))
