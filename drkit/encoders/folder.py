"""Encoder folders in the format of sentence-transformers: the only place that knows it, for reading and for writing.

Weights are those of the backbone alone. What turns hidden states into a vector is declared beside them, in the names
that sentence-transformers has used since version 2 and that versions 5 and 6 still read; `drkit.json` adds what that
format cannot say. Reading the declarations needs no torch.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attrs import asdict, field, frozen
from attrs.validators import ge, in_

from drkit.core.files import replacing_folder
from drkit.core.loading import explain_load_errors, without_progress_bars
from drkit.encoders.architectures import longest_text
from drkit.encoders.pooling import POOLINGS
from drkit.errors import DrkitError

QUERIES, PASSAGES = "query_encoder", "passage_encoder"
MODULES, DRKIT = "modules.json", "drkit.json"
_SETTINGS = "config_sentence_transformers.json"
_MODULE = "sentence_transformers.models."
_ROUTES = ("query", "document")
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")
_SUPPORTED_MODULES = ({"Transformer", "Pooling"}, {"Transformer", "Pooling", "Normalize"})
_SIMILARITIES = {"cosine": "cosine", "dot": "dot", "dot_score": "dot", None: "cosine"}
# All poolings of sentence-transformers, by name; a Pooling module has one flag for each.
_POOLING_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
_BY_SAVED_NAME = {pooling.saved_as: name for name, pooling in POOLINGS.items()}


# ---------------------------------------------------------------------------------------------------- reading


def read_encoder_settings(folder: Path, modules: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Read from a folder the arguments of `TextEncoder`, and `transformer`, the backbone's folder.

    modules: folder of each module, by module name; read from modules.json if None.

    Raises DrkitError if modules.json is missing, or a module, pooling or similarity is not supported.
    """
    modules = read_modules(folder) if modules is None else modules
    _check_modules(folder, modules)
    transformer, pooling = folder / modules["Transformer"], _read_json(folder / modules["Pooling"] / "config.json")
    saved = _read_json(folder / _SETTINGS, {})
    prompts = _prompts(saved)
    if any(prompts.values()) and pooling.get("include_prompt") is False:
        raise DrkitError(f"{folder}: unsupported pooling without the prompt (include_prompt = false)")
    own, length = _read_json(transformer / DRKIT, {}), _max_length(transformer)
    return {
        "transformer": transformer,
        "pooling": pooling_of(pooling, folder),
        "similarity": _similarity(saved, folder),
        "normalize": "Normalize" in modules,
        "query_length": own.get("query_length", length),
        "passage_length": own.get("passage_length", length),
        **prompts,
    }


def bare_settings(folder: Path, pooling: str) -> dict[str, Any]:
    """Return the arguments of `TextEncoder` for a bare transformers checkpoint, which declares only its lengths.

    Raises DrkitError if the folder has no config.json.
    """
    if not (folder / "config.json").is_file():
        raise _not_an_encoder(folder)
    length = _max_length(folder)
    return {"pooling": pooling, "query_length": length, "passage_length": length}


def declared_settings(folder: Path) -> tuple[dict[str, Any], int | None]:
    """Return what a folder declares of pooling, lengths and prompts, and its maximum length if it has one.

    Unlike `read_encoder_settings` it leaves out what is missing or unsupported. Raises DrkitError for invalid JSON.
    """
    modules = read_modules(folder)
    modes = pooling_modes(_read_json(folder / modules["Pooling"] / "config.json", {})) if "Pooling" in modules else []
    prompts = {name: prompt for name, prompt in _prompts(_read_json(folder / _SETTINGS, {})).items() if prompt}
    own = {key: value for key, value in _read_json(folder / DRKIT, {}).items() if value is not None}
    pooling = {"pooling": _BY_SAVED_NAME[modes[0]]} if len(modes) == 1 and modes[0] in _BY_SAVED_NAME else {}
    longest = _read_json(folder / "sentence_bert_config.json", {}).get("max_seq_length")
    return {**pooling, **prompts, **own}, longest


def load_backbone(folder: Path) -> tuple[Any, Any]:
    """Load the transformer (float32, evaluation mode) and its tokenizer; downloads nothing, runs no remote code.

    Raises DrkitError if either cannot be read.
    """
    from transformers import AutoModel, AutoTokenizer

    with explain_load_errors(str(folder), "load the encoder in", "Export it again."), without_progress_bars():
        model = AutoModel.from_pretrained(folder, dtype="float32", local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return model.eval(), tokenizer


def read_modules(folder: Path) -> dict[str, str]:
    """Return the folder of each module named in modules.json. Raises DrkitError if that file is missing."""
    if not folder.is_dir():
        raise DrkitError(f"encoder folder not found: {folder}; give a folder written by drkit or sentence-transformers")
    if not any((folder / name).is_file() for name in (MODULES, "config.json")):
        raise _not_an_encoder(folder)
    if not (folder / MODULES).is_file():
        raise DrkitError(
            f"{folder} has no {MODULES}, so its pooling is unknown; set it with --pooling ({', '.join(POOLINGS)}; in "
            f"Python: TextEncoder.bare)"
        )
    return {str(m["type"]).rsplit(".", 1)[-1]: m["path"] for m in _read_json(folder / MODULES)}


def is_dual(folder: Path) -> bool:
    """Whether an encoder folder has separate encoders for queries and passages."""
    return (folder / MODULES).is_file() and "Router" in read_modules(folder)


def read_routes(folder: Path) -> list[dict[str, str]]:
    """Return the modules (name -> folder) of the query route and of the document route.

    Modules behind the router belong to both routes. Raises DrkitError if a route is missing.
    """
    shared = read_modules(folder)
    router = Path(shared.pop("Router"))
    path = folder / router / "router_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        kinds = {name: kind.rsplit(".", 1)[-1] for name, kind in config["types"].items()}
        routes = [{kinds[name]: str(router / name) for name in config["structure"][route]} for route in _ROUTES]
    except (OSError, ValueError, KeyError) as error:
        raise DrkitError(
            f"{path} does not define the modules for queries and documents ({error}); "
            f"drkit supports routers of sentence-transformers with the routes 'query' and 'document'"
        ) from None
    return [{**modules, **shared} for modules in routes]


def pooling_modes(config: Mapping[str, Any]) -> list[str]:
    """Return the poolings in the settings of a Pooling module, old style or new, by sentence-transformers' names.

    >>> pooling_modes({"pooling_mode_mean_tokens": True}), pooling_modes({"pooling_mode": "cls"})
    (['mean'], ['cls'])
    """
    if named := config.get("pooling_mode"):
        return [named] if isinstance(named, str) else list(named)
    names = {flag: name for name, flag in _POOLING_FLAGS.items()}
    return [names.get(key, key) for key, on in config.items() if key.startswith("pooling_mode_") and on is True]


def pooling_of(config: Mapping[str, Any], folder: Path | str) -> str:
    """Return the pooling in the settings of a Pooling module. Raises DrkitError if drkit does not support it."""
    modes = pooling_modes(config)
    if len(modes) != 1 or modes[0] not in _BY_SAVED_NAME:
        raise DrkitError(
            f"{folder}: unsupported pooling ({', '.join(modes) or 'not given'}); drkit supports {', '.join(POOLINGS)}"
        )
    return _BY_SAVED_NAME[modes[0]]


def _check_modules(folder: Path, modules: Mapping[str, str]) -> None:
    if "Router" in modules:
        raise DrkitError(
            f"{folder} has separate encoders for queries and passages, but one encoder was expected; give the folder "
            f"of one of them (drkit writes {QUERIES} and {PASSAGES}), or load both with DualEncoder"
        )
    if set(modules) not in _SUPPORTED_MODULES:
        raise DrkitError(
            f"{folder}: unsupported modules ({', '.join(modules)}); drkit supports Transformer, Pooling and optionally "
            f"Normalize"
        )


def _not_an_encoder(folder: Path) -> DrkitError:
    return DrkitError(f"{folder} is not an encoder folder (missing {MODULES} and config.json); give another folder")


def _similarity(saved: Mapping[str, Any], folder: Path) -> str:
    name = saved.get("similarity_fn_name")
    if name not in _SIMILARITIES:
        raise DrkitError(f"{folder}: unsupported similarity {name!r}; drkit supports cosine and dot")
    return _SIMILARITIES[name]


def _prompts(saved: Mapping[str, Any]) -> dict[str, str]:
    prompts = saved.get("prompts") or {}
    passage = next((prompts[key] for key in _DOCUMENT_PROMPTS if prompts.get(key)), "")
    return {"query_prompt": prompts.get("query") or "", "passage_prompt": passage}


def _max_length(folder: Path) -> int:
    """The maximum tokens of a text: what the folder declares, within the positions of the model; else 512."""
    config, tokenizer = _read_json(folder / "config.json"), _read_json(folder / "tokenizer_config.json", {})
    declared = _read_json(folder / "sentence_bert_config.json", {}).get("max_seq_length")
    limits = [declared or tokenizer.get("model_max_length")]
    if config.get("max_position_embeddings"):
        # A configuration without a padding id has RoBERTa's, 1.
        limits.append(longest_text(SimpleNamespace(**{"model_type": "", "pad_token_id": 1, **config})))
    return int(min([limit for limit in limits if limit], default=512))


def _read_json(path: Path, default: Any = None) -> Any:
    """The JSON in a file; `default`, if it is given and the file does not exist."""
    if default is not None and not path.is_file():
        return default
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DrkitError(f"cannot read {path}: {error.strerror}; is this an encoder folder?") from None
    except ValueError as error:
        raise DrkitError(f"{path} is not valid JSON ({error}); is this an encoder folder?") from None


# ---------------------------------------------------------------------------------------------------- writing


@frozen
class _Declared:
    """How vectors are made of hidden states; validated here, written to several files."""

    pooling: str = field(validator=in_(tuple(POOLINGS)))
    similarity: str = field(validator=in_(("cosine", "dot")))
    query_length: int = field(validator=ge(2))
    passage_length: int = field(validator=ge(2))
    query_prompt: str = ""
    passage_prompt: str = ""
    normalize: bool = False


def export_encoder(
    model: Any,
    tokenizer: Any,
    folder: str | Path,
    *,
    pooling: str,
    similarity: str,
    query_length: int,
    passage_length: int,
    query_prompt: str = "",
    passage_prompt: str = "",
    normalize: bool = False,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write the encoder folder, atomically: weights, tokenizer, pooling, similarity, lengths and a model card.

    model: a Hugging Face backbone, or a masked LM, whose head is dropped. pooling: a name of
    `drkit.encoders.pooling.POOLINGS`. similarity: `cosine` or `dot`. query_length, passage_length: in tokens, special
    ones included. Prompts are put before every text, in sentence-transformers by `encode_query` and `encode_document`.
    normalize: vectors of length 1 also under dot. provenance: where the model comes from, for the model card.

    Raises DrkitError if a setting is invalid, or AutoModel cannot rebuild the model.
    """
    try:
        how = _Declared(
            pooling, similarity, query_length, passage_length, query_prompt, passage_prompt, normalize=normalize
        )
    except ValueError as error:
        raise DrkitError(f"cannot export the encoder: {error.args[0]}") from None
    backbone = _as_auto_model(getattr(model, "base_model", model))
    with replacing_folder(Path(folder), MODULES) as temporary:
        with without_progress_bars():
            backbone.save_pretrained(temporary)
        _save_tokenizer(tokenizer, temporary, how)
        _write_declarations(temporary, how, int(backbone.config.hidden_size))
        _write_json(temporary / DRKIT, {"format": 1, **asdict(how), "provenance": dict(provenance or {})})
        (temporary / "README.md").write_text(_model_card(how, provenance or {}), encoding="utf-8")
    return Path(folder)


def export_dual(
    queries: tuple[Any, Any],
    passages: tuple[Any, Any],
    folder: str | Path,
    *,
    provenance: Mapping[str, Any] | None = None,
    **declared: Any,
) -> Path:
    """Write the folder of two encoders, atomically: a `Router` of sentence-transformers with one encoder per route.

    `query_encoder/` and `passage_encoder/` are as `export_encoder` writes them, so each can be loaded by itself; the
    folder's `encode_query` uses one and `encode_document` the other. queries, passages: (model, tokenizer) of each;
    declared: the other settings of `export_encoder`.

    Raises DrkitError as `export_encoder` does.
    """
    with replacing_folder(Path(folder), MODULES) as temporary:
        for name, (model, tokenizer) in ((QUERIES, queries), (PASSAGES, passages)):
            export_encoder(model, tokenizer, temporary / name, provenance=provenance, **declared)
        how = _Declared(**declared)
        modules = [
            [name + "/" + part if part else name for part in _modules_of(how).values()] for name in (QUERIES, PASSAGES)
        ]
        kinds = {path: _MODULE + kind for paths in modules for path, kind in zip(paths, _modules_of(how), strict=True)}
        structure = dict(zip(_ROUTES, modules, strict=True))
        parameters = {"default_route": None, "allow_empty_key": True}
        _write_json(temporary / MODULES, [{"idx": 0, "name": "0", "path": "", "type": f"{_MODULE}Router"}])
        _write_json(
            temporary / "router_config.json", {"types": kinds, "structure": structure, "parameters": parameters}
        )
        _write_json(temporary / _SETTINGS, _model_settings(how))
        (temporary / "README.md").write_text(_model_card(how, provenance or {}), encoding="utf-8")
    return Path(folder)


def _as_auto_model(backbone: Any) -> Any:
    """A copy on the CPU in float32, of the class that `AutoModel` builds for the configuration."""
    from transformers import AutoModel

    from drkit.encoders.seeding import seeded

    with seeded(0, "export"):
        model = AutoModel.from_config(copy.deepcopy(backbone.config)).float()
    weights = {name: value.detach().cpu().float() for name, value in backbone.state_dict().items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    wrong = [name for name in missing if not name.startswith("pooler.")] + list(unexpected)
    if wrong:
        raise DrkitError(
            f"cannot export a {type(backbone).__name__}: its weights do not match {type(model).__name__} (first: "
            f"{wrong[0]!r}); export the backbone of a Hugging Face masked LM"
        )
    if missing:
        _neutral_pooler(model.pooler)
    return model.eval()


def _neutral_pooler(pooler: Any) -> None:
    """Set a pooler to the identity: masked LMs have none, and AutoModel would draw one at random, with a warning."""
    import torch

    with torch.no_grad():
        for parameter in pooler.parameters():
            parameter.copy_(torch.eye(*parameter.shape) if parameter.ndim == 2 else torch.zeros_like(parameter))


def _save_tokenizer(tokenizer: Any, folder: Path, how: _Declared) -> None:
    exported = copy.deepcopy(tokenizer)
    exported.model_max_length = max(how.query_length, how.passage_length)
    exported.save_pretrained(folder)
    # Training leaves its last padding and truncation in this file; every loader sets its own.
    file = folder / "tokenizer.json"
    if file.is_file():
        content = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps({**content, "padding": None, "truncation": None}, ensure_ascii=False, indent=2))


def _write_declarations(folder: Path, how: _Declared, hidden: int) -> None:
    named = _modules_of(how)
    for path in filter(None, named.values()):
        (folder / path).mkdir()
    modules = [
        {"idx": idx, "name": str(idx), "path": path, "type": _MODULE + name}
        for idx, (name, path) in enumerate(named.items())
    ]
    flags = {flag: name == POOLINGS[how.pooling].saved_as for name, flag in _POOLING_FLAGS.items()}
    longest = max(how.query_length, how.passage_length)
    _write_json(folder / MODULES, modules)
    _write_json(
        folder / "1_Pooling" / "config.json", {"word_embedding_dimension": hidden, **flags, "include_prompt": True}
    )
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})
    _write_json(folder / _SETTINGS, _model_settings(how))


def _modules_of(how: _Declared) -> dict[str, str]:
    """The modules of sentence-transformers, and the folder of each."""
    names = ["Transformer", "Pooling", *(["Normalize"] if how.similarity == "cosine" or how.normalize else [])]
    return {name: f"{index}_{name}" if index else "" for index, name in enumerate(names)}


def _model_settings(how: _Declared) -> dict[str, Any]:
    import torch

    return {
        "__version__": {"pytorch": torch.__version__, "transformers": version("transformers")},
        "prompts": {"query": how.query_prompt, "document": how.passage_prompt},
        "default_prompt_name": None,
        "similarity_fn_name": how.similarity,
    }


def _model_card(how: _Declared, provenance: Mapping[str, Any]) -> str:
    facts = "".join(f"| {key} | {_cell(value)} |\n" for key, value in {**asdict(how), **provenance}.items())
    return (
        "---\nlibrary_name: sentence-transformers\npipeline_tag: sentence-similarity\n"
        "tags: [drkit, sentence-transformers, feature-extraction]\n---\n\n"
        "# Dense retriever trained with drkit\n\n"
        "```python\nfrom sentence_transformers import SentenceTransformer\n\n"
        'encoder = SentenceTransformer("path/to/this/folder")\n'
        'queries, passages = encoder.encode_query(["a query"]), encoder.encode_document(["a passage"])\n'
        "scores = encoder.similarity(queries, passages)\n```\n\n"
        f"drkit truncates queries at {how.query_length} tokens and passages at {how.passage_length}; "
        f"sentence-transformers has one limit for both, {max(how.query_length, how.passage_length)}. A text is "
        "encoded title first, then body, with a space between.\n\n"
        f"| | |\n|---|---|\n{facts}"
    )


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text.replace("|", "\\|").replace("\n", " ")


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
