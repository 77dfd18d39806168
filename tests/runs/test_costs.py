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
from drkit.runs import costs
from drkit.runs.attribution import build_collection
from drkit.runs.budget import fit_memory
from drkit.runs.costs import Rates, estimate_cost, measure_rates, memory_notes, sizes_of
from drkit.runs.manifest import Manifest, write_manifest
from drkit.runs.plan import plan
from drkit.runs.work import Work
from drkit_pydocs import PydocsCollection, PydocsConfig
from tests.cli.test_output import drkit  # noqa: F401
from tests.refusals import says

PARTS = installed()
PAGE = (Path(__file__).parents[2] / "docs" / "experiments" / "costs.md").read_text(encoding="utf-8")
GB = 2**30
DEFAULT = {"masker": "pmi", "decoder": "enhanced"}
# The core on which the runs of the page were measured.
MEASURED = Rates(150e9, 1.0, 1)
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


def cost_of(size=SMALL, rates=MEASURED, **request):
    recipe, stages = planned(**request)
    return estimate_cost(stages, sizes_of(recipe, size), rates)


def work_of(size=SMALL, **request):
    recipe, stages = planned(**request)
    sizes = sizes_of(recipe, size)
    return {stage.name: stage.spec.work(stage, sizes) for stage in stages if stage.spec.work}


CRANFIELD = {
    "passage_lengths": (95, 130, 160, 190, 218, 246, 288, 338, 395, 522),
    "query_lengths": (10, 15, 18, 21, 24, 26, 29, 33, 36, 45),
    "id_length": 3,
}
TLDR = {
    "passage_lengths": (18, 24, 28, 32, 34, 39, 42, 45, 48, 51, 56, 60, 63, 68, 72, 78, 86, 96, 110, 138),
    "query_lengths": (4, 6, 8, 9, 10, 12, 14, 15, 18, 24),
    "id_length": 15,
}
SOURCES = PydocsCollection(PydocsConfig(), roots=(Path(__file__).parent,)).size()
SIZES = {
    "pydocs": evolve(SOURCES, passages=45_939, queries={"train": 32_469, "dev": 1853, "test": 3730}),
    "pydocs, quick": evolve(SOURCES, passages=4534, queries={"train": 3456, "dev": 237, "test": 297}),
    "cranfield": CollectionSize(1400, {"train": 117, "dev": 8, "test": 100}, **CRANFIELD),
    "tldr": CollectionSize(6657, {"train": 22_936, "dev": 2987, "test": 3034}, **TLDR),
}
# The runs of the page, in its order.
RUNS = [
    ("pydocs, quick", {**DEFAULT, "scale": "quick"}),
    ("pydocs, quick", {"paper": "condenser", "scale": "quick"}),
    ("tldr", {"paper": "simlm", "scale": "quick"}),
]


def page_rows():
    """The cost that the page says was estimated, and what was taken: seconds, memory and disk."""
    cells = r"\| ([\d,]+) s \| ([\d,]+) s \| ([\d.]+), ([\d.]+) GB \| ([\d.]+), ([\d.]+) GB \|$"
    rows = re.findall(rf"^\| `.* {cells}", PAGE, flags=re.MULTILINE)
    numbers = [[float(cell.replace(",", "")) for cell in row] for row in rows]
    return [tuple(zip(row[::2], row[1::2], strict=True)) for row in numbers]


@pytest.mark.parametrize(("run", "row"), [*zip(RUNS, page_rows(), strict=True)])
def test_measured_runs_are_within_30_percent(run, row):
    size, request = run
    found = cost_of(SIZES[size], **request)
    for computed, (estimated, taken) in zip((found.seconds, found.memory / 1e9, found.disk / 1e9), row, strict=True):
        assert computed == pytest.approx(estimated, rel=0.1, abs=0.05)
        assert computed == pytest.approx(taken, rel=0.3, abs=0.05)


def test_the_work_follows_the_sizes():
    request = {"pipeline": "three-stage", "scale": "paper", "settings": ("pretrain.max_steps=-1",)}
    one, two = (work_of(evolve(SMALL, passages=count), **request) for count in (10**6, 2 * 10**6))
    for name in ("collection", "vocabulary", "tokens", "pretrained", "index-retriever-1"):
        for field in ("flops", "seconds", "parallel"):
            assert getattr(two[name], field) == pytest.approx(2 * getattr(one[name], field), rel=0.1), (name, field)
    for name in ("query-tokens", "retriever-1", "reranker", "teacher-retriever-distilled"):
        assert one[name] == two[name], "depends on the queries alone"
    assert two["index-retriever-1"].disk == 2 * one["index-retriever-1"].disk
    assert one["index-retriever-1"].disk >= 10**6 * 768 * 4


def test_pseudo_queries_count_as_training_queries():
    few, many = (work_of(pipeline="words", settings=(f"pseudo_queries.count={count}",)) for count in (3, 6))
    assert many["pseudo-query-tokens"].parallel == 2 * few["pseudo-query-tokens"].parallel
    assert many["unsupervised"].parallel > few["unsupervised"].parallel
    assert many["retriever-1"] == few["retriever-1"]


def test_a_reranker_that_learns_from_some_pairs_reads_all_of_them_forward():
    request = {"pipeline": "three-stage", "scale": "paper"}
    whole, part = (
        work_of(**request, settings=(f"reranker.forward_factor={factor}",))["reranker"].flops for factor in (1, 4)
    )
    assert part / whole == pytest.approx(1 / 4 + 1 / 3, rel=0.01)


def test_cached_gradients_take_a_second_forward_pass_and_less_memory():
    request = {"pipeline": "two-stage", "scale": "paper"}
    whole = work_of(**request)["retriever-1"]
    cached = work_of(**request, settings=("finetune.gradient_cache_chunk=8",))["retriever-1"]
    assert cached.flops == pytest.approx(4 / 3 * whole.flops)
    assert cached.memory < whole.memory


def test_faster_machines_take_less_time():
    seconds = [
        cost_of(**DEFAULT, rates=rates).seconds
        for rates in (Rates(1e11, 1.0, 1), Rates(2e11, 1.0, 1), Rates(2e11, 1.0, 2))
    ]
    assert seconds == sorted(seconds, reverse=True)
    assert Rates(1e11, 2.0, 1).seconds(Work(seconds=3.0, parallel=1.0)) == 2.0


def test_the_rates_are_measured_with_as_many_threads_as_configured():
    rates = measure_rates({"OMP_NUM_THREADS": "3"})
    assert rates.cores == 3
    assert rates.flops > 1e9
    assert 0.01 < rates.core < 100


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

    facts = {name: {} for name in ("settings", "inputs", "sources", "origins", "files", "versions")}
    manifest = Manifest(
        2, "collection", 2, "", metrics={"passages": 12_000, "queries": {}}, seconds=1.0, finished="", **facts
    )
    write_manifest(manifest, tmp_path / "run/collection")
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
    assert says(note, "retriever-1", "59 GB", "23 GB")
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
    assert re.search(r"about [\d.,]+ (s|min|h|days), [\d.,]+ [GT]B of memory and [\d.]+ GB of disk", line)
    document = json.loads(drkit("compose", "--dry-run", *large, "--json")[1])
    assert {*document["cost"]} == {"seconds", "memory", "disk"}
    assert document["cost"]["disk"] > 1e9


def test_no_time_is_estimated_where_a_gpu_trains(drkit, monkeypatch):  # noqa: F811
    monkeypatch.setattr(costs, "has_gpu", lambda: True)
    cost = json.loads(drkit("compose", "--dry-run", "--json")[1])["cost"]
    assert cost["seconds"] is None
    assert cost["memory"] > cost["disk"] > 1e6
    (line,) = re.findall(r"^in all .*", drkit("compose", "--dry-run")[1], re.MULTILINE)
    assert re.search(r"in all +[\d.]+ GB of memory and [\d.]+ GB of disk", line)
