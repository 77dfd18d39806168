"""What a cross-encoder's folder declares, read without torch: who computes its scores, or why nobody does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drkit.core.files import local_path
from drkit.core.hub import check_model_path
from drkit.encoders.declarations import (
    CONFIG,
    CROSS_ENCODER,
    MODULES,
    SETTINGS,
    UnsupportedEncoderError,
    check_cross_encoder,
    model_type,
    read_object,
)
from drkit.encoders.folder import listed_modules
from drkit.errors import DrkitError

_HEAD, _CAUSAL_HEAD = "ForSequenceClassification", "ForCausalLM"


def unsupported_layout(folder: Path) -> str:
    """Return why drkit does not compute the scores of a cross-encoder's folder itself; empty if it does.

    Folders without modules.json, and those of other models, are left to `CrossEncoder`. Raises DrkitError for a module
    that is not one of sentence-transformers.
    """
    saved = read_object(folder / SETTINGS, {})
    if not (folder / MODULES).is_file() or model_type(saved) != CROSS_ENCODER:
        return ""
    modules = listed_modules(folder)
    if list(modules.items()) != [("Transformer", "")]:
        return f"{folder / MODULES} has the modules {', '.join(modules)}, and drkit computes only Transformer"
    try:
        check_cross_encoder(folder)
    except UnsupportedEncoderError as error:
        return str(error)
    return ""


def default_prompt(saved: Mapping[str, Any]) -> str:
    """Return the prompt that sentence-transformers puts before pairs unless it is given another; may be empty.

    saved: `prompts` and `default_prompt_name` of a model.

    >>> default_prompt({"prompts": {"web": "search: "}, "default_prompt_name": "web"})
    'search: '
    """
    return (saved.get("prompts") or {}).get(saved.get("default_prompt_name")) or ""


def is_classifier(architectures: Any) -> bool:
    """Return whether a model was saved with a head that classifies texts; architectures: as in its config.json."""
    return _HEAD in str(architectures)


def check_scorer(path_or_id: str) -> None:
    """Raise DrkitError if a path is not that of a model that scores pairs; of a hub id, only the form is checked."""
    check_model_path(path_or_id)
    folder = local_path(path_or_id)
    if (folder / CONFIG).is_file() and not unsupported_layout(folder):
        check_head(path_or_id, read_object(folder / CONFIG).get("architectures"))
        check_cross_encoder(folder)


def check_trainable(path_or_id: str) -> None:
    """Raise DrkitError if drkit does not train the cross-encoder in a folder, because it does not compute it."""
    if reason := unsupported_layout(local_path(path_or_id)):
        raise DrkitError(f"cannot train the cross-encoder {path_or_id!r}: {reason}; it can only score pairs")


def check_head(path_or_id: str, architectures: Any) -> None:
    """Raise DrkitError if a model was saved without a head that scores pairs."""
    if is_classifier(architectures):
        return
    saved_as = str(architectures[0]) if isinstance(architectures, list) and architectures else "an unknown architecture"
    if saved_as.endswith(_CAUSAL_HEAD):
        raise DrkitError(
            f"{path_or_id!r} is a causal language model ({saved_as}) without {MODULES}, so nothing says which tokens' "
            f"logits are the score and how query and passage are put into the prompt. If it is a re-ranker, save it in "
            f"Python as a CrossEncoder of sentence-transformers 6 with the modules Transformer (a chat template with "
            f"the roles query and document) and LogitScore (true_token_id, false_token_id), as the guide on re-ranking "
            f"shows, and give that folder"
        )
    raise DrkitError(
        f"{path_or_id!r} is not a cross-encoder: it was saved as {saved_as}, without a head that scores pairs; "
        f"give the folder of a trained re-ranker, or a hub id such as cross-encoder/ms-marco-MiniLM-L6-v2"
    )
