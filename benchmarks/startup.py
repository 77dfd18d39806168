"""Start-up: processor seconds of whole processes that only look, medians, and as ratios to `import torch`.

python benchmarks/startup.py [--runs 7] [--run RUN] [--json FILE]

--run: also search this run for a word.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path

TORCH = "import torch"
COMMANDS = (
    ("python -c pass", [sys.executable, "-c", "pass"]),
    (TORCH, [sys.executable, "-c", "import torch"]),
    ("from transformers import BertForMaskedLM", [sys.executable, "-c", "from transformers import BertForMaskedLM"]),
    ("drkit --help", None),
    ("drkit compose --help", None),
    ("drkit list", None),
    ("drkit show masker pmi", None),
    ("drkit compose --dry-run", None),
    ("drkit compose --paper simlm --dry-run", None),
    ("from drkit.decoders import EnhancedConfig", [sys.executable, "-c", "from drkit.decoders import EnhancedConfig"]),
    ("from drkit.maskers import PmiMasker", [sys.executable, "-c", "from drkit.maskers import PmiMasker"]),
    (
        "from drkit.decoders import EnhancedDecoder",
        [sys.executable, "-c", "from drkit.decoders import EnhancedDecoder"],
    ),
)


def seconds(arguments: list[str]) -> float:
    """Return the processor seconds of a process, of user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--run")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    drkit = str(Path(sys.executable).with_name("drkit"))
    commands = {name: given or [drkit, *name.split()[1:]] for name, given in COMMANDS}
    if options.run:
        commands["drkit search RUN word"] = [drkit, "search", options.run, "word"]
    # One after another in each round, so that other programs slow all of them alike; the first round is not counted.
    rounds = [{name: seconds(given) for name, given in commands.items()} for _ in range(options.runs + 1)][1:]
    rows = {name: statistics.median(one[name] for one in rounds) for name in commands}
    print("| command | processor s | times import torch |\n|---|---|---|")
    for name, median in rows.items():
        print(f"| `{name}` | {median:.2f} | {median / rows[TORCH]:.2f} |")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
