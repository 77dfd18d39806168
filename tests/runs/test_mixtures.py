"""Several collections in one pre-training: which texts are read, how often, and that a run on them resumes."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drkit.core.progress import Silent
from drkit.core.registry import Registry, installed
from drkit.core.spec import ComponentSpec, Kind, NoSettings
from drkit.data.corpus import StoredCorpus
from drkit.data.store import TokenStore
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import write_recipe
from drkit.recipe.training import Training
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from drkit.runs.trial import try_parts
from drkit.train.batches import Schedule, drawn
from drkit.train.checkpoints import load_encoder
from tests.runs.conftest import write_lines
from tests.runs.test_prune import TINY
from tests.torchrun import run_processes

PARTS = installed()
FAST = (*TINY, "pretrain.save_steps=1", "pretrain.max_steps=6", "finetune=none", "evaluation.bm25=false")


class LongTextsMoreOften:
    """A signal: one more for each word of a text."""

    def __init__(self, _config, _context):
        pass

    def values(self, texts, _fitted):
        yield np.diff(texts.store.offsets).astype(np.float32)


class Negative(LongTextsMoreOften):
    def values(self, texts, fitted):
        for values in super().values(texts, fitted):
            yield -values


def with_signal(target):
    summary = "a signal"
    spec = ComponentSpec(Kind.SIGNAL, "lengths", f"{__name__}:{target}", NoSettings, summary, scope="text")
    return Registry([*PARTS.registry, spec])


@pytest.fixture(scope="module")
def more(tmp_path_factory):
    """A hundred further texts, of other words than those of the fixture beir."""
    path = tmp_path_factory.mktemp("more") / "more.jsonl"
    write_lines(
        path, [{"_id": f"m{i}", "text": f"river{i % 7} flows past stone{i}, and past moss"} for i in range(100)]
    )
    return path


def recipe_of(beir, more, *settings, registry=PARTS.registry, **choices):
    texts = (f"pretrain.texts.rivers={{use = 'jsonl', path = '{more}'}}",) if more else ()
    chosen = {"masker": "uniform", "decoder": "mlm", "pipeline": "dpr", **choices}
    request = ComposeRequest(**chosen, collection=f"beir:{beir}", settings=(*FAST, *texts, *settings))
    recipe = compose(request, PARTS)
    check(recipe, registry)
    return recipe


def go(recipe, run, progress=None, registry=PARTS.registry):
    stages = plan(recipe, registry).stages
    execute(stages, run, recipe, registry=registry, progress=progress or Silent(), redo=True)
    return run


def weights(run):
    return load_encoder(run / "pretrained", pooling="mean").state_dict()


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.fixture(scope="module")
def mixed(beir, more, tmp_path_factory):
    recipe = recipe_of(beir, more, "pretrain.text_weights={rivers = 2, collection = 0.5}")
    return recipe, go(recipe, tmp_path_factory.mktemp("runs") / "mixed")


def test_both_collections_are_read_and_only_the_own_one_is_searched(mixed):
    _, run = mixed
    ids = list(StoredCorpus(run / "mixture" / "passages").ids())
    assert ids[:2] == ["d0", "d1"]
    assert ids[60:62] == ["rivers/m0", "rivers/m1"]
    assert json.loads((run / "mixture" / "sources.json").read_text()) == {"collection": 60, "rivers": 100}
    assert len(TokenStore.open(run / "tokens-mixture")) == 160
    assert len(StoredCorpus(run / "collection" / "passages")) == len(TokenStore.open(run / "tokens")) == 60
    assert "river1" in (run / "vocabulary" / "tokenizer.json").read_text()


class Interrupts(Silent):
    def advance(self, done, total, unit, **_):
        if unit == "steps" and done == 4:
            raise KeyboardInterrupt


def test_an_interrupted_run_ends_with_the_same_weights(mixed, tmp_path):
    recipe, run = mixed
    with pytest.raises(KeyboardInterrupt):
        go(recipe, tmp_path / "run", Interrupts())
    assert same(weights(go(recipe, tmp_path / "run")), weights(run))


def test_two_processes_learn_and_keep_what_one_does(beir, more, tmp_path):
    batches = {1: 8, 2: 4}
    for processes, size in batches.items():
        recipe = recipe_of(
            beir,
            more,
            "pretrain.text_weights={rivers = 0.3}",
            "pretrain.keep_steps=[2]",
            "pretrain.encoder.losses.mlm.targets=1",  # each process draws its own share of targets
            f"pretrain.per_device_train_batch_size={size}",
        )
        write_recipe(recipe, tmp_path / f"{processes}.toml")
        command = ("run", tmp_path / f"{processes}.toml", "--run-dir", tmp_path / str(processes))
        run_processes("drkit_cli.main", *map(str, command), processes=processes)
    for stage in ("pretrained", "pretrained@2"):
        one, two = (load_encoder(tmp_path / str(n) / stage, pooling="mean").state_dict() for n in batches)
        for name, weights in one.items():
            torch.testing.assert_close(two[name], weights, rtol=1e-4, atol=1e-5)


def test_weights_change_what_is_learned_and_repeat_nothing_before(beir, more, mixed):
    recipe, _ = mixed
    other = recipe_of(beir, more, "pretrain.text_weights={rivers = 1}")
    before, after = ({stage.name: stage for stage in plan(one, PARTS.registry).stages} for one in (recipe, other))
    blank = dict.fromkeys
    changed = {
        name
        for name, stage in before.items()
        if stage.identity(blank(stage.inputs, "")) != after[name].identity(blank(stage.inputs, ""))
    }
    assert changed == {"pretrained"}


@pytest.mark.parametrize(
    "choices", [{"paper": "cotmae"}, {"paper": "cotmae-qac"}, {"paper": "simlm"}, {"masker": "pmi"}]
)
def test_spans_queries_generators_and_signals_are_those_of_all_texts(beir, more, choices):
    given = dict.fromkeys(("masker", "decoder", "pipeline")) if "paper" in choices else {}
    stages = {stage.name: stage for stage in plan(recipe_of(beir, more, **given, **choices), PARTS.registry).stages}
    reading = {"spans", "queries", "generator", "signal-importance", "pretrained"} & stages.keys()
    for name in reading:
        read = {str(part) for key, part in stages[name].inputs.items() if not key.startswith("probe/")}
        assert not read & {"tokens", "collection/passages"}, name
    assert {"spans", "generator", "signal-importance"} & reading
    assert str(stages["tokens"].inputs["passages"]) == "collection/passages"


def test_a_run_on_spans_of_two_collections(beir, more, tmp_path):
    given = {"masker": None, "decoder": None, "pipeline": None, "paper": "cotmae"}
    run = go(recipe_of(beir, more, "pretrain.text_weights={rivers = 3}", **given), tmp_path / "run")
    assert json.loads((run / "pretrained" / "training.json").read_text())["steps"] == 6


def test_without_further_texts_nothing_changes(beir):
    stages = {stage.name: stage for stage in plan(recipe_of(beir, None), PARTS.registry).stages}
    assert "mixture" not in stages
    identity = stages["pretrained"].identity(dict.fromkeys(stages["pretrained"].inputs, ""))
    assert not {f"pretrain.{name}" for name in ("texts", "text_weights", "weigh_by")} & identity["settings"].keys()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("pretrain.text_weights.river=2",), "'rivers'"),
        (("pretrain.text_weights={rivers = 0, collection = 0}",), "weight is 0"),
        (("pretrain.text_weights.rivers=-1",), "'text_weights' "),
        (("pretrain.texts.collection={use = 'beir', path = 'x'}",), "is not 'collection'"),
        (("pretrain.texts.others={use = 'jsonl'}",), "write `--set pretrain.texts.others.path=VALUE`"),
        (("pretrain.weigh_by=importance",), "'importance'"),
    ],
)
def test_what_cannot_be_mixed_is_refused(beir, more, settings, said):
    with pytest.raises(ProblemsError, match=re.escape(said)):
        recipe_of(beir, more, *settings)


def test_weights_of_a_single_collection_are_refused(beir):
    with pytest.raises(ProblemsError, match=r"text_weights .*one.*@ pretrain\.text_weights"):
        recipe_of(beir, None, "pretrain.text_weights.collection=2")


def test_a_signal_weighs_texts(beir, more, tmp_path):
    registry = with_signal("LongTextsMoreOften")
    recipe = recipe_of(beir, more, "pretrain.weigh_by=lengths", registry=registry)
    try_parts(recipe, registry)
    assert "signals/lengths" in {key for stage in plan(recipe, registry).stages for key in stage.inputs}
    weighed = go(recipe, tmp_path / "weighed", registry=registry)
    alike = go(recipe_of(beir, more), tmp_path / "alike")
    assert not same(weights(weighed), weights(alike))


def test_a_signal_that_is_no_weight_is_refused(beir, more, tmp_path):
    registry = with_signal("Negative")
    with pytest.raises(DrkitError, match=r"'lengths' .*@ pretrain\.weigh_by"):
        go(recipe_of(beir, more, "pretrain.weigh_by=lengths", registry=registry), tmp_path / "run", registry=registry)


# -- the schedule


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_as_many_are_drawn_as_the_rates_add_up_to(rates, random):
    rates = np.array([*rates, 1.0])
    chosen = drawn(rates)
    assert abs(chosen.sum() - rates.sum()) <= 0.5 + 1e-9
    assert not chosen[rates == 0].any()
    assert chosen[rates == 1].all()


def schedule(rates, **settings):
    training = Training(per_device_train_batch_size=8, **settings)
    return Schedule.of(training, np.full(len(rates), 16, np.int32), seed=3, compares=False, rates=rates)


def test_every_text_is_drawn_as_often_as_its_weight_says():
    rates = np.repeat([1.0, 0.25, 0.0], [40, 40, 20])
    counts = np.zeros(100)
    for batch in schedule(rates, max_steps=50 * 40):
        for _, example in batch:
            counts[example] += 1
    assert counts[80:].sum() == 0
    assert counts[:40].mean() == pytest.approx(4 * counts[40:80].mean(), rel=0.02)
    assert counts[40:80].min() > 0


def test_an_epoch_reads_a_text_once_and_epochs_count_what_is_drawn():
    rates = np.repeat([1.0, 0.5], [40, 48])
    assert len(schedule(rates, num_train_epochs=2)) == 2 * 8
    for epoch in range(3):
        read = np.concatenate(schedule(rates, num_train_epochs=2).epoch(epoch))
        assert len(read) == len(np.unique(read)) == 64


def test_two_processes_read_the_batches_of_one():
    rates = np.linspace(0.1, 1, 90)
    whole = schedule(rates, max_steps=40)
    for batch, first, second in zip(whole, whole.share(0, 2), whole.share(1, 2), strict=True):
        assert sorted(batch) == sorted([*first, *second])


def test_equal_rates_read_what_no_rates_read():
    rates = np.ones(50)
    assert list(schedule(rates, max_steps=20)) == list(
        Schedule.of(
            Training(per_device_train_batch_size=8, max_steps=20), np.full(50, 16, np.int32), seed=3, compares=False
        )
    )
