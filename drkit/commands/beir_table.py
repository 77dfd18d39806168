"""Evaluate an encoder on a collection, or on many data sets in BEIR's layout: encode, search exactly and measure.

Rankings are kept as TREC runs, named by a hash of encoder and data set, so that finished work is never repeated and
never confused. As in BEIR, a group of data sets (CQADupStack's forums) counts once, by its mean.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from attrs import frozen

from drkit.commands.encode_search import search_to_run
from drkit.commands.evaluation import OwnHits
from drkit.commands.inputs import NamedCollection
from drkit.commands.models import open_encoder
from drkit.core.progress import Progress, Silent
from drkit.core.registry import Registry
from drkit.core.types import Judgement
from drkit.data.beir import BeirCollection
from drkit.data.specs import BeirConfig
from drkit.errors import DrkitError
from drkit.evaluate import Scores, check_measures, evaluate
from drkit.runs.execute import RECIPE
from drkit.runs.manifest import digest
from drkit.search import AnyEncoder, Bm25Retriever, build_index, encode_corpus, read_run, write_run

DEPTH = 1000
SPLITS = ("test", "dev")
AVERAGE = "average"
Search: TypeAlias = "Callable[[BeirCollection | NamedCollection, str, Path], None]"
System: TypeAlias = "tuple[str, Any, Search]"


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
    """Evaluate an encoder, BM25, or both on every data set under `folder`; repeated calls resume.

    encoder: a folder, a run, or a hub id; None for BM25 alone. output: where the rankings (1,000 passages per query)
    are kept. Test queries are used, or dev queries if a data set has no test queries (MS MARCO). exclude_self: a
    passage with the query's own id is not a hit (as in BEIR's own evaluation). registry: see `open_encoder`.

    Raises DrkitError for no data set, an unreadable data set, or an unknown measure.
    """
    check_measures(measures)
    found = data_sets(folder)
    systems, means = _systems(encoder, bm25, registry), dict[str, dict[str, dict[str, float]]]()
    for name, members in found.items():
        for system in systems:
            runs = [_rank_data_set(path, system, output, progress or Silent()) for path in members]
            scores = [_measure(*run, measures, exclude_self, progress or Silent()) for run in runs]
            mean = {m: sum(one.mean(m) for one in scores) / len(scores) for m in measures}
            means.setdefault(name, {})[system[0]] = mean
    return BeirTable(tuple(measures), tuple(system for system, *_ in systems), means)


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
    """Return (name, scores) of BM25, an encoder, or both on a split of any collection; repeated calls resume.

    The other arguments are those of `evaluate_beir`. Raises DrkitError for a missing split or an unknown measure.
    """
    check_measures(measures)
    collection.check_split(split)
    judgements, files = tuple(collection.source.judgements(split)), _content(collection, split)
    name, results = Path(collection.name.rpartition(":")[2]).resolve().name, []
    for system in _systems(encoder, bm25, registry):
        run = _rank(name, collection, split, files, system, output, progress or Silent())
        results.append((system[0], _measure(run, judgements, measures, exclude_self, progress or Silent())))
    return results


def _systems(encoder: str | None, bm25: bool, registry: Registry | None) -> list[System]:
    systems: list[System] = [("BM25", "bm25", _search_bm25)] if bm25 else []
    if encoder is not None:
        opened = open_encoder(encoder, registry=registry)
        systems.append((_short_name(encoder), opened.identity(), lambda *given: _search_encoder(opened, *given)))
    if not systems:
        raise DrkitError("nothing to evaluate: give an encoder, bm25, or both")
    return systems


def _short_name(encoder: str) -> str:
    """Return the name of an encoder's folder, or of the run that it is the result of; a hub id stays as it is."""
    path = Path(encoder).expanduser().resolve()
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


def _rank_data_set(path: Path, system: System, output: Path, progress: Progress) -> tuple[Path, Sequence[Judgement]]:
    """Return the run of a system on a data set in BEIR's layout, and the judgements to measure it with."""
    collection = BeirCollection(BeirConfig(path=str(path)))
    split = next((split for split in SPLITS if split in collection.splits()), None)
    if split is None:
        raise DrkitError(f"{path} has no test or dev judgements to evaluate with")
    files = {name: facts["sha256"] for name, facts in collection.describe()["files"].items()}
    run = _rank(path.resolve().name, collection, split, files, system, output, progress)
    return run, tuple(collection.judgements(split))


def _rank(
    name: str,
    collection: BeirCollection | NamedCollection,
    split: str,
    files: Any,
    system: System,
    output: Path,
    progress: Progress,
) -> Path:
    """Return the run of a system, searching unless it is there; files: identifies the content of the collection."""
    label, identity, search = system
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
    run: Path, judgements: Sequence[Judgement], measures: Sequence[str], exclude_self: bool, progress: Progress
) -> Scores:
    own = OwnHits()
    scores = evaluate(own.counted(read_run(run)), judgements, measures, exclude_self=exclude_self)
    if own.count:
        progress.note(own.describe(run.name, exclude_self=exclude_self))
    return scores


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
    queries = list(collection.queries(split))
    found = retriever.stream((query.text for query in queries), DEPTH + 1)
    write_run(run, ((query.query_id, hits.pairs()) for query, hits in zip(queries, found, strict=True)), tag="bm25")


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
