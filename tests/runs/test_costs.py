"""What the plan says that a run costs: against measured runs, by the work of its stages, and on the command line."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from attrs import evolve

from drkit.core.registry import installed
from drkit.core.types import CollectionSize
from drkit.data import BeirCollection, BeirConfig, JsonlCollection, JsonlConfig
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.encoder_settings import EncoderSettings
from drkit.recipe.toml import read_recipe
from drkit.runs import costs
from drkit.runs.attribution import build_collection
from drkit.runs.budget import fit_memory
from drkit.runs.costs import Rates, Shown, earlier_rates, estimate_cost, memory_notes, planned_sizes
from drkit.runs.manifest import Manifest, load_manifest, machine, write_manifest
from drkit.runs.plan import plan
from drkit.runs.work import BERT_BASE, ModelSize, Work
from drkit.train.speed import measure_steps
from drkit_pydocs import PydocsCollection, PydocsConfig
from tests.cli.test_output import drkit  # noqa: F401
from tests.refusals import says

PARTS = installed()
PAGE = (Path(__file__).parents[2] / "docs" / "experiments" / "costs.md").read_text(encoding="utf-8")
GB = 2**30
DEFAULT = {"masker": "pmi", "decoder": "enhanced"}
LENGTHS = {"passage_lengths": (100,), "query_lengths": (20,)}
SMALL = CollectionSize(10_000, {"train": 5000, "dev": 100, "test": 200}, **LENGTHS)
MINILM = {
    "model_type": "bert",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
}
LARGE = ("finetune.negatives=15", "finetune.per_device_train_batch_size=16", "encoder.passage_length=256")


def planned(**request):
    recipe = compose(ComposeRequest(**request), PARTS)
    return recipe, plan(recipe, PARTS.registry).stages


def cost_of(size=SMALL, rates=Rates(), **request):  # noqa: B008
    recipe, stages = planned(**request)
    return estimate_cost(stages, planned_sizes(recipe, size), rates)


def work_of(size=SMALL, **request):
    recipe, stages = planned(**request)
    sizes = planned_sizes(recipe, size)
    return {stage.name: stage.spec.work(stage, sizes) for stage in stages if stage.spec.work}


SOURCES = PydocsCollection(PydocsConfig(), roots=(Path(__file__).parent,)).size()
QUICK = evolve(SOURCES, passages=4534, queries={"train": 3456, "dev": 237, "test": 297})


def page_rows():
    """What the page says was counted, and what was measured: memory in GB and disk in MB."""
    rows = re.findall(r"^\| .* \| ([\d.]+), ([\d.]+) GB \| ([\d.]+), ([\d.]+) MB \|$", PAGE, flags=re.MULTILINE)
    return [tuple(map(float, row)) for row in rows]


def test_measured_runs_are_within_25_percent():
    assert len(page_rows()) >= 5
    for counted_memory, memory, counted_disk, disk in page_rows():
        assert counted_memory == pytest.approx(memory, rel=0.25)
        assert counted_disk == pytest.approx(disk, rel=0.25)


def test_the_quick_run_is_counted_as_the_page_says():
    found, (memory, _, disk, _) = cost_of(QUICK, **DEFAULT, scale="quick"), page_rows()[0]
    assert found.memory / 1e9 == pytest.approx(memory, rel=0.05)
    assert found.disk / 1e6 == pytest.approx(disk, rel=0.1)


def test_the_work_follows_the_sizes():
    request = {"pipeline": "three-stage", "scale": "paper", "settings": ("pretrain.max_steps=-1",)}
    one, two = (work_of(evolve(SMALL, passages=count), **request) for count in (10**6, 2 * 10**6))
    for name in ("collection", "vocabulary", "tokens", "pretrained", "index-retriever-1"):
        assert two[name].amount == pytest.approx(2 * one[name].amount, rel=0.1), name
        assert two[name].unit == one[name].unit
    for name in ("query-tokens", "retriever-1", "reranker", "teacher-retriever-distilled"):
        assert one[name] == two[name], "depends on the queries alone"
    assert two["index-retriever-1"].disk == 2 * one["index-retriever-1"].disk
    assert one["index-retriever-1"].disk >= 10**6 * 768 * 4


def test_pseudo_queries_count_as_training_queries():
    few, many = (work_of(pipeline="words", settings=(f"pseudo_queries.count={count}",)) for count in (3, 6))
    assert many["pseudo-query-tokens"].amount == 2 * few["pseudo-query-tokens"].amount
    assert many["unsupervised"].amount > few["unsupervised"].amount
    assert many["retriever-1"] == few["retriever-1"]


def test_a_reranker_that_learns_from_some_pairs_reads_all_of_them_forward():
    request = {"pipeline": "three-stage", "scale": "paper"}
    whole, part = (
        work_of(**request, settings=(f"reranker.forward_factor={factor}",))["reranker"].amount for factor in (1, 4)
    )
    assert part / whole == pytest.approx(1 / 4 + 1 / 3, rel=0.01)


def test_cached_gradients_take_a_second_forward_pass_and_less_memory():
    request = {"pipeline": "two-stage", "scale": "paper"}
    whole = work_of(**request)["retriever-1"]
    cached = work_of(**request, settings=("finetune.gradient_cache_chunk=8",))["retriever-1"]
    assert cached.amount == pytest.approx(4 / 3 * whole.amount)
    assert cached.memory < whole.memory


def test_mining_by_bm25_has_an_index_in_memory_and_mining_by_a_retriever_its_vectors():
    words, vectors, both = (
        work_of(pipeline="dpr", miners=(miner,))["negatives-retriever-1"] for miner in ("bm25", "dense", "hybrid")
    )
    assert words.memory == work_of(pipeline="dpr")["bm25"].memory > 10_000 * 100 * 20
    assert vectors.memory == pytest.approx(10_000 * 128 * 4, rel=0.1)
    assert both.memory == words.memory + vectors.memory
    assert len({words.unit, vectors.unit, both.unit}) == 3


def test_mining_during_training_is_work_of_the_training():
    plain, refreshed = (work_of(pipeline="dpr", miners=(miner,)) for miner in ("dense", "refresh"))
    assert refreshed["retriever-1"].amount > plain["retriever-1"].amount
    assert refreshed["retriever-1"].memory > plain["retriever-1"].memory


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_what_a_text_keeps_is_what_torch_keeps(dropout):
    """Tensors saved for the backward pass, each storage once; the count adds the gradients of one layer."""
    import torch
    from transformers import BertConfig, BertModel

    length, texts = 128, 3
    size = ModelSize(hidden=192, heads=6, intermediate=768, layers=4, vocabulary=100, dropout=dropout)
    config = BertConfig(
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=6,
        intermediate_size=768,
        vocab_size=100,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    model, kept = BertModel(config).train(), {}
    own = {one.untyped_storage().data_ptr() for one in model.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # alive, so that no address is used twice
        return tensor

    attention = torch.ones(texts, length, dtype=torch.long)
    attention[0, -5:] = 0
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.randint(0, 100, (texts, length)), attention_mask=attention)
    found = sum(count for count, _ in kept.values())
    counted = size.text_bytes(length) - evolve(size, layers=1).text_bytes(length) / 2
    assert texts * counted == pytest.approx(found, rel=0.1)


def test_scores_of_attention_are_not_kept_on_a_gpu_or_without_dropout():
    bert = BERT_BASE
    assert bert.text_bytes(8192) > 100e9
    assert bert.text_bytes(8192, gpu=True) < 8e9
    assert evolve(bert, dropout=0.0).text_bytes(8192) < 8e9


def test_time_is_that_of_the_largest_stage_of_a_kind_and_unknown_without_one():
    rates = Rates((Shown("tokens", 100.0, "tokens", 5.0), Shown("tokens", 1000.0, "tokens", 10.0)))
    assert rates.seconds("tokens", Work(3000.0, "tokens")) == 30.0
    assert rates.seconds("tokens", Work(3000.0, "words")) is None
    assert rates.seconds("index", Work(3000.0, "tokens")) is None
    assert rates.seconds("index", Work()) == 0.0
    unknown = cost_of(rates=Rates(), **DEFAULT)
    assert unknown.time is None
    assert {"collection", "pretrained", "retriever-1"} <= {*unknown.unknown}


def manifest(kind, **known):
    facts = {name: {} for name in ("settings", "inputs", "sources", "origins", "files", "versions", "metrics")}
    given = {"seconds": 10.0, "amount": 1000.0, "unit": "tokens", "machine": machine(), **facts, **known}
    return Manifest(2, kind, 2, "", finished="", **given)


@pytest.mark.parametrize(
    ("known", "counts"),
    [
        ({}, True),
        ({"amount": 0.0}, False),  # an interrupted stage, or one made before amounts were recorded
        ({"machine": {**machine(), "processor": "another"}}, False),
        ({"machine": {**machine(), "gpu": "1 x H100"}}, True),
        ({"machine": {**machine(), "gpu": "1 x H100"}, "unit": "operations of some layers"}, False),
    ],
)
def test_runs_beside_show_the_speed_of_this_machine(tmp_path, monkeypatch, known, counts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/old/tokens").mkdir(parents=True)
    (tmp_path / "runs/old/damaged").mkdir()
    (tmp_path / "runs/old/damaged/manifest.json").write_text("{")
    write_manifest(manifest("passage-tokens", **known), tmp_path / "runs/old/tokens")
    for run in (Path("runs/new"), tmp_path / "other/new"):
        found = earlier_rates(run).shown
        assert found == ((Shown("passage-tokens", 1000.0, known.get("unit", "tokens"), 10.0),) if counts else ())


def lines(path, count, *, open_with=open):
    with open_with(path, "wt", encoding="utf-8") as file:
        for number in range(count):
            file.write(json.dumps({"_id": f"d{number}", "title": "", "text": f"text {number} " + "word " * 20}) + "\n")


@pytest.mark.parametrize("count", [40, 12_000])
def test_the_size_of_files_is_estimated(tmp_path, count):
    lines(tmp_path / "texts.jsonl", count)
    size = JsonlCollection(JsonlConfig(path=str(tmp_path / "texts.jsonl"))).size()
    assert size.passages == pytest.approx(count, rel=0 if count < 5000 else 0.1)
    assert size.passage_tokens() == 33
    assert size.passage_tokens(10) == 10
    assert (size.queries, size.query_tokens()) == ({}, 0)


def test_the_size_of_a_beir_folder_has_its_queries(tmp_path):
    lines(tmp_path / "corpus.jsonl", 10)
    lines(tmp_path / "queries.jsonl", 4)
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nd0\td1\t1\nd2\td1\t1\n")
    size = BeirCollection(BeirConfig(path=str(tmp_path))).size()
    assert (size.passages, size.queries) == (10, {"test": 2})


def test_a_compressed_file_is_larger_than_it_looks(tmp_path):
    lines(tmp_path / "texts.jsonl.gz", 12_000, open_with=gzip.open)
    lines(tmp_path / "plain.jsonl", 12_000)
    packed, plain = (tmp_path / name for name in ("texts.jsonl.gz", "plain.jsonl"))
    counts = [JsonlCollection(JsonlConfig(path=str(path))).size().passages for path in (packed, plain)]
    assert counts[0] == pytest.approx(3 * counts[1] * packed.stat().st_size / plain.stat().st_size, abs=1)


def test_the_size_of_pydocs_is_known_without_parsing(tmp_path):
    (tmp_path / "module.py").write_text("def f(:" + "x" * 499_993)
    size = PydocsCollection(PydocsConfig(), roots=(tmp_path,)).size()
    assert size.passages == 100
    assert sum(size.queries.values()) == pytest.approx(83, abs=1)


def test_what_a_run_has_read_replaces_the_estimate(tmp_path):
    lines(tmp_path / "texts.jsonl", 12_000)
    recipe, _ = planned(collection=f"jsonl:{tmp_path / 'texts.jsonl'}", masker="uniform")
    (tmp_path / "run/collection").mkdir(parents=True)
    before = costs.collection_size(recipe, build_collection(recipe, PARTS.registry), tmp_path / "run")

    made = manifest("collection", metrics={"passages": 12_000, "queries": {}})
    write_manifest(made, tmp_path / "run/collection")
    assert before.passages != 12_000
    assert costs.collection_size(recipe, build_collection(recipe, PARTS.registry), tmp_path / "run").passages == 12_000


def test_a_damaged_collection_has_no_size(tmp_path):
    (tmp_path / "texts.jsonl").write_text("{broken\n")
    recipe = compose(ComposeRequest(collection=f"jsonl:{tmp_path / 'texts.jsonl'}", masker="uniform"), PARTS)
    assert costs.collection_size(recipe, build_collection(recipe, PARTS.registry), tmp_path) is None


def folder(path, **config):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**MINILM, **config}))
    return str(path)


def notes(encoder, *settings, memory=23 * GB):
    given = [f"finetune.rounds.0.{name}" for name in ("negatives=15", "per_device_train_batch_size=16")]
    recipe, stages = planned(encoder=encoder, pipeline="texts", settings=(*LARGE, *given, "pretrain=none", *settings))
    return memory_notes(recipe, stages, memory)


def test_a_step_larger_than_the_memory_is_a_note_that_says_what_to_do(tmp_path):
    (note, *_) = notes(folder(tmp_path / "minilm"))
    assert says(note, "retriever-1", "53 GB", "23 GB")
    assert "--set finetune.gradient_cache_chunk=32" in note
    assert notes(folder(tmp_path / "minilm"), "finetune.gradient_cache_chunk=32") == []
    assert notes(folder(tmp_path / "minilm"), memory=512 * GB) == []


def test_a_recipe_is_fitted_to_the_memory_and_says_why(tmp_path):
    given = [f"finetune.rounds.0.{name}" for name in ("negatives=15", "per_device_train_batch_size=16")]
    encoder = folder(tmp_path / "minilm")
    recipe, _ = planned(encoder=encoder, pipeline="texts", settings=(*LARGE, *given, "pretrain=none"))
    assert memory_notes(recipe, plan(recipe, PARTS.registry).stages, 23 * GB) != []
    fitted, reasons = fit_memory(recipe, PARTS.registry, 23 * GB)
    assert fitted.finetune.gradient_cache_chunk == 32
    assert "23 GB" in reasons["finetune.gradient_cache_chunk"]
    assert memory_notes(fitted, plan(fitted, PARTS.registry).stages, 23 * GB) == []
    assert fit_memory(fitted, PARTS.registry, GB) == (fitted, {})
    assert fit_memory(recipe, PARTS.registry, 512 * GB) == (recipe, {})


def test_unknown_sizes_and_the_default_run_have_no_note(tmp_path):
    assert notes("owner/model") == []
    assert notes(folder(tmp_path / "odd", hidden_size="wide")) == []
    assert memory_notes(*planned(), 4 * GB) == []


def test_the_plan_has_the_note_and_one_line_of_costs(drkit, monkeypatch):  # noqa: F811
    monkeypatch.setattr(costs, "machine_memory", lambda: 8 * GB)
    large = ("--set", "encoder.hidden=2048", "--set", "encoder.layers=12", "--pipeline", "two-stage")
    code, out, _ = drkit("compose", "--dry-run", *large)
    assert code == 0
    assert says(out, "step", "pretrained")
    (line,) = re.findall(r"^in all .*", out, re.MULTILINE)
    assert re.search(r"time unknown until the first step, [\d.,]+ [GT]B of memory and [\d.]+ GB of disk", line)
    document = json.loads(drkit("compose", "--dry-run", *large, "--json")[1])
    assert {*document["cost"]} == {"seconds", "memory", "disk", "unknown"}
    assert document["cost"]["disk"] > 1e9


def test_memory_and_disk_are_printed_where_a_gpu_trains(drkit, monkeypatch):  # noqa: F811
    monkeypatch.setattr(costs, "has_gpu", lambda: True)
    cost = json.loads(drkit("compose", "--dry-run", "--json")[1])["cost"]
    assert cost["seconds"] is None
    assert cost["memory"] > cost["disk"] > 1e6
    (line,) = re.findall(r"^in all .*", drkit("compose", "--dry-run")[1], re.MULTILINE)
    assert re.search(r"in all +time unknown until the first step, [\d.]+ GB of memory and [\d.]+ GB of disk", line)


def test_a_second_run_is_estimated_from_the_first(tiny_run):
    """What was made before takes as long again; another encoder has no time until its first step."""
    run, _ = tiny_run
    recipe = read_recipe(run / "recipe.toml", PARTS.registry)
    stages = plan(recipe, PARTS.registry).stages
    size = costs.collection_size(recipe, build_collection(recipe, PARTS.registry), run)
    found = estimate_cost(stages, planned_sizes(recipe, size), earlier_rates(run.parent / "next"))
    counted = [stage for stage in stages if stage.spec.work]
    taken = sum(load_manifest(run / stage.name).seconds for stage in counted)
    assert found.unknown == ()
    assert taken / 3 < found.time < 3 * taken
    wide = evolve(recipe, encoder=evolve(recipe.encoder, hidden=2 * recipe.encoder.hidden))
    other = estimate_cost(
        plan(wide, PARTS.registry).stages, planned_sizes(wide, size), earlier_rates(run.parent / "next")
    )
    assert {"retriever-1", "index-retriever-1"} <= {*other.unknown}
    assert "tokens" not in other.unknown


def test_a_trial_times_steps_of_the_encoder_where_no_run_has_shown_any(drkit, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    line = ("compose", "--dry-run", "--json")
    unknown = [json.loads(drkit(*line, *more)[1])["cost"]["unknown"] for more in ((), ("--trial",))]
    trained = {"pretrained", "retriever-1", "index-retriever-1"}
    assert trained <= {*unknown[0]}
    assert {*unknown[0]} - {*unknown[1]} >= trained
    assert "collection" in unknown[1]  # which is not timed


def test_steps_take_longer_the_more_layers_there_are():
    one, many = (measure_steps(EncoderSettings(layers=layers), texts=8, length=32) for layers in (1, 24))
    assert 0 < one.read < one.learned
    assert many.read > one.read
    assert many.learned > one.learned


def test_what_a_run_has_shown_goes_before_what_was_timed():
    shown = Rates((Shown("finetune", 10.0, "operations", 5.0),))
    timed = Rates((Shown("finetune", 10.0, "operations", 1.0), Shown("index", 10.0, "operations", 2.0)))
    rates = shown.or_else(timed)
    assert [rates.seconds(kind, Work(20.0, "operations")) for kind in ("finetune", "index")] == [10.0, 4.0]
