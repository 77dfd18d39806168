"""The warm process that runs commands with faults, a tiny collection, and the runs of its recipes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Server:
    """Runs drkit in children of a warm process that counts file operations (`tests.faults.server`)."""

    def __init__(self, library):
        environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment, "LD_PRELOAD": str(library)},
        )

    def drkit(self, *arguments, root, at=0, error=0, **environment):
        """The result of a command, whose operation `at` below `root` fails with `error`, or ends the process (0)."""
        job = {"arguments": list(map(str, arguments)), "folder": str(ROOT), "root": str(root)}
        job["environment"] = {name: str(value) for name, value in environment.items()}
        print(json.dumps({**job, "at": at, "error": error}), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait()


@pytest.fixture(scope="package")
def library(tmp_path_factory):
    """The library that injects faults, to be preloaded."""
    if sys.platform != "linux" or not shutil.which("cc"):
        pytest.skip("faults are injected by a library made with a C compiler on Linux")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture(scope="package")
def server(library):
    made = Server(library)
    yield made
    made.close()


@pytest.fixture(scope="package")
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
