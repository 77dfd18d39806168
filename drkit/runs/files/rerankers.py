"""Any cross-encoder by where it is: its folder, a run that trained one, or a hub id."""

from __future__ import annotations

from pathlib import Path

from drkit.core.recipe import RERANKER
from drkit.errors import DrkitError
from drkit.runs.execute import RECIPE
from drkit.runs.manifest import read_manifest
from drkit.search import Reranker


def open_reranker(
    path_or_id: str | Path, device: str = "auto", *, token_budget: int = 16_384, precision: str = "float32"
) -> Reranker:
    """The cross-encoder at a path, or under a hub id; of a run's folder, the one that it trained.

    token_budget: tokens read at once. Raises DrkitError where the run has trained none, or as `Reranker.load` does.
    """
    run = Path(path_or_id)
    if not (run / RECIPE).is_file():
        return Reranker.load(path_or_id, device, token_budget=token_budget, precision=precision)
    if read_manifest(run / RERANKER) is None:
        raise DrkitError(
            f"{run} has no finished re-ranker: a pipeline such as three-stage trains one (`drkit run {run}` goes on "
            f"with a run that was cut off); or give the folder or hub id of a cross-encoder"
        )
    return Reranker.load(run / RERANKER, device, token_budget=token_budget, precision=precision)
