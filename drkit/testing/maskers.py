"""The contract of a masker: correct labels, and draws that depend only on seed, epoch and example."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs
import torch
from torch.utils.data import DataLoader, Dataset

from drkit.core.draws import Draws
from drkit.core.protocols import MaskingRatio
from drkit.core.registry import Registry, installed
from drkit.core.schedules import Scheduled
from drkit.core.spec import MASKER, ComponentSpec, Kind, provided_by
from drkit.core.types import MaskedView, TokenBatch, map_tensors
from drkit.maskers.views import NO_TARGET, hidden_tokens
from drkit.testing.data import toy_signals
from drkit.testing.specs import build, checked_spec, pickled, require, running
from drkit.testing.toys import rows_of, toy_context, toy_tokens, with_signals

SOME = [6, 0, 3]
EMPTY = 5  # the row of an empty text
_SHORT = 3  # a text with at most this many tokens may stay unmasked


def check_masker(part: ComponentSpec | str, config: Any = None) -> None:
    """Run the masker contract on a spec or the name of an installed part, with default settings or `config`.

    Shapes and types are correct; special tokens and padding are never hidden; at least one token is hidden in every
    text of more than three tokens, unless the setting `ratio` is 0 or the masker provides `ratios`; labels are the
    clean tokens (a masker that provides `corrupted` has none, and changes such a text); the input is unchanged; what an
    earlier view hides (`nested`) stays hidden; the same seed gives the same mask, also after pickling and in a worker
    process, another epoch another mask; the rest of the batch, its order and padding do not matter; a batch of one text
    and an empty text are not an error; only declared signals are read; with schedules of its schedulable settings, it
    masks by those of the step.
    """
    spec, config = checked_spec(Kind.MASKER, part, config)
    masker, provided = build(spec, config, toy_context()), spec.provides_of(config)
    require(callable(masker), f"{spec.name}: a masker must be callable, got {type(masker).__name__}")
    unknown = provided - set(provided_by(MASKER))
    require(not unknown, f"{spec.name}: provides {sorted(unknown)}; a masker provides {', '.join(provided_by(MASKER))}")
    signals, hides = toy_signals(spec, config), not isinstance(config, MaskingRatio) or config.ratio > 0

    def toys(padding: int = 0) -> TokenBatch:
        return with_signals(toy_tokens(padding=padding), signals)

    for rows in (0, 33) if "rows" in provided else (0,):
        _check_one(masker, rows, spec.name, provided, toys, hides)
    _check_scheduled(spec, config, masker, toys())


def _check_scheduled(spec: ComponentSpec, config: Any, masker: Any, tokens: TokenBatch) -> None:
    """Check that a schedule which reaches the settings halfway gives their views from there on."""
    numbers = [a.name for a in attrs.fields(spec.config) if a.metadata.get("schedulable")]
    if numbers:
        first = spec.config()
        ends = {name: (getattr(first, name), getattr(config, name)) for name in numbers}
        changing = {name: Scheduled(start, last, end=0.5) for name, (start, last) in ends.items()}
        with running(spec.name, f"built with schedules of {', '.join(numbers)}"):
            others = [one for one in installed().registry if (one.kind, one.name) != (spec.kind, spec.name)]
            registry = Registry([*others, spec])  # of the parts that its settings choose
            scheduled = registry.build(Kind.MASKER, spec.name, attrs.evolve(config, **changing), toy_context())
        expected, found = (_mask(one, tokens, 0, spec.name, progress=0.5) for one in (masker, scheduled))
        require(_same(found, expected), f"{spec.name}: with a schedule, it does not mask by the settings of the step")
        thawed = _mask(pickled(spec.name, scheduled), tokens, 0, spec.name, progress=0.5)
        require(_same(thawed, expected), f"{spec.name}: pickling changes the masks of a schedule")


def _check_one(
    masker: Any, rows: int, name: str, provided: Collection[str], toys: Callable[..., TokenBatch], hides: bool
) -> None:
    tokens, untouched = toys(), toys()
    view = _mask(masker, tokens, rows, name)
    require(_same(tokens, untouched), f"{name}: the masker changed its input")
    check_view(view, tokens, rows, provided, name)
    if hides:
        _check_hides(view, tokens, name, provided)
        _check_draws(masker, tokens, view, rows, name)
    if "corrupted" not in provided:
        _check_nested(masker, tokens, rows, name)
    longer = _cut(_mask(masker, toys(padding=7), rows, name), view.ids.shape[1], rows)
    require(_same(longer, view), f"{name}: a text's mask depends on its padding")
    if rows:
        more = _cut(_mask(masker, tokens, rows + 5, name), view.ids.shape[1], rows)
        require(_same(more, view), f"{name}: what a row sees depends on the number of rows")


def _check_hides(view: MaskedView, tokens: TokenBatch, name: str, provided: Collection[str]) -> None:
    long = tokens.maskable.sum(1) > _SHORT
    if "ratios" in provided:  # what is drawn may hide nothing of a text
        require(bool((view.labels != NO_TARGET).any()), f"{name}: no text has a target")
    elif "corrupted" in provided:
        unchanged = (view.ids == tokens.ids).all(1) & long
        require(not unchanged.any(), f"{name}: a text is not corrupted at all")
    elif view.visible is not None:
        hidden = (~view.visible & tokens.maskable[:, None]).any((1, 2))
        require(bool(hidden[long].all()), f"{name}: rows do not hide any token")
    else:
        idle = ~(view.labels != NO_TARGET).any(1) & long
        require(not idle.any(), f"{name}: a text has maskable tokens, but no targets")


def _check_nested(masker: Any, tokens: TokenBatch, rows: int, name: str) -> None:
    outer = _mask(masker, tokens, 0, name, seed=3)
    inner = _mask(masker, tokens, rows, name, nested=outer)
    hidden = hidden_tokens(outer)
    seen = ~hidden_tokens(inner) if inner.visible is None else inner.visible.any(1)
    require(not (hidden & seen).any(), f"{name}: a token that the view `nested` hides is visible; see make_view")


class _OneBatch(Dataset[TokenBatch]):
    """A data set of a single batch."""

    def __init__(self, tokens: TokenBatch) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _index: int) -> TokenBatch:
        return self.tokens


def _mask(
    masker: Any,
    tokens: TokenBatch,
    rows: int,
    name: str,
    *,
    seed: int = 1,
    epoch: int = 0,
    nested: MaskedView | None = None,
    progress: float = 0.0,
) -> MaskedView:
    with running(name, f"masking {len(tokens.ids)} text(s) with rows={rows}, nested={nested and 'a view'}"):
        view = masker(tokens, Draws(seed, epoch, tokens.keys.numpy(), progress), rows=rows, nested=nested)
    return require_view(view, name)


def require_view(view: Any, name: str) -> MaskedView:
    """Return what a masker returned; raises ContractError unless it is a MaskedView."""
    require(isinstance(view, MaskedView), f"{name}: a masker must return a MaskedView, got {type(view).__name__}")
    assert isinstance(view, MaskedView)
    return view


def check_view(view: MaskedView, clean: TokenBatch, rows: int, provided: Collection[str], name: str) -> None:
    """Check a view: shapes, types, noise, and that its targets are ordinary tokens with their own labels."""
    for piece in ("ids", "labels"):
        tensor = getattr(view, piece)
        require(tensor.dtype == torch.long, f"{name}: {piece} is {tensor.dtype}, expected int64")
        require(tensor.shape == clean.ids.shape, f"{name}: {piece} has shape {tuple(tensor.shape)}")
    require(view.attention.dtype == torch.bool, f"{name}: attention is {view.attention.dtype}, expected bool")
    if "corrupted" in provided:
        _check_corrupted(view, clean, name)
        return
    require(torch.equal(view.attention, clean.attention), f"{name}: attention is not that of the text")
    targets = view.labels != NO_TARGET
    require(not (targets & ~clean.maskable).any(), f"{name}: a special token or padding is a target")
    require(torch.equal(view.labels[targets], clean.ids[targets]), f"{name}: a label is not the clean token")
    kept = view.ids == clean.ids
    require(bool(kept[~targets].all()), f"{name}: a token that is not a target was changed")
    if rows and "rows" in provided:
        _check_rows(view, clean, rows, name)
        return
    has_ratios = view.ratios is not None
    require(has_ratios == ("ratios" in provided), f"{name}: views have ratios if and only if it provides 'ratios'")
    if view.ratios is not None:
        is_share = (view.ratios > 0) & (view.ratios <= 1)
        shape = tuple(view.ratios.shape)
        require(shape == (len(clean.ids),), f"{name}: ratios has shape {shape}, expected one for each text")
        require(bool(is_share.all()), f"{name}: a ratio is not above 0 and at most 1")
    is_filled = view.noise is not None
    require(is_filled == ("replaced" in provided), f"{name}: views have noise if and only if it provides 'replaced'")


def _check_corrupted(view: MaskedView, clean: TokenBatch, name: str) -> None:
    """Check a view whose tokens are not those of the text at the same positions."""
    attention = view.attention
    require(attention.shape == clean.ids.shape, f"{name}: attention has shape {tuple(attention.shape)}")
    require(bool((view.labels == NO_TARGET).all()), f"{name}: a corrupted text has no targets; its labels must be -100")
    require(bool((attention.cummin(1).values == attention).all()), f"{name}: tokens must come before padding")
    require(bool(attention.any(1).all()), f"{name}: a text has no token left; keep its special tokens")


def _check_rows(view: MaskedView, clean: TokenBatch, rows: int, name: str) -> None:
    """Check a view's visibility pattern for `rows` rows."""
    visible = view.visible
    require(visible is not None, f"{name}: provides rows, but its view has no visible")
    assert visible is not None
    expected = (len(clean.ids), rows, clean.ids.shape[1])
    require(visible.dtype == torch.bool, f"{name}: visible is {visible.dtype}, expected bool")
    require(tuple(visible.shape) == expected, f"{name}: visible has shape {tuple(visible.shape)}, expected {expected}")
    require(torch.equal(view.ids, clean.ids), f"{name}: with rows the view's ids must be the clean ones")
    special = clean.attention & ~clean.maskable
    require(bool(visible.transpose(1, 2)[special].all()), f"{name}: a special token is hidden from some row")
    require(not visible.transpose(1, 2)[~clean.attention].any(), f"{name}: padding is visible to some row")


def _check_draws(masker: Any, tokens: TokenBatch, view: MaskedView, rows: int, name: str) -> None:
    require(_same(view, _mask(masker, tokens, rows, name)), f"{name}: the same seed gives a different mask")
    require(not _same(view, _mask(masker, tokens, rows, name, epoch=1)), f"{name}: every epoch gives the same mask")
    require(not _same(view, _mask(masker, tokens, rows, name, seed=2)), f"{name}: every seed gives the same mask")
    for some in (SOME, [0], [EMPTY]):
        alone = _mask(masker, rows_of(tokens, some), rows, name)
        same = _same(alone, map_tensors(view, lambda tensor, some=some: tensor[some]))
        require(same, f"{name}: a text's mask depends on the other texts of the batch")
    require(_same(view, _mask(pickled(name, masker), tokens, rows, name)), f"{name}: pickling changes the mask")
    # Batches are masked in the worker processes of a DataLoader.
    with running(name, "masking in a worker process"):
        call = functools.partial(_mask, masker, rows=rows, name=name)
        (elsewhere,) = DataLoader(_OneBatch(tokens), batch_size=None, collate_fn=call, num_workers=1)
    require(_same(view, elsewhere), f"{name}: a worker process gives a different mask")


def _tensors(bundle: Any) -> list[torch.Tensor]:
    if attrs.has(type(bundle)):
        return [tensor for f in attrs.fields(type(bundle)) for tensor in _tensors(getattr(bundle, f.name))]
    if isinstance(bundle, Mapping):
        return [tensor for name in sorted(bundle) for tensor in _tensors(bundle[name])]
    return [] if bundle is None else [bundle]


def _same(one: Any, two: Any) -> bool:
    pairs = list(zip(_tensors(one), _tensors(two), strict=True))
    return all(torch.equal(a, b) for a, b in pairs)


def _cut(view: MaskedView, length: int, rows: int) -> MaskedView:
    def cut(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[:, :rows, :length] if tensor.ndim == 3 else tensor[:, :length] if tensor.ndim == 2 else tensor

    return map_tensors(view, cut)
