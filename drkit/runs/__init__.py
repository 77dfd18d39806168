"""Runs: plans of stages, and the only place that knows trainers, ranks and devices."""
