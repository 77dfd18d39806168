"""Cross-encoders whose scores sentence-transformers computes, module by module, such as causal re-rankers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from torch import Tensor, nn

from drkit.core.files import ADAPTER, digest
from drkit.core.loading import explain_load_errors, load_pretrained, load_sentence_transformer
from drkit.encoders.cross_encoder_folder import default_prompt
from drkit.encoders.declarations import CROSS_ENCODER, UNLIMITED, transformer_settings
from drkit.encoders.folder import listed_modules
from drkit.encoders.identity import config_hash, tokenizer_hash, weights_hash
from drkit.errors import DrkitError, import_extra

# The class of transformers that holds the weights of a Transformer module, by its task.
_LOADERS = {
    "feature-extraction": "AutoModel",
    "fill-mask": "AutoModelForMaskedLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "text-generation": "AutoModelForCausalLM",
}
# The first version of sentence-transformers whose cross-encoders have modules; earlier ones ignore them.
_FIRST_VERSION = 6


@frozen(eq=False)
class TemplatePairs:
    """Makes batches of pairs as sentence-transformers does: with the model's template, prompt, padding and length.

    model: a `CrossEncoder` of sentence-transformers. It has the methods of `PairTokenizer`, but keeps texts, because a
    template may put them anywhere.
    """

    model: Any

    @property
    def prompt(self) -> str:
        """The instruction in front of pairs, or a template's system message; may be empty."""
        return default_prompt({name: getattr(self.model, name) for name in ("prompts", "default_prompt_name")})

    @property
    def max_length(self) -> int:
        """Maximum tokens of a pair, the template included."""
        length = self.model.max_seq_length
        return UNLIMITED if length is None else int(min(length, UNLIMITED))

    def encode(self, texts: Sequence[str]) -> list[str]:
        """Return the texts unchanged: the modules tokenise pairs themselves."""
        return list(texts)

    def lengths(self, queries: Sequence[str], passages: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of tokens of each pair, i64[n], up to the few that a template joins or separates.

        Raises DrkitError for a pair without any token: both texts are empty, and no template surrounds them.
        """
        unique = list(dict.fromkeys(("a", *queries, *passages)))
        ids = self.model.tokenizer(unique, add_special_tokens=False, padding=False, truncation=False, verbose=False)
        by_text = {text: len(own) for text, own in zip(unique, ids["input_ids"], strict=True)}
        both = [by_text[query] + by_text[passage] for query, passage in zip(queries, passages, strict=True)]
        template = len(self.ids("a", "a")) - 2 * by_text["a"]
        lengths = np.array(both, dtype=np.int64) + template
        if (lengths <= 0).any():
            raise DrkitError(
                "query and passage are both empty, and the model has no template or special tokens around them, so it "
                "reads nothing; remove empty queries or passages"
            )
        return np.minimum(lengths, self.max_length)

    def batch(self, queries: Sequence[str], passages: Sequence[str]) -> dict[str, Any]:
        """Return the features of a batch of pairs, as the first module reads them."""
        pairs = [list(pair) for pair in zip(queries, passages, strict=True)]
        return dict(self.model.preprocess(pairs, prompt=self.prompt or None))

    def ids(self, query: str, passage: str) -> list[int]:
        """Return the token ids of one pair."""
        found: list[int] = np.asarray(self.batch([query], [passage])["input_ids"])[0].tolist()
        return found


class ModularCrossEncoder(nn.Module):
    """A `CrossEncoder` of sentence-transformers that scores pairs with its own modules; higher is better.

    model: for example a causal language model whose score is the logit of "yes" minus that of "no" after the last
    token (`LogitScore`), as in Qwen3-Reranker. It is used as sentence-transformers uses it, in the precision of its
    weights. Scores are raw, without the activation function of `predict`.

    Raises DrkitError for a model that does not give one score per pair, or whose length leaves no room for a passage.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model: Any = model
        self.pairs = TemplatePairs(model)
        self._check_room()
        with torch.inference_mode():
            scores = self._scores(self.pairs.batch(["a query"], ["a passage"]))
        if scores is None or scores.shape != (1, 1):
            found = "none" if scores is None else scores.shape[-1]
            names = ", ".join(type(module).__name__ for module in model)
            raise DrkitError(
                f"expected a cross-encoder with one score per pair, got {found} from its modules ({names})"
            )

    @property
    def max_length(self) -> int:
        """Maximum tokens of a pair, the template included."""
        return self.pairs.max_length

    def identity(self) -> dict[str, Any]:
        """Return what the scores depend on, as plain data: hashes of weights, modules and tokenizer, and the prompt."""
        transformers = [module for module in self.model if hasattr(module, "auto_model")]
        modules = [[type(module).__name__, module.get_config_dict()] for module in self.model]
        configs = [config_hash(module.auto_model.config) for module in transformers]
        tokenizer = self.model.tokenizer
        return {
            "weights": weights_hash(self.model),
            "config": digest([configs, modules]),
            "tokenizer": digest([tokenizer_hash(tokenizer), tokenizer.chat_template, tokenizer.padding_side]),
            "prompt": self.pairs.prompt,
            "max_length": self.max_length,
            "dtype": sorted({str(weight.dtype) for weight in self.model.parameters()}),
        }

    def cut_at(self, max_length: int) -> None:
        """Set the maximum tokens of a pair.

        Raises DrkitError if that leaves no room for a passage, or the folder sets a length that cannot be changed.
        """
        self.model.max_seq_length = max_length
        width = len(self.pairs.ids("a", "a " * 2 * max_length))
        if width > max_length:
            raise DrkitError(
                f"the model reads pairs of {width} tokens in spite of max_length {max_length}; remove the length from "
                f"processing_kwargs in its sentence_bert_config.json"
            )
        self._check_room()

    def forward(self, **features: Any) -> Tensor:
        """Score a batch of pairs that `pairs.batch` made, f[B]."""
        scores = self._scores(features)
        assert scores is not None
        return scores.squeeze(-1)

    @classmethod
    def load(cls, folder: Path) -> ModularCrossEncoder:
        """Load a `CrossEncoder` that sentence-transformers saved with modules.

        Raises DrkitError without version 6 of sentence-transformers, for code or pickled weights in the folder, for
        weights that are missing, and for a model that does not give one score per pair.
        """
        library = import_extra("sentence_transformers", "scoring pairs with the modules of a cross-encoder")
        if int(library.__version__.partition(".")[0]) < _FIRST_VERSION:
            raise DrkitError(
                f"{folder} needs sentence-transformers {_FIRST_VERSION}, whose cross-encoders have modules, but "
                f"{library.__version__} is installed: pip install 'sentence-transformers>={_FIRST_VERSION}'"
            )
        _check_transformers(folder)
        model = load_sentence_transformer(folder, "cpu", CROSS_ENCODER)
        with explain_load_errors(str(folder), "score pairs with"):
            return cls(model.eval())

    def _scores(self, features: dict[str, Any]) -> Tensor | None:
        found: Tensor | None = self.model(features).get("scores")
        return found

    def _check_room(self) -> None:
        if self.pairs.ids("a", "a") == self.pairs.ids("a", "b"):
            raise DrkitError(
                f"max_length {self.max_length} leaves no room for a passage after the template and prompt; raise it"
            )


def _check_transformers(folder: Path) -> None:
    """Raise DrkitError if a Transformer module does not read text, or its weights are not those of its model."""
    for name, path in listed_modules(folder).items():
        if not name.startswith("Transformer"):
            continue
        inner = folder / path
        if (inner / ADAPTER).is_file():
            raise DrkitError(
                f"{inner} has an adapter ({ADAPTER}); merge it (merge_and_unload of peft) and save the result"
            )
        task = transformer_settings(inner)[1].get("transformer_task", "feature-extraction")
        if task not in _LOADERS:
            raise DrkitError(f"{inner} is for the task {task!r}; drkit scores texts with one of {', '.join(_LOADERS)}")
        load_pretrained(_LOADERS[task], str(inner), "load the cross-encoder", device_map="meta")
