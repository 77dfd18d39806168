"""Reports: curves and documents that show the results of a run."""
