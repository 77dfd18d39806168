"""Reading a masked LM from a folder or from the hub, with errors that say what to do."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from drkit.core.loading import check_model_path, told_from
from drkit.core.quiet import without_bars
from drkit.encoders.architectures import architecture, longest_text
from drkit.encoders.heads import TIED, tie_lm_head
from drkit.encoders.seeding import seeded
from drkit.errors import DrkitError


def load_masked_lm(path_or_id: str, trust_remote_code: bool = False) -> nn.Module:
    """The masked LM of a folder or hub id, in float32, in evaluation mode.

    Raises DrkitError as `MaskedLmEncoder.from_pretrained` says.
    """
    from transformers import AutoModelForMaskedLM

    where = architecture(read_config(path_or_id, trust_remote_code).model_type)
    options = {"attn_implementation": where.attention, "dtype": "float32", "trust_remote_code": trust_remote_code}
    with told_from(path_or_id, "load the encoder"), without_bars(), without_report(), seeded(0, "language-model head"):
        model, report = AutoModelForMaskedLM.from_pretrained(path_or_id, output_loading_info=True, **options)
    missing = set(report["missing_keys"])
    if getattr(model.config, TIED, False):
        tie_lm_head(model)
        missing = {key for key in missing if not key.startswith(tuple(f"{step}." for step in where.transform))}
    _judge_missing(path_or_id, missing, model.base_model_prefix)
    loaded: nn.Module = model
    return loaded


def check_start(path_or_id: str, *, length: int) -> None:
    """Raise DrkitError where no run can start from this checkpoint; its configuration alone is read.

    That is: an architecture that drkit does not know, or texts of `length` tokens, longer than it reads.
    """
    config = read_config(path_or_id)
    architecture(config.model_type)
    longest = longest_text(config)
    if length > longest:
        raise DrkitError(
            f"{path_or_id!r} reads at most {longest} tokens, the recipe has texts of {length}: "
            f"lower encoder.passage_length or encoder.query_length"
        )


def check_vocabulary(path_or_id: str, tokenizer: Any) -> None:
    """Raise DrkitError where the tokenizer has more words than the checkpoint has embeddings."""
    config = read_config(path_or_id)
    if len(tokenizer) > config.vocab_size:
        raise DrkitError(
            f"the tokenizer of {path_or_id!r} has {len(tokenizer)} words, the encoder embeddings for "
            f"{config.vocab_size}: they do not belong together; take the tokenizer that the encoder was saved with"
        )


def read_config(path_or_id: str, trust_remote_code: bool = False) -> Any:
    """The configuration of a folder or hub id. Raises DrkitError where there is none."""
    from transformers import AutoConfig

    check_model_path(path_or_id)
    with told_from(path_or_id, "read the configuration of the encoder"):
        return AutoConfig.from_pretrained(path_or_id, trust_remote_code=trust_remote_code)


@contextmanager
def without_report() -> Iterator[None]:
    """Without transformers' load report: drkit tells what is missing itself."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _judge_missing(path_or_id: str, missing: set[str], backbone: str) -> None:
    """Warn where the LM head is new; refuse where a part of the encoder itself is."""
    body = sorted(key for key in missing if key.startswith(f"{backbone}."))
    if body:
        raise DrkitError(
            f"{path_or_id!r} is no complete encoder: {len(body)} of its weights are missing (the first: {body[0]}); "
            f"it is cut off, or was saved from another kind of model"
        )
    if missing:
        warnings.warn(
            f"{path_or_id!r} has no language-model head: a new one is initialised. Its encoder is as saved; "
            f"the head learns while pre-training goes on",
            stacklevel=4,
        )
