"""Encoder folders in the format of sentence-transformers: this module reads them, `drkit.encoders.export` writes them.

The weights are those of the backbone. How its hidden states become a vector is declared in files beside them, with the
names that sentence-transformers has used since version 2 and that versions 5 and 6 still read; `drkit.json` adds what
that format cannot say. Reading the declarations needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from drkit.core.files import local_path, read_json
from drkit.encoders.architectures import longest_text
from drkit.encoders.pooling import POOLINGS
from drkit.errors import DrkitError

QUERIES, PASSAGES = "query_encoder", "passage_encoder"
CONFIG, MODULES, DRKIT = "config.json", "modules.json", "drkit.json"
SETTINGS, ROUTER, LENGTH = "config_sentence_transformers.json", "router_config.json", "sentence_bert_config.json"
ROUTES = ("query", "document")
SIMILARITIES = ("cosine", "dot")
BFLOAT16 = "bfloat16"
PRECISIONS = ("float32", BFLOAT16)
# The modules of an encoder, by whether its vectors have length 1 and whether tokens have learned weights.
SUPPORTED_MODULES = {
    (normalize, weighted): (
        "Transformer",
        *(("WordWeights",) if weighted else ()),
        "Pooling",
        *(("Normalize",) if normalize else ()),
    )
    for normalize in (False, True)
    for weighted in (False, True)
}
# Takes the place of Pooling if the pooling is a part; its weights, in the module's folder or beside a checkpoint.
PART_POOLING, POOLING_FILE = "PartPooling", "pooling.safetensors"
# The modules of a SparseEncoder, whose pooling is `lexical`; newer versions call the first one Transformer.
LEXICAL, SPLADE_POOLING = "lexical", "SpladePooling"
LEXICAL_MODULES = ("MLMTransformer", SPLADE_POOLING)
# Keeps the first numbers of a vector; comes after Pooling.
TRUNCATION = "Dense"
STATIC_MODULES = {False: ("StaticEmbedding",), True: ("StaticEmbedding", "Normalize")}
# All poolings of sentence-transformers, by name; a Pooling module has one flag for each.
POOLING_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
# The backend that runs every encoder folder as it is.
TORCH = "torch"
_ADVICE = "is this an encoder folder? Give another one, or export it again"
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")
_SIMILARITY_BY_SAVED_NAME = {"cosine": "cosine", "dot": "dot", "dot_score": "dot", None: "cosine"}
_POOLING_BY_SAVED_NAME = {(pooling.saved_as, pooling.weighted): name for name, pooling in POOLINGS.items()}


class UnsupportedEncoderError(DrkitError):
    """An encoder folder of sentence-transformers with modules or settings that drkit does not compute itself."""


def read_encoder_settings(folder: Path, modules: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Read the settings of a `TextEncoder` from a folder, with the folders of its transformer and weights of pooling.

    modules: folder of each module, by module name; read from modules.json if None. Besides settings, the result has
    `transformer`, `word_weights` and `learned_pooling`: folders, the last two None without them; and
    `pooling_settings`: those of the pooling `lexical`, None with another one.

    Raises DrkitError if modules.json is missing, or a module, pooling or similarity is not supported.
    """
    modules = read_modules(folder) if modules is None else modules
    if SPLADE_POOLING in modules:
        return _read_lexical_settings(folder, modules)
    _check_modules(folder, modules)
    is_static = "StaticEmbedding" in modules
    transformer = folder / modules["StaticEmbedding" if is_static else "Transformer"]
    is_learned = PART_POOLING in modules
    pooling = (
        {"pooling_mode": "mean"}
        if is_static or is_learned
        else _read_object(folder / modules["Pooling"] / "config.json")
    )
    saved = _read_object(folder / SETTINGS, {})
    if any(_prompts(saved).values()) and pooling.get("include_prompt") is False:
        raise UnsupportedEncoderError(f"{folder}: unsupported pooling without the prompt (include_prompt = false)")
    if _read_object(transformer / LENGTH, {}).get("do_lower_case"):
        raise UnsupportedEncoderError(
            f"{folder} makes texts lower-case before it reads them (do_lower_case in {LENGTH})"
        )
    return {
        **_settings_of(transformer, saved),
        "word_weights": folder / modules["WordWeights"] if "WordWeights" in modules else None,
        "learned_pooling": folder / modules[PART_POOLING] if is_learned else None,
        "pooling": learned_pooling_name(folder / modules[PART_POOLING])
        if is_learned
        else pooling_of(pooling, folder, weighted="WordWeights" in modules),
        "similarity": _similarity(saved, folder),
        "normalize": "Normalize" in modules,
        "truncate_dim": _read_truncation(folder / modules[TRUNCATION]) if TRUNCATION in modules else None,
    }


def _settings_of(transformer: Path, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lengths and prompts of an encoder, and the defaults of what its modules declare."""
    own, length = _read_object(transformer / DRKIT, {}), _max_length(transformer)
    return {
        "transformer": transformer,
        "word_weights": None,
        "learned_pooling": None,
        "pooling_settings": None,
        "normalize": False,
        "truncate_dim": None,
        "query_length": own.get("query_length", length),
        "passage_length": own.get("passage_length", length),
        "passages_per_document": own.get("passages_per_document"),
        **_prompts(saved),
    }


def _read_lexical_settings(folder: Path, modules: Mapping[str, str]) -> dict[str, Any]:
    """Read a folder of a SparseEncoder: a masked LM and SpladePooling. Raises DrkitError for anything else."""
    pooling = _read_object(folder / modules[SPLADE_POOLING] / "config.json")
    saved = _read_object(folder / SETTINGS, {})
    transformer = folder / next(iter(modules.values()))
    if len(modules) != 2 or pooling.get("activation_function", "relu") != "relu":
        raise UnsupportedEncoderError(
            f"{folder}: unsupported modules ({', '.join(modules)}) or activation "
            f"({pooling.get('activation_function')}); drkit supports {' and '.join(LEXICAL_MODULES)} with relu"
        )
    own = _read_object(transformer / DRKIT, {})
    return {
        **_settings_of(transformer, saved),
        "pooling": LEXICAL,
        "pooling_settings": {
            "over_positions": pooling.get("pooling_strategy", "max"),
            "top_k": saved.get("max_active_dims") or 0,
            "dense": (own.get("pooling_settings") or {}).get("dense", ""),
        },
        "similarity": "dot",
    }


def learned_pooling_name(folder: Path) -> str:
    """Return the name of the part in a `PartPooling` module. Raises DrkitError if its file is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(folder / POOLING_FILE), framework="numpy") as file:
            return str(json.loads(file.metadata()["pooling"])["use"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DrkitError(f"cannot read the pooling in {folder / POOLING_FILE}: {error!r}; {_ADVICE}") from None


def _read_truncation(folder: Path) -> int:
    """Return how many numbers of a vector a Dense module keeps. Raises DrkitError if it computes anything else."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    config = _read_object(folder / "config.json")
    try:
        weights = load_file(str(folder / "model.safetensors"))
    except (OSError, SafetensorError) as error:
        raise DrkitError(f"cannot read the weights in {folder}: {error}; {_ADVICE}") from None
    linear = weights.pop("linear.weight", np.zeros((0, 0)))
    is_truncation = not weights and linear.ndim == 2 and np.array_equal(linear, np.eye(*linear.shape))
    if not is_truncation or not str(config.get("activation_function")).endswith(".Identity"):
        raise UnsupportedEncoderError(
            f"{folder}: unsupported Dense module; drkit supports those that keep the first numbers of a vector, as "
            f"`drkit export --dimension` writes them"
        )
    return len(linear)


def check_truncation(truncate_dim: int, dimension: int) -> None:
    """Raise DrkitError if vectors of `dimension` numbers are shorter than `truncate_dim`."""
    if truncate_dim > dimension:
        raise DrkitError(
            f"the vectors have {dimension} numbers and cannot be truncated to {truncate_dim}; choose a smaller number"
        )


def bare_settings(folder: Path, pooling: str) -> dict[str, Any]:
    """Return the arguments of `TextEncoder` for a bare transformers checkpoint, which declares only its lengths.

    Raises DrkitError if the folder has no config.json.
    """
    if not (folder / CONFIG).is_file():
        raise _not_an_encoder(folder)
    length = _max_length(folder)
    return {"pooling": pooling, "query_length": length, "passage_length": length}


def declared_settings(folder: Path) -> tuple[dict[str, Any], int | None]:
    """Return the pooling, lengths and prompts that a folder declares, and its maximum length, if any.

    Unlike `read_encoder_settings`, it omits what is missing or unsupported. Raises DrkitError for invalid JSON.
    """
    modules = read_modules(folder)
    modes = pooling_modes(_read_object(folder / modules["Pooling"] / "config.json", {})) if "Pooling" in modules else []
    prompts = {name: prompt for name, prompt in _prompts(_read_object(folder / SETTINGS, {})).items() if prompt}
    own = {key: value for key, value in _read_object(folder / DRKIT, {}).items() if value is not None}
    found = _supported_pooling(modes, weighted="WordWeights" in modules)
    pooling = {"pooling": found} if found else {}
    longest = _read_object(folder / LENGTH, {}).get("max_seq_length")
    return {**pooling, **prompts, **own}, longest


def read_modules(folder: Path) -> dict[str, str]:
    """Return the folder of each module named in modules.json. Raises DrkitError if that file is missing."""
    if not folder.is_dir():
        raise DrkitError(f"encoder folder not found: {folder}; give a folder written by drkit or sentence-transformers")
    if not any((folder / name).is_file() for name in (MODULES, CONFIG)):
        raise _not_an_encoder(folder)
    if not (folder / MODULES).is_file():
        raise DrkitError(
            f"{folder} has no {MODULES}, so its pooling is unknown; set it with "
            f"{' or '.join(f'--pooling {name}' for name in POOLINGS)} (in Python: TextEncoder.bare)"
        )
    found = read_json(folder / MODULES, _ADVICE)
    if not isinstance(found, list) or not all(isinstance(m, dict) and _is_inside(m.get("path")) for m in found):
        raise DrkitError(f"{folder / MODULES} must list modules, each with a `type`, and a `path` in it; {_ADVICE}")
    return {str(m.get("type")).rsplit(".", 1)[-1]: m["path"] for m in found}


def find_modules(folder: Path) -> dict[str, str]:
    """Return the folder of each module; empty for a checkpoint, which has no modules.json."""
    return read_modules(folder) if (folder / MODULES).is_file() else {}


def _is_inside(path: Any) -> bool:
    """Return whether the path of a module leads into its encoder's folder."""
    if not isinstance(path, str):
        return False
    found = local_path(path)
    return not found.is_absolute() and ".." not in found.parts


def is_dual(folder: Path) -> bool:
    """Return whether an encoder folder has separate encoders for queries and passages."""
    return "Router" in find_modules(folder)


def is_lexical(folder: Path) -> bool:
    """Return whether an encoder folder is a SparseEncoder, whose LM head scores words."""
    return SPLADE_POOLING in find_modules(folder)


def read_routes(folder: Path) -> list[dict[str, str]]:
    """Return the modules (name -> folder) of the query route and of the document route.

    Modules behind the router belong to both routes. Raises DrkitError if a route is missing.
    """
    shared = read_modules(folder)
    router = Path(shared.pop("Router"))
    path = folder / router / ROUTER
    try:
        config = _read_object(path)
        kinds = {name: kind.rsplit(".", 1)[-1] for name, kind in config["types"].items() if _is_inside(name)}
        routes = [{kinds[name]: str(router / name) for name in config["structure"][route]} for route in ROUTES]
    except (AttributeError, KeyError, TypeError) as error:
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
    names = {flag: name for name, flag in POOLING_FLAGS.items()}
    return [names.get(key, key) for key, on in config.items() if key.startswith("pooling_mode_") and on is True]


def pooling_of(config: Mapping[str, Any], folder: Path | str, *, weighted: bool = False) -> str:
    """Return the pooling in the settings of a Pooling module; weighted: behind a WordWeights module.

    Raises DrkitError if drkit does not support it.
    """
    modes = pooling_modes(config)
    found = _supported_pooling(modes, weighted=weighted)
    if found is None:
        given = (", ".join(modes) or "not given") + (" with WordWeights" if weighted else "")
        raise UnsupportedEncoderError(f"{folder}: unsupported pooling ({given}); drkit supports {', '.join(POOLINGS)}")
    return found


def read_word_weights(folder: Path) -> list[float]:
    """Return the weight of each token, by id, of a WordWeights module. Raises DrkitError if its file is invalid."""
    config = _read_object(folder / "config.json")
    try:
        known, unknown = config["word_weights"], config.get("unknown_word_weight", 1)
        return [float(known.get(word, known.get(word.lower(), unknown))) for word in config["vocab"]]
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise DrkitError(f"{folder} has no valid word weights ({error}); export the encoder again") from None


def _supported_pooling(modes: list[str], *, weighted: bool) -> str | None:
    return _POOLING_BY_SAVED_NAME.get((modes[0], weighted)) if len(modes) == 1 else None


def _check_modules(folder: Path, modules: Mapping[str, str]) -> None:
    if "Router" in modules:
        raise DrkitError(
            f"{folder} has separate encoders for queries and passages, but one encoder was expected: give the folder "
            f"of one of them (drkit writes {QUERIES} and {PASSAGES}), or load both with DualEncoder"
        )
    modules = {"Pooling" if name == PART_POOLING else name: path for name, path in modules.items()}
    kept = set(modules) - ({TRUNCATION} if "Pooling" in modules else set())
    supported = [names for names in (*SUPPORTED_MODULES.values(), *STATIC_MODULES.values()) if set(names) == kept]
    # A truncation comes before the vectors are normalised.
    ordered = supported and [name for name in modules if name != TRUNCATION] == [*supported[0]]
    if not ordered or list(modules)[-2:] == ["Normalize", TRUNCATION]:
        raise UnsupportedEncoderError(
            f"{folder}: unsupported modules ({', '.join(modules)}); drkit supports Transformer, Pooling and optionally "
            f"WordWeights, a truncating Dense and Normalize, and StaticEmbedding, optionally with Normalize"
        )


def _not_an_encoder(folder: Path) -> DrkitError:
    return DrkitError(f"{folder} is not an encoder folder (missing {MODULES} and {CONFIG}); give another folder")


def _similarity(saved: Mapping[str, Any], folder: Path) -> str:
    name = saved.get("similarity_fn_name")
    if name not in _SIMILARITY_BY_SAVED_NAME:
        raise DrkitError(f"unsupported similarity {name!r}; drkit supports cosine and dot", where=folder)
    return _SIMILARITY_BY_SAVED_NAME[name]


def _prompts(saved: Mapping[str, Any]) -> dict[str, str]:
    prompts = saved.get("prompts") or {}
    passage = next((prompts[key] for key in _DOCUMENT_PROMPTS if prompts.get(key)), "")
    return {"query_prompt": prompts.get("query") or "", "passage_prompt": passage}


def _max_length(folder: Path) -> int:
    """Return the maximum number of tokens that a folder declares, within the model's positions; 512 if unlimited."""
    config, tokenizer = _read_object(folder / CONFIG, {}), _read_object(folder / "tokenizer_config.json", {})
    declared = _read_object(folder / LENGTH, {}).get("max_seq_length")
    limits = [declared or tokenizer.get("model_max_length")]
    if config.get("max_position_embeddings"):
        # Without a padding id in the configuration, RoBERTa's default (1) applies.
        known = {"pad_token_id": 1, **config, "model_type": str(config.get("model_type"))}
        limits.append(longest_text(SimpleNamespace(**known)))
    return int(min([limit for limit in limits if limit], default=512))


# What a value must be, by its key, in any of an encoder folder's files that drkit reads.
_LENGTH = (lambda value: value is None or (type(value) in (int, float) and value >= 2), "a number from 2 on")
_OWN_LENGTH = (lambda value: type(value) is int and 2 <= value <= 131_072, "a whole number from 2 to 131,072")
_TEXT = (lambda value: value is None or isinstance(value, str), "a text")
_OBJECT = (lambda value: value is None or isinstance(value, dict), "an object")
_EXPECTED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "max_position_embeddings": _LENGTH,
    "max_seq_length": _LENGTH,
    "model_max_length": _LENGTH,
    "query_length": _OWN_LENGTH,
    "passage_length": _OWN_LENGTH,
    "passages_per_document": (lambda value: type(value) is int and value >= 2, "a whole number from 2 on"),
    "pad_token_id": (lambda value: value is None or (type(value) is int and 0 <= value < 2**31), "a token's id"),
    "model_type": _TEXT,
    "pooling": _TEXT,
    "query_prompt": _TEXT,
    "passage_prompt": _TEXT,
    "similarity_fn_name": _TEXT,
    "pooling_mode": (
        lambda value: value is None or all(isinstance(mode, str) for mode in ([value], value)[type(value) is list]),
        "a name or names",
    ),
    "prompts": (
        lambda value: value is None or (isinstance(value, dict) and all(map(_TEXT[0], value.values()))),
        "an object of texts",
    ),
    "pooling_settings": _OBJECT,
    "types": _OBJECT,
    "structure": _OBJECT,
}


def _read_object(path: Path, default: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON object in a file, or `default` if it is given and the file does not exist.

    Raises DrkitError if it is not an object, or a value that drkit uses is not of the expected kind.
    """
    if default is not None and not path.is_file():
        return dict(default)
    found = read_json(path, _ADVICE)
    if not isinstance(found, dict):
        raise DrkitError(f"{path} must be a JSON object, got {type(found).__name__}; {_ADVICE}")
    for key in found.keys() & _EXPECTED.keys():
        is_expected, what = _EXPECTED[key]
        if not is_expected(found[key]):
            raise DrkitError(f"{key!r} must be {what}, got {found[key]!r:.80}; {_ADVICE}", where=path)
    return found


def is_cross_encoder(folder: Path) -> bool:
    """Return whether a folder holds a cross-encoder, by its config.json."""
    if not (folder / CONFIG).is_file():
        return False
    config = read_json(folder / CONFIG, "give the folder of a model")
    return isinstance(config, dict) and "SequenceClassification" in str(config.get("architectures"))
