"""Stage: n-gram counts of the texts that pre-training reads, and from them every token's importance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drkit.data.contexts import open_texts
from drkit.data.importance import count, importance
from drkit.runs.stage import StageRun


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes the counts and the importance of every token of the spans where there are any, else of the passages."""
    store = open_texts(stage.inputs)
    settings = stage.stage.settings
    counts = count(
        store, stage.folder / "counts", window=settings.get("window", 4), min_count=settings.get("min_count", 1)
    )
    importance(store, counts, stage.folder / "importance", pmi=settings.get("pmi", "fragment"))
    return {"ngrams": counts.describe()}
