"""Stage: in how many of the texts that pre-training reads each token occurs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drkit.data.contexts import open_texts
from drkit.data.frequencies import write_frequencies
from drkit.runs.stage import StageRun


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes the document frequency of every token of the encoder's vocabulary; returns counts."""
    from transformers import AutoConfig

    # The encoder's table may be longer than its tokenizer's vocabulary (padded to a round number).
    vocab_size = int(AutoConfig.from_pretrained(stage.inputs["initial"]).vocab_size)
    return write_frequencies(open_texts(stage.inputs), stage.folder, vocab_size=vocab_size)
