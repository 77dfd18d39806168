"""The page of all parts and settings, read from the registry: `python -m tests.core.parts_page` writes it."""

from __future__ import annotations

from pathlib import Path

from drkit.core.escaping import escape_markdown
from drkit.core.registry import installed
from drkit.core.settings import MOST, describe_settings
from drkit.core.spec import ComponentSpec, Kind
from drkit.recipe.encoder_settings import EncoderSettings
from drkit.recipe.evaluation import Evaluation
from drkit.recipe.pseudo_queries import PseudoQueries
from drkit.recipe.schema import DecoderTask, EncoderTask, Finetune, Pretrain, RerankerTraining, Round
from drkit.recipe.training import Probe, Validation

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "parts.md"
KINDS = {
    Kind.MASKER: "Maskers",
    Kind.CONTEXT: "Contexts",
    Kind.DECODER: "Decoders",
    Kind.LOSS: "Losses",
    Kind.MINER: "Sources and filters of negatives",
    Kind.BATCHES: "Batches",
    Kind.SIGNAL: "Signals",
    Kind.POOLING: "Poolings",
    Kind.COLUMN: "Sources of columns",
    Kind.QUERIES: "Sources of queries",
    Kind.COLLECTION: "Collections",
}
TABLES = {
    "encoder": EncoderSettings,
    "pretrain": Pretrain,
    "pretrain.encoder": EncoderTask,
    "pretrain.decoders.NAME": DecoderTask,
    "pretrain.probe": Probe,
    "pseudo_queries": PseudoQueries,
    "finetune": Finetune,
    "finetune.rounds": Round,
    "finetune.validation": Validation,
    "reranker": RerankerTraining,
    "evaluation": Evaluation,
}
HEAD = """# Parts and settings

Every part that drkit has, with its settings, as `drkit show KIND NAME` prints them; then the tables of a recipe. A
setting is chosen on the command line (`--set pretrain.decoders.main.masker.sigma=0.5`) or in a recipe. Defaults are
those of the code; recipes and scales choose others (`drkit show recipe NAME`).
"""


def page() -> str:
    """The whole page."""
    registry = installed().registry
    sections = [HEAD]
    for kind, title in KINDS.items():
        sections.append(f"## {title}\n")
        sections += [part(registry.get(kind, name)) for name in sorted(registry.names(kind))]
    sections.append("## Tables of a recipe\n")
    sections += [f"### \\[{name}\\]\n\n{settings(config)}" for name, config in TABLES.items()]
    return "\n".join(sections)


def part(spec: ComponentSpec) -> str:
    """A part: its summary, paper, what it receives and provides, and its settings."""
    facts = [escape_markdown(spec.summary) + "."]
    if spec.cite is not None:
        paper = escape_markdown(f"{spec.cite.title}, {spec.cite.year}")
        facts.append(f"Paper: [{paper}]({spec.cite.url})." if spec.cite.url else f"Paper: {paper}.")
    for what in ("receives", "signals", "requires", "provides"):
        if names := getattr(spec, what):
            facts.append(f"{what.capitalize()}: {', '.join(f'`{name}`' for name in names)}.")
    return f"### {spec.name}\n\n{' '.join(facts)}\n\n{settings(spec.config)}"


def settings(config: type) -> str:
    """A table of settings; a line if there are none."""
    rows = [
        f"| `{name}` | {escape_markdown(default)} | {escape_markdown(_bounds(allowed))} | {escape_markdown(meaning)} |"
        for name, default, allowed, meaning in describe_settings(config)
    ]
    if not rows:
        return "No settings.\n"
    return "\n".join(["| setting | default | allowed | meaning |", "|---|---|---|---|", *rows, ""])


def _bounds(allowed: str) -> str:
    """Leave out the upper bound that means no more than `a number`."""
    return allowed.replace(f", <= {MOST}", "").replace(f"<= {MOST}", "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
