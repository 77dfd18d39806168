"""The model card of a run's encoder: metadata for the Hugging Face hub, how to load it, results, training, limits.

Every value comes from the run: what the run does not record is not on the card.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from drkit.commands.composition import describe_data, describe_recipe
from drkit.commands.records import RunRecord, open_run, published
from drkit.core.escaping import markdown_code, markdown_templates
from drkit.core.files import list_written, write_text
from drkit.core.registry import Installed
from drkit.core.spec import Kind
from drkit.encoders.folder import read_encoder_settings
from drkit.errors import DrkitError
from drkit.evaluate.names import INITIAL, STARTS, system_name
from drkit.recipe.toml import recipe_toml

CARD = "README.md"
_LOADING = """
from sentence_transformers import SentenceTransformer

encoder = SentenceTransformer("path/to/this/folder")
queries, passages = encoder.encode_query(["a query"]), encoder.encode_document(["a passage"])
scores = encoder.similarity(queries, passages)
"""
# What the hub calls a measure of ir_measures.
_HUB_MEASURES = {"RR": "mrr", "nDCG": "ndcg", "R": "recall", "P": "precision", "AP": "map", "Success": "accuracy"}


def write_model_card(run: Path, encoder: Path, parts: Installed) -> Path:
    """Write the card of a run's encoder into its folder, atomically.

    Raises DrkitError if the folder is not a run that exported an encoder, or if something in it is damaged.
    """
    card = encoder / CARD
    write_text(card, model_card(open_run(run, parts), encoder, parts))
    list_written(encoder)
    return card


def model_card(run: RunRecord, encoder: Path, parts: Installed) -> str:
    """Return the card of a run's exported encoder: YAML metadata, with the hub's model-index, and Markdown.

    Without a finished evaluation, the card has no results. Raises DrkitError as `write_model_card` does.
    """
    if "encoder" not in run.manifests:
        raise DrkitError(f"{run.folder} has not exported an encoder yet; resume it with `drkit run {run.folder}`")
    declared = read_encoder_settings(encoder)
    pretrained = run.recipe.encoder.pretrained
    shown = published(run, parts.registry)
    metadata = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "feature-extraction", "dense-retrieval", "drkit", run.recipe.name],
        base_model=pretrained if pretrained and _is_hub_id(pretrained) else None,
        model_name=run.name,
        eval_results=list(_eval_results(run, _collection_name(run, parts))) or None,
    )
    data = describe_data(run)
    text = (
        markdown_templates("drkit.commands")
        .get_template("model_card.md.jinja")
        .render(
            title=run.name,
            summary=_summary(shown, declared),
            loading=markdown_code(_LOADING, "python"),
            reading=list(_reading(declared)),
            rows=_rows(run),
            measures=run.results.measures if run.results else (),
            evaluated=_evaluated(run, parts),
            recipe=describe_recipe(shown, parts.registry),
            counts=data.counts if data else (),
            versions=run.manifests["encoder"].versions,
            recipe_toml=markdown_code(recipe_toml(shown.recipe), "toml"),
            limits=list(_limits(run, parts)),
        )
    )
    return f"---\n{metadata.to_yaml()}\n---\n\n{text.rstrip()}\n"


def _collection_name(run: RunRecord, parts: Installed) -> str:
    """Return the name of the folder or file of the collection, or of the kind of collection."""
    choice = run.recipe.collection
    paths = [path for path in parts.registry.get(Kind.COLLECTION, choice.use).paths_of(choice.config) if path]
    return Path(paths[0]).stem if paths else choice.use


def _is_hub_id(name: str) -> bool:
    return bool(re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name)) and not Path(name).exists()


def _stage(run: RunRecord) -> str:
    """Return the stage whose checkpoint the run exported."""
    return str(run.manifests["encoder"].metrics.get("from", INITIAL))


def _row(run: RunRecord) -> str:
    """Return the row of the table that evaluates the exported encoder; empty if none does.

    A draw has the row of its round, and the encoder that the run started from that of either start.
    """
    stage, rows = _stage(run), run.results.runs if run.results else {}
    alike = STARTS if stage in STARTS else (stage,)
    return next((name for name, draws in rows.items() if name in alike or stage in draws), "")


def _eval_results(run: RunRecord, name: str) -> Iterator[EvalResult]:
    """Yield a result of the exported encoder for each measure: data set, split, revision, metric and value."""
    row = _row(run)
    if (
        run.results is None or not row or len(run.results.runs[row]) > 1
    ):  # the mean of several draws is not one encoder's
        return
    scores, collection = run.scores[row], run.manifests["collection"]
    for measure, value in scores.means().items():
        kind, _, cutoff = measure.partition("@")
        yield EvalResult(
            task_type="information-retrieval",
            task_name="Information Retrieval",
            dataset_type=run.recipe.collection.use,
            dataset_name=f"{name} ({run.results.queries:,} {run.results.split} queries)",
            dataset_split=run.results.split,
            dataset_revision=str(collection.metrics["content_sha256"]),
            metric_type="_at_".join(filter(None, (_HUB_MEASURES.get(kind, kind.lower()), cutoff))),
            metric_name=measure,
            metric_value=round(value, 4),
        )


def _summary(run: RunRecord, declared: dict[str, Any]) -> str:
    start = run.recipe.encoder.pretrained or "an encoder from scratch"
    return (
        f"A dense retriever: one vector per text, compared by {declared['similarity']}. It was trained from {start} "
        f"by the recipe {run.recipe.name}, and is the stage {_stage(run)} of the run."
    )


def _reading(declared: dict[str, Any]) -> Iterator[str]:
    """Yield how texts are read: lengths, prompts, titles."""
    queries, passages = declared["query_length"], declared["passage_length"]
    yield (
        f"Queries were trained with at most {queries} tokens and passages with {passages}; sentence-transformers has "
        f"one limit for both, {max(queries, passages)}."
    )
    yield "A passage is its title, a space and its text."
    for what in ("query", "passage"):
        if prompt := declared.get(f"{what}_prompt"):
            yield f"Put before every {what}, by encode_{'query' if what == 'query' else 'document'}: {prompt!r}."


def _rows(run: RunRecord) -> list[tuple[str, list[str]]]:
    """Return the run's table: each system's mean measures; the encoder of the card is marked."""
    if run.results is None:
        return []
    named = {name: system_name(name) for name in run.results.runs}
    exported, measures = _row(run), run.results.measures
    this = "this encoder" if len(run.results.runs.get(exported, ())) == 1 else "mean of draws, this encoder is one"
    return [
        (
            f"{named[name]} ({this})" if name == exported else named[name],
            [f"{scores.mean(m):.3f}" for m in measures],
        )
        for name, scores in run.scores.items()
    ]


def _evaluated(run: RunRecord, parts: Installed) -> str:
    if run.results is None:
        return ""
    return f"{run.results.queries:,} {run.results.split} queries of {_collection_name(run, parts)}, one run."


def _limits(run: RunRecord, parts: Installed) -> Iterator[str]:
    """Yield what the run reveals about where the encoder can be used."""
    metrics = run.manifests["collection"].metrics
    yield (
        f"For search in texts like those it was trained on: {metrics['passages']:,} passages of "
        f"{_collection_name(run, parts)}. It was not evaluated on any other collection."
    )
    if run.results is None:
        yield "The run has evaluated nothing."
    if not run.recipe.encoder.pretrained:
        yield "Its vocabulary and weights come from these texts alone: other words mean nothing to it."
    if not metrics["queries"].get("train"):
        yield "It has seen no labelled queries."
