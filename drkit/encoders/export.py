"""Writing an encoder folder that transformers and sentence-transformers load as they load any other.

The weights are the backbone alone. What turns hidden states into a vector is declared beside them in the names
that sentence-transformers has used since version 2, which versions 5 and 6 read too.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from attrs import asdict, field, frozen
from attrs.validators import ge, in_

from drkit.core.files import replacing_folder
from drkit.core.quiet import without_bars
from drkit.encoders.seeding import seeded
from drkit.errors import DrkitError

QUERIES, PASSAGES = "query_encoder", "passage_encoder"
_MODULE = "sentence_transformers.models."
POOLING_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


@frozen
class _Declared:
    """How vectors are made of hidden states; checked here, written to several files."""

    pooling: str = field(validator=in_(("cls", "mean")))
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

    model: a Hugging Face backbone, or a masked LM, whose head is left behind. pooling: `cls` or `mean`. similarity:
    `cosine` or `dot`. query_length, passage_length: in tokens, special ones included. Prompts stand before every text:
    sentence-transformers' `encode_query` and `encode_document` put them there. normalize: vectors of length 1 also
    under dot. provenance: what the model card tells of where it comes from, as plain data.

    Raises DrkitError where a setting is not allowed, or the model is no encoder that AutoModel can rebuild.
    """
    try:
        how = _Declared(
            pooling, similarity, query_length, passage_length, query_prompt, passage_prompt, normalize=normalize
        )
    except ValueError as error:
        raise DrkitError(f"cannot export the encoder: {error.args[0]}") from None
    backbone = _as_auto_model(getattr(model, "base_model", model))
    with replacing_folder(Path(folder), "modules.json") as temporary:
        with without_bars():
            backbone.save_pretrained(temporary)
        _save_tokenizer(tokenizer, temporary, how)
        _write_declarations(temporary, how, int(backbone.config.hidden_size))
        _write_json(temporary / "drkit.json", {"format": 1, **asdict(how), "provenance": dict(provenance or {})})
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
    """Write the folder of two encoders, atomically: a `Router` of sentence-transformers, each encoder whole within it.

    `query_encoder/` and `passage_encoder/` are what `export_encoder` writes, and loadable by themselves; `encode_query`
    and `encode_document` of the folder take one each. queries, passages: its `model` and `tokenizer`; declared: its
    other settings.

    Raises DrkitError as `export_encoder` does.
    """
    with replacing_folder(Path(folder), "modules.json") as temporary:
        for name, (model, tokenizer) in ((QUERIES, queries), (PASSAGES, passages)):
            export_encoder(model, tokenizer, temporary / name, provenance=provenance, **declared)
        how = _Declared(**declared)
        modules = [
            [name + "/" + part if part else name for part in _modules_of(how).values()] for name in (QUERIES, PASSAGES)
        ]
        kinds = {path: _MODULE + kind for paths in modules for path, kind in zip(paths, _modules_of(how), strict=True)}
        structure = dict(zip(("query", "document"), modules, strict=True))
        parameters = {"default_route": None, "allow_empty_key": True}
        _write_json(temporary / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": f"{_MODULE}Router"}])
        _write_json(
            temporary / "router_config.json", {"types": kinds, "structure": structure, "parameters": parameters}
        )
        _write_json(temporary / "config_sentence_transformers.json", _about(how))
        (temporary / "README.md").write_text(_model_card(how, provenance or {}), encoding="utf-8")
    return Path(folder)


def _as_auto_model(backbone: Any) -> Any:
    """A copy, on the processor and in float32, of the class that `AutoModel` builds for the configuration."""
    from transformers import AutoModel

    with seeded(0, "export"):
        model = AutoModel.from_config(copy.deepcopy(backbone.config)).float()
    weights = {name: value.detach().cpu().float() for name, value in backbone.state_dict().items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    wrong = [name for name in missing if not name.startswith("pooler.")] + list(unexpected)
    if wrong:
        raise DrkitError(
            f"cannot export a {type(backbone).__name__}: {type(model).__name__} does not have its weight {wrong[0]!r}; "
            f"give the backbone of a Hugging Face masked LM"
        )
    if missing:
        _neutral_pooler(model.pooler)
    return model.eval()


@torch.no_grad()
def _neutral_pooler(pooler: Any) -> None:
    """The identity, where a masked LM has no pooler: else AutoModel would draw one at random, and warn."""
    for parameter in pooler.parameters():
        parameter.copy_(torch.eye(*parameter.shape) if parameter.ndim == 2 else torch.zeros_like(parameter))


def _save_tokenizer(tokenizer: Any, folder: Path, how: _Declared) -> None:
    mine = copy.deepcopy(tokenizer)
    mine.model_max_length = max(how.query_length, how.passage_length)
    mine.save_pretrained(folder)
    # a training run leaves its last padding and cut in this file; every loader sets its own
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
    flags = {flag: pooling == how.pooling for pooling, flag in POOLING_FLAGS.items()}
    longest = max(how.query_length, how.passage_length)
    _write_json(folder / "modules.json", modules)
    _write_json(
        folder / "1_Pooling" / "config.json", {"word_embedding_dimension": hidden, **flags, "include_prompt": True}
    )
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})
    _write_json(folder / "config_sentence_transformers.json", _about(how))


def _modules_of(how: _Declared) -> dict[str, str]:
    """sentence-transformers' modules, and the folder of each."""
    names = ["Transformer", "Pooling", *(["Normalize"] if how.similarity == "cosine" or how.normalize else [])]
    return {name: f"{place}_{name}" if place else "" for place, name in enumerate(names)}


def _about(how: _Declared) -> dict[str, Any]:
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
        f"drkit cuts queries at {how.query_length} tokens and passages at {how.passage_length}; "
        f"sentence-transformers has one limit for both, {max(how.query_length, how.passage_length)}. A text is "
        "encoded title first, then body, with one space between.\n\n"
        f"| | |\n|---|---|\n{facts}"
    )


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text.replace("|", "\\|").replace("\n", " ")


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
