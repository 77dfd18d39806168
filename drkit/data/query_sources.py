"""Where training queries are from: parts of the passages themselves, a file, or a model that writes them.

Any other part of the kind `queries` makes them from passages (`drkit.core.protocols.QuerySource`). No torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import frozen

from drkit.core.settings import setting
from drkit.core.spec import Choice, ComponentSpec, Kind, NoSettings, brief, is_stage_output

EXTRACTIVE, CROPS, SENTENCES, TITLES_ALONE, QUERY_FILE, QUERY_MODEL = (
    "extractive",
    "crops",
    "sentences",
    "titles",
    "file",
    "model",
)
QUERY_SOURCES = (
    "extractive, crops, sentences, titles, file:PATH, model:PATH_OR_ID of a seq2seq model, or a part of a plugin"
)


@frozen
class QueryFileConfig:
    """The file that has the queries; a recipe writes it as `file:PATH`."""

    path: str = setting("", None, "file of passage ids and queries (jsonl, tsv, csv, parquet ..)")

    @property
    def brief(self) -> str:
        """What a recipe writes for the part."""
        return self.path if is_stage_output(self.path) else f"{QUERY_FILE}:{self.path}"


@frozen
class QueryModelConfig:
    """The model that writes the queries; a recipe writes it as `model:PATH_OR_ID`."""

    path: str = setting("", None, "path or hub id of a sequence-to-sequence model")

    @property
    def brief(self) -> str:
        """What a recipe writes for the part."""
        return f"{QUERY_MODEL}:{self.path}"


def _spec(name: str, target: str, config: type, summary: str, **more: Any) -> ComponentSpec:
    return ComponentSpec(
        kind=Kind.QUERIES, name=name, target=f"drkit.data.{target}", config=config, summary=summary, **more
    )


_A_PATH = {"shorthand": "path", "files": ("path",)}
QUERY_PARTS = (
    _spec(EXTRACTIVE, "queries:ImportantSpans", NoSettings, "The spans with the most important words (PMI)"),
    _spec(CROPS, "queries:Crops", NoSettings, "Runs of 4 to 16 words, drawn at random"),
    _spec(SENTENCES, "queries:Sentences", NoSettings, "Sentences, drawn at random", extras=("nltk",)),
    _spec(TITLES_ALONE, "queries:titles", NoSettings, "The title of each passage"),
    _spec(QUERY_FILE, "queries:given_queries", QueryFileConfig, "Queries in a file, by passage id", **_A_PATH),
    _spec(QUERY_MODEL, "generation:QueryModel", QueryModelConfig, "Queries that a seq2seq model writes", **_A_PATH),
)


def is_from_plugin(source: Choice) -> bool:
    """Return whether a source of queries is a part of a plugin."""
    return source.use not in {spec.name for spec in QUERY_PARTS}


def brief_sources(sources: Iterable[Choice]) -> tuple[Choice | str, ...]:
    """Return what a recipe writes for sources of queries: the text of each, or the choice if it needs a table."""
    return tuple(brief(source) for source in sources)
