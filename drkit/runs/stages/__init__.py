"""The stages of a run, a module each: `run(StageRun) -> figures for the manifest`."""
