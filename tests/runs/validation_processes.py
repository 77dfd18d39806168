"""One of two processes of a validated training; says how far it came, and whether its weights are the best."""

import json
import sys
from pathlib import Path

from drkit.core import processes
from drkit.core.files import CHECKPOINTS
from tests.runs import test_validation
from tests.runs.test_validation import go, same


def main(folder, values):
    folder, rank = Path(folder), processes.rank()
    (folder / "0" / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    if rank:
        (folder / str(rank)).mkdir(exist_ok=True)
        (folder / str(rank) / CHECKPOINTS).symlink_to(folder / "0" / CHECKPOINTS)
    with processes.group():
        module, weights, _, steps = go(folder / str(rank), getattr(test_validation, values), patience=2)
    best = same(module.state_dict(), weights[6]) if weights else None
    (folder / f"said-{rank}.json").write_text(json.dumps({"steps": steps, "best": best, "measured": sorted(weights)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
