"""Inspect maskers: what they hide of a text from the encoder and the decoder.

`view_statistics` measures it over many texts. CDMAE (section 3.2) counts stop-words and punctuation among masked
tokens: about 40% under uniform masking of BERT's texts. Stop-words here are the 179 English ones of NLTK's list, as
bm25s ships them; punctuation is any word without a letter or digit. A word counts as the tokenizer sees it, so every
piece of a stop-word is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import attrs
import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from drkit.core.draws import Draws
from drkit.core.protocols import ReplacingMasker
from drkit.core.registry import Registry
from drkit.core.schedules import settings_at
from drkit.core.spec import Choice, Kind
from drkit.core.types import MaskedView, TokenBatch
from drkit.data.spelling import token_text
from drkit.errors import DrkitError, import_extra
from drkit.maskers.views import find_units, hidden_tokens
from drkit.recipe.schema import ITSELF
from drkit.train.checkpoints import load_encoder
from drkit.train.pretrain import REPLACER
from drkit_report.inspect.source import IMPORTANCE, Piece, TextSource, full_path

SEEN, MASKED, REPLACED, KEPT = "seen", "masked", "replaced", "kept"


@frozen
class Cell:
    """A token in a view: `seen`, `masked`, `replaced` by the word `shown`, or `kept` (a target that stays readable)."""

    state: str
    shown: str = ""


@frozen
class View:
    """What the encoder or decoder sees of a text, token by token."""

    name: str
    cells: tuple[Cell, ...]

    @property
    def hidden(self) -> int:
        """Number of tokens that are not plainly seen."""
        return sum(cell.state != SEEN for cell in self.cells)


@frozen
class InspectedText:
    """A text, token by token, with its views.

    maskable: False for tokens that are never hidden (unknown and special ones). common: True for stop words and
    punctuation.
    """

    title: str
    pieces: tuple[Piece, ...]
    maskable: tuple[bool, ...]
    common: tuple[bool, ...]
    views: tuple[View, ...]

    def common_share(self, view: View) -> float:
        """Return the share of stop words and punctuation among the tokens that a view hides."""
        hits = [common for common, cell in zip(self.common, view.cells, strict=True) if cell.state != SEEN]
        return sum(hits) / max(len(hits), 1)


@frozen
class InspectedMask:
    """The result of `drkit inspect mask`: one text, or two if the decoder reconstructs a text of its own.

    maskers, settings: by side, `encoder` and `decoder`.
    """

    maskers: dict[str, str]
    settings: dict[str, dict[str, Any]]
    texts: tuple[InspectedText, ...]
    notes: tuple[str, ...] = ()


def inspect_mask(
    text: str,
    source: TextSource,
    registry: Registry,
    *,
    seed: int,
    epoch: int = 0,
    context: str | None = None,
    progress: float = 0.0,
) -> InspectedMask:
    """Draw the masks of the encoder and of the first decoder of `source.recipe` for a text, as for a run's first text.

    seed, epoch: of the draw. context: the text that the decoder rebuilds, if the recipe's context is another one; if
    None, a query is extracted from the text as in a run without a query generator, and a context that needs no other
    text is called. progress: of the training, in [0, 1].

    Raises DrkitError if the text is empty, or a masker needs counts that the source does not have.
    """
    pretrain, task = source.pretrain(), source.decoder()
    chosen = {"encoder": pretrain.encoder.masker, **({"decoder": task.masker} if task and task.masker else {})}
    kind = task.context if task else ITSELF
    from_queries = "generated-queries" in registry.get(Kind.CONTEXT, kind.use).requires_of(kind.config)
    required = _required_importance(chosen.values(), registry)
    needs_counts = required is not None or not from_queries or context is not None
    _check_counts(source, chosen.get("decoder", chosen["encoder"]), required if needs_counts else {})
    tokens, pieces = _tokenise(text, source, required)
    decoded, other = tokens, pieces
    if kind != ITSELF:
        if context is None and not from_queries:
            context = source.context_of(text, kind, registry, seed=seed, epoch=epoch)
        decoded, other = _tokenise(_context_text(context, text, source, from_queries), source, required)
    maskers = {side: registry.build(Kind.MASKER, one.use, one.config, source.context()) for side, one in chosen.items()}
    replacers = {side: _replacer(source, masker) for side, masker in maskers.items()}
    draws = Draws(seed, epoch, [0], progress)
    drawn = {"encoder": maskers["encoder"](tokens, draws)}
    if task and "decoder" in maskers:
        drawn["decoder"] = maskers["decoder"](decoded, draws, 0, drawn["encoder"] if task.nested else None)
    read = {"encoder": tokens, "decoder": decoded}
    views = [_view(side, view, read[side], source, replacers[side]) for side, view in drawn.items()]
    texts: tuple[InspectedText, ...] = (_make_text("text", tokens, pieces, views, source),)
    if kind != ITSELF:
        texts = (
            _make_text("the encoder's text", tokens, pieces, views[:1], source),
            _make_text("its context", decoded, other, views[1:], source),
        )
    is_filled = any(view.noise is None or replacers[side] for side, view in drawn.items())
    return InspectedMask(
        maskers={side: one.use for side, one in chosen.items()},
        settings={side: attrs.asdict(settings_at(one.config, progress)) for side, one in chosen.items()},
        texts=texts,
        notes=tuple(_notes(text, source, decoded, is_filled=is_filled)),
    )


def _required_importance(maskers: Iterable[Choice], registry: Registry) -> Mapping[str, Any] | None:
    """Return the settings that maskers require of the signal `importance`; None if they do not read it.

    Raises DrkitError for a masker that hides no token.
    """
    found = None
    for one in maskers:
        spec = registry.get(Kind.MASKER, one.use)
        if "view" not in spec.provides_of(one.config):
            raise DrkitError(
                f"masker {one.use!r} gives another text, of which no token is hidden: inspect another masker"
            )
        found = found if found is not None else spec.signals_of(one.config).get(IMPORTANCE)
    return found


def _make_text(
    title: str, tokens: TokenBatch, pieces: tuple[Piece, ...], views: list[View], source: TextSource
) -> InspectedText:
    common = _without_special_tokens(common_tokens(tokens, source.tokenizer)[0])
    return InspectedText(title, pieces, _without_special_tokens(tokens.maskable[0]), common, tuple(views))


def _tokenise(
    text: str, source: TextSource, required: Mapping[str, Any] | None
) -> tuple[TokenBatch, tuple[Piece, ...]]:
    """Tokenise a text; required: the settings that the masker requires of the signal `importance`, if it reads it."""
    if not text.strip():
        raise DrkitError("the text is empty; give one or two sentences")
    return source.read(text, **{name: value for name, value in (required or {}).items() if name in ("pmi", "ends")})


def _context_text(given: str | None, text: str, source: TextSource, from_queries: bool) -> str:
    """Return the decoder's text: the given one, or an extracted query."""
    if given is not None:
        return given
    if from_queries and source.counts is not None:
        return source.query_of(text)
    raise DrkitError(
        "this masker needs a second text for the decoder (another span of the same document, or a query): "
        "give one with --context TEXT"
    )


def _check_counts(source: TextSource, chosen: Choice, required: Mapping[str, Any] | None) -> None:
    """Raise DrkitError if the counts that a masker needs (`required`) are missing, or were made with other settings."""
    counts = source.counts
    if counts is None:
        if required is not None:
            raise DrkitError(
                f"masker {chosen.use!r} needs n-gram counts, but {source.folder} has none, because its recipe's masker "
                f"does not need them; inspect a run composed with --masker pmi"
            )
        return
    for name in ("window", "min_count"):
        expected, actual = (required or {}).get(name), getattr(counts, name)
        if expected not in (None, actual):
            raise DrkitError(
                f"the n-gram counts of {source.folder} were made with {name} {actual}, not masker.{name}={expected}; "
                f"inspect a run composed with --set {full_path(f'masker.{name}={expected}')}"
            )


def _replacer(source: TextSource, masker: Any) -> Any:
    """Return the masker's replacer with the run's generator, or None if the masker or the run has none."""
    trained = source.folder / "pretrained" / REPLACER  # beside the encoder
    folder = trained if trained.is_dir() else source.folder / REPLACER
    if not isinstance(masker, ReplacingMasker) or not folder.is_dir():
        return None
    replacer: Any = masker.replacer(attrs.evolve(source.context(), generator=load_encoder(folder, pooling="cls")))
    return replacer.eval()


def _view(name: str, view: MaskedView, tokens: TokenBatch, source: TextSource, replacer: Any) -> View:
    hidden = _without_special_tokens(hidden_tokens(view)[0])
    if replacer is not None and view.noise is not None:
        with torch.no_grad():
            view, _ = replacer(view, tokens, learn=False)
    ids, clean = _without_special_tokens(view.ids[0]), _without_special_tokens(tokens.ids[0])
    return View(name, tuple(_cell(*each, source) for each in zip(hidden, ids, clean, strict=True)))


def _cell(hidden: bool, token: int, clean: int, source: TextSource) -> Cell:
    if not hidden:
        return Cell(SEEN)
    if token == source.tokenizer.mask_token_id:
        return Cell(MASKED)
    return Cell(KEPT) if token == clean else Cell(REPLACED, token_text(source.tokenizer, token))


def _without_special_tokens(row: Tensor) -> tuple[Any, ...]:
    """Return the values of a row i64[L] or bool[L] without [CLS] and [SEP]."""
    return tuple(row[1:-1].tolist())


def _notes(text: str, source: TextSource, decoded: TokenBatch, *, is_filled: bool) -> Iterator[str]:
    """Yield facts that the views do not show."""
    length = source.recipe.encoder.passage_length
    excess = len(source.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) - (length - 2)
    if excess > 0:
        yield f"the text is truncated to {length} tokens, as in the run (encoder.passage_length): {excess} are left out"
    if unknown := int((decoded.attention & ~decoded.maskable).sum()) - 2:
        yield f"{unknown} tokens are unknown or special, and never hidden"
    if source.counts is None:
        yield f"{source.folder} has no n-gram counts, so the importance of tokens is unknown"
    if not is_filled:
        yield f"in training, a generator replaces masked tokens; {source.folder} has none, so its samples are not shown"


@frozen
class ViewStatistics:
    """Counts over the maskable tokens of one view, or of many added up.

    tokens: maskable tokens. hidden: the hidden ones of these, split into made_mask, made_random and kept. common:
    hidden tokens of stop-words and punctuation. torn: words with some tokens hidden and others not.
    """

    tokens: int
    hidden: int
    made_mask: int
    made_random: int
    kept: int
    common: int
    torn: int

    def __add__(self, other: ViewStatistics) -> ViewStatistics:
        return ViewStatistics(*(a + b for a, b in zip(attrs.astuple(self), attrs.astuple(other), strict=True)))

    @property
    def ratio(self) -> float:
        """Share of the maskable tokens that are hidden."""
        return self.hidden / max(self.tokens, 1)

    @property
    def common_share(self) -> float:
        """Share of stop-words and punctuation among the hidden tokens."""
        return self.common / max(self.hidden, 1)

    @property
    def shares(self) -> tuple[float, float, float]:
        """Of the hidden tokens: the share made [MASK], made another token, kept."""
        made = max(self.hidden, 1)
        return self.made_mask / made, self.made_random / made, self.kept / made


def view_statistics(view: MaskedView, tokens: TokenBatch, tokenizer: Any, *, mask_id: int) -> ViewStatistics:
    """Return the statistics of a view of `tokens`, the clean text."""
    hidden = hidden_tokens(view) & tokens.maskable
    made_mask = hidden & (view.ids == mask_id)
    changed = hidden & ~made_mask & (view.ids != tokens.ids)
    return ViewStatistics(
        tokens=_count(tokens.maskable),
        hidden=_count(hidden),
        made_mask=_count(made_mask),
        made_random=_count(changed),
        kept=_count(hidden & ~made_mask & ~changed),
        common=_count(hidden & common_tokens(tokens, tokenizer)),
        torn=torn_words(hidden, tokens),
    )


def torn_words(hidden: Tensor, tokens: TokenBatch) -> int:
    """Count the words that are partly hidden. hidden bool[B,L]."""
    words = find_units(tokens)
    batch, most = words.sizes.shape
    bins = (words.index + np.arange(batch)[:, None] * (most + 1)).ravel()
    counts = np.bincount(bins, weights=hidden.numpy().ravel(), minlength=batch * (most + 1))
    of_words = counts.reshape(batch, most + 1)[:, :most]
    return int(((of_words > 0) & (of_words < words.sizes)).sum())


def common_tokens(tokens: TokenBatch, tokenizer: Any) -> Tensor:
    """Return the tokens bool[B,L] of stop-words and of words without a letter or digit."""
    checked: dict[tuple[int, ...], bool] = {}
    index = find_units(tokens).index
    out = np.zeros(index.shape, dtype=np.bool_)
    for row, ids in enumerate(tokens.ids.numpy()):
        inside = np.flatnonzero(tokens.maskable[row].numpy())
        if not len(inside):
            continue
        for positions in np.split(inside, np.flatnonzero(np.diff(index[row, inside])) + 1):
            word = tuple(ids[positions].tolist())
            if word not in checked:
                checked[word] = is_common(tokenizer.decode(list(word)))
            out[row, positions] = checked[word]
    return torch.from_numpy(out)


def is_common(word: str) -> bool:
    """Return whether a word is an English stop-word, or has neither letter nor digit.

    >>> [is_common(word) for word in ("The", " of ", "--", "retriever", "4")]
    [True, True, True, False, False]
    """
    plain = word.strip().lower()
    return plain in stop_words() or not any(character.isalnum() for character in plain)


@cache
def stop_words() -> frozenset[str]:
    """Return NLTK's 179 English stop-words, from bm25s."""
    return frozenset(import_extra("bm25s.stopwords", "drkit inspect").STOPWORDS_EN_PLUS)


def _count(chosen: Tensor) -> int:
    return int(chosen.sum())
