"""What a run composed, and from which data: its recipe in words, counts of the collection, and samples of its texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from attrs import frozen

from drkit.commands.records import RunRecord
from drkit.core.registry import Registry
from drkit.core.spec import Kind
from drkit.recipe.schema import ENCODER, ITSELF, JUDGED, Choice, EncoderSettings, Finetune, Pretrain, Round
from drkit.recipe.toml import plain
from drkit.runs.work import describe_schedule, encoder_size

_SAMPLES = 3
_LONGEST = 300  # characters of a sample


@frozen
class Line:
    """One slot of the recipe: its label, what fills it, and the part's summary and settings in words."""

    label: str
    value: str
    note: str = ""


@frozen
class JudgedSample:
    """A query and one passage that is judged relevant to it, with the grade."""

    query: str
    passage: str
    grade: int


@frozen
class Data:
    """Counts of a collection as (what, number), samples of its passages, and of its judged queries."""

    counts: tuple[tuple[str, int], ...]
    passages: tuple[str, ...]
    judged: tuple[JudgedSample, ...]


def describe_recipe(run: RunRecord, registry: Registry) -> list[Line]:
    """Return the recipe of a run, slot by slot."""
    recipe = run.recipe
    lines = [Line("Collection", recipe.collection.use, _settings(recipe.collection.config))]
    lines.append(_encoder(recipe.encoder))
    if recipe.pretrain is not None:
        lines += _pretraining(recipe.pretrain, registry)
    else:
        lines.append(Line("Pre-training", "none"))
    if recipe.pseudo_queries is not None:
        pseudo = recipe.pseudo_queries
        lines.append(
            Line("Pseudo-queries", ", ".join(pseudo.sources), f"at most {pseudo.count} per passage and source")
        )
    if recipe.finetune is not None:
        lines += _finetuning(run, recipe.finetune, registry)
    else:
        lines.append(Line("Fine-tuning", "none"))
    if recipe.reranker is not None:
        source = recipe.reranker.pretrained or recipe.reranker.start
        lines.append(Line("Re-ranker", f"cross-encoder, from {source}", describe_schedule(recipe.reranker)))
    evaluation = recipe.evaluation
    found = f"{evaluation.depth:,} passages per query, {evaluation.index} index, {recipe.similarity} similarity"
    lines.append(Line("Evaluation", ", ".join(evaluation.measures), f"{evaluation.split} queries; {found}"))
    return lines


def _encoder(encoder: EncoderSettings) -> Line:
    reads = f"reads {encoder.query_length} tokens of a query, {encoder.passage_length} of a passage"
    size = encoder_size(encoder)
    if encoder.pretrained or size is None:
        return Line("Encoder", str(encoder.pretrained), f"{encoder.pooling} pooling; {reads}")
    layers_text = f"{encoder.layers} {encoder.architecture or 'transformer'} layer{'s' * (encoder.layers > 1)}"
    kind = layers_text if encoder.layers else "word vectors, no transformer layer"
    note = f"about {size.weights / 1e6:.1f}M parameters; {encoder.pooling} pooling; {reads}"
    return Line("Encoder", f"from scratch: {kind}", note)


def _pretraining(settings: Pretrain, registry: Registry) -> Iterator[Line]:
    yield _part("Encoder's masker", Kind.MASKER, settings.encoder.masker, registry)
    if settings.encoder.context != ITSELF:
        yield _part("Partner", Kind.CONTEXT, settings.encoder.context, registry)
    for name, task in settings.decoders.items():
        yield _part(f"Decoder {name}", Kind.DECODER, task.decoder, registry)
        if task.masker:
            yield _part("Its masker", Kind.MASKER, task.masker, registry)
        if task.context != ITSELF:
            yield _part("Its context", Kind.CONTEXT, task.context, registry)
    for name, (side, loss) in settings.losses().items():
        summary = registry.get(Kind.LOSS, loss.use).summary
        yield Line(
            f"Loss {name}",
            f"{loss.weight:g} \u00d7 {loss.use} on the {side if side == ENCODER else f'decoder {side}'}",
            summary,
        )
    yield Line("Pre-training", describe_schedule(settings), f"learning rate {settings.learning_rate:g}")


def _part(label: str, kind: Kind, choice: Choice, registry: Registry) -> Line:
    summary, settings = registry.get(kind, choice.use).summary, _settings(choice.config)
    return Line(label, choice.use, f"{summary}; {settings}" if settings else summary)


def _finetuning(run: RunRecord, settings: Finetune, registry: Registry) -> Iterator[Line]:
    yield _part("Fine-tuning loss", Kind.LOSS, settings.loss, registry)
    for one in settings.rounds:
        yield Line(f"Round {one.name}", _round(settings, one), _state(run, one))


def _round(settings: Finetune, one: Round) -> str:
    """Return a round in words: its queries, negatives, start, teacher and schedule."""
    whole = settings.for_round(one)
    queries = (
        "pseudo-queries"
        if one.pairs != JUDGED
        else f"{one.queries:,} training queries"
        if one.queries
        else "all training queries"
    )
    miners = " \u2192 ".join(miner.use for miner in one.miners)
    hard = f"{whole.negatives} hard negative{'s' * ((whole.negatives or 0) > 1)} from {miners}"
    negatives = hard if miners and whole.negatives else "in-batch negatives"
    words = [queries, negatives, f"starts from {one.start}", describe_schedule(whole)]
    words += [f"taught by {one.teacher}"] if one.teacher else []
    words += [f"{one.draws} draws"] if one.draws > 1 else []
    return ", ".join(words)


def _state(run: RunRecord, one: Round) -> str:
    """Return whether a round was left out for want of training queries."""
    is_made = any(name == one.name or name.startswith(f"{one.name}-draw-") for name in run.manifests)
    trains = run.collection is not None and "train" not in run.collection.splits() and one.pairs == JUDGED
    return "left out: the collection has no training queries" if trains and not is_made else ""


def _settings(config: Any) -> str:
    """Return the settings of a part in words."""
    table = plain(config)
    return ", ".join(f"{name} {_value(value)}" for name, value in table.items() if value not in (None, "", [], {}))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return "/".join(map(_value, value))
    return str(value)


def describe_data(run: RunRecord) -> Data | None:
    """Return counts and samples of a run's collection, or None if the run has not read it."""
    if run.collection is None:
        return None
    metrics = run.manifests["collection"].metrics
    counts = [("passages", int(metrics["passages"]))]
    counts += [(f"{split} queries", int(count)) for split, count in metrics["queries"].items()]
    counts += [(f"{split} judgements", int(count)) for split, count in metrics["judgements"].items()]
    corpus = run.collection.corpus
    indices = sorted({round(i * (len(corpus) - 1) / (_SAMPLES - 1)) for i in range(_SAMPLES)}) if len(corpus) else []
    passages = tuple(_cut(passage.content) for passage in corpus.at(indices))
    return Data(tuple(counts), passages, tuple(_judged_samples(run, metrics["queries"])))


def _judged_samples(run: RunRecord, splits: Mapping[str, int] | Sequence[str]) -> Iterator[JudgedSample]:
    """Yield a few queries with their best relevant passage: of the evaluated split, or of the first one."""
    collection = run.collection
    split = run.recipe.evaluation.split if run.recipe.evaluation.split in splits else next(iter(splits), None)
    if collection is None or split is None:
        return
    positives = collection.positives(split)
    for query in islice((q for q in collection.queries(split) if positives.get(q.query_id)), _SAMPLES):
        grades = positives[query.query_id]
        best = max(grades, key=lambda doc_id: grades[doc_id])
        passage = next(iter(collection.corpus.get_many([best])), None)
        yield JudgedSample(_cut(query.text), _cut(passage.content) if passage else best, grades[best])


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rstrip()} \u2026"
