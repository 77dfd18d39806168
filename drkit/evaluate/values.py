"""What was measured, written for other programs: every query's values, and tables as JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from drkit.core.files import write_text
from drkit.core.write import json_text
from drkit.errors import DrkitError
from drkit.evaluate.measures import Scores


def write_per_query(path: Path, systems: Sequence[tuple[str, Scores]]) -> None:
    """A line for each system and query: `system`, `query_id` and a value a measure; .jsonl, or .tsv with a header.

    Raises DrkitError for another kind of file.
    """
    check_values_file(path)
    rows = list(_rows(systems))
    if path.suffix == ".jsonl":
        write_text(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
        return
    text = io.StringIO()
    names = list(rows[0]) if rows else []
    writer = csv.DictWriter(text, names, delimiter="\t", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def check_values_file(path: Path) -> None:
    """Raises DrkitError for a file of a kind that values are not written to."""
    if path.suffix not in (".jsonl", ".tsv"):
        raise DrkitError(f"{path}: values are written as .jsonl or .tsv; name the file so")


def write_json(path: Path, value: Any) -> None:
    """Plain data as JSON, atomically."""
    write_text(path, json_text(value))


def _rows(systems: Sequence[tuple[str, Scores]]) -> Iterator[dict[str, Any]]:
    for system, scores in systems:
        for query_id in next(iter(scores.per_query.values()), {}):
            values = {measure: scores.per_query[measure][query_id] for measure in scores.measures}
            yield {"system": system, "query_id": query_id, **values}
