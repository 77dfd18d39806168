"""What the plan says that a run costs: against measured runs, by its formulas, on the command line and on the page."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from attrs import asdict, evolve

from drkit.core.registry import installed
from drkit.errors import DrkitError
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.budget import budget
from drkit.runs.hardware import read_corpus, read_hardware
from drkit.runs.plan import plan
from tests.cli.test_output import drkit  # noqa: F401

PARTS = installed()
DOCS = Path(__file__).parents[2] / "docs" / "experiments"
DEFAULT = {"masker": "pmi", "decoder": "enhanced"}


def budget_of(hardware="cpu-2", corpus="pydocs", **request):
    recipe = compose(ComposeRequest(**request), PARTS)
    size = read_corpus(corpus) if isinstance(corpus, str) else corpus
    return budget(plan(recipe, PARTS.registry).stages, recipe, size, read_hardware(hardware))


def seconds(found, *names):
    return sum(one.seconds for one in found.stages if any(one.stage.startswith(name) for name in names))


def measured():
    """Seconds of each row of the page's three tables of stages: the default run's, and those of two older recipes."""
    text = (DOCS / "default-run.md").read_text(encoding="utf-8")
    tables = re.findall(r"\| stage \| seconds \|\n\|---\|---\|\n((?:\|.*\n)+)", text)
    rows = [re.findall(r"^\| (.*?) \| \**([\d,]+).*\|$", table, flags=re.MULTILINE) for table in tables]
    return [{name.strip("*"): int(value.replace(",", "")) for name, value in table} for table in rows]


OLDER = ("finetune.per_device_train_batch_size=512", "finetune.num_train_epochs=3", "encoder.mark_repeats=false")


def test_the_run_that_gave_the_rates_is_within_30_percent_of_its_measured_time():
    """The default run when it had batches of 512, and no tokens for repeated words."""
    rows, found = measured()[1], budget_of(**DEFAULT, settings=OLDER)
    assert rows["all"] == pytest.approx(525)
    assert found.total.seconds == pytest.approx(rows["all"], rel=0.3)
    (texts,) = [value for name, value in rows.items() if name.startswith("collection")]
    assert seconds(found, "collection", "vocab", "tokens", "signal", "initial") == pytest.approx(texts, rel=0.3)
    assert seconds(found, "pseudo", "unsup") == pytest.approx(rows["crops, and training on them"], rel=0.3)
    assert seconds(found, "no-pre", "retriever") == pytest.approx(rows["fine-tuning, three times"], rel=0.3)


def test_the_default_run_spends_its_time_as_measured():
    """On a faster machine, so shares of the whole are compared."""
    rows, found = measured()[0], budget_of(**DEFAULT)
    assert rows["all"] == pytest.approx(358)
    for stages, row in (
        (("pseudo", "unsup"), "crops, and training on them"),
        (("no-pre", "retriever"), "fine-tuning, three times"),
    ):
        assert seconds(found, *stages) / found.total.seconds == pytest.approx(rows[row] / rows["all"], rel=0.3), row


def test_a_run_that_gave_no_rate_is_within_30_percent_of_its_measured_time():
    """An encoder with a transformer layer: pre-training, fine-tuning, mining and encoding, as long ago."""
    rows = measured()[2]
    found = budget_of(**DEFAULT, pipeline="two-stage")
    (training,) = [value for name, value in rows.items() if name.startswith("pre-training")]
    (encoding,) = [value for name, value in rows.items() if name.startswith("encoding")]
    then = training + encoding + rows["negatives, twice"] + rows["fine-tuning, three times"]
    encoded = ("index-no-pretraining", "index-retriever")
    now = seconds(found, "pretrained", "negatives", "no-pretraining", "retriever", *encoded)
    assert now == pytest.approx(then, rel=0.3)
    assert seconds(found, "no-pretraining", "retriever") == pytest.approx(rows["fine-tuning, three times"], rel=0.3)


def test_the_work_follows_the_sizes():
    small = read_corpus("1000000:10000:1000")
    one = {stage.stage: stage for stage in budget_of("a100", small, scale="paper").stages}
    twice = evolve(small, passages=2 * small.passages)
    two = {stage.stage: stage for stage in budget_of("a100", twice, scale="paper").stages}
    for name in ("collection", "tokens", "pretrained", "index-retriever-1", "bm25"):
        assert two[name].seconds == pytest.approx(2 * one[name].seconds, rel=0.05), name
    for name in ("retriever-1", "query-tokens"):
        assert two[name] == one[name], "depends on the queries alone"
    assert two["index-retriever-1"].disk == pytest.approx(2 * 1_000_000 * (768 * 4 + 16), rel=0.01)


def test_more_cores_and_faster_products_take_less_time():
    on = {name: budget_of(name, "msmarco", scale="paper") for name in ("cpu-2", "cpu-32", "a100", "h100")}
    times = [found.total.seconds for found in on.values()]
    assert times == sorted(times, reverse=True)
    assert {found.total.disk for found in on.values()} == {on["a100"].total.disk}


def test_half_precision_uses_its_own_peak():
    settings = {"pretrained": "pretrain.bf16=true", "index-retriever-1": "encoder.precision=bfloat16"}
    full = budget_of("h100", "msmarco", scale="paper")
    for stage, setting in settings.items():
        half = budget_of("h100", "msmarco", scale="paper", settings=(setting,))
        assert seconds(full, stage) / seconds(half, stage) == pytest.approx(9.89e14 / 6.7e13, rel=0.05)
        assert seconds(full, "retriever-1") == seconds(half, "retriever-1")


def test_money_is_hours_times_the_price():
    found = budget_of("h100-8", "msmarco", scale="paper")
    assert found.total.price == pytest.approx(found.total.seconds / 3600 * 24)
    assert sum(stage.price for stage in found.stages) == pytest.approx(found.total.price)


def test_an_existing_encoder_counts_by_its_configuration(tmp_path):
    sizes = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "vocab_size": 30522, "model_type": "bert"}))
    settings = ("pretrain=none", "finetune.baseline=false")
    request = {"scale": "paper", "settings": settings}
    given = budget_of("a100", "msmarco", **request, encoder=str(tmp_path))
    scratch = budget_of("a100", "msmarco", **request)
    assert seconds(given, "retriever") == pytest.approx(seconds(scratch, "retriever"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DrkitError, match=r"sizes of .* are unknown: give the folder of a model in BERT's format"):
        budget_of("a100", "msmarco", **request, encoder=str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--hardware", "h10"), "no hardware named 'h10'; did you mean 'h100'?"),
        (("--hardware", "l4", "--corpus", "msmarko"), "did you mean 'msmarco'?"),
        (("--hardware", "l4", "--corpus", "10:x"), "invalid sizes '10:x'; give PASSAGES"),
        (("--hardware", "l4", "--corpus", "0"), "invalid sizes '0'"),
        (("--hardware", "l4", "--collection", "jsonl:a.jsonl"), "give --corpus msmarco, wikipedia"),
        (("--corpus", "msmarco"), "--corpus and --price belong to it"),
    ],
)
def test_refusals(arguments, reason, drkit, tmp_path):  # noqa: F811
    (tmp_path / "a.jsonl").write_text('{"id": "1", "text": "a"}\n')
    code, out, err = drkit("compose", "--dry-run", *arguments)
    assert (code, out, reason in err) == (2, "", True), err


def test_the_command_without_a_dry_run_is_refused(drkit, tmp_path):  # noqa: F811
    code, _, err = drkit("compose", "--hardware", "l4")
    assert (code, "with --dry-run" in err, (tmp_path / "runs").exists()) == (2, True, False)


def test_the_document(drkit):  # noqa: F811
    code, out, err = drkit("compose", "--dry-run", "--hardware", "l4", "--scale", "paper", "--price", 2, "--json")
    document = json.loads(out)
    assert code == 0
    assert {*document} == {"hardware", "price_an_hour", "corpus", "stages", "total", "exceeding"}
    assert {*document["stages"][0]} == {"stage", "seconds", "memory", "disk", "price"} == {*document["total"]}
    assert document["total"]["price"] == pytest.approx(document["total"]["seconds"] / 3600 * 2)
    assert document["corpus"] == asdict(read_corpus("pydocs"))
    assert "retriever-1" in document["exceeding"]
    assert "more memory than l4 has (24 GB)" in err
    assert "gradient_cache_chunk" in err


def page_tables():
    """Each command on the page, and the rows of the table below it."""
    text = (DOCS / "costs.md").read_text(encoding="utf-8")
    found = re.findall(r"^    (drkit compose .*(?:\n      .*)*)\n\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    return [(command.replace("\\\n", " "), table.splitlines()[2:]) for command, table in found]


@pytest.mark.parametrize(("command", "rows"), page_tables())
def test_the_numbers_of_the_page(command, rows, drkit):  # noqa: F811
    code, out, _ = drkit(*shlex.split(command)[1:], "-q")
    assert code == 0
    printed = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]
    shown = [[cell.strip(" *") for cell in row.strip("|").split("|")] for row in rows]
    assert [row for row in printed if row in shown] == shown
    assert shown[-1][0] == "all"


def test_the_page_has_all_three_collections():
    commands = [command for command, _ in page_tables()]
    assert all(
        any(f"--corpus {name}" in command for command in commands) for name in ("msmarco", "wikipedia", "billion")
    )


def test_marks_of_repeated_words_cost_time():
    plain, marked = (budget_of(**DEFAULT, settings=(f"encoder.mark_repeats={value}",)) for value in ("false", "true"))
    for stage, factor in (("tokens", 1.2), ("unsupervised", 1.05)):
        assert seconds(marked, stage) > factor * seconds(plain, stage), stage
