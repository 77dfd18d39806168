"""Run commands in children of one warm process: `python -m tests.faults.server`, a job and its result per line of JSON.

A job: arguments of drkit, environment variables, folder to work in, root (where operations are counted), at (the
operation that fails; 0: none) and error (its errno; 0: the process is killed). Its result: code (negative: the signal),
operations, output.
"""

import ctypes
import importlib
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

WARM = """torch accelerate transformers.trainer transformers.models.bert.modeling_bert safetensors.torch tokenizers
pyarrow.ipc faiss bm25s ir_measures scipy.stats matplotlib.pyplot datasets drkit_cli.main drkit.train.trainer
drkit.train.biencoder drkit.train.pretrain drkit.train.refresh drkit.search drkit.evaluate drkit.runs.plan"""


def main():
    import_modules(WARM.split())
    jobs, results = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    for line in jobs:
        with tempfile.TemporaryDirectory() as scratch:
            status = os.waitpid(start(json.loads(line), Path(scratch)), 0)[1]
            import_modules(read(Path(scratch, "modules")).split())
            result = {
                "code": os.waitstatus_to_exitcode(status),
                "operations": int(read(Path(scratch, "operations")) or 0),
                "output": read(Path(scratch, "output")),
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
        output = os.open(scratch / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(job["folder"])
        os.environ.update(job["environment"])
        sys.argv = ["drkit", *job["arguments"]]
        faults = ctypes.CDLL(None)
        faults.faults_arm(job["root"].encode(), ctypes.c_long(job["at"]), job["error"])
        code = sys.modules["drkit_cli.main"]._status()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    (scratch / "operations").write_text(str(faults.faults_count()))
    (scratch / "modules").write_text("\n".join(sys.modules))
    os._exit(code)


def import_modules(names):
    """Import what a child would have to import, or had to: the next one need not."""
    for name in names:
        if name not in sys.modules and name != "__main__":
            try:
                importlib.import_module(name)
            except Exception:
                continue


if __name__ == "__main__":
    main()
