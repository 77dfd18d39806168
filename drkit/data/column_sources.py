"""Where the values of a column are from: the run's re-ranker, a cross-encoder, the training rows, a file, an encoder.

Any other part of the kind `column` computes its values from the texts (`drkit.core.protocols.ColumnSource`). No torch.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen
from attrs.validators import in_

from drkit.core.settings import setting
from drkit.core.spec import VECTOR_VALUES, Choice, ComponentSpec, Kind, NoSettings, brief, is_stage_output

RERANKER, GIVEN, MODEL, FILE, VECTORS_OF, ENCODED_BY = "reranker", "given", "model", "file", "vectors", "encoder"
COLUMN_SOURCES = "reranker, a cross-encoder's path or hub id, given: those in the training rows, or file:PATH"
# What becomes of a training query or pair without a value.
REFUSE_UNKNOWN, DROP_UNKNOWN = "refuse", "drop"
# What a vector belongs to, and what a row of a file names it by.
SIDES = ("passage", "query")
ROW_KEYS = ("", "id", "text")


def _unknown_setting() -> Any:
    meaning = "training queries or pairs without a value: refuse, or drop (they are left out, and counted)"
    return setting(REFUSE_UNKNOWN, in_((REFUSE_UNKNOWN, DROP_UNKNOWN)), meaning, absent_when=REFUSE_UNKNOWN)


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
    unknown: str = _unknown_setting()

    @property
    def brief(self) -> str | None:
        """What a recipe writes for the part; None if that takes a table."""
        named = self.path if is_stage_output(self.path) else f"{FILE}:{self.path}"
        return named if self.unknown == REFUSE_UNKNOWN else None


@frozen
class VectorsConfig:
    """The file that has the vectors; a recipe may write those of passages as `vectors:PATH`."""

    path: str = setting("", None, "a folder of drkit encode, or a .parquet, .arrow, .feather or .npy file")
    of: str = setting("passage", in_(SIDES), "what the vectors belong to: passage or query")
    by: str = setting("", in_(ROW_KEYS), "what a row names it by: id or text; empty: its id, if the file has ids")
    unknown: str = _unknown_setting()

    @property
    def brief(self) -> str | None:
        """What a recipe writes for the part; None if that takes a table."""
        return f"{VECTORS_OF}:{self.path}" if self == VectorsConfig(self.path) else None

    @property
    def scope(self) -> str:
        """What has a vector: a passage or a query."""
        return self.of


@frozen
class EncodedByConfig:
    """The encoder that computes the vectors; a recipe may write it for passages as `encoder:PATH`."""

    path: str = setting("", None, "path or hub id of an encoder, whose folder declares its prompts and lengths")
    of: str = setting("passage", in_(SIDES), "what it encodes: every passage, or every training query")

    @property
    def brief(self) -> str | None:
        """What a recipe writes for the part; None if that takes a table."""
        return f"{ENCODED_BY}:{self.path}" if self == EncodedByConfig(self.path) else None

    @property
    def scope(self) -> str:
        """What has a vector: a passage or a query."""
        return self.of


def _spec(name: str, target: str, config: type, summary: str, **more: Any) -> ComponentSpec:
    return ComponentSpec(
        kind=Kind.COLUMN, name=name, target=f"drkit.data.values:{target}", config=config, summary=summary, **more
    )


_A_PATH: dict[str, Any] = {"shorthand": "path", "files": ("path",)}
_VECTORS: dict[str, Any] = {**_A_PATH, "provides": (VECTOR_VALUES,)}
COLUMNS = (
    _spec(RERANKER, "ScoredByModel", NoSettings, "Scores by the run's own re-ranker", requires=(RERANKER,)),
    _spec(MODEL, "ScoredByModel", ModelConfig, "Scores by a cross-encoder, written as its path or hub id", **_A_PATH),
    _spec(GIVEN, "GivenScores", NoSettings, "The scores that come with the passages in the training rows"),
    _spec(FILE, "FileValues", FileConfig, "Values in a file, one per query, passage or pair", **_A_PATH),
    _spec(VECTORS_OF, "FileVectors", VectorsConfig, "Vectors in a file, one per passage or query", **_VECTORS),
    _spec(ENCODED_BY, "FileVectors", EncodedByConfig, "Vectors by an encoder, of passages or queries", **_VECTORS),
)


def is_computed(source: Choice) -> bool:
    """Return whether a part computes its values from the texts, as those of plugins do."""
    return source.use not in {spec.name for spec in COLUMNS}


def is_scored(source: Choice) -> bool:
    """Return whether a cross-encoder scores the pairs: the run's own, or another."""
    return source.use in (RERANKER, MODEL)


def drops_unknown(source: Choice) -> bool:
    """Return whether training leaves out queries and pairs that the source has no value for."""
    return getattr(source.config, "unknown", REFUSE_UNKNOWN) == DROP_UNKNOWN


def source_name(source: Choice) -> str:
    """Return the source of a column as a recipe names it, without settings.

    >>> source_name(Choice(FILE, FileConfig("ages.tsv"))), source_name(Choice(GIVEN, NoSettings()))
    ('file:ages.tsv', 'given')
    """
    short = brief(source)
    if isinstance(short, str):
        return short
    path = getattr(source.config, "path", "") if source.use in (FILE, VECTORS_OF, ENCODED_BY) else ""
    return f"{source.use}:{path}" if path else source.use


def default_option(name: str, source: Choice) -> str:
    """Return the option that gives the column `name` a default.

    >>> print(default_option("age", Choice(FILE, FileConfig("ages.tsv"))))
    --set 'finetune.columns.age={use="file:ages.tsv", default=0.0}'
    """
    if is_computed(source):
        return f"--set finetune.columns.{name}.default=0.0"
    return f"--set 'finetune.columns.{name}={{use=\"{source_name(source)}\", default=0.0}}'"
