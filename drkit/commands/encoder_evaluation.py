"""Rank the queries of a collection, or of many BEIR data sets, by an encoder, BM25 or both, and evaluate."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from attrs import frozen

from drkit.commands.encode_search import rank_to_run, search_to_run
from drkit.commands.inputs import NamedCollection
from drkit.commands.models import open_encoder
from drkit.core.files import local_path
from drkit.core.progress import Progress, Silent
from drkit.core.registry import Registry
from drkit.core.types import Judgement
from drkit.data.beir import BeirCollection
from drkit.data.specs import BeirConfig
from drkit.errors import DrkitError
from drkit.evaluate import Scores, check_measures, evaluate
from drkit.runs.execute import RECIPE
from drkit.runs.manifest import digest
from drkit.search import AnyEncoder, Bm25Retriever, align, build_index, convex, encode_corpus, read_run

if TYPE_CHECKING:
    from drkit.search.trec import RunRow


from drkit.commands.evaluation import HYBRID, OwnHits

DEPTH = 1000
SPLITS = ("test", "dev")
AVERAGE = "average"

Search: TypeAlias = "Callable[[BeirCollection | NamedCollection, str, Path], None]"

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
    bm25: bool = False,
    exclude_self: bool = False,
    progress: Progress | None = None,
    registry: Registry | None = None,
) -> BeirTable:
    """Evaluate an encoder, BM25, or both and their fusion (`hybrid`) on every data set; repeated calls resume.

    encoder: a folder, a run, or a hub id; None for BM25 alone. The fusion has the default weight, 0.5. output: where
    the rankings (1,000 passages per query) are kept. Test queries are used, or dev queries if a data set has no test
    queries (MS MARCO). exclude_self: a passage with the query's own id is not a hit (as in BEIR's own evaluation).
    registry: see `open_encoder`.

    Raises DrkitError for no data set, an unreadable data set, or an unknown measure.
    """
    check_measures(measures)
    found = data_sets(folder)
    rankers, means = _rankers(encoder, bm25, registry), dict[str, dict[str, dict[str, float]]]()
    for name, members in found.items():
        runs = [_rank_data_set(path, rankers, output, progress or Silent()) for path in members]
        scores = [_measure(*run, measures, exclude_self, progress or Silent()) for run in runs]
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
    bm25: bool = False,
    exclude_self: bool = False,
    progress: Progress | None = None,
    registry: Registry | None = None,
) -> list[tuple[str, Scores]]:
    """Return (name, scores) of BM25, an encoder, or both and their fusion on a split of a collection; calls resume.

    The other arguments are those of `evaluate_beir`. Raises DrkitError for a missing split or an unknown measure.
    """
    check_measures(measures)
    collection.check_split(split)
    judgements, files = tuple(collection.source.judgements(split)), _content(collection, split)
    name, report = Path(collection.name.rpartition(":")[2]).resolve().name, progress or Silent()
    runs = {
        ranker[0]: _rank(name, collection, split, files, ranker, output, report)
        for ranker in _rankers(encoder, bm25, registry)
    }
    return list(_measure(runs, judgements, measures, exclude_self, report).items())


def _rankers(encoder: str | None, bm25: bool, registry: Registry | None) -> list[Ranker]:
    rankers: list[Ranker] = [("BM25", "bm25", _search_bm25)] if bm25 else []
    if encoder is not None:
        opened = open_encoder(encoder, registry=registry)
        rankers.append((_short_name(encoder), opened.identity(), lambda *given: _search_encoder(opened, *given)))
    if not rankers:
        raise DrkitError("nothing to evaluate: give an encoder, bm25, or both")
    return rankers


def _short_name(encoder: str) -> str:
    """Return the name of an encoder's folder, or of the run that it is the result of; a hub id stays as it is."""
    path = local_path(encoder).resolve()
    if not path.is_dir():
        return encoder
    if not (path.parent / RECIPE).is_file():
        return path.name
    return path.parent.name if path.name == "encoder" else f"{path.parent.name}:{path.name}"


def data_sets(folder: Path) -> dict[str, list[Path]]:
    """Return the data sets of a folder by name: one folder each, or the folders of a group.

    Raises DrkitError if there are none.
    """
    if not folder.is_dir():
        raise DrkitError(f"folder not found: {folder}; give a folder that contains data sets in BEIR's layout")
    if _is_data_set(folder):
        return {folder.resolve().name: [folder]}
    inner = {path.name: [path] if _is_data_set(path) else _members(path) for path in _folders(folder)}
    found = {name: members for name, members in inner.items() if members}
    if not found:
        raise DrkitError(
            f"{folder} contains no data set: expected folders with corpus.jsonl, queries.jsonl and qrels/test.tsv"
        )
    return found


def _members(folder: Path) -> list[Path]:
    return [path for path in _folders(folder) if _is_data_set(path)]


def _folders(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith("."))


def _is_data_set(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("corpus.jsonl", "corpus.jsonl.gz"))


def _rank_data_set(
    path: Path, rankers: Sequence[Ranker], output: Path, progress: Progress
) -> tuple[dict[str, Path], Sequence[Judgement]]:
    """Return the run of every system on a data set in BEIR's layout, and the judgements to measure them with."""
    collection = BeirCollection(BeirConfig(path=str(path)))
    split = next((split for split in SPLITS if split in collection.splits()), None)
    if split is None:
        raise DrkitError(f"{path} has no test or dev judgements to evaluate with")
    files = {name: facts["sha256"] for name, facts in collection.describe()["files"].items()}
    name = path.resolve().name
    runs = {ranker[0]: _rank(name, collection, split, files, ranker, output, progress) for ranker in rankers}
    return runs, tuple(collection.judgements(split))


def _rank(
    name: str,
    collection: BeirCollection | NamedCollection,
    split: str,
    files: Any,
    ranker: Ranker,
    output: Path,
    progress: Progress,
) -> Path:
    """Return the run of a system, searching unless it is there; files: identifies the content of the collection."""
    label, identity, search = ranker
    run = output / f"{name}-{digest({'system': identity, 'files': files, 'split': split, 'depth': DEPTH})}.trec"
    if run.is_file():
        progress.skip(name, f"{label}: {run}")
        return run
    started = time.perf_counter()
    progress.begin(name, f"{label}, {split} queries")
    search(collection, split, run)
    progress.end(name, time.perf_counter() - started)
    return run


def _measure(
    runs: Mapping[str, Path],
    judgements: Sequence[Judgement],
    measures: Sequence[str],
    exclude_self: bool,
    progress: Progress,
) -> dict[str, Scores]:
    """Return the scores of every run, and those of the fusion of two."""
    own = {system: OwnHits.among(judgements) for system in runs}

    def rows(system: str) -> Iterator[RunRow]:
        # Dropped before the fusion, too: hits that do not count would distort the scaled scores.
        found = own[system].counted(read_run(runs[system]))
        return _without_self(found) if exclude_self else found

    scores = {system: evaluate(rows(system), judgements, measures) for system in runs}
    for system, found in own.items():
        for note in found.notes(runs[system].name, exclude_self=exclude_self):
            progress.note(note)
    if len(runs) == 2:
        first, second = map(rows, runs)
        scores[HYBRID] = evaluate(convex(align(first, second), depth=DEPTH), judgements, measures)
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


def _search_bm25(collection: BeirCollection | NamedCollection, split: str, run: Path) -> None:
    retriever = Bm25Retriever().index(collection.passages())
    rank_to_run(retriever, collection.queries(split), run, depth=DEPTH + 1)


def _search_encoder(encoder: AnyEncoder, collection: BeirCollection | NamedCollection, split: str, run: Path) -> None:
    """Search one data set; vectors and index are kept beside the run until it is written, so that it can resume."""
    work = run.with_suffix(".work")
    texts = ((passage.doc_id, passage.content) for passage in collection.passages())
    vectors = encode_corpus(encoder, texts, work / "vectors")
    if vectors is None:
        raise DrkitError("`drkit evaluate --encoder` runs in a single process; start it without torchrun")
    index = build_index(vectors, work / "index")
    search_to_run(index, collection.queries(split), run, encoder=encoder, depth=DEPTH + 1)
    shutil.rmtree(work, ignore_errors=True)
