"""Rank the queries of a collection, or of many BEIR data sets, by an encoder, BM25 or both, and evaluate."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from attrs import frozen

from drkit.commands.evaluation import HYBRID, OwnHits
from drkit.commands.inputs import NamedCollection, OpenedEncoder, open_encoder
from drkit.core.files import digest, local_path, read_json, remove_folder
from drkit.core.progress import Progress, Silent
from drkit.core.registry import Registry
from drkit.core.types import Judgement
from drkit.data.formats import BeirCollection
from drkit.data.rows import COMPRESSED
from drkit.data.specs import BeirConfig
from drkit.data.writing import refuse_duplicate_passages, refuse_duplicate_queries
from drkit.encoders.folder import TORCH
from drkit.errors import DrkitError
from drkit.evaluate import Scores, check_measures, evaluate, tune_bm25, tune_weight
from drkit.evaluate.measures import write_json
from drkit.evaluate.tuning import describe_bm25
from drkit.recipe.start import RECIPE
from drkit.search import Bm25Retriever, align, build_index, convex, encode_corpus, read_run
from drkit.search.bm25 import ANALYZER_VERSION
from drkit.search.fusion import DEFAULT_WEIGHT, has_weight, stored_weight
from drkit.search.run_files import rank_to_run, search_to_run

if TYPE_CHECKING:
    from drkit.search.rankings import RunRow


DEPTH = 1000
SPLITS = ("test", "dev")
AVERAGE = "average"

# Called with a collection, the run to write for each split, and where to report progress.
Search: TypeAlias = "Callable[[BeirCollection | NamedCollection, Mapping[str, Path], Progress], None]"

Ranker: TypeAlias = "tuple[str, Any, Search]"  # name, identity of the model, search


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


def evaluate_beir(
    encoder: str | None,
    folder: Path,
    output: Path,
    *,
    measures: Sequence[str] = ("nDCG@10",),
    bm25: Sequence[tuple[float, float]] = (),
    bm25_language: str = "english",
    how: Mapping[str, Any] | None = None,
    exclude_self: bool = False,
    progress: Progress | None = None,
    registry: Registry | None = None,
) -> BeirTable:
    """Evaluate an encoder, BM25, or both and their fusion (`hybrid`) on every data set; repeated calls resume.

    encoder: a folder, a run, or a hub id; None for BM25 alone. bm25: pairs of k1 and b; of several, the best on dev
    queries by the first measure is taken, or the first without such queries; none for no BM25. bm25_language: see
    `Bm25Retriever`. The weight of the fusion
    is tuned in the same way; without dev queries besides those evaluated it is that of the run that exported the
    encoder, otherwise 0.5. Progress notes say which. output: where the rankings (1,000 passages per query) are kept.
    Test queries are used, or dev queries if a data set has no test queries (MS MARCO). exclude_self: a passage with the
    query's own id is not a hit (as in BEIR's own evaluation).
    how: arguments of `open_encoder`, such as `pooling` and `backend`; registry: see there.

    Raises DrkitError for no data set, an unreadable data set, or an unknown measure.
    """
    check_measures(measures)
    found = data_sets(folder)
    words = _Words(bm25, bm25_language, measures[0], exclude_self)
    systems = _Systems.of(encoder, words, how=how or {}, registry=registry)
    means: dict[str, dict[str, dict[str, float]]] = {}
    for name, members in found.items():
        ranked = [_rank_data_set(path, systems, output, progress or Silent()) for path in members]
        scores = [_measure(one, systems.untuned, measures, exclude_self, progress or Silent()) for one in ranked]
        means[name] = {
            system: {m: sum(one[system].mean(m) for one in scores) / len(scores) for m in measures}
            for system in scores[0]
        }
    return BeirTable(tuple(measures), tuple(next(iter(means.values()))), means)


def evaluate_encoder(
    encoder: str | None,
    collection: NamedCollection,
    output: Path,
    *,
    split: str = "test",
    measures: Sequence[str] = ("nDCG@10",),
    bm25: Sequence[tuple[float, float]] = (),
    bm25_language: str = "english",
    how: Mapping[str, Any] | None = None,
    exclude_self: bool = False,
    progress: Progress | None = None,
    registry: Registry | None = None,
) -> list[tuple[str, Scores]]:
    """Return (name, scores) of BM25, an encoder, or both and their fusion on a split of a collection; calls resume.

    The other arguments are those of `evaluate_beir`. Raises DrkitError for a missing split or an unknown measure.
    """
    check_measures(measures)
    collection.check_split(split)
    name, report = Path(collection.name.rpartition(":")[2]).resolve().name, progress or Silent()
    words = _Words(bm25, bm25_language, measures[0], exclude_self)
    systems = _Systems.of(encoder, words, how=how or {}, registry=registry)
    rankers, splits = systems.rankers(split, collection.source.splits(), name, report)
    files = {split: _content(collection, split) for split in splits}
    judgements = _known_judgements(collection, splits, name, report)
    runs = {ranker[0]: _rank(name, collection, files, ranker, output, report) for ranker in rankers}
    ranked = _Ranked(name, runs, judgements)
    return list(_measure(ranked, systems.untuned, measures, exclude_self, report).items())


@frozen
class _Ranked:
    """Runs of every system by split, and judgements by split: those to measure with first, dev to tune the fusion."""

    name: str
    runs: Mapping[str, Mapping[str, Path]]
    judgements: Mapping[str, Sequence[Judgement]]


@frozen
class _Words:
    """BM25 with one of several (k1, b); measure, exclude_self: how the best is chosen on dev queries."""

    pairs: Sequence[tuple[float, float]]
    language: str
    measure: str
    exclude_self: bool

    def rankers(self, has_dev: bool) -> list[Ranker]:
        tried = self.pairs if has_dev else self.pairs[:1]
        identity = ["bm25", ANALYZER_VERSION, self.language, *tried]
        if len(tried) > 1:
            return [("BM25", [*identity, self.measure, self.exclude_self], partial(_search_best_bm25, self))]
        found = (Bm25Retriever(k1=k1, b=b, language=self.language) for k1, b in tried)
        return [("BM25", identity, partial(_search_bm25, retriever)) for retriever in found]


@frozen
class _Systems:
    """What to rank with: BM25 and an encoder; untuned: the encoder's weight if no dev queries tune it, and why."""

    words: _Words
    dense: Sequence[Ranker]
    untuned: tuple[float, str]

    @classmethod
    def of(
        cls,
        encoder: str | None,
        words: _Words,
        *,
        how: Mapping[str, Any],
        registry: Registry | None,
    ) -> _Systems:
        """Open the encoder, if there is one. Raises DrkitError without an encoder and BM25."""
        dense: list[Ranker] = []
        if encoder is not None:
            opened, backend = open_encoder(encoder, registry=registry, **how), how.get("backend", TORCH)
            name = _short_name(encoder) if backend == TORCH else f"{_short_name(encoder)} ({backend})"
            dense = [(name, opened.identity(), partial(_search_encoder, opened))]
        if not (dense or words.pairs):
            raise DrkitError("nothing to evaluate: give an encoder, bm25, or both")
        return cls(words, dense, _untuned_weight(encoder))

    def rankers(
        self, split: str, splits: Sequence[str], name: str, progress: Progress
    ) -> tuple[list[Ranker], tuple[str, ...]]:
        """Return the systems for a split, and the splits to search: dev as well, if its queries tune a fusion."""
        has_dev = "dev" in splits and split != "dev"
        if len(self.words.pairs) > 1 and not has_dev:
            k1, b = self.words.pairs[0]
            progress.note(f"{name}: BM25: k1 {k1:g}, b {b:g}, the first given: no other dev queries choose among them")
        rankers = [*self.words.rankers(has_dev), *self.dense]
        return rankers, (split, "dev") if has_dev and len(rankers) == 2 else (split,)


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


def _rank_data_set(path: Path, systems: _Systems, output: Path, progress: Progress) -> _Ranked:
    """Return the runs of every system on a data set in BEIR's layout, and its judgements."""
    collection = BeirCollection(BeirConfig(path=str(path)))
    split = next((split for split in SPLITS if split in collection.splits()), None)
    if split is None:
        raise DrkitError(f"{path} has no test or dev judgements to evaluate with")
    refuse_duplicate_passages(collection)
    name = path.resolve().name
    rankers, splits = systems.rankers(split, collection.splits(), name, progress)
    hashes = {name: facts["sha256"] for name, facts in collection.describe()["files"].items()}
    files = dict.fromkeys(splits, hashes)
    for one in splits:
        refuse_duplicate_queries(collection, one)
    runs = {ranker[0]: _rank(name, collection, files, ranker, output, progress) for ranker in rankers}
    return _Ranked(name, runs, _known_judgements(collection, splits, name, progress))


def _known_judgements(
    collection: BeirCollection | NamedCollection, splits: Iterable[str], name: str, progress: Progress
) -> dict[str, tuple[Judgement, ...]]:
    """Return the judgements of splits whose passage exists, as a run that drops the others counts; a note says so."""
    found = {split: tuple(collection.judgements(split)) for split in splits}
    judged = {one.doc_id for rows in found.values() for one in rows}
    missing = judged - {passage.doc_id for passage in collection.passages() if passage.doc_id in judged}
    known = {split: tuple(one for one in rows if one.doc_id not in missing) for split, rows in found.items()}
    if missing:
        count = sum(map(len, found.values())) - sum(map(len, known.values()))
        progress.note(
            f"{name}: {count:,} judgements of passages that it lacks are not counted, as in a run with "
            f"collection.unknown_judgements=drop"
        )
    return known


def _rank(
    name: str,
    collection: BeirCollection | NamedCollection,
    files: Mapping[str, Any],
    ranker: Ranker,
    output: Path,
    progress: Progress,
) -> dict[str, Path]:
    """Return the run of a system for each split, searching unless it is there.

    files: identifies the content of the collection, for each split to search for.
    """
    label, identity, search = ranker
    keys = {
        split: digest({"system": identity, "files": content, "split": split, "depth": DEPTH})
        for split, content in files.items()
    }
    runs = {split: output / f"{name}-{key}.trec" for split, key in keys.items()}
    missing = {split: run for split, run in runs.items() if not run.is_file()}
    if not missing:
        _remove_work(runs.values())
        progress.skip(name, f"{label}: {', '.join(map(str, runs.values()))}")
        return runs
    started = time.perf_counter()
    progress.begin(name, f"{label}, {' and '.join(missing)} queries")
    search(collection, missing, progress)
    _remove_work(runs.values())
    progress.end(name, time.perf_counter() - started)
    return runs


def _measure(
    ranked: _Ranked, untuned: tuple[float, str], measures: Sequence[str], exclude_self: bool, progress: Progress
) -> dict[str, Scores]:
    """Return the scores of every run, and those of the fusion of two, whose weight is tuned on dev queries if given.

    untuned: the weight without dev queries, and why.
    """
    split, judgements = next(iter(ranked.judgements.items()))
    own = {system: OwnHits.among(judgements) for system in ranked.runs}

    def rows(system: str, split: str) -> Iterator[RunRow]:
        # Dropped before the fusion, too: hits that do not count would distort the scaled scores.
        found = own[system].counted(read_run(ranked.runs[system][split]))
        return _without_self(found) if exclude_self else found

    scores = {system: evaluate(rows(system, split), judgements, measures) for system in ranked.runs}
    for runs in ranked.runs.values():
        if _choice(runs[split]).is_file():
            progress.note(f"{ranked.name}: {_described(_choice(runs[split]))}")
    for system, found in own.items():
        for note in found.notes(f"{ranked.name}, {system}", exclude_self=exclude_self):
            progress.note(note)
    if len(ranked.runs) == 2:
        weight, reason = untuned[0], f"{untuned[1]}: {ranked.name} has no other dev queries to tune it on"
        if "dev" in ranked.judgements and split != "dev":
            dev = [rows(system, "dev") for system in ranked.runs]
            tuned = tune_weight(dev[0], dev[1], ranked.judgements["dev"], measures[0])
            weight, reason = tuned.weight, f"tuned on {tuned.queries:,} dev queries by {measures[0]}"
        progress.note(f"{ranked.name}: {HYBRID} has weight {weight:g} for {[*ranked.runs][1]}, {reason}")
        first, second = (rows(system, split) for system in ranked.runs)
        scores[HYBRID] = evaluate(convex(align(first, second), weight, DEPTH), judgements, measures)
    return scores


def _without_self(rows: Iterable[RunRow]) -> Iterator[RunRow]:
    for query_id, hits in rows:
        yield query_id, [hit for hit in hits if hit[0] != query_id]


def _content(collection: NamedCollection, split: str) -> str:
    """Return a hash of a collection's passages and of the queries of a split."""
    state = hashlib.blake2b(digest_size=16)
    queries = ((query.query_id, query.text) for query in collection.queries(split))
    for rows in (collection.contents(), queries):
        for row in rows:
            state.update(repr(row).encode())
        state.update(b"|")
    return state.hexdigest()


def _search_bm25(
    retriever: Bm25Retriever,
    collection: BeirCollection | NamedCollection,
    runs: Mapping[str, Path],
    progress: Progress,
) -> None:
    _search_words(retriever.index(collection.passages()), collection, runs, progress)


def _search_best_bm25(
    words: _Words, collection: BeirCollection | NamedCollection, runs: Mapping[str, Path], progress: Progress
) -> None:
    """Search with the k1 and b that are best on the dev queries, and write them beside the runs."""
    tuned = tune_bm25(
        collection.passages(),
        words.pairs,
        collection.queries("dev"),
        collection.judgements("dev"),
        words.measure,
        depth=DEPTH,
        exclude_self=words.exclude_self,
        language=words.language,
        on_progress=lambda done: progress.advance(done, len(words.pairs), "variants of BM25"),
    )
    for run in runs.values():
        write_json(_choice(run), tuned.facts())
    _search_words(tuned.retriever, collection, runs, progress)


def _search_words(
    retriever: Bm25Retriever,
    collection: BeirCollection | NamedCollection,
    runs: Mapping[str, Path],
    progress: Progress,
) -> None:
    for note in retriever.notes():
        progress.note(note)
    for split, run in runs.items():
        rank_to_run(retriever, collection.queries(split), run, depth=DEPTH + 1)


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


def _search_encoder(
    encoder: OpenedEncoder, collection: BeirCollection | NamedCollection, runs: Mapping[str, Path], progress: Progress
) -> None:
    """Search one data set; vectors and index are kept beside its runs until they are written, so that it can resume."""
    work = _work(next(iter(runs.values())))
    texts = ((passage.doc_id, passage.content) for passage in collection.passages())
    vectors = encode_corpus(
        encoder, texts, work / "vectors", on_progress=lambda done: progress.advance(done, None, "passages")
    )
    if vectors is None:
        raise DrkitError("`drkit evaluate --encoder` runs in a single process; start it without torchrun")
    index = build_index(vectors, work / "index")
    for split, run in runs.items():
        search_to_run(index, collection.queries(split), run, encoder=encoder, depth=DEPTH + 1)


def _work(run: Path) -> Path:
    return run.with_suffix(".work")


def _remove_work(runs: Iterable[Path]) -> None:
    """Remove the vectors and indexes beside finished runs, those included that a kill left."""
    for run in runs:
        remove_folder(_work(run))
