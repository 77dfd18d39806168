"""Validation while fine-tuning: what is measured, the best weights, the early stop, and going on after a kill."""

import json

import numpy as np
import pytest
import torch
from attrs import evolve, frozen
from torch import nn

from drkit.core.discovery import installed
from drkit.core.files import CHECKPOINTS
from drkit.core.progress import Silent
from drkit.data.store import TokenStore, tokenise
from drkit.data.tables import open_collection
from drkit.data.writing import write_collection
from drkit.encoders import BertSizes, MaskedLmEncoder
from drkit.errors import DrkitError
from drkit.evaluate import evaluate
from drkit.losses import ContrastiveConfig, ContrastiveLoss
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.schema import Training, Validation
from drkit.runs.retriever import encoders_of
from drkit.runs.stage import TextReading, settings_from
from drkit.train import retrieval_probe
from drkit.train.batches import Schedule
from drkit.train.biencoder import BiEncoder
from drkit.train.probes import ProbeLog
from drkit.train.trainer import train
from drkit.train.validation import BestWeights, ValidationCallback, best_step, read_validations, validation_task
from tests.runs.test_probes import Topics, tokenizer
from tests.torchrun import torchrun

STEPS = 12


class Toy(nn.Module):
    """A layer with dropout, so that random numbers count; `seen` is what a validation measures."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)
        self.weights, self.numbering = {"copy": 1.0}, {}

    def compares(self):
        return False

    def forward(self, x, local=True):
        loss = (self.first(self.drop(x)) - x).pow(2).mean()
        return {"loss.copy": loss, "items.copy": torch.tensor(len(x))}


class Collate:
    def __init__(self, cut_off=None):
        self.cut_off, self.calls = cut_off, 0

    def __call__(self, examples):
        self.calls += 1
        if self.calls == self.cut_off:
            raise KeyboardInterrupt
        return {"x": torch.tensor(np.array([np.random.default_rng(e).normal(size=4) for e in examples])).float()}


@frozen
class Task:
    """Returns given values, one per validation, and draws random numbers as dropout would."""

    values: dict
    module: nn.Module
    weights: dict
    steps: list
    queries: tuple = (1,)
    indices: tuple = (1,)
    split: str = "dev"

    def measure(self, _encoder, _passages, _measure):
        assert not self.module.training
        torch.rand(3)
        key = next(self._step())
        self.weights[key] = {name: tensor.clone() for name, tensor in self.module.state_dict().items()}
        return self.values[key]

    def _step(self):
        yield self.steps[-1]


def callback(folder, module, values, weights, **settings):
    """A callback without a collection: its task says the values."""
    made = ValidationCallback.__new__(ValidationCallback)
    steps = []
    made._settings, made._module, made._progress = Validation(**{"every": 2, **settings}), module, Silent()
    made._task = Task(values, module, weights, steps)
    made._encoder = made._passages = made._of_passages = None
    made._log, made._best = ProbeLog(folder, "validation.jsonl"), BestWeights(folder / CHECKPOINTS)
    validate = made._validate
    made._validate = lambda step: (steps.append(step), validate(step))
    return made


def go(folder, values=None, *, collate=None, save_steps=3, **settings):
    """(module, its weights at each validation, the callback, steps that were done)."""
    module, weights = Toy(), {}
    watching = [callback(folder, module, values, weights, **settings)] if values is not None else []
    done = train(
        module,
        Schedule(lengths=np.full(40, 5, np.int32), batch_size=4, batches=STEPS, seed=3),
        collate or Collate(),
        training=Training(
            max_steps=STEPS, save_steps=save_steps, logging_steps=2, per_device_train_batch_size=4, learning_rate=0.05
        ),
        folder=folder / CHECKPOINTS,
        progress=Silent(),
        seed=7,
        callbacks=watching,
    )
    return module, weights, (watching or [None])[0], done.steps


RISES_AND_FALLS = {2: 0.1, 4: 0.4, 6: 0.5, 8: 0.5, 10: 0.3, 12: 0.2}


def same(state, other):
    return all(torch.equal(tensor, other[name]) for name, tensor in state.items())


def test_the_best_weights_are_those_of_the_best_validation_the_first_of_equals(tmp_path):
    module, weights, made, steps = go(tmp_path, RISES_AND_FALLS)
    assert steps == STEPS
    assert same(module.state_dict(), weights[6])
    assert not same(module.state_dict(), weights[8])
    assert read_validations(tmp_path) == [{"step": s, "RR@10": v} for s, v in RISES_AND_FALLS.items()]
    assert made.result() == {"validation": {"measure": "RR@10", "best": 0.5, "step": 6, "last": 12}}


def test_watching_alone_changes_nothing(tmp_path):
    (tmp_path / "a").mkdir()
    watched, *_ = go(tmp_path / "a", RISES_AND_FALLS, keep_best=False)
    alone, *_ = go(tmp_path / "b")
    assert same(watched.state_dict(), alone.state_dict())
    assert not list((tmp_path / "a").rglob("best-*"))


def test_patience_ends_a_training_that_gains_nothing(tmp_path):
    module, weights, made, steps = go(tmp_path, RISES_AND_FALLS, patience=2)
    assert steps == 10, "validations 8 and 10 gained nothing"
    assert same(module.state_dict(), weights[6])
    assert made.result()["validation"]["last"] == 10
    assert not (tmp_path / CHECKPOINTS / "checkpoint-10").exists()


def test_the_last_step_is_validated_too(tmp_path):
    module, weights, _, _ = go(tmp_path, {5: 0.1, 10: 0.2, 12: 0.3}, every=5)
    assert [record["step"] for record in read_validations(tmp_path)] == [5, 10, 12]
    assert same(module.state_dict(), weights[12])


@pytest.mark.parametrize(("patience", "save_steps"), [(0, 1), (0, 5), (1, 2), (2, 3)])
@pytest.mark.parametrize("cut_off", [1, 5, 8, 10, 12])
def test_cut_off_anywhere_it_ends_as_it_would_have(tmp_path, cut_off, save_steps, patience):
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    given = {"save_steps": save_steps, "patience": patience}
    whole, *_, steps = go(tmp_path / "whole", RISES_AND_FALLS, **given)
    try:
        go(tmp_path / "cut", RISES_AND_FALLS, collate=Collate(cut_off), **given)
    except KeyboardInterrupt:
        resumed, *_, again = go(tmp_path / "cut", RISES_AND_FALLS, **given)
        assert again == steps
        assert same(whole.state_dict(), resumed.state_dict())
    assert read_validations(tmp_path / "whole") == read_validations(tmp_path / "cut")


def test_a_training_that_was_done_ends_with_the_best_again(tmp_path):
    first, *_ = go(tmp_path, RISES_AND_FALLS)
    again, weights, *_ = go(tmp_path, RISES_AND_FALLS)
    assert same(first.state_dict(), again.state_dict())
    assert not weights, "nothing was measured anew"


def test_few_weights_are_kept_and_none_that_a_resumed_training_wants_is_lost(tmp_path):
    best = BestWeights(tmp_path)
    best.resume(None)
    toy, kept = Toy(), lambda: sorted(int(path.stem.split("-")[1]) for path in tmp_path.glob("best-*"))
    best.save(toy, 2, None)
    best.checkpointed(2)
    best.save(toy, 4, 2)
    best.save(toy, 6, 4)
    assert kept() == [2, 6], "the checkpoint's best, and the best"
    BestWeights(tmp_path).resume(2)
    assert kept() == [2]
    with pytest.raises(DrkitError, match="best weights so far are missing"):
        best.load(toy, 6)


def test_best_step_of_nothing_is_none(tmp_path):
    assert best_step([], "RR@10") is None
    assert read_validations(tmp_path) == []


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Twenty topics, judged passages of each, and their tokens in a store: the folder of both."""
    folder = tmp_path_factory.mktemp("validation")
    write_collection(Topics(), folder / "collection")
    found = open_collection(folder / "collection")
    tokenise(((p.doc_id, p.content) for p in found.corpus), tokenizer(), folder / "tokens", max_length=16)
    return folder


@pytest.fixture(scope="module")
def collection(stored):
    return open_collection(stored / "collection")


def constructed(stored, folder, validation, *, collection=None, exclude_self=False):
    """The bi-encoder of a fine-tuning stage, and what validates it."""
    sizes = BertSizes(hidden=32, layers=1, heads=2, intermediate=64, max_positions=16, dropout=0.1)
    encoder = MaskedLmEncoder.from_scratch(sizes, tokenizer(), pooling="cls", seed=1)
    module = BiEncoder(encoder, ContrastiveLoss(ContrastiveConfig()))
    recipe = compose(ComposeRequest(), installed())
    opened = open_collection(collection or stored / "collection")
    task = validation_task(opened, validation, seed=recipe.seed, exclude_self=exclude_self)
    made = ValidationCallback(
        module,
        encoders_of(module, tokenizer(), settings_from(TextReading, recipe)),
        task,
        TokenStore.open(stored / "tokens"),
        validation,
        folder=folder,
        progress=Silent(),
    )
    return module, [made]


def test_what_is_measured_is_the_measure_over_dev_queries_and_all_passages(stored, collection, tmp_path):
    _, (made,) = constructed(stored, tmp_path, Validation(every=1, measure="nDCG@7", queries=100))
    task, encoder = made._task, made._encoder
    assert (len(task.queries), task.split, len(task.indices)) == (20, "dev", 60)
    texts, names = [p.content for p in collection.corpus], [p.doc_id for p in collection.corpus]
    queries = list(collection.queries("dev"))
    scores = encoder.encode_queries([q.text for q in queries]) @ encoder.encode_passages(texts).T
    run = [(q.query_id, zip(names, map(float, row), strict=True)) for q, row in zip(queries, scores, strict=True)]
    expected = evaluate(run, collection.judgements("dev"), ["nDCG@7"]).mean("nDCG@7")
    found = task.measure(encoder, made._passages, "nDCG@7")
    assert 0 < expected < 1
    assert found == pytest.approx(expected, abs=1e-6)


def test_passages_in_several_windows_are_ranked_as_in_one(stored, tmp_path, monkeypatch):
    _, (made,) = constructed(stored, tmp_path, Validation(every=1, queries=100))
    whole = made._task.measure(made._encoder, made._passages, "AP")
    monkeypatch.setattr(retrieval_probe, "WINDOW", 7)
    assert made._task.measure(made._encoder, made._passages, "AP") == pytest.approx(whole, abs=1e-6)


def test_a_sample_of_passages_holds_the_judged_ones(stored, tmp_path):
    _, (made,) = constructed(stored, tmp_path, Validation(every=1, queries=6, passages=30))
    assert len(made._task.indices) == 30
    assert {int(judgement.doc_id) for judgement in made._task.judgements} <= set(made._task.indices.tolist())


def test_a_querys_own_passage_is_left_out(stored, tmp_path):
    _, (made,) = constructed(stored, tmp_path, Validation(every=1), exclude_self=True)
    assert made._task.self_passages == {}, "no query has a passage's id here"
    asked = [judgement.query_id for judgement in made._task.judgements]
    judged = next(judgement for judgement in made._task.judgements if asked.count(judgement.query_id) == 1)
    own = evolve(made._task, self_passages={judged.query_id: judged.doc_id})
    whole = made._task.measure(made._encoder, made._passages, "RR")
    assert own.measure(made._encoder, made._passages, "RR") < whole


def test_what_cannot_be_validated_is_told(stored, tmp_path):
    with pytest.raises(DrkitError, match="unknown measure 'mrr'"):
        constructed(stored, tmp_path, Validation(every=1, measure="mrr"))
    write_collection(Topics(shown=("train", "test")), tmp_path / "no-dev")
    with pytest.raises(DrkitError, match="needs judged dev queries"):
        constructed(stored, tmp_path, Validation(every=1), collection=tmp_path / "no-dev")


def test_on_two_processes_the_first_measures_and_both_stop(tmp_path):
    torchrun("tests/runs/validation_processes.py", tmp_path)
    first, second = (json.loads((tmp_path / f"said-{rank}.json").read_text()) for rank in (0, 1))
    assert first == {"steps": 10, "best": True, "measured": [2, 4, 6, 8, 10]}
    assert second == {"steps": 10, "best": None, "measured": []}
