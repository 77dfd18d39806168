"""Start a script as torchrun does: two processes (or as many as asked) here, a core each, without the network."""

import os
import subprocess
import sys
from pathlib import Path


def torchrun(*arguments, processes=2, timeout=300):
    start = ["-m", "torch.distributed.run", f"--nproc_per_node={processes}", "--rdzv-backend=c10d"]
    start += ["--rdzv-endpoint=localhost:0"]
    done = subprocess.run(
        [sys.executable, *(start if processes > 1 else []), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=Path(__file__).resolve().parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done
