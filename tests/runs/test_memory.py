"""The plan says when a step of training needs more memory than the machine has."""

import json

from drkit.core.registry import installed
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs import estimate
from drkit.runs.estimate import memory_notes

PARTS = installed()
GB = 2**30
MINILM = {
    "model_type": "bert",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
}
LARGE = ("finetune.negatives=15", "finetune.per_device_train_batch_size=16", "encoder.passage_length=256")


def folder(path, **config):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**MINILM, **config}))
    return str(path)


def notes(encoder, *settings, memory=23 * GB):
    given = [f"finetune.rounds.0.{name}" for name in ("negatives=15", "per_device_train_batch_size=16")]
    request = ComposeRequest(encoder=encoder, pipeline="texts", settings=(*LARGE, *given, "pretrain=none", *settings))
    return memory_notes(compose(request, PARTS), memory)


def test_a_step_larger_than_the_memory_is_a_note_that_says_what_to_do(tmp_path):
    (note, *_) = notes(folder(tmp_path / "minilm"))
    assert "a step of retriever-1 needs about 59 GB of memory, and this machine has 23 GB" in note
    assert "--set finetune.gradient_cache_chunk=32" in note
    assert notes(folder(tmp_path / "minilm"), "finetune.gradient_cache_chunk=32") == []
    assert notes(folder(tmp_path / "minilm"), memory=512 * GB) == []


def test_unknown_sizes_and_the_default_run_have_no_note(tmp_path):
    assert notes("owner/model") == []
    assert notes(folder(tmp_path / "odd", hidden_size="wide")) == []
    assert memory_notes(compose(ComposeRequest(), PARTS), 4 * GB) == []


def test_the_plan_has_the_note(tmp_path, monkeypatch):
    from drkit.runs.plan import plan

    recipe = compose(ComposeRequest(settings=("encoder.hidden=4096", "encoder.layers=24")), PARTS)
    monkeypatch.setattr(estimate, "machine_memory", lambda: 8 * GB)
    assert any("a step of pre-training" in note for note in plan(recipe, PARTS.registry).notes)
