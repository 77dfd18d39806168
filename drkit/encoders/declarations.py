"""What sentence-transformers 5 and 6 declare in an encoder folder, key by key: read, or refused by name.

A folder is read as a closed world. Every module class, every setting of a module and every key of the model's settings
is either read here with the meaning that sentence-transformers gives it, or it raises `UnsupportedEncoderError`, which
names the file and the key. Reading needs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

from drkit.core.files import read_json
from drkit.encoders.architectures import longest_text
from drkit.errors import DrkitError

CONFIG, DRKIT_FILE, SETTINGS = "config.json", "drkit.json", "config_sentence_transformers.json"
MODULES = "modules.json"
# The settings of a Transformer module; sentence-transformers reads the first of these files that has any.
LENGTH = "sentence_bert_config.json"
_TRANSFORMER_FILES = (
    LENGTH,
    *(
        f"sentence_{family}_config.json"
        for family in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    ),
)
# A length that no text reaches: that of encoders without a limit.
UNLIMITED = 2**31 - 1
DENSE_ENCODER, SPARSE_ENCODER, CROSS_ENCODER = "SentenceTransformer", "SparseEncoder", "CrossEncoder"
PART_POOLING_TYPE = "drkit.encoders.sentence_module.PartPooling"
ADVICE = "is this an encoder folder? Give another one, or export it again"

_MODULE_TYPE = re.compile(
    r"sentence_transformers\.((base|sentence_transformer|sparse_encoder|cross_encoder|multi_vector_encoder)\.)?"
    r"(models|modules)\.(\w+\.)*"
    r"(Asym|BoW|CLIPModel|CNN|Dense|Dropout|LSTM|LayerNorm|LogitScore|MLMTransformer|MultiVectorMask|Normalize|Pooling"
    r"|Router|SparseAutoEncoder|SparseStaticEmbedding|SpladePooling|StaticEmbedding|TokenPooling|Transformer"
    r"|WeightedLayerPooling|WordEmbeddings|WordWeights)"
)
_OTHER_MODELS = {
    CROSS_ENCODER: "a cross-encoder, which scores pairs and cannot encode texts; give a retriever or a run "
    "(cross-encoders are used by drkit rerank)",
    "MultiVectorEncoder": "an encoder with a vector for each token, which drkit does not search; give another encoder",
}
# Which value of a setting drkit computes, by its key; None: it reads every value, or no vector depends on it.
Supported: TypeAlias = Mapping[str, "Callable[[Any], bool] | None"]


def _is_unset(value: Any) -> bool:
    return not value


def _is_sentence_embedding(value: Any) -> bool:
    return value in (None, "sentence_embedding")


_MODEL_SETTINGS: Supported = {
    **dict.fromkeys(("__version__", "model_type", "prompts", "default_prompt_name", "similarity_fn_name")),
    **dict.fromkeys(("truncate_dim", "max_active_dims")),
    "requirements": _is_unset,
}
_NAMES = {"module_input_name": _is_sentence_embedding, "module_output_name": _is_sentence_embedding}
NORMALIZE_SETTINGS: Supported = _NAMES
DENSE_SETTINGS: Supported = {
    **dict.fromkeys(("in_features", "out_features", "bias", "activation_function")),
    **_NAMES,
    "use_residual": _is_unset,
}
WORD_WEIGHTS_SETTINGS: Supported = dict.fromkeys(("vocab", "word_weights", "unknown_word_weight"))
SPLADE_SETTINGS: Supported = {
    **dict.fromkeys(("embedding_dimension", "word_embedding_dimension", "chunk_size")),
    "pooling_strategy": lambda value: value in ("max", "sum"),
    "activation_function": lambda value: value == "relu",
}
# All poolings of sentence-transformers, by name; a Pooling module has one flag for each.
POOLING_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
POOLING_SETTINGS: Supported = {
    **dict.fromkeys(("embedding_dimension", "word_embedding_dimension", "pooling_mode", *POOLING_FLAGS.values())),
    "include_prompt": lambda value: value is True,
}
CROSS_ENCODER_SETTINGS: Supported = {
    **dict.fromkeys(("__version__", "model_type", "prompts", "default_prompt_name", "activation_fn")),
    "keep_in_fp32_modules": None,
}
# The task of a Transformer module, and the output of the model that the next module reads.
FEATURES, WORD_LOGITS = ("feature-extraction", "last_hidden_state"), ("fill-mask", "logits")


class UnsupportedEncoderError(DrkitError):
    """An encoder folder of sentence-transformers with modules or settings that drkit does not compute itself."""


def check_settings(path: Path, found: Mapping[str, Any], supported: Supported) -> None:
    """Raise UnsupportedEncoderError, with the file and the key, for a setting that drkit does not compute."""
    for key, value in found.items():
        is_supported = supported.get(key) if key in supported else lambda _: False
        if is_supported is not None and not is_supported(value):
            known = "unsupported" if key in supported else "unknown"
            raise UnsupportedEncoderError(f"{path}: {known} setting {key} = {value!r:.80}; drkit does not compute it")


def model_settings(folder: Path) -> dict[str, Any]:
    """Read the settings of a model of sentence-transformers; empty if the folder has none.

    Raises DrkitError for a model that is not an encoder of single vectors, and UnsupportedEncoderError for a key that
    sentence-transformers does not save, or requirements, which it checks.
    """
    found = check_model_type(folder)
    check_settings(folder / SETTINGS, found, _MODEL_SETTINGS)
    return found


def check_model_type(folder: Path) -> dict[str, Any]:
    """Return the settings of a model. Raises DrkitError if it is not an encoder of single vectors."""
    found = read_object(folder / SETTINGS, {})
    kind = model_type(found)
    if kind not in (DENSE_ENCODER, SPARSE_ENCODER):
        what = _OTHER_MODELS.get(kind, "not a model that drkit reads; give an encoder of single vectors")
        raise DrkitError(f"{folder} is a {kind} (model_type in {SETTINGS}): {what}")
    return found


def model_type(saved: Mapping[str, Any]) -> str:
    """Return the class of sentence-transformers that saved a model; old versions had only one."""
    return str(saved.get("model_type") or DENSE_ENCODER)


def module_class(path: Path, kind: Any) -> str:
    """Return the class name of a module's type. Raises DrkitError if it is not one of sentence-transformers."""
    if isinstance(kind, str) and (kind == PART_POOLING_TYPE or _MODULE_TYPE.fullmatch(kind)):
        return kind.rsplit(".", 1)[-1]
    raise DrkitError(
        f"{path} names the module {str(kind)!r:.80}, which is not one of sentence-transformers and whose code drkit "
        f"does not run; give an encoder with its modules"
    )


def transformer_settings(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Read the settings of a Transformer module, with the file they are in."""
    for name in _TRANSFORMER_FILES:
        if found := read_object(folder / name, {}):
            return folder / name, found
    return folder / LENGTH, {}


def check_transformer(folder: Path, task: tuple[str, str]) -> None:
    """Raise UnsupportedEncoderError if a Transformer module reads texts in a way that drkit does not.

    task: `FEATURES` or `WORD_LOGITS`.
    """
    check_settings(*transformer_settings(folder), supported_reading(task))
    config = read_object(folder / CONFIG, {})
    names = config.get("architectures") or [""]
    if config.get("is_encoder_decoder") or (isinstance(names, list) and str(names[0]).endswith("EncoderModel")):
        raise UnsupportedEncoderError(
            f"{folder / CONFIG}: unsupported encoder of a model with a decoder ({config.get('model_type')}); drkit "
            f"computes models that are an encoder or read from left to right"
        )


def supported_reading(task: tuple[str, str]) -> Supported:
    """Return the settings of a Transformer module that drkit computes; task: `FEATURES` or `WORD_LOGITS`."""
    name, output = task
    text = {"text": {"method": "forward", "method_output_name": output}}
    arguments = (f"{of}_{kind}" for of in ("model", "tokenizer", "processor", "config") for kind in ("args", "kwargs"))
    return {
        **dict.fromkeys(("max_seq_length", "query_length", "document_length", "unpad_inputs")),
        "transformer_task": lambda value: value == name,
        "modality_config": lambda value: value == text,
        "module_output_name": lambda value: value == "token_embeddings",
        **dict.fromkeys(("do_lower_case", "processing_kwargs", "query_expansion", *arguments), _is_unset),
    }


def check_cross_encoder(folder: Path) -> None:
    """Raise UnsupportedEncoderError for anything that a cross-encoder's folder declares and drkit does not compute.

    The activation is not applied: scores are the raw output of the head.
    """
    saved = read_object(folder / SETTINGS, {})
    check_settings(folder / SETTINGS, saved, CROSS_ENCODER_SETTINGS)
    name = saved.get("default_prompt_name")
    if (saved.get("prompts") or {}).get(name):
        raise UnsupportedEncoderError(
            f"{folder / SETTINGS}: unsupported setting default_prompt_name = {name!r}; drkit itself scores pairs "
            f"without a prompt"
        )
    if (folder / MODULES).is_file():
        check_settings(*transformer_settings(folder), _PAIR_READING)


def longest_pair(folder: Path) -> int | None:
    """Return the maximum number of tokens of a pair that a cross-encoder's folder declares; None if it declares none.

    Without a list of modules, sentence-transformers reads that of the tokenizer alone.
    """
    return (declared_length if (folder / MODULES).is_file() else _tokenizer_length)(folder)


def _truncates_longest_first(value: Any) -> bool:
    return not value or value in ({"text": {"truncation": strategy}} for strategy in (True, "longest_first"))


_PAIR_READING: Supported = {
    **supported_reading(("sequence-classification", "logits")),
    "module_output_name": lambda value: value == "scores",
    "processing_kwargs": _truncates_longest_first,
}


def declared_lengths(transformer: Path) -> dict[str, int]:
    """Return the maximum number of tokens of queries and of passages, special ones included.

    `drkit.json` comes first, then the lengths of a task, then that of all texts; `UNLIMITED` without any of them.
    """
    own, saved = read_object(transformer / DRKIT_FILE, {}), transformer_settings(transformer)[1]
    longest = max_length(transformer)
    positions = _positions(transformer) or UNLIMITED
    given = {"query_length": saved.get("query_length"), "passage_length": saved.get("document_length")}
    return {name: int(own.get(name) or min(length or longest, positions)) for name, length in given.items()}


def max_length(folder: Path) -> int:
    """Return the maximum number of tokens that a transformer reads, within its positions; `UNLIMITED` without one."""
    return min(declared_length(folder) or UNLIMITED, _positions(folder) or UNLIMITED)


def declared_length(folder: Path) -> int | None:
    """Return the maximum number of tokens of all texts that a folder declares; None if it declares none.

    Version 5 of sentence-transformers saves it with the Transformer module, version 6 with the tokenizer.
    """
    declared = transformer_settings(folder)[1].get("max_seq_length")
    if declared is None:
        return _tokenizer_length(folder)
    return int(declared) if declared < UNLIMITED else None


def _tokenizer_length(folder: Path) -> int | None:
    declared = read_object(folder / "tokenizer_config.json", {}).get("model_max_length")
    return int(declared) if declared and declared < UNLIMITED else None


def _positions(folder: Path) -> int | None:
    """Return the length of the longest text that a model has positions for; None if it needs no table of them."""
    config = read_object(folder / CONFIG, {})
    if not config.get("max_position_embeddings"):
        return None
    # Without a padding id in the configuration, RoBERTa's default (1) applies.
    return longest_text(SimpleNamespace(**{"pad_token_id": 1, **config, "model_type": str(config.get("model_type"))}))


def static_lengths(folder: Path) -> dict[str, int]:
    """Return the lengths of a StaticEmbedding module: those of drkit, or of its tokenizer, which counts no [CLS]."""
    own, tokenizer = read_object(folder / DRKIT_FILE, {}), read_object(folder / "tokenizer.json", {})
    cut = (tokenizer.get("truncation") or {}).get("max_length")
    longest = UNLIMITED if cut is None else cut + 2
    return {name: own.get(name) or longest for name in ("query_length", "passage_length")}


def pooling_modes(config: Mapping[str, Any]) -> list[str]:
    """Return the poolings in the settings of a Pooling module, old style or new, by sentence-transformers' names.

    >>> pooling_modes({"pooling_mode_mean_tokens": True}), pooling_modes({"pooling_mode": "cls"})
    (['mean'], ['cls'])
    """
    if named := config.get("pooling_mode"):
        return [named] if isinstance(named, str) else list(named)
    names = {flag: name for name, flag in POOLING_FLAGS.items()}
    return [names.get(key, key) for key, on in config.items() if key.startswith("pooling_mode_") and on is True]


_DOCUMENT_PROMPTS = ("document", "passage", "corpus")


def declared_prompts(saved: Mapping[str, Any]) -> dict[str, str]:
    """Return the prompts of queries and of passages in the settings of a model.

    An empty prompt `document` is taken for a missing one if there is a prompt `passage` or `corpus`:
    sentence-transformers adds an empty one to every model that it saves.

    >>> declared_prompts({"prompts": {"query": "q: ", "document": "", "passage": "p: "}})
    {'query_prompt': 'q: ', 'passage_prompt': 'p: '}
    """
    prompts = saved.get("prompts") or {}
    passage = next((prompts[key] for key in _DOCUMENT_PROMPTS if prompts.get(key)), "")
    return {"query_prompt": prompts.get("query") or "", "passage_prompt": passage}


def prompt_notes(folder: Path) -> list[str]:
    """Return a line for each declaration of prompts that leaves it open which texts get them."""
    saved = read_object(folder / SETTINGS, {})
    prompts, applied = saved.get("prompts") or {}, declared_prompts(saved)
    notes = []
    passage = next((key for key in _DOCUMENT_PROMPTS if prompts.get(key)), "document")
    if passage != "document":
        notes.append(
            f"{folder} declares the prompt {passage} = {prompts[passage]!r}, which drkit puts before passages; "
            f"encode_document of sentence-transformers uses the empty prompt 'document' that it adds when it saves a "
            f"model. --passage-prompt '' reads passages without a prompt"
        )
    own = read_object(folder / DRKIT_FILE, {}).get("prompts") or {}  # of data sets, which `for_data_set` applies
    known = ("query", *_DOCUMENT_PROMPTS, *own)
    others = {key: prompt for key, prompt in prompts.items() if prompt and key not in known}
    if others and not any(applied.values()):
        notes.append(
            f"{folder} declares prompts under other names than 'query' and 'document' "
            f"({', '.join(f'{key} = {prompt!r:.60}' for key, prompt in others.items())}); like encode_query and "
            f"encode_document of sentence-transformers, drkit applies none of them. --query-prompt and "
            f"--passage-prompt set one"
        )
    return notes


_AT_LEAST_2 = (lambda value: value is None or (type(value) in (int, float) and value >= 2), "a number from 2 on")
_OWN_LENGTH = (
    lambda value: type(value) is int and (2 <= value <= 131_072 or value == UNLIMITED),
    f"a whole number from 2 to 131,072, or {UNLIMITED} for no limit",
)
_TEXT = (lambda value: value is None or isinstance(value, str), "a text")
_OBJECT = (lambda value: value is None or isinstance(value, dict), "an object")
_COUNT = (lambda value: value is None or (type(value) is int and value >= 1), "a whole number from 1 on")
# What a value must be, by its key, in any of an encoder folder's files that drkit reads.
_EXPECTED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "max_position_embeddings": _AT_LEAST_2,
    "max_seq_length": _AT_LEAST_2,
    "model_max_length": _AT_LEAST_2,
    "document_length": _AT_LEAST_2,
    "query_length": (lambda value: value is None or _OWN_LENGTH[0](value), _OWN_LENGTH[1]),
    "passage_length": _OWN_LENGTH,
    "passages_per_document": (lambda value: type(value) is int and value >= 2, "a whole number from 2 on"),
    "pad_token_id": (lambda value: value is None or (type(value) is int and 0 <= value < 2**31), "a token's id"),
    "truncate_dim": _COUNT,
    "max_active_dims": _COUNT,
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
    "parameters": _OBJECT,
}


def read_object(path: Path, default: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON object in a file, or `default` if it is given and the file does not exist.

    Raises DrkitError if it is not an object, or a value that drkit uses is not of the expected kind.
    """
    if default is not None and not path.is_file():
        return dict(default)
    found = read_json(path, ADVICE)
    if not isinstance(found, dict):
        raise DrkitError(f"{path} must be a JSON object, got {type(found).__name__}; {ADVICE}")
    for key in found.keys() & _EXPECTED.keys():
        is_expected, what = _EXPECTED[key]
        if not is_expected(found[key]):
            raise DrkitError(f"{key!r} must be {what}, got {found[key]!r:.80}; {ADVICE}", where=path)
    return found
