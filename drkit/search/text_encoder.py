"""Text encoders: a transformer and its tokenizer, with everything that turns a text into one vector.

Texts are sorted by length, padded as little as possible, batched by a token budget, and returned in their own order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import attrs
import numpy as np
import torch
from attrs.validators import ge, optional
from numpy.typing import NDArray
from torch import Tensor, nn

from drkit.core.loading import explain_load_errors
from drkit.core.processes import local_device
from drkit.core.protocols import DenseAndSparse
from drkit.core.types import Passage, Section
from drkit.data.prompts import check_prompt
from drkit.data.titles import Titles
from drkit.encoders.architectures import architecture, backbone_info, check_length, check_vocabulary
from drkit.encoders.batches import MULTIPLE, padded
from drkit.encoders.card import EncoderCard, check_truncation
from drkit.encoders.declarations import UnsupportedEncoderError
from drkit.encoders.folder import (
    BFLOAT16,
    HEAD_FOLDER,
    PART_POOLING,
    TORCH,
    read_modules,
    read_word_weights,
    transformer_folder,
)
from drkit.encoders.heads import Heads
from drkit.encoders.identity import model_identity
from drkit.encoders.learned_pooling import LearnedPooling, read_learned_pooling
from drkit.encoders.masked_lm import load_head, load_masked_lm
from drkit.encoders.pooling import built_in_pooling, check_token_weights, is_weighted, pool
from drkit.encoders.static import StaticModel, fast_ids, fold_weights
from drkit.encoders.token_weights import TokenWeights, read_token_weights
from drkit.errors import DrkitError
from drkit.search.backends import BackendModel, load_backbone, load_encoder_tokenizer

# Tokens per batch, and per batch and thread on a CPU.
_BUDGET, _CPU_BUDGET = 16_384, 2_048


class Encoder(Protocol):
    """What indexes and retrievers require of an encoder: a `TextEncoder`, or any object with these members."""

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""

    def identity(self) -> Mapping[str, Any]:
        """Return what the vectors depend on, as plain data; `drkit.search.rankings.COMPARABLE` decide comparability."""

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode n queries as f32[n,D]."""

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode n passages as f32[n,D]."""


@attrs.frozen(eq=False)
class TextEncoder:
    """A transformer, its tokenizer, and the card that says how they turn a text into one vector.

    card: of a model, how it reads titles is what its configuration says; of a part as pooling, the name and settings
    are those of the part. model: a Hugging Face model that returns `last_hidden_state`, already on its device; a
    masked LM, if the pooling applies its head. token_weights: for the pooling `weighted`. learned_pooling: the pooling,
    if it is a part. token_budget: tokens per batch, padding included; None: 16,384 on a GPU, and 2,048 for each thread
    on a CPU, whose caches hold no more.

    Raises DrkitError if the pooling needs token weights that are missing, vectors are shorter than `truncate_dim`, a
    length exceeds the model's positions, the tokenizer gives ids that the model does not have, or a prompt leaves no
    room for text.
    """

    card: EncoderCard
    model: Any
    tokenizer: Any
    token_weights: TokenWeights | None = None
    learned_pooling: LearnedPooling | None = None
    token_budget: int | None = attrs.field(default=None, validator=optional(ge(1)))

    def __attrs_post_init__(self) -> None:
        config, name = self.model.config, getattr(self.tokenizer, "name_or_path", "")
        card, learned = attrs.evolve(self.card, titles=Titles.of_config(config).reads), self.learned_pooling
        if learned is None:
            built_in_pooling(card.pooling)
        else:
            card = attrs.evolve(card, pooling=learned.name, pooling_settings=learned.settings)
        object.__setattr__(self, "card", card)
        check_token_weights(card.pooling, self.token_weights)
        if card.truncate_dim is not None:
            check_truncation(card.truncate_dim, self._pooled_dimension)
        check_vocabulary(self.tokenizer, config, name)
        check_length(card.longest, config, name)
        for side in (card.queries, card.passages):
            check_prompt(side.prompt, self.tokenizer, side.length)
        if self.token_weights is not None and len(self.token_weights.weight) != config.vocab_size:
            raise DrkitError(
                f"got {len(self.token_weights.weight)} token weights for {config.vocab_size} word embeddings of the "
                f"encoder {name!r}; give one for each"
            )

    @classmethod
    def load(cls, folder: str | Path, device: str | torch.device = "cpu", *, backend: str = TORCH) -> TextEncoder:
        """Load an encoder folder written by drkit or sentence-transformers; device `auto` picks a GPU if available.

        backend: `torch`, or one (`drkit list backend`) that `drkit export --backend` has written into the folder; those
        run on the CPU.

        Raises DrkitError as `drkit.encoders.EncoderCard.read` and `drkit.search.backends.load_backend` do.
        """
        modules = read_modules(Path(folder))
        return cls.from_modules(Path(folder), modules, choose_device(device, backend), backend)

    @classmethod
    def bare(cls, folder: str | Path, *, pooling: str, device: str | torch.device = "cpu") -> TextEncoder:
        """Load a transformers checkpoint that does not declare its pooling: cosine similarity, its maximum length.

        Raises DrkitError if it cannot be loaded, or the pooling is not supported.
        """
        card = EncoderCard.bare(Path(folder), built_in_pooling(pooling))
        model, tokenizer = load_backbone(Path(folder))
        found = read_token_weights(Path(folder)) if is_weighted(pooling) else None
        weights = None if found is None else TokenWeights(found).to(choose_device(device))
        encoder = cls(card, model.to(choose_device(device)), tokenizer, token_weights=weights)
        return encoder._check_by_encoding(Path(folder))

    @classmethod
    def from_modules(cls, folder: Path, modules: Mapping[str, str], device: torch.device, backend: str) -> TextEncoder:
        """Load an encoder from the folders of its modules; see `drkit.encoders.EncoderCard.read`."""
        card = EncoderCard.read(folder, modules)
        transformer = transformer_folder(folder, modules)
        if card.lexical:
            return cls._lexical(card, transformer, device, backend)
        learned = read_learned_pooling(folder / modules[PART_POOLING]) if PART_POOLING in modules else None
        if learned is not None and learned.receives_heads:
            return cls._with_head(card, transformer, folder / modules[PART_POOLING], learned, device, backend)
        model, tokenizer = load_backbone(transformer, backend)
        weights, pooling = None, None
        if "WordWeights" in modules:
            weights = TokenWeights(torch.tensor(read_word_weights(folder / modules["WordWeights"]))).to(device)
        if learned is not None:
            pooling = learned.to(device).eval()
        if backend == TORCH and not isinstance(model, StaticModel):
            _check_inputs(model, tokenizer, transformer)
        encoder = cls(card, model.to(device), tokenizer, token_weights=weights, learned_pooling=pooling)
        return encoder._check_by_encoding(transformer)

    @classmethod
    def _lexical(cls, card: EncoderCard, folder: Path, device: torch.device, backend: str) -> TextEncoder:
        """Load a masked LM whose head scores words."""
        _check_head(folder, backend)
        model, tokenizer = load_masked_lm(str(folder)).to(device).eval(), load_encoder_tokenizer(folder)
        pooling = LearnedPooling(card.pooling, card.pooling_settings or {}, backbone_info(model.config, tokenizer))
        return cls(card, model, tokenizer, learned_pooling=pooling)._check_by_encoding(folder)

    @classmethod
    def _with_head(
        cls,
        card: EncoderCard,
        folder: Path,
        module: Path,
        pooling: LearnedPooling,
        device: torch.device,
        backend: str,
    ) -> TextEncoder:
        """Load a masked LM whose head a pooling applies, or a transformer beside a pooling with a head of its own."""
        _check_head(folder, backend)
        if (module / HEAD_FOLDER).is_dir():
            (model, tokenizer), pooling.head = load_backbone(folder), load_head(module)
        else:
            model, tokenizer = load_masked_lm(str(folder)), load_encoder_tokenizer(folder)
        encoder = cls(card, model.to(device).eval(), tokenizer, learned_pooling=pooling.to(device).eval())
        return encoder._check_by_encoding(folder)

    def _check_by_encoding(self, folder: Path) -> TextEncoder:
        """Encode a text, so that what is wrong with a folder is an error in words when it is loaded, not later."""
        with explain_load_errors(str(folder), "encode with"):
            self.encode_passages(["a word"])
        return self

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""
        return self.card.truncate_dim or self._pooled_dimension

    @property
    def _pooled_dimension(self) -> int:
        return self.learned_pooling.dimension if self.learned_pooling else int(self.model.config.hidden_size)

    def identity(self) -> dict[str, Any]:
        """Return what the vectors depend on, as plain data: hashes of weights, config and tokenizer, and settings.

        A static encoder has the identity of its export, whose word vectors are truncated and have token weights folded
        into them.
        """
        truncate_dim = self.card.truncate_dim
        if isinstance(self.model, StaticModel) and (self.token_weights is not None or truncate_dim):
            table = fold_weights(self.model.embeddings.word_embeddings.weight, self.token_weights)
            model = StaticModel.of(table[:, :truncate_dim])
            return self.evolve(model=model, pooling="mean", token_weights=None, truncate_dim=None).identity()
        hashes = model_identity(self.model, self.tokenizer, self.token_weights, self.learned_pooling)
        backend = {} if self.backend == TORCH else {"backend": self.backend}
        pooling = {} if self.learned_pooling is None else {"pooling_settings": self.learned_pooling.all_settings}
        if self.learned_pooling is not None and self.learned_pooling.code:
            pooling["pooling_code"] = self.learned_pooling.code
        return {**hashes, **self.card.identity(), **pooling, **backend}

    @property
    def is_sparse(self) -> bool:
        """Whether most numbers of a vector are 0, so that folders of vectors and indexes store the others only."""
        return self.learned_pooling is not None and self.learned_pooling.is_sparse

    @property
    def dense_dimension(self) -> int:
        """How many numbers at the beginning of a sparse vector are a dense one."""
        part = self.learned_pooling.part if self.learned_pooling else None
        if self.is_sparse and self.sections:
            return [*self.sections.values()][-1].start
        return int(part.dense_dimension) if isinstance(part, DenseAndSparse) else 0

    @property
    def sections(self) -> dict[str, Section]:
        """Where each named vector of a pooling that gives several is among the numbers of the joined one."""
        return self.learned_pooling.sections if self.learned_pooling else {}

    @property
    def backend(self) -> str:
        """What runs the transformer: `torch`, or the name of another backend."""
        return self.model.backend if isinstance(self.model, BackendModel) else TORCH

    def evolve(self, **settings: Any) -> TextEncoder:
        """Return a copy with other settings: of its card (`query_length=64`), or other fields."""
        own = {name: settings.pop(name) for name in attrs.fields_dict(type(self)) if name in settings}
        card = own.pop("card", self.card)
        return attrs.evolve(self, card=attrs.evolve(card, **settings), **own)

    def for_data_set(self, name: str) -> TextEncoder:
        """Return a copy with the prompts of a data set, if it has its own."""
        return attrs.evolve(self, card=self.card.for_data_set(name))

    def query_lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each query before it is truncated, its prompt and special tokens included."""
        return [len(ids) for ids in self._tokens(texts, self.card.query_prompt, None)]

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode n queries as f32[n,D]; an empty text is encoded as its special tokens."""
        return self.encode_tokens(self._tokens(texts, self.card.query_prompt, self.card.query_length))

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode n passages as f32[n,D]; an empty text is encoded as its special tokens."""
        return self.encode_tokens(self._tokens(texts, self.card.passage_prompt, self.card.passage_length))

    @cached_property
    def titles(self) -> Titles:
        """How the encoder reads titles, as its model's configuration says."""
        return Titles.of_config(self.model.config)

    def read(self, passage: Passage) -> str:
        """Return a passage's title and text as `encode_passages` is to be given them."""
        return self.titles.read(passage)

    def encode_tokens(self, texts: Sequence[Any]) -> NDArray[np.float32]:
        """Encode n texts given as token ids (with special tokens, already truncated) as f32[n,D].

        Raises DrkitError for a text without tokens.
        """
        lengths = np.fromiter((len(ids) for ids in texts), dtype=np.int64, count=len(texts))
        if len(texts) and not lengths.min():
            raise DrkitError(f"text {int(lengths.argmin())} has no tokens, not even special ones; tokenise it again")
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        with inference(self.model, *([self.learned_pooling] if self.learned_pooling else [])):
            for positions in length_sorted_batches(lengths, self._budget):
                vectors[positions] = self._embed([texts[p] for p in positions.tolist()]).float().cpu().numpy()
        return vectors

    @property
    def _heads(self) -> Heads | None:
        """The LM head, if the pooling receives the model's."""
        learned = self.learned_pooling
        if learned is None or not learned.receives_heads or learned.head is not None:
            return None
        return Heads(self.model, architecture(self.model.config.model_type))

    @property
    def _device(self) -> torch.device:
        found: torch.device = next(chain(self.model.parameters(), self.model.buffers())).device
        return found

    @property
    def _budget(self) -> int:
        if self.token_budget is not None:
            return self.token_budget
        return min(_CPU_BUDGET * torch.get_num_threads(), _BUDGET) if self._device.type == "cpu" else _BUDGET

    def _tokens(self, texts: Sequence[str], prompt: str, length: int | None) -> list[list[int]]:
        if not texts:
            return []
        if length is not None and isinstance(self.model, StaticModel):
            return [self._fast_ids(prompt + text, length) for text in texts]
        ids: list[list[int]] = self.tokenizer(
            [prompt + text for text in texts],
            truncation=length is not None,
            max_length=length,
            return_attention_mask=False,
            verbose=False,
        )["input_ids"]
        return ids

    @cached_property
    def _fast_ids(self) -> Callable[[str, int], list[int]]:
        return fast_ids(self.tokenizer)

    def _embed(self, texts: Sequence[Any]) -> Tensor:
        bags = isinstance(self.model, StaticModel)
        vectors = self.model.bags(texts, self.token_weights) if bags else self._pooled(texts)
        vectors = vectors[:, : self.card.truncate_dim]
        return nn.functional.normalize(vectors, dim=-1) if self.card.has_unit_length else vectors

    def _pooled(self, texts: Sequence[Any]) -> Tensor:
        """Return the pooled hidden states f[n,D] of texts given as token ids."""
        longest = int(getattr(self.model.config, "max_position_embeddings", 0) or 0)
        ids, attention = padded(texts, self.tokenizer.pad_token_id or 0, longest=longest)
        device, heads = self._device, self._heads
        ids, attention = ids.to(device), attention.to(device)
        backbone = self.model if heads is None else self.model.base_model
        with torch.autocast(device.type, torch.bfloat16, enabled=self.card.precision == BFLOAT16):
            more = self.titles.inputs(ids)
            hidden = backbone(input_ids=ids, attention_mask=attention, **more).last_hidden_state.float()
            weights = attention if self.token_weights is None else self.token_weights(ids, attention)
            if self.learned_pooling is not None:
                vectors: Tensor = self.learned_pooling(hidden, attention, heads).float()
                return vectors
        return pool(hidden, weights, self.card.pooling)


def _check_head(folder: Path, backend: str) -> None:
    """Raise DrkitError if a backend is to run an encoder whose pooling applies the LM head."""
    if backend != TORCH:
        raise DrkitError(
            f"{folder} is an encoder whose pooling applies the LM head, which only torch does; use --backend {TORCH}"
        )


def _check_inputs(model: Any, tokenizer: Any, folder: Path) -> None:
    """Raise UnsupportedEncoderError if a model needs more than the ids of tokens, such as their types.

    Some models distinguish types of tokens even in a single text (XLNet).
    """
    with explain_load_errors(str(folder), "encode with"), inference(model):
        given = dict(tokenizer("a word", return_tensors="pt"))
        known = inspect.signature(model.forward).parameters
        given = {name: value for name, value in given.items() if name in known}
        plain = {name: given[name] for name in ("input_ids", "attention_mask") if name in given}
        if len(given) == len(plain):
            return
        states, expected = (model(**inputs).last_hidden_state for inputs in (plain, given))
        is_same = torch.allclose(states, expected, rtol=1e-4, atol=1e-5)
    if not is_same:
        raise UnsupportedEncoderError(
            f"{folder}: unsupported inputs of a {model.config.model_type!r} "
            f"({', '.join(given.keys() - plain.keys())}); drkit gives a model the ids of tokens alone"
        )


def choose_device(name: str | torch.device, backend: str = TORCH) -> torch.device:
    """Return the device of a torch name; `auto` picks a GPU if one is available and the backend is torch.

    Raises DrkitError if torch does not know the name, the GPU is not available, or the backend cannot use it.
    """
    if backend != TORCH and name not in ("auto", "cpu", torch.device("cpu")):
        raise DrkitError(f"the backend {backend} runs on the CPU, not on {str(name)!r}; use auto or cpu")
    if name == "auto":
        name = local_device() if backend == TORCH else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DrkitError(f"unknown device {str(name)!r}; use auto, cpu, cuda, cuda:0 ..") from None
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        sees = f"{count} GPU{'s' if count > 1 else ''}" if count else "no GPU"
        raise DrkitError(f"device {str(name)!r} is not available: torch sees {sees}; use auto or cpu")
    return device


def length_sorted_batches(lengths: NDArray[np.int64], budget: int) -> Iterator[NDArray[np.int64]]:
    """Yield positions of texts of similar length, longest first; a padded batch holds `budget` tokens or one text.

    >>> [b.tolist() for b in length_sorted_batches(np.array([3, 40, 5, 20]), budget=64)]
    [[1], [3, 2], [0]]
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        width = -(-int(lengths[order[start]]) // MULTIPLE) * MULTIPLE
        size = max(1, budget // max(width, 1))
        yield order[start : start + size]
        start += size


@contextmanager
def inference(*models: nn.Module) -> Iterator[None]:
    """Run a block in evaluation mode without gradients; restore the training mode of every module afterwards."""
    training = {module: module.training for model in models for module in model.modules()}
    for model in models:
        model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, mode in training.items():
            module.training = mode
