"""What encoder folders of every kind declare, and what is read from them; `python -m tests.goldens.encoder_folders`.

`written` holds the JSON files that drkit writes beside weights and tokenizer, `read` what it reads from folders of its
own and of sentence-transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from attrs import asdict

from drkit.core.types import BackboneInfo
from drkit.data.titles import Titles
from drkit.encoders import BertSizes, MaskedLmEncoder
from drkit.encoders.architectures import backbone_info
from drkit.encoders.card import EncoderCard
from drkit.encoders.folder import read_modules, read_routes, transformer_folder
from drkit.encoders.learned_pooling import LearnedPooling
from drkit.encoders.token_weights import TokenWeights
from drkit.errors import DrkitError
from drkit.runs.making.retriever import write_encoder
from drkit.search import DualEncoder, TextEncoder
from tests.search.folders import CASES
from tests.search.made import reader_of
from tests.search.toys import VOCABULARY, masked_lm, tokenizer

GOLDEN = Path(__file__).with_suffix(".json")
OWN_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
SIZES = BertSizes(hidden=16, layers=0, heads=2, intermediate=24, max_positions=64, dropout=0.0)
PROMPTS = {"query_prompt": "remove ", "passage_prompt": "string: "}


def dense(seed: int = 0, titles: str = "joined", **how: Any) -> TextEncoder:
    model = masked_lm(seed).base_model
    Titles.of(titles, tokenizer(), model.config).save(model.config)
    return reader_of(model, tokenizer(), **{"query_length": 16, "passage_length": 48, **how})


def weights() -> TokenWeights:
    return TokenWeights(torch.linspace(0.5, 2, len(VOCABULARY)))


def static(pooling: str = "mean", **how: Any) -> TextEncoder:
    model = MaskedLmEncoder.from_scratch(SIZES, tokenizer(), pooling="mean", seed=1).backbone
    return reader_of(model, tokenizer(), pooling=pooling, **{"query_length": 16, "passage_length": 48, **how})


def lexical(**settings: Any) -> TextEncoder:
    model = masked_lm()
    info: BackboneInfo = backbone_info(model.config, tokenizer())
    pooling = LearnedPooling("lexical", settings, info)
    how = {"pooling": "lexical", "similarity": "dot", "query_length": 16, "passage_length": 48}
    return reader_of(model, tokenizer(), learned_pooling=pooling, **how)


WRITTEN: Mapping[str, Callable[[], Any]] = {
    "cls": dense,
    "mean, dot": lambda: dense(pooling="mean", similarity="dot"),
    "max": lambda: dense(pooling="max"),
    "last": lambda: dense(pooling="last"),
    "weighted": lambda: dense(pooling="weighted", token_weights=weights()),
    "weighted, dot": lambda: dense(pooling="weighted", similarity="dot", token_weights=weights()),
    "normalised, dot": lambda: dense(pooling="mean", similarity="dot", normalize=True),
    "prompts": lambda: dense(pooling="mean", **PROMPTS),
    "documents": lambda: dense(pooling="mean", passages_per_document=3),
    "truncated": lambda: dense(pooling="mean", truncate_dim=8),
    "truncated, dot": lambda: dense(pooling="cls", similarity="dot", truncate_dim=8),
    "bfloat16": lambda: dense(precision="bfloat16"),
    "titles separated": lambda: dense(titles="separated"),
    "titles as pairs": lambda: dense(titles="pair"),
    "titles left out": lambda: dense(titles="text"),
    "static": static,
    "static, dot": lambda: static(similarity="dot", **PROMPTS),
    "static, weighted": lambda: static("weighted", token_weights=weights()),
    "static, truncated": lambda: static(truncate_dim=8),
    "lexical": lexical,
    "lexical, with settings": lambda: lexical(over_positions="sum", top_k=4, dense="cls"),
    "dual": lambda: DualEncoder(dense(1), dense(2)),
    "dual, prompts": lambda: DualEncoder(dense(1, pooling="mean", **PROMPTS), dense(2, pooling="mean", **PROMPTS)),
    "dual, static": lambda: DualEncoder(static(), static()),
}


def write(name: str, folder: Path) -> Path:
    """Write the folder of an encoder of this kind."""
    write_encoder(WRITTEN[name](), folder, {"stage": "retriever-1"})
    return folder


def declarations(folder: Path) -> dict[str, str]:
    """Return the text of every file that declares something, and the model card, without versions of libraries."""
    found = {}
    for file in sorted(folder.rglob("*")):
        if file.suffix not in (".json", ".md") or (
            file.name in OWN_FILES and (file.parent / "model.safetensors").is_file() and not _is_module(file)
        ):
            continue
        text = file.read_text(encoding="utf-8")
        if file.name == "config_sentence_transformers.json":
            saved = json.loads(text)
            saved["__version__"] = dict.fromkeys(saved["__version__"], "")
            text = json.dumps(saved)
        found[file.relative_to(folder).as_posix()] = text
    return found


def _is_module(file: Path) -> bool:
    return "_" in file.parent.name and file.parent.name[0].isdigit()


def read(folder: Path) -> Any:
    """Return what is read from a folder, of each side if it has two; the error if there is one."""
    try:
        if (folder / "router_config.json").is_file():
            return [_plain(folder, modules) for modules in read_routes(folder)]
        return _plain(folder, read_modules(folder))
    except DrkitError as error:
        return str(error).replace(str(folder), "FOLDER")


def _plain(folder: Path, modules: Mapping[str, str]) -> dict[str, Any]:
    card = EncoderCard.read(folder, modules)
    found = {**asdict(card), "transformer": transformer_folder(folder, modules).relative_to(folder).as_posix()}
    return {name: value for name, value in sorted(found.items()) if value is not None}


def record() -> dict[str, Any]:
    """Return everything that the golden holds."""
    written, found = {}, {}
    with TemporaryDirectory() as where:
        for at, name in enumerate(WRITTEN):
            folder = write(name, Path(where) / f"w{at}")
            written[name], found[name] = declarations(folder), read(folder)
        for at, (name, build) in enumerate(CASES.items()):
            build(Path(where) / f"c{at}")
            found[f"sentence-transformers: {name}"] = read(Path(where) / f"c{at}")
    return {"written": written, "read": found}


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(record(), indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
