"""SimLM's re-ranker: scores, loss and every gradient equal the recorded ones, for every recording at hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from drkit.losses import ListwiseLoss
from drkit.train import gradients
from drkit.train.reranker import GroupRanker
from tests.goldens.recordings import Recorded, check_gradients, check_outputs, file_of, recordings, shown

FOUND = recordings("simlm_crossencoder")


@pytest.fixture(scope="module", params=FOUND, ids=shown)
def recording(request) -> Recorded:
    return Recorded(file_of(request.param, "SimLM's re-ranker"))


class Encoder(nn.Module):
    """The recorded classifier, as the training calls one; keeps the scores that a gradient goes through."""

    def __init__(self, recording: Recorded) -> None:
        super().__init__()
        self.hf_model = BertForSequenceClassification(BertConfig(**recording.config, num_labels=1))
        self.load_state_dict(recording.weights)
        self.scores = None

    def forward(self, ids, attention, types):
        inputs = {"input_ids": ids, "attention_mask": attention, "token_type_ids": types}
        scores = self.hf_model(**inputs).logits.squeeze(-1)
        if scores.requires_grad:
            self.scores = scores
        return scores


@pytest.mark.parametrize("chunk", [0, 1, 9], ids=["whole", "a group at a time", "two groups at a time"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("variant", ["plain", "forward_factor2", "rdrop_p0"])
def test_scores_loss_and_gradients(recording, variant, training, chunk):
    """R-Drop compares two passes that differ by dropout; recorded without any, it is the plain loss."""
    encoder = Encoder(recording).train(training)
    options = recording.variants[variant]["opts"]
    module = GroupRanker(encoder, ListwiseLoss(), forward_factor=options.get("rerank_forward_factor", 1))
    module.train(training)
    queries = len(recording.inputs["labels"])
    assert not recording.inputs["labels"].any(), "the positive comes first"
    group = len(recording.inputs["input_ids"]) // queries
    batch = {
        "ids": recording.inputs["input_ids"],
        "attention": recording.inputs["attention_mask"].bool(),
        "types": recording.inputs["token_type_ids"],
        "sizes": torch.full((queries,), group),
    }
    strategy = gradients.GradientStrategy(forward=module, backward=lambda loss: loss.backward(), chunk=chunk)
    loss, _ = gradients.backward(module, batch, strategy)
    assert encoder.training is training
    got = {"loss": loss}
    if not chunk:
        got["logits"] = encoder.scores.view(queries, -1)
    metrics, outputs = recording.variants[variant], recording.group(f"out.{variant}.")
    check_outputs(got, outputs, metrics)
    check_gradients(
        {name: p.grad for name, p in encoder.named_parameters()}, recording.group(f"grad.{variant}."), metrics
    )
