"""Evaluate the rankings of run files and runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from drkit.commands.collections import NamedCollection, missing_result
from drkit.core.files import input_path, local_path
from drkit.core.quantities import counted
from drkit.core.types import Judgement
from drkit.data.answers import answer_tokens, read_answers, spaced_tokens
from drkit.data.collection import drops_unknown_ids
from drkit.data.qrels import read_qrels
from drkit.data.rows import COMPRESSED, require_file
from drkit.errors import DrkitError, UnknownNameError
from drkit.evaluate import MEASURES, Scores, average, evaluate, order_bounds, tie_ranges
from drkit.evaluate.names import HYBRID_NAME, HYBRIDS, without_bm25
from drkit.evaluate.ties import describe_ties
from drkit.evaluate.unmatched import likely_match, note_unjudged_hits
from drkit.recipe.start import RECIPE
from drkit.runs.manifest import read_manifest
from drkit.search import read_run, write_run
from drkit.search.rankings import Rankings

_EVALUATION, _RUNS, _COLLECTION = "evaluation", "runs", "collection"

_WHAT_TO_GIVE = "give a run's folder, RUN:SYSTEM, or a file of rankings (a TREC run, .arrow, .json)"


@frozen(eq=False)
class JudgedQueries:
    """Judgements, and the texts of queries (query id -> text); unknown ones are omitted."""

    judgements: tuple[Judgement, ...]
    texts: Mapping[str, str] = field(factory=dict)


def note_own_hits(
    rankings: Rankings, judgements: Iterable[Judgement], source: Path | str, *, exclude_self: bool
) -> str:
    """Say how many hits have the id of their query, and what to do about them; nothing if all are answers that count.

    A passage with its query's id that is judged relevant is what the query looks for, as in `pydocs`; any other may be
    the query itself, as in ArguAna. Ids that are numbers count queries and passages alike, and say nothing.
    """
    own = {rankings.query_ids[row] for row in rankings.queries[rankings.is_own]}
    answers = own & {j.query_id for j in judgements if j.query_id == j.doc_id and j.relevance > 0}
    if exclude_self and own:
        lost = f"; {len(answers):,} of them are judged relevant, leave --exclude-self out to count them"
        ignored = f"{source}: {counted(len(own), 'hit has', 'hits have')} the id of the query, ignored (--exclude-self)"
        return f"{ignored}{lost if answers else ''}"
    others = [query_id for query_id in own - answers if not query_id.isdecimal()]
    if others and not exclude_self:
        return (
            f"{source}: {counted(len(others), 'hit has', 'hits have')} the id of the query, "
            f"counted; if these passages are "
            f"the queries themselves, ignore them with --exclude-self"
        )
    return ""


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
    note: called with a message for every file that lacks judged queries, which count 0, whose hits are not judged, that
    has hits whose id is their query's own, or hits with equal scores whose order changes a mean by more than 0.001.

    Raises DrkitError for a file that cannot be read (naming the line), is empty, or ranks none of the judged queries.
    """
    names = measures or next((_read_results(s.run)["measures"] for s in systems if s.run), MEASURES)
    grades: dict[str, dict[str, int]] = {}
    for one in judged.judgements:
        grades.setdefault(one.query_id, {})[one.doc_id] = one.relevance
    results = []
    for system in systems:
        excludes_self = exclude_self or bool(system.run and _read_results(system.run)["exclude_self"])
        scores = []
        for path in system.files:
            rankings = _read_judged(path, grades.keys())
            scores.append(evaluate(rankings, judged.judgements, names, exclude_self=excludes_self))
            if note:
                own = note_own_hits(rankings, judged.judgements, path, exclude_self=excludes_self)
                bounds = order_bounds(rankings, judged.judgements, names, exclude_self=excludes_self)
                tied = describe_ties(str(path), tie_ranges(bounds), scores[-1].queries)
                notes = (_note_missing(rankings, grades, path), own, note_unjudged_hits(rankings, grades, path), tied)
                for text in filter(None, notes):
                    note(text)
        results.append((system.name, average(scores)))
    return results


def _note_missing(rankings: Rankings, grades: Mapping[str, Mapping[str, int]], source: Path) -> str:
    """Say how many queries with relevant passages a run lacks, and how their ids would match; nothing if none."""
    relevant = {query for query, judged in grades.items() if max(judged.values()) > 0}
    missing = len(relevant - rankings.ranked)
    if not missing:
        return ""
    likely = likely_match(rankings.ranked - grades.keys(), grades.keys() - rankings.ranked)
    matches = f"; of their ids, {likely}" if likely else ""
    return f"{source} has no hits for {missing:,} of the {counted(len(relevant), 'query')}: counted as 0{matches}"


def find_systems(given: Sequence[str]) -> list[System]:
    """Return the systems of each `RUN` (all of a run's folder, in table order), `RUN:SYSTEM` or TREC run file.

    Systems of a single run are named as in its table, those of several runs `RUN:SYSTEM`, and files by file name; of
    equal names, each gets as many of the folders above it as tell them apart.

    Raises DrkitError if a file or finished run does not exist, or a system is given twice.
    """
    several = len(given) > 1
    found = [system for text in given for system in _parse_systems(text, several)]
    return [evolve(one, name=_unique_name(one, [other for other in found if other.name == one.name])) for one in found]


def _unique_name(system: System, same: Sequence[System]) -> str:
    """Return the name of one of the systems of the `same` name, behind as many folders as tell them all apart."""
    folders = {one: (one.run or one.files[0]).absolute().parts[-2::-1] for one in same}
    for depth in range(max(map(len, folders.values())) + 1):
        if len({above[:depth] for above in folders.values()}) == len(same):
            return "/".join([*folders[system][:depth][::-1], system.name])
    raise DrkitError(f"the system {system.name!r} is given twice; give each once")


def export_rankings(run: str, folder: Path) -> list[Path]:
    """Write a TREC run for each system of a run, one per draw of a system with several; returns the files.

    Raises DrkitError as `find_systems` does, and for a file without hits.
    """
    rankings = [path for system in find_systems([run]) for path in system.files]
    written = {folder / f"{path.stem}.trec": path for path in rankings}
    for file, path in written.items():
        write_run(file, _read_ranked(path), path.stem)
    return list(written)


def find_judgements(
    systems: Sequence[System],
    *,
    qrels: Path | None = None,
    collection: str | None = None,
    split: str | None = None,
    settings: Sequence[str] = (),
) -> JudgedQueries:
    """Return the judgements of a file (TREC's or BEIR's format), of a collection's split, or of the systems' runs.

    collection, settings: see `NamedCollection`. split: test if None (for systems of a run: the split that the
    run was evaluated on).

    Raises DrkitError if nothing is given and no system belongs to a run, two runs have different judgements, or none
    has a relevance above 0, by which every system would get 0.
    """
    named = NamedCollection(collection, tuple(settings)) if collection is not None else None
    if qrels is not None:
        texts = _query_texts(named, split or "test") if named else {}
        return _with_relevant(JudgedQueries(tuple(read_qrels(qrels)), texts), qrels)
    if named is not None:
        return _with_relevant(_read_split(named, split or "test"), f"{collection} ({split or 'test'})")
    runs = list(dict.fromkeys(system.run for system in systems if system.run))
    if not runs:
        raise DrkitError(f"no judgements for {systems[0].files[0]}; give --qrels FILE or --collection NAME")
    first, *others = [_read_split(NamedCollection(str(r)), split or str(_read_results(r)["split"])) for r in runs]
    for run, other in zip(runs[1:], others, strict=True):
        if set(other.judgements) != set(first.judgements):
            raise DrkitError(f"{runs[0]} and {run} were evaluated with different judgements; give --qrels FILE")
    return first


def _with_relevant(judged: JudgedQueries, where: Path | str) -> JudgedQueries:
    """Return the judgements. Raises DrkitError if there are some, but none has a relevance above 0."""
    if judged.judgements and not any(judgement.relevance > 0 for judgement in judged.judgements):
        raise DrkitError(
            f"{where}: none of the {counted(len(judged.judgements), 'judgement')} has a relevance above 0, so "
            f"every system "
            f"would get 0; give judgements with a relevant passage (their grades may be in another column)"
        )
    return judged


def judge_by_answers(
    systems: Sequence[System],
    answers: Path,
    *,
    collection: str | None = None,
    settings: Sequence[str] = (),
) -> JudgedQueries:
    """Judge all hits of some systems: relevant is a passage that contains an answer of its query, as in DPR.

    answers: see `read_answers`. collection, settings: of the passages; those of the first system's run if None.
    Only hits are judged, so Success@k is what DPR reports as top-k accuracy, and recall is not meaningful.

    Raises DrkitError if a query has no answers in the file, all have empty lists of answers, or there are no passages
    to read.
    """
    read, asked = read_answers(require_file(str(answers), "the answers")), dict[str, dict[str, None]]()
    given = {query_id: answer_tokens(texts) for query_id, texts in read.items()}
    for file in (file for system in systems for file in system.files):
        for query_id, hits in read_run(file):
            if query_id not in given:
                raise DrkitError(f"{answers} has no answers of the query {query_id!r}; add a row for it")
            for doc_id, _ in hits:
                asked.setdefault(doc_id, {})[query_id] = None
    ranked = {query_id for queries in asked.values() for query_id in queries}
    if ranked and not any(given[query_id] for query_id in ranked):
        raise DrkitError(
            f"{answers}: all lists of answers of the {counted(len(ranked), 'query')} are empty; give their answers"
        )
    name = collection or next((str(system.run) for system in systems if system.run), None)
    if name is None:
        raise DrkitError(f"no passages to look for answers in; give --collection NAME beside {systems[0].files[0]}")
    judged = []
    for passage in NamedCollection(name, tuple(settings)).passages():
        queries = asked.pop(passage.doc_id, {})
        tokens = spaced_tokens(passage.content) if queries else ""
        judged += [
            Judgement(query, passage.doc_id, int(any(one in tokens for one in given[query]))) for query in queries
        ]
    if asked:
        raise DrkitError(f"{name} has no passage {next(iter(asked))!r}; give the collection that was searched")
    return JudgedQueries(tuple(judged))


def _parse_systems(text: str, several: bool) -> list[System]:
    path = local_path(text)
    if path.is_dir():
        systems = [_system_of_run(path, name) for name in _read_results(path)["runs"]]
        return [System(f"{path.name}:{s.name}", s.files, path) for s in systems] if several else systems
    run, colon, name = text.rpartition(":")
    if not path.exists() and colon and Path(run).is_dir():
        system = _system_of_run(Path(run), name)
        return [System(f"{Path(run).name}:{name}", system.files, Path(run))]
    path = input_path(text)
    if not path.exists():
        raise DrkitError(f"not found: {text}; {_WHAT_TO_GIVE}")
    name = path.name
    for ending in (*COMPRESSED, ".trec", ".arrow", ".json"):
        name = name.removesuffix(ending)
    return [System(name, (path,))]


def _system_of_run(run: Path, name: str) -> System:
    runs = _read_results(run)["runs"]
    if name not in runs:
        raise UnknownNameError("system", name, runs, where=run)
    is_fused = without_bm25(name) != name
    folder = run / (HYBRID_NAME if name == HYBRID_NAME else HYBRIDS if is_fused else _RUNS)
    files = tuple(folder / f"{draw}.arrow" for draw in runs[name])
    return System(name, files, run)


def _read_results(run: Path) -> Mapping[str, Any]:
    """Return the results of a run's evaluation, and how it was measured. Raises DrkitError if it has none."""
    manifest = read_manifest(run / _EVALUATION)
    if manifest is None and not (run / RECIPE).is_file():
        raise DrkitError(f"{run} is not a run (missing {RECIPE}); {_WHAT_TO_GIVE}")
    if manifest is None:
        raise missing_result(
            run, _EVALUATION, f"evaluate its encoder on another: `drkit evaluate --encoder {run} --collection NAME`"
        )
    return manifest.metrics


def _read_ranked(path: Path) -> Rankings:
    """Return the rankings of a file. Raises DrkitError if it has no hits."""
    rankings = read_run(path)
    if not rankings.ranked:
        raise DrkitError(f"{path} is empty: expected a line per retrieved passage")
    return rankings


def _read_judged(path: Path, judged: Set[str]) -> Rankings:
    """Return the rankings of a file. Raises DrkitError if none of its queries is judged."""
    rankings = _read_ranked(path)
    if judged and not rankings.ranked & judged:
        likely = likely_match(rankings.ranked, judged)
        advice = (
            f"{likely}: change the ids of one file" if likely else "give the judgements of its collection and split"
        )
        raise DrkitError(
            f"none of the {counted(len(rankings.ranked), 'query')} of {path} is judged; the judged queries have "
            f"ids such as "
            f"{min(judged)!r}: {advice}"
        )
    return rankings


def _read_split(collection: NamedCollection, split: str) -> JudgedQueries:
    judgements, texts = tuple(collection.judgements(split)), _query_texts(collection, split)
    if drops_unknown_ids(collection.source):
        passages = {passage.doc_id for passage in collection.passages()}
        judgements = tuple(one for one in judgements if one.query_id in texts and one.doc_id in passages)
    return JudgedQueries(judgements, texts)


def _query_texts(collection: NamedCollection, split: str) -> dict[str, str]:
    return {query.query_id: query.text for query in collection.queries(split)}
