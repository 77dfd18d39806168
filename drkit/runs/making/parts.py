"""Run a stage of a plugin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from drkit.core.spec import Kind
from drkit.data.stage_context import StageContext
from drkit.errors import DrkitError
from drkit.runs.stage import StageRun
from drkit.runs.stages.parts import PartSettings


def run_part(stage: StageRun[PartSettings]) -> Mapping[str, Any]:
    """Call the function of the part, which writes into the stage's folder; returns its facts for the manifest.

    Raises DrkitError unless it returns None or a mapping that can be written as JSON.
    """
    chosen = stage.resolved(stage.settings.part)
    spec = stage.registry.get(Kind.STAGE, chosen.use)
    context = StageContext(
        name=stage.name,
        settings=chosen.config,
        inputs={name: path for name, path in stage.inputs.items() if name in spec.receives},
        folder=stage.folder,
        registry=stage.registry,
        seed=stage.settings.seed,
        progress=stage.progress,
        engine=stage.engine,
    )
    facts = spec.load()(context)
    if facts is None:
        return {}
    try:
        written: Mapping[str, Any] = json.loads(json.dumps(dict(facts), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise DrkitError(
            f"the stage {stage.name!r} ({spec.name}) must return facts that can be written as JSON, or None, got "
            f"{facts!r:.80}: {error}"
        ) from None
    return written
