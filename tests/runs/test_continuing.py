"""Going on from an earlier run: its encoder, LM head and decoder are taken over, and so is how its vectors are made."""

import json
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.data.store import TokenStore
from drkit.data.word_embeddings import log_frequencies
from drkit.errors import DrkitError
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from drkit.train.checkpoints import load_encoder
from tests.refusals import says

PARTS = installed()
SMALL = (
    "encoder.vocab_size=110",
    "encoder.hidden=16",
    "encoder.heads=2",
    "encoder.init_embeddings=random",
    "encoder.intermediate=32",
    "encoder.passage_length=24",
    "pretrain.max_steps=2",
    "pretrain.batch_size=4",
)


class Notes(Silent):
    """Keeps what a run says."""

    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    names, deeds = ["ada", "grace", "alan", "edsger"], ["wrote a compiler", "proved a theorem", "broke a cipher"]
    lines = [json.dumps({"text": f"{n} {d} and {m}"}) for n in names for d in deeds for m in deeds]
    path.write_text("\n".join(lines))
    return path


def go(texts, run, *settings, **wanted):
    recipe = compose(
        ComposeRequest(collection=f"jsonl:{texts}", settings=(*SMALL, "finetune=none", *settings), **wanted), PARTS
    )
    said = Notes()
    execute(plan(recipe, PARTS.registry).stages, run, recipe, registry=PARTS.registry, progress=said)
    return recipe, said.said


@pytest.fixture(scope="module")
def first(texts, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "first"
    go(texts, run, masker="uniform", decoder="enhanced")
    return run


def test_a_run_goes_on_with_encoder_head_and_decoder(texts, first, tmp_path):
    recipe, said = go(
        texts,
        tmp_path / "second",
        "pretrain.learning_rate=1e-30",
        masker="uniform",
        decoder="enhanced",
        encoder=str(first),
    )
    assert any(says(line, "decoder 'main' (enhanced)", "checkpoint") for line in said)
    assert recipe.encoder.pooling.use == "mean", "the first run's own, not that of an encoder from elsewhere"
    assert recipe.pretrain.decoders["main"].decoder.config.targets == 0.125, "the small scale's schedule"
    for name in ("model.safetensors", "decoder-main.safetensors"):
        before = load_file(first / "pretrained" / name)
        after = load_file(tmp_path / "second" / "pretrained" / name)
        assert before.keys() == after.keys()
        for key, weight in before.items():
            assert torch.allclose(weight, after[key], atol=1e-6), (name, key)


def test_a_sentence_encoders_new_head_starts_from_the_words_frequencies(texts, tmp_path):
    go(texts, tmp_path / "first", "encoder.layers=1", masker="uniform")
    run = tmp_path / "second"
    exported = str(tmp_path / "first" / "encoder")
    _, said = go(texts, run, "pretrain.learning_rate=1e-30", masker="uniform", decoder="enhanced", encoder=exported)
    assert any(says(line, "language-model head", "bias") for line in said)
    bias, vocab_size = lm_bias(run)
    expected = log_frequencies(TokenStore.open(run / "tokens"), vocab_size=vocab_size)
    torch.testing.assert_close(bias, torch.from_numpy(expected))


def test_a_trained_head_keeps_its_bias(texts, first, tmp_path):
    _, said = go(texts, tmp_path / "second", "pretrain.learning_rate=1e-30", masker="uniform", encoder=str(first))
    assert not any("model head" in line for line in said)
    torch.testing.assert_close(lm_bias(tmp_path / "second")[0], lm_bias(first)[0])


def lm_bias(run):
    """Return the bias of the LM head after pre-training, f32[V], and V."""
    bias = load_encoder(run / "pretrained", pooling="mean").model.get_output_embeddings().bias
    return bias.detach(), len(bias)


def test_another_decoder_starts_anew_and_that_is_said(texts, first, tmp_path):
    _, said = go(texts, tmp_path / "second", masker="uniform", decoder="mlm", encoder=str(first))
    assert any("the checkpoint's decoder 'main' is 'enhanced'" in line and "from scratch" in line for line in said)


def test_going_on_twice_keeps_the_small_scale(texts, first, tmp_path):
    go(texts, tmp_path / "second", masker="uniform", decoder="enhanced", encoder=str(first))
    recipe, _ = go(texts, tmp_path / "third", masker="uniform", decoder="enhanced", encoder=str(tmp_path / "second"))
    assert recipe.pretrain.decoders["main"].decoder.config.targets == 0.125


def test_the_exported_encoder_holds_no_head_and_no_decoder(first):
    names = load_file(first / "encoder" / "model.safetensors").keys()
    assert not [name for name in names if "cls." in name or "decoder" in name or "generator" in name]
    assert not (first / "encoder" / "decoder-main.safetensors").exists()


def test_a_run_without_finished_pretraining_is_refused(first, tmp_path):
    (tmp_path / "recipe.toml").write_text((first / "recipe.toml").read_text())
    with pytest.raises(DrkitError, match=r"pre-training.*`drkit run .*recipe\.toml`.*--encoder"):
        compose(ComposeRequest(encoder=str(tmp_path)), PARTS)


def dropped(weights):
    weights.pop(min(weights))


def renamed(weights):
    for name in list(weights):
        weights[f"x.{name}"] = weights.pop(name)


def shorter(weights):
    name = max(weights, key=lambda name: weights[name].numel())
    weights[name] = weights[name][:-1].contiguous()


@pytest.mark.parametrize("change", [dropped, renamed, shorter, dict.clear])
def test_a_decoder_whose_weights_are_damaged_does_not_start_anew(texts, first, tmp_path, change):
    """Nor does one whose file does not say what it is."""
    shutil.copytree(first, tmp_path / "first")
    path = tmp_path / "first" / "pretrained" / "decoder-main.safetensors"
    with safe_open(str(path), framework="pt") as file:
        about = file.metadata()
    weights = load_file(path)
    change(weights)
    path.unlink()  # the copy may be a link
    save_file(weights, path, metadata=about)
    with pytest.raises(DrkitError, match=r"decoder-main\.safetensors .* decoder 'main' .*\(layer\."):
        go(texts, tmp_path / "second", masker="uniform", decoder="enhanced", encoder=str(tmp_path / "first"))
    save_file(weights, path)
    with pytest.raises(DrkitError, match=r"/third/initial/decoder-main\.safetensors': 'part'"):
        go(texts, tmp_path / "third", masker="uniform", decoder="enhanced", encoder=str(tmp_path / "first"))


def test_losses_with_weights_of_their_own_go_on_too(texts, tmp_path):
    def run(name, *settings, **more):
        go(texts, tmp_path / name, "encoder.layers=1", *settings, paper="simlm-rtd", **more)
        return load_file(tmp_path / name / "pretrained" / "loss-encoder_encoder-rtd.safetensors")

    first = run("first")
    second = run("second", "pretrain.learning_rate=1e-30", encoder=str(tmp_path / "first"))
    afresh = run("afresh", "pretrain.learning_rate=1e-30")
    assert first.keys() == second.keys()
    assert all(torch.allclose(weight, second[name], atol=1e-6) for name, weight in first.items())
    assert any(not torch.allclose(weight, afresh[name], atol=1e-6) for name, weight in first.items())
