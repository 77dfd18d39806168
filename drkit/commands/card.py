"""The model card of a run's encoder: metadata for the Hugging Face hub, how to load it, results, training, limits.

Every value comes from the run: what the run does not record is not on the card.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from drkit.commands.records import RunRecord, collection_counts, describe_recipe, hide_local_paths, open_run
from drkit.core.escaping import markdown_code, markdown_templates
from drkit.core.files import list_written, write_text
from drkit.core.quantities import counted
from drkit.core.registry import Installed
from drkit.core.spec import Kind
from drkit.encoders.card import EncoderCard
from drkit.errors import DrkitError
from drkit.evaluate.names import INITIAL, STARTS, system_name
from drkit.recipe.toml import recipe_toml

CARD = "README.md"
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
    pretrained, collection = run.recipe.encoder.pretrained, _collection_name(run, parts)
    is_hub_id = pretrained and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", pretrained) and not Path(pretrained).exists()
    shown = hide_local_paths(run, parts.registry)
    metadata = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "feature-extraction", "dense-retrieval", "drkit", run.recipe.name],
        base_model=pretrained if is_hub_id else None,
        model_name=run.name,
        eval_results=list(_eval_results(run, collection)) or None,
    )
    card = markdown_templates("drkit.commands").get_template("model_card.md.jinja")
    text = card.render(
        run=shown,
        results=run.results,
        scores=run.scores,
        declared=EncoderCard.read(encoder).declared(),
        stage=_exported_stage(run),
        exported=_exported_row(run),
        collection=collection,
        recipe=describe_recipe(shown, parts.registry),
        counts=collection_counts(run),
        recipe_toml=markdown_code(recipe_toml(shown.recipe), "toml"),
        system_name=system_name,
    )
    return f"---\n{metadata.to_yaml()}\n---\n\n{text.rstrip()}\n"


def _collection_name(run: RunRecord, parts: Installed) -> str:
    """Return the name of the folder or file of the collection, or of the kind of collection."""
    choice = run.recipe.collection
    if run.recipe.data_sets:
        return f"{', '.join(run.recipe.data_sets)}: averages of {counted(len(run.recipe.data_sets), 'data set')}"
    paths = [path for path in parts.registry.get(Kind.COLLECTION, choice.use).paths_of(choice.config) if path]
    return Path(paths[0]).stem if paths else choice.use


def _exported_stage(run: RunRecord) -> str:
    """Return the stage whose checkpoint the run exported."""
    return str(run.manifests["encoder"].metrics.get("from", INITIAL))


def _exported_row(run: RunRecord) -> str:
    """Return the row of the table that evaluates the exported encoder; empty if none does.

    A draw has the row of its round, and the encoder that the run started from that of either start.
    """
    stage, rows = _exported_stage(run), run.results.runs if run.results else {}
    alike = STARTS if stage in STARTS else (stage,)
    return next((name for name, draws in rows.items() if name in alike or stage in draws), "")


def _eval_results(run: RunRecord, name: str) -> Iterator[EvalResult]:
    """Yield a result of the exported encoder for each measure: data set, split, revision, metric and value."""
    row = _exported_row(run)
    if run.results is None or not row or len(run.results.runs[row]) > 1:  # the mean of draws is not one encoder's
        return
    scores, collection = run.scores[row], run.manifests["collection"]
    for measure, value in scores.means().items():
        kind, _, cutoff = measure.partition("@")
        yield EvalResult(
            task_type="information-retrieval",
            task_name="Information Retrieval",
            dataset_type=run.recipe.collection.use,
            dataset_name=f"{name} ({counted(run.results.queries, f'{run.results.split} query')})",
            dataset_split=run.results.split,
            dataset_revision=str(collection.metrics["content_sha256"]),
            metric_type="_at_".join(filter(None, (_HUB_MEASURES.get(kind, kind.lower()), cutoff))),
            metric_name=measure,
            metric_value=round(value, 4),
        )
