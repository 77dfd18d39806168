"""Encoder folders in the format of sentence-transformers: their modules, and the two routes of separate encoders.

The weights are those of the backbone. How its hidden states become a vector is declared in files beside them, with the
names that sentence-transformers has used since version 2 and that versions 5 and 6 still read; `drkit.json` adds what
that format cannot say. `drkit.encoders.card` reads and writes these declarations; `drkit.encoders.export` writes the
weights, too. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drkit.core.files import local_path, read_json
from drkit.encoders.declarations import (
    ADVICE,
    CONFIG,
    MODULES,
    SPARSE_ENCODER,
    WORD_WEIGHTS_SETTINGS,
    UnsupportedEncoderError,
    check_model_type,
    check_settings,
    module_class,
    pooling_modes,
    read_object,
)
from drkit.encoders.pooling import POOLINGS
from drkit.errors import DrkitError

QUERY_ENCODER, PASSAGE_ENCODER = "query_encoder", "passage_encoder"
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
# In that module, the masked LM whose head the pooling applies, if the transformer has lost its own.
HEAD_FOLDER = "head"
# The modules of a SparseEncoder, whose pooling is `lexical`; newer versions call the first one Transformer.
LEXICAL, SPLADE_POOLING = "lexical", "SpladePooling"
LEXICAL_MODULES = ("MLMTransformer", SPLADE_POOLING)
# Keeps the first numbers of a vector; comes after Pooling.
TRUNCATION = "Dense"
STATIC_MODULES = {False: ("StaticEmbedding",), True: ("StaticEmbedding", "Normalize")}
_FIRST_MODULES = ("StaticEmbedding", LEXICAL_MODULES[0], "Transformer")
# The backend that runs every encoder folder as it is.
TORCH = "torch"
_POOLING_BY_SAVED_NAME = {(pooling.saved_as, pooling.weighted): name for name, pooling in POOLINGS.items()}


def read_modules(folder: Path) -> dict[str, str]:
    """Return the folder of each module named in modules.json, by the name of its class.

    The second module of a class is called `Dense 2`, and one that is called with arguments names them, so that neither
    is taken for a module that drkit computes. Raises DrkitError if the file is missing, for a module of another
    package, and for a model that is not an encoder of single vectors.
    """
    if not folder.is_dir():
        raise DrkitError(f"encoder folder not found: {folder}; give a folder written by drkit or sentence-transformers")
    if not any((folder / name).is_file() for name in (MODULES, CONFIG)):
        raise not_an_encoder(folder)
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
    found = supported_pooling(modes, weighted=weighted)
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


def supported_pooling(modes: list[str], *, weighted: bool) -> str | None:
    """Return the pooling with these modes of a Pooling module; None if drkit does not support it."""
    return _POOLING_BY_SAVED_NAME.get((modes[0], weighted)) if len(modes) == 1 else None


def check_modules(folder: Path, modules: Mapping[str, str], *, sparse: bool = False) -> None:
    """Raise DrkitError if drkit does not compute the vectors of these modules; sparse: of a SparseEncoder."""
    if "CNN" in modules:
        raise DrkitError(f"{folder} has a CNN: its vectors depend on the other texts of a batch; give another encoder")
    if SPLADE_POOLING in modules:
        first, *rest = modules
        if first not in (LEXICAL_MODULES[0], "Transformer") or rest != [SPLADE_POOLING]:
            raise UnsupportedEncoderError(
                f"{folder}: unsupported modules ({', '.join(modules)}); drkit supports {' and '.join(LEXICAL_MODULES)}"
            )
        return
    if "Router" in modules:
        raise DrkitError(
            f"{folder} has separate encoders for queries and passages, but one encoder was expected: give the folder "
            f"of one of them (drkit writes {QUERY_ENCODER} and {PASSAGE_ENCODER}), or load both with DualEncoder"
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
    if sparse:
        raise UnsupportedEncoderError(
            f"{folder} is a {SPARSE_ENCODER} of {', '.join(modules)}; drkit computes those of "
            f"{' and '.join(LEXICAL_MODULES)}"
        )


def transformer_folder(folder: Path, modules: Mapping[str, str]) -> Path:
    """Return the folder of the module that reads texts; modules: checked by `check_modules`."""
    return folder / next(modules[name] for name in _FIRST_MODULES if name in modules)


def not_an_encoder(folder: Path) -> DrkitError:
    """Return the error for a folder that holds no encoder."""
    return DrkitError(f"{folder} is not an encoder folder (missing {MODULES} and {CONFIG}); give another folder")


def is_cross_encoder(folder: Path) -> bool:
    """Return whether a folder holds a cross-encoder, by its config.json."""
    if not (folder / CONFIG).is_file():
        return False
    config = read_json(folder / CONFIG, "give the folder of a model")
    return isinstance(config, dict) and "SequenceClassification" in str(config.get("architectures"))
