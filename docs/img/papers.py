"""Draw each paper's pre-training as `paper-NAME.svg`, from its composed recipe.

python docs/img/papers.py [--png FOLDER]
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
from overview import COLORS, draw_arrow, draw_box, write_svg

from drkit.core.registry import installed
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.schema import ITSELF, Pretrain, Recipe

FOLDER = Path(__file__).resolve().parent
RECIPES = ("retromae", "simlm", "cdmae", "cpdae", "condenser", "cotmae", "cotmae-qac", "seed")
CENTRES = {"text": 8, "masker": 29, "encoder": 50, "decoder": 71, "losses": 92}
# What a decoder reads besides the vector, and the box that it comes from.
BESIDE = {
    "mlm": ("the decoder's own view", "masker"),
    "enhanced": ("a view of its own for each token", "masker"),
    "condenser": ("token states of a middle layer", "encoder"),
    "autoregressive": ("the few tokens before each one", "text"),
    "bow": ("the decoder reads the vector alone", ""),
}
BROKEN = {"autoregressive": "auto-\nregressive"}
ROW, HALF = 19, 14.5 / 2


def share(value: float) -> str:
    """A ratio as a percentage."""
    return f"{100 * value:g} %"


def labels(recipe: Recipe, settings: Pretrain) -> dict[str, tuple[str, str]]:
    """The name of each box, and what stands below it."""
    task = settings.decoders["main"]
    of_decoder = task.masker if task.masker and BESIDE[task.decoder.use][1] == "masker" else None
    maskers = {"encoder": settings.encoder.masker, **({"decoder": of_decoder} if of_decoder else {})}
    hidden = [f"{share(masker.config.ratio)} from the {side}" for side, masker in maskers.items()]
    other = next((one.use for one in (task.context, settings.encoder.context) if one != ITSELF), "")
    other = {"mixed": "query"}.get(other, other)  # all of them, in the recipe that is drawn
    what = "rebuild" if task.context != ITSELF else "compare"
    layers = getattr(task.decoder.config, "layers", 0)
    sides = {"encoder": "encoder", "main": "decoder"}
    losses = [f"{loss.weight:g} x {loss.use}\non the {sides[side]}" for side, loss in settings.losses().values()]
    return {
        "text": ("text", f"and a {other}\nto {what}" if other else ""),
        "masker": ((of_decoder or settings.encoder.masker).use, "\n".join(["hides", *hidden])),
        "encoder": ("encoder", f"{recipe.encoder.pooling.use} pooling"),
        "decoder": (task.decoder.use, f"{layers} layer{'s' * (layers != 1)}" if layers else ""),
        "losses": ("losses", "\n".join(losses)),
    }


def draw(recipe: Recipe, settings: Pretrain) -> Any:
    """Return the figure of one recipe."""
    from matplotlib.figure import Figure

    colors = COLORS
    height = 12 + 2.3 * max(5, 2 * len(settings.losses()))
    figure = Figure(figsize=(10, height / 10))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 100), ylim=(ROW + 10.5 - height, ROW + 10.5))
    axes.set_axis_off()
    for slot, (name, below) in labels(recipe, settings).items():
        draw_box(
            axes, colors, BROKEN.get(name, name), CENTRES[slot], ROW, slot in ("masker", "decoder", "losses"), below
        )
    for left, right in pairwise(CENTRES.values()):
        draw_arrow(axes, colors, (left + HALF, ROW), (right - HALF, ROW))
    axes.plot([60, 60], [ROW - 1.7, ROW + 1.7], color=colors["edge"], lw=5, solid_capstyle="round")
    for x, label in ((39.5, "view"), (60.2, "one vector")):
        axes.text(x, ROW + 3.4, label, ha="center", va="bottom", color=colors["ink"], fontsize=9)
    label, source = BESIDE[settings.decoders["main"].decoder.use]
    if source:
        start = CENTRES[source]
        axes.plot([start, start, 71], [ROW + 3, ROW + 6.5, ROW + 6.5], color=colors["quiet"], lw=1.5)
        draw_arrow(axes, colors, (71, ROW + 6.5), (71, ROW + 3))
    axes.text(
        60 if source == "encoder" else 50, ROW + 7, label, ha="center", va="bottom", color=colors["ink"], fontsize=9
    )
    return figure


def main() -> None:
    """Write the pictures next to this file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--png", type=Path, help="also write PNG files to this folder")
    png = parser.parse_args().png
    for name in RECIPES:
        recipe = compose(ComposeRequest(paper=name, scale="paper"), installed())
        assert recipe.pretrain is not None
        figure = draw(attrs.evolve(recipe, name=name), recipe.pretrain)
        write_svg(figure, FOLDER / f"paper-{name}.svg")
        if png:
            png.mkdir(parents=True, exist_ok=True)
            figure.savefig(png / f"paper-{name}.png", facecolor="#ffffff", dpi=80)


if __name__ == "__main__":
    main()
