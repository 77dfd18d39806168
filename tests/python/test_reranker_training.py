"""sentence-transformers' trainer of cross-encoders on mined negatives, with drkit's listwise loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from torch import nn

from drkit.errors import DrkitError
from drkit.losses import ListwiseLoss
from drkit.search import Reranker
from drkit_sentence_transformers import HardNegatives, RankedGroups


@pytest.fixture
def cross_encoder(judge, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = CrossEncoder(str(judge), device="cpu")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def test_the_loss_is_over_each_querys_own_passages(cross_encoder, judge):
    columns = [["remove a", "file b"], ["suffix", "file"], ["number", "file"], ["number", "each"]]
    loss = RankedGroups(cross_encoder, ListwiseLoss())
    got = loss(columns)
    pairs = [[(q, text) for text in group] for q, *group in zip(*columns, strict=True)]
    scores = torch.tensor(np.stack([Reranker.load(judge).score(own) for own in pairs]))
    scores[0, 2] = -torch.inf  # number, a second time
    scores[1, 1] = -torch.inf  # file: the positive again
    wanted = nn.functional.cross_entropy(scores, torch.zeros(2, dtype=torch.long))
    assert got.item() == pytest.approx(wanted.item(), rel=1e-4)
    assert 0 <= loss.metrics["accuracy"] <= 1
    assert loss(columns, [torch.zeros(3)] * 2).item() == pytest.approx(got.item())


def test_their_trainer_trains_with_it_and_drkit_reranks(cross_encoder, pairs, tmp_path):
    data = HardNegatives("bm25").tuples(pairs, 2)
    arguments = CrossEncoderTrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=60,
        per_device_train_batch_size=24,
        learning_rate=2e-3,
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    loss = RankedGroups(cross_encoder, ListwiseLoss())
    trainer = CrossEncoderTrainer(model=cross_encoder, args=arguments, train_dataset=data, loss=loss)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.9 * losses[0]
    cross_encoder.save_pretrained(str(tmp_path / "trained"))
    asked = [(row["anchor"], row["positive"]) for row in data][:5]
    theirs = cross_encoder.predict(asked, activation_fn=nn.Identity(), show_progress_bar=False)
    np.testing.assert_allclose(Reranker.load(tmp_path / "trained").score(asked), theirs, atol=1e-5)


def test_what_does_not_fit_is_told(cross_encoder):
    loss = RankedGroups(cross_encoder, ListwiseLoss())
    with pytest.raises(DrkitError, match=r"3 columns .*, got 2"):
        loss([["a"], ["b"]])
    with pytest.raises(DrkitError, match=r"labels .*\(1, 3\).*\(1, 2\)"):
        loss([["a"], ["b"], ["c"]], [torch.zeros(3)])
