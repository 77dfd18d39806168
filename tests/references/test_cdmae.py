"""CDMAE, from counts of real text to its two losses and their gradients, against the formulas written out."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from drkit.core.draws import Draws
from drkit.data import train_wordpiece
from drkit.data.counts import count_ngrams
from drkit.data.store import TokenStore, tokenise
from drkit.encoders import context_from
from drkit.signals.pmi import importance
from drkit.train import gradients
from drkit_pydocs.docstrings import read_file, summary_and_rest
from tests.references.cdmae import Counts, cdmae, masked_places
from tests.references.conftest import CONFIG, PIECES, assert_gradients, composed, reference_weights, small_encoder

PLAIN = ("pretrain.encoder.losses.mlm.weight=1.0", "pretrain.encoder.losses.mlm.targets=1.0")
SOME = (3, 11, 20, 42)
NAMES = {f"bottleneck.projection.{p}": f"decoder.projection.{p}" for p in ("weight", "bias")} | {
    f"layers.{n}.{mine}.{p}": f"decoder.{n}.{theirs}.{p}"
    for n in (0, 1)
    for mine, theirs in PIECES.items()
    for p in ("weight", "bias")
}


class Remembered(Draws):
    """Draws that keep the Gaussian noise they gave."""

    def normal(self, *shape):
        self.noise = super().normal(*shape)
        return self.noise.copy()


class Corpus:
    """Docstrings of the standard library, tokenised, with the importance of every token."""

    def __init__(self, folder: Path) -> None:
        library = Path(os.__file__).parent
        found = [text for name in ("heapq", "string", "shutil") for _, text in read_file(library / f"{name}.py") or ()]
        texts = [" ".join(filter(None, summary_and_rest(text))) for text in found]
        self.tokenizer = train_wordpiece(iter(texts), folder / "vocabulary", size=400)
        tokenise(((str(n), t) for n, t in enumerate(texts)), self.tokenizer, folder / "tokens", max_length=32)
        self.store = TokenStore.open(folder / "tokens")
        counts = count_ngrams(self.store, folder / "counts")
        self.importance = importance(self.store, counts, folder / "importance")
        self.texts = [
            self.store.flat_ids[a:b].tolist()
            for a, b in zip(self.store.offsets[:-1], self.store.offsets[1:], strict=True)
        ]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return Corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def amis(corpus) -> list[list[float]]:
    counts = Counts(corpus.texts)
    return [[counts.ami(text, i, 4) for i in range(len(text))] for text in corpus.texts]


def prepared(corpus, dtype=torch.float64):
    encoder = small_encoder(corpus.tokenizer)
    module, masked = composed("cdmae", encoder, context_from(encoder, corpus.tokenizer), settings=PLAIN)
    tokens = corpus.store.batch(np.array(SOME), signals={"importance": corpus.importance})
    rng = Remembered(5, 0, tokens.keys.numpy())
    return module.to(dtype), tokens, masked(tokens, rng), rng.noise


def step(module, batch):
    strategy = gradients.GradientStrategy(forward=module, backward=torch.Tensor.backward)
    return gradients.backward(module, batch, strategy)


def test_importance_is_the_naive_count(corpus, amis):
    assert len(corpus.texts) > 40
    wanted = [value for text in amis for value in text]
    np.testing.assert_allclose(corpus.importance.values, wanted, rtol=1e-5, atol=1e-5)


def test_the_decoder_loses_the_most_important_tokens_after_the_same_noise(corpus, amis):
    _, tokens, batch, noise = prepared(corpus)
    for row, text in enumerate(SOME):
        content = tokens.maskable[row].nonzero()[:, 0].tolist()
        aligned = [amis[text][index - 1] for index in content]
        wanted = masked_places(aligned, [float(noise[row, 0, index]) for index in content], 0.5, 1.0)
        hidden = (batch["main.labels"][row] != -100).nonzero()[:, 0].tolist()
        assert set(hidden) == {content[i] for i in wanted}


def test_losses_and_gradients(corpus):
    module, _, batch, _ = prepared(corpus)
    loss, metrics = step(module, batch)
    weights = reference_weights(module, NAMES)
    found = cdmae(weights, {**CONFIG, "vocab_size": len(corpus.tokenizer)}, batch)
    encoder_pass = module.encode(module.filled_views(batch)[0], batch)
    torch.testing.assert_close(encoder_pass.encoded.bottleneck, found["h"], rtol=1e-10, atol=1e-12)
    total = found["encoder"] + found["decoder"]
    assert loss.item() == pytest.approx(total.item(), rel=1e-6)
    for name, branch in (("encoder_mlm", "encoder"), ("main_mlm", "decoder")):
        assert metrics[f"{name}_loss"].item() == pytest.approx(found[branch].item(), rel=1e-6)
    total.backward()
    assert_gradients(module, weights, NAMES, rtol=1e-6)


def test_in_float32_to_1e_5(corpus):
    exact, _, batch, _ = prepared(corpus)
    module, _, _, _ = prepared(corpus, torch.float32)
    (wanted, _), (got, _) = step(exact, batch), step(module, batch)
    assert got.item() == pytest.approx(wanted.item(), rel=1e-5)
    for mine, theirs in zip(module.parameters(), exact.parameters(), strict=True):
        if theirs.grad is not None and theirs.grad.norm() > 1e-5:
            assert (mine.grad - theirs.grad).norm() < 1e-4 * theirs.grad.norm()
