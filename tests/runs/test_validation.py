"""Validation while fine-tuning: what is measured, the best weights, the early stop, and going on after a kill."""

import json
import signal

import numpy as np
import pytest
import torch
from attrs import evolve
from torch import nn

from drkit.core.files import CHECKPOINTS, VALIDATION, read_log
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.data.corpus import open_collection
from drkit.data.store import TokenStore, tokenise
from drkit.data.writing import write_collection
from drkit.encoders import BertSizes, EncoderCard, MaskedLmEncoder
from drkit.errors import DrkitError
from drkit.evaluate import evaluate
from drkit.losses import ContrastiveConfig, ContrastiveLoss
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.schema import Training, Validation
from drkit.runs.making.retriever import encoders_of
from drkit.runs.stage import settings_from
from drkit.train import retrieval_probe
from drkit.train.batches import Schedule
from drkit.train.biencoder import BiEncoder
from drkit.train.probes import Measured, evaluating
from drkit.train.resuming import CALLBACKS, complete_checkpoint, newest_checkpoint
from drkit.train.trainer import train
from drkit.train.validation import (
    BestWeights,
    DevQueries,
    ValidationCallback,
    best_step,
    validation_task,
)
from tests.refusals import says
from tests.runs.damages import flip_byte
from tests.runs.test_probes import Heard, Topics, tokenizer
from tests.runs.test_training import Collate
from tests.torchrun import run_processes

STEPS = 12


class Toy(nn.Module):
    """A layer with dropout, so that random numbers count; it counts its steps."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)
        self.register_buffer("steps", torch.zeros(()))
        self.weights, self.row_indices = {"copy": 1.0}, {}

    def compares(self):
        return False

    def forward(self, x, local=True):
        self.steps += 1
        loss = (self.first(self.drop(x)) - x).pow(2).mean()
        return {"loss.copy": loss, "items.copy": torch.tensor(len(x))}


class Told:
    """A measurement whose values are given by step, and which draws random numbers as dropout would.

    A value is that of each query, in a list, or that of all queries.
    """

    file, decides = "validation.jsonl", "RR@10"

    def __init__(self, values, module, weights):
        self.values, self.module, self.weights = values, module, weights
        self.setting, self.measures_start = "pretrain.probe" if 0 in values else "finetune.validation", 0 in values

    def measure(self):
        with evaluating(self.module):
            assert not self.module.training
            torch.rand(3)
        step = int(self.module.steps)
        self.weights[step] = {name: tensor.clone() for name, tensor in self.module.state_dict().items()}
        told = self.values[step]
        values = {f"q{n}": value for n, value in enumerate(told if isinstance(told, list) else [told] * 2)}
        return Measured({"gain": step / 10, "RR@10": sum(values.values()) / len(values)}, values)

    def describe(self):
        return "what is told"

    def line(self, record):
        return f"{record['step']}: {record['RR@10']}"


def go(folder, values=None, *, collate=None, save_steps=3, progress=None, **settings):
    """(module, its weights at each validation, the callback, steps that were done)."""
    module, weights, watching = Toy(), {}, []
    if values is not None:
        told, wanted = Told(values, module, weights), Validation(**{"every": 2, **settings})
        watching = [ValidationCallback(module, told, wanted, folder=folder, progress=progress or Silent())]
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
FROM_THE_START = {0: 0.2, **RISES_AND_FALLS}
NEVER_BETTER = {0: 0.6, **RISES_AND_FALLS}


def same(state, other):
    return all(torch.equal(tensor, other[name]) for name, tensor in state.items())


def test_the_best_weights_are_those_of_the_best_validation_the_first_of_equals(tmp_path):
    module, weights, made, steps = go(tmp_path, RISES_AND_FALLS)
    assert steps == STEPS
    assert same(module.state_dict(), weights[6])
    assert not same(module.state_dict(), weights[8])
    told = [{"step": s, "gain": s / 10, "RR@10": v} for s, v in RISES_AND_FALLS.items()]
    assert read_log(tmp_path / VALIDATION) == told
    found = made.result()["validation"]
    assert found == {"measure": "RR@10", "best": 0.5, "step": 6, "last": 12, "kept": 6, "gain": 0.3, "error": 0.0}


# By four queries: step 6 gains half of its standard error over step 12, or almost three times it.
WITHIN_AN_ERROR = {2: [0.0] * 4, 6: [1.0, 0.5, 1.0, 0.5], 12: [0.5, 1.0, 0.5, 0.5]}
BEYOND_AN_ERROR = {2: [0.0] * 4, 6: [1.0, 0.5, 1.0, 0.5], 12: [0.5, 0.25, 0.0, 0.25]}


@pytest.mark.parametrize(("values", "kept"), [(WITHIN_AN_ERROR, 12), (BEYOND_AN_ERROR, 6)])
def test_the_last_weights_stay_unless_the_best_gain_more_than_one_standard_error(tmp_path, values, kept):
    heard = Heard()
    told = {step: values.get(step, values[2]) for step in range(2, STEPS + 1, 2)}
    module, weights, made, _ = go(tmp_path, told, progress=heard)
    assert same(module.state_dict(), weights[kept])
    found, gained = made.result()["validation"], np.subtract(values[6], values[12])
    assert (found["step"], found["kept"]) == (6, kept)
    assert found["gain"] == pytest.approx(gained.mean())
    assert found["error"] == pytest.approx(gained.std(ddof=1) / 2)
    assert (found["gain"] > found["error"]) == (kept == 6)
    assert says(heard.notes[-1], "last weights" if kept == 12 else "weights of step 6", "4 queries")
    again, weights, *_ = go(tmp_path, told)
    assert same(module.state_dict(), again.state_dict())
    assert not weights, "the choice is made again from what was kept"


def test_a_single_query_does_not_choose_weights(tmp_path):
    told = {step: [value] for step, value in RISES_AND_FALLS.items()}
    module, weights, *_ = go(tmp_path, told)
    assert same(module.state_dict(), weights[12])


def test_watching_alone_changes_nothing(tmp_path):
    (tmp_path / "a").mkdir()
    watched, _, made, _ = go(tmp_path / "a", RISES_AND_FALLS, keep_best=False)
    assert made.result() == {"validation": {"measure": "RR@10", "best": 0.5, "step": 6, "last": 12}}
    alone, *_ = go(tmp_path / "b")
    assert same(watched.state_dict(), alone.state_dict())
    assert not list((tmp_path / "a").rglob("best-*"))


def test_patience_ends_a_training_that_gains_nothing(tmp_path):
    module, weights, made, steps = go(tmp_path, RISES_AND_FALLS, patience=2)
    assert steps == 10, "validations 8 and 10 gained nothing"
    assert same(module.state_dict(), weights[6])
    assert made.result()["validation"]["last"] == 10
    assert not (tmp_path / CHECKPOINTS / "checkpoint-10").exists()


def test_what_is_measured_from_the_start_may_end_with_the_weights_of_the_start(tmp_path):
    module, weights, made, steps = go(tmp_path, NEVER_BETTER, patience=3)
    assert steps == 6, "2, 4 and 6 gained nothing"
    assert same(module.state_dict(), Toy().state_dict())
    found = made.result()["probe"]
    assert (found["best"], found["step"], found["last"], found["kept"]) == (0.6, 0, 6, 0)
    assert sorted(weights) == [0, 2, 4, 6]


def test_an_early_stop_is_said(tmp_path):
    heard = Heard()
    go(tmp_path, FROM_THE_START, patience=2, progress=heard)
    assert heard.notes[0] == "what is told"
    stopped, kept = heard.notes[-2:]
    assert says(stopped, "step 10 of 12", "step 6")
    assert says(kept, "weights", "step 6 of 10")


def test_patience_alone_ends_with_the_last_weights(tmp_path):
    module, weights, _, steps = go(tmp_path, FROM_THE_START, patience=2, keep_best=False)
    assert steps == 10
    assert same(module.state_dict(), weights[10])
    assert not list(tmp_path.rglob("best-*"))


def test_the_last_step_is_validated_too(tmp_path):
    module, weights, _, _ = go(tmp_path, {5: 0.1, 10: 0.2, 12: 0.3}, every=5)
    assert [record["step"] for record in read_log(tmp_path / VALIDATION)] == [5, 10, 12]
    assert same(module.state_dict(), weights[12])


@pytest.mark.parametrize(
    ("values", "patience", "save_steps", "cut_offs"),
    [
        (RISES_AND_FALLS, 0, 1, (1, 8)),
        (RISES_AND_FALLS, 0, 5, (5, 10, 12)),
        (RISES_AND_FALLS, 1, 2, (5, 8)),
        (RISES_AND_FALLS, 2, 3, (8, 10)),
        (FROM_THE_START, 2, 3, (1, 10)),
        (FROM_THE_START, 0, 11, (5, 12)),
        (NEVER_BETTER, 4, 5, (1, 8)),
    ],
)
def test_cut_off_anywhere_it_ends_as_it_would_have(tmp_path, values, patience, save_steps, cut_offs):
    def trained(name, collate=None):
        (tmp_path / name).mkdir(exist_ok=True)
        return go(tmp_path / name, values, collate=collate, save_steps=save_steps, patience=patience)

    whole, *_, steps = trained("whole")
    for cut_off in cut_offs:
        with pytest.raises(KeyboardInterrupt):
            trained(str(cut_off), Collate(cut_off))
        resumed, *_, again = trained(str(cut_off))
        assert again == steps
        assert same(whole.state_dict(), resumed.state_dict())
        assert read_log(tmp_path / "whole" / VALIDATION) == read_log(tmp_path / str(cut_off) / VALIDATION)


class CtrlC(Collate):
    """Presses Ctrl-C while a batch is made."""

    def __call__(self, examples):
        cut_off, self.cut_off = self.cut_off, None
        made = super().__call__(examples)
        self.cut_off = cut_off
        if self.calls == cut_off:
            signal.raise_signal(signal.SIGINT)
        return made


@pytest.mark.parametrize("press", [3, 8, 9, 10])
def test_ctrl_c_ends_as_it_would_have(tmp_path, press):
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    whole, *_, steps = go(tmp_path / "whole", FROM_THE_START, patience=2, save_steps=500)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / "cut", FROM_THE_START, patience=2, save_steps=500, collate=CtrlC(press))
    finally:
        signal.signal(signal.SIGINT, before)
    resumed, *_, again = go(tmp_path / "cut", FROM_THE_START, patience=2, save_steps=500)
    assert again == steps == 10
    assert same(whole.state_dict(), resumed.state_dict())
    assert read_log(tmp_path / "whole" / VALIDATION) == read_log(tmp_path / "cut" / VALIDATION)


def test_a_training_that_was_done_ends_with_the_best_again(tmp_path):
    first, *_ = go(tmp_path, RISES_AND_FALLS)
    again, weights, *_ = go(tmp_path, RISES_AND_FALLS)
    assert same(first.state_dict(), again.state_dict())
    assert not weights, "nothing was measured anew"


@pytest.mark.parametrize(
    ("damaged", "first"),
    [(["checkpoint-6"], 4), (["checkpoint-3"], 8), (["."], 8), (["checkpoint-3", "checkpoint-6"], 0)],
)
def test_damaged_best_weights_cost_one_checkpoint_and_are_never_the_result(tmp_path, damaged, first):
    """first: the first step that is measured again, after the newest whole checkpoint (6, 3, or none)."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    whole, *_ = go(tmp_path / "whole", NEVER_BETTER)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "cut", NEVER_BETTER, collate=Collate(8))
    for folder in damaged:
        flip_byte(tmp_path / "cut" / CHECKPOINTS / folder / CALLBACKS / "best-0.safetensors")
    resumed, weights, *_ = go(tmp_path / "cut", NEVER_BETTER)
    assert same(whole.state_dict(), resumed.state_dict())
    assert min(weights) == first


def test_few_weights_are_kept_and_none_that_a_resumed_training_wants_is_lost(tmp_path):
    best, checkpoint = BestWeights(tmp_path / CALLBACKS), tmp_path / "checkpoint-3"
    toy, kept = Toy(), lambda folder: [path.name for path in (folder / CALLBACKS).iterdir()]
    checkpoint.mkdir()
    best.save(toy, 2)
    complete_checkpoint(checkpoint)
    best.save(toy, 4)
    best.save(toy, 6)
    assert (kept(checkpoint), kept(tmp_path)) == (["best-2.safetensors"], ["best-6.safetensors"])
    assert newest_checkpoint(tmp_path, Silent()) == checkpoint
    assert kept(tmp_path) == ["best-2.safetensors"]
    with pytest.raises(DrkitError, match=r"/best-6\.safetensors"):
        best.load(toy, 6)


def test_best_step_of_nothing_is_none(tmp_path):
    assert best_step([], "RR@10") is None
    assert read_log(tmp_path / VALIDATION) == []


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


def constructed(stored, validation, *, collection=None, exclude_self=False):
    """What validates the bi-encoder of a fine-tuning stage."""
    sizes = BertSizes(hidden=32, layers=1, heads=2, intermediate=64, max_positions=128, dropout=0.1)
    encoder = MaskedLmEncoder.from_scratch(sizes, tokenizer(), pooling="cls", seed=1)
    module = BiEncoder(encoder, ContrastiveLoss(ContrastiveConfig()))
    recipe = compose(ComposeRequest(pipeline="two-stage"), installed())
    opened = open_collection(collection or stored / "collection")
    task = validation_task(opened, validation, seed=recipe.seed, exclude_self=exclude_self)
    encoder = encoders_of(module, tokenizer(), settings_from(EncoderCard, recipe))
    return DevQueries(module, encoder, task, TokenStore.open(stored / "tokens"), validation.measure)


def test_what_is_measured_is_the_measure_over_dev_queries_and_all_passages(stored, collection, tmp_path):
    made = constructed(stored, Validation(every=1, measure="nDCG@7", queries=100))
    task, encoder = made.task, made.encoder
    assert (len(task.queries), task.split, len(task.indices)) == (20, "dev", 60)
    texts, names = [p.content for p in collection.corpus], [p.doc_id for p in collection.corpus]
    queries = list(collection.queries("dev"))
    scores = encoder.encode_queries([q.text for q in queries]) @ encoder.encode_passages(texts).T
    run = [(q.query_id, zip(names, map(float, row), strict=True)) for q, row in zip(queries, scores, strict=True)]
    expected = evaluate(run, collection.judgements("dev"), ["nDCG@7"]).mean("nDCG@7")
    found = task.measure(encoder, made.passages, "nDCG@7")
    assert 0 < expected < 1
    assert found == pytest.approx(expected, abs=1e-6)


def test_passages_in_several_windows_are_ranked_as_in_one(stored, tmp_path, monkeypatch):
    made = constructed(stored, Validation(every=1, queries=100))
    whole = made.task.measure(made.encoder, made.passages, "AP")
    monkeypatch.setattr(retrieval_probe, "_WINDOW", 7)
    assert made.task.measure(made.encoder, made.passages, "AP") == pytest.approx(whole, abs=1e-6)


def test_a_sample_of_passages_holds_the_judged_ones(stored, tmp_path):
    made = constructed(stored, Validation(every=1, queries=6, passages=30))
    assert len(made.task.indices) == 30
    assert {int(judgement.doc_id) for judgement in made.task.judgements} <= set(made.task.indices.tolist())


def test_a_querys_own_passage_is_left_out(stored, tmp_path):
    made = constructed(stored, Validation(every=1), exclude_self=True)
    assert made.task.self_passages == {}, "no query has a passage's id here"
    asked = [judgement.query_id for judgement in made.task.judgements]
    judged = next(judgement for judgement in made.task.judgements if asked.count(judgement.query_id) == 1)
    own = evolve(made.task, self_passages={judged.query_id: judged.doc_id})
    whole = made.task.measure(made.encoder, made.passages, "RR")
    assert own.measure(made.encoder, made.passages, "RR") < whole


def test_what_cannot_be_validated_is_told(stored, tmp_path):
    with pytest.raises(DrkitError, match="unknown measure 'mrr'"):
        constructed(stored, Validation(every=1, measure="mrr"))
    write_collection(Topics(shown=("train", "test")), tmp_path / "no-dev")
    with pytest.raises(DrkitError, match=r"dev queries.*train, test.*--set finetune\.validation\.every=0"):
        constructed(stored, Validation(every=1), collection=tmp_path / "no-dev")


@pytest.mark.parametrize("values", ["RISES_AND_FALLS", "FROM_THE_START"])
def test_on_two_processes_the_first_measures_and_both_stop(tmp_path, values):
    run_processes("tests.runs.validation_processes", tmp_path, values)
    first, second = (json.loads((tmp_path / f"said-{rank}.json").read_text()) for rank in (0, 1))
    start = [0] if values == "FROM_THE_START" else []
    assert first == {"steps": 10, "best": True, "measured": [*start, 2, 4, 6, 8, 10]}
    assert second == {"steps": 10, "best": None, "measured": []}
