"""Folders with only the adapter of a model (LoRA and others, as peft saves them): it is merged into its base model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from drkit.core.files import ADAPTER, adapter_base
from drkit.errors import DrkitError, import_extra

_WEIGHTS, _PREFIX = "adapter_model.safetensors", "base_model.model."


def merge_adapter(model: Any, folder: Path) -> None:
    """Merge the adapter in a folder into the weights of a loaded model of transformers, in place.

    An adapter that was trained on the backbone alone is merged into that of a model with a head.

    Raises MissingExtraError without peft, and DrkitError for pickled weights, an adapter that cannot be merged, or one
    that does not fit the model.
    """
    peft = import_extra("peft", f"the adapter in {folder}")
    if not (folder / _WEIGHTS).is_file():
        raise DrkitError(f"{folder} has an {ADAPTER}, but no {_WEIGHTS}; save the adapter as safetensors")
    saved = {name.removeprefix(_PREFIX) for name in load_file(str(folder / _WEIGHTS))}
    prefix = f"{model.base_model_prefix}."
    of_backbone = model.base_model is not model and not any(name.startswith(prefix) for name in saved)
    target = model.base_model if of_backbone else model
    adapted = peft.PeftModel.from_pretrained(target, str(folder))
    loaded = {name.removeprefix(_PREFIX) for name in peft.get_peft_model_state_dict(adapted)}
    wrong = sorted(saved ^ loaded)
    if wrong or not hasattr(adapted.base_model, "merge_and_unload"):
        what = f"its weights do not fit (first: {wrong[0]!r})" if wrong else "adapters of this kind cannot be merged"
        name, base = type(model).__name__, adapter_base(folder)
        raise DrkitError(f"the adapter in {folder} cannot be merged into the {name} in {base}: {what}")
    adapted.merge_and_unload()
