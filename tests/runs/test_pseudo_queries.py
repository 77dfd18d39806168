"""From texts alone to a retriever: training queries made from the passages, kept by their round trip."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from attrs import evolve
from safetensors.torch import load_file

from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.data import open_collection, read_queries
from drkit.data.corpus import collection_of
from drkit.encoders import EncoderCard
from drkit.encoders.cross_encoder import CrossEncoder
from drkit.errors import DrkitError, ProblemsError
from drkit.evaluate.names import system_in_words
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.execute import execute
from drkit.runs.making.retriever import load_text_encoder, write_encoder
from drkit.runs.manifest import read_manifest
from drkit.runs.plan import plan
from drkit.runs.stage import settings_from
from drkit.search import Bm25Retriever, FlatIndex, Retriever, TextEncoder, align, convex
from drkit.train.biencoder import PairCollator
from tests.data.seq2seq import write_t5
from tests.refusals import says
from tests.rerank.toys import checkpoint
from tests.runs.conftest import drkit

PARTS = installed()
TINY = (
    *("encoder.vocab_size=300", "encoder.hidden=16", "encoder.heads=2", "encoder.intermediate=32"),
    *("encoder.passage_length=40", "encoder.query_length=16", "evaluation.depth=20"),
    *("pretrain.max_steps=3", "pretrain.batch_size=4", "pretrain.probe.every=0"),
    *("finetune.max_steps=3", "finetune.batch_size=4"),
)
ANIMALS = ["lion", "tiger", "bear", "wolf", "fox", "deer", "hare", "crow", "owl", "carp", "pike", "trout"]


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    """Passages of two sentences on twelve animals, with test queries and no training query."""
    folder = tmp_path_factory.mktemp("beir")
    (folder / "qrels").mkdir()
    lines = [
        {
            "_id": f"{one}-{other}",
            "title": f"the {one} and the {other}",
            "text": f"In summer a {one} often meets one {other} at the river. Each {one} is older than any {other}.",
        }
        for one in ANIMALS
        for other in ANIMALS
        if one != other
    ]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, lines)))
    queries = [{"_id": f"q-{name}", "text": f"is the {name} older"} for name in ANIMALS]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    rows = [f"q-{one}\t{one}-{other}\t1" for one in ANIMALS for other in ANIMALS if one != other]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    return folder


def recipe_of(collection, *settings, **choices):
    return compose(
        ComposeRequest(pipeline="texts", collection=str(collection), settings=(*TINY, *settings), **choices), PARTS
    )


def planned(collection, *settings):
    recipe = recipe_of(collection, *settings)
    check(recipe, PARTS.registry)
    return plan(recipe, PARTS.registry)


class Notes(Silent):
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)


def made(recipe, folder):
    """The collection with its pseudo-queries, counts by source, and the notes."""
    check(recipe, PARTS.registry)
    stages = plan(recipe, PARTS.registry).stages
    names, notes = [stage.name for stage in stages], Notes()
    execute(
        stages[: names.index("pseudo-queries") + 1], folder, recipe, registry=PARTS.registry, progress=notes, redo=True
    )
    parts = {"passages": folder / "collection" / "passages", "train": folder / "pseudo-queries" / "train"}
    return collection_of(parts), read_manifest(folder / "pseudo-queries").metrics, notes.said


def pairs_of(collection):
    positives = collection.positives("train")
    return [(query.text, *positives[query.query_id]) for query in collection.queries("train")]


def test_the_round_trip_keeps_what_bm25_finds_and_counts_the_rest(beir, tmp_path):
    own = ("pretrain=none", "pseudo_queries.sources=['crops', 'sentences']")
    everything, counts, said = made(recipe_of(f"beir:{beir}", *own, "pseudo_queries.round_trip=0"), tmp_path / "all")
    assert all(one["made"] == one["kept"] for one in counts.values())
    assert all("all kept" in line for line in said)
    kept, counts, said = made(recipe_of(f"beir:{beir}", *own, "pseudo_queries.round_trip=2"), tmp_path / "two")
    bm25 = Bm25Retriever().index(everything.corpus)
    naive = [(text, doc_id) for text, doc_id in pairs_of(everything) if doc_id in bm25.search([text], 2)[0].doc_ids]
    assert pairs_of(kept) == naive
    assert 0 < len(naive) < len(pairs_of(everything))
    for source, counted in counts.items():
        assert counted["made"] == counted["kept"] + counted["dropped"]
        assert any(line.startswith(f"{source}: {counted['made']:,} queries") for line in said)
    assert sum(counted["kept"] for counted in counts.values()) == len(naive)


def test_queries_of_a_file_and_of_a_model_are_trained_on(beir, tmp_path):
    rows = [{"doc_id": "lion-bear", "queries": ["who meets a bear", "old lions"]}, {"doc_id": "cat", "query": "a cat"}]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_t5(tmp_path / "t5", ANIMALS)
    sources = f"pseudo_queries.sources=['file:{tmp_path / 'q.jsonl'}', 'model:{tmp_path / 't5'}']"
    recipe = recipe_of(f"beir:{beir}", "pretrain=none", "pseudo_queries.round_trip=0", sources)
    collection, counts, said = made(recipe, tmp_path / "run")
    given, generated = counts.values()
    assert (given["made"], given["unknown"]) == (2, 1)
    assert any(says(line, "1 of unknown passages") for line in said)
    from_model = [
        (text, d) for d, text in read_queries(tmp_path / "run" / "pseudo-queries" / "queries-2.jsonl") if text
    ]
    assert pairs_of(collection) == [("who meets a bear", "lion-bear"), ("old lions", "lion-bear"), *from_model]
    assert len(from_model) == generated["kept"] > 0


def test_the_round_trip_of_the_encoder_and_of_either(beir, tmp_path):
    own = ("pretrain=none", "pseudo_queries.sources=['crops', 'sentences']", "pseudo_queries.round_trip=2")
    everything, _, _ = made(recipe_of(f"beir:{beir}", *own[:2], "pseudo_queries.round_trip=0"), tmp_path / "all")
    recipe = recipe_of(f"beir:{beir}", *own, "pseudo_queries.found_by=['bm25', 'encoder']")
    either, _, said = made(recipe, tmp_path / "run")
    assert all(says(line, "BM25", "encoder") for line in said)
    encoder = load_text_encoder(tmp_path / "run" / "initial", settings_from(EncoderCard, recipe))
    index = FlatIndex.load(tmp_path / "run" / "index-initial")
    finders = [Bm25Retriever().index(everything.corpus), Retriever(encoder, index)]
    found = [
        {(text, doc) for text, doc in pairs_of(everything) if doc in finder.search([text], 2)[0].doc_ids}
        for finder in finders
    ]
    assert found[0] - found[1]
    assert found[1] - found[0]
    assert pairs_of(either) == [pair for pair in pairs_of(everything) if pair in found[0] | found[1]]
    alone, _, _ = made(recipe_of(f"beir:{beir}", *own, "pseudo_queries.found_by=['encoder']"), tmp_path / "run")
    assert pairs_of(alone) == [pair for pair in pairs_of(everything) if pair in found[1]]


def test_the_encoder_of_the_round_trip_is_the_one_that_fine_tuning_starts_from(beir):
    stages = planned(f"beir:{beir}", "pseudo_queries.found_by=['encoder']").stages
    names = [stage.name for stage in stages]
    read = stages[names.index("pseudo-queries")].inputs
    assert (read["encoder"].stage, read["index"].stage) == ("pretrained", "index-pretrained")
    assert names.index("index-pretrained") < names.index("pseudo-queries") < names.index("pseudo-query-tokens")
    deep = planned(f"beir:{beir}", "pseudo_queries.found_by=['encoder']", "pseudo_queries.round_trip=0").stages
    assert "encoder" not in {stage.name: stage for stage in deep}["pseudo-queries"].inputs


def test_nothing_left_to_train_on_is_said(beir, tmp_path):
    (tmp_path / "q.jsonl").write_text('{"doc_id": "lion-bear", "query": "submarines"}\n')
    source = f"pseudo_queries.sources=['file:{tmp_path / 'q.jsonl'}']"
    said = r"finds the passage of none of the 1 query.*within 10; --set pseudo_queries\.round_trip=N looks deeper"
    with pytest.raises(DrkitError, match=said):
        made(recipe_of(f"beir:{beir}", "pretrain=none", source), tmp_path / "run")


def test_a_text_too_short_for_any_query_is_said(tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"text": "a lion"}\n')
    with pytest.raises(DrkitError, match=r" 0 queries .*extractive, crops, .*titles.*@ pseudo_queries\.sources"):
        made(recipe_of(f"jsonl:{tmp_path / 'texts.jsonl'}", "pretrain=none"), tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("pseudo_queries.sources=['file:no/such.jsonl']",), "no/such.jsonl "),
        (("pseudo_queries.sources=['model:./no/such']",), "no/such"),
        (("pseudo_queries.sources=['crop']",), "did you mean 'crops'"),
        (("pseudo_queries.sources=['crops', 'crops']",), "each once"),
        (("pseudo_queries.sources=[]",), "one source"),
        (("pseudo_queries.found_by=['bm25', 'dense']",), "bm25 or encoder"),
        (("finetune.rounds.0.name=pseudo-queries",), "cannot be named"),
        (("finetune.rounds.0.name=encoder",), "named 'encoder'"),
        (("finetune.rounds.0.name=index-a",), "named 'index-a'"),
        (("finetune.rounds.0.name=reranker",), "named 'reranker'"),
        (("finetune.rounds.0.name=teacher-x",), "named 'teacher-x'"),
        (("finetune.rounds.0.name=labels-only",), "named 'labels-only'"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(settings, said, beir):
    with pytest.raises((DrkitError, ProblemsError), match=said):
        planned(f"beir:{beir}", *settings)


@pytest.mark.parametrize("pipeline", ["two-stage", "three-stage", "ance"])
def test_a_pipeline_that_was_asked_for_is_never_left_out(pipeline, beir, tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"text": "a lion"}\n')
    for collection, has in ((f"jsonl:{tmp_path / 'texts.jsonl'}", "only texts"), (f"beir:{beir}", "test queries")):
        request = ComposeRequest(pipeline=pipeline, collection=collection)
        with pytest.raises(DrkitError, match=f"{pipeline}.*{has}: --pipeline texts"):
            plan(compose(request, PARTS), PARTS.registry)
        found = plan(compose(evolve(request, pipeline=None), PARTS), PARTS.registry)
        assert "--pipeline texts" in found.notes[0]


def test_no_label_and_no_training_query_of_the_collection_is_read(beir, tmp_path):
    """With training queries in the collection, too, only the passages are trained on."""
    header, *rows = (beir / "qrels" / "test.tsv").read_text().splitlines()
    folder = tmp_path / "judged"
    (folder / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl"):
        (folder / name).write_text((beir / name).read_text())
    first = rows[0].partition("\t")[0]
    for split in ("train", "dev"):
        own = [row for row in rows if (row.partition("\t")[0] == first) == (split == "train")]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join([header, *own]) + "\n")
    for stage in plan(recipe_of(f"beir:{folder}", "evaluation.split=dev"), PARTS.registry).stages:
        assert not any(part.path.startswith("train") and part.stage == "collection" for part in stage.inputs.values())


def test_spans_of_pre_training_and_queries_of_whole_passages_have_importance_of_their_own(beir):
    recipe = recipe_of(f"beir:{beir}", context="mixed", masker="uniform", decoder="mlm")
    stages = {stage.name: stage for stage in plan(recipe, PARTS.registry).stages}
    read = {name: stages[name].inputs["texts"].stage for name in ("signal-importance", "signal-importance-passages")}
    assert read == {"signal-importance": "spans", "signal-importance-passages": "tokens"}
    assert stages["pseudo-queries"].inputs["importance"].stage == "signal-importance-passages"


def test_from_a_file_of_texts_to_a_retriever(beir, tmp_path):
    settings = [f"--set={one}" for one in TINY]
    run = tmp_path / "run"
    done = drkit(
        *("compose", "--pipeline", "texts", "--collection", f"jsonl:{beir / 'corpus.jsonl'}", *settings),
        *("--run-dir", run),
    )
    assert says(done.stdout + done.stderr, "BM25", "passage")
    assert str(run / "encoder") in done.stdout
    assert open_collection(run / "collection").splits() == ()
    assert not (run / "labels-only").exists(), "nothing would compare it"
    assert len(Retriever.load(run).search(["an older lion"], 5)[0].doc_ids) == 5

    assert f"drkit search {run} 'a query'\n" in done.stdout
    found = json.loads(drkit("search", run, "an older lion", "-k", "5", "--json").stdout)["hits"]
    both = Bm25Retriever.load(run / "bm25"), Retriever.load(run)
    bm25, dense = ([("q", one.search(["an older lion"], 20)[0].pairs())] for one in both)
    ((_, expected),) = convex(align(bm25, dense), 0.3, 5)
    assert [(hit["doc_id"], hit["score"]) for hit in found] == [
        (name, pytest.approx(score)) for name, score in expected
    ]
    facts = json.loads((run / "hybrid" / "weight.json").read_text())
    assert (facts["weight"], facts["tuned"]) == (0.3, None)


def test_texts_alone_have_no_hybrid_search_without_bm25(beir, tmp_path):
    recipe = recipe_of(f"jsonl:{beir / 'corpus.jsonl'}", "evaluation.bm25=false")
    assert not {"bm25", "hybrid"} & {stage.name for stage in plan(recipe, PARTS.registry).stages}


def test_a_trained_encoder_is_exported_as_it_is_where_nothing_shows_that_pseudo_queries_help(beir, tmp_path):
    texts = ("--collection", f"jsonl:{beir / 'corpus.jsonl'}")
    reading = EncoderCard("mean", "cosine", 16, 32)
    write_encoder(load_text_encoder(checkpoint(tmp_path / "lm"), reading, device="cpu"), tmp_path / "made", {})
    made, trained = tmp_path / "made", ("finetune.max_steps=3", "finetune.batch_size=4")
    again = (
        "pretrain=none",
        "finetune.baselines=[]",
        "evaluation.depth=20",
        "pseudo_queries.sources=['crops']",
        *trained,
    )
    given = ("--encoder", made, "--pipeline", "texts", *(f"--set={one}" for one in again))
    for collection, own in ((texts, ()), (("--collection", f"beir:{beir}"), ("hybrid",))):
        run = tmp_path / own[0] if own else tmp_path / "texts"
        done = drkit("compose", *given, *collection, "--run-dir", run)
        said = " ".join((done.stdout + done.stderr).split())
        assert says(said, "exported: ", "dev queries", "--set finetune=none")
        assert TextEncoder.load(run / "encoder").identity()["weights"] == TextEncoder.load(made).identity()["weights"]
        assert len(Retriever.load(run).search(["an older lion"], 5)[0].doc_ids) == 5
    assert json.loads((run / "hybrid" / "weight.json").read_text())["retriever"] == "as-it-is"
    request = ComposeRequest(pipeline="texts", encoder=str(made), collection=f"beir:{beir}")
    for setting in ("evaluation.export=last", "evaluation.start=false"):
        assert exported_by(evolve(request, settings=(*again, setting))) == "retriever-2"


def test_a_trained_encoder_is_exported_as_it_is_where_nothing_shows_that_pre_training_helps(beir, tmp_path):
    reading = EncoderCard("mean", "cosine", 16, 32)
    write_encoder(load_text_encoder(checkpoint(tmp_path / "lm"), reading, device="cpu"), tmp_path / "made", {})
    request = ComposeRequest(paper="retromae", encoder=str(tmp_path / "made"), collection=f"beir:{beir}")
    planned = plan(compose(request, PARTS), PARTS.registry)
    (note,) = [note for note in planned.notes if "dev queries" in note]
    assert says(note, "evaluation.export=last", "pretrained", "--set pretrain=none")
    assert exported_by(request) == "as-it-is"
    assert exported_by(evolve(request, settings=("evaluation.export=last",))) == "pretrained"
    assert exported_by(evolve(request, encoder=str(tmp_path / "lm"))) == "pretrained", "a masked LM finds nothing yet"
    assert exported_by(evolve(request, collection=f"jsonl:{beir / 'corpus.jsonl'}")) == "pretrained"


def exported_by(request):
    """The one retriever that a run exports, by its plan."""
    stages = {stage.name: stage for stage in plan(compose(request, PARTS), PARTS.registry).stages}
    (name,) = stages["encoder"].inputs
    return name.removeprefix("checkpoint/")


def test_a_folder_with_test_queries_alone_is_evaluated(beir, tmp_path):
    settings = [f"--set={one}" for one in (*TINY, "finetune.baselines=[]")]
    run = tmp_path / "run"
    drkit("compose", "--pipeline", "texts", "--collection", f"beir:{beir}", *settings, "--run-dir", run)
    rows = read_manifest(Path(run) / "evaluation").metrics["rows"]
    assert [row["system"] for row in rows] == ["bm25", "initial", "retriever-1", "retriever-2", "hybrid"]
    refused = drkit("compose", "--pipeline", "dpr", "--collection", f"beir:{beir}", "--run-dir", run, check=False)
    assert refused.returncode == 2
    assert "--pipeline texts" in refused.stderr
    assert "Traceback" not in refused.stderr


GIVEN = (
    *("encoder.passage_length=32", "encoder.query_length=16", "encoder.pooling=mean", "evaluation.depth=20"),
    *("pretrain.max_steps=2", "pretrain.batch_size=4", "pretrain.probe.every=0"),
    *("finetune.max_steps=4", "finetune.batch_size=4", "finetune.save_steps=1"),
    *("finetune.baselines=[]", "pseudo_queries.sources=['crops']"),
)


def test_an_existing_encoder_from_texts_alone_to_its_end_and_after_a_kill(beir, tmp_path, monkeypatch):
    recipe = compose(
        ComposeRequest(
            pipeline="texts",
            collection=f"jsonl:{beir / 'corpus.jsonl'}",
            encoder=str(checkpoint(tmp_path / "lm")),
            settings=GIVEN,
        ),
        PARTS,
    )
    check(recipe, PARTS.registry)
    stages = plan(recipe, PARTS.registry).stages

    def go(run):
        begun = Mock(wraps=Silent())
        execute(stages, run, recipe, registry=PARTS.registry, progress=begun)
        return {call.args[0]: call.args[2] for call in begun.begin.call_args_list}

    assert set(go(tmp_path / "whole")) == {stage.name for stage in stages} >= {"retriever-2", "encoder", "index"}
    calls, read = [], PairCollator.__call__

    def killed(self, examples):
        calls.append(1)
        if len(calls) == 7:  # in the second round
            raise KeyboardInterrupt
        return read(self, examples)

    with monkeypatch.context() as patched:
        patched.setattr(PairCollator, "__call__", killed)
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / "killed")
    resumed = go(tmp_path / "killed")
    assert resumed["retriever-2"].startswith("resumed from step")
    assert "retriever-1" not in resumed
    one, two = (load_file(tmp_path / name / "encoder" / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert len(Retriever.load(tmp_path / "killed").search(["an older lion"], 5)[0].doc_ids) == 5


def test_an_existing_encoder_is_compared_with_what_it_was(beir, tmp_path):
    lm, run = checkpoint(tmp_path / "lm"), tmp_path / "run"
    settings = [f"--set={one}" for one in (*GIVEN, "pretrain=none")]
    done = drkit(
        *("compose", "--pipeline", "texts", "--collection", f"beir:{beir}", "--encoder", lm, *settings),
        *("--run-dir", run),
    )
    rows = read_manifest(run / "evaluation").metrics["rows"]
    systems = [row["system"] for row in rows]
    assert systems[:2] == ["bm25", "as-it-is"]
    assert systems[-3:] == ["retriever-1", "retriever-2", "hybrid"]
    assert system_in_words("as-it-is") in done.stdout


def test_gpl_from_generated_queries_to_a_retriever_that_learns_margins(beir, tmp_path):
    write_t5(tmp_path / "t5", ANIMALS)
    CrossEncoder.start_from(str(checkpoint(tmp_path / "lm")), max_length=32).save(tmp_path / "teacher")
    settings = (
        *(*TINY, "finetune.baselines=[]", f"finetune.rounds.1.teacher={tmp_path / 'teacher'}"),
        f"pseudo_queries.sources=model:{tmp_path / 't5'}",
    )
    run = tmp_path / "run"
    drkit(
        *("compose", "--pipeline", "gpl", "--collection", f"beir:{beir}", "--run-dir", run),
        *(f"--set={one}" for one in settings),
    )
    rows = read_manifest(run / "evaluation").metrics["rows"]
    assert [row["system"] for row in rows] == ["bm25", "retriever-1", "retriever-distilled", "hybrid"]
    assert read_manifest(run / "teacher-retriever-distilled").metrics["pairs"] > 0
