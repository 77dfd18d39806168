"""The functions that make the stages of a run: those of a file of `drkit/runs/stages` are in the file of its name."""
