"""The tokenizer and n-gram counts that inspection needs, from the folder of a run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from drkit.core.checksums import check_unchanged
from drkit.core.files import TRAINING, read_json
from drkit.core.registry import Installed, Registry
from drkit.core.spec import MADE_FOR_PRETRAINING, Choice, Kind
from drkit.core.types import BackboneInfo, BuildContext, TokenBatch
from drkit.data.arrays import SignalValues
from drkit.data.contexts import PretrainingTexts
from drkit.data.counts import NgramCounts
from drkit.data.queries import extractive_queries
from drkit.data.special_tokens import special_ids
from drkit.data.spelling import token_text
from drkit.data.store import TokenStore, tokenise
from drkit.errors import DrkitError
from drkit.recipe.compose import ComposeRequest, compose, masker_table, merge
from drkit.recipe.schema import MAIN, PRETRAINED, DecoderTask, Pretrain, Recipe
from drkit.recipe.start import RECIPE
from drkit.recipe.toml import assign, read_recipe, recipe_from_table, recipe_table
from drkit.runs.manifest import read_manifest
from drkit.runs.stages.texts import FITTED
from drkit.signals.pmi import NGRAM_COUNTS, importance
from drkit.train.checkpoints import load_tokenizer

IMPORTANCE = "importance"
COUNTS_STAGE = f"signal-{IMPORTANCE}"


@frozen
class Piece:
    """A token of a text: its characters, whether a space precedes it, and its importance if counts are available."""

    text: str
    spaced: bool
    importance: float | None = None


@frozen(slots=False)
class TextSource:
    """A run's folder, and the recipe used for inspection (the run's own, or with changed settings)."""

    folder: Path
    recipe: Recipe

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer that the run made; its files are compared with their hashes first."""
        check_unchanged(self.folder / "vocabulary")
        return load_tokenizer(str(self.folder / "vocabulary"))

    @cached_property
    def counts(self) -> NgramCounts | None:
        """The n-gram counts of the run's texts, or None if its recipe does not compute them."""
        if read_manifest(self.folder / COUNTS_STAGE) is None:
            return None
        check_unchanged(self.folder / COUNTS_STAGE)
        return NgramCounts(self.folder / COUNTS_STAGE / FITTED / NGRAM_COUNTS)

    def pretrain(self) -> Pretrain:
        """Return the recipe's pre-training. Raises DrkitError if it has none."""
        if self.recipe.pretrain is None:
            raise DrkitError(
                f"the recipe of {self.folder} has no pre-training and therefore no masker; choose one: --masker uniform"
            )
        return self.recipe.pretrain

    def progress(self, step: int) -> float:
        """Return a step's progress, as a share of the steps of pre-training.

        Raises DrkitError if the run does not know its steps, or has fewer.
        """
        steps, trained = self.pretrain().max_steps, self.folder / PRETRAINED / TRAINING
        if steps < 0 and trained.is_file():
            steps = int(read_json(trained, "resume the run")["steps"])
        if steps < 0:
            raise DrkitError(
                f"the recipe of {self.folder} counts epochs, so its steps are known once it is trained: leave --step "
                f"out, or --set pretrain.max_steps=N"
            )
        if step > steps:
            raise DrkitError(f"--step {step:,} is after the last of {steps:,} steps of pre-training")
        return step / steps

    def decoder(self) -> DecoderTask | None:
        """Return the first decoder of the recipe's pre-training, `main` on the command line; None without one."""
        return next(iter(self.pretrain().decoders.values()), None)

    def context(self) -> BuildContext:
        """Return the context that a masker is built with."""
        tokenizer, encoder = self.tokenizer, self.recipe.encoder
        backbone = BackboneInfo(
            hidden=encoder.hidden,
            heads=encoder.heads,
            intermediate=encoder.intermediate,
            layers=encoder.layers,
            vocab=len(tokenizer),
            max_positions=encoder.passage_length,
            mask_id=tokenizer.mask_token_id,
            pad_id=tokenizer.pad_token_id,
            special_ids=special_ids(tokenizer),
        )
        return BuildContext(backbone=backbone, tokenizer=tokenizer, seed=self.recipe.seed)

    def read(self, text: str, *, pmi: str = "fragment", ends: str = "fitting") -> tuple[TokenBatch, tuple[Piece, ...]]:
        """Tokenize the text as in the run, truncated to `passage_length`; returns a batch of one, and its pieces.

        Raises DrkitError if the text has no known words.
        """
        with self._stored(text, pmi, ends) as (store, weights):
            tokens = store.batch([0], signals={} if weights is None else {IMPORTANCE: weights})
            values = None if weights is None else weights.values.tolist()
        if not bool(tokens.maskable.any()):
            raise DrkitError("the text has no words that the tokenizer knows; give one or two sentences")
        return tokens, tuple(_pieces(text, self.tokenizer, int(tokens.attention.sum()) - 2, values))

    def context_of(self, text: str, chosen: Choice, registry: Registry, *, seed: int, epoch: int) -> str | None:
        """Return the text that a context makes of a text alone; None if the context needs other texts."""
        spec = registry.get(Kind.CONTEXT, chosen.use)
        if {*spec.requires_of(chosen.config)} & {*MADE_FOR_PRETRAINING}:
            return None
        context = registry.build(Kind.CONTEXT, chosen.use, chosen.config, self.context())
        with self._stored(text) as (store, _):
            texts = PretrainingTexts(store)
            found = context(texts.batch(np.zeros(1, np.int64)), texts, seed=seed, epoch=epoch)
            ids = found.ids[0][found.attention[0]].tolist()
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def query_of(self, text: str) -> str:
        """Return the most important span of the text, which a run without a query generator uses as its query.

        Raises DrkitError if the source has no counts.
        """
        with self._stored(text) as (store, weights):
            if weights is None:
                raise DrkitError(
                    f"{self.folder} has no n-gram counts, which are needed to find the most important span; use a run "
                    f"composed with --masker pmi"
                )
            (start, stop), *_ = next(extractive_queries(store, weights, count=1))
        _, pieces = self.read(text)
        return "".join(f" {piece.text}" if piece.spaced else piece.text for piece in pieces[start:stop]).strip()

    @contextmanager
    def _stored(
        self, text: str, pmi: str = "fragment", ends: str = "fitting"
    ) -> Iterator[tuple[TokenStore, SignalValues | None]]:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            tokenise([("text", text)], self.tokenizer, folder, max_length=self.recipe.encoder.passage_length)
            store = TokenStore.open(folder)
            yield store, None if self.counts is None else importance(store, self.counts, folder, pmi=pmi, ends=ends)


def _pieces(text: str, tokenizer: Any, count: int, values: list[float] | None) -> Iterable[Piece]:
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    spans, ids = encoding["offset_mapping"][:count], encoding["input_ids"]
    end = 0
    for position, (start, stop) in enumerate(spans):
        # Some tokenizers include the space before a word in its span.
        spaced = any(c.isspace() for c in text[end:start]) or text[start:stop][:1].isspace()
        # Tokens that share a character (its bytes) are shown by name.
        shown = text[max(start, end) : stop].strip() or token_text(tokenizer, ids[position])
        yield Piece(shown, spaced, None if values is None else values[position])
        end = max(end, stop)


def run_source(run: Path, parts: Installed, *, masker: str | None = None, settings: Iterable[str] = ()) -> TextSource:
    """Open a run for inspection; `masker` and `settings` (`masker.sigma=0.5`) change the recipe, but not the run.

    masker: that of the decoder `main`, or of the encoder without such a decoder.

    Raises DrkitError if the run does not exist or has no tokenizer, or a setting is invalid.
    """
    if not (run / RECIPE).is_file():
        raise DrkitError(f"run not found: {run}; create one with `drkit compose`")
    if read_manifest(run / "vocabulary") is None:
        raise DrkitError(f"{run} has no tokenizer; resume it with `drkit run {run}`")
    table = recipe_table(read_recipe(run / RECIPE, parts.registry))
    if "pretrain" not in table and (masker or settings):
        table["pretrain"] = recipe_table(compose(ComposeRequest(), parts))["pretrain"]
    if masker:
        decoders = table["pretrain"]["decoders"]
        task = decoders[MAIN] if MAIN in decoders else table["pretrain"]["encoder"]
        task |= merge({"masker": task["masker"]}, {"masker": masker_table(masker, task, parts.registry)})
    for assignment in settings:
        assign(table, full_path(assignment))
    return TextSource(run, recipe_from_table(table, parts.registry))


def full_path(assignment: str) -> str:
    """Expand `masker.sigma=1` to the setting of the decoder's masker; return anything else unchanged.

    >>> full_path("masker.sigma=0.5")
    'pretrain.decoders.main.masker.sigma=0.5'
    """
    return f"pretrain.decoders.{MAIN}.{assignment}" if assignment.startswith(("masker.", "masker=")) else assignment
