"""Rank the queries of a collection, or of many BEIR data sets, by an encoder, BM25 or both, and evaluate."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from attrs import field, frozen

from drkit.commands.collections import NamedCollection
from drkit.commands.evaluation import OwnHits
from drkit.commands.inputs import OpenedEncoder, open_encoder
from drkit.core.files import SCRATCH, digest, file_hash, local_path, read_json, remove_folder, write_text
from drkit.core.progress import Progress, Silent
from drkit.core.types import Judgement
from drkit.data.corpus import PASSAGES, QUERIES, TEXTS, StoredCollection, open_collection
from drkit.data.rows import COMPRESSED, batched
from drkit.errors import DrkitError
from drkit.evaluate import Scores, check_measures, evaluate, tune_weight
from drkit.evaluate.measures import MEASURES
from drkit.evaluate.names import HYBRID_NAME
from drkit.evaluate.systems import describe_bm25
from drkit.evaluate.tuning import tune_bm25
from drkit.recipe.start import RECIPE
from drkit.recipe.toml import json_text
from drkit.search import FlatIndex, align, build_index, convex, encode_corpus, read_run
from drkit.search.blocks import rank_to_run, search_to_run
from drkit.search.bm25 import ANALYZER_VERSION
from drkit.search.fusion import DEFAULT_WEIGHT, has_weight, stored_weight
from drkit.search.rankings import Rankings

if TYPE_CHECKING:
    from drkit.core.protocols import Collection


DEPTH = 1000
SPLITS = ("test", "dev")
AVERAGE = "average"

# A system's name, what its rankings depend on, and its search, called with the run to write for each split.
Ranker: TypeAlias = "tuple[str, Any, Callable[[StoredCollection, Mapping[str, Path]], None]]"


def evaluate_encoder(
    encode: Callable[[list[str]], Any],
    collection: str | Collection,
    *,
    encode_queries: Callable[[list[str]], Any] | None = None,
    split: str = SPLITS[0],
    measures: Sequence[str] = MEASURES,
    exclude_self: bool = False,
    batch: int = 1024,
) -> Scores:
    """Search a collection with the vectors that any function makes, exactly, and return the scores of its queries.

    encode: a function of B texts that returns vectors [B,D], such as `SentenceTransformer.encode`; they are compared by
    inner product, and those of all passages are kept in memory. encode_queries: the same for queries, if it is another.
    collection: as `drkit compose --collection` names it, or an object such as `drkit.data.BeirCollection`.

    Raises DrkitError if there are no passages or no such queries, and as `FlatIndex.build` and `evaluate` do.
    """
    check_measures(measures)
    source: Any = NamedCollection(collection) if isinstance(collection, str) else collection
    queries, ids, vectors = list(source.queries(split)), [], []
    for passages in batched(source.passages(), batch):
        ids += [passage.doc_id for passage in passages]
        vectors.append(np.asarray(encode([passage.content for passage in passages]), dtype=np.float32))
    if not ids or not queries:
        raise DrkitError(f"{source.name} has no {'passages' if not ids else f'{split!r} queries'} to evaluate on")
    index = FlatIndex.build(np.concatenate(vectors), ids)
    asked = np.asarray((encode_queries or encode)([query.text for query in queries]), dtype=np.float32)
    if len(asked) != len(queries):
        raise DrkitError(f"got {len(asked)} vectors for {len(queries)} queries; every query needs one")
    rankings = Rankings.at(index.doc_ids.array, [query.query_id for query in queries], index.rank(asked, DEPTH + 1))
    return evaluate(rankings, source.judgements(split), measures, exclude_self=exclude_self)


@frozen
class BeirTable:
    """Means of every data set or group, in order: `means[data set][system][measure]`."""

    measures: tuple[str, ...]
    systems: tuple[str, ...]
    means: Mapping[str, Mapping[str, Mapping[str, float]]]

    def average(self, system: str, measure: str) -> float:
        """Return the mean over data sets; every data set, and every group, counts once."""
        return sum(found[system][measure] for found in self.means.values()) / len(self.means)

    def rows(self, measure: str) -> list[list[str]]:
        """Return rows of text (data set, one value per system), with the average last."""
        rows = [[name, *(f"{found[s][measure]:.3f}" for s in self.systems)] for name, found in self.means.items()]
        return [*rows, [AVERAGE, *(f"{self.average(s, measure):.3f}" for s in self.systems)]]

    def as_json(self) -> dict[str, Any]:
        """Return the table as plain data."""
        averages = {s: {m: self.average(s, m) for m in self.measures} for s in self.systems}
        return {"data_sets": self.means, AVERAGE: averages}


@frozen(slots=False)
class EncoderEvaluation:
    """How to evaluate an encoder, BM25, or both and their fusion (`hybrid`); repeated evaluations resume.

    encoder: a folder, a run, or a hub id; None for BM25 alone. output: where the rankings (1,000 passages per query)
    are kept. bm25: pairs of k1 and b; of several, the best on dev queries by the first measure is taken, or the first
    without such queries; none for no BM25. bm25_language: see `Bm25Retriever`. The weight of the fusion is tuned in the
    same way; without dev queries besides those evaluated it is that of the run that exported the encoder, otherwise
    0.5. Progress notes say which. how: arguments of `open_encoder`, such as `pooling`. exclude_self: a
    passage with the query's own id is not a hit (as in BEIR's own evaluation).

    Raises DrkitError for an unknown measure, and without an encoder and BM25.
    """

    encoder: str | None
    output: Path
    measures: Sequence[str] = ("nDCG@10",)
    bm25: Sequence[tuple[float, float]] = ()
    bm25_language: str = "english"
    how: Mapping[str, Any] = field(factory=dict)
    exclude_self: bool = False
    progress: Progress = field(factory=Silent)

    def __attrs_post_init__(self) -> None:
        check_measures(self.measures)
        if self.encoder is None and not self.bm25:
            raise DrkitError("nothing to evaluate: give an encoder, bm25, or both")

    def on_beir(self, folder: Path) -> BeirTable:
        """Evaluate on the test queries of every data set of a folder, or dev queries if it has no others (MS MARCO).

        Raises DrkitError for no data set, or an unreadable one.
        """
        means: dict[str, dict[str, dict[str, float]]] = {}
        for name, members in data_sets(folder).items():
            scores = [self.on_collection(NamedCollection(f"beir:{path}")) for path in members]
            means[name] = {
                system: {m: sum(one[system].mean(m) for one in scores) / len(scores) for m in self.measures}
                for system in scores[0]
            }
        return BeirTable(tuple(self.measures), tuple(next(iter(means.values()))), means)

    def on_collection(self, collection: NamedCollection, split: str | None = None) -> dict[str, Scores]:
        """Return the scores of every system on a split of a collection.

        split: test if None, or dev without test queries. Raises DrkitError if the collection does not have it.
        """
        name, splits = Path(collection.name.rpartition(":")[2]).resolve().name, collection.source.splits()
        split = split or next((one for one in SPLITS if one in splits), SPLITS[0])
        collection.check_split(split)
        has_dev = "dev" in splits and split != "dev"
        if len(self.bm25) > 1 and not has_dev:
            k1, b = self.bm25[0]
            self._note(name, f"BM25: k1 {k1:g}, b {b:g}, the first given: no other dev queries choose among them")
        rankers = [*self._words(has_dev), *self._vectors()]
        searched = (split, "dev") if has_dev and len(rankers) == 2 else (split,)
        with tempfile.TemporaryDirectory(prefix=SCRATCH) as scratch:
            read = (split, "dev") if has_dev else (split,)
            folder, counts = collection.store(Path(scratch), splits=read, drop_unknown=True)
            stored, passages = open_collection(folder), file_hash(folder / PASSAGES / TEXTS)
            contents = {one: [passages, file_hash(folder / one / QUERIES)] for one in searched}
            if dropped := counts.get("dropped_judgements"):
                self._note(
                    name,
                    f"{dropped:,} judgements of passages that it lacks are not counted, as in a run with "
                    f"collection.unknown_judgements=drop",
                )
            runs = {ranker[0]: self._rank(name, stored, contents, ranker) for ranker in rankers}
            return self._measure(name, runs, {one: tuple(stored.judgements(one)) for one in searched})

    def _note(self, name: str, text: str) -> None:
        self.progress.note(f"{name}: {text}")

    def _words(self, has_dev: bool) -> Iterator[Ranker]:
        tried = self.bm25 if has_dev else self.bm25[:1]
        if tried:
            identity = ["bm25", ANALYZER_VERSION, self.bm25_language, *tried]
            chosen_by = [self.measures[0], self.exclude_self] if len(tried) > 1 else []
            yield "BM25", [*identity, *chosen_by], partial(self._search_words, tried)

    def _vectors(self) -> Iterator[Ranker]:
        if self.encoder is not None:
            encoder = self._opened
            yield _short_name(self.encoder), encoder.identity(), partial(self._search_vectors, encoder)

    @cached_property
    def _opened(self) -> OpenedEncoder:
        return open_encoder(str(self.encoder), **self.how)

    def _rank(
        self, name: str, collection: StoredCollection, contents: Mapping[str, Any], ranker: Ranker
    ) -> dict[str, Path]:
        """Return the run of a system for each split, searching unless it is there; contents: hashes, by split."""
        label, identity, search = ranker
        keys = {
            split: digest({"system": identity, "files": content, "split": split, "depth": DEPTH})
            for split, content in contents.items()
        }
        runs = {split: self.output / f"{name}-{key}.trec" for split, key in keys.items()}
        missing = {split: run for split, run in runs.items() if not run.is_file()}
        if missing:
            started = time.perf_counter()
            self.progress.begin(name, f"{label}, {' and '.join(missing)} queries")
            search(collection, missing)
            self.progress.end(name, time.perf_counter() - started)
        else:
            self.progress.skip(name, f"{label}: {', '.join(map(str, runs.values()))}")
        for run in runs.values():  # those included that a kill left
            remove_folder(_work(run))
        return runs

    def _search_words(
        self, tried: Sequence[tuple[float, float]], collection: StoredCollection, runs: Mapping[str, Path]
    ) -> None:
        """Search with the k1 and b that are best on dev queries; of several, write the choice beside the runs."""
        retriever, facts = tune_bm25(
            collection.corpus,
            tried,
            (collection.queries("dev"), collection.judgements("dev")) if len(tried) > 1 else None,
            self.measures[0],
            depth=DEPTH,
            exclude_self=self.exclude_self,
            language=self.bm25_language,
            on_progress=lambda done: self.progress.advance(done, len(tried), "variants of BM25"),
        )
        for split, run in runs.items():
            if len(tried) > 1:
                write_text(_choice(run), json_text(facts))
            rank_to_run(retriever, collection.queries(split), run, depth=DEPTH + 1)

    def _search_vectors(self, encoder: OpenedEncoder, collection: StoredCollection, runs: Mapping[str, Path]) -> None:
        """Encode and search; vectors and index are kept beside the runs until these are written, to resume from."""
        work = _work(next(iter(runs.values())))
        vectors = encode_corpus(
            encoder,
            ((passage.doc_id, passage.content) for passage in collection.corpus),
            work / "vectors",
            on_progress=lambda done: self.progress.advance(done, len(collection.corpus), "passages"),
        )
        if vectors is None:
            raise DrkitError("`drkit evaluate --encoder` runs in a single process; start it without torchrun")
        index = build_index(vectors, work / "index")
        for split, run in runs.items():
            search_to_run(index, collection.queries(split), run, encoder=encoder, depth=DEPTH + 1)

    def _measure(
        self, name: str, runs: Mapping[str, Mapping[str, Path]], judged: Mapping[str, Sequence[Judgement]]
    ) -> dict[str, Scores]:
        """Return the scores of every run, and of the fusion of two, whose weight is tuned on dev queries if given.

        runs: of every system, by split. judged: judgements by split: those to measure with, then dev to tune by.
        """
        split, judgements = next(iter(judged.items()))
        own = {system: OwnHits.among(judgements) for system in runs}

        def read(system: str, split: str) -> Rankings:
            # Dropped before the fusion, too: hits that do not count would distort the scaled scores.
            found = read_run(runs[system][split])
            return found.kept(~found.is_own) if self.exclude_self else found

        for system in runs:
            own[system].count(read_run(runs[system][split]))
        scores = {system: evaluate(read(system, split), judgements, self.measures) for system in runs}
        for found in runs.values():
            if _choice(found[split]).is_file():
                self._note(name, _described(_choice(found[split])))
        for system, hits in own.items():
            for note in hits.notes(f"{name}, {system}", exclude_self=self.exclude_self):
                self.progress.note(note)
        if len(runs) == 2:
            weight, origin = _untuned_weight(self.encoder)
            reason = f"{origin}: {name} has no other dev queries to tune it on"
            if "dev" in judged and split != "dev":
                first, second = (read(system, "dev") for system in runs)
                tuned = tune_weight(first, second, judged["dev"], self.measures[0])
                weight, reason = tuned.weight, f"tuned on {tuned.queries:,} dev queries by {self.measures[0]}"
            self._note(name, f"{HYBRID_NAME} has weight {weight:g} for {[*runs][1]}, {reason}")
            first, second = (read(system, split) for system in runs)
            scores[HYBRID_NAME] = evaluate(convex(align(first, second), weight, DEPTH), judgements, self.measures)
        return scores


def _short_name(encoder: str) -> str:
    """Return the name of an encoder's folder, or of the run that exported it; a hub id stays unchanged."""
    path = local_path(encoder).resolve()
    if not path.is_dir():
        return encoder
    if not (path.parent / RECIPE).is_file():
        return path.name
    return path.parent.name if path.name == "encoder" else f"{path.parent.name}:{path.name}"


def _untuned_weight(encoder: str | None) -> tuple[float, str]:
    """Return the weight that a run's own hybrid gives to the encoder that it exported, or the default, and why."""
    folder = local_path(encoder or "").resolve()
    run = folder.parent if folder.name == "encoder" else folder
    return (stored_weight(run)[0], "that of its run") if has_weight(run) else (DEFAULT_WEIGHT, "the default")


def data_sets(folder: Path) -> dict[str, list[Path]]:
    """Return the data sets of a folder by name: one folder each, or the folders of a group.

    Raises DrkitError for a folder without data sets.
    """
    if not folder.is_dir():
        raise DrkitError(f"folder not found: {folder}; give a folder that contains data sets in BEIR's layout")
    if _is_data_set(folder):
        return {folder.resolve().name: [folder]}
    inner = {
        path.name: [path] if _is_data_set(path) else [*filter(_is_data_set, _folders(path))]
        for path in _folders(folder)
    }
    found = {name: members for name, members in inner.items() if members}
    if not found:
        raise DrkitError(
            f"{folder} contains no data set: expected folders with corpus.jsonl, queries.jsonl and qrels/test.tsv"
        )
    return found


def _folders(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith("."))


def _is_data_set(folder: Path) -> bool:
    return any((folder / f"corpus.jsonl{end}").is_file() for end in ("", *COMPRESSED))


def _choice(run: Path) -> Path:
    """Return the file that says which k1 and b BM25 has in a run, if dev queries chose them."""
    return run.with_suffix(".json")


def _described(choice: Path) -> str:
    """Return in words which k1 and b BM25 has. Raises DrkitError if the file does not say."""
    advice = "delete it and its .trec file, and repeat the command"
    try:
        return describe_bm25(read_json(choice, advice))
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration):
        raise DrkitError(f"{choice} does not say which k1 and b were chosen; {advice}") from None


def _work(run: Path) -> Path:
    return run.with_suffix(".work")
