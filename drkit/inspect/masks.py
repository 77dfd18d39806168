"""What a masker hides of one text: from the encoder, from the decoder, from each row of a visibility pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from drkit.core.draws import Draws
from drkit.core.protocols import ReplacingMasker
from drkit.core.registry import Registry
from drkit.core.spec import Kind
from drkit.errors import DrkitError
from drkit.inspect.texts import IMPORTANCE, Piece, TextSource
from drkit.maskers.statistics import common_tokens, hidden_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from drkit.core.recipe import Choice
    from drkit.core.types import MaskedView, TokenBatch, Views

SEEN, MASKED, REPLACED, KEPT = "seen", "masked", "replaced", "kept"


@frozen
class Cell:
    """A token in a view: `seen`, `masked`, `replaced` by the word `shown`, or `kept` (a target, but left readable)."""

    state: str
    shown: str = ""


@frozen
class View:
    """What one reader sees of a text, token by token; row: of a visibility pattern which one, else None."""

    name: str
    cells: tuple[Cell, ...]
    row: int | None = None

    @property
    def hidden(self) -> int:
        """How many tokens it does not simply see."""
        return sum(cell.state != SEEN for cell in self.cells)


@frozen
class InspectedText:
    """A text, token by token, and who sees what of it.

    maskable: False at tokens that are never hidden (unknown and special ones). common: True at stop-words and
    punctuation.
    """

    title: str
    pieces: tuple[Piece, ...]
    maskable: tuple[bool, ...]
    common: tuple[bool, ...]
    views: tuple[View, ...]

    def common_share(self, view: View) -> float:
        """The share of stop-words and punctuation among what a view hides."""
        hits = [common for common, cell in zip(self.common, view.cells, strict=True) if cell.state != SEEN]
        return sum(hits) / max(len(hits), 1)


@frozen
class InspectedMask:
    """What `drkit inspect mask` shows: one text, or two where the decoder rebuilds another than the encoder reads."""

    masker: str
    settings: dict[str, Any]
    texts: tuple[InspectedText, ...]
    notes: tuple[str, ...] = ()


@frozen
class Draw:
    """Which draw of the masks to look at: the run's seed, an epoch, and how many rows of a pattern (0: none)."""

    seed: int
    epoch: int = 0
    rows: int = 0


def inspect_mask(
    text: str, source: TextSource, registry: Registry, draw: Draw, *, context: str | None = None
) -> InspectedMask:
    """The masks that the masker of `source.recipe` draws for a text, as for the first text of a run.

    context: the other text that the decoder rebuilds, for a masker that brings one; where None, a query of the text is
    extracted as in a run without a query generator.

    Raises DrkitError where the text is empty, the masker needs counts that the source has not (or others), or has no
    rows to show.
    """
    chosen = source.masker()
    spec = registry.get(Kind.MASKER, chosen.use)
    if draw.rows and "rows" not in spec.provides_of(chosen.config):
        raise DrkitError(f"masker {spec.name!r} draws no pattern per row; leave --rows out")
    from_queries = "generated-queries" in spec.requires_of(chosen.config)
    wanted = spec.signals_of(chosen.config).get(IMPORTANCE)
    _check_counts(source, chosen, None if context is not None and from_queries else wanted)
    brings_context = "context" in spec.provides_of(chosen.config)
    tokens, pieces = _read(text, source, wanted)
    other = pieces
    if brings_context:
        second, other = _read(_context(context, text, source, from_queries), source, wanted)
        tokens = attrs.evolve(tokens, context=second)
    masker = registry.build(Kind.MASKER, chosen.use, chosen.config, source.context())
    views = masker(tokens, _draws(draw))
    fill = _generator(source, masker)
    of_decoder = [_view("decoder", views.decoder, views.context, source, fill)]
    if draw.rows:
        of_decoder += _rows(masker(tokens, _draws(draw), rows=draw.rows).decoder, other)
    of_encoder = [_view("encoder", views.encoder, tokens, source, fill)]
    if brings_context:
        read = [("the encoder's text", tokens, pieces, of_encoder), ("its context", views.context, other, of_decoder)]
    else:
        read = [("text", tokens, pieces, of_encoder + of_decoder)]
    return InspectedMask(
        masker=chosen.use,
        settings=attrs.asdict(chosen.config),
        texts=tuple(
            InspectedText(
                title=title,
                pieces=shown,
                maskable=_inside(batch.maskable[0]),
                common=_inside(common_tokens(batch, source.tokenizer)[0]),
                views=tuple(found),
            )
            for title, batch, shown, found in read
        ),
        notes=tuple(_notes(text, source, draw, views, fill)),
    )


def _draws(draw: Draw) -> Draws:
    return Draws(draw.seed, draw.epoch, [0])


def _read(text: str, source: TextSource, wanted: Mapping[str, Any] | None) -> tuple[TokenBatch, tuple[Piece, ...]]:
    """wanted: the settings that the masker wants of the importance, where it reads it."""
    if not text.strip():
        raise DrkitError("the text is empty; give a sentence or two")
    return source.read(text, pmi=(wanted or {}).get("pmi", "fragment"))


def _context(given: str | None, text: str, source: TextSource, from_queries: bool) -> str:
    """The decoder's text: the one given, else what an extractive query of the text would be."""
    if given is not None:
        return given
    if from_queries and source.counts is not None:
        return source.query_of(text)
    raise DrkitError(
        "this masker gives the decoder another text than the encoder's (another span of the same document, a query); "
        "give one: --context TEXT"
    )


def _check_counts(source: TextSource, chosen: Choice, wanted: Mapping[str, Any] | None) -> None:
    """The counts a masker needs are there, and are those its settings ask for; wanted: None where it needs none."""
    counts = source.counts
    if counts is None:
        if wanted is not None:
            raise DrkitError(
                f"masker {chosen.use!r} needs the n-gram counts of a collection, and {source.folder} has none: its "
                f"recipe's masker did without. Look through a collection instead (--collection pydocs, beir:FOLDER), "
                f"or make a run with --masker pmi"
            )
        return
    for name in ("window", "min_count"):
        asked, taken = (wanted or {}).get(name), getattr(counts, name)
        if asked not in (None, taken):
            raise DrkitError(
                f"the counts of {source.folder} were taken with {name} {taken}, and masker.{name}={asked} needs "
                f"others; look through a collection: --collection pydocs --set masker.{name}={asked}"
            )


def _generator(source: TextSource, masker: Any) -> Any:
    """What fills a generator's masks: made by the masker from the run's generator, where there are both."""
    from drkit.runs.checkpoints import GENERATOR, load_generator

    trained = source.folder / "pretrained" / GENERATOR  # beside the encoder
    folder = trained if trained.is_dir() else source.folder / GENERATOR
    if not isinstance(masker, ReplacingMasker) or not folder.is_dir():
        return None
    replacer: Any = masker.replacer(attrs.evolve(source.context(), generator=load_generator(folder)))
    return replacer.eval()


def _view(name: str, view: MaskedView, tokens: TokenBatch, source: TextSource, fill: Any) -> View:
    hidden = _inside(hidden_tokens(view)[0])
    if fill is not None and view.noise is not None:
        import torch

        with torch.no_grad():
            view, _ = fill(view, tokens, learn=False)
    ids, clean = _inside(view.ids[0]), _inside(tokens.ids[0])
    return View(name, tuple(_cell(*each, source) for each in zip(hidden, ids, clean, strict=True)))


def _cell(hidden: bool, token: int, clean: int, source: TextSource) -> Cell:
    if not hidden:
        return Cell(SEEN)
    if token == source.tokenizer.mask_token_id:
        return Cell(MASKED)
    return Cell(KEPT) if token == clean else Cell(REPLACED, source.tokenizer.decode([token]).strip())


def _rows(pattern: MaskedView, pieces: tuple[Piece, ...]) -> list[View]:
    """The rows of a visibility pattern bool[1,R,L]; row 0 belongs to [CLS], row i to the i-th token."""
    assert pattern.visible is not None
    named = ["[CLS]", *(piece.text for piece in pieces), "[SEP]"]
    rows = []
    for number, (row, name) in enumerate(zip(pattern.visible[0], named, strict=False)):
        cells = tuple(Cell(SEEN if sees else MASKED) for sees in row[1 : len(pieces) + 1].tolist())
        rows.append(View(f"row {number} {name}", cells, row=number))
    return rows


def _inside(row: Tensor) -> tuple[Any, ...]:
    """The values of a row i64[L] or bool[L] without [CLS] and [SEP]."""
    return tuple(row[1:-1].tolist())


def _notes(text: str, source: TextSource, draw: Draw, views: Views, fill: Any) -> Iterator[str]:
    """What the reader should know besides."""
    length = source.recipe.encoder.passage_length
    left_out = len(source.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) - (length - 2)
    if left_out > 0:
        yield f"the text is cut to {length} tokens, as in the run (encoder.passage_length): {left_out} are left out"
    if unknown := int((views.context.attention & ~views.context.maskable).sum()) - 2:
        yield f"{unknown} tokens are unknown to the vocabulary, or special; they are never hidden"
    if source.counts is None:
        yield f"{source.folder} has no n-gram counts, so the importance of tokens is not known"
    if views.decoder.noise is not None and fill is None:
        yield f"a generator fills the masks in training; {source.folder} has none, so its samples are not shown"
    if draw.rows:
        yield "a decoder that reads rows also hides from each row the token that the row rebuilds"
