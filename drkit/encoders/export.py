"""Write encoder folders that sentence-transformers and AutoModel load; `drkit.encoders.folder` describes the format.

A static encoder becomes a StaticEmbedding module, with its token weights folded into the vectors. Truncation is a Dense
module without bias, whose weights are the first rows of the identity; a static encoder's table is cut. With the pooling
`lexical` the folder is a SparseEncoder.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from attrs import asdict, field, frozen
from attrs.validators import ge, in_, optional
from safetensors.torch import save_file

from drkit.core.escaping import escape_markdown
from drkit.core.files import replacing_folder, write_json, write_text
from drkit.core.loading import without_progress_bars
from drkit.data.titles import PAIR, SEPARATED, TEXT, Titles
from drkit.encoders.architectures import STATIC, TIED, find_architecture
from drkit.encoders.declarations import DRKIT, LENGTH, MODULES, POOLING_FLAGS, SETTINGS, UNLIMITED
from drkit.encoders.folder import (
    LEXICAL,
    LEXICAL_MODULES,
    PART_POOLING,
    PASSAGES,
    QUERIES,
    ROUTER,
    ROUTES,
    SIMILARITIES,
    SPLADE_POOLING,
    STATIC_MODULES,
    SUPPORTED_MODULES,
    TRUNCATION,
    check_truncation,
)
from drkit.encoders.heads import seeded
from drkit.encoders.learned_pooling import LearnedPooling
from drkit.encoders.pooling import POOLINGS, LexicalConfig, check_token_weights, is_weighted, static_problem
from drkit.encoders.static import fold_weights
from drkit.encoders.token_weights import TokenWeights
from drkit.errors import DrkitError

_MODULE, _SPARSE_MODULE = "sentence_transformers.models.", "sentence_transformers.sparse_encoder.models."
_PART_POOLING = f"drkit.encoders.sentence_module.{PART_POOLING}"


@frozen
class _Declarations:
    """How hidden states become a vector; written to several files."""

    pooling: str
    similarity: str = field(validator=in_(SIMILARITIES))
    query_length: int = field(validator=ge(2))
    passage_length: int = field(validator=ge(2))
    query_prompt: str = ""
    passage_prompt: str = ""
    normalize: bool = False
    truncate_dim: int | None = field(default=None, validator=optional(ge(1)))
    passages_per_document: int | None = field(default=None, validator=optional(ge(2)))
    pooling_settings: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, **settings: Any) -> _Declarations:
        """Return the declarations. Raises DrkitError for an invalid one."""
        try:
            return cls(**settings)
        except ValueError as error:
            raise DrkitError(f"cannot export the encoder: {error.args[0]}") from None

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

    def given(self) -> dict[str, Any]:
        """Return the declarations as plain data; those that are None are left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


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
    truncate_dim: int | None = None,
    passages_per_document: int | None = None,
    token_weights: TokenWeights | None = None,
    learned_pooling: LearnedPooling | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write the encoder folder, atomically: weights, tokenizer, pooling, similarity, lengths and a model card.

    model: a Hugging Face backbone, or a masked LM, whose head only the pooling `lexical` keeps. pooling: a name of
    `drkit.encoders.pooling.POOLINGS`, or that of `learned_pooling`, for which sentence-transformers needs drkit and
    `trust_remote_code=True`. similarity: `cosine` or `dot`. query_length, passage_length: in tokens, special ones
    included. Prompts precede every text, in sentence-transformers by `encode_query` and `encode_document`. normalize:
    vectors of length 1 also under dot. truncate_dim: keep only the first numbers of every vector; None: all.
    passages_per_document: how many passages drkit cuts a long text into for search; None: it reads the beginning.
    token_weights: for the pooling `weighted`. provenance: where the model comes from, for the model card.

    Raises DrkitError if a setting is invalid, or AutoModel cannot rebuild the model.
    """
    declared = _Declarations.of(
        pooling=pooling,
        similarity=similarity,
        query_length=query_length,
        passage_length=passage_length,
        query_prompt=query_prompt,
        passage_prompt=passage_prompt,
        normalize=normalize,
        truncate_dim=truncate_dim,
        passages_per_document=passages_per_document,
        pooling_settings=learned_pooling.settings if learned_pooling else None,
    )
    given = model if pooling == LEXICAL else getattr(model, "base_model", model)
    _check_vectors(declared, given, token_weights, learned_pooling)
    write = _write_static if is_static(given) else _write_transformer
    with replacing_folder(Path(folder)) as temporary:
        reads = Titles.of_config(given.config)
        write(given, tokenizer, temporary, declared, token_weights or learned_pooling)
        write_json(temporary / DRKIT, {"format": 1, **declared.given(), "provenance": dict(provenance or {})})
        write_text(
            temporary / "README.md",
            _model_card(declared, provenance or {}, reads, given.config),
        )
    return Path(folder)


def export_dual(
    queries: tuple[Any, Any],
    passages: tuple[Any, Any],
    folder: str | Path,
    *,
    token_weights: tuple[TokenWeights | None, TokenWeights | None] = (None, None),
    learned_poolings: tuple[LearnedPooling | None, LearnedPooling | None] = (None, None),
    provenance: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """Write a folder with two encoders, atomically: a `Router` of sentence-transformers with one encoder per route.

    `query_encoder/` and `passage_encoder/` are written by `export_encoder`, so each can be loaded by itself; in
    sentence-transformers, `encode_query` uses one and `encode_document` the other. queries, passages: (model,
    tokenizer) of each; token_weights, learned_poolings: those of each; settings: the others of `export_encoder`.

    Raises DrkitError as `export_encoder` does.
    """
    with replacing_folder(Path(folder)) as temporary:
        sides = (QUERIES, *queries), (PASSAGES, *passages)
        for (name, model, tokenizer), weights, learned in zip(sides, token_weights, learned_poolings, strict=True):
            how = {**settings, "token_weights": weights, "learned_pooling": learned, "provenance": provenance}
            export_encoder(model, tokenizer, temporary / name, **how)
        declared, reads = _Declarations.of(**settings), Titles.of_config(passages[0].config)
        write_json(temporary / MODULES, [{"idx": 0, "name": "0", "path": "", "type": f"{_MODULE}Router"}])
        modules = _modules_of(declared, is_static=is_static(getattr(queries[0], "base_model", queries[0])))
        write_json(temporary / ROUTER, _router_config(modules))
        write_json(temporary / SETTINGS, _model_settings(declared))
        write_text(
            temporary / "README.md",
            _model_card(declared, provenance or {}, reads),
        )
    return Path(folder)


def is_static(backbone: Any) -> bool:
    """Return whether a backbone is a static model, which is exported as a StaticEmbedding module."""
    return bool(backbone.config.model_type == STATIC)


def _check_vectors(
    declared: _Declarations, given: Any, token_weights: TokenWeights | None, learned: LearnedPooling | None
) -> None:
    """Raise DrkitError if the pooling is not that of the model, or vectors are shorter than their truncation."""
    pooling = declared.pooling
    if learned is None and pooling not in POOLINGS:
        raise DrkitError(f"cannot export the encoder: 'pooling' must be in {tuple(POOLINGS)}, got {pooling!r}")
    if learned is not None and pooling != learned.name:
        raise DrkitError(f"cannot export the encoder: its pooling is {learned.name!r}, not {pooling!r}")
    check_token_weights(pooling, token_weights)
    if learned is not None and learned.receives_heads and pooling != LEXICAL:
        raise DrkitError(f"cannot export the encoder: no module of sentence-transformers gives {pooling!r} an LM head")
    check_truncation(declared.truncate_dim or 0, _dimension(given, learned))


def _check_lexical(model: Any, declared: _Declarations) -> None:
    """Raise DrkitError if a SparseEncoder would compute other scores than this model."""
    if declared.has_unit_length or declared.truncate_dim is not None:
        raise DrkitError(
            "cannot export the encoder: scores of words are compared by dot product and cannot be truncated; set "
            "similarity = 'dot', and leave out normalize and truncate_dim"
        )
    if getattr(model.config, TIED, False):
        raise DrkitError(
            "cannot export the encoder: its LM head is only the tied projection, which transformers cannot load; "
            "train one with lm_head = 'transform'"
        )


def _dimension(backbone: Any, learned: LearnedPooling | None) -> int:
    return learned.dimension if learned else int(backbone.config.hidden_size)


def _write_transformer(
    given: Any,
    tokenizer: Any,
    folder: Path,
    declared: _Declarations,
    weights: TokenWeights | LearnedPooling | None,
) -> None:
    if declared.lexical:
        _check_lexical(given, declared)
    backbone = _as_auto_model(given, "AutoModelForMaskedLM" if declared.lexical else "AutoModel")
    with without_progress_bars():
        backbone.save_pretrained(folder)
    _save_tokenizer(tokenizer, folder, declared)
    modules = _modules_of(declared)
    _write_declarations(folder, declared, modules)
    learned = weights if isinstance(weights, LearnedPooling) else None
    if declared.lexical:
        splade = {"pooling_strategy": declared.lexical.over_positions, "activation_function": "relu"}
        write_json(folder / modules[SPLADE_POOLING] / "config.json", splade)
    elif learned is not None:
        learned.save(folder / modules[PART_POOLING])
    else:
        flags = {flag: name == POOLINGS[declared.pooling].saved_as for name, flag in POOLING_FLAGS.items()}
        pooling = {"word_embedding_dimension": int(backbone.config.hidden_size), **flags, "include_prompt": True}
        write_json(folder / modules["Pooling"] / "config.json", pooling)
    write_json(folder / LENGTH, {"max_seq_length": declared.longest, "do_lower_case": False})
    if declared.truncate_dim is not None:
        _write_truncation(folder / modules[TRUNCATION], _dimension(backbone, learned), declared.truncate_dim)
    if isinstance(weights, TokenWeights):
        _write_word_weights(folder / modules["WordWeights"], tokenizer, weights)


def _write_static(
    given: Any,
    tokenizer: Any,
    folder: Path,
    declared: _Declarations,
    weights: TokenWeights | LearnedPooling | None,
) -> None:
    """Write a StaticEmbedding module; token weights are folded into the vectors, whose mean then has another length."""
    problem = static_problem(declared.pooling, has_unit_length=declared.has_unit_length)
    if problem:
        raise DrkitError(f"cannot export the encoder: {problem}")
    token_weights = weights if isinstance(weights, TokenWeights) else None
    table = fold_weights(given.get_input_embeddings().weight, token_weights)[:, : declared.truncate_dim]
    save_file({"embedding.weight": table.contiguous()}, str(folder / "model.safetensors"))
    side = "Left" if tokenizer.truncation_side == "left" else "Right"
    cut = {"direction": side, "max_length": declared.longest - 2, "strategy": "LongestFirst", "stride": 0}
    _save_tokenizer(tokenizer, folder, declared, truncation=None if declared.longest == UNLIMITED else cut)
    _write_declarations(folder, declared, _modules_of(declared, is_static=True))


def _router_config(modules: Mapping[str, str]) -> dict[str, Any]:
    encoders = dict(zip(ROUTES, (QUERIES, PASSAGES), strict=True))
    paths = {
        route: {f"{encoder}/{path}" if path else encoder: name for name, path in modules.items()}
        for route, encoder in encoders.items()
    }
    return {
        "types": {path: _class_of(name) for names in paths.values() for path, name in names.items()},
        "structure": {route: list(names) for route, names in paths.items()},
        "parameters": {"default_route": None, "allow_empty_key": True},
    }


def _as_auto_model(backbone: Any, auto: str) -> Any:
    """Return a float32 copy on the CPU, of the class that transformers' class `auto` builds for the configuration."""
    with seeded(0, "export"):
        model = getattr(transformers, auto).from_config(copy.deepcopy(backbone.config)).float()
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
    """Set a pooler to the identity: masked LMs lack one, and AutoModel would warn and draw it at random."""
    with torch.no_grad():
        for parameter in pooler.parameters():
            parameter.copy_(torch.eye(*parameter.shape) if parameter.ndim == 2 else torch.zeros_like(parameter))


def _save_tokenizer(
    tokenizer: Any, folder: Path, declared: _Declarations, truncation: Mapping[str, Any] | None = None
) -> None:
    exported = copy.deepcopy(tokenizer)
    if declared.longest != UNLIMITED:
        exported.model_max_length = declared.longest
    exported.save_pretrained(folder)
    # Training leaves its last padding and truncation in this file; every loader sets its own.
    file = folder / "tokenizer.json"
    if file.is_file():
        content = json.loads(file.read_text(encoding="utf-8"))
        whole = {**content, "padding": None, "truncation": truncation}
        write_text(file, json.dumps(whole, ensure_ascii=False, indent=2))


def _write_declarations(folder: Path, declared: _Declarations, named: Mapping[str, str]) -> None:
    for path in filter(None, named.values()):
        (folder / path).mkdir()
    modules = [
        {"idx": idx, "name": str(idx), "path": path, "type": _class_of(name)}
        for idx, (name, path) in enumerate(named.items())
    ]
    write_json(folder / MODULES, modules)
    write_json(folder / SETTINGS, _model_settings(declared))


def _write_word_weights(folder: Path, tokenizer: Any, token_weights: TokenWeights) -> None:
    """Write a WordWeights module: sentence-transformers reads config.json; ids without a token get a placeholder."""
    values = token_weights.values().detach().cpu()
    words = {number: word for word, number in tokenizer.get_vocab().items()}
    vocab = [words.get(number, f"[id {number}]") for number in range(len(values))]
    weights = dict(zip(vocab, values.tolist(), strict=True))
    write_json(folder / "config.json", {"vocab": vocab, "word_weights": weights, "unknown_word_weight": 1})
    save_file({"emb_layer.weight": values[:, None].contiguous()}, str(folder / "model.safetensors"))


def _write_truncation(folder: Path, dimension: int, kept: int) -> None:
    """Write a Dense module that keeps the first numbers of a vector unchanged."""
    config = {"in_features": dimension, "out_features": kept, "bias": False}
    write_json(folder / "config.json", {**config, "activation_function": "torch.nn.modules.linear.Identity"})
    save_file({"linear.weight": torch.eye(kept, dimension)}, str(folder / "model.safetensors"))


def _modules_of(declared: _Declarations, *, is_static: bool = False) -> dict[str, str]:
    """Return the folder of each sentence-transformers module, by module name."""
    names: tuple[str, ...]
    if declared.lexical:
        names = LEXICAL_MODULES
    elif is_static:
        names = STATIC_MODULES[declared.has_unit_length]
    else:
        names = SUPPORTED_MODULES[declared.has_unit_length, is_weighted(declared.pooling)]
        if declared.pooling not in POOLINGS:
            names = tuple(PART_POOLING if name == "Pooling" else name for name in names)
        if declared.truncate_dim is not None:
            after = len(names) - declared.has_unit_length
            names = (*names[:after], TRUNCATION, *names[after:])
    return {name: f"{index}_{name}" if index else "" for index, name in enumerate(names)}


def _class_of(module: str) -> str:
    """Return the import path of a module, by which sentence-transformers loads it."""
    if module == PART_POOLING:
        return _PART_POOLING
    return (_SPARSE_MODULE if module in LEXICAL_MODULES else _MODULE) + module


def _model_settings(declared: _Declarations) -> dict[str, Any]:
    lexical = declared.lexical
    return {
        **({"model_type": "SparseEncoder", "max_active_dims": lexical.top_k or None} if lexical else {}),
        "__version__": {"pytorch": torch.__version__, "transformers": version("transformers")},
        "prompts": {"query": declared.query_prompt, "document": declared.passage_prompt},
        "default_prompt_name": None,
        "similarity_fn_name": declared.similarity,
    }


def _model_card(declared: _Declarations, provenance: Mapping[str, Any], titles: Titles, config: Any = None) -> str:
    facts = "".join(
        f"| {escape_markdown(str(key))} | {_cell(value)} |\n"
        for key, value in {**declared.given(), **provenance}.items()
    )
    library, title, tags = "SentenceTransformer", "Dense retriever", "sentence-transformers, feature-extraction"
    if declared.lexical:
        library, title, tags = "SparseEncoder", "Lexical retriever", "sentence-transformers, sparse-encoder, splade"
    # The module of another learned pooling is drkit's, which sentence-transformers imports only on request.
    trusted = "" if declared.pooling in (*POOLINGS, LEXICAL) else ", trust_remote_code=True"
    return (
        "---\nlibrary_name: sentence-transformers\npipeline_tag: sentence-similarity\n"
        f"tags: [drkit, {tags}]\n---\n\n"
        f"# {title} trained with drkit\n\n"
        f"```python\nfrom sentence_transformers import {library}\n\n"
        f'encoder = {library}("path/to/this/folder"{trusted})\n'
        'queries, passages = encoder.encode_query(["a query"]), encoder.encode_document(["a passage"])\n'
        "scores = encoder.similarity(queries, passages)\n```\n\n"
        f"{_NO_VECTOR if declared.lexical and declared.lexical.dense else ''}"
        f"{_lengths(declared)} {_titles(titles)}"
        f"{_without_dropout(config, library, trusted)}\n\n"
        f"| | |\n|---|---|\n{facts}"
    )


def _without_dropout(config: Any, library: str, trusted: str) -> str:
    """Return what a card says on a dropout of 0, which some training in other libraries relies on; "" with dropout.

    config: None for a router, whose encoders have cards of their own.
    """
    found = find_architecture(config.model_type) if config is not None and config.model_type != STATIC else None
    sizes = found.sizes if found else None
    names = [name for name in (sizes.dropout, sizes.attention_dropout) if isinstance(name, str)] if sizes else []
    if not names or any(getattr(config, name, 0) for name in names):
        return ""
    settings = ", ".join(f'"{name}": 0.1' for name in names)
    return (
        " The encoder was trained without dropout, and its configuration has none. Training that makes two views of a "
        "text by dropout (SimCSE) learns nothing from it; load it with dropout for that:\n\n```python\n"
        f'encoder = {library}("path/to/this/folder", config_kwargs={{{settings}}}{trusted})\n```'
    )


def _titles(titles: Titles) -> str:
    """Return a sentence on how the title of a passage is read."""
    if titles.reads == TEXT:
        return "The text of a passage is encoded without its title."
    if titles.reads == SEPARATED:
        return (
            f"A passage is encoded as its title, `{titles.separator}` and its text in one string; one without a title "
            f"as its text. Without the separator the vectors are others."
        )
    if titles.reads == PAIR:
        return (
            'A passage is encoded as a pair, `encode_document([("title", "text")])`; one without a title as its text. '
            "Titles and texts that are joined to one string have other vectors."
        )
    return "A text is encoded title first, then body, with a space between."


def _lengths(declared: _Declarations) -> str:
    """Return a sentence on how much of a text is read."""
    if declared.longest == UNLIMITED:
        return "Texts are read whole, however long."
    return (
        f"drkit truncates queries at {declared.query_length} tokens and passages at {declared.passage_length}; "
        f"sentence-transformers has one limit for both, {declared.longest}."
    )


_NO_VECTOR = "A text has a vector, too, which only drkit computes: `drkit.search.TextEncoder`.\n\n"


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return escape_markdown(text)
