"""What can be known of any text through a run: its tokens by the run's tokenizer, their importance by its counts.

A run that stands gives both; for a collection alone the first stages of a run are carried out in a cache folder
(vocabulary, tokens, n-gram counts: seconds for some thousand texts), and found there the next time.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from drkit.core.assigning import assign
from drkit.core.discovery import Installed
from drkit.core.layers import Wanted, compose, merge, part_table
from drkit.core.read import read_recipe, recipe_from_table
from drkit.core.recipe import Choice, Recipe
from drkit.core.spec import Kind
from drkit.core.types import BackboneInfo, BuildContext
from drkit.core.write import recipe_table
from drkit.data.extractive import extractive_queries
from drkit.data.importance import importance
from drkit.data.ngrams import NgramCounts
from drkit.data.store import TokenStore, tokenise
from drkit.errors import DrkitError
from drkit.runs.execute import RECIPE, execute
from drkit.runs.manifest import digest, read_manifest
from drkit.runs.plan import plan
from drkit.runs.stage import Stage, lasting_settings
from drkit.runs.stages.signals import FITTED
from drkit.runs.tokenizers import load_tokenizer
from drkit.signals.importance import COUNTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from drkit.core.types import TokenBatch
    from drkit.data.signals import SignalValues
    from drkit.runs.progress import Progress

IMPORTANCE = "importance"
COUNTED = f"signal-{IMPORTANCE}"


@frozen
class Piece:
    """A token of a text: its characters, whether a space stands before it, its importance where counts are known."""

    text: str
    spaced: bool
    importance: float | None = None


@frozen(slots=False)
class TextSource:
    """A run's folder, and the recipe it is looked at with."""

    folder: Path
    recipe: Recipe

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of the run."""
        return load_tokenizer(str(self.folder / "vocabulary"))

    @cached_property
    def counts(self) -> NgramCounts | None:
        """The n-gram counts of the run's texts, or None where its recipe took none."""
        stands = read_manifest(self.folder / COUNTED) is not None
        return NgramCounts(self.folder / COUNTED / FITTED / COUNTS) if stands else None

    def masker(self) -> Choice:
        """The recipe's masker."""
        if self.recipe.pretrain is None:
            raise DrkitError(
                f"the recipe of {self.folder} has no pre-training, so no masker; name one: --masker uniform"
            )
        return self.recipe.pretrain.masker

    def context(self) -> BuildContext:
        """What a masker is built with."""
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
            special_ids=tuple(sorted(tokenizer.all_special_ids)),
        )
        return BuildContext(backbone=backbone, tokenizer=tokenizer, seed=self.recipe.seed)

    def read(self, text: str, *, pmi: str = "fragment") -> tuple[TokenBatch, tuple[Piece, ...]]:
        """The text as a batch of one, laid out as in the run, and its pieces; cut to the recipe's `passage_length`.

        Raises DrkitError where the text has no words.
        """
        with self._stored(text, pmi) as (store, weights):
            tokens = store.batch([0], signals={} if weights is None else {IMPORTANCE: weights})
            values = None if weights is None else weights.values.tolist()
        if not bool(tokens.maskable.any()):
            raise DrkitError("the text has no words that the tokenizer knows; give a sentence or two")
        return tokens, tuple(_pieces(text, self.tokenizer, int(tokens.attention.sum()) - 2, values))

    def query_of(self, text: str) -> str:
        """The span of the text that tells most: the query that a run without a query generator takes for it.

        Raises DrkitError where the source has no counts.
        """
        with self._stored(text) as (store, weights):
            if weights is None:
                raise DrkitError(f"{self.folder} has no n-gram counts to find the most important span by")
            (start, stop), *_ = next(extractive_queries(store, weights, count=1))
        _, pieces = self.read(text)
        return "".join(f" {piece.text}" if piece.spaced else piece.text for piece in pieces[start:stop]).strip()

    @contextmanager
    def _stored(self, text: str, pmi: str = "fragment") -> Iterator[tuple[TokenStore, SignalValues | None]]:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            tokenise([("text", text)], self.tokenizer, folder, max_length=self.recipe.encoder.passage_length)
            store = TokenStore.open(folder)
            yield store, None if self.counts is None else importance(store, self.counts, folder, pmi=pmi)


def _pieces(text: str, tokenizer: Any, count: int, values: list[float] | None) -> Iterable[Piece]:
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    spans, ids = encoding["offset_mapping"][:count], encoding["input_ids"]
    end = 0
    for place, (start, stop) in enumerate(spans):
        # Some tokenizers count the space before a word as the word's.
        spaced = any(c.isspace() for c in text[end:start]) or text[start:stop][:1].isspace()
        # Tokens that share a character (bytes of one) are shown by their own name.
        shown = text[max(start, end) : stop].strip() or tokenizer.convert_ids_to_tokens(ids[place])
        yield Piece(shown, spaced, None if values is None else values[place])
        end = max(end, stop)


def of_run(run: Path, parts: Installed, *, masker: str | None = None, settings: Iterable[str] = ()) -> TextSource:
    """A run to look through; `masker` and `settings` (`masker.sigma=0.5`) change the recipe, not the run.

    Raises DrkitError where there is no run, it has no tokenizer yet, or a setting does not fit.
    """
    if not (run / RECIPE).is_file():
        raise DrkitError(
            f"no run at {run}; `drkit compose` makes one, or look through a collection: --collection pydocs"
        )
    if read_manifest(run / "vocabulary") is None:
        raise DrkitError(f"{run} has no tokenizer yet; `drkit run {run}` goes on where it was cut off")
    table = recipe_table(read_recipe(run / RECIPE, parts.registry))
    if "pretrain" not in table and (masker or settings):
        table["pretrain"] = recipe_table(compose(Wanted(), parts))["pretrain"]
    if masker:
        table = merge(table, {"pretrain": {"masker": part_table(Kind.MASKER, masker, parts.registry)}})
    for assignment in settings:
        assign(table, spelled_out(assignment))
    return TextSource(run, recipe_from_table(table, parts.registry))


@frozen
class Counting:
    """A collection whose vocabulary and n-gram counts are wanted: its recipe, the stages to do, and where."""

    recipe: Recipe
    stages: tuple[Stage[Any], ...]
    folder: Path

    @property
    def stands(self) -> bool:
        """Whether it was all done before."""
        return all(read_manifest(self.folder / stage.name) is not None for stage in self.stages)

    def carry_out(self, parts: Installed, progress: Progress) -> TextSource:
        """Do the stages that do not stand yet."""
        execute(self.stages, self.folder, self.recipe, registry=parts.registry, progress=progress, redo=True)
        return TextSource(self.folder, self.recipe)


def of_collection(wanted: Wanted, parts: Installed, *, cache: Path | None = None) -> Counting:
    """What gives a collection's vocabulary and n-gram counts, in `cache` (`cache_folder()` where None).

    `wanted`: what `drkit compose` would be asked for. Raises DrkitError where it cannot be composed or found.
    """
    asked = attrs.evolve(wanted, settings=tuple(map(spelled_out, wanted.settings)), name="inspected")
    recipe = compose(asked, parts)
    stages = counting_stages(recipe, parts)
    known = digest([[stage.name, lasting_settings(stage.settings), dict(stage.sources)] for stage in stages])
    return Counting(recipe, tuple(stages), (cache or cache_folder()) / known[:16])


def counting_stages(recipe: Recipe, parts: Installed) -> list[Stage[Any]]:
    """The stages of a run up to its n-gram counts, whether or not the recipe's own masker asks for them."""
    config = parts.registry.get(Kind.MASKER, "pmi").config
    pretrain = recipe.pretrain
    if pretrain is not None and pretrain.masker.use != "pmi":
        pretrain = attrs.evolve(pretrain, masker=Choice("pmi", config()))
    planned = {stage.name: stage for stage in plan(attrs.evolve(recipe, pretrain=pretrain), parts.registry).stages}
    wanted, kept = [COUNTED], set()
    while wanted:
        name = wanted.pop()
        kept.add(name)
        wanted += [need for need in planned[name].needs if need not in kept]
    return [stage for name, stage in planned.items() if name in kept]


def spelled_out(assignment: str) -> str:
    """`masker.sigma=1` as `pretrain.masker.sigma=1`; anything else as it is.

    >>> spelled_out("masker.sigma=0.5")
    'pretrain.masker.sigma=0.5'
    """
    return f"pretrain.{assignment}" if assignment.startswith(("masker.", "masker=")) else assignment


def cache_folder() -> Path:
    """Where vocabularies and counts of collections are kept: `$DRKIT_CACHE`, else `drkit` in the user's cache."""
    given = os.environ.get("DRKIT_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else base / "drkit"
