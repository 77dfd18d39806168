"""Rebuild every token from the bottleneck and a random part of the others, one pattern a row."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from drkit.core.types import TokenStates
from drkit.decoders.layers import Bottleneck, PostLnLayer, init_weights, sizes_of, with_bottleneck
from drkit.encoders.seeding import seeded
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drkit.core.types import BuildContext, DecoderInput, MaskedView
    from drkit.decoders.specs import EnhancedConfig
    from drkit.encoders.heads import Heads


class EnhancedDecoder(nn.Module):
    """One transformer layer on two streams; every maskable token is a target.

    Queries are h + p_i (position embeddings alone, no LayerNorm), or with `query = "embedded"` the encoder's whole
    embedding layer on h (position, first token type, LayerNorm, dropout), as DupMAE's code has it; keys and values are
    `[h, e(x_1) + p_1, ..]` of the clean text. Row i sees h, what the masker's row i lets it see, never itself and never
    padding.

    With `targets` below 1 it asks for fewer rows than positions: the view then labels as many targets a text
    (`drkit.maskers.views.keep_targets`), and row r belongs to the text's r-th target.

    Source: RetroMAE (Xiao et al. 2022), section 3.3, equations 4 to 6; DupMAE (Xiao et al. 2023).
    """

    needs_layers: tuple[int, ...] = ()

    def __init__(self, config: EnhancedConfig, context: BuildContext) -> None:
        super().__init__()
        self.config, sizes = config, sizes_of(context)
        with seeded(context.seed, "decoder"):
            self.bottleneck = Bottleneck(sizes.hidden, config.projection)
            self.layer = PostLnLayer(sizes)
            init_weights(self, sizes.initializer_range)

    def rows(self, length: int) -> int:
        """A visibility row for each position, or for the share of them that is rebuilt."""
        return length if self.config.targets == 1 else math.ceil(length * self.config.targets)

    def forward(self, inputs: DecoderInput, heads: Heads) -> Mapping[str, TokenStates]:
        """token_states: the layer's states f[N,D] at the N targets of the view (never position 0).

        Raises DrkitError where the view has no visibility pattern bool[B,R,L], or one that does not fit its targets.
        """
        view = inputs.view
        h = self.bottleneck(inputs.encoded.bottleneck)
        context = with_bottleneck(h, heads.embed(view.ids))
        places, wanted = row_places(view)
        queries = self._queries(h, heads, view.ids.shape[1], places)
        states = self.layer(queries, context, row_visibility(view, places), at=wanted)
        labels = view.labels.gather(1, places.expand(len(h), -1))[wanted]
        return {"token_states": TokenStates(states=states, labels=labels, heads=heads)}

    def _queries(self, h: Tensor, heads: Heads, length: int, places: Tensor) -> Tensor:
        """f[B,R,D]: the bottleneck f[B,D] at the positions i64[B or 1, R] of the rows."""
        if self.config.query == "position":
            return h[:, None] + heads.positions(length)[places]
        embedded = heads.embed_vectors(h[:, None].expand(-1, length, -1))
        return embedded[torch.arange(len(h), device=h.device)[:, None], places]


def row_places(view: MaskedView) -> tuple[Tensor, Tensor]:
    """Which position each row stands for, i64[B or 1, R], and which rows have a target, bool[B,R].

    A row a position, in order; or, with fewer rows than positions, a row for each of a text's targets.

    Raises DrkitError where the view has no visibility pattern, or more targets in a text than rows.
    """
    length, rows = view.ids.shape[1], _rows(view)
    targets = view.labels != -100
    targets[:, 0] = False
    if rows == length:
        return torch.arange(length, device=targets.device)[None], targets
    counts = targets.sum(1)
    if (counts > rows).any():
        raise DrkitError(
            f"the decoder 'enhanced' got {rows} rows for a text with {int(counts.max())} targets: "
            f"thin them with drkit.maskers.views.keep_targets(view, decoder.rows, rng)"
        )
    places = targets.byte().argsort(dim=1, descending=True, stable=True)[:, :rows]
    return places, torch.arange(rows, device=targets.device) < counts[:, None]


def _rows(view: MaskedView) -> int:
    batch, length = view.ids.shape
    if view.visible is None:
        raise DrkitError(
            "the decoder 'enhanced' needs a visibility pattern per row: call the masker with rows=decoder.rows(L), "
            "and take a masker that provides 'rows' (see `drkit list masker`)"
        )
    found = tuple(view.visible.shape)
    if len(found) != 3 or found[0] != batch or found[2] != length or not 0 < found[1] <= length:
        raise DrkitError(
            f"the decoder 'enhanced' needs visible bool[B,R,L] with B = {batch}, 0 < R <= L = {length}, got {found}: "
            f"call the masker with rows=decoder.rows(L)"
        )
    return found[1]


def row_visibility(view: MaskedView, places: Tensor | None = None) -> Tensor:
    """bool[B,R,L]: the masker's pattern with the decoder's own rules: h always, itself never, padding never.

    places i64[B or 1, R], the position of each row; None: row i stands for position i. Row 0 sees h too: it is no
    target, and a row that sees nothing would send NaN into the gradient.
    """
    assert view.visible is not None
    places = torch.arange(view.ids.shape[1], device=view.ids.device)[None] if places is None else places
    itself = places[:, :, None] == torch.arange(view.ids.shape[1], device=places.device)
    visible = view.visible & view.attention[:, None] & ~itself
    visible[:, :, 0] = True
    return visible
