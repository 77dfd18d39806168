"""Stage: n-gram counts of the texts that pre-training reads, and from them every token's importance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from drkit.runs.stage import StageRun, StageSpec


@frozen
class StatisticsSettings:
    """How n-grams are counted, and how their mutual information is taken apart."""

    window: int = 4
    pmi: str = "fragment"
    min_count: int = 1


def run(stage: StageRun[StatisticsSettings]) -> Mapping[str, Any]:
    """Write the counts, and the importance of every token of the texts."""
    from drkit.data.importance import count, importance
    from drkit.data.store import TokenStore

    store, settings = TokenStore.open(stage.inputs["texts"]), stage.settings
    counts = count(store, stage.folder / "counts", window=settings.window, min_count=settings.min_count)
    importance(store, counts, stage.folder / "importance", pmi=settings.pmi)
    return {"ngrams": counts.describe()}


STATISTICS = StageSpec(
    name="statistics",
    version=1,
    settings=StatisticsSettings,
    run=run,
    inputs={"texts": "tokens of the texts that pre-training reads"},
)
