"""Store a collection, make its vocabulary, tokenise and cut its texts, and compute signals."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve

from drkit.core.files import write_text
from drkit.core.protocols import FittedSignal, ReadsAhead
from drkit.core.quantities import counted
from drkit.core.spec import Kind
from drkit.data.arrays import write_signal
from drkit.data.corpus import StoredCorpus, read_labelled_queries
from drkit.data.mixture import Mixture
from drkit.data.sample import PassageSample
from drkit.data.spans import NamedTexts, Spans, punkt_for, split_documents
from drkit.data.special_tokens import AUTO
from drkit.data.store import StoredTexts, TokenStore, tokenise
from drkit.data.titles import JOINED, Titles
from drkit.data.vocabulary import train_wordpiece, with_last_token, with_mask_token
from drkit.data.writing import write_collection
from drkit.encoders.architectures import architecture, attention_keys, check_vocabulary, reads_both_ways
from drkit.encoders.card import PassageReading, QueryReading
from drkit.encoders.masked_lm import check_start, read_config
from drkit.errors import DrkitError
from drkit.runs.stage import StageRun, Truncation, record_truncations
from drkit.runs.stages.texts import (
    FITTED,
    SOURCES_FILE,
    VALUES,
    CollectionSettings,
    ExistingVocabularySettings,
    MixtureSettings,
    QuerySignalSettings,
    SignalSettings,
    SpanSettings,
    WordPieceSettings,
)
from drkit.search.index import check_kind
from drkit.train.checkpoints import load_tokenizer, save_tokenizer

NO_SCORES = (
    "the teacher 'given' reads scores from the training rows, but they have none (pos_scores and neg_scores, beside "
    "pos and neg); name a cross-encoder as finetune.rounds.N.teacher"
)


def store_collection(stage: StageRun[CollectionSettings]) -> Mapping[str, Any]:
    """Write passages, queries and judgements; returns their counts and the collection's description."""
    choice = stage.settings.collection
    collection = stage.registry.build(Kind.COLLECTION, choice.use, choice.config)
    if isinstance(collection, ReadsAhead):
        collection.read_ahead(lambda done, total: stage.progress.advance(done, total, "files"))
    if (passages := stage.settings.passages) is not None:
        collection = PassageSample(collection, passages, seed=stage.settings.seed)
    counts = write_collection(collection, stage.folder)
    for note in counts.pop("repeated_queries", ()):
        stage.progress.note(note)
    if counts["dropped_judgements"]:
        stage.progress.note(f"{counted(counts['dropped_judgements'], 'judgement')} left out: unknown ids")
    if counts["empty_passages"]:
        stage.progress.note(
            f"{counted(counts['empty_passages'], 'passage has', 'passages have')} no text: BM25 cannot find them"
        )
    scored = counts.get("teacher_scores", 0)
    if scored:
        use = "used" if stage.settings.scored else "not used; a round with teacher=given and the miner given uses them"
        stage.progress.note(f"{scored:,} teacher scores in the training rows: {use}")
    elif stage.settings.scored:  # fail now, not after training
        raise DrkitError(NO_SCORES)
    check_kind(stage.settings.index, stage.settings.hidden, counts["passages"])
    return {**counts, "description": dict(collection.describe())}


def mix_texts(stage: StageRun[MixtureSettings]) -> Mapping[str, Any]:
    """Write the run's own passages and those of further collections; returns their numbers, by collection."""
    others = {
        name: stage.registry.build(Kind.COLLECTION, chosen.use, chosen.config)
        for name, chosen in stage.settings.texts.items()
    }
    mixture = Mixture(StoredCorpus(stage.inputs["passages"]), others)
    counts = write_collection(mixture, stage.folder)
    write_text(stage.folder / SOURCES_FILE, json.dumps(mixture.counts))
    return {**counts, "sources": mixture.counts, "description": dict(mixture.describe())}


def train_vocabulary(stage: StageRun[WordPieceSettings]) -> Mapping[str, Any]:
    """Train a WordPiece vocabulary and write its tokenizer; returns its size."""
    return {"vocabulary": len(train_wordpiece(_vocabulary_texts(stage), stage.folder, size=stage.settings.vocab_size))}


def copy_tokenizer(stage: StageRun[ExistingVocabularySettings]) -> Mapping[str, Any]:
    """Write the tokenizer of the encoder; returns the size of its vocabulary."""
    settings = stage.settings
    check_start(settings.pretrained, length=max(settings.passage_length, settings.query_length))
    config, tokenizer = read_config(settings.pretrained), load_tokenizer(settings.pretrained)
    is_causal = architecture(config.model_type).is_causal
    if is_causal:
        tokenizer = with_last_token(tokenizer)
    check_vocabulary(tokenizer, config, settings.pretrained)
    reads_both = bool(attention_keys(config, settings.attention)) or reads_both_ways(config)
    if settings.mask_token != AUTO or (is_causal and reads_both):
        tokenizer = with_mask_token(tokenizer, settings.mask_token)
    save_tokenizer(tokenizer, stage.folder)
    return {"vocabulary": len(tokenizer)}


def _vocabulary_texts(stage: StageRun[Any]) -> Iterator[str]:
    """Yield every passage and training query; dev and test queries stay unseen."""
    yield from (passage.content for passage in StoredCorpus(stage.inputs["passages"]))
    if "queries" in stage.inputs:
        yield from (query.text for query in read_labelled_queries(stage.inputs["queries"]))


def tokenise_passages(stage: StageRun[PassageReading]) -> Mapping[str, Any]:
    """Write a memory-mapped store of all passages; returns counts, including truncated texts."""
    settings, tokenizer = stage.settings, load_tokenizer(str(stage.inputs["vocabulary"]))
    corpus, titles = StoredCorpus(stage.inputs["passages"]), Titles.of(settings.titles, tokenizer)
    titled = Counter[bool]()

    def texts() -> Iterator[tuple[str, str]]:
        for passage in corpus:
            titled[titles.has_title(passage)] += 1
            yield passage.doc_id, titles.read(passage)

    counts = tokenise(texts(), tokenizer, stage.folder, max_length=settings.length, prompt=settings.prompt)
    _record_truncated(stage, counts, "passages", "encoder.passage_length")
    if titles.reads != JOINED and titled[False]:
        stage.progress.note(_describe_untitled(titled))
    return {**counts, "titled": titled[True]}


def _describe_untitled(titled: Mapping[bool, int]) -> str:
    """Describe passages without a title, where titles are read in their own way."""
    if not titled[True]:
        return "no passage has a title, so encoder.titles has no effect: texts are read alone"
    return f"{titled[False]:,} of {titled[False] + titled[True]:,} passages have no title: their texts are read alone"


def tokenise_queries(stage: StageRun[QueryReading]) -> Mapping[str, Any]:
    """Write a memory-mapped store of training queries; returns counts, including truncated texts."""
    settings, tokenizer = stage.settings, load_tokenizer(str(stage.inputs["vocabulary"]))
    texts = ((query.query_id, query.text) for query in read_labelled_queries(stage.inputs["queries"]))
    counts = tokenise(texts, tokenizer, stage.folder, max_length=settings.length, prompt=settings.prompt)
    what = "training queries" if stage.name == "query-tokens" else "pseudo-queries"
    _record_truncated(stage, counts, what, "encoder.query_length")
    return counts


def _record_truncated(stage: StageRun[Any], counts: Mapping[str, Any], what: str, setting: str) -> None:
    lengths = {name: int(counts[name]) for name in ("texts", "truncated", "longest", "p95")}
    record_truncations([Truncation(what, setting, stage.settings.length, **lengths)], stage.folder, stage.progress)


def cut_spans(stage: StageRun[SpanSettings]) -> Mapping[str, Any]:
    """Write a token store of all spans and their documents; returns counts."""
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
        f"{counted(counts['documents'], 'document')} of {counted(counts['sentences'], 'sentence')} cut into "
        f"{counted(counts['spans'], 'span')}"
    )
    if counts["alone"]:
        stage.progress.note(_describe_alone(counts["alone"], counts["documents"]))
    return counts


def _describe_alone(alone: int, documents: int) -> str:
    """Describe the documents of a single sentence, whose context is themselves."""
    return (
        f"{alone:,} of {documents:,} documents have only one sentence and are their own context: their two views "
        f"differ by their masks alone. For another context see `drkit list context`"
    )


def signal_of_texts(stage: StageRun[SignalSettings]) -> Mapping[str, Any]:
    """Fit the signal to the whole corpus and write its values; returns facts of the fit and the number of values."""
    chosen = stage.settings.signal
    made = {"path": str(stage.inputs["vectors"]), "encoder": ""} if "vectors" in stage.inputs else {}
    signal = stage.registry.build(Kind.SIGNAL, chosen.use, evolve(chosen.config, **made))
    settings = stage.settings
    texts, fitted = _stored_texts(stage, settings.prompt, settings.titles), stage.folder / FITTED
    fitted.mkdir(parents=True, exist_ok=True)
    facts = dict(signal.fit(texts, fitted)) if isinstance(signal, FittedSignal) else {}
    return {**facts, "values": _write_values(stage, signal, texts, fitted)}


def signal_of_queries(stage: StageRun[QuerySignalSettings]) -> Mapping[str, Any]:
    """Write the signal's values of the candidate queries, fitted to the texts; returns the number of values."""
    chosen = stage.settings.signal
    signal = stage.registry.build(Kind.SIGNAL, chosen.use, chosen.config)
    return {"values": _write_values(stage, signal, _stored_texts(stage, ""), stage.inputs["fitted"])}


def _write_values(stage: StageRun[Any], signal: Any, texts: StoredTexts, fitted: Path) -> int:
    chosen = stage.settings.signal
    scope = stage.registry.get(Kind.SIGNAL, chosen.use).scope_of(chosen.config)
    counts = {"token": len(texts.store.flat_ids), "text": len(texts), "vocabulary": texts.vocab_size}
    values = signal.values(texts, fitted)
    return len(write_signal(chosen.use, values, stage.folder / VALUES, scope=scope, count=counts[scope]))


def _stored_texts(stage: StageRun[Any], prompt: str, titles: str = JOINED) -> StoredTexts:
    """Open the texts with all inputs that the plan has added for the signal."""
    inputs = stage.inputs
    tokenizer = load_tokenizer(str(inputs["vocabulary"])) if "vocabulary" in inputs else None
    # The encoder's embedding table may be longer than its tokenizer's vocabulary (padded to a round number).
    config = json.loads(inputs["encoder"].read_text(encoding="utf-8")) if "encoder" in inputs else {"vocab_size": 0}
    return StoredTexts(
        store=TokenStore.open(inputs["texts"]),
        tokenizer=tokenizer,
        vocab_size=int(config["vocab_size"]),
        characters=_named(inputs, Titles.of(titles, tokenizer), 1) if "passages" in inputs else None,
        names=_named(inputs, Titles(), 0) if "passages" in inputs else None,
        prompt=prompt,
        engine=stage.engine,
        scratch=stage.folder,
    )


def _named(inputs: Mapping[str, Path], titles: Titles, which: int) -> Any:
    """Return a function that yields the names of the texts (0), or their characters (1)."""
    corpus = StoredCorpus(inputs["passages"])
    named = NamedTexts(corpus, Spans.open(inputs["spans"]) if "spans" in inputs else None, titles)
    return lambda: (one[which] for one in named)
