"""The batch and the negatives that a run says it had are those it had."""

import numpy as np
import pytest

from drkit.core.spec import Choice
from drkit.losses import ContrastiveConfig, KlDistillationConfig, MarginMseConfig, PairwiseConfig
from drkit.recipe.training import Training
from drkit.train.biencoder import PairCollator, TrainingPairs, effective_batch


def effective(loss, monkeypatch, *, processes=1, accumulation=1, queries=100):
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    some = [np.arange(count) for count in (0, 1, 2, 9)]
    pairs = TrainingPairs(
        queries=np.arange(queries),
        positives=[np.array([1])] * queries,
        negatives=[some[q % 4] for q in range(queries)],
    )
    collate = PairCollator(pairs=pairs, queries=None, passages=None, negatives=3, seed=1)
    training = Training(per_device_train_batch_size=8, gradient_accumulation_steps=accumulation)
    return effective_batch(collate, training, Choice("any", loss))


@pytest.mark.parametrize("loss", [ContrastiveConfig(), KlDistillationConfig()])
def test_in_batch_negatives_count_those_of_every_process_and_none_of_accumulation(monkeypatch, loss):
    found = effective(loss, monkeypatch, processes=2, accumulation=4)
    assert found["queries_per_batch"] == 16
    assert found["queries_per_step"] == 64
    assert found["hard_negatives_per_query"] == 1.5
    assert found["negatives_per_query"] == 16 * (1 + 1.5) - 1


@pytest.mark.parametrize("loss", [PairwiseConfig(), MarginMseConfig(), KlDistillationConfig(alpha=0.0)])
def test_a_loss_over_own_passages_has_no_others(monkeypatch, loss):
    assert effective(loss, monkeypatch, processes=2)["negatives_per_query"] == 1.5


def test_a_batch_has_no_more_queries_than_there_are(monkeypatch):
    assert effective(ContrastiveConfig(), monkeypatch, processes=2, queries=12)["queries_per_batch"] == 12
