"""Stages on the texts of a run: what is read, once, and computed before any training.

`collection` is checked and stored as Arrow; the vocabulary is taken from the encoder (`existing-vocabulary`) or trained
(`wordpiece-vocabulary`); `passage-tokens` and `query-tokens` are memory-mapped; `spans` are parts of documents, for
pre-training on pairs of them; a `signal` is a number per token, text or vocabulary entry, and `query-signal` the same
for candidate queries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from drkit.core.files import CHECKPOINTS
from drkit.core.protocols import FittedSignal
from drkit.core.spec import Kind
from drkit.errors import DrkitError
from drkit.recipe.schema import Choice
from drkit.runs.stage import TRUNCATED, Stage, StageRun, StageSpec, Truncation, from_recipe, record_truncations
from drkit.runs.work import Sizes, Work

if TYPE_CHECKING:
    from drkit.data.store import StoredTexts


NO_SCORES = (
    "the teacher 'given' reads scores from the training rows, but they have none (pos_scores and neg_scores, beside "
    "pos and neg); name a cross-encoder as finetune.rounds.N.teacher"
)


@frozen
class CollectionSettings:
    """The collection. The others only check it: large enough for the index; scored: it has a teacher's scores."""

    collection: Choice = from_recipe("collection")
    index: str = from_recipe("evaluation.index", observes=True)
    hidden: int = from_recipe("encoder.hidden", observes=True)
    scored: bool = field(default=False, metadata={"observes": True})


def store_collection(stage: StageRun[CollectionSettings]) -> Mapping[str, Any]:
    """Write passages, queries and judgements; returns their counts and the collection's description."""
    from drkit.core.file_parts import FileParts
    from drkit.data.pairs import PairTables
    from drkit.data.writing import write_collection
    from drkit.search.index import IvfPq, fit_settings

    choice, parts = stage.settings.collection, FileParts(stage.folder / CHECKPOINTS / "passages")
    collection = stage.registry.build(Kind.COLLECTION, choice.use, choice.config)
    counts = write_collection(collection, stage.folder, parts=parts, engine=stage.engine)
    if counts["dropped_judgements"]:
        stage.progress.note(f"{counts['dropped_judgements']:,} judgements with unknown ids were left out")
    tables = getattr(collection, "tables", None)
    for note in tables.notes() if isinstance(tables, PairTables) else ():
        stage.progress.note(note)
    if counts["empty_passages"]:
        stage.progress.note(f"{counts['empty_passages']:,} passages have no text and can never be found")
    scored = counts.get("teacher_scores", 0)
    if scored:
        use = "used" if stage.settings.scored else "not used; a round with teacher=given and the miner given uses them"
        stage.progress.note(f"{scored:,} teacher scores in the training rows: {use}")
    elif stage.settings.scored:  # fail now, not after training
        raise DrkitError(NO_SCORES)
    if stage.settings.index == "ivf-pq":
        fit_settings(IvfPq(), counts["passages"], stage.settings.hidden)
    return {**counts, "description": dict(collection.describe())}


# Bytes of the texts for each token.
_TEXT_BYTES = 5.3


def _collection_work(_stage: Stage[CollectionSettings], sizes: Sizes) -> Work:
    return Work(parallel=sizes.collection.reading * sizes.passages, disk=_TEXT_BYTES * sizes.tokens)


COLLECTION = StageSpec(
    name="collection",
    version=2,
    settings=CollectionSettings,
    run=store_collection,
    folders=("collection",),
    work=_collection_work,
)


@frozen
class WordPieceSettings:
    """Settings of a vocabulary trained on the collection."""

    vocab_size: int = from_recipe("encoder.vocab_size")
    mark_repeats: bool = from_recipe("encoder.mark_repeats")


@frozen
class ExistingVocabularySettings:
    """The encoder whose tokenizer is used; the lengths are only used to check that it has enough positions."""

    pretrained: str = from_recipe("encoder.pretrained")
    query_length: int = from_recipe("encoder.query_length", observes=True)
    passage_length: int = from_recipe("encoder.passage_length", observes=True)


def train_vocabulary(stage: StageRun[WordPieceSettings]) -> Mapping[str, Any]:
    """Train a WordPiece vocabulary and write its tokenizer; returns its size."""
    from drkit.data.vocabulary import train_wordpiece

    size, repeats = stage.settings.vocab_size, stage.settings.mark_repeats
    return {"vocabulary": len(train_wordpiece(_vocabulary_texts(stage), stage.folder, size=size, repeats=repeats))}


def copy_tokenizer(stage: StageRun[ExistingVocabularySettings]) -> Mapping[str, Any]:
    """Write the tokenizer of the encoder; returns the size of its vocabulary."""
    from drkit.encoders.architectures import check_vocabulary
    from drkit.encoders.masked_lm import check_start, read_config
    from drkit.train.checkpoints import load_tokenizer, save_tokenizer

    settings = stage.settings
    check_start(settings.pretrained, length=max(settings.passage_length, settings.query_length))
    tokenizer = load_tokenizer(settings.pretrained)
    check_vocabulary(tokenizer, read_config(settings.pretrained), settings.pretrained)
    save_tokenizer(tokenizer, stage.folder)
    return {"vocabulary": len(tokenizer)}


def _vocabulary_texts(stage: StageRun[Any]) -> Iterator[str]:
    """Yield every passage and training query; dev and test queries stay unseen."""
    from drkit.data.corpus import StoredCorpus, read_queries

    yield from (passage.content for passage in StoredCorpus(stage.inputs["passages"]))
    if "queries" in stage.inputs:
        yield from (query.text for query in read_queries(stage.inputs["queries"]))


# Seconds for each token: counting words, tokenising passages and queries. Bytes of each token that is kept.
_COUNTED, _TOKENISED, _QUERY_TOKENISED, _TOKEN_BYTES = 2.2e-6, 4.8e-6, 3.6e-6, 6.1


def _vocabulary_work(_stage: Stage[WordPieceSettings], sizes: Sizes) -> Work:
    return Work(parallel=_COUNTED * sizes.tokens)


WORDPIECE = StageSpec(
    name="wordpiece-vocabulary",
    version=3,
    settings=WordPieceSettings,
    run=train_vocabulary,
    inputs={"passages": "texts to train on", "queries": "training queries"},
    folders=("vocabulary",),
    work=_vocabulary_work,
)
EXISTING_VOCABULARY = StageSpec(
    name="existing-vocabulary",
    version=1,
    settings=ExistingVocabularySettings,
    run=copy_tokenizer,
    folders=("vocabulary",),
)


@frozen
class PassageSettings:
    """Length limit and prompt of passages."""

    length: int = from_recipe("encoder.passage_length")
    prompt: str = from_recipe("encoder.passage_prompt")


@frozen
class QuerySettings:
    """Length limit and prompt of queries."""

    length: int = from_recipe("encoder.query_length")
    prompt: str = from_recipe("encoder.query_prompt")


def tokenise_passages(stage: StageRun[PassageSettings]) -> Mapping[str, Any]:
    """Write a memory-mapped store of all passages, from blocks of an engine; returns counts, with truncated texts."""
    from drkit.core.engine import Loaded
    from drkit.core.file_parts import FileParts
    from drkit.data.corpus import StoredCorpus
    from drkit.data.store import tokenise_in_blocks
    from drkit.train.checkpoints import load_tokenizer

    settings, what = stage.settings, ("passages", "encoder.passage_length")
    corpus, parts = Loaded(StoredCorpus, stage.inputs["passages"]), FileParts(stage.folder / CHECKPOINTS / "tokens")
    if not parts.are_needed(stage.engine):
        return _tokenise(stage, ((passage.doc_id, passage.content) for passage in corpus.value), *what)
    counts = tokenise_in_blocks(
        corpus,
        Loaded(load_tokenizer, str(stage.inputs["vocabulary"])),
        stage.folder,
        max_length=settings.length,
        prompt=settings.prompt,
        parts=parts,
        engine=stage.engine,
        on_progress=lambda done: stage.progress.advance(done, len(corpus.value), "passages"),
    )
    _record_truncated(stage, counts, *what)
    return counts


def tokenise_queries(stage: StageRun[QuerySettings]) -> Mapping[str, Any]:
    """Write a memory-mapped store of the training queries; returns counts, including truncated texts."""
    return _tokenise_queries(stage, "training queries")


def tokenise_pseudo_queries(stage: StageRun[QuerySettings]) -> Mapping[str, Any]:
    """Write a memory-mapped store of the pseudo-queries; returns counts, including truncated texts."""
    return _tokenise_queries(stage, "pseudo-queries")


def _tokenise_queries(stage: StageRun[QuerySettings], what: str) -> Mapping[str, Any]:
    from drkit.data.corpus import read_queries

    queries = read_queries(stage.inputs["queries"])
    return _tokenise(stage, ((query.query_id, query.text) for query in queries), what, "encoder.query_length")


def _tokenise(stage: StageRun[Any], texts: Iterator[tuple[str, str]], what: str, setting: str) -> Mapping[str, Any]:
    from drkit.data.store import tokenise
    from drkit.train.checkpoints import load_tokenizer

    settings = stage.settings
    tokenizer = load_tokenizer(str(stage.inputs["vocabulary"]))
    counts = tokenise(texts, tokenizer, stage.folder, max_length=settings.length, prompt=settings.prompt)
    _record_truncated(stage, counts, what, setting)
    return counts


def _record_truncated(stage: StageRun[Any], counts: Mapping[str, Any], what: str, setting: str) -> None:
    lengths = {name: int(counts[name]) for name in ("texts", "truncated", "longest", "p95")}
    record_truncations([Truncation(what, setting, stage.settings.length, **lengths)], stage.folder, stage.progress)


def _passage_work(stage: Stage[PassageSettings], sizes: Sizes) -> Work:
    kept = sizes.passage_tokens(stage.settings.length)
    return Work(parallel=_TOKENISED * sizes.tokens, disk=_TOKEN_BYTES * kept)


def _query_work(stage: Stage[QuerySettings], sizes: Sizes) -> Work:
    tokens = sizes.count(str(stage.inputs["queries"])) * sizes.collection.query_tokens()
    return Work(parallel=_QUERY_TOKENISED * tokens, disk=_TOKEN_BYTES * tokens)


_VOCABULARY = {"vocabulary": "the tokenizer"}
PASSAGE_TOKENS = StageSpec(
    name="passage-tokens",
    version=2,
    settings=PassageSettings,
    run=tokenise_passages,
    inputs={"passages": "texts to tokenise", **_VOCABULARY},
    records=(TRUNCATED,),
    resumable=True,
    folders=("tokens", "tokens-*"),
    work=_passage_work,
)
QUERY_TOKENS = StageSpec(
    name="query-tokens",
    version=2,
    settings=QuerySettings,
    run=tokenise_queries,
    inputs={"queries": "training queries to tokenise", **_VOCABULARY},
    records=(TRUNCATED,),
    folders=("query-tokens",),
    work=_query_work,
)
PSEUDO_QUERY_TOKENS = evolve(
    QUERY_TOKENS,
    name="pseudo-query-tokens",
    version=1,
    run=tokenise_pseudo_queries,
    inputs={"queries": "pseudo-queries to tokenise", **_VOCABULARY},
    folders=("pseudo-query-tokens",),
)


@frozen
class SpanSettings:
    """The length of spans; seed: draws the texts that the sentence model is trained on."""

    max_length: int = from_recipe("encoder.passage_length")
    prompt: str = from_recipe("encoder.passage_prompt")
    seed: int = from_recipe("seed")


def cut_spans(stage: StageRun[SpanSettings]) -> Mapping[str, Any]:
    """Write a token store of all spans and their documents; returns counts, and the source of the sentence model."""
    from drkit.data.corpus import StoredCorpus
    from drkit.data.spans import punkt_for, split_documents
    from drkit.train.checkpoints import load_tokenizer

    corpus, settings = StoredCorpus(stage.inputs["passages"]), stage.settings
    splitter = punkt_for(corpus, settings.seed)
    counts = split_documents(
        enumerate(passage.content for passage in corpus),
        load_tokenizer(str(stage.inputs["vocabulary"])),
        stage.folder,
        max_length=settings.max_length,
        splitter=splitter,
        prompt=settings.prompt,
    )
    stage.progress.note(
        f"{counts['documents']:,} documents of {counts['sentences']:,} sentences cut into {counts['spans']:,} spans "
        f"(sentences by Punkt, {splitter.source})"
    )
    if counts["alone"]:
        stage.progress.note(f"{counts['alone']:,} documents have only one sentence and are their own context")
    return {**counts, "punkt": splitter.source}


# Seconds for each token: Punkt is trained on some texts, and finds the sentences of all.
_CUT = 1e-5


def _span_work(_stage: Stage[SpanSettings], sizes: Sizes) -> Work:
    return Work(seconds=_CUT * sizes.tokens, disk=_TOKEN_BYTES * sizes.tokens)


SPANS = StageSpec(
    name="spans",
    version=1,
    settings=SpanSettings,
    run=cut_spans,
    inputs={"passages": "documents to cut", "vocabulary": "the tokenizer"},
    folders=("spans",),
    work=_span_work,
)


# Folders of a signal: the statistics that its values depend on (counts, frequencies), and the values.
FITTED, VALUES = "fitted", "values"


@frozen
class SignalSettings:
    """A signal with its settings; prompt: the prefix of every passage, which is not part of the text."""

    signal: Choice
    prompt: str = from_recipe("encoder.passage_prompt")


@frozen
class QuerySignalSettings:
    """A signal with its settings, for candidate queries."""

    signal: Choice


def signal_of_texts(stage: StageRun[SignalSettings]) -> Mapping[str, Any]:
    """Fit the signal to the whole corpus and write its values; returns facts of the fit and the number of values."""
    chosen = stage.settings.signal
    signal = stage.registry.build(Kind.SIGNAL, chosen.use, chosen.config)
    texts, fitted = _stored_texts(stage, stage.settings.prompt), stage.folder / FITTED
    fitted.mkdir(parents=True, exist_ok=True)
    facts = dict(signal.fit(texts, fitted)) if isinstance(signal, FittedSignal) else {}
    return {**facts, "values": _write_values(stage, signal, texts, fitted)}


def signal_of_queries(stage: StageRun[QuerySignalSettings]) -> Mapping[str, Any]:
    """Write the signal's values of the candidate queries, fitted to the texts; returns the number of values."""
    chosen = stage.settings.signal
    signal = stage.registry.build(Kind.SIGNAL, chosen.use, chosen.config)
    return {"values": _write_values(stage, signal, _stored_texts(stage, ""), stage.inputs["fitted"])}


def _write_values(stage: StageRun[Any], signal: Any, texts: StoredTexts, fitted: Path) -> int:
    from drkit.data.arrays import write_signal

    chosen = stage.settings.signal
    scope = stage.registry.get(Kind.SIGNAL, chosen.use).scope_of(chosen.config)
    counts = {"token": len(texts.store.flat_ids), "text": len(texts), "vocabulary": texts.vocab_size}
    values = signal.values(texts, fitted)
    return len(write_signal(chosen.use, values, stage.folder / VALUES, scope=scope, count=counts[scope]))


def _stored_texts(stage: StageRun[Any], prompt: str) -> StoredTexts:
    """Open the texts with all inputs that the plan has added for the signal."""
    from drkit.data.store import StoredTexts, TokenStore
    from drkit.train.checkpoints import load_tokenizer

    inputs = stage.inputs
    # The encoder's embedding table may be longer than its tokenizer's vocabulary (padded to a round number).
    config = json.loads(inputs["encoder"].read_text(encoding="utf-8")) if "encoder" in inputs else {"vocab_size": 0}
    return StoredTexts(
        store=TokenStore.open(inputs["texts"]),
        tokenizer=load_tokenizer(str(inputs["vocabulary"])) if "vocabulary" in inputs else None,
        vocab_size=int(config["vocab_size"]),
        characters=_characters(inputs) if "passages" in inputs else None,
        prompt=prompt,
        engine=stage.engine,
        scratch=stage.folder,
    )


def _characters(inputs: Mapping[str, Path]) -> Any:
    from drkit.data.corpus import StoredCorpus
    from drkit.data.spans import NamedTexts, Spans

    corpus = StoredCorpus(inputs["passages"])
    named = NamedTexts(corpus, Spans.open(inputs["spans"]) if "spans" in inputs else None)
    return lambda: (text for _, text in named)


# Seconds and bytes for each token: those of `importance`, which counts n-grams.
_FITTED, _FITTED_BYTES = 5e-7, 18


def _signal_work(_stage: Stage[SignalSettings], sizes: Sizes) -> Work:
    return Work(seconds=_FITTED * sizes.tokens, disk=_FITTED_BYTES * sizes.tokens)


_TEXT = {
    "vocabulary": "the tokenizer, for a signal that requires characters",
    "encoder": "for the size of its vocabulary, for a signal of the vocabulary",
}
SIGNAL = StageSpec(
    name="signal",
    version=2,
    settings=SignalSettings,
    run=signal_of_texts,
    inputs={
        "texts": "tokens of the texts that pre-training reads",
        "passages": "the texts themselves, for a signal that requires characters",
        "spans": "the position of each span in its passage, for such a signal",
        **_TEXT,
    },
    folders=("signal-*",),
    work=_signal_work,
)
QUERY_SIGNAL = StageSpec(
    name="query-signal",
    version=1,
    settings=QuerySignalSettings,
    run=signal_of_queries,
    inputs={"texts": "tokens of the candidate queries", "fitted": "the signal's statistics of the texts", **_TEXT},
    folders=("signal-*",),
)
