"""Generated queries from a cluster: the file of one process, and either engine goes on after the other."""

import json

import pytest

from drkit.core.engine import Loaded, LocalEngine, open_engine
from drkit.data.generation import QueryModel, Sampling, generate_file
from drkit.errors import DrkitError
from tests.data.seq2seq import write_t5
from tests.engine.engines import Pickling

TEXTS = [(f"t{n}", f"remove the suffix number {n} from each string of the file {n % 3}") for n in range(30)]
SHORT = Sampling(count=2, max_new_tokens=4, batch_size=6, seed=5)


@pytest.fixture(autouse=True)
def one_batch_per_file(monkeypatch):
    monkeypatch.setattr("drkit.data.generation._BATCHES_PER_FILE", 1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_t5(tmp_path_factory.mktemp("t5"), [text for _, text in TEXTS])


@pytest.fixture
def loaded(model):
    return Loaded(QueryModel.open, str(model), SHORT)


@pytest.fixture
def expected(loaded, tmp_path):
    return generate_file(iter(TEXTS), loaded, tmp_path / "whole.jsonl").read_bytes()


def test_tasks_make_the_file_of_one_process(loaded, expected, tmp_path):
    engine = Pickling(window=1)
    assert generate_file(iter(TEXTS), loaded, tmp_path / "q.jsonl", engine=engine).read_bytes() == expected
    assert engine.names == [f"queries of texts {first} to {first + 5}" for first in range(1, 30, 6)]
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["q.jsonl", "whole.jsonl"]
    assert not [*tmp_path.glob(".*.parts"), *tmp_path.glob(".*.lock")]


@pytest.mark.parametrize("first", ["local", "tasks"])
def test_finished_blocks_are_kept_by_the_other_engine(loaded, expected, tmp_path, first):
    path, rest = tmp_path / "q.jsonl", Pickling(window=1)

    def stop(done):
        if done == 12:
            raise KeyboardInterrupt

    options = (
        {"engine": LocalEngine(), "on_progress": stop} if first == "local" else {"engine": Pickling(window=1, after=2)}
    )
    with pytest.raises(KeyboardInterrupt):
        generate_file(iter(TEXTS), loaded, path, **options)
    if first == "local":
        generate_file(iter(TEXTS), loaded, path, engine=rest)
        assert rest.names[0] == "queries of texts 13 to 18"
    else:
        seen = []
        generate_file(iter(TEXTS), Loaded(counted_model, loaded.value, seen), path, engine=LocalEngine())
        assert min(seen) == 12
    assert path.read_bytes() == expected


def counted_model(model, seen):
    class Counted:
        def __call__(self, texts, keys):
            seen.extend(keys)
            return model(texts, keys)

    counted = Counted()
    counted.model, counted.sampling = model.model, model.sampling
    return counted


class Poisoned(QueryModel):
    """A model that fails at the text with this number."""

    def __call__(self, texts, keys):
        if 13 in keys:
            raise ValueError("no queries")
        return super().__call__(texts, keys)


@pytest.mark.slow
def test_a_poisoned_part_is_named_and_the_others_are_kept(nodes, loaded, expected, model, tmp_path):
    path, rest = tmp_path / "q.jsonl", Pickling(window=1)
    poisoned = Loaded(Poisoned.open, str(model), SHORT)
    with open_engine(nodes.engine) as engine, pytest.raises(DrkitError, match=r"queries of texts 13 to 18: ValueError"):
        generate_file(iter(TEXTS), poisoned, path, engine=engine)
    assert not path.exists()
    generate_file(iter(TEXTS), loaded, path, engine=rest)
    assert rest.names == ["queries of texts 13 to 18"]
    assert path.read_bytes() == expected


@pytest.mark.slow
def test_the_command_writes_the_file_of_the_local_engine(nodes, model, tmp_path, run_drkit):
    lines = [json.dumps({"id": name, "text": text}) for name, text in TEXTS]
    (tmp_path / "c.jsonl").write_text("\n".join(lines) + "\n")
    base = ["queries", "--model", model, "--collection", f"jsonl:{tmp_path / 'c.jsonl'}", "--max-new-tokens", 4]
    assert run_drkit(*base, "-o", tmp_path / "local.jsonl")[0] == 0
    code, _, err = run_drkit(*base, "-o", tmp_path / "ray.jsonl", "--engine", nodes.engine)
    assert code == 0, err
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()
