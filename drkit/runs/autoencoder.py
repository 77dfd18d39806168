"""The bottlenecked auto-encoder: one encoder view, one decoder view, one vector between them, weighted losses.

The module takes and returns plain dicts of tensors: data parallelism finds no tensors inside bundles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import evolve, frozen
from torch import Tensor, nn

from drkit.core.draws import Draws
from drkit.core.protocols import Decoder, Loss, Masker
from drkit.core.types import DecoderInput, Encoded, MaskedView, TokenBatch
from drkit.data.importance import Importance
from drkit.data.store import TokenStore
from drkit.encoders import MaskedLmEncoder
from drkit.encoders.heads import token_states
from drkit.maskers.views import keep_targets
from drkit.runs.batches import Example

# (loss, the names it needs, the output it reads, its weight)
Term = tuple[Loss, Sequence[str], str, float]
# Lengths are padded to multiples of this: few shapes, so the allocator can reuse its blocks.
BUCKET = 16


class AutoEncoder(nn.Module):
    """`loss = sum of weight * loss(output)` over the encoder's and the decoder's outputs."""

    def __init__(self, encoder: MaskedLmEncoder, decoder: Decoder, terms: Mapping[str, Term]) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder: Any = decoder
        self.terms = dict(terms)
        self.losses = nn.ModuleDict({name: loss for name, (loss, *_) in terms.items() if isinstance(loss, nn.Module)})

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        """`loss` f[], and each term's own value by name. The tensors are those of `MaskingCollator`."""
        view = _view("encoder", tensors)
        encoded = self.encoder.encode(view.ids, view.attention, self.decoder.needs_layers)
        heads = self.encoder.heads()
        outputs = {
            "encoder": {
                "token_states": token_states(encoded.hidden, view.labels, heads),
                "bottleneck": encoded.bottleneck,
            },
            "decoder": self._decode(encoded, tensors, heads),
        }
        figures: dict[str, Tensor] = {}
        total = encoded.bottleneck.new_zeros(())
        for name, (loss, needs, on, weight) in self.terms.items():
            step = loss(**{need: outputs[on][need] for need in needs})
            total = total + weight * step.loss
            figures[f"{name}_loss"] = step.loss
            figures |= {f"{name}_{key}": value for key, value in step.metrics.items()}
        return {"loss": total, **figures}

    def _decode(self, encoded: Encoded, tensors: Mapping[str, Tensor], heads: Any) -> Mapping[str, Any]:
        tokens = TokenBatch(
            **{name: tensors[f"tokens.{name}"] for name in ("ids", "attention", "maskable", "words", "keys")}
        )
        output: Mapping[str, Any] = self.decoder(DecoderInput(encoded, tokens, _view("decoder", tensors)), heads)
        return output


def _view(side: str, tensors: Mapping[str, Tensor]) -> MaskedView:
    names = ("ids", "labels", "attention")
    return MaskedView(**{n: tensors[f"{side}.{n}"] for n in names}, visible=tensors.get(f"{side}.visible"))


@frozen(eq=False)
class MaskingCollator:
    """(epoch, example) pairs -> the tensors of `AutoEncoder.forward`, masked anew in every epoch.

    rows: how many visibility rows the decoder wants for a given length.
    """

    store: TokenStore
    importance: Importance | None
    masker: Masker
    rows: Callable[[int], int]
    seed: int

    def __call__(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """All examples of a batch belong to one epoch."""
        epoch = examples[0][0]
        places = np.array([example for _, example in examples], dtype=np.int64)
        tokens = self.store.batch(places, pad_to=BUCKET, importance=self.importance)
        rng, rows = Draws(self.seed, epoch, places), self.rows(tokens.ids.shape[1])
        views = self.masker(tokens, rng, rows=rows)
        if 0 < rows < tokens.ids.shape[1]:
            views = evolve(views, decoder=keep_targets(views.decoder, self.rows, rng))
        tensors = {
            f"tokens.{name}": getattr(views.context, name) for name in ("ids", "attention", "maskable", "words", "keys")
        }
        for side, view in (("encoder", views.encoder), ("decoder", views.decoder)):
            tensors |= {f"{side}.{name}": getattr(view, name) for name in ("ids", "labels", "attention")}
            if view.visible is not None:
                tensors[f"{side}.visible"] = view.visible
        return tensors
