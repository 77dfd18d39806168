"""Encoder folders in the format of sentence-transformers: this module reads them, `drkit.encoders.export` writes them.

The weights are those of the backbone. How its hidden states become a vector is declared in files beside them, with the
names that sentence-transformers has used since version 2 and that versions 5 and 6 still read; `drkit.json` adds what
that format cannot say. Reading the declarations needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from drkit.core.files import local_path, read_json
from drkit.data.titles import JOINED, Titles
from drkit.encoders.declarations import (
    ADVICE,
    CONFIG,
    DENSE_SETTINGS,
    DRKIT,
    FEATURES,
    MODULES,
    NORMALIZE_SETTINGS,
    POOLING_SETTINGS,
    SETTINGS,
    SPARSE_ENCODER,
    SPLADE_SETTINGS,
    WORD_LOGITS,
    WORD_WEIGHTS_SETTINGS,
    UnsupportedEncoderError,
    check_model_type,
    check_settings,
    check_transformer,
    declared_length,
    declared_lengths,
    declared_prompts,
    max_length,
    model_settings,
    model_type,
    module_class,
    pooling_modes,
    read_object,
    static_lengths,
    transformer_settings,
)
from drkit.encoders.pooling import POOLINGS
from drkit.errors import DrkitError

QUERIES, PASSAGES = "query_encoder", "passage_encoder"
ROUTER = "router_config.json"
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
# The backend that runs every encoder folder as it is.
TORCH = "torch"
_SIMILARITY_BY_SAVED_NAME = {"cosine": "cosine", "dot": "dot", "dot_score": "dot", None: "cosine"}
_POOLING_BY_SAVED_NAME = {(pooling.saved_as, pooling.weighted): name for name, pooling in POOLINGS.items()}


def read_encoder_settings(folder: Path, modules: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Read the settings of a `TextEncoder` from a folder, with the folders of its transformer and weights of pooling.

    modules: folder of each module, by module name; read from modules.json if None. Besides settings, the result has
    `transformer`, `word_weights` and `learned_pooling`: folders, the last two None without them; and
    `pooling_settings`: those of the pooling `lexical`, None with another one.

    Raises DrkitError if modules.json is missing, and UnsupportedEncoderError, with the file and the key, for anything
    declared that drkit does not compute: a module, a setting of one, a pooling or a similarity.
    """
    modules, saved = read_modules(folder) if modules is None else modules, model_settings(folder)
    if "CNN" in modules:
        raise DrkitError(f"{folder} has a CNN: its vectors depend on the other texts of a batch; give another encoder")
    if SPLADE_POOLING in modules:
        return _read_lexical_settings(folder, modules, saved)
    _check_modules(folder, modules)
    if model_type(saved) == SPARSE_ENCODER:
        raise UnsupportedEncoderError(
            f"{folder} is a {SPARSE_ENCODER} of {', '.join(modules)}; drkit computes those of "
            f"{' and '.join(LEXICAL_MODULES)}"
        )
    is_static = "StaticEmbedding" in modules
    transformer = folder / modules["StaticEmbedding" if is_static else "Transformer"]
    if not is_static:
        check_transformer(transformer, FEATURES)
    if "Normalize" in modules:
        path = folder / modules["Normalize"] / "config.json"
        check_settings(path, read_object(path, {}), NORMALIZE_SETTINGS)
    return {
        **_settings_of(transformer, saved, is_static=is_static),
        **_read_pooling(folder, modules),
        "similarity": _similarity(saved, folder),
        "normalize": "Normalize" in modules,
        "truncate_dim": _truncate_dim(folder, modules, saved),
    }


def _settings_of(transformer: Path, saved: Mapping[str, Any], *, is_static: bool = False) -> dict[str, Any]:
    """Return the lengths and prompts of an encoder, and the defaults of what its modules declare."""
    own = read_object(transformer / DRKIT, {})
    return {
        "transformer": transformer,
        "word_weights": None,
        "learned_pooling": None,
        "pooling_settings": None,
        "normalize": False,
        "truncate_dim": None,
        **(static_lengths(transformer) if is_static else declared_lengths(transformer)),
        "passages_per_document": own.get("passages_per_document"),
        **declared_prompts(saved),
    }


def _read_pooling(folder: Path, modules: Mapping[str, str]) -> dict[str, Any]:
    """Return the pooling of an encoder, with the folder of its weights."""
    if PART_POOLING in modules:
        learned = folder / modules[PART_POOLING]
        return {"pooling": learned_pooling_name(learned), "learned_pooling": learned}
    if "Pooling" not in modules:
        return {"pooling": "mean"}
    path, weighted = folder / modules["Pooling"] / "config.json", "WordWeights" in modules
    pooling = read_object(path)
    check_settings(path, pooling, POOLING_SETTINGS)
    return {
        "pooling": pooling_of(pooling, folder, weighted=weighted),
        "word_weights": folder / modules["WordWeights"] if weighted else None,
    }


def _truncate_dim(folder: Path, modules: Mapping[str, str], saved: Mapping[str, Any]) -> int | None:
    """Return how many numbers of a vector are kept, by a Dense module or by the settings of the model; None: all."""
    cuts = [saved["truncate_dim"]] if saved.get("truncate_dim") else []
    if cuts and "Normalize" in modules and _similarity(saved, folder) == "dot":
        raise UnsupportedEncoderError(
            f"{folder / SETTINGS}: unsupported setting truncate_dim = {cuts[0]} of normalised vectors that are "
            f"compared by dot product: what is left of them does not have length 1"
        )
    if TRUNCATION in modules:
        cuts.append(_read_truncation(folder / modules[TRUNCATION]))
    return min(cuts, default=None)


def _read_lexical_settings(folder: Path, modules: Mapping[str, str], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Read a folder of a SparseEncoder: a masked LM and SpladePooling. Raises DrkitError for anything else."""
    first, *rest = modules
    if first not in (LEXICAL_MODULES[0], "Transformer") or rest != [SPLADE_POOLING]:
        raise UnsupportedEncoderError(
            f"{folder}: unsupported modules ({', '.join(modules)}); drkit supports {' and '.join(LEXICAL_MODULES)}"
        )
    path = folder / modules[SPLADE_POOLING] / "config.json"
    pooling = read_object(path)
    check_settings(path, pooling, SPLADE_SETTINGS)
    transformer = folder / modules[first]
    check_transformer(transformer, WORD_LOGITS)
    if saved.get("similarity_fn_name") not in (None, "dot"):
        raise UnsupportedEncoderError(
            f"{folder / SETTINGS}: unsupported setting similarity_fn_name = {saved['similarity_fn_name']!r} of an "
            f"encoder of word scores; drkit compares them by dot product"
        )
    own = read_object(transformer / DRKIT, {})
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
        raise DrkitError(f"cannot read the pooling in {folder / POOLING_FILE}: {error!r}; {ADVICE}") from None


def _read_truncation(folder: Path) -> int:
    """Return how many numbers of a vector a Dense module keeps. Raises DrkitError if it computes anything else."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    config = read_object(folder / "config.json")
    check_settings(folder / "config.json", config, DENSE_SETTINGS)
    try:
        weights = load_file(str(folder / "model.safetensors"))
    except (OSError, SafetensorError) as error:
        raise DrkitError(f"cannot read the weights in {folder}: {error}; {ADVICE}") from None
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
    length = max_length(folder)
    return {"pooling": pooling, "query_length": length, "passage_length": length}


def declared_settings(folder: Path) -> tuple[dict[str, Any], int | None]:
    """Return the pooling, lengths and prompts that a folder declares, and its maximum length, if any.

    Unlike `read_encoder_settings`, it omits what is missing or unsupported. Raises DrkitError for invalid JSON, and for
    a model that is not an encoder of single vectors.
    """
    modules = read_modules(folder)
    modes = pooling_modes(read_object(folder / modules["Pooling"] / "config.json", {})) if "Pooling" in modules else []
    model = read_object(folder / SETTINGS, {})
    prompts = {name: prompt for name, prompt in declared_prompts(model).items() if prompt}
    own = {key: value for key, value in read_object(folder / DRKIT, {}).items() if value is not None}
    found = _supported_pooling(modes, weighted="WordWeights" in modules)
    pooling: dict[str, Any] = {"pooling": found} if found else {}
    if SPLADE_POOLING in modules:
        pooling = _declared_scores(read_object(folder / modules[SPLADE_POOLING] / "config.json", {}), model)
    reading = transformer_settings(folder)[1]
    named = {"query_length": "query_length", "passage_length": "document_length"}
    lengths = {name: reading[key] for name, key in named.items() if reading.get(key)}
    truncation = {"truncate_dim": model["truncate_dim"]} if model.get("truncate_dim") else {}
    titles = {} if (reads := declared_titles(folder)) == JOINED else {"titles": reads}
    return {**pooling, **truncation, **prompts, **lengths, **own, **titles}, declared_length(folder)


def declared_titles(folder: Path) -> str:
    """Return how the transformer in a folder reads titles. Raises DrkitError for an unknown way."""
    return Titles.of_config(SimpleNamespace(**read_object(folder / CONFIG, {}))).reads


def _declared_scores(pooling: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pooling of a SparseEncoder, with those of its settings that are not drkit's defaults.

    Empty if drkit does not compute it.
    """
    if pooling.get("activation_function", "relu") != "relu":
        return {}
    given = {
        **({"over_positions": "sum"} if pooling.get("pooling_strategy") == "sum" else {}),
        **({"top_k": model["max_active_dims"]} if model.get("max_active_dims") else {}),
    }
    return {"pooling": LEXICAL, **({"pooling_settings": given} if given else {})}


def read_modules(folder: Path) -> dict[str, str]:
    """Return the folder of each module named in modules.json, by the name of its class.

    The second module of a class is called `Dense 2`, and one that is called with arguments names them, so that neither
    is taken for a module that drkit computes. Raises DrkitError if the file is missing, for a module of another
    package, and for a model that is not an encoder of single vectors.
    """
    if not folder.is_dir():
        raise DrkitError(f"encoder folder not found: {folder}; give a folder written by drkit or sentence-transformers")
    if not any((folder / name).is_file() for name in (MODULES, CONFIG)):
        raise _not_an_encoder(folder)
    if not (folder / MODULES).is_file():
        raise DrkitError(
            f"{folder} has no {MODULES}, so its pooling is unknown; set it with "
            f"{' or '.join(f'--pooling {name}' for name in POOLINGS)} (in Python: TextEncoder.bare)"
        )
    check_model_type(folder)
    return listed_modules(folder)


def listed_modules(folder: Path) -> dict[str, str]:
    """Return the folder of each module named in the modules.json of any model; see `read_modules`.

    Raises DrkitError for a module of another package.
    """
    found = read_json(folder / MODULES, ADVICE)
    if not isinstance(found, list) or not all(isinstance(m, dict) and _is_inside(m.get("path")) for m in found):
        raise DrkitError(f"{folder / MODULES} must list modules, each with a `type`, and a `path` in it; {ADVICE}")
    names = [
        module_class(folder / MODULES, module.get("type"))
        + (f" with {kwargs}" if (kwargs := module.get("kwargs")) else "")
        for module in found
    ]
    return dict(zip(_numbered(names), (module["path"] for module in found), strict=True))


def _numbered(names: Sequence[str]) -> list[str]:
    """Return the names with numbers after the first occurrence of each.

    >>> _numbered(["Dense", "Normalize", "Dense"])
    ['Dense', 'Normalize', 'Dense 2']
    """
    counts = [names[: at + 1].count(name) for at, name in enumerate(names)]
    return [name if count == 1 else f"{name} {count}" for name, count in zip(names, counts, strict=True)]


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

    Modules behind the router belong to both routes. Raises DrkitError if a route is missing or has modules of another
    package, and UnsupportedEncoderError for modules before the router and for routes by anything but the task.
    """
    shared = read_modules(folder)
    first, router = next(iter(shared)), Path(shared.pop("Router"))
    path = folder / router / ROUTER
    try:
        config = read_object(path)
        paths = [[name for name in config["structure"][route] if _is_inside(name)] for route in ROUTES]
        kinds = {name: module_class(path, config["types"][name]) for names in paths for name in names}
    except (AttributeError, KeyError, TypeError) as error:
        raise DrkitError(
            f"{path} does not define the modules for queries and documents ({error}); "
            f"drkit supports routers of sentence-transformers with the routes 'query' and 'document'"
        ) from None
    if first != "Router" or (config.get("parameters") or {}).get("route_mappings"):
        raise UnsupportedEncoderError(f"{path}: unsupported router (route_mappings, or modules before it)")
    found = (
        zip(_numbered([kinds[n] for n in names]), (str(router / n) for n in names), strict=True) for names in paths
    )
    return [{**dict(modules), **shared} for modules in found]


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
    config = read_object(folder / "config.json")
    check_settings(folder / "config.json", config, WORD_WEIGHTS_SETTINGS)
    try:
        known, unknown = config["word_weights"], config.get("unknown_word_weight", 1)
        weights = [float(known.get(word, known.get(word.lower(), unknown))) for word in config["vocab"]]
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise DrkitError(f"{folder} has no valid word weights ({error}); export the encoder again") from None
    if min(weights, default=0) < 0:
        raise UnsupportedEncoderError(f"{folder}: unsupported negative word weights; drkit's are 0 or more")
    return weights


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
        raise UnsupportedEncoderError(f"unsupported similarity {name!r}; drkit supports cosine and dot", where=folder)
    return _SIMILARITY_BY_SAVED_NAME[name]


def is_cross_encoder(folder: Path) -> bool:
    """Return whether a folder holds a cross-encoder, by its config.json."""
    if not (folder / CONFIG).is_file():
        return False
    config = read_json(folder / CONFIG, "give the folder of a model")
    return isinstance(config, dict) and "SequenceClassification" in str(config.get("architectures"))
