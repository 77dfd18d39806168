"""Where the values of a column are from: the run's re-ranker, a cross-encoder, the training rows, or a file.

Any other part of the kind `column` computes its values from the texts (`drkit.core.protocols.ColumnSource`). No torch.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from drkit.core.settings import setting
from drkit.core.spec import Choice, ComponentSpec, Kind, NoSettings, brief, is_stage_output

RERANKER, GIVEN, MODEL, FILE = "reranker", "given", "model", "file"
COLUMN_SOURCES = "reranker, a cross-encoder's path or hub id, given: those in the training rows, or file:PATH"


@frozen
class ModelConfig:
    """The cross-encoder that scores pairs; a recipe writes it as its path or id alone."""

    path: str = setting("", None, "path or hub id of a cross-encoder")

    @property
    def brief(self) -> str:
        """What a recipe writes for the part."""
        return self.path


@frozen
class FileConfig:
    """The file that has the values; a recipe writes it as `file:PATH`."""

    path: str = setting("", None, "file with query_id, doc_id or both, and the value (tsv, csv, jsonl, parquet ..)")

    @property
    def brief(self) -> str:
        """What a recipe writes for the part."""
        return self.path if is_stage_output(self.path) else f"{FILE}:{self.path}"


def _spec(name: str, target: str, config: type, summary: str, **more: Any) -> ComponentSpec:
    return ComponentSpec(
        kind=Kind.COLUMN, name=name, target=f"drkit.data.values:{target}", config=config, summary=summary, **more
    )


_A_PATH = {"shorthand": "path", "files": ("path",)}
COLUMNS = (
    _spec(RERANKER, "ScoredByModel", NoSettings, "Scores by the run's own re-ranker", requires=(RERANKER,)),
    _spec(MODEL, "ScoredByModel", ModelConfig, "Scores by a cross-encoder, written as its path or hub id", **_A_PATH),
    _spec(GIVEN, "GivenScores", NoSettings, "The scores that come with the passages in the training rows"),
    _spec(FILE, "FileValues", FileConfig, "Values in a file, one per query, passage or pair", **_A_PATH),
)


def is_computed(source: Choice) -> bool:
    """Return whether a part computes its values from the texts, as those of plugins do."""
    return source.use not in {spec.name for spec in COLUMNS}


def is_scored(source: Choice) -> bool:
    """Return whether a cross-encoder scores the pairs: the run's own, or another."""
    return source.use in (RERANKER, MODEL)


def source_name(source: Choice) -> str:
    """Return the source of a column as a recipe names it, without settings.

    >>> source_name(Choice(FILE, FileConfig("ages.tsv"))), source_name(Choice(GIVEN, NoSettings()))
    ('file:ages.tsv', 'given')
    """
    short = brief(source)
    return short if isinstance(short, str) else short.use


def default_option(name: str, source: Choice) -> str:
    """Return the option that gives the column `name` a default.

    >>> print(default_option("age", Choice(FILE, FileConfig("ages.tsv"))))
    --set 'finetune.columns.age={use="file:ages.tsv", default=0.0}'
    """
    if is_computed(source):
        return f"--set finetune.columns.{name}.default=0.0"
    return f"--set 'finetune.columns.{name}={{use=\"{source_name(source)}\", default=0.0}}'"
