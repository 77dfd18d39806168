"""Completion in the shell: what is offered, how fast, and that nothing it meets is printed as an error."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drkit_cli.completion import SHELLS, VARIABLE, print_completions
from drkit_cli.main import cli
from tests.core.test_escaping import ACTS, HOSTILE

ROOT = Path(__file__).parents[2]


@pytest.fixture
def complete(monkeypatch, capfd):
    """Return the types and values that a line completes to, without help."""

    def answer(line, shell="fish"):
        monkeypatch.setenv(VARIABLE, f"{shell}_complete")
        monkeypatch.setenv("COMP_LINE", line)
        code = print_completions(cli)
        shown = capfd.readouterr()
        assert shown.err == ""
        separator = "\t" if shell == "zsh" else ","
        rows = [line.split(separator, 1) for line in shown.out.splitlines() if line]
        assert code == 0 or not rows
        return [(kind, value.partition("\t")[0]) for kind, value in rows]

    return answer


def values(rows):
    return [value for _, value in rows]


def test_commands_and_options(complete):
    assert {"compose", "doctor", "list", "show"} <= {*values(complete("drkit "))}
    assert {*values(complete("drkit comp"))} == {"compare", "completion", "compose"}
    assert "--masker" in values(complete("drkit compose --m"))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("drkit compose --masker p", "pmi"),
        ("drkit compose --paper ret", "retromae"),
        ("drkit compose --pipeline two", "two-stage"),
        ("drkit mine --miner ", "bm25"),
        ("drkit show decoder enh", "enhanced"),
        ("drkit show recipe cd", "cdmae"),
        ("drkit show recipe cdmae --diff ret", "retromae"),
        ("drkit show pipeline ", "dpr"),
        ("drkit compose --collection py", "pydocs"),
        ("drkit compose --set pretrain.masker.use=", "pretrain.masker.use=pmi"),
        ("drkit compose --set encoder.pooling=c", "encoder.pooling=cls"),
        ("drkit compose --set=encoder.pooling=c", "--set=encoder.pooling=cls"),
        ("drkit compose --set finetune.baseline=", "finetune.baseline=false"),
        ("drkit completion ", "zsh"),
    ],
)
def test_names_and_values(complete, line, found):
    assert ("plain", found) in complete(line)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("drkit compose --set pre", ["pretrain."]),
        ("drkit compose --masker pmi --set pretrain.masker.s", ["pretrain.masker.sigma="]),
        ("drkit compose --masker uniform --set pretrain.masker.s", []),
        ("drkit compose --pipeline three-stage --set reranker.lo", ["reranker.loss.", "reranker.logging_steps="]),
        ("drkit compose --set finetune.rounds.0.na", ["finetune.rounds.0.name="]),
        ("drkit compose --collection be", ["beir:"]),
        ("drkit encode --collection jsonl:x --set collection.t", ["collection.text_field=", "collection.title_field="]),
        ("drkit mine --miner margin --set margin.a", ["margin.absolute="]),
        ("drkit inspect mask text --masker pmi --set masker.si", ["masker.sigma="]),
        ("drkit compose --masker no-such --set enc", ["encoder."]),
    ],
)
def test_values_that_go_on_are_left_open(complete, line, found):
    rows = complete(line)
    assert sorted(values(rows)) == sorted(found)
    assert all(kind == "open" for kind, _ in rows)


def test_paths_after_a_collection(complete, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "texts.jsonl").touch()
    assert complete("drkit compose --collection beir:d") == [("open", "beir:data/")]
    assert complete("drkit compose --collection jsonl:data/t") == [("plain", "jsonl:data/texts.jsonl")]
    assert complete(f"drkit compose --collection jsonl:{tmp_path}/data/t")[0][1].endswith("texts.jsonl")
    assert complete("drkit compose --collection beir:no/such/") == []


def test_ids_of_ir_datasets(complete):
    assert ("plain", "irds:vaswani") in complete("drkit compose --collection irds:vas")


def test_folders_and_files_are_left_to_the_shell(complete):
    assert complete("drkit run ru") == [("file", "ru")]
    assert complete("drkit compose --encoder ru") == [("dir", "ru")]


def test_bash_gets_what_follows_its_word_breaks(complete):
    assert ("plain", "pmi") in complete("drkit compose --set pretrain.masker.use=p", "bash")
    assert ("plain", "vaswani") in complete("drkit compose --collection irds:va", "bash")
    assert complete("drkit compose --set=pre", "bash") == [("open", "pretrain.")]
    assert complete("drkit compose --set=pre", "zsh") == [("open", "--set=pretrain.")]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "drkit",
        "drkit nosuch ",
        "drkit compose --nosuch ",
        "drkit compose --set ''=",
        "drkit compose --paper '",
        "x",
    ],
)
@pytest.mark.parametrize("shell", SHELLS)
def test_odd_lines_print_no_error(complete, line, shell):
    complete(line, shell)


def test_hostile_names_are_harmless(complete, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / HOSTILE.replace("/", "")).touch()
    (value,) = values(complete("drkit compose --collection jsonl:"))
    assert not ACTS.search(value)


def test_completion_imports_no_torch():
    code = """
import sys
from drkit_cli import main
try:
    main.main()
finally:
    print("HEAVY", sorted({"torch", "transformers", "pyarrow", "datasets"} & set(sys.modules)), file=sys.stderr)
"""
    for line in ("drkit compose --set pretrain.", "drkit compose --masker ", "drkit mine --miner margin --set margin."):
        env = {**os.environ, VARIABLE: "bash_complete", "COMP_LINE": line}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
        assert "HEAVY []" in done.stderr
        assert done.returncode == 0
        assert done.stdout.strip()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a program `drkit`."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "drkit"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m drkit_cli.main "$@"\n')
    program.chmod(0o755)
    return folder


def run_shell(home, *command):
    """Return what a shell prints, with the program `drkit` of this source."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "cli", ROOT / "plugins")))
    env = {**os.environ, "PATH": f"{home}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": paths, "HOME": str(home)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
def test_in_bash(home):
    script = """
    eval "$(drkit completion bash)"
    ask() {
        COMP_LINE="$1" COMP_POINT=${#1}
        _drkit_completion drkit
        printf '%s|' "${COMPREPLY[@]}"; echo
    }
    ask 'drkit show masker p'
    ask 'drkit compose --set pretrain.masker.use=un'
    ask 'drkit compose --set evaluation.'
    """
    lines = run_shell(home, "bash", "-c", script).splitlines()
    assert lines[:2] == ["pmi|", "uniform|"]
    assert "evaluation.measures=" in lines[2].split("|")


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_in_fish(home):
    script = "drkit completion fish | source; complete -C 'drkit show masker p'; complete -C 'drkit compose --set pre'"
    lines = run_shell(home, "fish", "--no-config", "-c", script).splitlines()
    assert lines[0].split("\t") == ["pmi", "Hides the most informative tokens from the decoder"]
    assert lines[1].split("\t")[0] == "pretrain."


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_in_zsh(home):
    script = """
    compdef() { : }
    eval "$(drkit completion zsh)"
    compadd() { print -r -- "$@" }
    words=(drkit compose --set pretrain.masker.use=u) CURRENT=4
    _drkit_completion
    words=(drkit compose --set pre) CURRENT=4
    _drkit_completion
    """
    lines = run_shell(home, "zsh", "-f", "-c", script).splitlines()
    assert [line.split()[2] for line in lines] == ["plain", "open"]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_says_how_to_install_it(shell):
    command = [sys.executable, "-m", "drkit_cli.main", "completion", shell]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"# {shell}: save this as" in "\n".join(done.stdout.splitlines()[:2])
    assert "%(" not in done.stdout
