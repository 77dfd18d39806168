"""The contracts of what reads or measures texts: collections, signals, columns and sources of queries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from drkit.core.protocols import EstimatesSize, FittedSignal
from drkit.core.registry import installed
from drkit.core.spec import VECTOR_VALUES, ComponentSpec, Kind
from drkit.core.types import CollectionSize, Judgement, Passage, Query
from drkit.data.arrays import SignalValues, write_signal
from drkit.data.corpus import open_collection
from drkit.data.queries import checked_queries
from drkit.data.splits import SPLITS
from drkit.data.store import StoredTexts, TokenStore, tokenise
from drkit.data.values import PAIR, Value, computed_values, computed_vectors
from drkit.data.writing import write_collection
from drkit.errors import DrkitError
from drkit.testing.specs import ContractError, build, check_facts, checked_spec, require, running
from drkit.testing.toys import TEACHER_SIZE, toy_context, toy_examples, toy_tokenizer


def check_collection(part: ComponentSpec | str, config: Any) -> None:
    """Run the contract of collections on a spec or the name of an installed part, with settings that name small data.

    Passages, queries and judgements are drkit's own types and come out the same when they are read again; ids are
    unique and not empty; a split is train, dev or test, has judged queries, and its judgements refer to its queries and
    to passages of the collection, with whole numbers as grades; an unknown split raises DrkitError; `describe()` can be
    written as JSON; a size that it estimates has its splits; what drkit stores of the collection is what it yields.
    """
    spec, config = checked_spec(Kind.COLLECTION, part, config)
    collection = build(spec, config, toy_context())
    with running(spec.name, "reading it"):
        _check_streams(collection, spec.name)
    if isinstance(collection, EstimatesSize):
        _check_size(collection, spec.name)
    with TemporaryDirectory() as folder, running(spec.name, "storing it"):
        write_collection(build(spec, config, toy_context()), Path(folder))
        stored = open_collection(Path(folder))
        same = list(stored.corpus) == list(collection.passages())
        require(same, f"{spec.name}: the stored passages differ from those it yields")


def _check_streams(collection: Any, name: str) -> None:
    require(isinstance(getattr(collection, "name", None), str), f"{name}: a collection must have a `name`")
    passages = _read(lambda: collection.passages(), Passage, f"{name}, passages")
    _check_ids([passage.doc_id for passage in passages], f"{name}, passages")
    unknown = set(collection.splits()) - set(SPLITS)
    require(not unknown, f"{name}: unknown splits {sorted(unknown)}; expected some of {', '.join(SPLITS)}")
    for split in collection.splits():
        _check_split(collection, split, {passage.doc_id for passage in passages}, f"{name}, {split}")
    _check_unknown_split(collection, name)
    check_facts(collection.describe(), f"{name}: describe()")


def _check_size(collection: Any, name: str) -> None:
    with running(name, "estimating its size"):
        size = collection.size()
    require(size is None or isinstance(size, CollectionSize), f"{name}: size() must be a CollectionSize or None")
    if size is not None:
        known = {*size.queries} == {*collection.splits()} and size.passages > 0 and bool(size.passage_lengths)
        require(known, f"{name}: size() must have passages, some of their lengths, and queries of every split")


def _check_split(collection: Any, split: str, doc_ids: set[str], name: str) -> None:
    queries = _read(lambda: collection.queries(split), Query, f"{name} queries")
    judgements = _read(lambda: collection.judgements(split), Judgement, f"{name} judgements")
    _check_ids([query.query_id for query in queries], f"{name} queries")
    empty = [query.query_id for query in queries if not query.text.strip()]
    require(not empty, f"{name}: the query {empty[:1]} has no text")
    require(judgements, f"{name}: the split has no judgements; leave it out of `splits()`")
    known = {query.query_id for query in queries}
    for judgement in judgements:
        where = f"{name}: the judgement of {judgement.query_id!r} and {judgement.doc_id!r}"
        require(judgement.query_id in known, f"{where} refers to a query that the split does not have")
        require(judgement.doc_id in doc_ids, f"{where} refers to a passage that the collection does not have")
        whole = isinstance(judgement.relevance, int) and not isinstance(judgement.relevance, bool)
        require(whole, f"{where} has the grade {judgement.relevance!r}, expected a whole number")


def _read(stream: Any, kind: type, name: str) -> list[Any]:
    items = list(stream())
    wrong = next((item for item in items if not isinstance(item, kind)), None)
    require(wrong is None, f"{name}: expected {kind.__name__}, got {type(wrong).__name__}")
    require(items, f"{name}: missing; give settings that name a small collection")
    require(items == list(stream()), f"{name}: reading again gives something else; return a new iterator in each call")
    return items


def _check_ids(ids: list[str], name: str) -> None:
    wrong = [i for i in ids if not isinstance(i, str) or not i]
    require(not wrong, f"{name}: an id must be a string that is not empty, got {wrong[:1]}")
    require(len(set(ids)) == len(ids), f"{name}: an id occurs twice")


def _check_unknown_split(collection: Any, name: str) -> None:
    try:
        list(collection.queries("nosuch"))
    except DrkitError:
        return
    raise ContractError(f"{name}: queries('nosuch') must raise DrkitError, as for any unknown split")


# Tokens of a text for a signal.
_LENGTH = 64
_EXAMPLE = "If it knows only some texts, give its spec some of these: example={'texts': [..]}"


def check_signal(part: ComponentSpec | str, config: Any = None) -> None:
    """Run the contract of signals on a spec or the name of an installed part, with default settings or `config`.

    There is exactly one value per token, text or vocabulary entry, as its `scope` says; all are finite, numbers or
    vectors of one size; the same texts give the same values; `fit` returns facts that can be written as JSON; without a
    method `fit`, the values of a text do not depend on other texts; no text and an empty text are not an error.
    """
    spec, config = checked_spec(Kind.SIGNAL, part, config)
    texts = [*toy_examples(spec.example.get("texts", ())).texts, "", "Turing and Lovelace in Berlin"]
    signal, values = _values(spec, config, texts)
    require(np.array_equal(values, _values(spec, config, texts)[1]), f"{spec.name}: a second run gives other values")
    scope = spec.scope_of(config)
    if scope != "vocabulary":
        _values(spec, config, [])
    if scope != "vocabulary" and not isinstance(signal, FittedSignal):
        parts = [_values(spec, config, [text])[1] for text in texts]
        same = np.array_equal(np.concatenate([part for part in parts if len(part)]), values)
        require(same, f"{spec.name}: the values of a text depend on the other texts, but it has no method `fit`")


def toy_signals(spec: ComponentSpec, config: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the scope of each signal that a part reads with these settings, and the size of its vectors, () if none.

    The size is that of its values of the toy texts; a signal that is not installed has a number per token.
    """
    registry, found = installed().registry, {}
    for name, settings in sorted(spec.signals_of(config).items()):
        found[name] = ("token", tuple[int, ...]())
        if name in registry.names(Kind.SIGNAL):
            signal = registry.get(Kind.SIGNAL, name)
            chosen = signal.config(**settings)
            if VECTOR_VALUES in signal.provides_of(chosen):
                found[name] = (signal.scope_of(chosen), (TEACHER_SIZE,))
                continue
            texts = toy_examples(signal.example.get("texts", ())).texts
            found[name] = (signal.scope_of(chosen), _values(signal, chosen, texts)[1].shape[1:])
    return found


def _values(spec: ComponentSpec, config: Any, texts: Sequence[str]) -> tuple[Any, Any]:
    """Return a new signal, and its values of these texts."""
    signal = build(spec, config, toy_context())
    require(callable(getattr(signal, "values", None)), f"{spec.name}: a signal must have a method `values`")
    with TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer, scope = toy_tokenizer(), spec.scope_of(config)
        tokenise((("", text) for text in texts), tokenizer, folder / "tokens", max_length=_LENGTH)
        store, size = TokenStore.open(folder / "tokens"), len(tokenizer)
        stored = StoredTexts(store, tokenizer, vocab_size=size, characters=lambda: iter(texts), prompt="")
        with running(spec.name, f"fit and values(texts, folder) of {len(texts)} text(s)"):
            written = written_signal(signal, spec.name, scope, stored, folder, spec.name)
        return signal, np.array(written.values)


def written_signal(signal: Any, name: str, scope: str, texts: StoredTexts, folder: Path, title: str) -> SignalValues:
    """Fit a signal to texts and write its values, as a run does; title: names it in errors.

    Raises ContractError for invalid facts of the fit, and DrkitError unless there is exactly one finite value for each
    token, text or entry of the vocabulary.
    """
    fitted = folder / "fitted"
    fitted.mkdir(parents=True)
    if isinstance(signal, FittedSignal):
        check_facts(signal.fit(texts, fitted), f"{title}: fit(texts, folder)")
    counts = {"token": len(texts.store.flat_ids), "text": len(texts), "vocabulary": texts.vocab_size}
    return write_signal(name, signal.values(texts, fitted), folder, scope=scope, count=counts[scope])


def check_column(part: ComponentSpec | str, config: Any = None) -> None:
    """Run the contract of columns on a spec or the name of an installed part, with default settings or `config`.

    `values(items)` must yield a finite number, a bool or None for each query, passage or pair (by the spec's scope), in
    order, and the same for the same items. Not all of them may be None, and bools and numbers must not be mixed. If the
    spec provides `vectors`, it must yield a vector of finite numbers or None for each query or passage, all of one
    length.
    """
    spec, settings = checked_spec(Kind.COLUMN, part, config)
    source = build(spec, settings, None)
    require(hasattr(source, "values"), f"{spec.name}: {type(source).__name__} has no method values")
    scope = spec.scope_of(settings)
    with running(spec.name, f"computing values of {scope}s"):
        items = toy_examples(spec.example.get("texts", ())).items(scope)
        check = check_vector_values if VECTOR_VALUES in spec.provides_of(settings) else check_values
        found, again = (check(source, scope, spec.name, items) for _ in range(2))
    require(found, f"{spec.name}: every value is None; expected one for some {scope}s. " + _EXAMPLE)
    require(found == again, f"{spec.name}: a second call gives other values of the same {scope}s")


def check_values(source: Any, scope: str, name: str, items: Sequence[Any]) -> list[Value]:
    """Return what a part computes for items of its scope, without None; raises ContractError or DrkitError."""
    found = list(computed_values(name, source, scope, items))
    kinds = {isinstance(value.value, bool) for value in found}
    require(len(kinds) < 2, f"{name}: values must be bools or numbers, not both")
    return found


def check_vector_values(source: Any, scope: str, name: str, items: Sequence[Any]) -> list[Any]:
    """Return the vectors that a part computes for items, without None; raises ContractError or DrkitError."""
    require(scope != PAIR, f"{name}: vectors are of a query or a passage; set scope to 'query' or 'passage'")
    found = [list(vector) for _, vector in computed_vectors(name, source, scope, items)]
    require(len({*map(len, found)}) < 2, f"{name}: all vectors must have one length")
    return found


def check_queries(part: ComponentSpec | str, config: Any = None) -> None:
    """Run the contract of sources of queries on a spec or the name of an installed part, with defaults or `config`.

    `queries(passages)` must yield (passage id, query) for some of the passages that it is called with, and the same
    queries of a passage in another call, in a new part, alone, and among other passages. No passage is not an error.
    """
    spec, settings = checked_spec(Kind.QUERIES, part, config)
    source = build(spec, settings, toy_context())
    require(callable(getattr(source, "queries", None)), f"{spec.name}: a source must have a method `queries`")
    passages = _toy_passages(spec)
    with running(spec.name, "making queries"):
        found = checked_queries(source, spec.name, passages)
        again = checked_queries(source, spec.name, passages)
        anew = checked_queries(build(spec, settings, toy_context()), spec.name, passages)
        alone = [checked_queries(source, spec.name, [one]) for one in reversed(passages)]
        none = list(source.queries([]))
    require(found, f"{spec.name}: no passage has a query that is not all of it")
    require(found == again, f"{spec.name}: a second call makes other queries of the same passages")
    require(found == anew, f"{spec.name}: a second part with the same settings and seed makes other queries")
    joined = {doc_id: queries for one in alone for doc_id, queries in one.items()}
    require(found == joined, f"{spec.name}: the queries of a passage depend on the other passages of the call")
    require(not none, f"{spec.name}: makes queries of no passages")


def _toy_passages(spec: ComponentSpec) -> list[Passage]:
    """Return passages of the texts that a part is tried on: its own, if its spec has some."""
    texts = toy_examples(spec.example.get("texts", ())).texts
    return [Passage(f"d{row}", text, f"title {row}" * (row % 2)) for row, text in enumerate(texts)]
