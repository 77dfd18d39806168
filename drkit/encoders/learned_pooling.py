"""Poolings with weights or settings: parts of the kind `pooling`, trained and saved with their encoder, and `lexical`.

Beside a checkpoint, and in the module `PartPooling` of an exported encoder, such a pooling is one file: its weights,
and in their metadata the part, its settings and the sizes of the encoder that it was built for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import asdict
from safetensors import safe_open
from safetensors.torch import load_model, save_file
from torch import Tensor, nn

from drkit.core.loading import explain_load_errors, weights_to_save, without_progress_bars
from drkit.core.plugin_code import part_code
from drkit.core.protocols import NamedVectors, SizedVectors, WeighsVectors
from drkit.core.registry import Registry, installed
from drkit.core.spec import WORD_SCORES, Kind
from drkit.core.types import BackboneInfo, BuildContext, LmHeads, Section
from drkit.encoders.architectures import architecture
from drkit.encoders.folder import HEAD_FOLDER, PART_POOLING, POOLING_FILE, find_modules
from drkit.encoders.heads import Heads, highest_logits, pool_logits, seeded
from drkit.encoders.pooling import DENSE, SCORES, LexicalConfig, pool, pooling_config
from drkit.errors import DrkitError

_METADATA = "pooling"


class LearnedPooling(nn.Module):
    """A part of the kind `pooling`, with the choice that it was built from.

    name, settings: as a recipe writes them; `all_settings` has the defaults, too. code: hash of the source if a plugin
    declares the part. backbone: the sizes of the encoder.
    seed: of its initial weights; the global random state is unchanged. registry: where the part is looked up;
    everything that is installed if None. head: the masked LM whose head it applies, if that is not the encoder's own,
    as in sentence-transformers, whose transformer has no head.

    Raises UnknownNameError for an unknown name, and DrkitError for settings that the part does not have or refuses.
    """

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any],
        backbone: BackboneInfo,
        *,
        seed: int = 42,
        registry: Registry | None = None,
    ) -> None:
        super().__init__()
        self.name, self.settings, self.backbone = name, dict(settings), backbone
        registry = registry or installed().registry
        config, spec = pooling_config(registry, name, settings), registry.get(Kind.POOLING, name)
        self.all_settings = json.loads(json.dumps(asdict(config), default=str))
        self.code = part_code(spec).hash
        self.receives_heads = "heads" in spec.receives_of(config)
        self.head: Any = None
        self.is_sparse = WORD_SCORES in spec.provides_of(config)
        with seeded(seed, "pooling"):
            self.part: Any = registry.build(Kind.POOLING, name, config, BuildContext(backbone=backbone, seed=seed))

    @property
    def dimension(self) -> int:
        """The length of the vectors: the part's `dimension`, or the encoder's hidden size without one.

        If it gives several vectors by name, that of all of them.
        """
        if self.vector_lengths:
            return sum(self.vector_lengths.values())
        return int(self.part.dimension) if isinstance(self.part, SizedVectors) else self.backbone.hidden

    @property
    def vector_lengths(self) -> dict[str, int]:
        """The length of each named vector, in their order; empty for one vector without a name."""
        return dict(self.part.vector_lengths) if isinstance(self.part, NamedVectors) else {}

    @property
    def sections(self) -> dict[str, Section]:
        """Where each named vector is among the numbers of the joined one.

        Raises DrkitError for a weight of scores that is not above 0.
        """
        weights = dict(self.part.score_weights) if isinstance(self.part, WeighsVectors) else {}
        found, start = {}, 0
        for name, length in self.vector_lengths.items():
            if not (weight := float(weights.get(name, 1.0))) > 0:
                raise DrkitError(f"pooling {self.name!r}: the score weight of {name!r} must be above 0, got {weight}")
            found[name] = Section(start, start + length, math.sqrt(weight))
            start += length
        return found

    def forward(self, hidden: Tensor, attention: Tensor, heads: LmHeads | None = None) -> Tensor:
        """Return the vectors f[B,dimension] of hidden states f[B,L,D] under attention [B,L] (0: padding).

        Named vectors are joined, so that a product of two is the weighted sum of the products of each.
        heads: see `vectors`.
        """
        return self.join(self.vectors(hidden, attention, heads))

    def join(self, vectors: Mapping[str, Tensor]) -> Tensor:
        """Return the joined vectors f[B,dimension] of those of `vectors`."""
        if not self.vector_lengths:
            return vectors[""]
        first = next(iter(vectors.values()))
        parts = [section.factor * vectors[name].to(first.dtype) for name, section in self.sections.items()]
        return torch.cat(parts, dim=1)

    def vectors(self, hidden: Tensor, attention: Tensor, heads: LmHeads | None = None) -> dict[str, Tensor]:
        """Return the vectors of hidden states f[B,L,D] under attention [B,L] by name, or the only one under "".

        Raises DrkitError if the part returns other vectors than it says.

        heads: the encoder's LM head, for a part that receives it; None: that of `head`.
        """
        if heads is None and self.head is not None:
            heads = Heads(self.head, architecture(self.head.config.model_type))
        found = self.part(hidden, attention, *([heads] if self.receives_heads else []))
        lengths = self.vector_lengths
        if not lengths and not isinstance(found, Mapping):
            return {"": found}
        returned = {name: v.shape[-1] for name, v in found.items()} if isinstance(found, Mapping) else "one vector"
        if returned != lengths:
            raise DrkitError(
                f"pooling {self.name!r}: its vector_lengths are {lengths}, but its call returns {returned}; a pooling "
                f"that gives several vectors returns them by name, and has the property vector_lengths"
            )
        return {name: found[name] for name in lengths}

    def save(self, folder: Path) -> None:
        """Write `pooling.safetensors` into a folder, and `head`, if it has one of its own."""
        about = {"use": self.name, "settings": self.settings, "backbone": asdict(self.backbone)}
        save_file(weights_to_save(self.part), str(folder / POOLING_FILE), metadata={_METADATA: json.dumps(about)})
        if self.head is not None:
            with without_progress_bars():
                self.head.save_pretrained(folder / HEAD_FOLDER)


def saved_pooling(folder: Path) -> str:
    """Return the name of the pooling that a checkpoint, or an exported encoder, was saved with; "" if it names none.

    Raises DrkitError if the file is damaged.
    """
    about = _read_about(folder / find_modules(folder).get(PART_POOLING, "") / POOLING_FILE)
    return str(about["use"]) if about else ""


def _read_about(file: Path) -> dict[str, Any] | None:
    """Return what a file says of its pooling; None if it does not exist."""
    if not file.is_file():
        return None
    with explain_load_errors(str(file), "read the pooling in"), safe_open(str(file), framework="pt") as opened:
        found: dict[str, Any] = json.loads((opened.metadata() or {})[_METADATA])
        return found


def read_learned_pooling(folder: Path, registry: Registry | None = None) -> LearnedPooling | None:
    """Read the pooling of a checkpoint, an exported encoder, or a `PartPooling` module; None if the folder has none.

    Raises DrkitError if the file is damaged, or the part is not installed.
    """
    file = folder / find_modules(folder).get(PART_POOLING, "") / POOLING_FILE
    about = _read_about(file)
    if about is None:
        return None
    with explain_load_errors(str(file), "read the pooling in"):
        backbone = BackboneInfo(**about["backbone"])
        pooling = LearnedPooling(about["use"], about["settings"], backbone, registry=registry)
        load_model(pooling.part, str(file))
    return pooling


class LexicalPooling(nn.Module):
    """`w_v = max over positions i of log(1 + relu(z_iv))`, or their sum; z are the LM head's scores of word v at i.

    | input | shape | what |
    |---|---|---|
    | hidden | f[B,L,D] | the last hidden states |
    | attention | [B,L] | 0: padding; the positions of special tokens count, as in SPLADE |
    | heads | | the LM head to apply |

    Returns f[B,V]: no number is negative, and training makes most of them 0 (loss `flops`). `top_k` keeps only the
    largest of each text. With `dense`, a pooling of the hidden states, it returns two vectors by name: `dense` f[B,D],
    which decoders read, and `lexical` f[B,V]; a score is the sum of both products. Memory: f[B,V], and the scores of a
    few texts at a time (`pool_logits`).

    Source: Formal et al. 2021 (SPLADE v2), equations 1 and 6; `top_k` and the sum are those of DupMAE (Xiao et al.
    2023), section 3.4.
    """

    def __init__(self, config: LexicalConfig, context: BuildContext) -> None:
        super().__init__()
        assert context.backbone is not None
        self.config = config
        self.dense_dimension = context.backbone.hidden if config.dense else 0
        self.dimension = self.dense_dimension + context.backbone.vocab
        self.vector_lengths = {DENSE: self.dense_dimension, SCORES: context.backbone.vocab} if config.dense else {}

    def forward(self, hidden: Tensor, attention: Tensor, heads: LmHeads) -> Tensor | dict[str, Tensor]:
        """Return the scores f[B,V] of the words in texts; with `dense`, vectors f[B,D] and scores by name."""
        if self.config.over_positions == "max":
            scores = saturated(pool_logits(hidden, attention, heads, highest_logits))
        else:
            scores = pool_logits(hidden, attention, heads, _summed)
        if self.config.top_k:
            scores = keep_largest(scores, self.config.top_k)
        if not self.config.dense:
            return scores
        return {DENSE: pool(hidden, attention, self.config.dense).to(scores.dtype), SCORES: scores}


def saturated(logits: Tensor) -> Tensor:
    """Return log(1 + relu(logits)), of any shape."""
    return logits.relu().log1p()


def _summed(logits: Tensor, attention: Tensor) -> Tensor:
    """Return the saturated logits f[B,L,V] summed over the real positions, f[B,V]."""
    return (saturated(logits) * attention[:, :, None]).sum(1)


def keep_largest(scores: Tensor, count: int) -> Tensor:
    """Return scores f[B,V] with only the `count` largest of each row, the others 0.

    >>> keep_largest(torch.tensor([[3.0, 1.0, 2.0]]), 2)
    tensor([[3., 0., 2.]])
    """
    best = scores.topk(min(count, scores.shape[1]), dim=1)
    return torch.zeros_like(scores).scatter(1, best.indices, best.values)
