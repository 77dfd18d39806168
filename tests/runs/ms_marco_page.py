"""The tables of docs/guide/ms-marco.md, from its lines' plans: `python -m tests.runs.ms_marco_page` writes them."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from functools import cache
from pathlib import Path

from tests.warm import ROOT, warm_process

PAGE = Path(ROOT) / "docs" / "guide" / "ms-marco.md"
BEGIN, END = "<!-- plans -->\n", "<!-- end -->"
# Groups of the disk's columns, by the beginning of stages' names.
GROUPS = {
    "texts, tokens": ("collection", "tokens", "query-tokens", "spans", "documents", "vocabulary", "pseudo", "mixture"),
    "weights of tokens": ("signal",),
    "negatives, scores": ("negatives", "teacher"),
    "indexes": ("index", "bm25"),
}


def lines(page: str | None = None) -> list[list[str]]:
    """The lines of torchrun on the page, as lists of words."""
    text = PAGE.read_text(encoding="utf-8") if page is None else page
    return [shlex.split(line) for line in text.splitlines() if line.startswith("torchrun ")]


def processes_of(words: list[str]) -> int:
    """How many processes a line of torchrun starts."""
    options = dict(zip(words[1::2], words[2::2], strict=False))
    return int(options.get("--nnodes", 1)) * int(options["--nproc-per-node"])


@cache
def plan(processes: int, *drkit: str) -> dict:
    """The plan of a command of drkit in this many processes, as its first one prints it."""
    with tempfile.TemporaryDirectory() as home:  # MS MARCO's ids and sizes, without its texts
        environment = {"WORLD_SIZE": str(processes), "RANK": "0", "IR_DATASETS_HOME": home}
        made = warm_process().drkit(*drkit, "--dry-run", "--json", environment=environment)
    assert made["code"] == 0, made["err"]
    return json.loads(made["out"])


def plans() -> dict[str, dict[int, dict]]:
    """The plan of each line, by its paper and number of processes."""
    found: dict[str, dict[int, dict]] = {}
    for words in lines():
        command = words[words.index("drkit_cli.main") + 1 :]
        found.setdefault(command[1], {})[processes_of(words)] = plan(processes_of(words), *command)
    return found


def trainings(made: dict) -> dict[str, tuple[str, float]]:
    """The steps, in words, and the memory in bytes of each training of a plan."""
    found = {}
    for stage in made["stages"]:
        if (step := re.search(r"(?:in|\d) steps of ([^;]*)$", stage["does"])) and stage["memory"]:
            found[stage["stage"]] = (step[1], stage["memory"])
    return found


def table() -> str:
    """Both tables of the page."""
    rows = ["| recipe | training | a step | GB a card, 8 GPUs | 16 GPUs |", "|---|---|---|---|---|"]
    for paper, by_processes in plans().items():
        eight, sixteen = (trainings(by_processes[count]) for count in (8, 16))
        for name, (step, memory) in eight.items():
            rows.append(f"| `{paper}` | {name} | {step} | {memory / 1e9:.0f} | {sixteen[name][1] / 1e9:.0f} |")
    rows += ["", f"| recipe | {' | '.join(GROUPS)} | other | GB in all |", "|---|" + "---|" * (len(GROUPS) + 2)]
    for paper, by_processes in plans().items():
        sums = dict.fromkeys([*GROUPS, "other"], 0.0)
        for stage in by_processes[8]["stages"]:
            group = next((name for name, begin in GROUPS.items() if stage["stage"].startswith(begin)), "other")
            sums[group] += stage["disk"] or 0.0
        values = [*sums.values(), by_processes[8]["cost"]["disk"]]
        rows.append(f"| `{paper}` | {' | '.join(f'{value / 1e9:.0f}' for value in values)} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """The whole page, with the tables of the plans."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
