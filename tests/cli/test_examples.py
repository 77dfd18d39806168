"""The commands of the README, on the page and in every `--help`, run as they stand there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import click
import pytest

from drkit.recipe.toml import read_table
from drkit_cli.main import _status, cli
from tests.cli.test_output import COMMANDS
from tests.data.seq2seq import write_t5
from tests.warm import measure_nothing

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guide" / "command-line.md"
KEYS = ROOT / "docs" / "reference" / "for-programs.md"
# To compose as the page does within a test: the same stages, fewer steps.
SMALLER = [
    *("pretrain.max_steps=5", "finetune.max_steps=3", "finetune.negatives=1", "finetune.rounds.2.miners.0.depth=3"),
    *("reranker.max_steps=2", "reranker.depth=3", "reranker.negatives=1"),
    *("encoder.vocab_size=200", "encoder.init_embeddings=random"),
]
# One seed of the study: tests/runs/test_experiments.py has several.
FEWER = ("--seeds 1,2", "--seeds 1")
# Whole trainings at their full size: planned, not run.
PLANNED = ("drkit compose", "drkit improve", "run recipe.toml")
# Commands that need what no test has: a download.
DOWNLOADS = ("bert-base-uncased", "cross-encoder/")
# One serves until it is stopped (tests/pages/test_serve.py), one needs data sets (tests/runs/test_data_sets.py).
ELSEWHERE = ("drkit serve", "drkit evaluate runs/NQ", 'drkit search runs/R "remove a suffix" --data-set')
# Commands that need an extra: what they contain, and the module. What runs on a cluster is run by tests/engine.
EXTRAS = {"--backend openvino": "openvino"}
CLUSTER = "--engine ray"


def commands_of(text):
    """The lines of a text that call drkit, without their comments."""
    joined = re.sub(r" \\\n\s*", " ", text)  # lines that go on
    lines = (line.strip().partition("  #")[0].rstrip() for line in joined.splitlines())
    return [line for line in lines if line.startswith(("drkit ", "torchrun "))]


def page_commands():
    text = "\n".join(page.read_text(encoding="utf-8").partition("\n## Completion")[0] for page in (PAGE, KEYS))
    return commands_of("\n".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)))


def start_commands():
    """The commands of the README and of the first page of the documentation; `all` of `.ci/run` are tried there."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "README.md", ROOT / "docs" / "README.md"))
    blocks = (block for text in texts for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL))
    return dict.fromkeys(line for block in blocks for line in re.sub(r" \\\n\s+", " ", block).splitlines())


def help_examples(command):
    return commands_of(command.help.replace("\b\n", "\n"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a collection in FOLDER and in DATASETS, a model in MODEL, and topics."""
    folder = tmp_path_factory.mktemp("place")
    words = (f"{sound}{end}" for sound in ("wi", "flo", "sho", "hea", "lay") for end in ("ng", "w", "ck", "t", "er"))
    words = [*words]
    texts = {f"d{i}": " ".join(words[(i * k + k) % len(words)] for k in range(1, 12)) for i in range(120)}
    (folder / "FOLDER" / "qrels").mkdir(parents=True)
    rows = [{"_id": name, "title": "", "text": text} for name, text in texts.items()]
    (folder / "FOLDER" / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)))
    queries = [{"_id": f"q{i}", "text": " ".join(texts[f"d{i}"].split()[2:6])} for i in range(60)]
    (folder / "FOLDER" / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    for split, numbers in {"train": range(40), "dev": range(40, 50), "test": range(50, 60)}.items():
        lines = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in numbers)]
        (folder / "FOLDER" / "qrels" / f"{split}.tsv").write_text("\n".join(lines))
    shutil.copytree(folder / "FOLDER", folder / "DATASETS" / "one")
    write_t5(folder / "MODEL", texts.values())
    (folder / "topics.tsv").write_text("\n".join(f"{q['_id']}\t{q['text']}" for q in queries[50:]))
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"id": n, "text": t}) for n, t in texts.items()))
    answers = (f"{query['text']},{texts[f'd{i}']}" for i, query in enumerate(queries))
    (folder / "faq.csv").write_text("\n".join(["Frage,Antwort", *answers]))
    (folder / "articles").mkdir()
    for name, text in texts.items():
        (folder / "articles" / f"{name}.md").write_text(f"# {name}\n\n{text}\n")
    asked = (f"{query['text']},d{i}.md" for i, query in enumerate(queries))
    (folder / "questions.csv").write_text("\n".join(["Question,Article", *asked]))
    (folder / "qrels.txt").write_text("\n".join(f"q{i} 0 d{i} 1" for i in range(50, 60)))
    return folder


def call(line, monkeypatch, capsys, place, *more):
    """Run a command line; return its output."""
    if CLUSTER in line:
        pytest.skip("needs a running cluster; see tests/engine")
    for option, module in EXTRAS.items():
        if option in line:
            pytest.importorskip(module)
    if line.startswith("drkit improve") and not (place / "runs" / "R").exists():
        pytest.skip("needs the run of the page")
    words = shlex.split(line.partition(" > ")[0].replace(" ENCODER ", " runs/R "))
    if words[0] == "torchrun":
        words = ["drkit", *words[words.index("drkit_cli.main") + 1 :]]
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", [*words, *more])
    measure_nothing(monkeypatch.setattr)
    code = _status()
    shown = capsys.readouterr()
    assert code == 0, f"{line}\n{shown.err}"
    return shown.out


@pytest.fixture(scope="module")
def done(place):
    """The page's commands that have run, with their output; see `test_the_page`."""
    return {}


@pytest.mark.parametrize("line", page_commands())
def test_the_page(line, place, done, monkeypatch, capsys):
    if line.startswith(ELSEWHERE):
        pytest.skip("is run elsewhere")
    is_run = line.startswith(("drkit compose", "drkit study")) and "--dry-run" not in line
    staged = "three-stage" in line  # a re-ranker and a third round
    smaller = [one for one in SMALLER if staged or not one.startswith(("reranker.", "finetune.rounds.2"))]
    more = [f"--set={setting}" for setting in smaller] if is_run else []
    more += ["--dry-run"] if line.startswith("drkit improve") else []
    done[line] = call(line.replace(*FEWER), monkeypatch, capsys, place, *more)
    assert done[line].strip() or line.startswith("drkit run runs/R")
    if "--json" in line:
        json.loads(done[line])


@pytest.mark.parametrize("line", start_commands())
def test_the_first_commands(line, place, monkeypatch, capsys):
    """Trainings are planned, and an installation names extras that exist."""
    install, _, line = line.rpartition(" && ")
    extras = re.findall(r"pip install -c constraints.txt -e \"\.\[(.+)\]\"", install)
    known = read_table(ROOT / "pyproject.toml")["project"]["optional-dependencies"]
    assert {name for names in extras for name in names.split(",")} <= {*known}
    if line == "pytest -n auto":
        assert f"{install}\n" in (ROOT / ".ci" / "run").read_text().replace("--quiet ", "")
        return
    if line.startswith("drkit study"):
        pytest.skip("many whole runs; a small study is on the page of commands")
    if line.startswith("drkit init"):
        (place / "recipe.toml").unlink(missing_ok=True)
    is_planned = line.startswith(("drkit compose", "drkit improve")) and "--dry-run" not in line
    more = ["--dry-run"] if is_planned else []
    assert call(line, monkeypatch, capsys, place, *more).strip()


def test_every_command_is_on_the_page():
    text = "\n".join(page_commands())
    for path in COMMANDS:
        assert f"drkit {' '.join(path)}" in text


def test_the_keys_on_the_page(place, done, monkeypatch, capsys):
    """Each row of the table of keys names what the documents have."""
    rows = dict(re.findall(r"^\| (`[^|]+) \| (.+) \|$", KEYS.read_text(encoding="utf-8"), flags=re.MULTILINE))
    for row, line in {
        "`status`": "drkit status runs/R",
        "`mine`": "drkit mine --miner bm25 --collection beir:FOLDER -o n.jsonl",
        "`inspect words`": 'drkit inspect words "a text" --run runs/R',
        "`rerank`": "drkit rerank dense.trec --model runs/R --collection beir:FOLDER -o r.trec",
        "`prune`": "drkit prune runs/R --dry-run",
        "`plugins`": "drkit plugins",
    }.items():
        document = json.loads(call(line, monkeypatch, capsys, place, "--json", "-q"))
        outer = re.sub(r"\(.*?\)", "", rows[row])
        assert {*re.findall(r"`(.+?)`", outer)} == {*document}, row
    document = json.loads(call("drkit run runs/R", monkeypatch, capsys, place, "--json", "-q"))
    assert {*document} == {"run", "evaluation", "findings", "paths", "bytes", "prunable_bytes"}


@pytest.mark.parametrize("path", [*COMMANDS, ("inspect",)], ids=" ".join)
def test_help_has_examples(path):
    command = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name)
    examples = help_examples(command)
    assert any(line.startswith(f"drkit {' '.join(path)}") for line in examples)


# Those that are on the page, too, are run there.
EXAMPLES = [line for command in COMMANDS.values() for line in help_examples(command) if line not in page_commands()]
# What `drkit prune` removes is read by others.
EXAMPLES.sort(key=lambda line: line == "drkit prune runs/R")


@pytest.mark.parametrize("line", EXAMPLES)
def test_examples_of_help(line, place, done, monkeypatch, capsys):
    if line.startswith("drkit study"):
        pytest.skip("many whole runs; a small study is on the page")
    if not (place / "runs" / "R").exists() or any(name in line for name in DOWNLOADS) or line.startswith(ELSEWHERE):
        pytest.skip("needs the run of the page, a download or an upload, or serves until it is stopped")
    if "runs/R2" in line:
        shutil.copytree(place / "runs" / "R", place / "runs" / "R2", dirs_exist_ok=True)
    files = {
        **{f"{name}.trec": "dense.trec" for name in ("bm25", "bm25.dev", "bm25.test", "dense.dev", "dense.test")},
        "qrels.dev.txt": "qrels.txt",
        "vectors/": "vectors",
    }
    for name, existing in files.items():
        if name in line and not (place / name).exists():
            shutil.copy(place / existing, place / name)
    more = ["--dry-run"] if any(name in line for name in PLANNED) and "--dry-run" not in line else []
    for folder in ("x", "my-masker", "my-paper"):
        shutil.rmtree(place / folder, ignore_errors=True)
    if line.startswith("drkit init"):
        line = re.sub(r" -o \S+", "", line)
        more = ["-o", "new.toml"]
        (place / "new.toml").unlink(missing_ok=True)
    line = line.replace("IVF1024,PQ32", "IVF2,SQ8")  # which sixty vectors can train
    call(line.replace(" E ", " runs/R ").replace(" M ", " MODEL "), monkeypatch, capsys, place, *more)
