"""The contract of a masker: correct labels, and draws that depend only on seed, epoch and example."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs
import torch
from torch.utils.data import DataLoader, Dataset

from drkit.core.draws import Draws
from drkit.core.spec import MASKER, ComponentSpec, Kind, provided_by
from drkit.core.types import MaskedView, TokenBatch, Views, map_tensors
from drkit.testing.specs import build, check_spec, require, running, signal_scopes, spec_of
from drkit.testing.toys import rows_of, toy_context, toy_pairs_of_texts, toy_tokens, with_signals

NO_TARGET = -100
SOME = [6, 0, 3]
EMPTY = 5  # the row of an empty text
SHORT = 3  # a text with at most this many tokens may stay unmasked


def check_masker(part: ComponentSpec | str, config: Any = None) -> None:
    """Run the masker contract on a spec or the name of an installed part, with default settings or `config`.

    Shapes and types are correct; special tokens and padding are never hidden; at least one token is hidden in every
    text of more than three tokens; labels are the clean tokens; the input is unchanged; the same seed gives the same
    mask, also after pickling and in a worker process, another epoch another mask; the rest of the batch, its order and
    padding do not matter; a batch of one text and an empty text are not an error; only declared signals are read. A
    masker that provides `context` gets texts with contexts.
    """
    spec = spec_of(Kind.MASKER, part)
    check_spec(spec)
    config = spec.config() if config is None else config
    masker, provided = build(spec, config, toy_context()), spec.provides_of(config)
    require(callable(masker), f"{spec.name}: a masker must be callable, got {type(masker).__name__}")
    unknown = provided - set(provided_by(MASKER))
    require(not unknown, f"{spec.name}: provides {sorted(unknown)}; a masker provides {', '.join(provided_by(MASKER))}")
    scopes, plain = signal_scopes(spec, config), toy_pairs_of_texts if "context" in provided else toy_tokens

    def toys(padding: int = 0) -> TokenBatch:
        return with_signals(plain(padding=padding), scopes)

    for rows in (0, 33) if "rows" in provided else (0,):
        _check_one(masker, rows, spec.name, provided, toys)


def _check_one(masker: Any, rows: int, name: str, provided: Collection[str], toys: Callable[..., TokenBatch]) -> None:
    tokens, untouched = toys(), toys()
    views = _mask(masker, tokens, rows, name)
    require(_same(tokens, untouched), f"{name}: the masker changed its input")
    expected = (tokens.context or tokens) if "context" in provided else tokens
    which = "context of the batch" if "context" in provided else "clean text"
    require(torch.equal(views.context.ids, expected.ids), f"{name}: Views.context must be the {which}")
    check_views(views, tokens, rows, provided, name)
    if not rows:
        idle = ~(views.decoder.labels != NO_TARGET).any(1) & (views.context.maskable.sum(1) > SHORT)
        require(not idle.any(), f"{name}, decoder: a text has maskable tokens, but no targets")
    _check_draws(masker, tokens, views, rows, name)
    longer = _cut(_mask(masker, toys(padding=7), rows + 5 if rows else 0, name), views.decoder.ids.shape[1], rows)
    require(_same(longer, views), f"{name}: a text's mask depends on its padding")


class _OneBatch(Dataset[TokenBatch]):
    """A data set of a single batch."""

    def __init__(self, tokens: TokenBatch) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _index: int) -> TokenBatch:
        return self.tokens


def _mask(masker: Any, tokens: TokenBatch, rows: int, name: str, *, seed: int = 1, epoch: int = 0) -> Views:
    with running(name, f"masking {len(tokens.ids)} text(s) with rows={rows}"):
        views = masker(tokens, Draws(seed, epoch, tokens.keys.numpy()), rows=rows)
    return require_views(views, name)


def require_views(views: Any, name: str) -> Views:
    """Return what a masker returned; raises ContractError unless it is Views."""
    require(isinstance(views, Views), f"{name}: a masker must return Views, got {type(views).__name__}")
    assert isinstance(views, Views)
    return views


def check_views(views: Views, tokens: TokenBatch, rows: int, provided: Collection[str], name: str) -> None:
    """Check the views of a batch: targets, labels, noise, and a visibility pattern if the masker provides `rows`."""
    check_view(views.encoder, tokens, f"{name}, encoder's view")
    check_view(views.decoder, views.context, f"{name}, decoder's view")
    noise = views.encoder.noise is not None or views.decoder.noise is not None
    require(
        noise == ("replaced" in provided), f"{name}: views have `noise` if and only if the spec provides 'replaced'"
    )
    if rows and "rows" in provided:
        check_rows(views, rows, name)


def check_view(view: MaskedView, clean: TokenBatch, name: str) -> None:
    """Check shapes and types of a view, and that its targets are ordinary tokens with their own labels."""
    for piece in ("ids", "labels"):
        tensor = getattr(view, piece)
        require(tensor.dtype == torch.long, f"{name}: {piece} is {tensor.dtype}, expected int64")
        require(tensor.shape == clean.ids.shape, f"{name}: {piece} has shape {tuple(tensor.shape)}")
    require(view.attention.dtype == torch.bool, f"{name}: attention is {view.attention.dtype}, expected bool")
    require(torch.equal(view.attention, clean.attention), f"{name}: attention is not that of the text")
    targets = view.labels != NO_TARGET
    require(not (targets & ~clean.maskable).any(), f"{name}: a special token or padding is a target")
    require(torch.equal(view.labels[targets], clean.ids[targets]), f"{name}: a label is not the clean token")
    kept = view.ids == clean.ids
    require(bool(kept[~targets].all()), f"{name}: a token that is not a target was changed")


def check_rows(views: Views, rows: int, name: str) -> None:
    """Check a decoder view's visibility pattern for `rows` rows."""
    visible, context = views.decoder.visible, views.context
    require(visible is not None, f"{name}: provides rows, but the decoder's view has no visible")
    assert visible is not None
    expected = (len(context.ids), rows, context.ids.shape[1])
    require(visible.dtype == torch.bool, f"{name}: visible is {visible.dtype}, expected bool")
    require(tuple(visible.shape) == expected, f"{name}: visible has shape {tuple(visible.shape)}, expected {expected}")
    require(torch.equal(views.decoder.ids, context.ids), f"{name}: with rows the decoder's ids must be the clean ones")
    special = context.attention & ~context.maskable
    require(bool(visible.transpose(1, 2)[special].all()), f"{name}: a special token is hidden from some row")
    require(not visible.transpose(1, 2)[~context.attention].any(), f"{name}: padding is visible to some row")
    hidden = (~visible & context.maskable[:, None]).any((1, 2))
    require(bool(hidden[context.maskable.sum(1) > SHORT].all()), f"{name}: rows do not hide any token")


def _check_draws(masker: Any, tokens: TokenBatch, views: Views, rows: int, name: str) -> None:
    require(_same(views, _mask(masker, tokens, rows, name)), f"{name}: the same seed gives a different mask")
    require(not _same(views, _mask(masker, tokens, rows, name, epoch=1)), f"{name}: every epoch gives the same mask")
    require(not _same(views, _mask(masker, tokens, rows, name, seed=2)), f"{name}: every seed gives the same mask")
    for some in (SOME, [0], [EMPTY]):
        alone = _mask(masker, rows_of(tokens, some), rows, name)
        same = _same(alone, map_tensors(views, lambda tensor, some=some: tensor[some]))
        require(same, f"{name}: a text's mask depends on the other texts of the batch")
    with running(name, "pickling it, as worker processes need,"):
        thawed = pickle.loads(pickle.dumps(masker))
    require(_same(views, _mask(thawed, tokens, rows, name)), f"{name}: pickling changes the mask")
    # Batches are masked in the worker processes of a DataLoader.
    with running(name, "masking in a worker process"):
        call = functools.partial(_mask, masker, rows=rows, name=name)
        (elsewhere,) = DataLoader(_OneBatch(tokens), batch_size=None, collate_fn=call, num_workers=1)
    require(_same(views, elsewhere), f"{name}: a worker process gives a different mask")


def _tensors(bundle: Any) -> list[torch.Tensor]:
    if attrs.has(type(bundle)):
        return [tensor for f in attrs.fields(type(bundle)) for tensor in _tensors(getattr(bundle, f.name))]
    if isinstance(bundle, Mapping):
        return [tensor for name in sorted(bundle) for tensor in _tensors(bundle[name])]
    return [] if bundle is None else [bundle]


def _same(one: Any, two: Any) -> bool:
    pairs = list(zip(_tensors(one), _tensors(two), strict=True))
    return all(torch.equal(a, b) for a, b in pairs)


def _cut(views: Views, length: int, rows: int) -> Views:
    def cut(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[:, :rows, :length] if tensor.ndim == 3 else tensor[:, :length] if tensor.ndim == 2 else tensor

    return map_tensors(views, cut)
