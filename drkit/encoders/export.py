"""Write encoder folders that sentence-transformers and AutoModel load; `drkit.encoders.folder` describes the format.

A static encoder becomes a StaticEmbedding module, with its token weights folded into the vectors. Truncation is a Dense
module without bias, whose weights are the first rows of the identity; a static encoder's table is cut. With the pooling
`lexical` the folder is a SparseEncoder.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from safetensors.torch import save_file

from drkit.core.escaping import escape_markdown
from drkit.core.files import replacing_folder, write_json, write_text
from drkit.core.loading import without_progress_bars
from drkit.data.titles import AS_PAIR, SEPARATED, TEXT_ALONE, Titles
from drkit.encoders.architectures import STATIC, TIED, find_architecture
from drkit.encoders.card import EncoderCard, check_truncation, module_type
from drkit.encoders.declarations import MODULES, UNLIMITED
from drkit.encoders.folder import LEXICAL, PART_POOLING, PASSAGE_ENCODER, QUERY_ENCODER, ROUTER, ROUTES, TRUNCATION
from drkit.encoders.heads import seeded, tie_lm_head
from drkit.encoders.learned_pooling import LearnedPooling
from drkit.encoders.pooling import POOLINGS, check_token_weights, static_problem
from drkit.encoders.static import fold_weights
from drkit.encoders.token_weights import TokenWeights
from drkit.errors import DrkitError


class WrittenEncoder(Protocol):
    """What a folder is written from: a `drkit.search.TextEncoder`, or any object with these members.

    model: a Hugging Face backbone, or a masked LM, whose head is kept for a pooling that applies it. token_weights: for
    the pooling `weighted`. learned_pooling: the pooling, if it is a part, for which sentence-transformers needs drkit
    and `trust_remote_code=True`.
    """

    @property
    def card(self) -> EncoderCard:
        """How texts become vectors."""

    @property
    def model(self) -> Any:
        """A Hugging Face backbone or masked LM."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer whose vocabulary the word embeddings have."""

    @property
    def token_weights(self) -> TokenWeights | None:
        """The weight of each token."""

    @property
    def learned_pooling(self) -> LearnedPooling | None:
        """The pooling, if it is a part."""


def export_encoder(encoder: WrittenEncoder, folder: str | Path, *, provenance: Mapping[str, Any] | None = None) -> Path:
    """Write the folder of an encoder, atomically: weights, tokenizer, the declarations of its card, and a model card.

    Prompts precede every text, in sentence-transformers by `encode_query` and `encode_document`. provenance: where the
    model comes from, for the model card. Returns the folder.

    Raises DrkitError if sentence-transformers cannot compute the vectors, or AutoModel cannot rebuild the model.
    """
    card, backbone = encoder.card, _backbone(encoder)
    _check_vectors(encoder, backbone)
    write = _write_static if is_static(backbone) else _write_transformer
    with replacing_folder(Path(folder)) as temporary:
        write(encoder, backbone, temporary)
        hidden = int(backbone.config.hidden_size)
        card.write(temporary, provenance or {}, hidden=hidden, is_static=is_static(backbone))
        titles = Titles.of_config(backbone.config)
        write_text(temporary / "README.md", _readme(card, provenance or {}, titles, backbone.config))
    return Path(folder)


def export_dual(
    queries: WrittenEncoder,
    passages: WrittenEncoder,
    folder: str | Path,
    *,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write a folder with two encoders, atomically: a `Router` of sentence-transformers with one encoder per route.

    `query_encoder/` and `passage_encoder/` are written by `export_encoder`, so each can be loaded by itself; in
    sentence-transformers, `encode_query` uses one and `encode_document` the other.

    Raises DrkitError as `export_encoder` does.
    """
    sides = {QUERY_ENCODER: queries, PASSAGE_ENCODER: passages}
    with replacing_folder(Path(folder)) as temporary:
        for name, side in sides.items():
            export_encoder(side, temporary / name, provenance=provenance)
        card = passages.card.for_queries_of(queries.card)
        write_json(temporary / MODULES, [{"idx": 0, "name": "0", "path": "", "type": module_type("Router")}])
        write_json(temporary / ROUTER, _router_config(sides))
        card.write_settings(temporary)
        write_text(temporary / "README.md", _readme(card, provenance or {}, Titles.of_config(passages.model.config)))
    return Path(folder)


def _backbone(encoder: WrittenEncoder) -> Any:
    """Return the model without its head, unless the pooling applies it."""
    model = encoder.model
    return model if _applies_head(encoder) else getattr(model, "base_model", model)


def _applies_head(encoder: WrittenEncoder) -> bool:
    """Return whether the pooling applies the LM head, which is then written, too."""
    learned = encoder.learned_pooling
    return encoder.card.pooling == LEXICAL or (learned is not None and learned.receives_heads and learned.head is None)


def is_static(backbone: Any) -> bool:
    """Return whether a backbone is a static model, which is exported as a StaticEmbedding module."""
    return bool(backbone.config.model_type == STATIC)


def _check_vectors(encoder: WrittenEncoder, backbone: Any) -> None:
    """Raise DrkitError if no module gives the pooling what it needs, or vectors are shorter than their truncation."""
    card, learned = encoder.card, encoder.learned_pooling
    if learned is None and card.pooling not in POOLINGS:
        raise DrkitError(f"cannot export the encoder: 'pooling' must be in {tuple(POOLINGS)}, got {card.pooling!r}")
    check_token_weights(card.pooling, encoder.token_weights)
    check_truncation(card.truncate_dim or 0, _dimension(encoder, backbone))


def _check_lexical(model: Any, card: EncoderCard) -> None:
    """Raise DrkitError if a SparseEncoder would compute other scores than this model."""
    if card.has_unit_length or card.truncate_dim is not None:
        raise DrkitError(
            "cannot export the encoder: scores of words are compared by dot product and cannot be truncated; set "
            "similarity = 'dot', and leave out normalize and truncate_dim"
        )
    if getattr(model.config, TIED, False):
        raise DrkitError(
            "cannot export the encoder: its LM head is only the tied projection, which transformers cannot load; "
            "train one with lm_head = 'transform'"
        )


def _dimension(encoder: WrittenEncoder, backbone: Any) -> int:
    learned = encoder.learned_pooling
    return learned.dimension if learned else int(backbone.config.hidden_size)


def _write_transformer(encoder: WrittenEncoder, given: Any, folder: Path) -> None:
    """Write the weights of a transformer and of what comes behind it, and the tokenizer."""
    card, learned, modules = encoder.card, encoder.learned_pooling, encoder.card.modules()
    if card.lexical:
        _check_lexical(given, card)
    backbone = _as_auto_model(given, "AutoModelForMaskedLM" if _applies_head(encoder) else "AutoModel")
    with without_progress_bars():
        backbone.save_pretrained(folder)
    _save_tokenizer(encoder.tokenizer, folder, card)
    if PART_POOLING in modules and learned is not None:
        learned.save(_module(folder, modules[PART_POOLING]))
    if TRUNCATION in modules:
        _write_truncation(_module(folder, modules[TRUNCATION]), _dimension(encoder, given), card.truncate_dim or 0)
    if encoder.token_weights is not None:
        _write_word_weights(_module(folder, modules["WordWeights"]), encoder.tokenizer, encoder.token_weights)


def _module(folder: Path, path: str) -> Path:
    """Return the folder of a module, which is made."""
    (folder / path).mkdir()
    return folder / path


def _write_static(encoder: WrittenEncoder, given: Any, folder: Path) -> None:
    """Write a StaticEmbedding module; token weights are folded into the vectors, whose mean then has another length."""
    card, tokenizer = encoder.card, encoder.tokenizer
    problem = static_problem(card.pooling, has_unit_length=card.has_unit_length)
    if problem:
        raise DrkitError(f"cannot export the encoder: {problem}")
    table = fold_weights(given.get_input_embeddings().weight, encoder.token_weights)[:, : card.truncate_dim]
    save_file({"embedding.weight": table.contiguous()}, str(folder / "model.safetensors"))
    side = "Left" if tokenizer.truncation_side == "left" else "Right"
    cut = {"direction": side, "max_length": card.longest - 2, "strategy": "LongestFirst", "stride": 0}
    _save_tokenizer(tokenizer, folder, card, truncation=None if card.longest == UNLIMITED else cut)


def _router_config(sides: Mapping[str, WrittenEncoder]) -> dict[str, Any]:
    """Return the modules of each route; sides: the two encoders, by their folders."""
    paths = {}
    for route, (folder, encoder) in zip(ROUTES, sides.items(), strict=True):
        modules = encoder.card.modules(is_static=is_static(_backbone(encoder)))
        paths[route] = {f"{folder}/{path}" if path else folder: name for name, path in modules.items()}
    return {
        "types": {path: module_type(name) for names in paths.values() for path, name in names.items()},
        "structure": {route: list(names) for route, names in paths.items()},
        "parameters": {"default_route": None, "allow_empty_key": True},
    }


def _as_auto_model(backbone: Any, auto: str) -> Any:
    """Return a float32 copy on the CPU, of the class that transformers' class `auto` builds for the configuration."""
    with seeded(0, "export"):
        model = getattr(transformers, auto).from_config(copy.deepcopy(backbone.config)).float()
    if auto == "AutoModelForMaskedLM" and getattr(backbone.config, TIED, False):
        tie_lm_head(model)
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
    tokenizer: Any, folder: Path, card: EncoderCard, truncation: Mapping[str, Any] | None = None
) -> None:
    exported = copy.deepcopy(tokenizer)
    if card.longest != UNLIMITED:
        exported.model_max_length = card.longest
    exported.save_pretrained(folder)
    # Training leaves its last padding and truncation in this file; every loader sets its own.
    file = folder / "tokenizer.json"
    if file.is_file():
        content = json.loads(file.read_text(encoding="utf-8"))
        whole = {**content, "padding": None, "truncation": truncation}
        write_text(file, json.dumps(whole, ensure_ascii=False, indent=2))


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


def _readme(card: EncoderCard, provenance: Mapping[str, Any], titles: Titles, config: Any = None) -> str:
    """Return the model card."""
    facts = "".join(
        f"| {escape_markdown(str(key))} | {_cell(value)} |\n"
        for key, value in {**card.declared(), **provenance}.items()
    )
    library, title, tags = "SentenceTransformer", "Dense retriever", "sentence-transformers, feature-extraction"
    if card.lexical:
        library, title, tags = "SparseEncoder", "Lexical retriever", "sentence-transformers, sparse-encoder, splade"
    # The module of another learned pooling is drkit's, which sentence-transformers imports only on request.
    trusted = "" if card.pooling in (*POOLINGS, LEXICAL) else ", trust_remote_code=True"
    return (
        "---\nlibrary_name: sentence-transformers\npipeline_tag: sentence-similarity\n"
        f"tags: [drkit, {tags}]\n---\n\n"
        f"# {title} trained with drkit\n\n"
        f"```python\nfrom sentence_transformers import {library}\n\n"
        f'encoder = {library}("path/to/this/folder"{trusted})\n'
        'queries, passages = encoder.encode_query(["a query"]), encoder.encode_document(["a passage"])\n'
        "scores = encoder.similarity(queries, passages)\n```\n\n"
        f"{_NO_VECTOR if card.lexical and card.lexical.dense else ''}"
        f"{_lengths(card)} {_titles(titles)}"
        f"{_attention(config)}{_without_dropout(config, library, trusted)}\n\n"
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
    if titles.reads == TEXT_ALONE:
        return "The text of a passage is encoded without its title."
    if titles.reads == SEPARATED:
        return (
            f"A passage is encoded as its title, `{titles.separator}` and its text in one string; one without a title "
            f"as its text. Without the separator the vectors are others."
        )
    if titles.reads == AS_PAIR:
        return (
            'A passage is encoded as a pair, `encode_document([("title", "text")])`; one without a title as its text. '
            "Titles and texts that are joined to one string have other vectors."
        )
    return "A text is encoded title first, then body, with a space between."


def _attention(config: Any) -> str:
    """Return a sentence on how a decoder-only model reads a text, if it is not from left to right; config: or None."""
    if getattr(config, "is_causal", None) is not False:
        return ""
    return (
        " The model reads a text in both directions (`is_causal` in config.json); transformers before 5.2 ignores that "
        "and computes other vectors."
    )


def _lengths(card: EncoderCard) -> str:
    """Return a sentence on how much of a text is read."""
    if card.longest == UNLIMITED:
        return "Texts are read whole, however long."
    return (
        f"drkit truncates queries at {card.query_length} tokens and passages at {card.passage_length}; "
        f"sentence-transformers has one limit for both, {card.longest}."
    )


_NO_VECTOR = "A text has a vector, too, which only drkit computes: `drkit.search.TextEncoder`.\n\n"


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return escape_markdown(text)
