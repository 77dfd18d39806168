"""The functions that carry out the stages of a run, those of one file of `drkit/runs/stages` in a file each."""
