"""Curves and documents: how a run shows what it found."""
