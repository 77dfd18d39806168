"""Every recipe at the scale of its paper, setting by setting, against a table written from the papers.

What the table does not name has to be the default of transformers.TrainingArguments. A row is
(part of the recipe, setting, value, where the paper says so); `rounds` stands for every round of fine-tuning, with the
round's own settings in place. Sources that are not the recipe's own paper are named.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from drkit.builtin import drkit_recipes
from drkit.core.registry import NamedFile, NameTable, installed
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.schema import Recipe
from drkit.recipe.toml import parse_toml, plain, read_recipe
from drkit.train.batches import StepSize
from tests.refusals import says, unknown
from tests.warm import measure_nothing

PARTS = installed()
DOCUMENTED = Path(__file__).parents[2] / "docs" / "recipes"
PAPERS = sorted({*PARTS.recipes} - {*drkit_recipes()})
Row = tuple[str, str, Any, str]

SIMLM: list[Row] = [
    ("encoder", "pooling", "cls", "section 3.2"),
    ("encoder", "query_length", 32, "table 12"),
    ("encoder", "passage_length", 144, "tables 11 and 12"),
    ("pretrain", "max_steps", 80000, "table 11"),
    ("pretrain", "batch", 2048, "table 11"),
    ("pretrain", "learning_rate", 3e-4, "table 11"),
    ("pretrain", "warmup_steps", 4000, "table 11"),
    ("rounds", "num_train_epochs", 3, "table 12"),
    ("rounds", "batch", 64, "table 12"),
    ("rounds", "learning_rate", 2e-5, "table 12"),
    ("rounds", "warmup_steps", 1000, "table 12"),
    ("rounds", "negatives", 15, "table 12"),
    ("rounds", "loss.use", "contrastive", "section 3.2"),
    ("rounds", "loss.similarity", "cosine", "section 3.2"),
    ("rounds", "loss.temperature", 0.02, "table 12"),
    (
        "rounds",
        "loss.directions",
        ["query-passage", "passage-query", "query-query", "passage-passage"],
        "the authors' code",
    ),
    ("retriever-1", "miners.0.depth", 1000, "the official BM25 negatives; CDMAE, section 4.1, citing SimLM"),
    ("retriever-2", "miners.0.depth", 200, "table 12"),
    ("retriever-distilled", "miners.0.depth", 200, "table 12"),
    ("retriever-distilled", "teacher", "reranker", "section 3.2"),
    ("retriever-distilled", "loss.use", "kl-distillation", "equation 5"),
    ("retriever-distilled", "loss.alpha", 0.2, "table 12"),
    ("retriever-distilled", "num_train_epochs", 6, "table 12"),
    ("retriever-distilled", "learning_rate", 3e-5, "table 12"),
    ("retriever-distilled", "negatives", 23, "table 12"),
    ("reranker", "pretrained", "google/electra-base-discriminator", "table 12"),
    ("reranker", "num_train_epochs", 3, "table 12"),
    ("reranker", "batch", 64, "table 12"),
    ("reranker", "learning_rate", 3e-5, "table 12"),
    ("reranker", "warmup_steps", 1000, "table 12"),
    ("reranker", "negatives", 63, "table 12"),
    ("reranker", "max_length", 192, "table 12"),
    ("reranker", "depth", 200, "table 12"),
    ("reranker", "loss.use", "listwise", "equation 4"),
]
GENERATED: list[Row] = [
    ("pretrain", "encoder.masker.ratio", 0.3, "table 11"),
    ("pretrain", "decoders.main.masker.ratio", 0.5, "table 11"),
    ("pretrain", "encoder.masker.variant", "frozen", "section 4.1"),
    ("pretrain", "encoder.masker.model", "google/electra-base-generator", "section 4.1"),
]
TWO_LAYERS: list[Row] = [
    ("pretrain", "decoders.main.decoder.layers", 2, "section 4.1"),
    ("pretrain", "decoders.main.decoder.init", "encoder-tail", "section 4.1"),
]


def both(loss: str, source: str) -> list[Row]:
    """The same loss on both sides, on every one of its targets."""
    values = (("use", loss), ("weight", 1.0), ("targets", 1.0))
    sides = ("encoder", "decoders.main")
    return [("pretrain", f"{side}.losses.{loss}.{key}", value, source) for side in sides for key, value in values]


CDMAE: list[Row] = [
    ("encoder", "pooling", "cls", "section 3.1"),
    ("encoder", "query_length", 32, "SimLM, table 12"),
    ("encoder", "passage_length", 144, "SimLM, table 12"),
    ("pretrain", "max_steps", 80000, "appendix A"),
    ("pretrain", "batch", 2048, "appendix A"),
    ("pretrain", "learning_rate", 3e-4, "appendix A"),
    ("pretrain", "warmup_steps", 0.1, "appendix A"),
    ("pretrain", "weight_decay", 0.01, "appendix A"),
    ("pretrain", "encoder.masker.ratio", 0.3, "section 4.1"),
    ("pretrain", "encoder.masker.unit", "token", "section 3.1"),
    ("pretrain", "decoders.main.masker.ratio", 0.5, "section 4.1"),
    ("pretrain", "decoders.main.masker.unit", "token", "algorithm 1"),
    ("pretrain", "decoders.main.decoder.layers", 2, "section 3.1"),
    ("pretrain", "decoders.main.decoder.projection", True, "table 4"),
    *both("mlm", "equation 9"),
    ("rounds", "num_train_epochs", 3, "appendix A"),
    ("rounds", "batch", 64, "appendix A"),
    ("rounds", "learning_rate", 2e-5, "appendix A"),
    ("rounds", "warmup_steps", 1000, "section 4.1: from SimLM, table 12"),
    ("rounds", "negatives", 31, "appendix A: groups of 32"),
    ("rounds", "loss.use", "contrastive", "equation 10"),
    ("rounds", "loss.similarity", "dot", "section 3.4"),
    ("rounds", "loss.temperature", 1.0, "equation 10"),
    ("rounds", "loss.directions", ["query-passage"], "equation 10"),
    ("retriever-1", "miners.0.depth", 1000, "section 4.1: K1"),
    ("retriever-2", "miners.0.depth", 200, "section 4.1: K2"),
    ("retriever-distilled", "miners.0.depth", 200, "section 4.1: K3"),
    ("retriever-distilled", "teacher", "reranker", "section 3.4"),
    ("retriever-distilled", "loss.use", "kl-distillation", "equation 11"),
    ("retriever-distilled", "loss.alpha", 0.2, "section 4.1"),
    ("retriever-distilled", "batch", 32, "appendix A: batch and group swapped"),
    ("retriever-distilled", "negatives", 63, "appendix A: batch and group swapped"),
    ("retriever-distilled", "num_train_epochs", 6, "SimLM, table 12"),
    ("retriever-distilled", "learning_rate", 3e-5, "SimLM, table 12"),
    ("reranker", "pretrained", "google/electra-base-discriminator", "appendix A"),
    *((part, key, value, "SimLM, table 12") for part, key, value, _ in SIMLM if part == "reranker"),
]

QAC = "Query-as-context, section"
TWO_STAGE: list[Row] = [
    ("encoder", "pooling", "cls", f"{QAC} 2.1"),
    ("encoder", "passage_length", 144, f"{QAC} 4.2"),
    ("rounds", "num_train_epochs", 3, "transformers"),
    ("rounds", "batch", 64, f"{QAC} 4.2"),
    ("rounds", "learning_rate", 2e-5, f"{QAC} 4.2"),
    ("rounds", "weight_decay", 0.01, f"{QAC} 4.2"),
    ("rounds", "negatives", 15, f"{QAC} 4.2"),
    ("rounds", "miners.0.depth", 200, f"{QAC} 4.2"),
    ("rounds", "loss.use", "contrastive", f"{QAC} 3.2"),
    ("rounds", "loss.similarity", "dot", f"{QAC} 3.2"),
    ("rounds", "loss.temperature", 1.0, f"{QAC} 3.2"),
]
COCONDENSER: list[Row] = [
    *TWO_STAGE,
    ("pretrain", "max_steps", 120000, f"{QAC} 4.1"),
    ("pretrain", "batch", 2048, f"{QAC} 4.1"),
    ("pretrain", "learning_rate", 1e-4, f"{QAC} 4.1"),
    ("pretrain", "weight_decay", 0.01, f"{QAC} 4.1"),
    ("pretrain", "encoder.masker.ratio", 0.15, "coCondenser"),
    ("pretrain", "decoders.main.decoder.layers", 2, "Condenser"),
    *both("mlm", "coCondenser"),
    ("pretrain", "encoder.losses.contrast.weight", 1.0, f"{QAC} 2.1"),
]
COTMAE: list[Row] = [
    *TWO_STAGE,
    ("pretrain", "max_steps", 50000, f"{QAC} 4.1"),
    ("pretrain", "batch", 16384, f"{QAC} 4.1"),
    ("pretrain", "learning_rate", 4e-4, f"{QAC} 4.1"),
    ("pretrain", "warmup_steps", 0.1, f"{QAC} 4.1"),
    ("pretrain", "encoder.masker.ratio", 0.3, "CoT-MAE"),
    ("pretrain", "decoders.main.masker.ratio", 0.45, "CoT-MAE"),
    *both("mlm", f"{QAC} 2.2"),
]
CPDAE: list[Row] = [
    ("encoder", "pooling", "cls", "equation 1"),
    ("pretrain", "num_train_epochs", 3, "section 4.1.3"),
    ("pretrain", "batch", 64, "section 4.1.3"),
    ("pretrain", "learning_rate", 5e-5, "section 4.1.3"),
    ("pretrain", "warmup_steps", 0.1, "section 4.1.3"),
    ("pretrain", "encoder.masker.ratio", 0.15, "section 3.1.1: as BERT"),
    ("pretrain", "encoder.masker.unit", "token", "section 3.1.1: as BERT"),
    ("pretrain", "encoder.losses.mlm.weight", 1.0, "equation 6"),
    ("pretrain", "encoder.losses.mlm.targets", 1.0, "equation 6"),
    ("pretrain", "decoders.main.losses.bow-reconstruction.weight", 1.0, "equation 6"),
    ("rounds", "num_train_epochs", 3, "transformers"),
    ("rounds", "batch", 64, "section 4.1.3"),
    ("rounds", "learning_rate", 5e-6, "section 4.1.3"),
    ("rounds", "negatives", 7, "section 4.1.3"),
    ("rounds", "loss.use", "pairwise", "section 4.1.3"),
    ("rounds", "loss.similarity", "dot", "section 4.1.3"),
    ("rounds", "loss.temperature", 1.0, "section 4.1.3"),
    ("retriever-2", "miners.0.use", "dense", "section 4.1.3: static hard negatives"),
]


def contrasted(side: str, loss: str, source: str) -> list[Row]:
    """A contrast of two maskings of a text."""
    path = f"{side}.losses.contrast"
    return [("pretrain", f"{path}.weight", 0.1, "section 4.1.3: lambda"), ("pretrain", f"{path}.use", loss, source)]


# Their papers say how they are scored, and not how long they are fine-tuned.
SHARED: list[Row] = [
    ("encoder", "pooling", "cls", "every paper"),
    ("rounds", "num_train_epochs", 3, "SimLM, table 12"),
    ("rounds", "batch", 64, "SimLM, table 12"),
    ("rounds", "learning_rate", 2e-5, "SimLM, table 12"),
    ("rounds", "negatives", 15, "SimLM, table 12"),
    ("rounds", "loss.use", "contrastive", "DPR"),
    ("rounds", "loss.similarity", "dot", "DPR"),
    ("rounds", "loss.temperature", 1.0, "DPR"),
    ("pretrain", "num_train_epochs", 8, "RetroMAE, section 4.1; Condenser's command"),
    ("pretrain", "learning_rate", 1e-4, "RetroMAE, section 4.1; Condenser's command"),
    ("pretrain", "batch", 256, "RetroMAE, section 4.1: 32 per device, 8 GPUs"),
]
RETROMAE: list[Row] = [
    *SHARED,
    ("pretrain", "encoder.masker.ratio", 0.3, "section 4.1"),
    *both("mlm", "algorithm 1")[:2],
    ("pretrain", "encoder.losses.mlm.targets", 1.0, "section 3.3"),
    ("pretrain", "decoders.main.losses.mlm.weight", 1.0, "algorithm 1"),
]
CONDENSER: list[Row] = [
    *SHARED[:-1],
    ("pretrain", "batch", 32, "left open by the authors' command"),
    ("pretrain", "warmup_steps", 0.1, "the authors' command"),
    ("pretrain", "weight_decay", 0.01, "the authors' command"),
    ("pretrain", "encoder.masker.ratio", 0.15, "as BERT"),
    ("pretrain", "decoders.main.decoder.layers", 2, "Condenser"),
    *both("mlm", "Condenser"),
]

TABLE: dict[str, list[Row]] = {
    "simlm": [*SIMLM, *GENERATED, *TWO_LAYERS, *both("replaced-lm", "equation 2")],
    "simlm-mlm": [*SIMLM, *TWO_LAYERS, *both("mlm", "table 7")],
    "simlm-rtd": [*SIMLM, *GENERATED, *TWO_LAYERS],
    "simlm-autoencoder": [*SIMLM, *TWO_LAYERS, ("pretrain", "decoders.main.losses.mlm.targets", 1.0, "table 7")],
    "mlm-only": [*SIMLM, *(row for row in both("mlm", "table 7") if "encoder" in row[1])],
    "cdmae": CDMAE,
    "cocondenser": COCONDENSER,
    "cocondenser-qac": COCONDENSER,
    "cotmae": [*COTMAE, ("pretrain", "decoders.main.decoder.layers", 2, "CoT-MAE")],
    "cotmae-qac": [*COTMAE, ("pretrain", "decoders.main.decoder.layers", 2, "CoT-MAE")],
    "cotmae-qac-ar": [*COTMAE, ("pretrain", "decoders.main.decoder.window", 3, "the authors' code")],
    "cpdae": [*CPDAE, *contrasted("decoders.main", "js-contrastive", "equation 5")],
    "cpdae-r": [*CPDAE, *contrasted("encoder", "info-nce", "section 3.2.2")],
    "cpdae-no-cl": CPDAE,
    "cpdae-idf": [*CPDAE, ("pretrain", "decoders.main.losses.bow-reconstruction.idf", True, "table 2")],
    "retromae": [
        *RETROMAE,
        ("pretrain", "decoders.main.masker.ratio", 0.5, "section 4.1"),
        ("pretrain", "decoders.main.decoder.targets", 1.0, "section 3.3"),
    ],
    "retromae-basic": [
        *RETROMAE,
        ("pretrain", "decoders.main.masker.ratio", 0.5, "table 6, \"w.o. enhance\": the default ratio"),
        ("pretrain", "decoders.main.decoder.layers", 1, "section 3.2"),
    ],
    "dupmae": [
        *RETROMAE,
        ("pretrain", "decoders.main.masker.ratio", 0.5, "RetroMAE"),
        ("pretrain", "decoders.main.decoder.targets", 1.0, "RetroMAE"),
        ("pretrain", "encoder.losses.words.weight", 0.1, "DupMAE"),
    ],
    "dupmae-lexical": [
        *RETROMAE,
        ("pretrain", "decoders.main.masker.ratio", 0.5, "RetroMAE"),
        ("pretrain", "decoders.main.decoder.targets", 1.0, "RetroMAE"),
        ("pretrain", "encoder.losses.words.weight", 0.1, "DupMAE"),
        ("finetune", "pooling.dense", "cls", "DupMAE, section 3.4"),
    ],
    "condenser": CONDENSER,
    "seed": [
        *SHARED,
        ("pretrain", "encoder.masker.ratio", 0.15, "as BERT"),
        ("pretrain", "decoders.main.decoder.layers", 3, "SEED"),
        ("pretrain", "decoders.main.decoder.window", 2, "SEED"),
        *both("mlm", "SEED"),
    ],
}  # fmt: skip

# Compared one by one, in every training; what the table leaves out is transformers' default.
SCHEDULE = (
    "num_train_epochs",
    "max_steps",
    "learning_rate",
    "warmup_steps",
    "weight_decay",
    "max_grad_norm",
    "lr_scheduler_type",
    "bf16",
)
# What no training may leave to transformers without the table saying so.
STATED = ("learning_rate", "batch")
# How a batch is computed, not what is learned from it.
MECHANICS = ("gradient_cache_chunk", "gradient_accumulation_steps", "per_device_train_batch_size")


@pytest.fixture(scope="module")
def defaults() -> dict[str, Any]:
    from transformers import TrainingArguments

    found = {f.name: f.default for f in dataclasses.fields(TrainingArguments)}
    return {**found, "lr_scheduler_type": str(getattr(found["lr_scheduler_type"], "value", found["lr_scheduler_type"]))}


def at_paper_scale(paper: str, encoder: str | None = "some/encoder") -> Recipe:
    return compose(ComposeRequest(paper=paper, encoder=encoder, scale="paper"), PARTS)


def trainings(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Every training of a recipe by its name, as plain settings, with the effective `batch`."""
    finetune = recipe.finetune
    rounds = {
        r.name: {**plain(finetune.for_round(r)), "miners": plain(r.miners), "teacher": plain(r)["teacher"]}
        for r in finetune.rounds
    }
    found = {"pretrain": plain(recipe.pretrain), **rounds, "reranker": plain(recipe.reranker)}
    named = {name: settings for name, settings in found.items() if settings}
    for settings in named.values():
        settings["batch"] = settings["batch_size"]
    return named


def rows_of(paper: str, training: str) -> dict[str, Any]:
    """What the table says of one training: rows of all rounds, then the round's own."""
    part_of_rounds = training not in ("encoder", "pretrain", "reranker")
    common = {key: value for part, key, value, _ in TABLE[paper] if part_of_rounds and part == "rounds"}
    return {**common, **{key: value for part, key, value, _ in TABLE[paper] if part == training}}


def at(settings: Any, path: str) -> Any:
    for key in path.split("."):
        settings = settings[int(key)] if isinstance(settings, list | tuple) else settings.get(key)
    return list(settings) if isinstance(settings, tuple) else settings


def test_every_recipe_is_in_the_table():
    assert sorted(TABLE) == PAPERS


@pytest.mark.parametrize("encoder", ["some/encoder", None])
@pytest.mark.parametrize("paper", PAPERS)
def test_every_training_setting_is_the_papers_or_the_default_of_transformers(paper, encoder, defaults):
    recipe = at_paper_scale(paper, encoder)
    check(recipe, PARTS.registry)
    for name, settings in trainings(recipe).items():
        said = rows_of(paper, name)
        assert {*STATED} <= {*said}, name
        for setting, value in said.items():
            assert at(settings, setting) == value, f"{name}.{setting}"
        for setting in {*SCHEDULE} - {*said}:
            if setting == "num_train_epochs" and settings["max_steps"] > 0:
                continue
            assert settings[setting] == defaults[setting], f"{name}.{setting} is neither the paper's nor transformers'"
        assert settings["arguments"] == {}, name
    for setting, value in rows_of(paper, "encoder").items():
        assert plain(recipe.encoder)[setting] == value


def leaves(table: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(table, dict):
        return {path[1:]: table}
    return {found: value for key, inner in table.items() for found, value in leaves(inner, f"{path}.{key}").items()}


def numbers_of_the_small_scale(found: NamedFile, *tables: str) -> dict[str, dict[str, Any]]:
    """Return the settings of tables that differ from those at the scale of the papers."""
    small, paper = (parse_toml(found.text(small=is_small), found.name) for is_small in (True, False))
    return {
        name: {
            key: v for key, v in leaves(small[name]).items() if key != "rounds" and leaves(paper[name]).get(key) != v
        }
        for name in tables
    }


@pytest.mark.parametrize("paper", PAPERS)
def test_nothing_of_the_small_scale_is_in_a_recipe_unless_its_paper_says_so(paper, defaults):
    small = {
        **numbers_of_the_small_scale(PARTS.recipes.get("default"), "pretrain", "finetune"),
        **numbers_of_the_small_scale(PARTS.pipelines.get("three-stage"), "reranker"),
    }
    recipe = at_paper_scale(paper)
    found = trainings(recipe)
    pairs = [
        ("pretrain", "pretrain"),
        ("reranker", "reranker"),
        *(("finetune", r.name) for r in recipe.finetune.rounds),
    ]
    for part, training in pairs:
        said = rows_of(paper, training)
        for setting, value in small[part].items():
            if setting.endswith((".use", "miners")) or setting in MECHANICS or training not in found:
                continue
            allowed = setting in said
            allowed |= setting == "num_train_epochs" and found[training]["max_steps"] > 0
            allowed |= setting in defaults and defaults[setting] == value
            assert allowed or leaves(found[training]).get(setting) != value, f"{training}.{setting} = {value}"


# Not the paper's: how the run is watched, and how fast it is.
WATCHED = (
    *("bf16", "save_steps", "validation", "baselines", "probe", "rounds", "name"),
    "per_device_train_batch_size",  # how much of a batch is in memory at once
)
# SimLM, table 11 ("Wikipedia") and appendix B.
ON_NQ = {"pretrain": {"max_steps": 200000}, "rounds": {"max_steps": 20000, "learning_rate": 5e-6}}


@pytest.mark.parametrize("name", ["msmarco", "nq"])
def test_the_documented_recipes_have_the_papers_numbers(name):
    recipe = read_recipe(DOCUMENTED / f"{name}.toml", PARTS.registry)
    own, papers = trainings(recipe), trainings(at_paper_scale("simlm"))
    assert {*own} == {*papers}
    for training, settings in own.items():
        changed = ON_NQ.get(training if training in ("pretrain", "reranker") else "rounds", {}) if name == "nq" else {}
        for setting, value in {**papers[training], **changed}.items():
            if setting in WATCHED or (setting == "num_train_epochs" and settings["max_steps"] > 0):
                continue
            if setting == "miners" and name == "nq" and value[0]["use"] == "dense":
                assert settings[setting] == [{**value[0], "depth": 100}]
                continue
            assert settings[setting] == value, f"{training}.{setting}"
    assert (recipe.encoder.pooling.use, recipe.encoder.query_length) == ("cls", 32)
    assert recipe.encoder.passage_length == {"msmarco": 144, "nq": 192}[name]


def test_a_scale_is_chosen_and_the_old_behaviour_is_the_default():
    plain_scale, with_encoder = (
        ComposeRequest(paper="retromae"),
        ComposeRequest(paper="retromae", encoder="some/encoder"),
    )
    assert compose(plain_scale, PARTS) == compose(ComposeRequest(paper="retromae", scale="small"), PARTS)
    assert compose(with_encoder, PARTS) == at_paper_scale("retromae")
    small = compose(ComposeRequest(paper="retromae", encoder="some/encoder", scale="small"), PARTS)
    assert (small.encoder.pretrained, small.pretrain.max_steps) == ("some/encoder", 3000)
    # The rates of the small scale are those of random weights.
    from_scratch = compose(plain_scale, PARTS)
    assert (small.pretrain.learning_rate, small.finetune.learning_rate) == (5e-5, 2e-5)
    assert evolve(small.pretrain, learning_rate=from_scratch.pretrain.learning_rate) == from_scratch.pretrain
    assert evolve(small.finetune, learning_rate=from_scratch.finetune.learning_rate) == from_scratch.finetune
    assert small.reranker is None
    scratch = at_paper_scale("retromae", encoder=None)
    assert (scratch.pretrain, scratch.finetune) == (
        at_paper_scale("retromae").pretrain,
        at_paper_scale("retromae").finetune,
    )
    assert (scratch.encoder.pretrained, scratch.encoder.layers, scratch.encoder.hidden) == (None, 12, 768)


def test_a_smoke_run_downloads_no_model_that_was_not_named():
    quick = compose(ComposeRequest(paper="simlm", encoder="some/encoder", scale="quick"), PARTS)
    assert quick.reranker.pretrained is None
    assert quick.pretrain.encoder.masker.config.model == ""
    assert quick.pretrain.decoders["main"].decoder.config.layers == 2, "the paper's, with little data"
    assert (quick.pretrain.max_steps, quick.finetune.max_steps, quick.reranker.max_steps) == (20, 10, 10)
    assert {r.max_steps for r in quick.finetune.rounds} == {None}


def texts_of_a_row(recipe):
    """Return each training of a recipe, and how many texts one of its rows has."""
    rounds = [recipe.finetune.for_round(one) for one in recipe.finetune.rounds]
    reranker = [(recipe.reranker, 1 + recipe.reranker.negatives)] if recipe.reranker else []
    pretraining = [(recipe.pretrain, 1)] if recipe.pretrain else []
    return [*pretraining, *((one, 2 + one.negatives) for one in rounds), *reranker]


@pytest.mark.parametrize(
    ("paper", "pipeline"),
    [*((paper, None) for paper in PAPERS), *((paper, name) for name in PARTS.pipelines for paper in (None, "simlm"))],
)
def test_a_smoke_run_of_an_existing_encoder_trains_on_hundreds_of_texts(paper, pipeline):
    """A paper's accumulated batches and 63 negatives would be hours of a CPU."""
    request = ComposeRequest(paper=paper, pipeline=pipeline, encoder="some/encoder", scale="quick")
    for training, texts in texts_of_a_row(compose(request, PARTS)):
        rows = StepSize.of(training, compares=True).examples
        assert rows * texts <= 40
        assert rows * texts * training.max_steps <= 400


def test_a_plugins_recipe_is_a_file_for_a_scale_or_one_for_all(tmp_path):
    from attrs import evolve

    whole = re.sub(r"\[encoder\][^\[]+", "", PARTS.recipes.get("retromae").text())
    (tmp_path / "both.toml").write_text(whole)
    (tmp_path / "both-small.toml").write_text(whole.replace("num_train_epochs = 8.0", "num_train_epochs = 1.5"))
    (tmp_path / "one.toml").write_text(whole)
    both = NamedFile("both", tmp_path / "both.toml", small=tmp_path / "both-small.toml")
    recipes = [*PARTS.recipes.items(), both, NamedFile("one", tmp_path / "one.toml")]
    mine = evolve(PARTS, recipes=NameTable("recipe", recipes))
    epochs = {
        (name, scale): compose(ComposeRequest(paper=name, scale=scale), mine).pretrain.num_train_epochs
        for name in ("both", "one")
        for scale in ("paper", "small", None)
    }
    assert epochs == {
        ("both", "paper"): 8,
        ("both", "small"): 1.5,
        ("both", None): 1.5,
        ("one", "paper"): 8,
        ("one", "small"): 8,
        ("one", None): 8,
    }
    quick = compose(ComposeRequest(paper="one", scale="quick"), mine)
    check(quick, mine.registry)
    assert (quick.encoder.hidden, quick.pretrain.max_steps, quick.collection.config.limit) == (64, 20, 1200)


def test_a_scale_that_does_not_exist_is_refused():
    with unknown("scale", "tiny", "paper", "small", "quick"):
        compose(ComposeRequest(scale="tiny"), PARTS)


def test_the_command_line_chooses_the_scale(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from drkit_cli.commands.compose import compose as command

    measure_nothing(monkeypatch.setattr)

    def written(*options: str) -> Recipe:
        path = tmp_path / "r.toml"
        done = CliRunner().invoke(command, ["--paper", "retromae", "--dry-run", "-o", str(path), *options])
        assert done.exit_code == 0, done.output
        return read_recipe(path, PARTS.registry)

    by_scale = {scale: written("--scale", scale) for scale in ("paper", "small", "quick")}
    assert [recipe.pretrain.max_steps for recipe in by_scale.values()] == [-1, 3000, 100]
    assert written() == by_scale["small"]
    assert written("--quick") == written("--quick", "--scale", "quick") == by_scale["quick"]
    refused = CliRunner().invoke(command, ["--paper", "retromae", "--quick", "--scale", "paper"])
    assert refused.exit_code == 2
    assert says(refused.output, "--scale paper")
