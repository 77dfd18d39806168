"""Ids on the Hugging Face hub: whether a text may be one, and whether the hub answers. Imports no torch."""

from __future__ import annotations

import logging
from functools import cache
from threading import Thread
from typing import Literal

from drkit.core.files import adapter_base, local_path
from drkit.errors import DrkitError

_LOGGER = logging.getLogger("drkit")
_PATIENCE = 4.0
HubKind = Literal["model", "dataset"]


def reaches_hub(path_or_id: str, kind: HubKind = "model") -> bool:
    """Return whether a model or dataset may be fetched from the hub; if not, it is a folder, or a copy is in the cache.

    Says what is looked up, on the logger `drkit`. Raises DrkitError if the hub is needed and does not answer within
    some seconds: its own clients try for more than a minute. `HF_HUB_OFFLINE=1` asks nobody.
    """
    if local_path(path_or_id).exists():
        return False
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    is_kept = kind == "model" and is_cached(path_or_id)
    if not is_kept:
        _LOGGER.warning("looking up the %s %r on %s: no such folder exists", kind, path_or_id, constants.ENDPOINT)
    if _answers(path_or_id, kind):
        return True
    if is_kept:
        return False
    # The cache of datasets does not say what it has.
    cache = "" if kind == "model" else ", or set HF_HUB_OFFLINE=1 to read a copy from the cache"
    raise DrkitError(
        f"no folder {path_or_id!r} exists, and {constants.ENDPOINT} does not answer, so it cannot be looked up as "
        f"a hub id: check the spelling and the network, or give the path of a folder{cache}"
    )


def is_cached(hub_id: str) -> bool:
    """Return whether the hub's cache has a copy of a model. Raises ValueError for what cannot be a hub id."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(hub_id, "config.json"), str)


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
        if not (path / "config.json").is_file() and not adapter_base(path):
            # old folders of sentence-transformers, and folders with two encoders, have one per subfolder
            inner = sorted(path.glob("*_Transformer/config.json")) or sorted(path.glob("*_encoder/config.json"))
            inside = " or ".join(str(config.parent) for config in inner)
            raise DrkitError(
                f"{path} has no config.json; give {inside or 'a folder that save_pretrained wrote, or a hub id'}"
            )
    elif path.exists():
        raise DrkitError(f"{path} is a file; give the folder of the checkpoint, or a hub id")
    else:
        require_hub_id(path_or_id)


def require_hub_id(name: str) -> None:
    """Raise DrkitError if the path of a missing folder cannot be a hub id either."""
    if not may_be_hub_id(name):
        raise DrkitError(f"no folder {name!r} exists, and it cannot be a hub id (NAME or OWNER/NAME); check the path")


def may_be_hub_id(name: str) -> bool:
    """Return whether a text has the form NAME or OWNER/NAME.

    >>> may_be_hub_id("bert-base-uncased"), may_be_hub_id("intfloat/e5"), may_be_hub_id("./e5"), may_be_hub_id("")
    (True, True, False, False)
    """
    return name.count("/") <= 1 and not name.startswith((".", "~", "/")) and bool(name)
