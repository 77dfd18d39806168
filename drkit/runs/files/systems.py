"""Rankings that stand in files, and what they are judged by: the systems of a run's folder, or any TREC run file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from drkit.core.types import Judgement
from drkit.data.qrels_files import read_judgements
from drkit.data.tables import open_collection
from drkit.errors import DrkitError, did_you_mean
from drkit.evaluate import MEASURES, Scores, average, evaluate
from drkit.runs.execute import RECIPE
from drkit.runs.files.collections import kept_collection, named_collection
from drkit.runs.manifest import read_manifest
from drkit.search import read_qrels, read_run

EVALUATION, RUNS, COLLECTION = "evaluation", "runs", "collection"


@frozen(eq=False)
class Judged:
    """Judgements, and the texts of the queries where they are known (query id -> text)."""

    judgements: tuple[Judgement, ...]
    texts: Mapping[str, str] = field(factory=dict)


@frozen
class System:
    """Rankings under a name: one TREC run file, or one for each draw of a system, whose values are averaged.

    run: the run's folder it belongs to, where it belongs to one.
    """

    name: str
    files: tuple[Path, ...]
    run: Path | None = None


def evaluate_files(
    systems: Sequence[System],
    judged: Judged,
    measures: Sequence[str] | None = None,
    *,
    exclude_self: bool = False,
    note: Callable[[str], None] | None = None,
) -> list[tuple[str, Scores]]:
    """(name, scores) of every system, in their order, as `drkit.evaluate.evaluate` gives them.

    measures: those of the first system's run where None. exclude_self: also where a system's own run says so.
    note: is told of every file that leaves queries unanswered, which count as nought.

    Raises DrkitError for a file that cannot be read (naming its line), that ranks nothing, or that ranks none of the
    judged queries.
    """
    names = measures or next((_results(s.run)["measures"] for s in systems if s.run), MEASURES)
    known = {judgement.query_id for judgement in judged.judgements}
    wanted = {judgement.query_id for judgement in judged.judgements if judgement.relevance > 0}
    found = []
    for system in systems:
        own = bool(system.run and _results(system.run)["exclude_self"])
        scores = []
        for path in system.files:
            ranked: set[str] = set()
            rows = _common(path, known, ranked)
            scores.append(evaluate(rows, judged.judgements, names, exclude_self=exclude_self or own))
            missing = len(wanted - ranked)
            if note and missing:
                note(f"{path} ranks nothing for {missing:,} of the {len(wanted):,} queries: they count 0")
        found.append((system.name, average(scores)))
    return found


def find_systems(given: Sequence[str]) -> list[System]:
    """The systems behind `RUN` (all of a run's folder, in its table's order), `RUN:SYSTEM` or a TREC run file.

    Systems of one run are called as in its table; where several things are given, `RUN:SYSTEM`; files by their names.

    Raises DrkitError where there is no such file or finished run, or two things would have one name.
    """
    several = len(given) > 1
    found = [system for text in given for system in _found(text, several)]
    names = [system.name for system in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DrkitError(f"two of the systems are called {twice!r}; give each once, and files names of their own")
    return found


def find_judgements(
    systems: Sequence[System],
    *,
    qrels: Path | None = None,
    collection: str | None = None,
    split: str | None = None,
    settings: Sequence[str] = (),
) -> Judged:
    """What systems are judged by: a file (TREC's or BEIR's), a collection's split, or what their runs were judged by.

    collection: as `compose` takes it (`beir:FOLDER`), or a run's folder; with its settings (`collection.limit=10`).
    split: test where None (of systems of a run: what it was evaluated on).

    Raises DrkitError where nothing is given and no system belongs to a run, or two runs were judged differently.
    """
    if qrels is not None:
        texts = dict(_texts(collection, split or "test", settings)) if collection else {}
        return Judged(tuple(read_any_qrels(qrels)), texts)
    if collection is not None:
        return _of_collection(collection, split or "test", settings)
    runs = list(dict.fromkeys(system.run for system in systems if system.run))
    if not runs:
        raise DrkitError(f"{systems[0].files[0]} does not say what is relevant; give --qrels FILE or --collection NAME")
    first, *others = [_of_run(run, split) for run in runs]
    for run, other in zip(runs[1:], others, strict=True):
        if set(other.judgements) != set(first.judgements):
            raise DrkitError(f"{runs[0]} and {run} were evaluated against different judgements; give --qrels FILE")
    return first


def read_any_qrels(path: Path) -> Iterator[Judgement]:
    """The judgements of a file in TREC's four columns, or in BEIR's three. Raises DrkitError naming the line."""
    try:
        with Path(path).open(encoding="utf-8-sig") as file:
            line = file.readline()
    except (OSError, UnicodeDecodeError) as error:
        raise DrkitError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    columns = line.rstrip("\r\n").split("\t") if "\t" in line else line.split()
    return (judgement for _, judgement in read_judgements(path)) if len(columns) == 3 else read_qrels(path)


def _found(text: str, several: bool) -> list[System]:
    path = Path(text)
    if path.is_dir():
        named = [_system(path, name) for name in _results(path)["runs"]]
        return [System(f"{path.name}:{s.name}", s.files, path) for s in named] if several else named
    run, colon, name = text.rpartition(":")
    if not path.is_file() and colon and Path(run).is_dir():
        system = _system(Path(run), name)
        return [System(f"{Path(run).name}:{name}", system.files, Path(run))]
    if not path.is_file():
        raise DrkitError(f"there is no {text}; give a run's folder, RUN:SYSTEM, or a TREC run file")
    return [System(path.name.removesuffix(".trec"), (path,))]


def _system(run: Path, name: str) -> System:
    runs = _results(run)["runs"]
    if name not in runs:
        raise DrkitError(f"{run} has no system {name!r}{did_you_mean(name, runs)} known: {', '.join(runs)}")
    files = tuple(run / RUNS / f"{one}.trec" for one in runs[name])
    return System(name, files, run)


def _results(run: Path) -> Mapping[str, Any]:
    """What a run's evaluation found, and how it was measured."""
    found = read_manifest(run / EVALUATION)
    if found is None and not (run / RECIPE).is_file():
        raise DrkitError(f"{run} is no run (it has no {RECIPE}); give a run's folder, RUN:SYSTEM, or a TREC run file")
    if found is None:
        raise DrkitError(f"{run} has no finished evaluation; `drkit run {run}` goes on where it was cut off")
    return found.metrics


def _common(path: Path, known: set[str], ranked: set[str]) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """The rows of a run file, their queries added to `ranked`; an error at its end where none of them could count."""
    for query_id, hits in read_run(path):
        ranked.add(query_id)
        yield query_id, hits
    if not ranked:
        raise DrkitError(f"{path} is empty: a run has a line for every passage that was found")
    if not ranked & known:
        some = sorted(known)[0] if known else ""
        raise DrkitError(
            f"none of the {len(ranked):,} queries of {path} is judged; the judgements are about others, as {some!r}: "
            f"are both of one collection and split?"
        )


def _of_run(run: Path, split: str | None) -> Judged:
    return _of_collection(str(run), split or str(_results(run)["split"]), ())


def _of_collection(collection: str, split: str, settings: Sequence[str]) -> Judged:
    source = _open(collection, settings)
    if split not in source.splits():
        raise DrkitError(f"{collection} has no {split!r} queries; its splits: {', '.join(source.splits()) or 'none'}")
    return Judged(tuple(source.judgements(split)), dict(_texts(collection, split, settings)))


def _texts(collection: str, split: str, settings: Sequence[str]) -> Iterator[tuple[str, str]]:
    return ((query.query_id, query.text) for query in _open(collection, settings).queries(split))


def _open(collection: str, settings: Sequence[str]) -> Any:
    kept = kept_collection(collection)
    return open_collection(kept) if kept else named_collection(collection, settings)
