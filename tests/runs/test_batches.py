"""Schedules: every example once an epoch, similar lengths together, the same on every call."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkit.errors import DrkitError
from drkit.recipe.schema import Training
from drkit.train.batches import Schedule, count_batches


@given(
    n=st.integers(1, 300),
    size=st.integers(1, 40),
    batches=st.integers(1, 60),
    seed=st.integers(0, 5),
)
def test_an_epoch_is_a_permutation_without_its_remainder(n, size, batches, seed):
    lengths = np.random.default_rng(seed).integers(3, 64, n).astype(np.int32)
    schedule = Schedule(lengths=lengths, batch_size=size, batches=batches, seed=seed)
    made = list(schedule)
    assert len(made) == len(schedule) == batches
    per_epoch = {}
    for batch in made:
        assert len(batch) == min(size, n)
        assert len({epoch for epoch, _ in batch}) == 1
        per_epoch.setdefault(batch[0][0], []).extend(example for _, example in batch)
    for examples in per_epoch.values():
        assert len(set(examples)) == len(examples)
    complete = list(per_epoch.values())[:-1]
    for examples in complete:
        assert len(examples) > n - size
    assert made == list(schedule)


def test_batches_are_of_like_length_and_epochs_differ():
    lengths = np.random.default_rng(0).integers(3, 500, 20_000).astype(np.int32)
    schedule = Schedule(lengths=lengths, batch_size=32, batches=1250, seed=1)
    batches = list(schedule)
    spread = np.mean([np.ptp(lengths[[e for _, e in batch]]) for batch in batches])
    assert spread < 40, "random batches of 32 would spread over about 470"
    assert batches[:625] != [[(0, e) for _, e in batch] for batch in batches[625:]]


@pytest.mark.parametrize(
    ("settings", "examples", "processes", "expected"),
    [
        ({"max_steps": 10}, 1000, 1, 10),
        ({"max_steps": 10, "gradient_accumulation_steps": 4}, 1000, 2, 40),
        ({"num_train_epochs": 2.0, "per_device_train_batch_size": 10}, 105, 1, 20),
        ({"num_train_epochs": 2.0, "per_device_train_batch_size": 10}, 105, 2, 10),
        ({"num_train_epochs": 0.5, "per_device_train_batch_size": 10}, 100, 1, 5),
        ({"num_train_epochs": 1.0, "per_device_train_batch_size": 64}, 5, 1, 1),
    ],
)
def test_count_batches(settings, examples, processes, expected):
    assert count_batches(Training(**settings), examples, processes=processes) == expected


def test_processes_share_every_batch_of_the_schedule():
    schedule = Schedule(lengths=np.arange(3, 53), batch_size=7, batches=9, seed=1)
    shares = [list(schedule.share(rank, 3)) for rank in range(3)]
    for whole, *parts in zip(schedule, *shares, strict=True):
        assert sorted(whole) == sorted(example for part in parts for example in part)


def test_more_processes_than_examples_are_refused():
    schedule = Schedule(lengths=np.full(2, 9, np.int32), batch_size=8, batches=3, seed=1)
    assert [len(batch) for batch in schedule.share(1, 2)] == [1, 1, 1]
    with pytest.raises(DrkitError, match=r"2 .*examples .*3 processes"):
        schedule.share(2, 3)
