"""sentence-transformers' own trainer on what drkit mines, with drkit's losses and with its own; and the way back."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from torch import nn

from drkit.evaluate import evaluate
from drkit.losses import (
    ContrastiveConfig,
    ContrastiveLoss,
    KlDistillationConfig,
    KlDistillationLoss,
    MarginMseConfig,
    MarginMseLoss,
    PairwiseConfig,
    PairwiseLoss,
)
from drkit.search import FlatIndex, Retriever, SentenceTransformerEncoder, TextEncoder
from drkit_sentence_transformers import CachedGradients, HardNegatives


class Overlap:
    """Shared words."""

    def score(self, pairs):
        return np.array([4.0 * len(set(a.split()) & set(b.split())) for a, b in pairs], dtype=np.float32)


@pytest.fixture
def train(tmp_path):
    """Trains a model; returns the losses of the steps."""

    def trained(model, data, loss, *, steps=12, batch=8, rate=1e-3):
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(tmp_path / "out"),
            max_steps=steps,
            per_device_train_batch_size=batch,
            learning_rate=rate,
            lr_scheduler_type="constant",
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
        )
        trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss)
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    return trained


@pytest.fixture
def quiet(model):
    """The model without dropout, so that losses fall step by step."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def test_mined_negatives_and_cached_gradients(quiet, pairs, train):
    data = HardNegatives(quiet, ["ranks:1-8"]).tuples(pairs, 3)
    loss = CachedGradients(quiet, ContrastiveLoss(ContrastiveConfig(temperature=0.05, directions="all")), chunk=4)
    losses = train(quiet, data, loss, batch=26)
    assert len(losses) == 12
    assert losses[-1] < 0.8 * losses[0]


def test_chunks_train_the_same_model(quiet, pairs, train):
    data = HardNegatives("bm25").tuples(pairs, 2)
    loss = ContrastiveLoss(ContrastiveConfig(temperature=0.05))
    models = [copy.deepcopy(quiet) for _ in range(2)]
    first, second = (
        train(model, data, CachedGradients(model, loss, chunk=chunk), steps=3, batch=8)
        for model, chunk in zip(models, (3, 64), strict=True)
    )
    assert first == pytest.approx(second, rel=1e-4)


@pytest.mark.parametrize(
    "loss",
    [
        KlDistillationLoss(KlDistillationConfig(temperature=0.2, alpha=0.2)),
        MarginMseLoss(MarginMseConfig(similarity="cosine", temperature=0.1)),
    ],
    ids=["kl-distillation", "margin-mse"],
)
def test_a_teachers_scores_are_labels_of_the_trainer(quiet, pairs, train, loss):
    data = HardNegatives(quiet, teacher=Overlap()).scored(pairs, 3)
    losses = train(quiet, data, CachedGradients(quiet, loss, chunk=8), batch=26)
    assert losses[-1] < 0.95 * losses[0]
    # labels reach the loss: another teacher, another loss
    other = data.map(lambda row: {"label": row["label"][::-1]})
    assert train(quiet, other, CachedGradients(quiet, loss, chunk=8), steps=1, batch=26)[0] > losses[-1]


def test_pairs_of_scores(quiet, pairs, train):
    data = HardNegatives("random").tuples(pairs, 2)
    loss = PairwiseLoss(PairwiseConfig(similarity="cosine", temperature=0.1))
    losses = train(quiet, data, CachedGradients(quiet, loss), batch=26)
    assert losses[-1] < losses[0]


def test_a_chain_of_miners_for_their_loss(quiet, pairs, train):
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    data = HardNegatives("bm25", ["same-text", "ranks:1-20"]).triplets(pairs, 2)
    losses = train(quiet, data, MultipleNegativesRankingLoss(quiet), batch=8)
    assert losses[-1] < losses[0]


def test_their_distillation_takes_the_scores(quiet, pairs, train):
    from sentence_transformers.sentence_transformer.losses import DistillKLDivLoss

    data = HardNegatives(quiet, teacher=Overlap()).scored(pairs, 2)
    assert np.isfinite(train(quiet, data, DistillKLDivLoss(quiet, temperature=2.0), steps=2)).all()


def test_what_was_trained_there_is_drkits_encoder(quiet, pairs, train, tmp_path):
    data = HardNegatives(quiet).tuples(pairs, 2)
    train(quiet, data, CachedGradients(quiet, ContrastiveLoss(ContrastiveConfig(temperature=0.05))), batch=26, steps=20)
    quiet.save_pretrained(str(tmp_path / "trained"))
    ours, theirs = TextEncoder.load(tmp_path / "trained"), SentenceTransformerEncoder(quiet)
    texts = list(dict.fromkeys(positive for _, positive in pairs))
    np.testing.assert_allclose(ours.encode_passages(texts), theirs.encode_passages(texts), atol=1e-5)
    index = FlatIndex.build(theirs.encode_passages(texts), texts, encoder=theirs.identity())
    retriever = Retriever(ours, index)
    from drkit.core.types import Judgement

    anchors = list(dict.fromkeys(anchor for anchor, _ in pairs))
    found = zip(anchors, retriever.search(anchors, 10), strict=True)
    run = [(anchor, list(hits.pairs())) for anchor, hits in found]
    judged = [Judgement(anchor, positive, 1) for anchor, positive in pairs]
    assert evaluate(run, judged, ["RR@10"]).mean("RR@10") > 0.6
