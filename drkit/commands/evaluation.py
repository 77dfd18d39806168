"""Evaluate run files, runs and encoders; an encoder also on many BEIR folders at once."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from attrs import field, frozen

from drkit.commands.encode_search import search_to_run
from drkit.commands.inputs import NamedCollection
from drkit.commands.models import open_encoder
from drkit.core.discovery import Installed
from drkit.core.progress import Progress, Silent
from drkit.core.registry import Registry
from drkit.core.types import Judgement
from drkit.data.beir import BeirCollection
from drkit.data.readers import read_judgements
from drkit.data.specs import BeirConfig
from drkit.errors import DrkitError, did_you_mean
from drkit.evaluate import MEASURES, Scores, average, check_measures, evaluate
from drkit.runs.execute import RECIPE
from drkit.runs.manifest import digest, read_manifest
from drkit.search import AnyEncoder, Bm25Retriever, build_index, encode_corpus, read_qrels, read_run, write_run

EVALUATION, RUNS, COLLECTION = "evaluation", "runs", "collection"

_WHAT_TO_GIVE = "give a run's folder, RUN:SYSTEM, or a TREC run file"


@frozen(eq=False)
class JudgedQueries:
    """Judgements, and the texts of the queries as far as they are known (query id -> text)."""

    judgements: tuple[Judgement, ...]
    texts: Mapping[str, str] = field(factory=dict)


@frozen
class System:
    """Rankings with a name: one TREC run file, or one per draw of a system, whose values are averaged.

    run: the folder of the run it belongs to, if any.
    """

    name: str
    files: tuple[Path, ...]
    run: Path | None = None


def evaluate_files(
    systems: Sequence[System],
    judged: JudgedQueries,
    measures: Sequence[str] | None = None,
    *,
    exclude_self: bool = False,
    note: Callable[[str], None] | None = None,
) -> list[tuple[str, Scores]]:
    """Return (name, scores) of every system, in order; see `drkit.evaluate.evaluate`.

    measures: those of the first system's run if None. exclude_self: also set if a system's own run sets it.
    note: called with a message for every file that lacks judged queries, which count 0.

    Raises DrkitError for a file that cannot be read (naming the line), is empty, or ranks none of the judged queries.
    """
    names = measures or next((_results(s.run)["measures"] for s in systems if s.run), MEASURES)
    judged_ids = {judgement.query_id for judgement in judged.judgements}
    with_relevant = {judgement.query_id for judgement in judged.judgements if judgement.relevance > 0}
    results = []
    for system in systems:
        excludes_self = exclude_self or bool(system.run and _results(system.run)["exclude_self"])
        scores = []
        for path in system.files:
            ranked: set[str] = set()
            rows = _checked_rows(path, judged_ids, ranked)
            scores.append(evaluate(rows, judged.judgements, names, exclude_self=excludes_self))
            missing = len(with_relevant - ranked)
            if note and missing:
                note(f"{path} has no hits for {missing:,} of the {len(with_relevant):,} queries: they count 0")
        results.append((system.name, average(scores)))
    return results


def find_systems(given: Sequence[str]) -> list[System]:
    """Return the systems of each `RUN` (all of a run's folder, in table order), `RUN:SYSTEM` or TREC run file.

    Systems of a single run are named as in its table, those of several runs `RUN:SYSTEM`, and files by file name.

    Raises DrkitError if a file or finished run does not exist, or two systems have the same name.
    """
    several = len(given) > 1
    found = [system for text in given for system in _systems_of(text, several)]
    names = [system.name for system in found]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise DrkitError(f"two of the systems are named {duplicate!r}; give each once, and rename files if necessary")
    return found


def find_judgements(
    systems: Sequence[System],
    *,
    qrels: Path | None = None,
    collection: str | None = None,
    split: str | None = None,
    settings: Sequence[str] = (),
    parts: Installed | None = None,
) -> JudgedQueries:
    """Return the judgements of a file (TREC's or BEIR's format), of a collection's split, or of the systems' runs.

    collection, settings, parts: see `NamedCollection`. split: test if None (for systems of a run: the split that the
    run was evaluated on).

    Raises DrkitError if nothing is given and no system belongs to a run, or two runs have different judgements.
    """
    named = NamedCollection(collection, tuple(settings), parts) if collection is not None else None
    if qrels is not None:
        return JudgedQueries(tuple(read_any_qrels(qrels)), _texts(named, split or "test") if named else {})
    if named is not None:
        return _judged(named, split or "test")
    runs = list(dict.fromkeys(system.run for system in systems if system.run))
    if not runs:
        raise DrkitError(f"no judgements for {systems[0].files[0]}; give --qrels FILE or --collection NAME")
    first, *others = [_judged(NamedCollection(str(r)), split or str(_results(r)["split"])) for r in runs]
    for run, other in zip(runs[1:], others, strict=True):
        if set(other.judgements) != set(first.judgements):
            raise DrkitError(f"{runs[0]} and {run} were evaluated with different judgements; give --qrels FILE")
    return first


def read_any_qrels(path: Path) -> Iterator[Judgement]:
    """Read judgements in TREC's four columns or BEIR's three. Raises DrkitError, naming the line."""
    try:
        with Path(path).open(encoding="utf-8-sig") as file:
            line = file.readline()
    except (OSError, UnicodeDecodeError) as error:
        raise DrkitError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    columns = line.rstrip("\r\n").split("\t") if "\t" in line else line.split()
    return (judgement for _, judgement in read_judgements(path)) if len(columns) == 3 else read_qrels(path)


def _systems_of(text: str, several: bool) -> list[System]:
    path = Path(text)
    if path.is_dir():
        systems = [_system(path, name) for name in _results(path)["runs"]]
        return [System(f"{path.name}:{s.name}", s.files, path) for s in systems] if several else systems
    run, colon, name = text.rpartition(":")
    if not path.is_file() and colon and Path(run).is_dir():
        system = _system(Path(run), name)
        return [System(f"{Path(run).name}:{name}", system.files, Path(run))]
    if not path.is_file():
        raise DrkitError(f"not found: {text}; {_WHAT_TO_GIVE}")
    return [System(path.name.removesuffix(".trec"), (path,))]


def _system(run: Path, name: str) -> System:
    runs = _results(run)["runs"]
    if name not in runs:
        raise DrkitError(f"{run} has no system {name!r}{did_you_mean(name, runs)} known: {', '.join(runs)}")
    files = tuple(run / RUNS / f"{draw}.trec" for draw in runs[name])
    return System(name, files, run)


def _results(run: Path) -> Mapping[str, Any]:
    """Return the results of a run's evaluation, and how it was measured. Raises DrkitError if it has none."""
    manifest = read_manifest(run / EVALUATION)
    if manifest is None and not (run / RECIPE).is_file():
        raise DrkitError(f"{run} is not a run (missing {RECIPE}); {_WHAT_TO_GIVE}")
    if manifest is None:
        raise DrkitError(f"{run} has no finished evaluation; resume it with `drkit run {run}`")
    return manifest.metrics


def _checked_rows(path: Path, judged: set[str], ranked: set[str]) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Yield the rows of a run file and add their queries to `ranked`; raise DrkitError if none of them is judged."""
    for query_id, hits in read_run(path):
        ranked.add(query_id)
        yield query_id, hits
    if not ranked:
        raise DrkitError(f"{path} is empty: expected a line per retrieved passage")
    if not ranked & judged:
        example = sorted(judged)[0] if judged else ""
        raise DrkitError(
            f"none of the {len(ranked):,} queries of {path} is judged; the judged queries have ids such as "
            f"{example!r}: are both of the same collection and split?"
        )


def _judged(collection: NamedCollection, split: str) -> JudgedQueries:
    collection.check_split(split)
    return JudgedQueries(tuple(collection.source.judgements(split)), _texts(collection, split))


def _texts(collection: NamedCollection, split: str) -> dict[str, str]:
    return {query.query_id: query.text for query in collection.source.queries(split)}


DEPTH = 1000
SPLITS = ("test", "dev")
AVERAGE = "average"

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
    """Evaluate an encoder, BM25, or both on every data set under `folder`; repeated calls resume.

    encoder: a folder, a run, or a hub id; None for BM25 alone. output: where the rankings (1,000 passages per query)
    are kept. Test queries are used, or dev queries if a data set has no test queries (MS MARCO). registry: see
    `open_encoder`.

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
        for system, identity, search in systems:
            scores = [_evaluate(path, identity, search, output, measures, progress or Silent()) for path in members]
            mean = {m: sum(one.mean(m) for one in scores) / len(scores) for m in measures}
            means.setdefault(name, {})[system] = mean
    return BeirTable(tuple(measures), tuple(system for system, *_ in systems), means)


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
    path: Path, identity: Any, search: Search, output: Path, measures: Sequence[str], progress: Progress
) -> Scores:
    collection = BeirCollection(BeirConfig(path=str(path)))
    split = next((split for split in SPLITS if split in collection.splits()), None)
    if split is None:
        raise DrkitError(f"{path} has no test or dev judgements to evaluate with")
    files = {name: facts["sha256"] for name, facts in collection.describe()["files"].items()}
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


def _search_bm25(collection: BeirCollection, split: str, run: Path) -> None:
    retriever = Bm25Retriever().index(collection.passages())
    queries = list(collection.queries(split))
    found = retriever.stream((query.text for query in queries), DEPTH + 1)
    write_run(run, ((query.query_id, hits.pairs()) for query, hits in zip(queries, found, strict=True)), tag="bm25")


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
