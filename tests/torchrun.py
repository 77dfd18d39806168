"""Several processes here, a core each, without the network: forked from a warm one, or started by torchrun itself."""

import os
import subprocess
import sys

from tests.warm import ROOT, warm_process


def run_processes(module, *arguments, processes=2):
    """Run a module in processes that find each other as torchrun's do, without their imports; what they print."""
    result = warm_process().drkit(*arguments, folder=ROOT, module=module, processes=processes)
    assert result["code"] == 0, result["err"][-3000:]
    return result


def torchrun(module, *arguments):
    """Run a module in two processes of torchrun's."""
    start = ["torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    done = subprocess.run(
        [sys.executable, "-m", *start, "-m", module, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
