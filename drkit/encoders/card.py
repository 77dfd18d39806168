"""The card of an encoder: how its texts are read and how hidden states become vectors, without weights or sizes.

A card is what an encoder folder declares: `EncoderCard.read` reads folders of drkit and of sentence-transformers, as a
closed world (`drkit.encoders.declarations`), and `EncoderCard.write` writes them. A recipe's stages hold a card, too,
and so does every loaded encoder (`drkit.search.TextEncoder`). Nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attrs import NOTHING, asdict, evolve, field, frozen

from drkit.core.files import write_json
from drkit.core.settings import NEVER_ABSENT
from drkit.core.spec import part_name
from drkit.data.titles import JOINED, TITLES, Titles
from drkit.encoders.declarations import (
    ADVICE,
    CONFIG,
    DENSE_SETTINGS,
    DRKIT_FILE,
    FEATURES,
    LENGTH,
    MODULES,
    NORMALIZE_SETTINGS,
    PART_POOLING_TYPE,
    POOLING_FLAGS,
    POOLING_SETTINGS,
    SETTINGS,
    SPARSE_ENCODER,
    SPLADE_SETTINGS,
    WORD_LOGITS,
    UnsupportedEncoderError,
    check_settings,
    check_transformer,
    declared_length,
    declared_lengths,
    declared_prompts,
    max_length,
    model_settings,
    model_type,
    pooling_modes,
    read_object,
    static_lengths,
    transformer_settings,
)
from drkit.encoders.folder import (
    LEXICAL,
    LEXICAL_MODULES,
    PART_POOLING,
    POOLING_FILE,
    PRECISIONS,
    SIMILARITIES,
    SPLADE_POOLING,
    STATIC_MODULES,
    SUPPORTED_MODULES,
    TRUNCATION,
    check_modules,
    not_an_encoder,
    pooling_of,
    read_modules,
    supported_pooling,
    transformer_folder,
)
from drkit.encoders.pooling import POOLINGS, LexicalConfig, is_weighted
from drkit.errors import DrkitError

_MODULE, _SPARSE_MODULE = "sentence_transformers.models.", "sentence_transformers.sparse_encoder.models."
_SIMILARITY_BY_SAVED_NAME = {"cosine": "cosine", "dot": "dot", "dot_score": "dot", None: "cosine"}
# The ends of the names of a data set's prompts.
_OF_QUERIES, _OF_PASSAGES = "-query", "-document"
LENGTHS, PROMPTS = ("query_length", "passage_length"), ("query_prompt", "passage_prompt")
# What training continues with: settings of a card that a recipe takes over from the encoder that it starts from.
TAKEN_OVER = ("pooling", "titles", *LENGTHS, *PROMPTS)


def _one_of(allowed: tuple[str, ...]) -> Callable[..., None]:
    def validate(_instance: Any, attribute: Any, value: Any) -> None:
        if value not in allowed:
            raise DrkitError(f"{attribute.name!r} of an encoder must be in {allowed}, got {value!r}")

    return validate


def _from(least: int, *, optional: bool = False) -> Callable[..., None]:
    def validate(_instance: Any, attribute: Any, value: Any) -> None:
        if not (optional and value is None) and not (type(value) is int and value >= least):
            raise DrkitError(f"{attribute.name!r} of an encoder must be a whole number from {least} on, got {value!r}")

    return validate


def _reads(
    recipe: str,
    default: Any = NOTHING,
    validator: Any = None,
    *,
    absent_when: Any = NEVER_ABSENT,
    converter: Any = None,
) -> Any:
    """Declare a setting; recipe: its path, or "" if recipes have none. absent_when: see `drkit.core.settings.setting`.

    A stage's settings with a card, or a part of one, take from the recipe whatever has a path.
    """
    metadata = {"recipe": recipe, "absent_when": absent_when}
    return field(default=default, validator=validator, converter=converter, metadata=metadata)


def _prompts(recipe: str) -> Any:
    """Declare the prompts of data sets; they are not hashed, so that a card with a mapping can be."""
    return field(factory=dict, hash=False, metadata={"recipe": recipe, "absent_when": {}})


@frozen
class QueryReading:
    """How queries are read: tokens at most, special ones included, and the text put before each.

    prompts: of data sets that have their own, by name.
    """

    length: int = _reads("encoder.query_length")
    prompt: str = _reads("encoder.query_prompt")
    prompts: Mapping[str, str] = _prompts("query_prompts")


@frozen
class PassageReading:
    """How passages are read: tokens at most, special ones included, the text put before each, and their titles.

    prompts: of data sets that have their own, by name.
    """

    length: int = _reads("encoder.passage_length")
    prompt: str = _reads("encoder.passage_prompt")
    titles: str = _reads("encoder.titles", JOINED, absent_when=JOINED)
    prompts: Mapping[str, str] = _prompts("passage_prompts")


@frozen
class EncoderCard:
    """Everything that turns texts into an encoder's vectors, besides its model, weights and tokenizer.

    pooling: a name of `drkit.encoders.pooling.POOLINGS`, or of a part with `pooling_settings`. similarity: `cosine` or
    `dot`; under cosine all vectors have length 1, so that their inner product is the cosine; normalize: length 1 also
    under dot. query_length, passage_length: maximum number of tokens, special ones included. Prompts are put before
    every text. truncate_dim: keep only the first numbers of every vector (cut before it is normalised), as an encoder
    trained with the loss `matryoshka` allows; None: all. passages_per_document: how many passages search cuts a long
    text into; None: it reads the beginning. precision: `float32`, or `bfloat16` for matrix products only (autocast):
    faster on a GPU, slightly less accurate; no folder declares it. titles: how a passage's title and text are read
    (`drkit.data.titles`); an encoder's model has it in its configuration. prompts: those of data sets that have their
    own, as `NAME-query` and `NAME-document` (`for_data_set`).

    Raises DrkitError for a value that is not allowed.
    """

    pooling: str = _reads("encoder.pooling", "cls", converter=part_name)
    similarity: str = _reads("similarity", "cosine", _one_of(SIMILARITIES))
    query_length: int = _reads("encoder.query_length", 32, _from(2))
    passage_length: int = _reads("encoder.passage_length", 64, _from(2))
    query_prompt: str = _reads("encoder.query_prompt", "")
    passage_prompt: str = _reads("encoder.passage_prompt", "")
    normalize: bool = _reads("", False, absent_when=False)
    truncate_dim: int | None = _reads("", None, _from(1, optional=True), absent_when=None)
    passages_per_document: int | None = _reads(
        "encoder.passages_per_document", None, _from(2, optional=True), absent_when=None
    )
    pooling_settings: Mapping[str, Any] | None = _reads("", None, absent_when=None)
    precision: str = _reads("encoder.precision", "float32", _one_of(PRECISIONS))
    titles: str = _reads("encoder.titles", JOINED, _one_of(TITLES), absent_when=JOINED)
    prompts: Mapping[str, str] = _prompts("prompts")

    @classmethod
    def read(cls, folder: Path, modules: Mapping[str, str] | None = None) -> EncoderCard:
        """Read the card of an encoder folder of drkit or sentence-transformers.

        modules: folder of each module, by module name; read from modules.json if None.

        Raises DrkitError if modules.json is missing, and UnsupportedEncoderError, with the file and the key, for
        anything declared that drkit does not compute: a module, a setting of one, a pooling or a similarity.
        """
        modules, saved = read_modules(folder) if modules is None else modules, model_settings(folder)
        check_modules(folder, modules, sparse=model_type(saved) == SPARSE_ENCODER)
        transformer, is_static = transformer_folder(folder, modules), "StaticEmbedding" in modules
        if SPLADE_POOLING in modules:
            vector = _read_scores(folder, folder / modules[SPLADE_POOLING], transformer, saved)
        else:
            if not is_static:
                check_transformer(transformer, FEATURES)
            vector = _read_vector(folder, modules, saved)
        lengths = (static_lengths if is_static else declared_lengths)(transformer)
        file = read_object(transformer / DRKIT_FILE, {})
        own = {"passages_per_document": file.get("passages_per_document"), "prompts": file.get("prompts") or {}}
        declared: dict[str, Any] = {**vector, **lengths, **declared_prompts(saved), **own}
        return cls(**declared, titles=declared_titles(transformer))

    @classmethod
    def bare(cls, folder: Path, pooling: str) -> EncoderCard:
        """Return the card of a bare transformers checkpoint, which declares only its lengths: cosine similarity.

        Raises DrkitError if the folder has no config.json.
        """
        if not (folder / CONFIG).is_file():
            raise not_an_encoder(folder)
        length = max_length(folder)
        return cls(pooling=pooling, query_length=length, passage_length=length, titles=declared_titles(folder))

    @property
    def queries(self) -> QueryReading:
        """How queries are read."""
        return QueryReading(self.query_length, self.query_prompt, self._prompts_of(_OF_QUERIES))

    @property
    def passages(self) -> PassageReading:
        """How passages are read."""
        prompts = self._prompts_of(_OF_PASSAGES)
        return PassageReading(self.passage_length, self.passage_prompt, self.titles, prompts)

    def _prompts_of(self, side: str) -> dict[str, str]:
        """Return the prompts of data sets for queries or passages, by the name of the data set."""
        return {name.removesuffix(side): text for name, text in self.prompts.items() if name.endswith(side)}

    def for_data_set(self, name: str) -> EncoderCard:
        """Return the card that reads the texts of a data set, with its prompts if it has its own."""
        query, passage = self.queries.prompts, self.passages.prompts
        return evolve(
            self,
            query_prompt=query.get(name, self.query_prompt),
            passage_prompt=passage.get(name, self.passage_prompt),
        )

    @property
    def has_unit_length(self) -> bool:
        """Whether all vectors have length 1."""
        return self.normalize or self.similarity == "cosine"

    @property
    def lexical(self) -> LexicalConfig | None:
        """The settings of the pooling `lexical`; None with another one."""
        return LexicalConfig(**(self.pooling_settings or {})) if self.pooling == LEXICAL else None

    @property
    def longest(self) -> int:
        """The length limit of sentence-transformers, which has one for queries and passages."""
        return max(self.query_length, self.passage_length)

    def declared(self) -> dict[str, Any]:
        """Return what a folder declares, as plain data; what is None is left out."""
        found = {name: value for name, value in asdict(self).items() if value is not None}
        del found["precision"], found["titles"]
        return found if self.prompts else {name: value for name, value in found.items() if name != "prompts"}

    def identity(self) -> dict[str, Any]:
        """Return what vectors depend on, as plain data; titles and the settings of a pooling are known by its model."""
        found = asdict(self)
        del found["titles"], found["pooling_settings"]
        if not self.prompts:
            del found["prompts"]
        if self.passages_per_document is None:
            del found["passages_per_document"]
        return {**found, "normalize": self.has_unit_length}

    def for_queries_of(self, queries: EncoderCard) -> EncoderCard:
        """Return the card of two encoders: this one's for passages, another one's for queries."""
        return evolve(self, query_length=queries.query_length, query_prompt=queries.query_prompt)

    def modules(self, *, is_static: bool = False) -> dict[str, str]:
        """Return the folder of each module of sentence-transformers, by module name."""
        names: tuple[str, ...]
        if self.pooling == LEXICAL:
            names = LEXICAL_MODULES
        elif is_static:
            names = STATIC_MODULES[self.has_unit_length]
        else:
            names = SUPPORTED_MODULES[self.has_unit_length, is_weighted(self.pooling)]
            if self.pooling not in POOLINGS:
                names = tuple(PART_POOLING if name == "Pooling" else name for name in names)
            if self.truncate_dim is not None:
                after = len(names) - self.has_unit_length
                names = (*names[:after], TRUNCATION, *names[after:])
        return {name: f"{index}_{name}" if index else "" for index, name in enumerate(names)}

    def write(self, folder: Path, provenance: Mapping[str, Any], *, hidden: int, is_static: bool = False) -> None:
        """Write every file that declares something into an encoder folder, but those that weights belong to.

        hidden: the length of the hidden states. is_static: a StaticEmbedding module has its lengths in its tokenizer.
        """
        modules = self.modules(is_static=is_static)
        for path in filter(None, modules.values()):
            (folder / path).mkdir(exist_ok=True)
        listed = [
            {"idx": idx, "name": str(idx), "path": path, "type": module_type(name)}
            for idx, (name, path) in enumerate(modules.items())
        ]
        write_json(folder / MODULES, listed)
        self.write_settings(folder)
        write_json(folder / DRKIT_FILE, {"format": 1, **self.declared(), "provenance": dict(provenance)})
        if is_static:
            return
        write_json(folder / LENGTH, {"max_seq_length": self.longest, "do_lower_case": False})
        if self.lexical:
            splade = {"pooling_strategy": self.lexical.over_positions, "activation_function": "relu"}
            write_json(folder / modules[SPLADE_POOLING] / "config.json", splade)
        elif self.pooling in POOLINGS:
            flags = {flag: name == POOLINGS[self.pooling].saved_as for name, flag in POOLING_FLAGS.items()}
            pooling = {"word_embedding_dimension": hidden, **flags, "include_prompt": True}
            write_json(folder / modules["Pooling"] / "config.json", pooling)

    def write_settings(self, folder: Path) -> None:
        """Write the settings of a model of sentence-transformers: prompts, similarity, and the class of sparse ones."""
        lexical = self.lexical
        settings = {
            **({"model_type": SPARSE_ENCODER, "max_active_dims": lexical.top_k or None} if lexical else {}),
            "__version__": {name: version(distribution) for name, distribution in _LIBRARIES.items()},
            "prompts": {"query": self.query_prompt, "document": self.passage_prompt, **self.prompts},
            "default_prompt_name": None,
            "similarity_fn_name": self.similarity,
        }
        write_json(folder / SETTINGS, settings)


def prompts_by_name(queries: Mapping[str, str], passages: Mapping[str, str]) -> dict[str, str]:
    """Return the prompts of data sets for queries and for passages, by data set, under the names of a card.

    >>> prompts_by_name({"nq": "question: "}, {})
    {'nq-query': 'question: '}
    """
    of_queries = {f"{name}{_OF_QUERIES}": prompt for name, prompt in queries.items()}
    return of_queries | {f"{name}{_OF_PASSAGES}": prompt for name, prompt in passages.items()}


# Whose versions a folder names, and what their distributions are called.
_LIBRARIES = {"pytorch": "torch", "transformers": "transformers"}


def module_type(name: str) -> str:
    """Return the import path of a module, by which sentence-transformers loads it."""
    if name == PART_POOLING:
        return PART_POOLING_TYPE
    return (_SPARSE_MODULE if name in LEXICAL_MODULES else _MODULE) + name


def _read_vector(folder: Path, modules: Mapping[str, str], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return how hidden states become a vector, by the modules and settings of a model."""
    if "Normalize" in modules:
        path = folder / modules["Normalize"] / "config.json"
        check_settings(path, read_object(path, {}), NORMALIZE_SETTINGS)
    return {
        **_read_pooling(folder, modules),
        "similarity": _similarity(saved, folder),
        "normalize": "Normalize" in modules,
        "truncate_dim": _truncate_dim(folder, modules, saved),
    }


def _read_pooling(folder: Path, modules: Mapping[str, str]) -> dict[str, Any]:
    """Return the pooling of an encoder, with its settings if it is a part."""
    if PART_POOLING in modules:
        return _part_pooling(folder / modules[PART_POOLING])
    if "Pooling" not in modules:
        return {"pooling": "mean"}
    path = folder / modules["Pooling"] / "config.json"
    pooling = read_object(path)
    check_settings(path, pooling, POOLING_SETTINGS)
    return {"pooling": pooling_of(pooling, folder, weighted="WordWeights" in modules)}


def _part_pooling(folder: Path) -> dict[str, Any]:
    """Return the part in a `PartPooling` module. Raises DrkitError if its file is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(folder / POOLING_FILE), framework="numpy") as file:
            part = json.loads(file.metadata()["pooling"])
            return {"pooling": str(part["use"]), "pooling_settings": dict(part["settings"])}
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DrkitError(f"cannot read the pooling in {folder / POOLING_FILE}: {error!r}; {ADVICE}") from None


def _read_scores(folder: Path, module: Path, transformer: Path, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pooling of a SparseEncoder; module: the folder of SpladePooling."""
    path = module / "config.json"
    pooling = read_object(path)
    check_settings(path, pooling, SPLADE_SETTINGS)
    check_transformer(transformer, WORD_LOGITS)
    if saved.get("similarity_fn_name") not in (None, "dot"):
        raise UnsupportedEncoderError(
            f"{folder / SETTINGS}: unsupported setting similarity_fn_name = {saved['similarity_fn_name']!r} of an "
            f"encoder of word scores; drkit compares them by dot product"
        )
    own = read_object(transformer / DRKIT_FILE, {})
    settings = {
        "over_positions": pooling.get("pooling_strategy", "max"),
        "top_k": saved.get("max_active_dims") or 0,
        "dense": (own.get("pooling_settings") or {}).get("dense", ""),
    }
    return {"pooling": LEXICAL, "pooling_settings": settings, "similarity": "dot"}


def _similarity(saved: Mapping[str, Any], folder: Path) -> str:
    name = saved.get("similarity_fn_name")
    if name not in _SIMILARITY_BY_SAVED_NAME:
        raise UnsupportedEncoderError(f"unsupported similarity {name!r}; drkit supports cosine and dot", where=folder)
    return _SIMILARITY_BY_SAVED_NAME[name]


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


def declared_settings(folder: Path) -> tuple[dict[str, Any], int | None]:
    """Return the pooling, lengths and prompts that a folder declares, and its maximum length, if any.

    Unlike `EncoderCard.read`, it omits what is missing or unsupported. Raises DrkitError for invalid JSON, and for
    a model that is not an encoder of single vectors.
    """
    modules = read_modules(folder)
    modes = pooling_modes(read_object(folder / modules["Pooling"] / "config.json", {})) if "Pooling" in modules else []
    model = read_object(folder / SETTINGS, {})
    prompts = {name: prompt for name, prompt in declared_prompts(model).items() if prompt}
    own = {key: value for key, value in read_object(folder / DRKIT_FILE, {}).items() if value is not None}
    found = supported_pooling(modes, weighted="WordWeights" in modules)
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
