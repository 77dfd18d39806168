"""BM25 negatives by one worker and by several: equal rankings, and the processor time and memory of each worker.

    python benchmarks/mining_workers.py --collection beir:FOLDER [--workers 1 2 8] [--depth 200] [--json FILE]

The training queries of a collection are mined by a local engine of N processes, which open the same saved index; more
processes than cores work in turn, so that none disturbs another, and the clock says nothing about them. The
table has, for each N: seconds on the clock, the processor seconds of all workers, those of the longest worker (what N
idle cores would take), how many of them it took to start, the ratio of the first row's longest worker to it, and the
peak memory of a worker: resident, and without the pages of files that workers share. The negatives must be the same
bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from drkit.commands.collections import NamedCollection
from drkit.core.engine import Engine, ProcessEngine
from drkit.core.file_chunks import FileChunks
from drkit.core.files import file_hash
from drkit.core.processes import available_cores
from drkit.core.registry import installed
from drkit.core.types import BuildContext
from drkit.data.corpus import collection_of
from drkit.miners.blocks import mine_on, open_collected
from drkit.miners.chain import build_chain, mining_requests, parse_chain, write_negatives


@frozen
class Measured:
    """An engine whose tasks record the processor time and the peak memory of their worker in a folder."""

    engine: Engine
    folder: Path

    @property
    def threads(self) -> int:
        """Those of the engine."""
        return self.engine.threads

    @property
    def slots(self) -> int:
        """Those of the engine."""
        return self.engine.slots

    def run(self, tasks: Iterable[Any]) -> Iterator[Any]:
        """Carry out tasks on the engine."""
        folder = str(self.folder)
        measured = (
            evolve(task, function=carry_out, arguments=(folder, task.function, task.arguments)) for task in tasks
        )
        return self.engine.run(measured)


@frozen
class InTurn:
    """An engine of more workers than cores: each does its share of the tasks alone, as on a core of its own."""

    slots: int
    threads: int = 1

    def run(self, tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield the results of all tasks in order; worker n does every task n + k * slots, as under torchrun."""
        waiting = [*tasks]
        results = [[*ProcessEngine(1).run(waiting[worker :: self.slots])] for worker in range(self.slots)]
        return (results[number % self.slots][number // self.slots] for number in range(len(waiting)))


def carry_out(folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Carry out a task, and write down what its process has used since it began."""
    file, began = Path(folder, f"{os.getpid()}.json"), time.process_time()
    began = json.loads(file.read_text())["start"] if file.exists() else began
    result = function(*arguments)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    used = {
        "start": began,
        "seconds": time.process_time(),
        "peak": 1024 * int(status["VmHWM"].split()[0]),
        "own": 1024 * int(status["RssAnon"].split()[0]),
    }
    file.write_text(json.dumps(used))
    return result


def mine(stored: Path, folder: Path, workers: int, depth: int) -> dict[str, Any]:
    """Mine with so many workers; returns a row of the table."""
    folder.mkdir()
    used = folder / "used"
    used.mkdir()
    inputs = (("passages", stored / "passages"), ("train", stored / "train"))
    collection = collection_of(dict(inputs))
    choices = parse_chain(["bm25"], [f"bm25.depth={depth}"], installed().registry)
    engine = ProcessEngine(workers) if workers <= available_cores() else InTurn(workers)
    started = time.perf_counter()
    mined = mine_on(
        Measured(engine, used),
        build_chain(choices, installed().registry, BuildContext()),
        collection.corpus,
        mining_requests(collection),
        depth,
        choices=choices,
        context=BuildContext(),
        open_with=partial(open_collected, inputs, 42),
        index=stored / "index",
        chunks=FileChunks(folder / "mined"),
    )
    counts = write_negatives(mined, collection.corpus, folder)
    rows = [json.loads(file.read_text()) for file in used.iterdir()]
    return {
        "workers": workers,
        "queries": counts["queries"],
        "clock": time.perf_counter() - started,
        "all": sum(row["seconds"] for row in rows),
        "longest": max(row["seconds"] for row in rows),
        "start": max(row["start"] for row in rows),
        "peak": max(row["peak"] for row in rows),
        "own": max(row["own"] for row in rows),
        "negatives": file_hash(folder / "negatives.arrow"),
    }


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collection", required=True)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--depth", type=int, default=200)
    parser.add_argument("--json", type=Path, help="also write the rows")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        stored, _ = NamedCollection(given.collection).store(Path(scratch))
        choices = parse_chain(["bm25"], [], installed().registry)
        chain = build_chain(choices, installed().registry, BuildContext())
        chain.save_index(stored / "index", collection_of({"passages": stored / "passages"}).corpus)
        rows = [mine(stored, Path(scratch) / f"by-{count}", count, given.depth) for count in given.workers]
        size = sum(file.stat().st_size for file in (stored / "index").iterdir())
    print(f"{rows[0]['queries']:,} queries, depth {given.depth}, an index of {size / 1e6:.0f} MB\n")
    columns = "workers, clock s, processor s, longest worker s, of it start, times as fast, peak MB, without files MB"
    print(f"| {columns.replace(', ', ' | ')} |\n{'|---' * 8}|")
    for row in rows:
        ratio = rows[0]["longest"] / row["longest"]
        clock = f"{row['clock']:.1f}" if row["workers"] <= available_cores() else ""
        times = f"{clock} | {row['all']:.1f} | {row['longest']:.1f} | {row['start']:.1f} | {ratio:.2f}"
        print(f"| {row['workers']} | {times} | {row['peak'] / 1e6:.0f} | {row['own'] / 1e6:.0f} |")
    assert len({row["negatives"] for row in rows}) == 1, "other negatives"
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
