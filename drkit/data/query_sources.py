"""Where training queries are from: parts of the passages themselves, a file, or a model that writes them.

Any other part of the kind `queries` makes them from passages (`drkit.core.protocols.QuerySource`). No torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import frozen

from drkit.core.files import local_path, read_json
from drkit.core.hub import check_model_path
from drkit.core.settings import setting
from drkit.core.spec import Choice, ComponentSpec, Kind, NoSettings, brief, is_stage_output
from drkit.errors import DrkitError

EXTRACTIVE, CROPS, SENTENCES, TITLES_ALONE, QUERY_FILE, QUERY_MODEL = (
    "extractive",
    "crops",
    "sentences",
    "titles",
    "file",
    "model",
)
QUERY_SOURCES = (
    "extractive, crops, sentences, titles, file:PATH, model:PATH_OR_ID of a seq2seq or causal model, or a part of a "
    "plugin"
)
# Where a prompt has the passage, and the prompt of a causal model that is given none.
PASSAGE_SLOT = "{passage}"
QUERY_PROMPT = "Passage: {passage}\n\nWrite a short search query that this passage answers. Reply with the query only."
# Ends of the names of models that write text.
_WRITERS = ("ForConditionalGeneration", "ForCausalLM", "LMHeadModel")


@frozen
class QueryFileConfig:
    """The file that has the queries; a recipe writes it as `file:PATH`."""

    path: str = setting("", None, "file of passage ids and queries (jsonl, tsv, csv, parquet ..)")

    @property
    def brief(self) -> str:
        """What a recipe writes for the part."""
        return self.path if is_stage_output(self.path) else f"{QUERY_FILE}:{self.path}"


def query_prompt(_instance: Any, attribute: Any, value: str) -> None:
    """Validate a prompt: empty, or with `{passage}` once."""
    if value and value.count(PASSAGE_SLOT) != 1:
        raise ValueError(
            f"'{attribute.name}' must contain {PASSAGE_SLOT} once, where the passage stands; got {value!r:.80}"
        )


def check_query_model(path_or_id: str) -> None:
    """Raise DrkitError for a local folder whose model does not write text; a hub id is not looked up."""
    check_model_path(path_or_id)
    path = local_path(path_or_id) / "config.json"
    config = read_json(path, "give the folder of a model") if path.is_file() else {}
    named = config.get("architectures") if isinstance(config, dict) else None
    names = [str(name) for name in named] if isinstance(named, list) else []
    if names and not any(name.endswith(_WRITERS) for name in names):
        raise DrkitError(
            f"{path_or_id!r} is a {names[0]}, which writes no text. Expected a sequence-to-sequence model, such as "
            f"doc2query/all-with-prefix-t5-base-v1, or a causal one, such as HuggingFaceTB/SmolLM2-135M-Instruct"
        )


@frozen
class QueryModelConfig:
    """The model that writes the queries; a recipe writes it as `model:PATH_OR_ID`."""

    path: str = setting("", None, "path or hub id of a sequence-to-sequence model, or of a causal one")
    prompt: str = setting(
        "",
        query_prompt,
        "what the model is asked, with {passage} in it; none: the passage alone, or drkit's own prompt of a causal "
        "model",
    )

    @property
    def brief(self) -> str | None:
        """What a recipe writes for the part; None if it has a prompt, which needs a table."""
        return None if self.prompt else f"{QUERY_MODEL}:{self.path}"


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
    _spec(
        QUERY_MODEL,
        "generation:QueryModel",
        QueryModelConfig,
        "Queries that a seq2seq or causal model writes",
        **_A_PATH,
    ),
)


def is_from_plugin(source: Choice) -> bool:
    """Return whether a source of queries is a part of a plugin."""
    return source.use not in {spec.name for spec in QUERY_PARTS}


def brief_sources(sources: Iterable[Choice]) -> tuple[Choice | str, ...]:
    """Return what a recipe writes for sources of queries: the text of each, or the choice if it needs a table."""
    return tuple(brief(source) for source in sources)
