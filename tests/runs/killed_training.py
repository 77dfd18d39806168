"""Run drkit until a training has saved the checkpoint of a step: STAGE STEP, then drkit's arguments."""

import os
import sys
from pathlib import Path

from drkit.train.callbacks import CompleteCheckpoints
from drkit_cli.main import main


def kill_after(stage, step):
    """End this process, without any cleaning up, after a checkpoint of a stage."""
    complete = CompleteCheckpoints.on_save

    def on_save(self, args, state, control, **more):
        complete(self, args, state, control, **more)
        if state.global_step == step and Path(args.output_dir).resolve().parent.name == stage:
            os._exit(9)

    CompleteCheckpoints.on_save = on_save


if __name__ == "__main__":
    kill_after(sys.argv[1], int(sys.argv[2]))
    sys.argv = ["drkit", *sys.argv[3:]]
    main()
