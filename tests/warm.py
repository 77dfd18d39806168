"""Commands of drkit in children of one warm process, which has torch and transformers imported: seconds less each.

`python -m tests.warm` takes a job and gives its result as a line of JSON each. A job: arguments of drkit, environment
(all its variables) and folder to work in; with faults also root (where operations are counted), at (the operation that
fails; 0: none) and error (its errno; 0: the process is killed). A result: code (negative: the signal), operations, out
and err.

What a module reads from the environment as it is imported, it reads from that of the warm process; ir_datasets, which
reads its folder then, is left to the children.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
WARM = """torch accelerate transformers.trainer transformers.models.bert.modeling_bert safetensors.torch tokenizers
pyarrow.ipc faiss bm25s ir_measures scipy.stats matplotlib.pyplot datasets drkit_cli.main drkit.train.trainer
drkit.train.biencoder drkit.train.pretrain drkit.train.refresh drkit.search drkit.evaluate drkit.runs.plan"""


class WarmProcess:
    """Runs drkit in children of a process of its own."""

    def __init__(self, **environment):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT, **environment},
        )

    def drkit(self, *arguments, **job):
        """The result of a command; job: as `start` takes it."""
        self.start(*arguments, **job)
        return self.wait()

    def start(self, *arguments, folder=None, environment=None, **faults):
        """Start a command; faults: root, at and error of the job. `wait` has its result."""
        job = {"arguments": list(map(str, arguments)), "folder": str(folder or Path.cwd()), **faults}
        own = {name: str(value) for name, value in (environment or {}).items()}
        job["environment"] = {**os.environ, **ENVIRONMENT, **own}
        print(json.dumps(job, default=str), file=self._process.stdin, flush=True)

    def wait(self):
        return json.loads(self._process.stdout.readline())

    def interrupt(self):
        """Send Ctrl-C to the command that runs."""
        for child in psutil.Process(self._process.pid).children():
            child.send_signal(signal.SIGINT)

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@cache
def warm_process():
    """The warm process of this process, for commands without faults."""
    made = WarmProcess()
    atexit.register(made.close)
    return made


def drkit(*arguments, cwd=None, **environment):
    """(exit code, standard output, standard error) of a command."""
    result = warm_process().drkit(*arguments, folder=cwd, environment=environment)
    return result["code"], result["out"], result["err"]


def main():
    import_modules(WARM.split())
    jobs, results = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    for line in jobs:
        gc.collect()
        gc.freeze()  # accelerate collects garbage after every training; a child need not go through all modules
        with tempfile.TemporaryDirectory() as scratch:
            status = os.waitpid(start(json.loads(line), Path(scratch)), 0)[1]
            import_modules(read(Path(scratch, "modules")).split())
            result = {
                "code": os.waitstatus_to_exitcode(status),
                "operations": int(read(Path(scratch, "operations")) or 0),
                "out": read(Path(scratch, "out")),
                "err": read(Path(scratch, "err")),
            }
        print(json.dumps(result), file=results, flush=True)


def read(path):
    return path.read_text(errors="replace") if path.exists() else ""


def start(job, scratch):
    """Fork a child that runs the job; its process id."""
    if child := os.fork():
        return child
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(scratch / name, os.O_WRONLY | os.O_CREAT), number)
        os.chdir(job["folder"])
        os.environ.clear()
        os.environ.update(job["environment"])
        tempfile.tempdir = None  # which this process has looked up already
        sys.argv = ["drkit", *job["arguments"]]
        if "root" in job:
            faults = ctypes.CDLL(None)
            faults.faults_arm(job["root"].encode(), ctypes.c_long(job.get("at", 0)), job.get("error", 0))
        else:
            os.fsync = int  # nobody cuts the power
        code = sys.modules["drkit_cli.main"]._status()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    if "root" in job:
        (scratch / "operations").write_text(str(faults.faults_count()))
    (scratch / "modules").write_text("\n".join(sys.modules))
    os._exit(code)


def import_modules(names):
    """Import what a child would have to import, or had to: the next one need not."""
    for name in names:
        if name not in sys.modules and name.partition(".")[0] not in ("__main__", "ir_datasets"):
            try:
                importlib.import_module(name)
            except Exception:
                continue


if __name__ == "__main__":
    main()
