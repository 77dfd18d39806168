"""Rankings: seconds of processor time to write, evaluate and fuse two TREC runs of 1.6 million lines each.

python benchmarks/rankings.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from drkit.core.types import Judgement
from drkit.evaluate import evaluate
from drkit.search import align, convex, read_run, write_run

QUERIES, DEPTH, DOCUMENTS = 1600, 1000, 50_000


def timed(name: str, work: Callable[[], Any]) -> Any:
    """Return what `work` returns, and print how long it took."""
    start = time.process_time()
    result = work()
    print(f"{name:10} {time.process_time() - start:6.2f} s")
    return result


def rows(seed: int) -> list[tuple[str, list[tuple[str, float]]]]:
    """Return rankings whose scores descend."""
    rng = np.random.default_rng(seed)
    found = []
    for query in range(QUERIES):
        documents = rng.choice(DOCUMENTS, DEPTH, replace=False)
        scores = -np.sort(-rng.normal(size=DEPTH).astype(np.float32))
        found.append((f"query{query}", [(f"document{d}", float(s)) for d, s in zip(documents, scores, strict=True)]))
    return found


def main(folder: Path) -> None:
    """Measure everything once."""
    files = [folder / f"{seed}.trec" for seed in (0, 1)]
    made = [rows(seed) for seed in (0, 1)]
    timed("write", lambda: [write_run(file, run, "run") for file, run in zip(files, made, strict=True)])
    qrels = [Judgement(query, hits[(7 * row) % DEPTH][0], 1) for row, (query, hits) in enumerate(made[0])]
    timed("evaluate", lambda: [evaluate(read_run(file), qrels).means() for file in files])
    timed("fuse", lambda: write_run(folder / "fused", convex(align(*map(read_run, files)), 0.5, DEPTH), "fused"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(scratch))
