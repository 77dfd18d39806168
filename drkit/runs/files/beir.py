"""An encoder on many data sets: every folder in BEIR's layout is encoded, searched exactly and measured; the average.

Rankings are kept as TREC runs under the content of encoder and data set, so that what is done is never done again, and
nothing is mistaken for something else. As in BEIR, a passage whose id is the query's own is no hit, and groups of data
sets (CQADupStack's forums) count once, by their mean.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from attrs import frozen

from drkit.data.beir import BeirCollection
from drkit.data.specs import BeirConfig
from drkit.errors import DrkitError
from drkit.evaluate import Scores, check_measures, evaluate
from drkit.runs.files.encoders import open_encoder
from drkit.runs.files.searching import search_to_run
from drkit.runs.manifest import digest
from drkit.runs.progress import Progress, Silent
from drkit.search import AnyEncoder, Bm25Retriever, build_index, encode_corpus, read_run, write_run

DEPTH = 1000
SPLITS = ("test", "dev")
AVERAGE = "average"
Search: TypeAlias = "Callable[[BeirCollection, str, Path], None]"


@frozen
class BeirTable:
    """Means of every data set: `means[data set][system][measure]`, in the data sets' order; groups are one each."""

    measures: tuple[str, ...]
    systems: tuple[str, ...]
    means: Mapping[str, Mapping[str, Mapping[str, float]]]

    def average(self, system: str, measure: str) -> float:
        """The mean over data sets; every one, and every group, counts once."""
        return sum(found[system][measure] for found in self.means.values()) / len(self.means)

    def rows(self, measure: str) -> list[list[str]]:
        """(data set, a value a system) as text, the average last."""
        rows = [[name, *(f"{found[s][measure]:.3f}" for s in self.systems)] for name, found in self.means.items()]
        return [*rows, [AVERAGE, *(f"{self.average(s, measure):.3f}" for s in self.systems)]]

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        averages = {s: {m: self.average(s, m) for m in self.measures} for s in self.systems}
        return {"data_sets": self.means, AVERAGE: averages}


def beir(
    encoder: str | None,
    folder: Path,
    output: Path,
    *,
    measures: Sequence[str] = ("nDCG@10",),
    bm25: bool = False,
    progress: Progress | None = None,
) -> BeirTable:
    """Evaluate an encoder, BM25, or both on every data set under `folder`; called again it goes on.

    encoder: a folder, a run, or a hub id; None for BM25 alone. output: where the rankings (1,000 passages a query) are
    kept. Test queries are ranked, dev queries where a data set has no others (MS MARCO).

    Raises DrkitError where there is no data set, one cannot be read, or a measure does not exist.
    """
    check_measures(measures)
    found = data_sets(folder)
    ways: list[tuple[str, Any, Search]] = [("BM25", "bm25", _by_bm25)] if bm25 else []
    if encoder is not None:
        opened = open_encoder(encoder)
        ways.append((encoder, opened.identity(), lambda *given: _by_encoder(opened, *given)))
    if not ways:
        raise DrkitError("nothing to evaluate: give an encoder, or bm25")
    told = progress or Silent()
    means: dict[str, dict[str, dict[str, float]]] = {}
    for name, members in found.items():
        for system, identity, search in ways:
            scores = [_data_set(path, identity, search, output, measures, told) for path in members]
            mean = {m: sum(one.mean(m) for one in scores) / len(scores) for m in measures}
            means.setdefault(name, {})[system] = mean
    return BeirTable(tuple(measures), tuple(system for system, *_ in ways), means)


def data_sets(folder: Path) -> dict[str, list[Path]]:
    """The data sets of a folder by name: one folder each, or the folders of a group. Raises DrkitError for none."""
    if not folder.is_dir():
        raise DrkitError(f"there is no folder {folder}; give one that holds data sets in BEIR's layout")
    if _is_data_set(folder):
        return {folder.resolve().name: [folder]}
    inner = {path.name: [path] if _is_data_set(path) else _members(path) for path in _folders(folder)}
    found = {name: members for name, members in inner.items() if members}
    if not found:
        raise DrkitError(
            f"no folder in {folder} is a data set; each has corpus.jsonl, queries.jsonl and qrels/test.tsv"
        )
    return found


def _members(folder: Path) -> list[Path]:
    return [path for path in _folders(folder) if _is_data_set(path)]


def _folders(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith("."))


def _is_data_set(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("corpus.jsonl", "corpus.jsonl.gz"))


def _data_set(
    path: Path, identity: Any, search: Search, output: Path, measures: Sequence[str], progress: Progress
) -> Scores:
    collection = BeirCollection(BeirConfig(path=str(path)))
    split = next((split for split in SPLITS if split in collection.splits()), None)
    if split is None:
        raise DrkitError(f"{path} has neither test nor dev judgements to evaluate on")
    files = {name: told["sha256"] for name, told in collection.describe()["files"].items()}
    key = digest({"system": identity, "files": files, "split": split, "depth": DEPTH})
    name = path.resolve().name
    run = output / f"{name}-{key}.trec"
    if run.is_file():
        progress.skip(name, str(run))
    else:
        started = time.perf_counter()
        progress.begin(name, f"{split} queries")
        search(collection, split, run)
        progress.end(name, time.perf_counter() - started)
    return evaluate(read_run(run), collection.judgements(split), measures, exclude_self=True)


def _by_bm25(collection: BeirCollection, split: str, run: Path) -> None:
    retriever = Bm25Retriever().index(collection.passages())
    queries = list(collection.queries(split))
    found = retriever.stream((query.text for query in queries), DEPTH + 1)
    write_run(run, ((query.query_id, hits.pairs()) for query, hits in zip(queries, found, strict=True)), tag="bm25")


def _by_encoder(encoder: AnyEncoder, collection: BeirCollection, split: str, run: Path) -> None:
    """Vectors and index stand beside the run until it is written: a data set that was cut off is gone on with."""
    work = run.with_suffix(".work")
    texts = ((passage.doc_id, passage.content) for passage in collection.passages())
    vectors = encode_corpus(encoder, texts, work / "vectors")
    if vectors is None:
        raise DrkitError("the data sets are evaluated by one process; start it without torchrun")
    index = build_index(vectors, work / "index")
    search_to_run(index, collection.queries(split), run, encoder=encoder, depth=DEPTH + 1)
    shutil.rmtree(work, ignore_errors=True)
