"""The model card says what the run says, for people and for the hub, and is sent nowhere unless asked."""

from __future__ import annotations

import shutil
from pathlib import Path

import attrs
import pytest

from drkit.commands import model_card, open_run, write_model_card
from drkit.core.registry import installed
from drkit.errors import DrkitError
from tests.refusals import says
from tests.warm import drkit

PARTS = installed()


@pytest.fixture
def run(runs):
    """The first of the finished runs."""
    return runs["seed-1"]


def card_of(run):
    return model_card(open_run(run, PARTS), run / "encoder", PARTS)


def test_the_metadata_are_the_hubs_with_the_values_of_the_run(run):
    from huggingface_hub import ModelCard

    record, card = open_run(run, PARTS), ModelCard(card_of(run))
    assert card.data.library_name == "sentence-transformers"
    exported = str(record.manifests["encoder"].metrics["from"])
    found = {result.metric_name: result for result in card.data.eval_results}
    assert set(found) == set(record.results.measures)
    for measure, result in found.items():
        assert result.metric_value == round(record.scores[exported].mean(measure), 4)
        assert result.dataset_split == record.results.split
        assert result.dataset_revision == record.manifests["collection"].metrics["content_sha256"]
    assert found["RR@10"].metric_type == "mrr_at_10"


def test_people_read_how_it_was_trained_and_evaluated(run):
    card = card_of(run)
    record = open_run(run, PARTS)
    assert "SentenceTransformer(" in card
    assert "(this encoder)" in card
    for scores in record.scores.values():
        assert f"{scores.mean('RR@10'):.3f}" in card
    assert "| pretrain.decoders.main.masker | pmi | " in card
    assert f"| retriever-1 | {record.summaries['retriever-1']} |" in card
    assert f"{record.results.queries:,} {record.results.split} queries" in card
    assert says(card, "vocabulary", "texts alone")


@pytest.mark.parametrize(
    ("stage", "rows", "row"),
    [
        ("retriever-1", {"as-it-is": ("as-it-is",), "retriever-1": ("retriever-1",)}, "retriever-1"),
        ("initial", {"as-it-is": ("as-it-is",), "retriever-1": ("retriever-1",)}, "as-it-is"),
        ("r-draw-2", {"initial": ("initial",), "r": ("r-draw-1", "r-draw-2")}, "r"),
        ("initial", {"bm25": ("bm25",), "retriever-1": ("retriever-1",)}, ""),
    ],
)
def test_the_results_are_those_of_the_exported_encoder_or_none(run, stage, rows, row):
    record = open_run(run, PARTS)
    manifest = attrs.evolve(record.manifests["encoder"], metrics={"from": stage})
    record = attrs.evolve(record, manifests={**record.manifests, "encoder": manifest})
    vars(record)["results"] = attrs.evolve(record.results, runs=rows) if record.results else None
    vars(record)["scores"] = dict.fromkeys(rows, next(iter(open_run(run, PARTS).scores.values())))
    card = model_card(record, run / "encoder", PARTS)
    assert ("model-index" in card) == (row not in ("", "r"))
    assert ("(this encoder)" in card) == (row not in ("", "r"))
    assert ("mean of draws" in card) == (row == "r")


def test_the_authors_folders_are_not_published(run):
    folder = str(Path(open_run(run, PARTS).recipe.collection.config.path).parent)
    assert folder not in card_of(run)


def test_hostile_names_stay_text(hostile_run):
    card = card_of(hostile_run)
    assert "<script>" not in card
    assert "\u202e" not in card
    assert "\x1b" not in card


def test_a_run_without_evaluation_has_no_results(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "evaluation")
    card = card_of(copy)
    assert "model-index" not in card
    assert "## Results" not in card
    shutil.rmtree(copy / "encoder")
    with pytest.raises(DrkitError, match=r"/run .*`drkit run .*/run`"):
        write_model_card(copy, tmp_path, PARTS)


def test_export_writes_the_card_and_the_folder_loads(run, tmp_path):
    from sentence_transformers import SentenceTransformer

    code, _, err = drkit("export", str(run), "-o", str(tmp_path / "encoder"))
    assert code == 0, err
    assert "## Results" in (tmp_path / "encoder" / "README.md").read_text(encoding="utf-8")
    assert len(SentenceTransformer(str(tmp_path / "encoder")).encode("a text")) > 0
