"""Several decoders on one vector, each with its own text, mask and losses: in a module, and in a run."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.core.types import BuildContext
from drkit.data.store import TokenStore, tokenise
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.schema import Training
from drkit.recipe.toml import parse_toml, recipe_from_table, recipe_toml
from drkit.runs.execute import execute
from drkit.runs.making.pretrain import auto_encoder, build_maskers, masking_collator
from drkit.runs.plan import plan
from drkit.testing.contexts import toy_pretraining_texts
from drkit.testing.toys import toy_encoder, toy_texts, toy_tokenizer
from drkit.train.batches import Schedule
from drkit.train.gradients import GradientStrategy, backward

PARTS = installed()
# Three decoders, as MASTER has them: the text with another mask, another span of its document, and a query of it.
THREE = (
    'pretrain.decoders.main={decoder={use="mlm", layers=1}, masker={use="uniform", ratio=0.5}, losses={mlm="mlm"}}',
    'pretrain.decoders.next={decoder={use="mlm", layers=1}, masker={use="uniform", ratio=1.0}, context="span", '
    'losses={mlm={use="mlm", weight=0.5}}}',
    'pretrain.decoders.query={decoder="enhanced", masker={use="uniform", ratio=0.5}, context="query", '
    'losses={mlm="mlm"}}',
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    named = ((str(number), text) for number, text in enumerate(toy_texts()))
    tokenise(named, toy_tokenizer(), folder, max_length=40)
    return toy_pretraining_texts(TokenStore.open(folder), {}, folder)


def built(texts, *settings, **chosen):
    """(module, collator) of a recipe's pre-training, on toy texts."""
    recipe = compose(ComposeRequest(paper="retromae", settings=settings, **chosen), PARTS)
    check(recipe, PARTS.registry)
    encoder = toy_encoder(seed=1)
    context = BuildContext(backbone=encoder.info(toy_tokenizer()), tokenizer=toy_tokenizer(), seed=1)
    maskers = build_maskers(recipe.pretrain, PARTS.registry, context)
    module = auto_encoder(recipe.pretrain, PARTS.registry, encoder, context, maskers)
    return module, masking_collator(recipe.pretrain, PARTS.registry, module, context, maskers, texts)


def trained(module, collate, chunk=0):
    tensors = collate([(0, index) for index in range(len(collate.texts.store))])
    loss, metrics = backward(module, tensors, GradientStrategy(module, torch.Tensor.backward, chunk=chunk))
    return loss, metrics, {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def test_a_further_decoder_changes_nothing_of_the_first(texts):
    one, collate = built(texts, decoder="enhanced")
    both, collate_both = built(texts, decoder=("enhanced", "bow"))
    alone, together = (made([(0, 1), (0, 4)]) for made in (collate, collate_both))
    assert together.keys() - alone.keys() == {f"bow.{name}" for name in ("ids", "labels", "attention")}
    assert all(torch.equal(tensor, together[name]) for name, tensor in alone.items())
    (_, first, _), (_, second, _) = trained(one, collate), trained(both, collate_both)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert second["bow_bow-reconstruction_loss"] > 0


@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_give_the_gradients_of_the_whole_batch(texts, chunk):
    module, collate = built(texts, *THREE, "pretrain.encoder.losses.mlm.targets=1.0")
    loss, metrics, whole = trained(module, collate)
    module.zero_grad()
    again, _, found = trained(module, collate, chunk)
    assert float(again) == pytest.approx(float(loss), rel=1e-5)
    assert {"encoder_mlm_loss", "main_mlm_loss", "next_mlm_loss", "query_mlm_loss"} <= metrics.keys()
    assert whole.keys() == found.keys()
    assert all(name in whole for name, _ in module.decoders.named_parameters(prefix="decoders"))
    for name, gradient in whole.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


def test_each_decoder_rebuilds_its_own_text_with_its_own_mask(texts):
    _, collate = built(texts, *THREE)
    batch = collate([(0, index) for index in range(8)])
    assert "main.tokens.ids" not in batch, "the encoder's text"
    for name in ("next", "query"):
        assert batch[f"{name}.ids"].shape == batch[f"{name}.tokens.ids"].shape
    assert not torch.equal(batch["next.tokens.ids"], batch["encoder.tokens.ids"])
    assert torch.equal(batch["query.tokens.ids"], batch["encoder.tokens.ids"]), "a toy's only query is the text"
    shares = {
        name: float((batch[f"{name}.labels"] != -100).sum() / batch[f"{text}.tokens.maskable"].sum())
        for name, text in (("encoder", "encoder"), ("main", "encoder"), ("next", "next"))
    }
    assert shares["encoder"] < 0.4 < shares["main"] < 0.6
    assert shares["next"] == 1.0


def test_nested_hides_what_the_encoder_does_not_read(texts):
    nested = "pretrain.decoders.main.nested=true"
    for settings in ((nested,), (nested, "pretrain.decoders.main.masker.ratio=0.1")):
        _, collate = built(texts, *settings, decoder="mlm")
        batch = collate([(0, index) for index in range(8)])
        hidden, more = batch["encoder.labels"] != -100, batch["main.labels"] != -100
        assert not (hidden & ~more).any()
    assert torch.equal(hidden, more)


def test_partners_and_contexts_are_chosen_separately(texts):
    contrast = 'pretrain.encoder.losses.contrast="span-contrastive"'
    chosen = (contrast, "pretrain.encoder.context=span", "pretrain.decoders.main.context=query")
    _, collate = built(texts, *chosen, decoder="mlm")
    batch, plain = (made([(0, index) for index in range(8)]) for made in (collate, built(texts)[1]))
    both = batch["encoder.tokens.ids"]
    assert len(both) == 16
    assert torch.equal(both[:8], plain["encoder.tokens.ids"])
    assert not torch.equal(both[8:], both[:8])
    assert torch.equal(batch["main.tokens.ids"][:8], both[:8]), "a toy's only query is the text"
    assert torch.equal(batch["main.tokens.ids"][8:], both[:8]), "from its partner the decoder rebuilds the text"
    assert batch["partners"].tolist() == [*range(8, 16), *range(8)]


def test_a_step_is_sorted_by_length_unless_a_loss_compares_its_texts(texts):
    lengths, training = np.arange(96, dtype=np.int32), Training(batch_size=48, per_device_train_batch_size=6)
    modules = [built(texts)[0], built(texts, 'pretrain.encoder.losses.contrast="span-contrastive"')[0]]
    schedules = [Schedule.of(training, lengths, seed=1, compares=one.compares()) for one in modules]
    assert [one.micro_batches for one in schedules] == [8, 1], "what is compared is one batch"
    spread = [np.mean([np.ptp([example for _, example in part]) for part in one]) for one in schedules]
    assert spread[0] < 20
    assert spread[1] > 80


SETTINGS = (
    *("encoder.vocab_size=120", "encoder.hidden=16", "encoder.heads=2", "encoder.intermediate=32", "encoder.layers=1"),
    *("encoder.passage_length=24", "encoder.query_length=12", "finetune=none", "pretrain.max_steps=3"),
    *("pretrain.logging_steps=1", "pretrain.probe.every=2", "pretrain.probe.texts=4"),
    "pretrain.per_device_train_batch_size=4",
)


def run(folder, texts, *settings, **chosen):
    request = ComposeRequest(paper="retromae", collection=f"jsonl:{texts}", settings=(*SETTINGS, *settings), **chosen)
    recipe = compose(request, PARTS)
    execute(plan(recipe, PARTS.registry).stages, folder, recipe, registry=PARTS.registry, progress=Silent())
    return folder / "pretrained"


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    path = tmp_path_factory.mktemp("documents") / "texts.jsonl"
    lines = [f"ada wrote program {n}. alan read program {n} at night. grace named it." for n in range(40)]
    path.write_text("\n".join(json.dumps({"text": line}) for line in lines))
    return path


def test_retromae_with_a_bag_of_words_trains_and_goes_on(documents, tmp_path):
    chosen = {"decoder": ("enhanced", "bow")}
    weight = "pretrain.decoders.bow.losses.bow-reconstruction.weight=0.1"
    first = run(tmp_path / "first", documents, weight, **chosen)
    steps = [json.loads(line) for line in (first / "log.jsonl").read_text().splitlines()]
    for entry in (entry for entry in steps if "loss" in entry):
        parts = (entry["encoder_mlm_loss"], entry["main_mlm_loss"], entry["bow_bow-reconstruction_loss"])
        assert np.isfinite(parts).all()
    probe = json.loads((first / "probes.jsonl").read_text().splitlines()[-1])
    assert {"encoder_accuracy", "main_accuracy", "bow_accuracy", "gain"} <= probe.keys()
    again = run(
        tmp_path / "again", documents, weight, "pretrain.learning_rate=1e-30", encoder=str(first.parent), **chosen
    )
    for name in ("main", "bow"):
        before, after = (load_file(folder / f"decoder-{name}.safetensors") for folder in (first, again))
        assert all(torch.allclose(value, after[key], atol=1e-6) for key, value in before.items())


def test_three_decoders_train_on_one_vector(documents, tmp_path):
    folder = run(tmp_path / "run", documents, *THREE)
    saved = {path.name for path in folder.glob("decoder-*.safetensors")}
    assert saved == {f"decoder-{name}.safetensors" for name in ("main", "next", "query")}
    assert {"spans", "queries"} <= {path.name for path in folder.parent.iterdir()}


def test_no_decoder_trains_the_encoder_alone(documents, tmp_path):
    folder = run(tmp_path / "run", documents, decoder="none")
    assert not list(folder.glob("decoder-*"))
    probe = json.loads((folder / "probes.jsonl").read_text().splitlines()[-1])
    assert "gain" not in probe
    assert "encoder_accuracy" in probe


def test_a_recipe_of_several_decoders_reads_back_equal():
    recipe = compose(ComposeRequest(paper="retromae", settings=THREE), PARTS)
    assert recipe_from_table(parse_toml(recipe_toml(recipe), "text"), PARTS.registry) == recipe
    assert [*recipe.pretrain.losses()] == ["encoder_mlm", "main_mlm", "next_mlm", "query_mlm"]
