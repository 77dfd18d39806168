"""Stage: in how many of the texts that pre-training reads each token occurs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from drkit.runs.stage import StageRun, StageSpec


@frozen
class FrequencySettings:
    """Settings of document frequencies: none."""


def run(stage: StageRun[FrequencySettings]) -> Mapping[str, Any]:
    """Write the document frequency of every token of the encoder's vocabulary; returns counts."""
    from transformers import AutoConfig

    from drkit.data.frequencies import write_frequencies
    from drkit.data.store import TokenStore

    # The encoder's table may be longer than its tokenizer's vocabulary (padded to a round number).
    vocab_size = int(AutoConfig.from_pretrained(stage.inputs["encoder"]).vocab_size)
    return write_frequencies(TokenStore.open(stage.inputs["texts"]), stage.folder, vocab_size=vocab_size)


FREQUENCIES = StageSpec(
    name="frequencies",
    version=1,
    settings=FrequencySettings,
    run=run,
    inputs={"texts": "tokens of the texts that pre-training reads", "encoder": "for the size of its vocabulary"},
)
