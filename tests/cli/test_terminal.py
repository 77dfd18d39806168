"""Nothing that a file of others says acts on the terminal: it is shown, with its control characters spelled out."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from rich.table import Table
from rich.text import Text

from drkit.core.types import Judgement
from drkit.search import write_qrels, write_run
from drkit_cli import render
from drkit_cli.commands.search import _draw_hits
from drkit_cli.progress import RichProgress
from drkit_cli.terminal import EscapedStream, echo
from tests.core.test_escaping import ACTS, HOSTILE
from tests.plugins.packages import path_with, write_package
from tests.warm import drkit

# rich's own sequences: colours, the position of the cursor, erasing a line.
OWN = r"\x1b\[[\d;]*m|\x1b\[\d*[AK]|\x1b\[\?25[lh]|\r"


def check_harmless(text):
    assert not ACTS.search(text), ACTS.findall(text)


def make_terminal(monkeypatch):
    """Make standard output and standard error one terminal with colours, and return its raw output.

    Called within a test: pytest sets both streams again after the fixtures.
    """
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def drawn(terminal):
    """What a terminal got beyond rich's own sequences, and whether there were any."""
    text = terminal.getvalue()
    return re.sub(OWN, "", text), bool(re.search(OWN, text))


def test_search_shows_hostile_ids_and_texts(monkeypatch):
    terminal = make_terminal(monkeypatch)
    ids, texts = (HOSTILE, "an id\nerror: fake"), (f"     {HOSTILE}", "[link=http://t]x[/link]")
    hits = [{"rank": 1, "score": 0.5, "doc_id": one, "text": text} for one, text in zip(ids, texts, strict=True)]
    _draw_hits("BM25", hits)
    text, coloured = drawn(terminal)
    check_harmless(text)
    assert coloured, text
    assert r"\x1b]0;t\x07\x1b[2J" in text
    assert "\nerror" not in text
    assert "[link=http://t]x[/link]" in text, "a text is not markup"


def test_tables_and_lines_are_harmless(monkeypatch):
    terminal = make_terminal(monkeypatch)
    screen = render.console()
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(Text(HOSTILE))
    screen.print(table, Text(HOSTILE, style="bold"), HOSTILE, render.table(HOSTILE, [HOSTILE], [[HOSTILE]]))
    render.error_console().print(HOSTILE)
    echo(HOSTILE)
    check_harmless(drawn(terminal)[0])


def test_progress_is_harmless_on_a_terminal(monkeypatch):
    terminal = make_terminal(monkeypatch)
    with RichProgress(2) as bar:
        bar.begin(HOSTILE, HOSTILE, HOSTILE)
        bar.advance(1, 10, HOSTILE, **{HOSTILE: 1.0})
        bar._bar.refresh()
        bar.note(HOSTILE)
        bar.end(HOSTILE, 1.0)
        bar.skip(HOSTILE, HOSTILE)
    text, coloured = drawn(terminal)
    check_harmless(text)
    assert coloured, text


def test_progress_without_a_terminal_is_harmless(capsys):
    bar = RichProgress(1)
    bar.begin(HOSTILE, HOSTILE, HOSTILE)
    bar.note(HOSTILE)
    check_harmless(capsys.readouterr().err)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two rankings and judgements with hostile ids, and a BEIR folder with hostile texts."""
    folder = tmp_path_factory.mktemp("files")
    queries = [f"{HOSTILE} {number}" for number in range(5)]
    for name, order in (("one", 1), ("two", -1)):
        write_run(
            folder / f"{name}.trec",
            [(q, list(zip([HOSTILE, "b"][::order], (2.0, 1.0), strict=True))) for q in queries],
            name,
        )
    write_qrels(folder / "qrels.txt", [Judgement(q, "b" if q[-1] == "0" else HOSTILE, 1) for q in queries])
    (folder / "beir" / "qrels").mkdir(parents=True)
    for name, ids in (("corpus", [HOSTILE, "b"]), ("queries", queries)):
        rows = [json.dumps({"_id": each, "title": "", "text": f"about {HOSTILE}"}) for each in ids]
        (folder / "beir" / f"{name}.jsonl").write_text("\n".join(rows))
    rows = ["query-id\tcorpus-id\tscore", *(f"q{number}\tb\t1" for number in range(5))]
    (folder / "beir" / "qrels" / "test.tsv").write_text("\n".join(rows))
    return folder


@pytest.mark.parametrize("kind", ["markdown", "--json"])
def test_compare_shows_hostile_ids(files, kind):
    pair = [files / "one.trec", files / "two.trec"]
    options = ["--json"] if kind == "--json" else []
    code, out, err = drkit("compare", *pair, "--qrels", files / "qrels.txt", "-m", "RR@10", *options)
    assert code == 0, err
    check_harmless(out + err)
    if kind == "--json":
        (found,) = json.loads(out)["comparisons"]
        assert found["gained"][0]["query_id"].startswith(HOSTILE)
    else:
        assert r"\x1b" in out
        assert "<script>" not in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "{name}"],
        ["compare", "{name}:bm25", "b"],
        ["compare", "one.trec", "two.trec", "--qrels", "{name}"],
        ["search", "{name}", "a query"],
        ["run", "{name}"],
        ["status", "{name}"],
        ["show", "masker", "{name}"],
        ["list", "{name}"],
        ["compose", "--paper", "{name}"],
        ["compose", "--set", "{name}=1", "--dry-run"],
        ["compose", "--collection", "jsonl:{name}", "--dry-run"],
        ["compose", "--name", "{name}", "--dry-run"],
        ["encode", "--encoder", "{name}", "--collection", "jsonl:{name}", "-o", "v"],
        ["--{name}"],
        ["{name}"],
    ],
)
def test_errors_are_harmless(files, tmp_path, arguments):
    name = HOSTILE.replace("/", "")
    (tmp_path / name).write_text(f"not a recipe, nor a run {HOSTILE}")
    _, out, err = drkit(*(each.format(name=name) for each in arguments), cwd=tmp_path)
    check_harmless(out + err)
    assert "Traceback" not in err
    assert out + err


def test_names_in_a_recipe_are_harmless(tmp_path):
    code, out, err = drkit(
        "compose", "-o", "r.toml", "--masker", "pmi", "--decoder", "enhanced", "--dry-run", cwd=tmp_path
    )
    assert code == 0, err
    recipe = (tmp_path / "r.toml").read_text()
    name = re.search(r'^name = "(.*)"', recipe, re.MULTILINE)[1]
    for old, new in ((name, HOSTILE.replace("/", "")), ("retriever-1", "\x1b[2J"), ("pydocs", HOSTILE)):
        changed = recipe.replace(f'"{old}"', json.dumps(new))
        assert changed != recipe
        (tmp_path / "r.toml").write_text(changed)
        code, out, err = drkit("run", "r.toml", "--dry-run", cwd=tmp_path)
        check_harmless(out + err)
        assert "Traceback" not in err


def test_plugins_are_harmless(tmp_path):
    source = """
    @hookimpl
    def drkit_components():
        spec = part("masker", "x-masker")
        object.__setattr__(spec, "summary", HOSTILE)
        return [spec]
    """
    write_package(tmp_path, "strange", f"HOSTILE = {HOSTILE!r}\n{dedent(source)}")
    misnamed = f'@hookimpl\ndef drkit_components():\n    return [part("masker", {HOSTILE!r})]'
    write_package(tmp_path, "misnamed", misnamed)
    broken = tmp_path / "raises-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: raises\nVersion: 1\x1b[2J\n")
    (broken / "entry_points.txt").write_text("[drkit]\nraises\x1b[2J = raises_hostile\n")
    (tmp_path / "raises_hostile.py").write_text(f"raise ValueError({HOSTILE!r})")
    for arguments in (["plugins"], ["list", "masker"], ["show", "masker", "x-masker"], ["show", "masker", "nowhere"]):
        _, out, err = drkit(*arguments, PYTHONPATH=path_with(tmp_path))
        check_harmless(out + err)
        assert "Traceback" not in err
        assert r"\x1b" in out or arguments != ["plugins"]


def test_warnings_logs_and_tracebacks_of_libraries_are_harmless():
    code = f"""
import logging, sys, warnings
from drkit_cli import main
def call(**_):
    warnings.warn({HOSTILE!r})
    logging.getLogger("library").warning({HOSTILE!r})
    print({HOSTILE!r})
    raise ValueError({HOSTILE!r})
main.cli.main = call
main.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count(r"\x1b]0;t") >= 3
    assert "Traceback" in done.stderr
    check_harmless(done.stdout + done.stderr)


def test_bars_of_libraries_still_move():
    stream = io.StringIO()
    escaped = EscapedStream(stream)
    for text in ("\r 10%|#  |", "\n", "\x1b[A", "\r   \r", f"\r{HOSTILE}"):
        assert escaped.write(text) == len(text)
    assert stream.getvalue().startswith("\r 10%|#  |\n\x1b[A\r   \r\r\\x1b]0;t")
    assert escaped.encoding == stream.encoding


def in_shell(script, **environment):
    """Run a script of the shell in which `$DRKIT` is the command line; return its exit code and both streams."""
    env = {**os.environ, "DRKIT": f"{sys.executable} -m drkit_cli.main", **environment}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=env, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
@pytest.mark.parametrize("command", ["list", "list --json", "show recipe simlm", "plugins", "--help"])
def test_a_reader_that_has_read_enough_is_no_error(command):
    assert in_shell(f"set -o pipefail; $DRKIT {command} | head -c 20")[::2] == (0, "")


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
@pytest.mark.parametrize(
    ("script", "code"),
    [("$DRKIT list >&-", 0), ("$DRKIT list 2>&-", 0), ("$DRKIT nosuch 2>&-", 2), ("$DRKIT list >/dev/full", 2)],
)
def test_closed_and_full_streams_give_no_traceback(script, code):
    found, _, err = in_shell(script)
    assert found == code
    assert "Traceback" not in err


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
@pytest.mark.parametrize("columns", ["0", "1", "abc", ""])
def test_every_width_shows_the_names(columns):
    code, out, _ = in_shell("$DRKIT list masker", COLUMNS=columns)
    assert code == 0
    assert "uniform" in "".join(out.split())


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no /dev/stdout here")
@pytest.mark.parametrize("output", ["-o /dev/stdout", "--output=/dev/stdout"])
def test_a_result_for_the_file_standard_output_goes_there(tmp_path, output):
    for name in ("a", "b"):
        (tmp_path / name).write_text("q1 Q0 d1 1 2.0 x\n")
    code, out, err = in_shell(f"$DRKIT fuse {tmp_path}/a {tmp_path}/b {output} | cat")
    assert code == 0, err
    assert "q1\tQ0\td1" in out
