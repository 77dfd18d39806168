"""The one door through which models and tokenizers are loaded: no code from a folder, no pickled weights, clear errors.

Nothing else in drkit calls `from_pretrained` of transformers.
"""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import snapshot_download
from safetensors import safe_open
from transformers.utils import logging as hf_logging

from drkit.core.adapters import merge_adapter
from drkit.core.files import ADAPTER, adapter_base, local_path, read_json
from drkit.core.hub import check_model_path, may_be_hub_id, reaches_hub
from drkit.errors import FREE_MEMORY, DrkitError, import_extra, is_out_of_memory, is_panic

_LOGGER = logging.getLogger("drkit")
# Settings and tokenizers of every kind; weights only as safetensors, which cannot contain code.
_ENCODER_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")
PICKLED = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")

# Tensors beside an encoder's own: the heads of tasks, and position ids, which old versions saved.
_BESIDE = re.compile(
    r"(cls|lm_head|generator_predictions|generator_lm_head|vocab_transform|vocab_layer_norm|vocab_projector|head|pooler"
    r"|classifier|pre_classifier|score|qa_outputs|discriminator_predictions)\.|decoder\.(weight|bias)$"
    r"|(.*\.)?(position_ids|token_type_ids)$"
)
# By class: weights that a checkpoint may have in addition, and those that it may lack. Anything else must be present,
# in the model's shape: transformers draws what is missing at random. No vector depends on a pooler.
_UNUSED = dict.fromkeys(
    ("AutoModel", "AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModelForSequenceClassification"), _BESIDE
)
_OPTIONAL = {"AutoModel": ("pooler.",), "AutoModelForMaskedLM": ("pooler.",)}
# Those with an LM head, which a checkpoint may lack as a whole.
_WITH_LM_HEAD = ("AutoModelForMaskedLM", "AutoModelForCausalLM")
# The first version of transformers that reads `is_causal = false` in the configuration of a decoder-only model.
_READS_IS_CAUSAL = (5, 2)
# Weights that any machine has memory for: 1 GB.
_FEW = 1 << 28
_LAYERS = re.compile(r"(num|n)_(\w+_)?layers")


def load_pretrained(
    loader: str,
    path_or_id: str,
    action: str,
    requirement: str = "",
    *,
    new: tuple[str, ...] = (),
    unused: tuple[str, ...] = (),
    trust_remote_code: bool = False,
    **options: Any,
) -> Any:
    """Return what a class of transformers, such as `AutoTokenizer`, loads from a folder or hub id.

    Code that comes with a checkpoint is not run, and not offered for execution, unless a caller in Python trusts it.
    Weights are read from safetensors only. action, requirement: see `explain_load_errors`, whose errors it raises.
    new: prefixes of weights that a checkpoint may lack, such as those of a head that is to be trained. unused: prefixes
    of weights that it may have in addition to the model's.

    Raises DrkitError as well for weights that are missing, unexpected or of another shape, and for a tokenizer without
    a vocabulary. A masked LM without a head gets a new one, with a warning. An adapter is merged into its base model.
    """
    is_model, folder = loader.startswith("AutoModel"), local_path(path_or_id)
    if (base := adapter_base(folder)) and (is_model or not _has_files_of(loader, folder)):
        more = {"new": new, "unused": unused, "trust_remote_code": trust_remote_code, **options}
        loaded = load_pretrained(loader, str(base), action, requirement, **more)
        if is_model:
            with explain_load_errors(path_or_id, action, requirement), without_progress_bars():
                merge_adapter(loaded, folder)
        return loaded
    if is_model:
        try:
            check_model_path(path_or_id)
        except DrkitError as error:
            raise DrkitError(f"{error}. {requirement}" if requirement else str(error)) from None
        _check_weights(folder)
        check_plain(folder)
        options |= {"use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
    with explain_load_errors(path_or_id, action, requirement), without_progress_bars(), _without_report():
        if is_model and not trust_remote_code:
            _check_sizes(loader, folder)
        options.setdefault("local_files_only", not reaches_hub(path_or_id))
        loaded = getattr(transformers, loader).from_pretrained(
            path_or_id, trust_remote_code=trust_remote_code, **options
        )
        if loader == "AutoTokenizer":
            check_tokenizer(loaded, folder)
        if is_model:
            loaded, report = loaded
            _check_report(loader, path_or_id, loaded, report, new, unused)
            loaded.config.return_dict = True
            check_attention(loaded.config)
        return loaded


def check_attention(config: Any) -> None:
    """Raise DrkitError if the installed transformers would read a bidirectional model from left to right."""
    version = tuple(int(number) for number in re.findall(r"\d+", transformers.__version__)[:2])
    if getattr(config, "is_causal", None) is False and version < _READS_IS_CAUSAL:
        raise DrkitError(
            f"this {config.model_type!r} model reads a text in both directions (is_causal = false in config.json), "
            f"which transformers {transformers.__version__} ignores: pip install 'transformers>=5.2'"
        )


def _has_files_of(loader: str, folder: Path) -> bool:
    """Return whether a folder with an adapter has a configuration or tokenizer of its own."""
    names = ("config.json",) if loader == "AutoConfig" else ("tokenizer.json", "tokenizer_config.json")
    return any((folder / name).is_file() for name in names)


def _check_sizes(loader: str, folder: Path) -> None:
    """Raise DrkitError if a configuration describes far more weights than its folder has; they might not fit memory."""
    shapes: list[list[int]] = []
    for file in folder.glob("model*.safetensors"):
        with safe_open(str(file), framework="pt") as weights:
            shapes += [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118
    if not shapes:
        return
    config = load_pretrained("AutoConfig", str(folder), "read the configuration of")
    counts = [count for key, count in config.to_dict().items() if _LAYERS.fullmatch(key) and isinstance(count, int)]
    is_larger = max(counts, default=0) > len(shapes)
    if not is_larger:
        with torch.device("meta"):
            model = getattr(transformers, loader).from_config(config)
        is_larger = sum(weight.numel() for weight in model.parameters()) > max(2 * sum(map(math.prod, shapes)), _FEW)
    if is_larger:
        raise DrkitError(
            f"{folder / 'config.json'} describes a far larger model than the {len(shapes)} tensors beside it; restore "
            f"the file that was saved with them"
        )


def _check_report(
    loader: str,
    path_or_id: str,
    model: Any,
    report: Mapping[str, Any],
    new: tuple[str, ...],
    unused: tuple[str, ...],
) -> None:
    """Raise DrkitError, with their names, for weights that are missing, unexpected or of another shape."""
    prefix, beside = f"{model.base_model_prefix}.", _UNUSED.get(loader)
    optional = (*new, *_OPTIONAL.get(loader, ()))
    missing = {name for name in report["missing_keys"] if not name.removeprefix(prefix).startswith(optional)}
    is_headless = loader in _WITH_LM_HEAD and _has_no_head(model, missing, optional)
    if is_headless:
        missing = {name for name in missing if name.startswith(prefix)}
    found = {
        "missing": missing,
        "unexpected": {
            name
            for name in report["unexpected_keys"]
            if not name.startswith(unused) and not (beside and beside.match(name.removeprefix(prefix)))
        },
        "of another shape": {
            f"{name} {tuple(given)}, expected {tuple(expected)}" for name, given, expected in report["mismatched_keys"]
        },
    }
    if any(found.values()):
        raise DrkitError(
            f"the weights of {path_or_id!r} do not fit a {type(model).__name__}: {_list_names(found)}. They are "
            f"damaged, or were saved from another kind of model; give the folder of a complete one"
        )
    if is_headless:
        warnings.warn(
            f"{path_or_id!r} has no language-model head, so a new one is initialised; it is learned in pre-training",
            stacklevel=5,
        )


def _list_names(found: Mapping[str, Collection[str]]) -> str:
    """Return how many weights are wrong and in what way, with the first names."""
    return "; ".join(
        f"{len(names)} {problem} ({', '.join(sorted(names)[:3])}{', ..' if len(names) > 3 else ''})"
        for problem, names in found.items()
        if names
    )


def _has_no_head(model: Any, missing: Collection[str], optional: tuple[str, ...]) -> bool:
    """Return whether all of a masked LM's own head is missing; ModernBERT's classifiers share `head` with it."""
    tied = set(model.base_model.parameters())
    head = {name for name, weight in model.named_parameters() if weight not in tied and not name.startswith(optional)}
    own = {name for name in head if not name.startswith("head.")}
    return bool(head & set(missing)) and own <= set(missing)


def check_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Raise DrkitError if a tokenizer has no vocabulary, or an ambiguous one.

    Encodes a text, too: some malformed files panic not when they are loaded, but at the first text.
    """
    files = list(tokenizer.vocab_files_names.values())
    if folder.is_dir() and files and not any((folder / name).is_file() for name in files):
        raise DrkitError(
            f"{folder} has no vocabulary (missing {' or '.join(files)}); copy the tokenizer's files into it"
        )
    if not set(tokenizer.get_vocab()) - set(tokenizer.get_added_vocab()):
        raise DrkitError(f"the vocabulary of {str(folder)!r} is empty; restore the files of its tokenizer")
    if not tokenizer.is_fast:
        return
    backend = tokenizer.backend_tokenizer
    vocabulary = backend.get_vocab(with_added_tokens=False)
    if len(set(vocabulary.values())) < len(vocabulary):  # it would be loaded in another way each time
        raise DrkitError(f"tokens of {str(folder)!r} have the same id; restore the files of its tokenizer")
    backend.no_padding()
    backend.no_truncation()
    for text in ("", "A word, 1 Wörd."):
        with suppress(Exception):  # not every vocabulary has this word
            backend.encode(text)


def weights_to_save(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a module's weights as safetensors takes them: on the CPU, contiguous, each with memory of its own."""
    return {
        name: weight.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, weight in module.state_dict().items()
    }


def find_encoder_folder(path_or_id: str | Path) -> Path:
    """Return the given folder of an encoder or run, or the one that the hub's files were downloaded to.

    Raises DrkitError if it does not exist, or cannot be downloaded.
    """
    path, name = local_path(path_or_id), str(path_or_id)
    if path.exists() or not may_be_hub_id(name):
        if not path.is_dir():
            raise DrkitError(f"encoder folder not found: {name!r}; give a folder, a run, or a hub id (OWNER/NAME)")
        return path
    with explain_load_errors(name, "fetch the encoder"):
        return Path(
            snapshot_download(name, local_files_only=not reaches_hub(name), allow_patterns=list(_ENCODER_FILES))
        )


def load_sentence_transformer(folder: Path, device: str, kind: str = "SentenceTransformer") -> Any:
    """Return the model of a folder, whose modules are sentence-transformers' own; kind: the class that saved it.

    Raises DrkitError for modules, activations or tokenizers of other packages, pickled weights, adapters, or a folder
    that cannot be loaded, and as `import_extra` does without sentence-transformers.
    """
    library = import_extra("sentence_transformers", "reading its modules")
    for name in ("modules.json", "router_config.json", "*/router_config.json"):
        for file in folder.glob(name):
            kinds = _module_types(read_json(file, "export the encoder again"))
            foreign = [kind for kind in kinds if not kind.startswith("sentence_transformers.")]
            if foreign:
                raise DrkitError(f"{file} names the module {foreign[0]!r}, whose code drkit does not run")
    for config in folder.rglob("*.bin"):
        _check_weights(config.parent)
    for config in (folder / "config.json", *folder.glob("*/config.json"), *folder.glob("*/*/config.json")):
        check_plain(config.parent)
        _check_classes(config)
    for config in folder.rglob("wordembedding_config.json"):
        _check_classes(config)
    with explain_load_errors(str(folder), "load the encoder in"), without_progress_bars():
        return getattr(library, kind)(
            str(folder), device=device, local_files_only=True, model_kwargs={"use_safetensors": True}
        )


def _check_classes(path: Path) -> None:
    """Raise DrkitError if the settings of a module name an activation or a tokenizer of another package."""
    found = read_json(path, "export the encoder again") if path.is_file() else {}
    is_dense = isinstance(found, dict) and "in_features" in found
    named = {"activation_function": "torch."} if is_dense else {"tokenizer_class": "sentence_transformers."}
    for key, package in named.items():
        value = str(found.get(key) or package) if isinstance(found, dict) else package
        if "." in value and not value.startswith(package):
            raise DrkitError(f"{path} has {key} = {value!r}, whose code drkit does not run; use one of {package[:-1]}")


def check_plain(folder: Path) -> None:
    """Raise DrkitError if the weights of a folder are changed when they are loaded: by an adapter, or as quantised."""
    if (folder / ADAPTER).is_file() and any(folder.glob("model*.safetensors")):
        raise DrkitError(
            f"{folder} has an adapter ({ADAPTER}) beside whole weights, and nothing says whether they include it: "
            f"remove {ADAPTER} if they do, or merge it (merge_and_unload of peft) and save the result"
        )
    config = read_json(folder / "config.json", "restore it") if (folder / "config.json").is_file() else {}
    if isinstance(config, dict) and (found := config.get("quantization_config")):
        method = found.get("quant_method") if isinstance(found, dict) else found
        raise DrkitError(
            f"{folder} has quantised weights (quantization_config in config.json: {method!s:.40}), which drkit does "
            f"not read; give the folder of the model before it was quantised"
        )


def _module_types(value: Any) -> Iterator[str]:
    """Yield every type of a module in the JSON of modules.json or of a router."""
    if isinstance(value, dict):
        kinds = value.get("types", {})
        yield from (str(kind) for kind in (kinds.values() if isinstance(kinds, dict) else ()))
        yield from [str(value["type"])] if "type" in value else []
    elif isinstance(value, list):
        for item in value:
            yield from _module_types(item)


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
        if is_out_of_memory(error):
            raise DrkitError(f"cannot {action} {path_or_id!r}: not enough memory ({reason}); {FREE_MEMORY}") from error
        advice = (
            "no such folder exists, so it was looked up on the hub: check the spelling and the network, "
            "or give the path of a folder"
        )
        if Path(path_or_id).exists():
            advice = "check the files in this folder" if Path(path_or_id).is_dir() else "check this file"
        message = f"cannot {action} {path_or_id!r}: {reason} ({advice})."
        raise DrkitError(f"{message} {requirement}".strip()) from error


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide the progress bars of transformers in a block, and restore its setting afterwards."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()


@contextmanager
def _without_report() -> Iterator[None]:
    """Silence transformers' load report in a block: drkit reports missing weights itself."""
    before = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    try:
        yield
    finally:
        hf_logging.set_verbosity(before)
