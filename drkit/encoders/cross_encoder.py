"""Cross-encoders: read a query and a passage together, as one tokenised pair, and score them."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn

from drkit.core.files import local_path, replacing_folder, write_text
from drkit.core.loading import explain_load_errors, load_pretrained, without_progress_bars
from drkit.encoders.architectures import architecture, check_vocabulary, find_architecture, longest_text
from drkit.encoders.batches import padded
from drkit.encoders.cross_encoder_folder import check_head, check_trainable, is_classifier, unsupported_layout
from drkit.encoders.declarations import check_cross_encoder, longest_pair
from drkit.encoders.heads import seeded
from drkit.encoders.identity import model_identity
from drkit.encoders.masked_lm import read_config
from drkit.errors import DrkitError

Ids: TypeAlias = "NDArray[np.int32]"
# Token ids, and their type ids.
Special = tuple[list[int], list[int]]


@frozen(eq=False)
class PairTokenizer:
    """Turns pairs of texts into token ids; picklable.

    A pair that is too long is truncated as by sentence-transformers' cross-encoders (`longest_first` of transformers):
    the longer text loses tokens until both are equally long, then both do.

    backend: a `tokenizers.Tokenizer` that neither truncates nor pads. before, between, after: (ids, type ids) of the
    special tokens around the two texts. types: type ids of query and passage; None: the model has no token types.
    keeps_end: whether a text keeps its last tokens (`truncation_side = "left"`). max_length: maximum tokens of a pair,
    special ones included. longest: number of positions of the model.
    """

    backend: Any
    before: Special
    between: Special
    after: Special
    types: tuple[int, int] | None
    pad_id: int
    keeps_end: bool
    max_length: int
    longest: int

    @classmethod
    def of(cls, tokenizer: Any, *, max_length: int, longest: int, types: bool) -> PairTokenizer:
        """Make one that joins texts as a fast tokenizer does. types: whether the model has token types.

        Raises DrkitError if the tokenizer puts nothing between two texts, or `max_length` leaves no room for text.
        """
        backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        backend.no_truncation()
        backend.no_padding()
        probe = backend.encode("a", "a")
        spans = _spans(probe)
        if spans is None:
            raise DrkitError(
                f"this {type(tokenizer).__name__} puts nothing between the two texts of a pair; add to its "
                f"tokenizer.json a post_processor for pairs, such as [CLS] $A [SEP] $B [SEP]"
            )
        first, end, second, last = spans
        before, between, after = (
            (probe.ids[a:b], probe.type_ids[a:b]) for a, b in ((0, first), (end, second), (last, None))
        )
        special = len(probe.ids) - (end - first) - (last - second)
        if max_length < special + 2:
            raise DrkitError(f"max_length {max_length} leaves no room for two texts; it must be at least {special + 2}")
        return cls(
            backend,
            before=before,
            between=between,
            after=after,
            types=(probe.type_ids[first], probe.type_ids[second]) if types else None,
            pad_id=int(tokenizer.pad_token_id or 0),
            keeps_end=tokenizer.truncation_side == "left",
            max_length=max_length,
            longest=longest,
        )

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Tokenise each text to i32[n], whole; equal texts are tokenised once."""
        unique = list(dict.fromkeys(texts))
        encodings = self.backend.encode_batch_fast(unique, add_special_tokens=False)
        ids = (np.array(encoding.ids, dtype=np.int32) for encoding in encodings)
        by_text = dict(zip(unique, ids, strict=True))
        return [by_text[text] for text in texts]

    def lengths(self, queries: Sequence[Ids], passages: Sequence[Ids]) -> NDArray[np.int64]:
        """Return the number of tokens of each pair, i64[n]."""
        both = [len(query) + len(passage) for query, passage in zip(queries, passages, strict=True)]
        return np.minimum(np.array(both, dtype=np.int64) + self._special, self.max_length)

    def batch(self, queries: Sequence[Ids], passages: Sequence[Ids]) -> dict[str, Tensor]:
        """Join pairs into a batch, padded on the right: ids i64[B,L], attention bool[B,L], types i64[B,L] if any."""
        rows, types = [], []
        for query, passage in zip(queries, passages, strict=True):
            query, passage = self._truncated(query, passage)
            rows.append(np.concatenate([self.before[0], query, self.between[0], passage, self.after[0]]))
            if self.types:
                types.append(self._types(len(query), len(passage)))
        ids, attention = padded(rows, self.pad_id, longest=self.longest)
        batch = {"ids": ids, "attention": attention.bool()}
        return {**batch, "types": padded(types, 0, longest=self.longest)[0]} if self.types else batch

    def _truncated(self, query: Ids, passage: Ids) -> tuple[Ids, Ids]:
        """Return what is kept of the two texts of a pair."""
        kept = longest_first(len(query), len(passage), self.max_length - self._special)
        return self._end(query, kept[0]), self._end(passage, kept[1])

    def _end(self, text: Ids, kept: int) -> Ids:
        return text[len(text) - kept :] if self.keeps_end else text[:kept]

    @property
    def _special(self) -> int:
        return len(self.before[0]) + len(self.between[0]) + len(self.after[0])

    def _types(self, query: int, passage: int) -> NDArray[np.int64]:
        assert self.types is not None
        one, two = self.types
        return np.array([*self.before[1], *[one] * query, *self.between[1], *[two] * passage, *self.after[1]])


def longest_first(query: int, passage: int, room: int) -> tuple[int, int]:
    """Return how many tokens of a query and of a passage are kept where there is room for `room`.

    The strategy `longest_first` of `tokenizers`: the shorter text stays whole up to half of the room. Of an odd number,
    the longer text gets the odd token, and of two equally long ones the passage.

    >>> longest_first(5, 90, 40), longest_first(50, 90, 41), longest_first(90, 50, 41)
    ((5, 35), (20, 21), (21, 20))
    """
    if query + passage <= room:
        return query, passage
    shorter = min(query, passage, room // 2)
    return (shorter, room - shorter) if query <= passage else (room - shorter, shorter)


def _spans(pair: Any) -> tuple[int, int, int, int] | None:
    """Return start and end of the two texts of an encoded pair; None if no token separates them."""
    sides = [-1 if side is None else side for side in pair.sequence_ids]
    if 0 not in sides or 1 not in sides:
        return None
    ends = [len(sides) - sides[::-1].index(side) for side in (0, 1)]
    spans = (sides.index(0), ends[0], sides.index(1), ends[1])
    return spans if spans[2] > spans[1] else None


def join_pairs(tokenizer: Any, *, types: bool) -> None:
    """Make a fast tokenizer join pairs as `[CLS] first [SEP] second [SEP]`, in place, unless it separates them already.

    Raises DrkitError if it has no [CLS] or [SEP].
    """
    if _spans(tokenizer.backend_tokenizer.encode("a", "a")) is not None:
        return
    cls, sep = tokenizer.cls_token, tokenizer.sep_token
    if cls is None or sep is None:
        raise DrkitError(
            f"this {type(tokenizer).__name__} has no [CLS] or no [SEP], so it cannot join a pair of texts; start from "
            f"the checkpoint of a masked LM"
        )
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:{int(types)} {sep}:{int(types)}",
        special_tokens=[(cls, tokenizer.cls_token_id), (sep, tokenizer.sep_token_id)],
    )


_MAX_LENGTH = 512
_TYPES = "token_type_ids"
_IDENTITY = "torch.nn.modules.linear.Identity"

# Prefixes of the weights that a classifier has and a masked LM does not: these may be new.
_NEW = ("classifier.", "pre_classifier.", "score.", "head.", "pooler.")


class CrossEncoder(nn.Module):
    """Scores (query, passage) pairs; higher is better.

    model: a Hugging Face sequence classifier with one label. tokenizer: its fast tokenizer. max_length: maximum tokens
    of a pair, special ones included; longer pairs are truncated as by sentence-transformers (`longest_first`).

    Raises DrkitError for more than one label, a tokenizer that cannot join two texts or gives ids that the model does
    not have, or a `max_length` beyond the positions of the model.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, *, max_length: int) -> None:
        super().__init__()
        config: Any = model.config
        _one_label(config, "this classifier")
        self.config = config
        longest = longest_text(self.config)
        if max_length > longest:
            raise DrkitError(
                f"max_length {max_length} is too long: this encoder reads at most {longest} tokens; lower it"
            )
        check_vocabulary(tokenizer, self.config, getattr(tokenizer, "name_or_path", ""))
        self.model: Any = model
        self.tokenizer = tokenizer
        types = _has_types(self.config) and _TYPES in tokenizer.model_input_names
        self.pairs = PairTokenizer.of(tokenizer, max_length=max_length, longest=longest, types=types)

    @property
    def max_length(self) -> int:
        """Maximum tokens of a pair."""
        return self.pairs.max_length

    def identity(self) -> dict[str, Any]:
        """Return what the scores depend on, as plain data: hashes of the model and tokenizer, and the pairs' form."""
        return {**model_identity(self.model, self.tokenizer), "max_length": self.max_length, "types": self.pairs.types}

    def cut_at(self, max_length: int) -> None:
        """Set the maximum tokens of a pair. Raises DrkitError if that leaves no room for text."""
        self.pairs = PairTokenizer.of(
            self.tokenizer, max_length=max_length, longest=self.pairs.longest, types=self.pairs.types is not None
        )

    def forward(self, ids: Tensor, attention: Tensor, types: Tensor | None = None) -> Tensor:
        """Score pairs, f[B]: ids i64[B,L], attention bool[B,L], types i64[B,L] if the model has token types."""
        extra = {} if types is None else {_TYPES: types}
        scores: Tensor = self.model(input_ids=ids, attention_mask=attention, **extra).logits.squeeze(-1)
        return scores

    @classmethod
    def start_from(cls, path_or_id: str, *, max_length: int = 192, seed: int = 42, layers: int = 0) -> CrossEncoder:
        """Make a cross-encoder to be trained: a checkpoint's encoder under a new head, seeded by `seed`.

        path_or_id: folder or hub id of a masked LM, an exported encoder, or a cross-encoder, whose head is kept.
        layers: minimum number of layers; if the checkpoint has fewer, copies of them are added.

        Raises DrkitError if it is none of these, has an unsupported architecture, reads fewer than `max_length` tokens,
        or its layers cannot be repeated.
        """
        check_trainable(path_or_id)
        config = read_config(path_or_id)
        architecture(config.model_type, causal=False)
        if longest_text(config) < max_length:
            raise DrkitError(
                f"{path_or_id!r} reads at most {longest_text(config)} tokens, but pairs have up to {max_length}: "
                f"lower max_length, or start from an encoder with more positions"
            )
        model = _load(path_or_id, config, seed=seed)
        stack_layers(model, layers)
        tokenizer = _tokenizer(path_or_id)
        _name_inputs(tokenizer, types=_has_types(config))
        join_pairs(tokenizer, types=_has_types(config))
        return cls(model, tokenizer, max_length=max_length)

    @classmethod
    def load(cls, path_or_id: str) -> CrossEncoder:
        """Load a trained cross-encoder of drkit or sentence-transformers, or any sequence classifier with one label.

        It reads pairs of at most the length that was saved. Raises DrkitError if the model is missing, lacks a trained
        head, or declares what drkit does not compute (`check_cross_encoder`).
        """
        if reason := unsupported_layout(local_path(path_or_id)):
            raise DrkitError(
                f"{reason}; load it with Reranker.load, for which sentence-transformers computes the scores"
            )
        config = read_config(path_or_id)
        check_head(path_or_id, config.architectures)
        check_cross_encoder(local_path(path_or_id))
        tokenizer = _tokenizer(path_or_id)
        model = _load(path_or_id, config)
        with explain_load_errors(path_or_id, "score pairs with"), torch.inference_mode():
            loaded = cls(model, tokenizer, max_length=_saved_length(path_or_id, config, tokenizer))
            loaded(**loaded.pairs.batch(loaded.pairs.encode(["a query"]), loaded.pairs.encode(["a passage"])))
        return loaded

    def save(self, folder: str | Path) -> Path:
        """Write a folder, atomically, that `load` and sentence-transformers' `CrossEncoder` read.

        Both give the same scores: the raw output of the head, without a sigmoid.
        """
        with replacing_folder(Path(folder)) as temporary:
            self.save_into(temporary)
        return Path(folder)

    def save_into(self, folder: Path) -> None:
        """Write weights, configuration and tokenizer into an existing folder."""
        with without_progress_bars():
            self.model.save_pretrained(folder)
        self._save_tokenizer(folder)
        path = folder / "config.json"
        about = {**json.loads(path.read_text(encoding="utf-8")), "sentence_transformers": {"activation_fn": _IDENTITY}}
        write_text(path, json.dumps(about, indent=2, sort_keys=True) + "\n")

    def _save_tokenizer(self, folder: Path) -> None:
        mine = copy.deepcopy(self.tokenizer)
        mine.model_max_length = self.max_length
        _name_inputs(mine, types=self.pairs.types is not None)
        mine.backend_tokenizer.no_truncation()
        mine.backend_tokenizer.no_padding()
        mine.save_pretrained(folder)


def _one_label(config: Any, what: str) -> None:
    if config.num_labels != 1:
        raise DrkitError(f"{what} has {config.num_labels} labels; a re-ranker needs exactly one (num_labels = 1)")


def _has_types(config: Any) -> bool:
    return bool(getattr(config, "type_vocab_size", 0) > 1)


def _name_inputs(tokenizer: Any, *, types: bool) -> None:
    """Set the inputs that a tokenizer returns, in place: only some models have token types."""
    names = ["input_ids", *([_TYPES] if types else []), "attention_mask"]
    tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names


def _load(path_or_id: str, config: Any, seed: int = 0) -> nn.Module:
    """Load the classifier in float32 and evaluation mode; a head missing from the checkpoint is drawn by `seed`."""
    trained = is_classifier(config.architectures)
    if trained:
        _one_label(config, repr(path_or_id))
    found = find_architecture(config.model_type)
    options: dict[str, Any] = {"attn_implementation": found.attention} if found else {}
    expected = "Expected a sequence classifier with one label, or an encoder to start one from."
    options |= {"num_labels": 1, "dtype": "float32"}
    with seeded(seed, "cross-encoder head"):
        model: nn.Module = load_pretrained(
            "AutoModelForSequenceClassification",
            path_or_id,
            "load the cross-encoder",
            expected,
            new=() if trained else _NEW,
            unused=found.unused if found else (),
            **options,
        )
    return model.eval()


def _tokenizer(path_or_id: str) -> Any:
    tokenizer = load_pretrained("AutoTokenizer", path_or_id, "load the tokenizer of")
    if not getattr(tokenizer, "is_fast", False):
        raise DrkitError(f"the tokenizer of {path_or_id!r} is not a fast one; save it with a tokenizer.json")
    return tokenizer


def _saved_length(path_or_id: str, config: Any, tokenizer: Any) -> int:
    """Return the declared maximum length, if there is one; otherwise the positions of the model, at most 512."""
    saved = longest_pair(local_path(path_or_id)) or tokenizer.model_max_length
    longest = longest_text(config)
    return int(saved) if saved <= longest else min(longest, _MAX_LENGTH)


def stack_layers(model: Any, layers: int) -> None:
    """Give a Hugging Face model at least `layers` layers, in place, by repeating copies of its layers in order.

    A tower of copied trained layers learns faster than one with new layers on top (progressive stacking: Gong et al.,
    ICML 2019). A model with as many layers or more is unchanged. Raises DrkitError if its layers differ.
    """
    if layers <= model.config.num_hidden_layers:
        return
    tower: nn.ModuleList = model.base_model.get_submodule(architecture(model.config.model_type).layers)
    own = list(tower)
    shapes = [{name: weight.shape for name, weight in layer.state_dict().items()} for layer in own]
    if any(one != shapes[0] for one in shapes):
        raise DrkitError(
            f"the layers of a {model.config.model_type} encoder differ from each other, so they cannot be repeated: "
            f"keep their number (layers = 0), or start from a bert, electra or roberta"
        )
    tower.extend(copy.deepcopy(own[index % len(own)]) for index in range(len(own), layers))
    model.config.num_hidden_layers = model.base_model.config.num_hidden_layers = layers
