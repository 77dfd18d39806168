"""Stages of plugins: the parts that the table `[stages]` of a recipe names, each of which makes a folder of the run."""

from __future__ import annotations

from attrs import evolve, frozen

from drkit.core.spec import OFFERED_TO_STAGES, Choice, Kind
from drkit.errors import DrkitError
from drkit.runs.stage import PlanBuilder, StageOutput, StageSpec, files_state, from_recipe
from drkit.runs.stages.texts import PASSAGES, split_of


@frozen
class PartSettings:
    """The part that makes the stage, with its settings."""

    part: Choice
    seed: int = from_recipe("seed")


# Its name, version, records, inputs and folder are those of the part.
PART = StageSpec(
    name="part", version=1, settings=PartSettings, run="drkit.runs.making.parts:run_part", inputs=OFFERED_TO_STAGES
)


def plan_part(builder: PlanBuilder, name: str) -> None:
    """Add the stage `name` of the table `[stages]`, and the stages that it reads."""
    chosen = (builder.recipe.stages or {})[name]
    spec = builder.registry.get(Kind.STAGE, chosen.use)
    declared = evolve(
        PART,
        name=spec.name,
        version=spec.version,
        records=spec.records,
        resumable=spec.resumable,
        extras=spec.extras,
        folders=(name,),
    )
    builder.add(
        name,
        declared,
        f"{spec.summary[0].lower()}{spec.summary[1:]} ({spec.name})",
        {one: _offered(builder, name, one) for one in spec.receives},
        sources={"part": files_state(spec, chosen.config) if spec.files else ""},
        extra={"part": chosen},
    )


def _offered(builder: PlanBuilder, name: str, receives: str) -> StageOutput:
    """Return what the run offers a stage under a name. Raises DrkitError if it has no labelled queries to offer."""
    if receives == "passages":
        return PASSAGES
    if builder.labelled not in builder.splits:
        raise DrkitError(
            f"the stage {name!r} receives {receives!r}, but the collection has no such queries (splits: "
            f"{', '.join(builder.splits) or 'none'}) @ stages.{name}"
        )
    return split_of(builder.labelled)


def plan_unread_parts(builder: PlanBuilder) -> None:
    """Add the stages of the table `[stages]` that no other stage reads."""
    for name in builder.recipe.stages or {}:
        if name not in builder.stages:
            plan_part(builder, name)
