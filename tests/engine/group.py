"""Run in several processes: tasks on the engine of all of them; writes what the first process got."""

import json
import os
import sys
from functools import partial
from pathlib import Path

from drkit.core import processes
from drkit.core.engine import TASKS, GroupEngine, Task, join_tasks
from drkit.core.file_chunks import FileChunks
from drkit.core.registry import installed
from drkit.core.types import BuildContext
from drkit.errors import DrkitError
from drkit.miners import chain
from drkit.miners.blocks import mine_on, write_mined
from drkit.miners.chain import build_chain, parse_chain
from drkit.testing.toys import ToyCorpus, toy_requests


def rank_of(number: int, folder: str) -> list[int]:
    """Which process does a task; kept as a file, so that one that is killed afterwards has done it."""
    (Path(folder) / f"{number}-{os.getpid()}").touch()
    if number == 4:
        raise ValueError("four")
    return [number, processes.rank()]


def opened() -> tuple[BuildContext, ToyCorpus]:
    return BuildContext(), ToyCorpus()


def mine(folder: Path, engine: GroupEngine | None) -> None:
    choices = parse_chain(["bm25"], (), installed().registry)
    mined = mine_on(
        engine,
        build_chain(choices, installed().registry, BuildContext()),
        ToyCorpus(),
        toy_requests(70),
        30,
        choices=choices,
        context=BuildContext(),
        open_with=partial(opened),
        index=folder / "index",
        chunks=FileChunks(folder / "mined"),
    )
    write_mined(mined, folder / ("group.jsonl" if engine else "here.jsonl"))


def main(given: str) -> None:
    folder, found, failed = Path(given), [], ""
    chain.QUERIES_PER_BLOCK = 10
    with processes.group():
        if processes.rank():
            while processes.broadcast(None) == TASKS:
                join_tasks()
            return
        tasks = [Task(f"task {number}", rank_of, (number, given)) for number in range(7)]
        try:
            found.extend(GroupEngine().run(iter(tasks)))
        except DrkitError as error:
            failed = str(error)
        mine(folder, None)
        mine(folder, GroupEngine())
        processes.broadcast(None)
    (folder / "found.json").write_text(json.dumps({"found": found, "failed": failed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
