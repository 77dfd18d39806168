"""What was measured on dev queries while a retriever was trained: `validation.jsonl`, a line a validation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

FILE = "validation.jsonl"
Record = Mapping[str, float]


def best_step(records: Sequence[Record], measure: str) -> int | None:
    """The step of the highest value, the first of equals.

    >>> best_step([{"step": 2, "RR@10": 0.3}, {"step": 4, "RR@10": 0.5}, {"step": 6, "RR@10": 0.5}], "RR@10")
    4
    """
    best = max(records, key=lambda record: (record[measure], -record["step"]), default=None)
    return None if best is None else int(best["step"])


def read_validations(folder: Path) -> list[Record]:
    """The validations of a stage's folder, by their steps; none where there is no file."""
    path = folder / FILE
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
