"""The commands that only look: quick, without torch, and with clear errors."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import drkit

PROBE = """
import sys
from drkit_cli.main import _status
for arguments in {commands!r}:
    sys.argv = ["drkit", *arguments]
    status = _status()
    heavy = {{"torch", "transformers", "datasets", "faiss", "pyarrow", "bm25s", "matplotlib"}} & set(sys.modules)
    print("HEAVY", sorted(heavy), "STATUS", status, "OF", *arguments, file=sys.stderr)
"""


def probed(commands, folder=None):
    """The lines on what commands have loaded by their ends, one after another in a process of its own."""
    script = PROBE.format(commands=commands)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=folder)
    return [line for line in done.stderr.splitlines() if line.startswith("HEAVY ")]


def test_light_commands_import_nothing_heavy():
    commands = [
        ["--help"],
        ["--version"],
        ["compose", "--help"],
        ["list"],
        ["list", "masker"],
        ["list", "--matrix"],
        ["inspect", "--help"],
        ["inspect", "mask", "--help"],
        ["queries", "--help"],
        ["fuse", "--help"],
        ["show", "masker", "pmi"],
        ["show", "decoder", "enhanced"],
        ["show", "recipe", "cdmae"],
        ["plugins"],
        ["compose", "--dry-run"],
        ["compose", "--paper", "retromae", "--masker", "pmi", "--dry-run"],
        ["compose", "--masker", "pmii"],
        ["init", "--help"],
        ["list", "--json", "-v"],
        ["show", "recipe", "retromae", "--diff", "cdmae"],
    ]
    statuses = [2 if "pmii" in arguments else 0 for arguments in commands]
    assert probed(commands) == [
        f"HEAVY [] STATUS {status} OF {' '.join(arguments)}"
        for status, arguments in zip(statuses, commands, strict=True)
    ]


def test_rankings_are_evaluated_and_fused_without_torch(tmp_path):
    (tmp_path / "run.trec").write_text("q1 Q0 d1 1 2.0 t\nq1 Q0 d2 2 1.0 t\n")
    (tmp_path / "qrels.txt").write_text("q1 0 d1 1\n")
    commands = [
        ["evaluate", "run.trec", "--qrels", "qrels.txt", "-m", "P@1"],
        ["fuse", "run.trec", "run.trec", "-o", "fused.trec"],
        ["fuse", "run.trec", "run.trec", "--tune", "qrels.txt", "--measure", "P@1", "-o", "fused.trec"],
    ]
    for line in probed(commands, tmp_path):
        assert line.startswith("HEAVY ['pyarrow'] STATUS 0 OF "), line


def test_show_gives_settings_paper_and_line():
    code, out, _ = drkit("show", "masker", "pmi")
    assert code == 0
    assert "sigma" in out
    assert "1.0" in out
    assert "Challenging Decoder" in out
    path, line = re.search(r"^code\s+(\S+):(\d+)$", out, flags=re.MULTILINE).groups()
    assert Path(path).read_text().splitlines()[int(line) - 1].startswith("class PmiMasker")


def test_the_matrix_has_every_pair():
    code, out, _ = drkit("list", "--matrix")
    assert code == 0
    lines = out.splitlines()
    maskers = lines[1].split()
    rows = {line.split()[0]: line for line in lines[2 : lines.index("")]}
    assert {"pmi", "uniform"} <= {*maskers}
    assert {"enhanced", "mlm"} <= {*rows}
    column = lines[1].index("uniform")
    assert rows["enhanced"][column:].startswith("yes")
    assert re.search(r"^masker pmi +importance", out, flags=re.MULTILINE)


def test_the_matrix_fits_eighty_columns():
    from rich.console import Console

    from drkit.core.registry import installed
    from drkit.recipe.matrix import Matrix, PairOfParts, matrix
    from drkit_cli.matrix import print_matrix

    many = tuple(f"a-masker-with-a-long-name-{number}" for number in range(7))
    wide = Matrix(many, ("some-decoder",), tuple(PairOfParts(name, "some-decoder") for name in many), {}, ())
    for made in (matrix(installed()), wide):
        screen = Console(width=80, record=True, file=io.StringIO())
        print_matrix(made, screen)
        shown = screen.export_text()
        assert max(map(len, shown.splitlines())) <= 80
        assert all(name in shown.replace("\u2026", "") for name in (*made.maskers, *made.decoders))


def test_dry_run_prints_trainings_systems_and_cost_and_with_v_every_stage(tmp_path):
    chosen = ("compose", "--masker", "pmi", "--decoder", "enhanced", "--dry-run", "--set", "evaluation.depth=200")
    code, out, _ = drkit(*chosen, cwd=tmp_path)
    assert code == 0
    labels = re.findall(r"^\S.*?(?=  )", out, re.MULTILINE)
    expected = ("texts", "encoder", "decoder main", "pretrained", "retriever-1", "evaluates", "stages", "in all")
    assert [label for label in labels if label in expected] == [*expected]
    assert len(labels) <= 15
    assert "masker pmi, decoder enhanced, loss mlm" in out
    assert "BM25" in out
    assert "parameters" in out
    code, out, _ = drkit(*chosen, "-v", cwd=tmp_path)
    assert code == 0
    for word in (
        "collection",
        "vocabulary",
        "signal-importance",
        "pretrained",
        "pretrained-decoder=mlm",
        "evaluation",
        "parameters",
    ):
        assert word in out
    assert re.search(r"reads .*signal-importance", out)
    assert not list(tmp_path.iterdir()), "a dry run writes nothing"


def test_output_is_a_complete_recipe_that_runs_dry(tmp_path):
    code, _, _ = drkit("compose", "--paper", "cdmae", "-o", tmp_path / "r.toml", "--dry-run", cwd=tmp_path)
    assert code == 0
    assert "projection = true" in (tmp_path / "r.toml").read_text()
    code, out, _ = drkit("run", tmp_path / "r.toml", "--dry-run", cwd=tmp_path)
    assert code == 0
    assert "runs/pydocs-cdmae" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compose", "--masker", "pmii"], "'pmi'"),
        (["compose", "--paper", "retromea"], "'retromae'"),
        (["compose", "--set", "pretrain.lerning_rate=1"], "'learning_rate'"),
        (["compose", "--set", "finetune.train_batch_size=8"], "finetune.batch_size=8"),
        (
            ["compose", "--set", "pretrain.learning_rate=fast"],
            "error: recipe: expected float, got 'fast'; allowed: > 0, <= 100; default: 0.001 @ pretrain.learning_rate",
        ),
        (["compose", "--collection", "beir:/no/such/folder"], "/no/such/folder"),
        (["compose", "--collection", "jsonl:/no/such/file.jsonl"], "/no/such/file.jsonl"),
        (["compose", "--miner", "dense"], "first round"),
        (["run", "/no/recipe.toml"], "/no/recipe.toml"),
        (["show", "masker", "mlm"], "masker named 'mlm'"),
        (["search", "/no/run", "words"], "not found: /no/run"),
        (["search", "/no/run", "  "], "query is empty"),
        (["list", "makers"], "'masker'?"),
        (["list", "masker", "--matrix"], "omit KIND"),
        (["compose", "--no-such-option"], "No such option"),
    ],
)
def test_a_users_mistake_ends_with_two_and_no_traceback(arguments, said, tmp_path):
    code, _, err = drkit(*arguments, cwd=tmp_path)
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())
