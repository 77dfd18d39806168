"""Commands of drkit in children of one warm process, which has torch and transformers imported: seconds less each.

`python -m tests.warm` takes a job and gives its result as a line of JSON each. A job: arguments of drkit, environment
(all its variables), folder to work in, module or script (run instead of drkit, if any) and processes, which find each
other as torchrun's do; with faults also root (where operations are counted), at (the operation that fails; 0: none),
error (its errno; 0: the process is killed) and rank (of the process that fails). A result: code (negative: the signal),
operations of each process, out and err. The first process that fails ends the others.

What a module reads from the environment as it is imported, it reads from that of the warm process; ir_datasets, which
reads its folder then, is left to the children.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import psutil

ROOT = Path(__file__).resolve().parents[1]
MEASURES = "DRKIT_TESTS_MEASURE"  # the variable of a command that is to measure the machine
LONGEST = 600  # seconds of a child: one that hangs must not keep those after it waiting
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
WARM = """torch accelerate transformers.trainer transformers.models.bert.modeling_bert safetensors.torch tokenizers
pyarrow.ipc faiss bm25s ir_measures scipy.stats datasets drkit_cli.main drkit.train.trainer
drkit.train.biencoder drkit.train.pretrain drkit.train.refresh drkit.search drkit.evaluate drkit.runs.plan
drkit.runs.costs drkit.runs.making.evaluation"""


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

    def start(self, *arguments, folder=None, environment=None, **job):
        """Start a command; job: module, script, processes and faults. `wait` has its result."""
        job = {"arguments": list(map(str, arguments)), "folder": str(folder or Path.cwd()), **job}
        own = {name: str(value) for name, value in (environment or {}).items()}
        job["environment"] = {**os.environ, **ENVIRONMENT, **own}
        print(json.dumps(job, default=str), file=self._process.stdin, flush=True)

    def wait(self):
        return json.loads(self._process.stdout.readline())

    def send_signal(self, number):
        """Send a signal to the command that runs."""
        for child in psutil.Process(self._process.pid).children():
            with suppress(psutil.NoSuchProcess):  # it has just ended
                child.send_signal(number)

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


def measure_nothing(replace=setattr):
    """Have constants for what commands measure of the packages of the machine for a second; replace: as `setattr`."""
    pydocs, types = map(importlib.import_module, ("drkit_pydocs.collection", "drkit.core.types"))
    size = types.CollectionSize(5000, {"train": 3500, "dev": 250, "test": 250}, (40, 80), (10, 20))
    replace(pydocs.PydocsCollection, "size", lambda self: size)


def check_arguments_in_children(replace=setattr):
    """Have the arguments of trainings tried in a child of this process, which has transformers imported.

    tests/runs/test_arguments.py has them tried as users do, in a process of its own. replace: as `setattr`.
    """
    prepare = importlib.import_module("drkit.runs.prepare")
    replace(prepare, "subprocess", SimpleNamespace(run=run_module_in_child))


def run_module_in_child(command, *, input, env, **_):
    """What `subprocess.run` returns for `python -m MODULE`, run in a child."""
    assert command[:2] == [sys.executable, "-m"]
    with tempfile.TemporaryDirectory() as scratch:
        given, out, err = (Path(scratch, name) for name in ("given", "out", "err"))
        given.write_text(input)
        if not (child := os.fork()):
            code = 1
            try:
                os.dup2(os.open(given, os.O_RDONLY), 0)
                for number, path in ((1, out), (2, err)):
                    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
                sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode) for n, mode in enumerate("rww"))
                os.environ.clear()
                os.environ.update(env)
                code = run_job({"module": command[2]}) or 0
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return subprocess.CompletedProcess(command, code, out.read_text(), err.read_text())


def main():
    import_modules(WARM.split())
    jobs, results = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    for line in jobs:
        gc.collect()
        gc.freeze()  # accelerate collects garbage after every training; a child need not go through all modules
        job = json.loads(line)
        with tempfile.TemporaryDirectory() as scratch:
            code = run(job, Path(scratch))
            import_modules(read(Path(scratch, "modules.0")).split())
            result = {
                "code": code,
                "operations": [int(read(path) or 0) for path in sorted(Path(scratch).glob("operations.*"))],
                "out": read(Path(scratch, "out")),
                "err": read(Path(scratch, "err")),
            }
        print(json.dumps(result), file=results, flush=True)


def run(job, scratch):
    """Run a job to its end; its exit code."""
    count, store = job.get("processes", 1), None
    if count > 1:
        store = sys.modules["torch.distributed"].TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    running = {start(job, scratch, rank, group(rank, count, store)) for rank in range(count)}
    code = 0
    while running:
        child, status = os.wait()
        running.remove(child)
        if status and not code:
            code = os.waitstatus_to_exitcode(status)
            for other in running:
                os.kill(other, signal.SIGTERM)
    return code


def group(rank, count, store):
    """The variables by which torchrun's processes find each other; none for one process."""
    if store is None:
        return {}
    return {
        **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)},
        **{"MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port)},
        **{"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"},
    }


def read(path):
    return path.read_text(errors="replace") if path.exists() else ""


def start(job, scratch, rank, variables):
    """Fork a child that runs the job; its process id."""
    if child := os.fork():
        return child
    code = 1
    signal.alarm(LONGEST)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(scratch / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        os.chdir(job["folder"])
        os.environ.clear()
        os.environ.update({**job["environment"], **variables})
        tempfile.tempdir = None  # which this process has looked up already
        sys.argv = ["drkit", *job["arguments"]]
        own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[1:1] = [path for path in own if path and path not in sys.path]
        sys.modules["drkit.core.registry"].installed.cache_clear()
        if MEASURES not in os.environ:
            measure_nothing()
        check_arguments_in_children()
        if "root" in job:
            faults, at = ctypes.CDLL(None), job.get("at", 0) if job.get("rank", 0) == rank else 0
            faults.faults_arm(job["root"].encode(), ctypes.c_long(at), job.get("error", 0))
        else:
            os.fsync = int  # nobody cuts the power
        code = run_job(job)
        sys.stdout.flush()
        sys.stderr.flush()
        if "root" in job:
            (scratch / f"operations.{rank}").write_text(str(faults.faults_count()))
        with suppress(OSError):  # a job may have limited itself
            (scratch / f"modules.{rank}").write_text("\n".join(sys.modules))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def run_job(job):
    """Run drkit, or the module or script of the job, in this process; its exit code."""
    try:
        if "module" in job:
            runpy.run_module(job["module"], run_name="__main__", alter_sys=True)
        elif "script" in job:
            runpy.run_path(job["script"], run_name="__main__")
        else:
            return sys.modules["drkit_cli.main"]._status()
    except SystemExit as end:
        return end.code
    return 0


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
