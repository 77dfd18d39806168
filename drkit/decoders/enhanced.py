"""Rebuild every token from the bottleneck and a random part of the other tokens, different for each row."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from drkit.core.types import BuildContext, DecoderInput, MaskedView, TokenStates
from drkit.decoders.layers import Bottleneck, PostLnLayer, init_weights, sizes_of, uncomputed_states, with_bottleneck
from drkit.decoders.specs import EnhancedConfig
from drkit.encoders.heads import Heads, seeded
from drkit.errors import DrkitError


class EnhancedDecoder(nn.Module):
    """One transformer layer on two streams; every maskable token is a target.

    Queries are h + p_i (position embeddings alone, no LayerNorm), or with `query = "embedded"` the encoder's whole
    embedding layer on h (position, first token type, LayerNorm, dropout), as in DupMAE's code; keys and values are
    `[h, e(x_1) + p_1, ..]` of the clean text. Row i sees h and what the masker's row i shows, never itself and never
    padding.

    With `targets` below 1 it requests fewer rows than positions: the view then has that many targets per text
    (`drkit.maskers.views.keep_targets`), and row r belongs to the text's r-th target.

    Source: RetroMAE (Xiao et al. 2022), section 3.3, equations 4 to 7; DupMAE (Xiao et al. 2023).
    """

    def __init__(self, config: EnhancedConfig, context: BuildContext) -> None:
        super().__init__()
        self.config, sizes = config, sizes_of(context)
        with seeded(context.seed, "decoder"):
            self.bottleneck = Bottleneck(sizes.hidden, config.projection)
            self.layer = PostLnLayer(sizes)
            init_weights(self, sizes.initializer_range)

    def rows(self, length: int) -> int:
        """Return the number of visibility rows: one for each position, or for the share of them that is rebuilt."""
        return length if self.config.targets == 1 else math.ceil(length * self.config.targets)

    def targets(self, inputs: DecoderInput) -> Mapping[str, TokenStates]:
        """Return token_states f[N,0] of the view's targets (never position 0)."""
        return {"token_states": uncomputed_states(inputs.view.labels[:, 1:])}

    def forward(self, inputs: DecoderInput, heads: Heads) -> Mapping[str, TokenStates]:
        """Return token_states: the layer's states f[N,D] at the N targets of the view (never position 0).

        Raises DrkitError if the view has no visibility pattern bool[B,R,L], or one that does not fit its targets.
        """
        view = inputs.view
        h = self.bottleneck(inputs.encoded.bottleneck)
        context = with_bottleneck(h, heads.embed(view.ids))
        positions, is_target = row_positions(view)
        queries = self._queries(h, heads, view.ids.shape[1], positions)
        states = self.layer(queries, context, row_visibility(view, positions), at=is_target)
        labels = view.labels.gather(1, positions.expand(len(h), -1))[is_target]
        return {"token_states": TokenStates(states=states, labels=labels, heads=heads)}

    def _queries(self, h: Tensor, heads: Heads, length: int, positions: Tensor) -> Tensor:
        """Return the bottleneck f[B,D] at the positions i64[B or 1, R] of the rows, f[B,R,D]."""
        if self.config.query == "position":
            return h[:, None] + heads.positions(length)[positions]
        embedded = heads.embed_vectors(h[:, None].expand(-1, length, -1))
        return embedded[torch.arange(len(h), device=h.device)[:, None], positions]


def row_positions(view: MaskedView) -> tuple[Tensor, Tensor]:
    """Return the position of each row, i64[B or 1, R], and whether that is a target, bool[B,R].

    One row per position, in order; or, with fewer rows than positions, one row per target of a text.

    Raises DrkitError if the view has no visibility pattern, or a text has more targets than rows.
    """
    length, rows = view.ids.shape[1], _rows(view)
    targets = view.labels != -100
    targets[:, 0] = False
    if rows == length:
        return torch.arange(length, device=targets.device)[None], targets
    counts = targets.sum(1)
    if (counts > rows).any():
        raise DrkitError(
            f"the decoder 'enhanced' got {rows} rows for a text with {int(counts.max())} targets; "
            f"reduce them with drkit.maskers.views.keep_targets(view, decoder.rows, rng)"
        )
    positions = targets.byte().argsort(dim=1, descending=True, stable=True)[:, :rows]
    return positions, torch.arange(rows, device=targets.device) < counts[:, None]


def _rows(view: MaskedView) -> int:
    batch, length = view.ids.shape
    if view.visible is None:
        raise DrkitError(
            "the decoder 'enhanced' needs a visibility pattern per row; call the masker with rows=decoder.rows(L), "
            "and use a masker that provides 'rows' (see `drkit list masker`)"
        )
    found = tuple(view.visible.shape)
    if len(found) != 3 or found[0] != batch or found[2] != length or not 0 < found[1] <= length:
        raise DrkitError(
            f"the decoder 'enhanced' needs visible bool[B,R,L] with B = {batch}, 0 < R <= L = {length}, got {found}: "
            f"call the masker with rows=decoder.rows(L)"
        )
    return found[1]


def row_visibility(view: MaskedView, positions: Tensor | None = None) -> Tensor:
    """Return the masker's pattern with the decoder's rules, bool[B,R,L]: h is always visible, itself and padding never.

    positions i64[B or 1, R], the position of each row; None: row i is position i. Row 0 sees h too: it is not a target,
    but a row without any visible position would put NaN into the gradient.
    """
    assert view.visible is not None
    every = torch.arange(view.ids.shape[1], device=view.ids.device)
    itself = (every[None] if positions is None else positions)[:, :, None] == every
    visible = view.visible & view.attention[:, None] & ~itself
    visible[:, :, 0] = True
    return visible
