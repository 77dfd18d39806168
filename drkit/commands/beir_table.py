"""Evaluate an encoder on many data sets in BEIR's layout: each is encoded, searched exactly and measured.

Rankings are kept as TREC runs, named by a hash of encoder and data set, so that finished work is never repeated and
never confused. As in BEIR, a passage whose id equals the query's is not a hit, and a group of data sets (CQADupStack's
forums) counts once, by its mean.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from attrs import frozen

from drkit.commands.encode_search import rank_to_run, search_to_run
from drkit.commands.models import open_encoder
from drkit.core.progress import Progress, Silent
from drkit.core.registry import Registry
from drkit.data.beir import BeirCollection
from drkit.data.specs import BeirConfig
from drkit.errors import DrkitError
from drkit.evaluate import Scores, check_measures, evaluate
from drkit.runs.manifest import digest
from drkit.search import AnyEncoder, Bm25Retriever, align, build_index, convex, encode_corpus, read_run

if TYPE_CHECKING:
    from drkit.search.trec import RunRow

DEPTH = 1000
SPLITS = ("test", "dev")
AVERAGE, HYBRID = "average", "hybrid"
Search: TypeAlias = "Callable[[BeirCollection, str, Path], None]"


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
    progress: Progress | None = None,
    registry: Registry | None = None,
) -> BeirTable:
    """Evaluate an encoder, BM25, or both and their fusion (`hybrid`) on every data set; repeated calls resume.

    encoder: a folder, a run, or a hub id; None for BM25 alone. The fusion has the default weight, 0.5. output: where
    the rankings (1,000 passages per query) are kept. Test queries are used, or dev queries if a data set has no test
    queries (MS MARCO). registry: see `open_encoder`.

    Raises DrkitError for no data set, an unreadable data set, or an unknown measure.
    """
    check_measures(measures)
    found = data_sets(folder)
    systems: list[tuple[str, Any, Search]] = [("BM25", "bm25", _search_bm25)] if bm25 else []
    if encoder is not None:
        opened = open_encoder(encoder, registry=registry)
        systems.append((encoder, opened.identity(), lambda *given: _search_encoder(opened, *given)))
    if not systems:
        raise DrkitError("nothing to evaluate: give an encoder, bm25, or both")
    means: dict[str, dict[str, dict[str, float]]] = {}
    for name, members in found.items():
        scores = [_evaluate(path, systems, output, measures, progress or Silent()) for path in members]
        means[name] = {
            system: {m: sum(one[system].mean(m) for one in scores) / len(scores) for m in measures}
            for system in scores[0]
        }
    return BeirTable(tuple(measures), tuple(next(iter(means.values()))), means)


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


def _evaluate(
    path: Path,
    systems: Sequence[tuple[str, Any, Search]],
    output: Path,
    measures: Sequence[str],
    progress: Progress,
) -> dict[str, Scores]:
    """Return the scores of every system on a data set, and those of the fusion of two."""
    collection = BeirCollection(BeirConfig(path=str(path)))
    split = next((split for split in SPLITS if split in collection.splits()), None)
    if split is None:
        raise DrkitError(f"{path} has no test or dev judgements to evaluate with")
    files = {name: facts["sha256"] for name, facts in collection.describe()["files"].items()}
    name, runs = path.resolve().name, {}
    for system, identity, search in systems:
        key = digest({"system": identity, "files": files, "split": split, "depth": DEPTH})
        run = runs[system] = output / f"{name}-{key}.trec"
        if run.is_file():
            progress.skip(name, str(run))
        else:
            started = time.perf_counter()
            progress.begin(name, f"{split} queries")
            search(collection, split, run)
            progress.end(name, time.perf_counter() - started)
    rankings: dict[str, Iterable[RunRow]] = {system: _without_self(run) for system, run in runs.items()}
    if len(runs) == 2:
        first, second = map(_without_self, runs.values())
        rankings[HYBRID] = convex(align(first, second), depth=DEPTH)
    return {system: evaluate(rows, collection.judgements(split), measures) for system, rows in rankings.items()}


def _without_self(run: Path) -> Iterator[RunRow]:
    """Yield the rows of a run without hits whose id equals the query's, which would distort the scaled scores too."""
    for query_id, hits in read_run(run):
        yield query_id, [hit for hit in hits if hit[0] != query_id]


def _search_bm25(collection: BeirCollection, split: str, run: Path) -> None:
    retriever = Bm25Retriever().index(collection.passages())
    rank_to_run(retriever, collection.queries(split), run, depth=DEPTH + 1)


def _search_encoder(encoder: AnyEncoder, collection: BeirCollection, split: str, run: Path) -> None:
    """Search one data set; vectors and index are kept beside the run until it is written, so that it can resume."""
    work = run.with_suffix(".work")
    texts = ((passage.doc_id, passage.content) for passage in collection.passages())
    vectors = encode_corpus(encoder, texts, work / "vectors")
    if vectors is None:
        raise DrkitError("`drkit evaluate --beir` runs in a single process; start it without torchrun")
    index = build_index(vectors, work / "index")
    search_to_run(index, collection.queries(split), run, encoder=encoder, depth=DEPTH + 1)
    shutil.rmtree(work, ignore_errors=True)
