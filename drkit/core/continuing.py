"""Going on from an earlier run or encoder: what `--encoder` takes over from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.core.declared import KEPT, RECIPE, declared
from drkit.core.read import read_table
from drkit.errors import DrkitError

CHECKPOINT = "pretrained"


@frozen
class Origin:
    """Where training starts: settings of `[encoder]`, and whether the encoder is of drkit's own small scale."""

    encoder: Mapping[str, Any]
    small: bool = False


def origin(path_or_id: str) -> Origin:
    """What `--encoder` names: a folder or hub id as it is, or an earlier run's pre-training checkpoint.

    From a folder come the pooling, lengths and prompts that it declares (`drkit.core.declared`); from a run the same,
    and its checkpoint (encoder, LM head, decoder, generator): where its encoder was made from scratch, the schedule
    stays that of the small scale.

    Raises DrkitError where the run has no finished pre-training.
    """
    run = Path(path_or_id).expanduser()
    if not (run / RECIPE).is_file():
        told = declared(run)
        return Origin({"pretrained": path_or_id, **(told.settings if told else {})})
    if not (run / CHECKPOINT / "config.json").is_file():
        raise DrkitError(
            f"the run {run} has no finished pre-training to go on from: finish it with `drkit run {run / RECIPE}`, or "
            f"give its encoder folder: --encoder {run / 'encoder'}"
        )
    table = read_table(run / RECIPE)
    encoder = table.get("encoder", {})
    kept = {key: encoder[key] for key in KEPT if key in encoder}
    return Origin({"pretrained": str(run / CHECKPOINT), **kept}, small=_made_from_scratch(encoder))


def _made_from_scratch(encoder: Mapping[str, Any]) -> bool:
    """Whether the run's encoder, or the one it went on from itself, was made by drkit."""
    earlier = encoder.get("pretrained")
    if earlier is None:
        return True
    before = Path(earlier).expanduser().parent / RECIPE
    return before.is_file() and _made_from_scratch(read_table(before).get("encoder", {}))
