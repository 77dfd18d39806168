"""Engines: the order of results, values that travel as the call that makes them, and the names of engines."""

import pickle

import pytest

from drkit.core.engine import Loaded, LocalEngine, ProcessEngine, Task, count_done, open_engine
from drkit.errors import DrkitError
from tests.engine.engines import Pickling
from tests.refusals import unknown

LOADS = []


def load(name, *, suffix=""):
    LOADS.append(name)
    return name + suffix


def test_the_local_engine_works_in_order_and_reads_tasks_as_it_needs_them():
    read = []

    def tasks():
        for number in range(3):
            read.append(number)
            yield Task(f"task {number}", divmod, (number, 2))

    results = LocalEngine().run(tasks())
    assert (next(results), read) == ((0, 0), [0])
    assert list(results) == [(0, 1), (1, 0)]


def test_processes_read_few_tasks_before_their_turn():
    read, others = [], []

    def tasks():
        for number in range(9):
            read.append(number)
            yield Task(f"task {number}", divmod, (number, 0 if number == 5 else 2))

    results = ProcessEngine(2).run(tasks())
    assert next(results) == (0, 0)
    assert read == [0, 1, 2, 3]
    with pytest.raises(DrkitError, match=r"1 of 9 failed; the others are done:\n  - task 5: "):
        others.extend(results)
    assert others == [divmod(number, 2) for number in (1, 2, 3, 4, 6, 7, 8)]


def test_a_failure_of_all_tasks_leaves_none_done():
    with pytest.raises(DrkitError, match=r"^1 of 1 failed:\n"):
        list(ProcessEngine(1).run([Task("task", divmod, (1, 0))]))


def halves(number):
    yield number
    yield number


@pytest.mark.parametrize(
    ("engine", "counts"), [(None, [1, 1, 2, 2]), (LocalEngine(), [1, 1, 2, 2]), (Pickling(), [2, 4])]
)
def test_what_is_done_is_counted_as_it_goes_here_and_by_task_elsewhere(engine, counts):
    tasks = (Task(f"task {number}", halves, (number,)) for number in (1, 2))
    assert [*count_done(tasks, engine)] == counts


def test_a_loaded_value_travels_as_its_call_and_is_loaded_once_where_it_arrives():
    LOADS.clear()
    given = Loaded(load, "model", suffix="!")
    assert (given.value, given.value, LOADS) == ("model!", "model!", ["model"])
    sent = pickle.dumps(given)
    assert b"model!" not in sent
    one, two = pickle.loads(sent), pickle.loads(sent)
    assert one is two is not given
    assert (one.value, two.value, LOADS) == ("model!", "model!", ["model", "model"])


def refuse(value, wanted):
    if value != wanted:
        raise DrkitError(f"expected {wanted}, got {value}")
    return value


def test_a_checked_value_is_checked_where_it_arrives_only():
    LOADS.clear()
    given = Loaded(load, "checked").checked(refuse, "another")
    assert (given.value, LOADS) == ("checked", ["checked"])
    with pytest.raises(DrkitError, match="expected another, got checked"):
        _ = pickle.loads(pickle.dumps(given)).value
    right = pickle.loads(pickle.dumps(Loaded(load, "right").checked(refuse, "right")))
    assert right.value == "right"


@pytest.mark.parametrize("name", ["", "Ray", "ray:", "ray:host:", "dask", "\x1b[2J"])
def test_another_name_is_refused(name):
    with unknown("engine", name, "local", "ray[:ADDRESS]") as raised:
        open_engine(name).__enter__()
    assert "\x1b" not in str(raised.value)
