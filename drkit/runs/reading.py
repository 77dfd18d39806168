"""How a run's encoders read texts: what a checkpoint folder does not declare itself, and how many texts are truncated.

No torch here: plans read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from attrs import asdict, frozen

from drkit.core.files import write_text
from drkit.core.progress import Progress
from drkit.encoders.folder import MODULES, read_encoder_settings
from drkit.runs.stage import from_recipe


@frozen
class TextReading:
    """Pooling, similarity, lengths (tokens, special ones included) and prompts, as the recipe has them."""

    pooling: str = from_recipe("encoder.pooling")
    similarity: str = from_recipe("similarity")
    query_length: int = from_recipe("encoder.query_length")
    passage_length: int = from_recipe("encoder.passage_length")
    query_prompt: str = from_recipe("encoder.query_prompt")
    passage_prompt: str = from_recipe("encoder.passage_prompt")


def declared_reading(encoder: str, reading: TextReading) -> TextReading:
    """Return how an existing encoder reads texts: as its folder declares, or as `reading` if it declares nothing.

    Raises DrkitError if it declares modules, a pooling or a similarity that drkit does not support.
    """
    folder = Path(encoder).expanduser()
    if not (folder / MODULES).is_file():
        return reading
    settings = read_encoder_settings(folder)
    if settings.pop("normalize"):
        settings["similarity"] = "cosine"  # the same ranking: all vectors have length 1
    del settings["transformer"]
    return TextReading(**settings)


# The record of truncated texts in a stage's folder, a list of `Truncation`.
TRUNCATED = "truncated.json"


@frozen
class Truncation:
    """How many texts of one kind exceed their limit; lengths are in tokens, special ones included.

    what: the texts, in the plural. setting: path of the limit in the recipe. longest, p95: the maximum and the 95th
    percentile of the lengths before truncation.

    >>> print(Truncation("test queries", "encoder.query_length", 32, texts=76, truncated=47, longest=171, p95=120))
    47 of 76 test queries were truncated to 32 tokens; --set encoder.query_length=120 reads 95 % of them whole
    """

    what: str
    setting: str
    limit: int
    texts: int
    truncated: int
    longest: int
    p95: int

    def __str__(self) -> str:
        enough, share = (self.p95, "95 %") if self.p95 > self.limit else (self.longest, "all")
        return (
            f"{self.truncated:,} of {self.texts:,} {self.what} were truncated to {self.limit} tokens; "
            f"--set {self.setting}={enough} reads {share} of them whole"
        )


def record_truncations(found: Iterable[Truncation], folder: Path, progress: Progress) -> None:
    """Write the truncations of a stage into its folder, and report those of at least one text."""
    kept = list(dict.fromkeys(found))
    write_text(folder / TRUNCATED, json.dumps([asdict(one) for one in kept]))
    for one in kept:
        if one.truncated:
            progress.note(str(one))


def read_truncations(path: Path) -> list[Truncation]:
    """Read the truncations of at least one text from a file of a stage; empty if the file does not exist."""
    entries = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return [Truncation(**entry) for entry in entries if entry["truncated"]]
