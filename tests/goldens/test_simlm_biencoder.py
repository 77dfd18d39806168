"""SimLM's bi-encoder: losses, vectors and gradients equal the recorded ones, for every recording and variant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM

from drkit.core.types import EmbeddedPairs
from drkit.encoders import MaskedLmEncoder
from drkit.losses import ContrastiveConfig, ContrastiveLoss, KlDistillationConfig, KlDistillationLoss
from drkit.losses.candidates import vectors
from drkit.train import gradients
from drkit.train.biencoder import BiEncoder
from tests.goldens.recordings import Recorded, check_gradients, check_outputs, file_of, recordings, shown

LM = "lm_q."


def recorded_variants() -> list[tuple[Path | None, str]]:
    """Every variant of every recording."""
    found: list[tuple[Path | None, str]] = []
    for path in recordings("simlm_biencoder"):
        names = json.loads(path.with_suffix(".json").read_text())["variants"] if path else ["none"]
        found += [(path, name) for name in names]
    return found


def shared_encoder(recording: Recorded) -> MaskedLmEncoder:
    model = BertForMaskedLM(BertConfig(**recording.config))
    own = {f"bert.{k.removeprefix(LM)}": v for k, v in recording.weights.items() if ".pooler." not in k}
    missing, unexpected = model.load_state_dict(own, strict=False)
    assert not unexpected
    assert all(name.startswith("cls.") for name in missing)
    return MaskedLmEncoder(model, pooling="cls").train()


def loss_of(options: dict[str, Any]) -> ContrastiveLoss | KlDistillationLoss:
    """The settings that the authors' options come to: 0.05 is their default, and raw dot products are not divided."""
    normed = options.get("l2_normalize", True)
    common = {
        "temperature": options.get("t", 0.05) if normed else 1.0,
        "similarity": "cosine" if normed else "dot",
        "directions": "all" if options.get("full_contrastive_loss", True) else "query-passage",
    }
    if not options.get("do_kd_biencoder"):
        return ContrastiveLoss(ContrastiveConfig(**common))
    return KlDistillationLoss(
        KlDistillationConfig(
            **common,
            alpha=options.get("kd_cont_loss_weight", 0.2),
            mask_hard_negatives=options.get("kd_mask_hn", False),
        )
    )


def batch_of(recording: Recorded) -> dict[str, Tensor]:
    """Query i's passages are rows n i .. n i + n - 1, its positive first; all texts differ."""
    queries, passages = len(recording.inputs["q_input_ids"]), len(recording.inputs["d_input_ids"])
    groups = torch.arange(passages).view(queries, -1)
    return {
        "query.ids": recording.inputs["q_input_ids"],
        "query.attention": recording.inputs["q_attention_mask"].bool(),
        "passage.ids": recording.inputs["d_input_ids"],
        "passage.attention": recording.inputs["d_attention_mask"].bool(),
        "positives": groups[:, 0],
        "judged": groups[:, :1],
        "passage_indices": torch.arange(passages),
        "groups": groups,
        "teacher": recording.inputs["kd_labels"],
    }


@pytest.mark.parametrize("chunk", [0, 3])
@pytest.mark.parametrize(("path", "variant"), recorded_variants(), ids=lambda v: v if isinstance(v, str) else shown(v))
def test_losses_vectors_and_gradients(path, variant, chunk):
    recording = Recorded(file_of(path, "SimLM's bi-encoder"), lm=LM)
    metrics = recording.variants[variant]
    wanted, whole = recording.group(f"out.{variant}."), recording.group(f"grad.{variant}.")
    loss = loss_of(metrics["opts"])
    module, batch = BiEncoder(shared_encoder(recording), loss), batch_of(recording)
    strategy = gradients.GradientStrategy(forward=module, backward=lambda total: total.backward(), chunk=chunk)
    total, shown_metrics = gradients.backward(module, batch, strategy)
    rows = module(**batch)
    queries, passages = rows["rows.queries"], rows["rows.passages"]
    made = vectors(EmbeddedPairs(queries, passages, batch["positives"]), loss.config.similarity)
    got = {"loss": total, "loss_ce": shown_metrics.get("contrastive", total), "q_reps": made[0], "p_reps": made[1]}
    if "kl" in shown_metrics:
        got["loss_kl"] = shown_metrics["kl"]
    assert {name for name in wanted if name.startswith("loss")} == {name for name in got if name.startswith("loss")}
    check_outputs({name: value.detach() for name, value in got.items()}, wanted, metrics)
    found = {f"{LM}{name.removeprefix('bert.')}": p.grad for name, p in module.encoder.model.named_parameters()}
    assert {*metrics["grad_norms"]} == {name for name, gradient in found.items() if gradient is not None}
    check_gradients(found, whole, metrics)
