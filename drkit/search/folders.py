"""Reading an encoder folder in the layout of sentence-transformers: backbone, pooling, similarity, lengths."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from drkit.core.loading import told_from
from drkit.core.quiet import without_bars
from drkit.encoders.architectures import longest_text
from drkit.encoders.folder import pooling_modes
from drkit.encoders.pooling import POOLINGS
from drkit.errors import DrkitError

_SIMILARITIES = {"cosine": "cosine", "dot": "dot", "dot_score": "dot", None: "cosine"}


def read_encoder_settings(folder: Path, modules: Mapping[str, str] | None = None) -> dict[str, Any]:
    """How a folder's vectors are made: the arguments of `TextEncoder`, and `transformer`, the backbone's folder.

    modules: their folders within this one, by name; as its modules.json says where None.

    Raises DrkitError where the folder has no modules.json, or a module, pooling or similarity drkit does not know.
    """
    modules = _known(folder, read_modules(folder) if modules is None else modules)
    transformer, pooling = folder / modules["Transformer"], _json(folder / modules["Pooling"] / "config.json")
    about = _json(folder / "config_sentence_transformers.json", {})
    own = _json(transformer / "drkit.json", {})
    length = _longest(transformer)
    return {
        "transformer": transformer,
        "pooling": pooling_of(pooling, folder),
        "similarity": _similarity(about, folder),
        "normalize": "Normalize" in modules,
        "query_length": own.get("query_length", length),
        "passage_length": own.get("passage_length", length),
        **_prompts(about, pooling, folder),
    }


def bare_settings(folder: Path, pooling: str) -> dict[str, Any]:
    """The arguments of `TextEncoder` for a bare transformers checkpoint, of which nothing but its lengths is known.

    Raises DrkitError where the folder has no config.json.
    """
    if not (folder / "config.json").is_file():
        raise DrkitError(f"{folder} holds no encoder: neither modules.json nor config.json; give an encoder's folder")
    return {"pooling": pooling, "query_length": _longest(folder), "passage_length": _longest(folder)}


def load_backbone(folder: Path) -> tuple[Any, Any]:
    """The transformer, in float32 and evaluation mode, and its tokenizer; nothing is fetched, no remote code is run.

    Raises DrkitError where either cannot be read.
    """
    from transformers import AutoModel, AutoTokenizer

    with told_from(str(folder), "load the encoder in", "Export it again."), without_bars():
        model = AutoModel.from_pretrained(folder, dtype="float32", local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return model.eval(), tokenizer


def read_modules(folder: Path) -> dict[str, str]:
    """The modules that a folder's modules.json names, and where they are. Raises DrkitError where it has none."""
    if not folder.is_dir():
        raise DrkitError(f"no encoder folder {folder}; give a folder that drkit or sentence-transformers wrote")
    if not any((folder / name).is_file() for name in ("modules.json", "config.json")):
        raise DrkitError(f"{folder} holds no encoder: neither modules.json nor config.json; give an encoder's folder")
    if not (folder / "modules.json").is_file():
        raise DrkitError(
            f"{folder} has no modules.json, so its pooling is unknown; say which: --pooling cls or mean "
            f"(in Python: TextEncoder.bare)"
        )
    return {m["type"].rsplit(".", 1)[-1]: m["path"] for m in _json(folder / "modules.json")}


def _known(folder: Path, modules: Mapping[str, str]) -> Mapping[str, str]:
    if "Router" in modules:
        raise DrkitError(
            f"{folder} holds an encoder of queries and one of passages, where one is wanted: give the folder of one "
            f"(drkit writes query_encoder and passage_encoder), or load both with DualEncoder"
        )
    unknown = sorted(set(modules) - {"Transformer", "Pooling", "Normalize"})
    if unknown or not {"Transformer", "Pooling"} <= set(modules):
        raise DrkitError(
            f"{folder}: modules {', '.join(modules)}; drkit reads Transformer, Pooling and, where given, Normalize"
        )
    return modules


def pooling_of(config: dict[str, Any], folder: Path | str) -> str:
    """The pooling that a Pooling module's settings say: cls or mean. Raises DrkitError for others."""
    modes = pooling_modes(config)
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise DrkitError(f"{folder}: pooling {', '.join(modes) or 'not given'}; drkit reads cls and mean")
    return str(modes[0])


def _similarity(about: dict[str, Any], folder: Path) -> str:
    name = about.get("similarity_fn_name")
    if name not in _SIMILARITIES:
        raise DrkitError(f"{folder}: similarity {name!r}; drkit searches with cosine and dot")
    return _SIMILARITIES[name]


def _prompts(about: dict[str, Any], pooling: dict[str, Any], folder: Path) -> dict[str, str]:
    prompts = about.get("prompts") or {}
    passage = next((prompts[key] for key in ("document", "passage", "corpus") if prompts.get(key)), "")
    found = {"query_prompt": prompts.get("query") or "", "passage_prompt": passage}
    if any(found.values()) and pooling.get("include_prompt") is False:
        raise DrkitError(f"{folder}: its pooling leaves the prompt out, which drkit cannot do")
    return found


def _longest(folder: Path) -> int:
    config, tokenizer = _json(folder / "config.json"), _json(folder / "tokenizer_config.json", {})
    told = _json(folder / "sentence_bert_config.json", {}).get("max_seq_length")
    limits = [told or tokenizer.get("model_max_length"), _positions(config)]
    return int(min([limit for limit in limits if limit], default=512))


def _positions(config: dict[str, Any]) -> int | None:
    """Tokens that the position table has room for; a configuration that leaves its padding id out means RoBERTa's."""
    if not config.get("max_position_embeddings"):
        return None
    return longest_text(SimpleNamespace(**{"model_type": "", "pad_token_id": 1, **config}))


def _json(path: Path, default: Any = None) -> Any:
    if default is not None and not path.is_file():
        return default
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DrkitError(f"cannot read {path}: {error.strerror}; is this an encoder folder?") from None
    except ValueError as error:
        raise DrkitError(f"{path} is no valid JSON: {error}") from None
