"""The functions that make the stages of a run, in files named as those that declare them in `drkit/runs/stages`."""
