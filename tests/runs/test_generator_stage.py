"""The stage that loads or makes a generator, what pre-training does with it, and what is left of it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.core.types import BuildContext
from drkit.data.contexts import PretrainingTexts
from drkit.data.store import TokenStore
from drkit.decoders import MlmDecoder, MlmDecoderConfig
from drkit.decoders.layers import visibility_rows
from drkit.encoders import MaskedLmEncoder
from drkit.errors import DrkitError
from drkit.losses import MlmLoss, MlmLossConfig
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from drkit.train.checkpoints import load_tokenizer
from drkit.train.gradients import GradientStrategy, backward
from drkit.train.pretrain import AutoEncoder, DecoderText, MaskingCollator, Term
from drkit_simlm import GeneratorConfig
from drkit_simlm.masker import GeneratorMasker

PARTS = installed()


def of_both(*settings):
    """The settings for the maskers of both sides: a run has one generator."""
    return tuple(f"pretrain.{side}.masker.{one}" for side in ("encoder", "decoders.main") for one in settings)


SETTINGS = (
    "encoder.vocab_size=100",
    "encoder.hidden=16",
    "encoder.heads=2",
    "encoder.intermediate=32",
    "encoder.passage_length=32",
    "encoder.init_embeddings=random",
    "pretrain.max_steps=6",
    "pretrain.logging_steps=1",
    "pretrain.batch_size=4",
    *of_both("model=''", "generator_hidden=8", "generator_heads=2", "generator_intermediate=16"),
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    people, deeds = ("ada", "grace", "alan", "edsger"), ("wrote a compiler", "broke a cipher", "named the bug")
    lines = [f"{who} {what} and {more}" for who in people for what in deeds for more in deeds]
    path.write_text("\n".join(json.dumps({"text": line}) for line in lines))
    return path


def recipe_of(texts, *settings, encoder=None):
    return compose(
        ComposeRequest(paper="simlm", collection=f"jsonl:{texts}", encoder=encoder, settings=(*SETTINGS, *settings)),
        PARTS,
    )


def run(recipe, folder):
    stages = plan(recipe, PARTS.registry).stages
    return execute(stages, folder, recipe, registry=PARTS.registry, progress=Silent())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return MaskedLmEncoder.from_pretrained(str(folder)).state_dict()


def same(one: Path, two: Path) -> bool:
    first, second = weights(one), weights(two)
    return all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.fixture(scope="module")
def frozen(texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("frozen") / "run"
    return folder, run(recipe_of(texts), folder)


def test_a_small_generator_is_trained_on_the_runs_texts_and_words(frozen):
    folder, done = frozen
    metrics = done["generator"].metrics
    assert metrics["steps"] == 2  # a third of the steps of pre-training
    generator = MaskedLmEncoder.from_pretrained(str(folder / "generator"))
    assert generator.config.hidden_size == 8
    assert generator.config.vocab_size == len(load_tokenizer(str(folder / "vocabulary")))
    assert (
        load_tokenizer(str(folder / "generator")).get_vocab() == load_tokenizer(str(folder / "vocabulary")).get_vocab()
    )


def test_a_frozen_generator_leaves_nothing_in_the_checkpoint(frozen):
    folder, _ = frozen
    assert not (folder / "pretrained/generator").exists()
    entry = json.loads((folder / "pretrained/log.jsonl").read_text().splitlines()[0])
    assert "generator_loss" not in entry


@pytest.mark.parametrize("variant", ["joint", "joint-random"])
def test_a_joint_generator_is_trained_and_saved_and_gone_on_with(texts, tmp_path, variant):
    chosen = of_both(f"variant={variant}")
    done = run(recipe_of(texts, *chosen), tmp_path / "run")
    assert ("steps" in done["generator"].metrics) == (variant == "joint")
    assert not same(tmp_path / "run/generator", tmp_path / "run/pretrained/generator")
    for line in (tmp_path / "run/pretrained/log.jsonl").read_text().splitlines():
        entry = json.loads(line)
        assert entry["generator_loss"] == pytest.approx(0.2 * entry["generator_mlm"], rel=1e-4)
        total = entry["encoder_replaced-lm_loss"] + entry["main_replaced-lm_loss"] + entry["generator_loss"]
        assert entry["loss"] == pytest.approx(total, rel=1e-3)
    settings = (*chosen, "pretrain.learning_rate=1e-30", "pretrain.decoders.main.decoder.layers=1")
    run(recipe_of(texts, *settings, encoder=str(tmp_path / "run/pretrained")), tmp_path / "next")
    assert same(tmp_path / "run/pretrained/generator", tmp_path / "next/pretrained/generator")


def test_an_existing_masked_lm_is_taken_as_it_is(texts, frozen, tmp_path):
    model = frozen[0] / "generator"
    done = run(recipe_of(texts, *of_both(f"model={model}")), tmp_path / "run")
    assert "steps" not in done["generator"].metrics
    assert same(model, tmp_path / "run/generator")
    run(recipe_of(texts, *of_both(f"model={model}", "variant=joint-random")), tmp_path / "random")
    assert not same(model, tmp_path / "random/generator")
    shapes = [
        {name: value.shape for name, value in weights(folder).items()}
        for folder in (model, tmp_path / "random/generator")
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(("more", "positions", "said"), [(1, 64, "strange.* words"), (0, 16, "strange.*16 tokens")])
def test_one_that_does_not_fit_is_refused_by_name(texts, frozen, tmp_path, more, positions, said):
    vocab = len(load_tokenizer(str(frozen[0] / "vocabulary"))) + more
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = BertForMaskedLM(BertConfig(vocab_size=vocab, max_position_embeddings=positions, **sizes))
    model.save_pretrained(tmp_path / "strange")
    with pytest.raises(DrkitError, match=said):
        run(recipe_of(texts, *of_both(f"model={tmp_path / 'strange'}")), tmp_path / "run")


def test_other_settings_of_pretraining_leave_a_finished_generator_alone(texts):
    def mark(*settings):
        stages = {stage.name: stage for stage in plan(recipe_of(texts, *settings), PARTS.registry).stages}
        return stages["generator"].fingerprint({"vocabulary": "v", "tokens": "t"})

    assert mark() == mark("pretrain.encoder.masker.ratio=0.2", *of_both("generator_weight=0.5"))
    assert mark() == mark(*of_both("variant=joint"))
    assert mark() != mark(*of_both("variant=joint-random"))
    assert mark() != mark(*of_both("generator_steps=9"))
    assert mark(*of_both("model=a/b")) == mark(*of_both("model=a/b"), "pretrain.learning_rate=1e-5")


@pytest.mark.parametrize("chunk", [1, 3])
def test_gradients_of_chunks_are_those_of_the_batch_the_generators_too(frozen, chunk):
    folder, _ = frozen
    whole, parts = (gradients(folder, size) for size in (0, chunk))
    assert any(name.startswith("replacer.") for name in whole)
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=1e-4, atol=1e-6)


def gradients(folder: Path, chunk: int) -> dict[str, torch.Tensor]:
    tokenizer = load_tokenizer(str(folder / "vocabulary"))
    encoder, generator = (MaskedLmEncoder.from_pretrained(str(folder / name)) for name in ("initial", "generator"))
    context = BuildContext(backbone=encoder.info(tokenizer), tokenizer=tokenizer, generator=generator)
    masker = GeneratorMasker(GeneratorConfig(variant="joint"), context)
    terms = {
        side: Term(MlmLoss(MlmLossConfig(targets=1.0)), ("token_states",), side) for side in ("encoder", "decoder")
    }
    decoder = MlmDecoder(MlmDecoderConfig(layers=1), context)
    module = AutoEncoder(encoder, {"decoder": decoder}, terms, masker.replacer(context)).train()
    store = TokenStore.open(folder / "tokens")
    rebuilt = DecoderText(
        GeneratorMasker(GeneratorConfig(ratio=0.5), context), partial(visibility_rows, decoder), nested=True
    )
    collate = MaskingCollator(PretrainingTexts(store), masker, seed=1, decoders={"decoder": rebuilt})
    tensors = collate([(0, example) for example in range(8)])
    backward(module, tensors, GradientStrategy(forward=module, backward=lambda loss: loss.backward(), chunk=chunk))
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
