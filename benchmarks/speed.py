"""How fast drkit is beside its strongest rivals, in one table: training, encoding, mining, BM25, search, evaluation.

    python benchmarks/speed.py --page docs/experiments/benchmarks.md    # half an hour on two idle cores
    python benchmarks/speed.py --only mining bm25                       # rows of the file are not measured again
    python benchmarks/speed.py --json tiny.jsonl --tiny --repeats 1     # the same code at toy sizes

A measurement is a process of its own, which loads what it needs, warms up, and is timed for the rest. The sides of a
comparison (`speed_rows.py`) take turns, with as many threads as there are cores, or OMP_NUM_THREADS. A ratio is that of
one turn. The table has medians, and the smallest and largest ratio, and begins with what is slower than a rival. Rivals
that are not installed are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attrs import asdict
from comparisons import put_into
from speed_inputs import TINY, Sizes
from speed_rows import COMPARISONS

from drkit.core.files import write_text

MARK, ROWS = "speed", Path(__file__).with_name("speed_rows.py")
PACKAGES = (
    "torch",
    "transformers",
    "sentence-transformers",
    "bm25s",
    "faiss-cpu",
    "pytrec_eval-terrier",
    "numba",
    "openvino",
    "ranx",
)
HEADER = (
    "| what | rival | drkit s | rival s | times as fast | by processor time | peak MB | results differ by | `--only` |"
)


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return all turns of each side of a comparison, and by how much the results of the last one differ."""
    comparison = COMPARISONS[name]
    with tempfile.TemporaryDirectory() as folder:

        def work(side: str) -> list[str]:
            command = [sys.executable, str(ROWS), name, side, folder, str(options.tiny)]
            quiet = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
            done = subprocess.run(command, check=False, capture_output=True, text=True, env=quiet)
            if done.returncode:
                raise RuntimeError(
                    f"{name}, {side or 'input'}: {(done.stderr.strip() or 'no output').splitlines()[-1]}"
                )
            return done.stdout.splitlines()

        work("")
        turns = [{side: json.loads(work(side)[-1]) for side in comparison.sides()} for _ in range(options.repeats)]
        found = {side: json.loads((Path(folder) / f"{side}.json").read_text()) for side in turns[0]}
    differ = {side: difference(found["drkit"], own, comparison.same) for side, own in found.items()}
    what = comparison.what.format(**asdict(TINY if options.tiny else Sizes()))
    return {"name": name, "what": what, "tiny": options.tiny, "machine": machine(), "turns": turns, "differ": differ}


def difference(ours: list[Any], theirs: list[Any], kind: str) -> str:
    """Return the largest difference of numbers, or the share of ids that are not found by both."""
    if kind == "ids":
        shared = sum(len({*one} & {*other}) for one, other in zip(ours, theirs, strict=True))
        return f"{1 - shared / sum(map(len, ours)):.2%} of hits"
    values = [list(flat(one)) for one in (ours, theirs)]
    return f"{max(abs(a - b) for a, b in zip(*values, strict=True)):.0e}" if kind else ""


def flat(values: Any) -> Iterator[float]:
    if isinstance(values, list):
        for value in values:
            yield from flat(value)
    else:
        yield values


def machine() -> str:
    cpu = next((x.partition(": ")[2] for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), "?")
    threads = os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))
    return f"{cpu}, {threads} threads, Python {platform.python_version()}"


def table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        for rival in [side for side in row["turns"][0] if side != "drkit"]:
            ratios = {k: sorted(t[rival][k] / t["drkit"][k] for t in row["turns"]) for k in ("wall", "processor")}
            middle = {
                (side, key): statistics.median(turn[side][key] for turn in row["turns"])
                for side in ("drkit", rival)
                for key in ("wall", "peak_mb")
            }
            wall, processor = (f"{statistics.median(r):.2f} ({r[0]:.2f} to {r[-1]:.2f})" for r in ratios.values())
            cells = [row["what"], rival, *(f"{middle[side, 'wall']:.3g}" for side in ("drkit", rival)), wall, processor]
            cells.append(", ".join(f"{middle[side, 'peak_mb']:,.0f}" for side in ("drkit", rival)))
            cells += [row["differ"][rival], f"`{row['name']}`"]
            lines.append((statistics.median(ratios["wall"]), f"| {' | '.join(cells)} |"))
    here = {distribution.name for distribution in distributions()}
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES if name in here)
    about = f"{rows[0]['machine']}; {versions}; {len(rows[0]['turns'])} turns. Peak MB: drkit's, the rival's."
    ordered = [line for _, line in sorted(lines)]
    return "\n".join([about, "", HEADER, "|---" * HEADER.count(" | ") + "|---|", *ordered, ""])


def run(options: argparse.Namespace) -> int:
    """Measure the comparisons that the file lacks; return 1 if one failed."""
    done, failed = {(row["name"], row["tiny"]) for row in read_rows(options.json)}, 0
    for name in options.only or COMPARISONS:
        if (name, options.tiny) in done or not find_spec(COMPARISONS[name].needs):
            continue
        try:
            row = measured(name, options)
        except RuntimeError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            failed = 1
            continue
        rows = [*read_rows(options.json), row]
        write_text(options.json, "".join(json.dumps(each) + "\n" for each in rows))
        print(table([row]), flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--json", type=Path, default=Path("speed.jsonl"), help="JSON Lines; rows of it are not repeated"
    )
    parser.add_argument("--page", type=Path, help="put the table of the file between the marks of this page")
    parser.add_argument("--only", nargs="+", choices=list(COMPARISONS), metavar="NAME", help=", ".join(COMPARISONS))
    parser.add_argument("--repeats", type=int, default=3, help="turns of a comparison")
    parser.add_argument("--tiny", action="store_true", help="toy sizes")
    options = parser.parse_args()
    failed = run(options)
    rows = read_rows(options.json)
    if options.page and rows:
        put_into(options.page, MARK, table(rows))
    return failed


if __name__ == "__main__":
    sys.exit(main())
