"""The pages in docs/examples, followed to the letter: their files written, their commands and snippets run.

Only trainings of hundreds of steps are cut to a few: that they work is tested here, not what they learn. Blocks of `sh`
are trainings at full size, which are planned.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.following import run_warm

FOLDER = Path(__file__).parents[2] / "docs" / "examples"
# A step of a page: a file by its path, another snippet, or commands.
STEP = re.compile(r"(?:`(?P<path>[\w/.]+)`:\n)?```(?P<language>shell|sh|python|toml)\n(?P<text>.*?)```", re.DOTALL)
# The script that the first snippet of a page is (if any), what the page must leave behind, and what it must print.
PAGES = {
    "five-minutes": ("", ("runs/quick/encoder/modules.json", "report.html"), ("hybrid", "kept", "again")),
    "no-labels": ("documents.py", ("runs/documents/encoder/modules.json", "recipe.toml"), ("documents",)),
    "few-labels": ("labels.py", ("runs/labels/report.html", "labels.toml"), ("retriever-1", "split a text")),
    "three-stages": ("msmarco.py", ("runs/three-stage/report.html",), ("retriever-distilled", "reranker")),
    "own-loop": ("loop.py", (), ("with decoder", "without decoder")),
    "distil-vectors": (
        "",
        ("runs/student/encoder/modules.json", "runs/tuned/encoder/modules.json"),
        ("vectors +teacher", "nDCG@10"),
    ),
    "late-chunking": (
        "late.py",
        ("runs/late/encoder/modules.json",),
        ("each passage alone: RR@10", "late chunking: RR@10"),
    ),
    "sentence-transformers": ("train.py", ("trained/modules.json",), ("drkit's contrastive",)),
}
# What a page trains, and what a test trains.
FEW = "--quick --set finetune.max_steps=4"
FEWER = {
    "five-minutes": {"--quick": f"{FEW} --set pretrain.max_steps=8 --set collection.limit=60"},
    "no-labels": {"--quick": f"{FEW} --set pretrain.max_steps=8", "len(text) > 60": "len(text) > 500"},
    "few-labels": {"--quick": FEW, "len(text) > 60": "len(text) > 300"},
    "three-stages": {
        "--quick": FEW,
        "PydocsConfig(limit=600)": "PydocsConfig(limit=60)",
        "pretrain.max_steps=200": "pretrain.max_steps=8",
        "reranker.max_steps=100": "reranker.max_steps=8",
        " --set finetune.bf16=true": "",  # tried in a process of its own: tests/cli/test_refusals.py
    },
    "own-loop": {"steps=200": "steps=8"},
    "distil-vectors": {
        "sentence-transformers/all-MiniLM-L6-v2": "runs/teacher",
        "runs/student --quick": "runs/student --quick --set pretrain.max_steps=8",
        "runs/tuned --quick": f"runs/tuned {FEW}",
        "collection.limit=2000": "collection.limit=60",
    },
    "late-chunking": {
        "--quick": f"{FEW} --set pretrain.max_steps=8 --set collection.limit=60",
        "len(text) > 60": "len(text) > 300",
    },
}
# What a test makes first, in place of what a page downloads.
BEFORE = {"distil-vectors": f"drkit compose --set collection.limit=60 --set pretrain=none {FEW} --run-dir runs/teacher"}


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_works_to_the_letter(page, tmp_path):
    script, results, shown = PAGES[page]
    outputs, snippets = {}, 0
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    for steps, fewer in FEWER.get(page, {}).items():
        assert steps in text
        text = text.replace(steps, fewer)
    if page in BEFORE:
        run_warm(BEFORE[page], tmp_path)
    for step in STEP.finditer(text):
        if step["language"] == "shell":
            for command in step["text"].splitlines():
                outputs[command] = run_warm(command, tmp_path)
        elif step["language"] == "sh":
            for command in step["text"].splitlines():
                run_warm(f"{command} --dry-run", tmp_path)
        elif step["path"] or not (tmp_path / script).exists():
            (tmp_path / (step["path"] or script)).write_text(step["text"])
        else:
            snippets += 1
            (tmp_path / f"snippet_{snippets}.py").write_text(step["text"])
            assert run_warm(f"python snippet_{snippets}.py", tmp_path).strip()
    for result in results:
        assert (tmp_path / result).is_file()
    printed = "\n".join(f"{command}\n{output}" for command, output in outputs.items())
    assert all(re.search(words, printed) for words in shown)
    assert all(output.strip() for command, output in outputs.items() if "search" in command or "init" in command)


def test_every_example_is_followed():
    # tests/runs/test_pretraining_by_hand.py and test_own_stage_page.py, tests/papers/test_several_vectors.py
    elsewhere = {"pretraining-by-hand", "your-own-stage", "several-vectors"}
    assert {path.stem for path in FOLDER.glob("*.md")} == {*PAGES, *elsewhere, "README"}
    for path in FOLDER.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        assert len(re.findall(r"^```\w+$", text, re.MULTILINE)) == len([*STEP.finditer(text)]), path
