"""The warm process that runs commands with faults, and a tiny collection."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.test_faults import compose
from tests.warm import ROOT, WarmProcess


class Faulty:
    """Commands below the repository, whose operation `at` below `root` fails with `error`, or is the last (0)."""

    def __init__(self, library):
        self.process = WarmProcess(LD_PRELOAD=str(library))

    def drkit(self, *arguments, **job):
        self.start(*arguments, **job)
        return self.wait()

    def start(self, *arguments, root, at=0, error=0, **environment):
        faults = {"root": str(root), "at": at, "error": error}
        self.process.start(*arguments, folder=ROOT, environment=environment, **faults)

    def wait(self):
        result = self.process.wait()
        operations = sum(result["operations"])
        return {**result, "operations": operations, "output": f"{result['out']}\n{result['err']}"}


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The library that injects faults, to be preloaded."""
    if sys.platform != "linux" or not shutil.which("cc"):
        pytest.skip("faults are injected by a library made with a C compiler on Linux")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture(scope="session")
def server(library):
    made = Faulty(library)
    yield made
    made.process.close()


@pytest.fixture(scope="session")
def beir(tmp_path_factory):
    """Forty passages on ten topics, with queries of three splits."""
    folder = tmp_path_factory.mktemp("beir")
    (folder / "qrels").mkdir()
    passages = [{"_id": f"d{i}", "text": f"about topic{i % 10} and word{i}. It says word{i} often."} for i in range(40)]
    queries = [{"_id": f"q{t}", "text": f"what is topic{t} about"} for t in range(10)]
    for name, rows in (("corpus", passages), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, topics in {"train": range(6), "dev": range(6, 8), "test": range(8, 10)}.items():
        rows = [f"q{t}\td{t + 10 * n}\t1" for t in topics for n in range(2)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    return folder


@pytest.fixture(scope="session")
def finished(server, beir, tmp_path_factory):
    """An uninterrupted run of each recipe: (folder, number of its operations), made when asked for."""
    made = {}

    def finish(name):
        if name not in made:
            run = tmp_path_factory.mktemp("whole") / name
            result = server.drkit(*compose(name, beir, run), root=run)
            assert result["code"] == 0, result["output"]
            made[name] = run, result["operations"]
        return made[name]

    return finish
