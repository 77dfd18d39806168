"""Models of sentence-transformers: encoder folders read from disk, and models in memory used as encoders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from drkit.core.loading import explain_load_errors, without_progress_bars
from drkit.encoders.architectures import longest_text
from drkit.encoders.folder import pooling_modes
from drkit.encoders.pooling import POOLINGS
from drkit.errors import DrkitError
from drkit.search.text_encoder import Encoder, inference, read_encoder, tokenizer_hash, weights_hash

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SIMILARITIES = {"cosine": "cosine", "dot": "dot", "dot_score": "dot", None: "cosine"}
_ROUTES = ("query", "document")
_MODULES = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])


def read_encoder_settings(folder: Path, modules: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Read from a folder the arguments of `TextEncoder`, and `transformer`, the backbone's folder.

    modules: folder of each module, by module name; read from modules.json if None.

    Raises DrkitError if modules.json is missing, or a module, pooling or similarity is not supported.
    """
    modules = read_modules(folder) if modules is None else modules
    _check_modules(folder, modules)
    transformer, pooling = folder / modules["Transformer"], _json(folder / modules["Pooling"] / "config.json")
    model_settings = _json(folder / "config_sentence_transformers.json", {})
    drkit_settings = _json(transformer / "drkit.json", {})
    length = _max_length(transformer)
    return {
        "transformer": transformer,
        "pooling": pooling_of(pooling, folder),
        "similarity": _similarity(model_settings, folder),
        "normalize": "Normalize" in modules,
        "query_length": drkit_settings.get("query_length", length),
        "passage_length": drkit_settings.get("passage_length", length),
        **_prompts(model_settings, pooling, folder),
    }


def bare_settings(folder: Path, pooling: str) -> dict[str, Any]:
    """Return the arguments of `TextEncoder` for a bare transformers checkpoint, which declares only its lengths.

    Raises DrkitError if the folder has no config.json.
    """
    if not (folder / "config.json").is_file():
        raise _not_an_encoder(folder)
    return {"pooling": pooling, "query_length": _max_length(folder), "passage_length": _max_length(folder)}


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
    if not any((folder / name).is_file() for name in ("modules.json", "config.json")):
        raise _not_an_encoder(folder)
    if not (folder / "modules.json").is_file():
        raise DrkitError(
            f"{folder} has no modules.json, so its pooling is unknown; set it with --pooling cls or --pooling mean "
            f"(in Python: TextEncoder.bare)"
        )
    return {m["type"].rsplit(".", 1)[-1]: m["path"] for m in _json(folder / "modules.json")}


def is_dual(folder: Path) -> bool:
    """Whether an encoder folder holds separate encoders for queries and passages."""
    return (folder / "modules.json").is_file() and "Router" in read_modules(folder)


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


def pooling_of(config: dict[str, Any], folder: Path | str) -> str:
    """Return the pooling in the settings of a Pooling module: cls or mean. Raises DrkitError for any other."""
    modes = pooling_modes(config)
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise DrkitError(
            f"{folder}: unsupported pooling ({', '.join(modes) or 'not given'}); drkit supports cls and mean"
        )
    return str(modes[0])


class SentenceTransformerEncoder:
    """A `SentenceTransformer`, with any modules, as an encoder: `Retriever(SentenceTransformerEncoder(model), index)`.

    Queries and passages go through its own `encode_query` and `encode_document`, with its prompts and lengths, on its
    device; its training mode is restored afterwards. Under cosine similarity the vectors have length 1. If the model is
    a transformer with cls or mean pooling, its index can also be searched with `TextEncoder.load` of the saved folder.

    Raises DrkitError for a similarity other than cosine and dot.
    """

    def __init__(self, model: Any, *, batch_size: int = 64) -> None:
        similarity = str(getattr(model.similarity_fn_name, "value", model.similarity_fn_name))
        if similarity not in ("cosine", "dot"):
            raise DrkitError(f"the model uses {similarity!r} similarity; drkit supports cosine and dot")
        self.model, self.similarity, self.batch_size = model, similarity, batch_size

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""
        model = self.model  # before sentence-transformers 6 the method had the longer name
        dimension = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
        return int(dimension())

    def identity(self) -> dict[str, Any]:
        """Everything the vectors depend on: hashes of weights and tokenizer, pooling, similarity, prompts, length."""
        pooling = self._pooling()
        return {
            "weights": weights_hash(self.model[0].auto_model if pooling else self.model),
            "tokenizer": tokenizer_hash(self.model.tokenizer),
            "pooling": pooling or "sentence-transformers",
            "normalize": self.similarity == "cosine" or "Normalize" in self._modules(),
            "similarity": self.similarity,
            "prompts": dict(self.model.prompts or {}),
            "length": self.model.max_seq_length,
            "dimension": self.dimension,
        }

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode n queries as f32[n,D]."""
        return self._encode(self.model.encode_query, texts)

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode n passages as f32[n,D]."""
        return self._encode(self.model.encode_document, texts)

    def _encode(self, encode: Any, texts: Sequence[str]) -> NDArray[np.float32]:
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        normalize = self.similarity == "cosine"
        with inference(self.model):
            vectors = encode(
                list(texts), batch_size=self.batch_size, normalize_embeddings=normalize, show_progress_bar=False
            )
        return np.asarray(vectors, dtype=np.float32)

    def _modules(self) -> list[str]:
        return [type(module).__name__ for module in self.model]

    def _pooling(self) -> str:
        """Return cls or mean if `TextEncoder` can load the saved model, else an empty string."""
        if self._modules() not in _MODULES or self.model.truncate_dim is not None:
            return ""
        try:
            return pooling_of(self.model[1].get_config_dict(), "the model")
        except DrkitError:
            return ""


def as_encoder(given: Any) -> Encoder:
    """Return an encoder for a `SentenceTransformer`, an encoder folder, or an encoder, which is returned unchanged.

    Raises DrkitError for anything else, and as `TextEncoder.load` does.
    """
    if isinstance(given, (str, Path)):
        return read_encoder(given)
    if hasattr(given, "encode_passages"):
        return given  # type: ignore[no-any-return]
    if hasattr(given, "encode_document"):
        return SentenceTransformerEncoder(given)
    raise DrkitError(
        f"{type(given).__name__} is not an encoder; give a SentenceTransformer, an encoder folder, or an object with "
        f"encode_queries, encode_passages and dimension"
    )


def _check_modules(folder: Path, modules: Mapping[str, str]) -> None:
    if "Router" in modules:
        raise DrkitError(
            f"{folder} holds separate encoders for queries and passages, but one encoder is required: give the folder "
            f"of one (drkit writes query_encoder and passage_encoder), or load both with DualEncoder"
        )
    unknown = sorted(set(modules) - {"Transformer", "Pooling", "Normalize"})
    if unknown or not {"Transformer", "Pooling"} <= set(modules):
        raise DrkitError(
            f"{folder}: unsupported modules ({', '.join(modules)}); drkit supports Transformer, Pooling and an "
            f"optional Normalize"
        )


def _not_an_encoder(folder: Path) -> DrkitError:
    return DrkitError(
        f"{folder} is not an encoder folder: it has neither modules.json nor config.json; give an encoder folder"
    )


def _similarity(model_settings: dict[str, Any], folder: Path) -> str:
    name = model_settings.get("similarity_fn_name")
    if name not in _SIMILARITIES:
        raise DrkitError(f"{folder}: unsupported similarity {name!r}; drkit supports cosine and dot")
    return _SIMILARITIES[name]


def _prompts(model_settings: dict[str, Any], pooling: dict[str, Any], folder: Path) -> dict[str, str]:
    prompts = model_settings.get("prompts") or {}
    passage = next((prompts[key] for key in ("document", "passage", "corpus") if prompts.get(key)), "")
    found = {"query_prompt": prompts.get("query") or "", "passage_prompt": passage}
    if any(found.values()) and pooling.get("include_prompt") is False:
        raise DrkitError(f"{folder}: its pooling excludes the prompt (include_prompt = false), which is unsupported")
    return found


def _max_length(folder: Path) -> int:
    config, tokenizer = _json(folder / "config.json"), _json(folder / "tokenizer_config.json", {})
    declared = _json(folder / "sentence_bert_config.json", {}).get("max_seq_length")
    limits = [declared or tokenizer.get("model_max_length"), _positions(config)]
    return int(min([limit for limit in limits if limit], default=512))


def _positions(config: dict[str, Any]) -> int | None:
    """Tokens that fit the position table; a configuration without a padding id uses RoBERTa's default of 1."""
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
        raise DrkitError(f"{path} is not valid JSON: {error}") from None
