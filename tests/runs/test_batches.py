"""Schedules: every example once an epoch, the same steps on every call and for every number of processes."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkit.core.processes import batches_of
from drkit.errors import DrkitError
from drkit.recipe.training import Training
from drkit.train.batches import Schedule, check_step, count_steps


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


def test_a_step_is_drawn_at_random_and_only_its_micro_batches_are_sorted():
    lengths = np.random.default_rng(0).integers(3, 500, 20_000).astype(np.int32)
    schedule = Schedule(lengths=lengths, batch_size=512, batches=78, seed=1, parts=16)
    parts = [[example for _, example in part] for part in schedule]
    steps = [[example for part in parts[start : start + 16] for example in part] for start in range(0, len(parts), 16)]
    assert np.mean([np.ptp(lengths[part]) for part in parts]) < 40, "random batches of 32 would spread over about 470"
    assert np.std([lengths[step].mean() for step in steps]) < 2 * 144 / 512**0.5, "steps are alike"
    whole = Schedule(lengths=lengths, batch_size=512, batches=78, seed=1)
    assert [{*step} for step in steps] == [{example for _, example in step} for step in whole]
    assert steps[:39] != steps[39:], "epochs differ"


@pytest.mark.parametrize(
    ("settings", "examples", "processes", "expected"),
    [
        ({"max_steps": 10}, 1000, 1, 10),
        ({"max_steps": 10, "gradient_accumulation_steps": 4}, 1000, 2, 10),
        ({"num_train_epochs": 2.0, "per_device_train_batch_size": 10}, 105, 1, 20),
        ({"num_train_epochs": 2.0, "per_device_train_batch_size": 10}, 105, 2, 10),
        ({"num_train_epochs": 2.0, "per_device_train_batch_size": 5, "batch_size": 10}, 105, 2, 20),
        ({"num_train_epochs": 0.5, "per_device_train_batch_size": 10}, 100, 1, 5),
        ({"num_train_epochs": 1.0, "per_device_train_batch_size": 64}, 5, 1, 1),
    ],
)
@pytest.mark.parametrize("compares", [False, True])
def test_count_steps(settings, examples, processes, expected, compares):
    with batches_of(processes):
        assert count_steps(Training(**settings), examples, compares=compares) == expected


@given(
    size=st.sampled_from([8, 16, 48]),
    at_once=st.sampled_from([1, 2, 4, 64]),
    examples=st.integers(10, 120),
    compares=st.booleans(),
)
def test_every_number_of_processes_trains_the_same_steps(size, at_once, examples, compares):
    lengths = np.random.default_rng(examples).integers(3, 64, examples).astype(np.int32)
    training = Training(max_steps=7, batch_size=size, per_device_train_batch_size=at_once)
    steps = {}
    for shared in (1, 2, 8):
        with batches_of(shared):
            check_step(training, "pretrain")
            schedule = Schedule.of(training, lengths, seed=2, compares=compares)
        parts, made = [[example for _, example in part] for part in schedule], schedule.micro_batches
        assert len(parts) == 7 * made
        assert compares or max(map(len, parts)) <= at_once * shared
        steps[shared] = [sorted(chain(*parts[start : start + made])) for start in range(0, len(parts), made)]
        assert {len(step) for step in steps[shared]} == {min(size, examples)}
    assert steps[1] == steps[2] == steps[8]


def test_gradient_accumulation_keeps_the_batches_that_a_loss_compares():
    training = Training(max_steps=3, per_device_train_batch_size=4, gradient_accumulation_steps=5)
    with batches_of(2):
        schedule = Schedule.of(training, np.full(100, 9, np.int32), seed=2, compares=True)
    assert [len(batch) for batch in schedule] == [8] * 15
    assert schedule.micro_batches == 5


REFUSED = [
    ({"batch_size": 100}, "100 cannot be divided over 8 processes: set it to 96 or 104, or start 5 processes"),
    ({"batch_size": 5}, "5 cannot be divided over 8 processes: set it to 8, or start 5 processes"),
    ({"batch_size": 64, "gradient_accumulation_steps": 2}, "leave out gradient_accumulation_steps"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_does_not_divide_is_refused_with_what_does(settings, message):
    with batches_of(8), pytest.raises(DrkitError, match=message) as raised:
        check_step(Training(**settings), "pretrain")
    assert str(raised.value).endswith("@ pretrain.batch_size")


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
