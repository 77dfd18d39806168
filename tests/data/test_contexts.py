"""Contexts: another span, a candidate query, or either; drawn anew each epoch, whatever the batch."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
import torch

from drkit.core.registry import installed
from drkit.core.types import map_tensors
from drkit.data.contexts import PretrainingTexts, open_signals, open_texts, stacked
from drkit.data.counts import NgramCounts, count_ngrams
from drkit.data.queries import Queries, write_candidates
from drkit.data.spans import Spans, sample, split_documents, train_punkt
from drkit.data.specs import MixedContextConfig, QueryContextConfig
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.compose import ComposeRequest, compose
from drkit.signals.pmi import importance
from tests.data.stores import score

SEED = 7


@pytest.fixture(scope="module")
def inputs(real_texts, tokenizer, tmp_path_factory):
    """The folders of a run's stages, as they leave them."""
    run = tmp_path_factory.mktemp("run")
    punkt = train_punkt(sample(real_texts))
    split_documents(enumerate(real_texts), tokenizer, run / "spans", max_length=30, splitter=punkt)
    found = {"spans": run / "spans", "queries": run / "queries"}
    found |= {"signals/importance": run / "importance", "query-signals/importance": run / "of-queries"}
    store = open_texts(found)
    grams = count_ngrams(store, run / "counts", workers=1)
    weighed = importance(store, grams, run / "importance")
    write_candidates(store, weighed, tokenizer, run / "queries", count=4, max_length=16)
    importance(Queries(run / "queries").store, grams, run / "of-queries")
    return found


def row(batch, index):
    """The content tokens of one row."""
    return batch.ids[index][batch.attention[index]].tolist()[1:-1]


def content(store, index):
    return store.flat_ids[store.offsets[index] : store.offsets[index + 1]].tolist()


def same(one, two):
    return all(
        torch.equal(getattr(one, n), getattr(two, n)) for n in ("ids", "attention", "words", "keys")
    ) and torch.equal(one.signal("importance"), two.signal("importance"))


class Opened:
    """A context with the texts that it chooses from."""

    def __init__(self, inputs, name, config=None):
        self.texts, self.context = PretrainingTexts.open(inputs), installed().registry.build("context", name, config)

    def batch(self, indices, epoch, seed):
        return self.context(self.texts.batch(indices), self.texts, seed=seed, epoch=epoch)


@pytest.fixture(scope="module", params=["span", "query", "mixed"])
def contexts(request, inputs):
    return Opened(inputs, request.param)


def test_the_text_itself_is_the_batch_itself(inputs):
    opened = Opened(inputs, "self")
    tokens = opened.texts.batch(np.arange(3))
    assert opened.context(tokens, opened.texts, seed=SEED, epoch=0) is tokens


def test_a_context_depends_on_seed_epoch_and_text_alone(contexts, inputs):
    indices = np.arange(len(open_texts(inputs)))
    whole = contexts.batch(indices, 3, SEED)
    some = np.array([40, 2, 11])
    part = contexts.batch(some, 3, SEED)
    for at, index in enumerate(some):
        assert row(part, at) == row(whole, index)
        n = int(part.attention[at].sum())
        assert torch.equal(part.signal("importance")[at, :n], whole.signal("importance")[index, :n])
        assert torch.equal(part.words[at, :n], whole.words[index, :n])
    assert part.keys.tolist() == some.tolist()
    assert same(contexts.batch(indices, 3, SEED), whole)
    assert same(pickle.loads(pickle.dumps(contexts)).batch(indices, 3, SEED), whole)
    for other in (contexts.batch(indices, 4, SEED), contexts.batch(indices, 3, SEED + 1)):
        assert sum(row(other, p) != row(whole, p) for p in indices.tolist()) > len(indices) // 10
    probed = contexts.batch(some, -1, SEED)  # the epoch of probes
    assert probed.ids.shape[1] % 16 == 0 or probed.ids.shape[1] == 30


def test_a_span_gets_every_other_span_of_its_document_alike(inputs):
    contexts, spans = Opened(inputs, "span"), Spans.open(inputs["spans"])
    store = open_texts(inputs)
    first, number = (int(v) for v in np.array(spans.of(np.bincount(spans.documents).argmax())).ravel())
    assert number > 3
    index = first + 1
    drawn = Counter(tuple(row(contexts.batch(np.array([index]), epoch, SEED), 0)) for epoch in range(40 * number))
    others = Counter(tuple(content(store, p)) for p in range(first, first + number) if p != index)
    assert drawn.keys() == others.keys()
    assert all(20 * times < drawn[other] < 70 * times for other, times in others.items())
    alone = np.flatnonzero(np.bincount(spans.documents)[spans.documents] == 1)
    assert len(alone)
    batch = contexts.batch(alone, 0, SEED)
    assert [row(batch, i) for i in range(len(alone))] == [content(store, p) for p in alone]


def test_a_text_gets_each_of_its_candidates(inputs):
    contexts, queries = Opened(inputs, "query"), Queries(inputs["queries"])
    index = int(np.diff(queries.offsets).argmax())
    candidates = [content(queries.store, q) for q in range(queries.offsets[index], queries.offsets[index + 1])]
    assert len(candidates) >= 3
    drawn = [row(contexts.batch(np.array([index]), epoch, SEED), 0) for epoch in range(120)]
    assert {tuple(d) for d in drawn} == {tuple(c) for c in candidates}
    assert all(10 < drawn.count(c) < 80 for c in candidates)


def test_mixed_takes_either_half_of_the_time_as_they_would_have_been(inputs):
    mixed, query, span = (Opened(inputs, kind) for kind in ("mixed", "query", "span"))
    indices = np.arange(len(open_texts(inputs)))
    queries = 0
    for epoch in range(4):
        made, of_query, of_span = (c.batch(indices, epoch, SEED) for c in (mixed, query, span))
        for index in indices.tolist():
            assert row(made, index) in (row(of_query, index), row(of_span, index))
            if row(of_query, index) != row(of_span, index):
                queries += row(made, index) == row(of_query, index)
    assert 0.4 < queries / (4 * len(indices)) < 0.6
    assert made.keys.tolist() == indices.tolist()


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_mixed_may_be_all_of_one_kind(inputs, share):
    one = Opened(inputs, "mixed", MixedContextConfig(share=share))
    indices = np.arange(5)
    only = Opened(inputs, "query" if share else "span").batch(indices, 0, SEED)
    made = one.batch(indices, 0, SEED)
    assert [row(made, i) for i in range(5)] == [row(only, i) for i in range(5)]


def test_importance_is_that_of_the_contexts_own_tokens(inputs, tmp_path):
    contexts, counts = Opened(inputs, "query"), NgramCounts(inputs["spans"].parent / "counts")
    batch = contexts.batch(np.arange(12), 0, SEED)
    expected = score([row(batch, i) for i in range(12)], counts, tmp_path)
    for i, values in enumerate(expected):
        np.testing.assert_allclose(batch.signal("importance")[i, 1 : len(values) + 1], values, rtol=1e-6)
    assert open_signals({"tokens": inputs["spans"]}) == {}
    bare = {name: inputs[name] for name in ("spans", "queries")}
    assert Opened(bare, "mixed").batch(np.arange(4), 0, SEED).signals == {}


def test_two_batches_are_stacked(inputs):
    store = open_texts(inputs)
    short, long = store.batch([int(store.lengths.argmin())]), store.batch([int(store.lengths.argmax()), 3])
    both = stacked(short, long, store.pad_id)
    assert both.ids.shape == (3, long.ids.shape[1])
    assert both.signals == {}
    assert torch.equal(map_tensors(both, lambda t: t[1:]).ids, long.ids)
    width = short.ids.shape[1]
    assert torch.equal(both.ids[0, :width], short.ids[0])
    assert (both.ids[0, width:] == store.pad_id).all()
    assert not both.attention[0, width:].any()
    assert (both.words[0, width:] == -1).all()


def test_what_is_missing_is_named(inputs, store, tmp_path):
    (tmp_path / "tokens").symlink_to(store.path.parent)
    for kind, stage in (("span", "spans"), ("query", "queries"), ("mixed", "queries")):
        with pytest.raises(DrkitError, match=f"stage '{stage}'"):
            Opened({"tokens": tmp_path / "tokens"}, kind).batch(np.arange(2), 0, SEED)
    with pytest.raises(DrkitError, match="'tokens' or 'spans', got no stages"):
        open_texts({})
    assert len(open_texts({"tokens": tmp_path / "tokens"})) == len(store)


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("self", set()),
        ("span", {"spans"}),
        ("query", {"generated-queries", "importance"}),
        ("mixed", {"spans", "generated-queries", "importance"}),
    ],
)
def test_a_run_makes_what_a_context_needs(name, needed):
    spec = installed().registry.get("context", name)
    config = spec.config()
    assert {*spec.signals_of(config), *spec.requires_of(config)} == needed


@pytest.mark.parametrize("source", ["extractive", "file:q.jsonl", "model:doc2query/all-with-prefix-t5-base-v1"])
def test_sources_of_queries(source):
    assert QueryContextConfig(queries=source).queries == source


@pytest.mark.parametrize("source", ["", "generated", "file:", "model", "http:x"])
def test_other_sources_are_refused_in_a_recipe(source):
    wanted = ComposeRequest(context="query", settings=(f"pretrain.decoders.main.context.queries={source}",))
    with pytest.raises(ProblemsError, match=r"'queries' .*extractive, file:PATH, stage:NAME/FILE or model:PATH_OR_ID"):
        compose(wanted, installed())
