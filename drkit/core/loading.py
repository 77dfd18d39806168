"""The one door through which models and tokenizers are loaded: no code from a folder, no pickled weights, clear errors.

Nothing else in drkit calls `from_pretrained` of transformers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any, Literal

from drkit.core.files import local_path
from drkit.errors import DrkitError, is_panic

_LOGGER = logging.getLogger("drkit")
_PATIENCE = 4.0
HubKind = Literal["model", "dataset"]
PICKLED = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")


def load_pretrained(
    loader: str,
    path_or_id: str,
    action: str,
    requirement: str = "",
    *,
    trust_remote_code: bool = False,
    **options: Any,
) -> Any:
    """Return what a class of transformers, such as `AutoTokenizer`, loads from a folder or hub id.

    Code that comes with a checkpoint is not run, and not offered for execution, unless a caller in Python trusts it.
    Weights are read from safetensors only. action, requirement: see `explain_load_errors`, whose errors it raises.
    """
    import transformers

    if loader.startswith("AutoModel"):
        try:
            check_model_path(path_or_id)
        except DrkitError as error:
            raise DrkitError(f"{error}. {requirement}" if requirement else str(error)) from None
        _check_weights(local_path(path_or_id))
        options["use_safetensors"] = True
    with explain_load_errors(path_or_id, action, requirement), without_progress_bars():
        options.setdefault("local_files_only", not reaches_hub(path_or_id))
        loaded = getattr(transformers, loader).from_pretrained(
            path_or_id, trust_remote_code=trust_remote_code, **options
        )
        if loader == "AutoTokenizer" and loaded.is_fast:
            _try_tokenizer(loaded.backend_tokenizer)
        return loaded


def _try_tokenizer(backend: Any) -> None:
    """Encode a text: some malformed files panic not when they are loaded, but at the first text."""
    for text in ("", "A word, 1 Wörd."):
        with suppress(Exception):  # not every vocabulary has this word
            backend.encode(text)


def _check_weights(folder: Path) -> None:
    """Raise DrkitError if a folder has only pickled weights, whose loading can run code."""
    if not folder.is_dir() or any(folder.glob("*.safetensors")):
        return
    pickled = next((path.name for pattern in PICKLED for path in sorted(folder.glob(pattern))), None)
    if pickled:
        raise DrkitError(
            f"{folder} has only pickled weights ({pickled}), which can run code when they are loaded; drkit reads "
            f"safetensors. Convert a checkpoint that you trust: load it in Python, save_pretrained writes safetensors"
        )


@contextmanager
def explain_load_errors(path_or_id: str, action: str, requirement: str = "") -> Iterator[None]:
    """Turn the errors of a block that loads a model into a DrkitError: what failed, why, and what to do next.

    action: what the block does, such as "load the encoder". requirement: a sentence on what can be loaded. Raises
    DrkitError for a missing or broken file, a model of another kind, or a hub that cannot be reached.
    """
    try:
        yield
    except DrkitError:
        raise
    except BaseException as error:  # a malformed folder makes the libraries raise almost anything
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        advice = (
            "check the files in this folder"
            if Path(path_or_id).is_dir()
            else (
                "no such folder exists, so it was looked up on the hub: check the spelling and the network, "
                "or give the path of a folder"
            )
        )
        message = f"cannot {action} {path_or_id!r}: {reason} ({advice})."
        raise DrkitError(f"{message} {requirement}".strip()) from error


def hub_cache() -> tuple[str, bool]:
    """Return the folder of models from the hub, and whether only what is in it is used (HF_HUB_OFFLINE)."""
    from huggingface_hub import constants

    return str(constants.HF_HUB_CACHE), bool(constants.HF_HUB_OFFLINE)


def reaches_hub(path_or_id: str, kind: HubKind = "model") -> bool:
    """Return whether a model or dataset may be fetched from the hub; if not, it is a folder, or a copy is in the cache.

    Says what is looked up, on the logger `drkit`. Raises DrkitError if the hub is needed and does not answer within
    some seconds: its own clients try for more than a minute. `HF_HUB_OFFLINE=1` asks nobody.
    """
    if local_path(path_or_id).exists():
        return False
    from huggingface_hub import constants, try_to_load_from_cache

    if constants.HF_HUB_OFFLINE:
        return False
    is_cached = kind == "model" and isinstance(try_to_load_from_cache(path_or_id, "config.json"), str)
    if not is_cached:
        _LOGGER.warning("looking up the %s %r on %s: no such folder exists", kind, path_or_id, constants.ENDPOINT)
    if _answers(path_or_id, kind):
        return True
    if is_cached:
        return False
    # The cache of datasets does not say what it has.
    cache = "" if kind == "model" else ", or set HF_HUB_OFFLINE=1 to read a copy from the cache"
    raise DrkitError(
        f"no folder {path_or_id!r} exists, and {constants.ENDPOINT} does not answer, so it cannot be looked up as "
        f"a hub id: check the spelling and the network, or give the path of a folder{cache}"
    )


@cache
def _answers(hub_id: str, kind: HubKind) -> bool:
    """Return whether the hub answers in time, even with an error. Looking up a host name has no time limit itself."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    answers: list[bool] = []

    def ask() -> None:
        try:
            HfApi().repo_info(hub_id, repo_type=kind, timeout=_PATIENCE)
            answers.append(True)
        except HfHubHTTPError:  # such as: no such model
            answers.append(True)
        except Exception:  # of the HTTP library, which differs between versions
            answers.append(False)

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return answers == [True]


def check_model_path(path_or_id: str) -> None:
    """Raise DrkitError if a text is neither a model folder nor a possible hub id; downloads nothing."""
    path = local_path(path_or_id)
    if path.is_dir():
        if not (path / "config.json").is_file():
            # old folders of sentence-transformers, and folders with two encoders, have one per subfolder
            inner = sorted(path.glob("*_Transformer/config.json")) or sorted(path.glob("*_encoder/config.json"))
            inside = " or ".join(str(config.parent) for config in inner)
            raise DrkitError(
                f"{path} has no config.json; give {inside or 'a folder that save_pretrained wrote, or a hub id'}"
            )
    elif path.exists():
        raise DrkitError(f"{path} is a file; give the folder of the checkpoint, or a hub id")
    elif not may_be_hub_id(path_or_id):
        raise DrkitError(
            f"no folder {path_or_id!r} exists, and it cannot be a hub id (NAME or OWNER/NAME); check the path"
        )


def may_be_hub_id(name: str) -> bool:
    """Return whether a text has the form NAME or OWNER/NAME.

    >>> may_be_hub_id("bert-base-uncased"), may_be_hub_id("intfloat/e5"), may_be_hub_id("./e5"), may_be_hub_id("")
    (True, True, False, False)
    """
    return name.count("/") <= 1 and not name.startswith((".", "~", "/")) and bool(name)


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide the progress bars of transformers in a block, and restore its setting afterwards."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
