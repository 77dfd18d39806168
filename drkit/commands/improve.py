"""From an existing encoder, texts and labels to a recipe that fits a number of minutes, for `drkit improve`.

The labelled queries are cross-validated, unless the collection has its own queries to evaluate on, or many labels and
little time hold a share out. Where they are too few to learn from, and beside them where the minutes reach, a retriever
learns from queries that are made from the texts: its labelled queries are all unseen. Without labels, queries made from
held-out texts are evaluated, which decide nothing.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from drkit.core.files import MANIFEST, local_path, replacing_folder
from drkit.core.protocols import Collection, EstimatesSize
from drkit.core.quantities import counted
from drkit.core.registry import Installed
from drkit.core.spec import Kind
from drkit.core.types import Passage
from drkit.data.queries import LEAST_WORDS, gives_query
from drkit.encoders.architectures import check_start_model
from drkit.encoders.card import EncoderCard
from drkit.encoders.declarations import MODULES
from drkit.encoders.folder import PRECISIONS
from drkit.errors import DrkitError
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.schema import JUDGED, LEARNED_PAIRS, PSEUDO, Recipe
from drkit.recipe.start import RECIPE, find_collection
from drkit.recipe.toml import read_recipe, toml_value
from drkit.runs.budget import HELD_OUT, SHORT, fit_budget, hold_out, is_held_out, run_minutes
from drkit.runs.costs import RUNS, Rates, collection_size, earlier_rates, has_gpu, machine_memory
from drkit.runs.stage import declared_card, settings_from
from drkit.runs.work import encoder_size
from drkit.train.speed import TIMED_TEXTS, Speed, measure_speed

_NAME = "improve"
# Labelled queries below which none is learned from, and below which a split has too few to evaluate on.
_FEWEST = 20
# Of queries made from texts: as many as the steps that a training should have read, and the passages that are held out
# to evaluate on where there are no labels, or this share of few passages.
_MADE, _HELD_OUT, _HELD_OUT_SHARE = 800, 300, 5
_NO_MADE = "no row of training on queries made from the texts, beside that on labels"
# The collection that reads texts and labels as people have them.
_LABELLED = "labelled"
# The speed is measured with texts from all of a collection, but not from beyond this one.
_FURTHEST = 30_000


@frozen
class Labels:
    """The labelled queries of a collection: queries with a relevant passage by split, and the judged passages."""

    queries: Mapping[str, int]
    judged: int

    @property
    def evaluated(self) -> str:
        """The split to evaluate on: test or dev queries beside training queries, else the one with most queries."""
        others = [split for split in ("test", "dev") if self.queries.get(split, 0) >= _FEWEST]
        if self.learned >= _FEWEST and others:
            return others[0]
        return max(self.queries, key=lambda split: self.queries[split])

    @property
    def learned(self) -> int:
        """The number of training queries."""
        return self.queries.get("train", 0)

    @property
    def learned_from(self) -> int:
        """The number of queries that a retriever learns from."""
        return self.queries[self.evaluated] if self.is_cross_validated else self.learned

    @property
    def are_enough(self) -> bool:
        """Whether there are enough to learn from."""
        return sum(self.queries.values()) >= _FEWEST and self.learned_from >= _FEWEST

    @property
    def is_cross_validated(self) -> bool:
        """Whether the evaluated queries are those that are learned from."""
        return self.evaluated == "train" or self.learned < _FEWEST


@frozen
class Improvement:
    """A recipe that improves an encoder in some minutes, notes for the user, and the rates it was fitted with."""

    recipe: Recipe
    notes: tuple[str, ...] = ()
    rates: Rates | None = None


def name_collection(texts: Sequence[str], labels: Sequence[str], parts: Installed) -> tuple[str, tuple[str, ...]]:
    """Return the name of the collection of some texts and labels, and its settings.

    texts: paths, or one name that `--collection` takes. labels: files of labelled queries.

    Raises DrkitError for paths that do not exist or that no format can read.
    """
    if len(texts) == 1 and not labels:
        return find_collection(texts[0], parts), ()
    named = next((one for one in texts if one.partition(":")[0] in parts.registry.names(Kind.COLLECTION)), None)
    if named is not None:
        also = "labels of its own" if labels else "further texts"
        raise DrkitError(f"--texts {named} is a collection, which cannot get {also}: give the paths of your files")
    settings = {"more_texts": list(texts[1:]), "labels": list(labels)}
    paths = (f"collection.{name}={toml_value(paths)}" for name, paths in settings.items() if paths)
    return f"{_LABELLED}:{texts[0]}", tuple(paths)


def count_labels(source: Any) -> Labels:
    """Return the labelled queries of a collection, which is read."""
    queries, judged = {}, set[str]()
    for split in source.splits():
        known, answered = {query.query_id for query in source.queries(split)}, set[str]()
        for judgement in source.judgements(split):
            judged.add(judgement.doc_id)
            if judgement.relevance > 0 and judgement.query_id in known:
                answered.add(judgement.query_id)
        queries[split] = len(answered)
    return Labels(queries, len(judged))


def name_run(encoder: str, collection: str, settings: Sequence[str], parts: Installed) -> str:
    """Return the name of the run of an encoder on a collection: that of the texts, and `improve`."""
    return _compose(encoder, collection, settings, (), parts).name


def fit(
    encoder: str,
    collection: str,
    parts: Installed,
    *,
    settings: Sequence[str] = (),
    minutes: float = 10.0,
) -> Improvement:
    """Return a recipe that tunes and evaluates an encoder in about this many minutes on this machine.

    collection, settings: see `NamedCollection`. Reads the labels, and measures for some seconds how fast the encoder
    reads and learns. Raises DrkitError if the encoder or the collection cannot be read.
    """
    check_start_model(encoder)
    base = _compose(encoder, collection, settings, (), parts)
    source = parts.registry.build(Kind.COLLECTION, base.collection.use, base.collection.config)
    labels = count_labels(source)
    some = _some_passages(source)
    pairs, notes = _pairs(labels, some)
    length = base.encoder.passage_length
    speed = measure_speed(
        encoder,
        [passage.content for passage in some],
        length=length,
        learned_length=min(length, SHORT),
        pooling=base.encoder.pooling.use,
    )
    own = [f"encoder.precision={speed.precision}", f"finetune.bf16={str(speed.precision != PRECISIONS[0]).lower()}"]
    own += [f"finetune.loss.similarity={_similarity(encoder, base)}", *_evaluation(labels, source)]

    def composed(pairs: Sequence[str], *numbers: str) -> Recipe:
        return learning_from(_compose(encoder, collection, settings, (*own, *numbers), parts), pairs)

    first = composed(pairs[:1])
    if first.finetune is None:  # no labels and no queries from texts, or as the user sets it
        return Improvement(first, notes)
    fitted = _fitted(first, parts, source, labels, speed, minutes=minutes)
    numbers = _fitted_numbers(fitted.recipe)  # what the user sets is not fitted
    recipe = composed(pairs, *numbers)
    size = collection_size(recipe, source, Path("runs") / recipe.name)
    if len(pairs) > 1 and fitted.rates and size:
        needed = math.ceil(run_minutes(recipe, parts.registry, size, fitted.rates))
        if needed > minutes:
            recipe, notes = composed(pairs[:1], *numbers), (*notes, f"{_NO_MADE}: --minutes {needed} reaches for both")
    return evolve(fitted, recipe=recipe, notes=(*notes, *fitted.notes))


def _pairs(labels: Labels, some: Sequence[Passage]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what retrievers learn from, the most telling first, and notes for the user; some: of the passages.

    Raises DrkitError if there is nothing to evaluate on.
    """
    count, telling = sum(labels.queries.values()), sum(gives_query(passage) for passage in some)
    can_make = telling * _HELD_OUT_SHARE >= len(some) > 0
    if labels.are_enough:
        return (LEARNED_PAIRS, ()) if can_make else ((JUDGED,), (f"{_NO_MADE}: these are too short",))
    if not can_make and not count:
        raise DrkitError(
            f"there are no labelled queries, and no queries can be made from these texts: {telling} of "
            f"{counted(len(some), 'text')} have a title or {LEAST_WORDS} words. Give at least {_FEWEST} queries with "
            f"their passages (--labels FILE)"
        )
    if not count:
        return (PSEUDO,), (
            "no labelled queries: tunes on queries made from the texts, and measures on those of held-out texts; they "
            "cannot show that an encoder is better for your users, so your checkpoint is exported as it is",
        )
    few = f"{count:,} labelled queries are too few to learn from (at least {_FEWEST})"
    if not can_make:
        return (), (f"{few}, and the texts too short to make queries from: the encoder is only evaluated",)
    return (PSEUDO,), (
        f"{few}: they measure the encoder, and one that is tuned on queries made from the texts, alone and with BM25",
    )


def _evaluation(labels: Labels, source: Any) -> list[str]:
    """Return the settings of which queries are evaluated; without labelled ones, made queries of held-out texts."""
    if not any(labels.queries.values()):
        size = source.size() if isinstance(source, EstimatesSize) else None
        held_out = min(_HELD_OUT, size.passages // _HELD_OUT_SHARE) if size else _HELD_OUT
        return [f"evaluation.split={PSEUDO}", f"pseudo_queries.held_out={max(held_out, 1)}"]
    folds = ["evaluation.folds=5"] if labels.are_enough and labels.is_cross_validated else []
    return [f"evaluation.split={labels.evaluated}", *folds]


def learning_from(recipe: Recipe, pairs: Sequence[str]) -> Recipe:
    """Return the recipe with those of its rounds that learn from these pairs alone."""
    if recipe.finetune is None:
        return recipe
    rounds = tuple(one for one in recipe.finetune.rounds if one.pairs in pairs)
    made = recipe.pseudo_queries if any(one.pairs == PSEUDO for one in rounds) else None
    return evolve(recipe, finetune=evolve(recipe.finetune, rounds=rounds) if rounds else None, pseudo_queries=made)


def _some_passages(source: Any) -> list[Passage]:
    """Return a few passages from all of a collection: those at its beginning may be shorter, or longer, than others."""
    size = source.size() if isinstance(source, EstimatesSize) else None
    spread = max(min(size.passages, _FURTHEST) // TIMED_TEXTS, 1) if size else 1
    return list(islice(source.passages(), 0, spread * TIMED_TEXTS, spread))


def _compose(encoder: str, collection: str, settings: Sequence[str], own: Sequence[str], parts: Installed) -> Recipe:
    """Return the recipe of a collection; the user's settings come last."""
    request = ComposeRequest(
        paper=_NAME, encoder=encoder, collection=collection, settings=(*own, *settings), scale="paper"
    )
    return compose(request, parts)


def _fitted_numbers(recipe: Recipe) -> list[str]:
    """Return the settings of a recipe that are fitted to the minutes."""
    assert recipe.finetune is not None
    numbers: dict[str, Any] = {
        "finetune.max_steps": recipe.finetune.max_steps,
        "finetune.gradient_cache_chunk": recipe.finetune.gradient_cache_chunk,
        "finetune.passage_length": recipe.finetune.passage_length,
        "evaluation.folds": recipe.evaluation.folds,
        "evaluation.passages": recipe.evaluation.passages,
    }
    if is_held_out(recipe):
        numbers |= {"evaluation.folds": "none", "evaluation.split": "test", "collection.test_share": HELD_OUT}
    return [f"{path}={value}" for path, value in numbers.items() if value is not None]


def _similarity(encoder: str, recipe: Recipe) -> str:
    """Return the similarity that an encoder folder declares; that of the recipe if it declares none."""
    return declared_card(encoder, settings_from(EncoderCard, recipe)).similarity


def _fitted(
    recipe: Recipe, parts: Installed, source: Collection, labels: Labels, speed: Speed, *, minutes: float
) -> Improvement:
    run = RUNS / recipe.name
    model, size = encoder_size(recipe.encoder), collection_size(recipe, source, run)
    if model is None or size is None:
        return Improvement(recipe, ("the time is not known: the sizes of the encoder and the texts are not in files",))
    length = size.passage_tokens(recipe.encoder.passage_length)
    rates = earlier_rates(run).calibrated(
        model, read=speed.read, learned=speed.learned, length=length, learned_length=min(length, SHORT)
    )
    found = fit_budget(
        recipe,
        parts.registry,
        size,
        rates,
        minutes=minutes,
        labels=labels.learned_from if labels.are_enough else _MADE,
        judged=labels.judged,
        memory=None if has_gpu() else machine_memory() // 2,
    )
    return Improvement(found.recipe, found.notes, rates)


def resumed(run: Path, encoder: str, collection: str, settings: Sequence[str], parts: Installed) -> Recipe | None:
    """Return the recipe of a run folder that improves the same encoder on the same collection; None without a run.

    Raises DrkitError for the folder of another run.
    """
    if not (run / RECIPE).is_file():
        return None
    found = read_recipe(run / RECIPE, parts.registry)
    asked = _compose(encoder, collection, settings, (), parts)
    if is_held_out(found) and asked.collection.use == found.collection.use:
        asked = hold_out(asked)
    for what, one, other in (
        ("encoder", found.encoder.pretrained, asked.encoder.pretrained),
        ("collection", found.collection, asked.collection),
    ):
        if one != other:
            raise DrkitError(f"{run} is a run of another {what} ({one}); choose another folder with --run-dir")
    return found


def encoder_folder(path_or_id: str) -> str:
    """Return the folder of the exported encoder of a run; anything else as it is."""
    folder = local_path(path_or_id) / "encoder"
    return str(folder) if (folder.parent / RECIPE).is_file() and (folder / MODULES).is_file() else path_or_id


def copy_encoder(run: Path, output: Path) -> None:
    """Copy the encoder folder of a run, without its manifest. Raises DrkitError if the output exists."""
    refuse_existing(output)
    with replacing_folder(output) as folder:
        shutil.copytree(run / "encoder", folder, ignore=shutil.ignore_patterns(MANIFEST), dirs_exist_ok=True)


def refuse_existing(output: Path) -> None:
    """Raise DrkitError if a path exists that an encoder folder is to be written to."""
    if output.exists():
        raise DrkitError(f"{output} exists and is not overwritten; remove it, or choose another folder with -o")
