"""What commands print with `--json`, `-q` and `-v`, and on narrow terminals."""

from __future__ import annotations

import json
import re

import click
import pytest

from drkit.core.types import Judgement
from drkit.search import write_qrels, write_run
from drkit_cli.main import cli
from tests.refusals import says


@pytest.fixture
def drkit(run_drkit, monkeypatch, tmp_path):
    """The command line, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return run_drkit


@pytest.fixture
def runs(tmp_path):
    """Two TREC runs and judgements: one.trec, two.trec, qrels.txt."""
    queries = [f"q{number}" for number in range(6)]
    write_run(tmp_path / "one.trec", [(q, [("a", 2.0), ("b", 1.0)]) for q in queries], "one")
    write_run(tmp_path / "two.trec", [(q, [("b", 2.0), ("a", 1.0)]) for q in queries[:5]], "two")
    write_qrels(tmp_path / "qrels.txt", [Judgement(q, "ab"[number % 2], 1) for number, q in enumerate(queries)])
    return tmp_path


def leaves(command, path=()):
    """Every command below a group, with the names that lead to it."""
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if isinstance(inner, click.Group):
            yield from leaves(inner, (*path, name))
        else:
            yield (*path, name), inner


COMMANDS = dict(leaves(cli))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_the_same_options(path):
    options = {name for param in COMMANDS[path].params for name in param.opts}
    assert {"-q", "--quiet", "-v", "--verbose"} <= options
    assert "--json" in options or path == ("serve",)  # which serves a page until it is stopped


def test_help_lists_every_command_in_whole_sentences(drkit):
    code, out, _ = drkit("--help")
    assert code == 0
    lines = [line for line in out.split("Compare methods:\n")[1].splitlines() if line.startswith("  ")]
    assert {line.split()[0] for line in lines} == {*cli.list_commands(click.Context(cli))}
    assert len(lines) == len(cli.list_commands(click.Context(cli))), "each on a line of its own"
    assert all(line.endswith(".") and "..." not in line for line in lines)
    assert re.findall(r"^(\w.*):$", out, re.MULTILINE) == [
        *("Options", "Compare methods", "Improve an encoder", "Recipes and runs", "Results", "Files"),
        *("Parts and plugins", "Commands of plugins"),
    ]


def test_losses_and_miners_are_listed_by_use(drkit):
    rows = json.loads(drkit("list", "--json")[1])["parts"]
    uses = {kind: list(dict.fromkeys(row["use"] for row in rows[kind])) for kind in ("loss", "miner")}
    assert uses == {"loss": ["pre-training", "fine-tuning", "re-ranker"], "miner": ["sources", "filters"]}
    assert next(row["use"] for row in rows["miner"] if row["name"] == "margin") == "filters"
    shown = drkit("list", "miner")[1]
    assert shown.index("\nrun-file ") < shown.index("\nfilters:") < shown.index("\nmargin ")


MISTAKES = {
    "compose pmi enhanced": "'pmi' is a masker: --masker pmi; 'enhanced' is a decoder: --decoder enhanced",
    "compose --set a 1e-4": "expected PATH=VALUE without spaces",
    "compose --set learning_rate=1e-4 --dry-run": "write --set finetune.learning_rate=1e-4 or --set pretrain",
    "compose --paper two-stage --dry-run": "'two-stage' is a pipeline: --pipeline two-stage",
    "compose --pipeline simlm --dry-run": "'simlm' is a recipe: --paper simlm",
    "compose --masker enhanced --dry-run": "'enhanced' is a decoder: --decoder enhanced",
    "search RUN remove a suffix": 'drkit search RUN "remove a suffix"',
    "train": "write `drkit compose --collection FOLDER`",
    "show masker": "which masker? known: diffusion, generator, pmi, query-as-context, uniform",
    "show mlm": "'mlm' is the name of a decoder and of a loss; write `drkit show decoder mlm` or `drkit show loss mlm`",
    "show nothing": "'nothing' names no part, recipe or pipeline",
    "show maskre pmi": "did you mean 'masker'?",
    "list maskre": "did you mean 'masker'?",
    "run . --quick": "--quick makes a smoke run of a recipe's file",
    "compose --no-such-option": "error: No such option '--no-such-option' (see `drkit compose --help`)",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_of_newcomers_has_one_helpful_line(drkit, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if line.startswith("run"):
        assert drkit("compose", "--collection", "beir:F", "-o", "recipe.toml", "--dry-run")
    code, out, err = drkit(*line.split())
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert MISTAKES[line] in err
    assert len(err.splitlines()) <= 2


def test_names_are_understood_in_any_case_and_kinds_in_the_plural(drkit):
    assert drkit("show", "PMI") == drkit("show", "masker", "pmi") == drkit("show", "Maskers", "pmi")
    assert drkit("list", "losses") == drkit("list", "loss")
    one, other = (
        json.loads(drkit("compose", "--paper", paper, "--masker", masker, "--dry-run", "--json")[1])["recipe"]
        for paper, masker in (("RetroMAE", "Pmi"), ("retromae", "pmi"))
    )
    assert one == other


def test_a_recipes_file_has_a_smoke_run(drkit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert drkit("compose", "--paper", "retromae", "-o", "mine.toml", "--dry-run", "--name", "mine")[0] == 0
    code, out, err = drkit("run", "mine.toml", "--quick", "--dry-run", "--json")
    assert code == 0, err
    found = json.loads(out)["recipe"]
    assert found["name"] == "mine-quick"
    assert found["pretrain"]["max_steps"] == 100


# The keys of each document. Removing or renaming one breaks the scripts of users.
KEYS = {
    ("list",): {"parts"},
    ("list", "recipe"): {"parts"},
    ("list", "--matrix"): {"maskers", "decoders", "pairs", "made", "losses"},
    ("show", "masker", "pmi"): {
        *("kind", "name", "summary", "settings", "paper", "receives", "signals", "requires", "provides"),
        *("scope", "from", "code"),
    },
    ("show", "recipe", "retromae"): {"kind", "name", "settings"},
    ("show", "recipe", "retromae", "--diff", "cdmae"): {"left", "right", "differences"},
    ("show", "pipeline", "dpr", "--diff", "ance"): {"left", "right", "differences"},
    ("plugins",): {"plugins", "clashes"},
    ("compose", "--dry-run"): {"run", "notes", "downloads", "cost", "stages", "recipe"},
    ("evaluate", "one.trec", "--qrels", "qrels.txt", "-m", "RR@10"): {"queries", "rows"},
    ("compare", "one.trec", "two.trec", "--qrels", "qrels.txt", "-m", "RR@10"): {"comparisons"},
    ("fuse", "one.trec", "two.trec", "-o", "f.trec"): {"file", "queries", "shared", "method", "weight", "tuned"},
    ("new-plugin", "x", "--kind", "masker"): {"folder", "files"},
}


@pytest.mark.parametrize("arguments", KEYS, ids=" ".join)
def test_json_is_one_document_with_stable_keys(drkit, runs, arguments):
    code, out, err = drkit(*arguments, "--json")
    assert code == 0, err
    assert {*json.loads(out)} == KEYS[arguments]
    assert drkit(*arguments, "-q", "--json")[2] == "" or "new-plugin" in arguments


def test_rows_of_json_have_stable_keys(drkit, runs):
    listed = json.loads(drkit("list", "masker", "--json")[1])["parts"]["masker"]
    assert {"name": "pmi", "paper": "li2023cdmae"}.items() <= next(r for r in listed if r["name"] == "pmi").items()
    assert all({*row} == {"name", "summary", "paper", "from", "use"} for row in listed)
    assert {row["use"] for row in listed} == {""}
    plugin = json.loads(drkit("plugins", "--json")[1])["plugins"][0]
    assert {*plugin} == {"name", "from", "adds", "seconds", "state", "problems", "notes"}
    stage = json.loads(drkit("compose", "--dry-run", "--json")[1])["stages"][0]
    assert {*stage} == {"stage", "does", "state", "reasons", "reads", "memory", "disk"}
    (row,) = json.loads(drkit("evaluate", "one.trec", "--qrels", "qrels.txt", "-m", "RR@10", "--json")[1])["rows"]
    assert row["values"] == {"RR@10": pytest.approx(0.75)}
    tuned = ("fuse", "one.trec", "two.trec", "--tune", "qrels.txt", "-o", "f.trec", "--json")
    assert {*json.loads(drkit(*tuned)[1])["tuned"]} == {"queries", "measure", "means"}


def test_an_error_prints_nothing_on_standard_output(drkit):
    code, out, err = drkit("show", "masker", "nowhere", "--json")
    assert (code, out) == (2, "")
    assert "masker named 'nowhere'" in err


def test_quiet_prints_the_result_alone(drkit, runs):
    given = ("fuse", "one.trec", "two.trec", "-o", "f.trec")
    _, out, err = drkit(*given)
    assert says(err, "of the queries")
    assert drkit(*given, "-q") == (0, out, "")
    assert drkit("-q", *given) == (0, out, ""), "before the command, too"


def test_verbose_says_what_is_read_and_written_and_versions(drkit, runs):
    _, out, err = drkit("fuse", "one.trec", "two.trec", "-o", "f.trec", "-v")
    assert "python 3." in err
    assert "drkit " in err
    for line in ("reading one.trec", "reading two.trec", "wrote f.trec"):
        assert err.count(line) == 1, err
    assert out == drkit("fuse", "one.trec", "two.trec", "-o", "f.trec")[1]


def test_quiet_and_verbose_exclude_each_other(drkit):
    code, _, err = drkit("list", "-q", "-v")
    assert code == 2
    assert "not both" in err


@pytest.mark.parametrize(
    "arguments", [["list"], ["list", "--matrix"], ["plugins"], ["show", "recipe", "default", "--diff", "simlm"]]
)
@pytest.mark.parametrize("columns", [80, 40])
def test_lines_fit_narrow_terminals(drkit, monkeypatch, arguments, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = drkit(*arguments)
    assert max(map(len, out.splitlines())) <= columns
    assert "\N{HORIZONTAL ELLIPSIS}" not in out, "names are never cut"


def test_differences_of_recipes(drkit):
    _, out, _ = drkit("show", "recipe", "retromae", "--diff", "cdmae")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert rows["setting"] == ["retromae", "cdmae"]
    assert rows["pretrain.decoders.main.masker.use"] == ["uniform", "pmi"]
    assert rows["reranker"][0] == "-"
    assert "encoder.pooling" not in rows
    assert "same settings" in drkit("show", "recipe", "retromae", "--diff", "retromae")[1]


def test_differences_from_a_file(drkit):
    assert drkit("compose", "--dry-run", "--scale", "paper", "--set", "seed=7", "-o", "r.toml")[0] == 0
    _, out, _ = drkit("show", "recipe", "default", "--diff", "r.toml", "--json")
    assert json.loads(out)["differences"] == [{"path": "seed", "left": 42, "right": 7}]
    code, _, err = drkit("show", "masker", "pmi", "--diff", "uniform")
    assert code == 2
    assert "--diff compares recipes" in err


def test_summaries_of_recipes_are_whole_sentences(drkit):
    rows = json.loads(drkit("list", "pipeline", "--json")[1])["parts"]["pipeline"]
    assert all(row["summary"].endswith((".", ")")) for row in rows), rows
