"""Runs whose decoder rebuilds another text: spans, queries of every source, both; cut off and gone on with."""

import json

import numpy as np
import pytest

from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.data.contexts import open_texts
from drkit.data.generation import QueryModel
from drkit.data.queries import Queries
from drkit.errors import DrkitError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from tests.data.seq2seq import write_t5
from tests.refusals import says

PARTS = installed()
NAMES = ["Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "John", "Frances"]
DEEDS = ["wrote a compiler", "proved a theorem", "broke a cipher", "drew the first machine", "named the bug"]
SETTINGS = (
    "encoder.vocab_size=120",
    "encoder.hidden=16",
    "encoder.heads=2",
    "encoder.intermediate=32",
    "encoder.passage_length=24",
    "encoder.query_length=12",
    "pretrain.max_steps=3",
    "pretrain.logging_steps=1",
    "pretrain.probe.every=2",
    "pretrain.probe.texts=4",
    "pretrain.per_device_train_batch_size=4",
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """40 documents of one to five sentences; the last one has none."""
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    documents = [
        " ".join(f"{name} {deed} and {DEEDS[k]}." for k in range(1 + (i * 3 + j) % 5))
        for i, name in enumerate(NAMES)
        for j, deed in enumerate(DEEDS)
    ]
    lines = [json.dumps({"id": f"d{n}", "text": text}) for n, text in enumerate([*documents, ""])]
    path.write_text("\n".join(lines))
    return path


class Notes(Silent):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def run(texts, folder, *settings, context="query", masker="uniform", decoder="mlm"):
    """(manifests by stage, what was said) of a run whose decoder has this context, with these settings of it."""
    wanted = ComposeRequest(
        masker=masker,
        context=context,
        decoder=decoder,
        collection=f"jsonl:{texts}",
        settings=(
            *SETTINGS,
            "finetune=none",
            "collection.id_field=id",
            *(f"pretrain.decoders.main.context.{s}" for s in settings),
        ),
    )
    recipe = compose(wanted, PARTS)
    check(recipe, PARTS.registry)
    notes = Notes()
    stages = plan(recipe, PARTS.registry).stages
    return execute(stages, folder, recipe, registry=PARTS.registry, progress=notes, redo=True), notes.notes


@pytest.mark.parametrize("decoder", ["mlm", "enhanced"])
@pytest.mark.parametrize(
    ("context", "base"),
    [("span", "uniform"), ("query", "pmi"), ("mixed", "pmi"), ("self", "pmi"), ("mixed", "generator")],
)
def test_every_context_trains(context, base, decoder, texts, tmp_path):
    done, said = run(texts, tmp_path / "run", context=context, masker=base, decoder=decoder)
    wanted = {"span": {"spans"}, "query": {"queries"}, "mixed": {"spans", "queries"}, "self": set()}[context]
    assert done.keys() & {"spans", "queries"} == wanted
    assert ("signal-importance" in done) == (base == "pmi" or "queries" in wanted)
    assert done["pretrained"].metrics["steps"] == 3
    log = [json.loads(line) for line in (tmp_path / "run/pretrained/log.jsonl").read_text().splitlines()]
    assert all(np.isfinite(entry["loss"]) and entry["main_mlm_loss"] > 0 for entry in log)
    if "spans" in done:
        metrics = done["spans"].metrics
        assert metrics["documents"] == 41
        assert metrics["empty"] == 1
        assert metrics["alone"] > 0
        assert any(says(note, "one sentence") for note in said)
        inputs = {name: tmp_path / "run" / name for name in done}
        assert len(open_texts(inputs)) == metrics["spans"] > 41
        assert (tmp_path / "run/signal-importance").exists() == ("signal-importance" in done)
    if "queries" in done:
        assert done["queries"].metrics["texts"] == (done["spans"].metrics["spans"] if "spans" in done else 41)


def test_stages_follow_the_settings(texts, tmp_path):
    done, _ = run(texts, tmp_path / "run", context="mixed")
    again, _ = run(texts, tmp_path / "run", "candidates=2", context="mixed")
    same = {name for name in done if again[name].fingerprint == done[name].fingerprint}
    assert {"spans", "signal-importance", "initial"} <= same
    assert not {"queries", "pretrained"} & same


# ------------------------------------------------------------------------------------------------ a file of queries
def test_queries_of_a_file_stand_for_their_texts(texts, tmp_path):
    path = tmp_path / "queries.tsv"
    path.write_text("d1\twho proved a theorem\nd1\twho was it\nd2\twhat broke\nelsewhere\tlost\n")
    done, said = run(texts, tmp_path / "run", f"queries=file:{path}", "candidates=1")
    assert done["queries"].metrics == {
        "given": 4,
        "unknown": 1,
        "texts": 41,
        "queries": 41,
        "extractive": 39,
        "surplus": 1,
    }
    assert any(says(note, "1 query", "passage id") for note in said)
    assert any(says(note, "39 of 41 texts", "spans") for note in said)
    assert any(says(note, "first 1 ") for note in said)
    path.write_text("d1\tsomething else entirely\nd2\twhat broke\n")
    again, _ = run(texts, tmp_path / "run", f"queries=file:{path}", "candidates=1")
    assert again["queries"].content() != done["queries"].content()
    assert again["tokens"].fingerprint == done["tokens"].fingerprint


def test_a_documents_queries_serve_all_its_spans(texts, tmp_path):
    path = tmp_path / "queries.jsonl"
    path.write_text("\n".join(json.dumps({"doc_id": f"d{n}", "query": f"who {DEEDS[n % 5]}"}) for n in range(40)))
    done, _ = run(texts, tmp_path / "run", f"queries=file:{path}", context="mixed")
    metrics = done["queries"].metrics
    assert metrics["extractive"] == 0
    assert metrics["given"] == 40
    assert metrics["queries"] == metrics["texts"] == done["spans"].metrics["spans"]


def test_a_file_that_does_not_fit_is_refused(texts, tmp_path):
    with pytest.raises(DrkitError, match=r"absent\.tsv.* context .*@ pretrain$"):
        run(texts, tmp_path / "run", f"queries=file:{tmp_path / 'absent.tsv'}")
    path = tmp_path / "queries.tsv"
    path.write_text("p7\twhat\n")
    with pytest.raises(DrkitError, match=r"1 given query .*'p7'.*'d0'"):
        run(texts, tmp_path / "run", f"queries=file:{path}")
    path.write_text("d1\twhat\nd2\n")
    with pytest.raises(DrkitError, match=r"queries.tsv:2: expected 2 cells"):
        run(texts, tmp_path / "run", f"queries=file:{path}")


# ------------------------------------------------------------------------------------------------ a model
def test_generating_goes_on_where_it_was_cut_off(texts, tmp_path, monkeypatch):
    monkeypatch.setattr("drkit.data.generation._BATCHES_PER_FILE", 1)
    model = write_t5(tmp_path / "t5", texts.read_text().splitlines())
    settings = (f"queries=model:{model}", "candidates=2", "prefix='ask: '")
    done, _ = run(texts, tmp_path / "whole", *settings, context="mixed")
    written = (tmp_path / "whole/queries/queries.jsonl").read_text()
    assert len(written.splitlines()) == done["spans"].metrics["spans"]
    lines = [json.loads(line) for line in written.splitlines()]
    assert lines[0]["doc_id"] == "d0#0"
    assert all(len(line["queries"]) == 2 for line in lines)

    generate, calls = QueryModel.__call__, []

    def dies(self, some, keys):
        calls.append(len(some))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return generate(self, some, keys)

    monkeypatch.setattr(QueryModel, "__call__", dies)
    with pytest.raises(KeyboardInterrupt):
        run(texts, tmp_path / "cut", *settings, context="mixed")
    again, _ = run(texts, tmp_path / "cut", *settings, context="mixed")
    assert len(calls) == 1 + -(-len(lines) // 32)  # the batch that was lost, and no other, was made twice
    assert again["queries"].content() == done["queries"].content()
    assert again["pretrained"].content() == done["pretrained"].content()
    ours, theirs = ({**manifests["pretrained"].files, "training.json": None} for manifests in (again, done))
    assert ours == theirs, "all but how long it took"
    assert sorted(p.name for p in (tmp_path / "cut/queries").iterdir()) == [
        "candidates.arrow",
        "manifest.json",
        "queries.jsonl",
        "tokens.arrow",
    ]
    # What was generated is a file like any other.
    path = tmp_path / "whole/queries/queries.jsonl"
    read, _ = run(texts, tmp_path / "read", f"queries=file:{path}", "candidates=2", context="mixed")
    ours, theirs = (Queries(tmp_path / name / "queries") for name in ("whole", "read"))
    assert np.array_equal(ours.store.flat_ids, theirs.store.flat_ids)
    assert np.array_equal(ours.offsets, theirs.offsets)
    assert read["queries"].metrics == done["queries"].metrics
