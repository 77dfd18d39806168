"""The systems of a page: their table, with bootstrap intervals and tests, and the queries on which they differ most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, zip_longest
from typing import Any

from attrs import evolve, field, frozen

from drkit.charts import Intervals
from drkit.commands.records import RunRecord, is_comparable
from drkit.core.files import digest
from drkit.core.quantities import counted
from drkit.data.corpus import StoredCollection
from drkit.errors import UnknownNameError
from drkit.evaluate.measures import Scores
from drkit.evaluate.names import BM25_NAME, HYBRID_NAME, STARTS, system_name
from drkit.evaluate.significance import RESAMPLES, mean_intervals
from drkit.evaluate.systems import LEVEL, Versus, compare, format_p
from drkit.recipe.schema import is_baseline
from drkit.search import read_run

# Systems that say nothing about a recipe: what it starts from, and what it is compared with.
_SHARED = (BM25_NAME, HYBRID_NAME, *STARTS)
PASSAGES = 5  # of each system and query
_JUDGED = 5  # relevant passages of a query that are listed in any case
_LONGEST = 600  # characters of a passage


@frozen
class ReportedSystem:
    """A system of the page: its name there, the run it belongs to, its name in that run, and its values per query."""

    name: str
    run: RunRecord
    system: str
    scores: Scores


@frozen
class Cell:
    """One value of the table as text: the mean, its interval, and the test against the baseline (empty for itself).

    verdict: `better` or `worse` if the difference is significant after correction, else empty.
    """

    mean: str
    interval: str
    difference: str = ""
    test: str = ""
    verdict: str = ""


@frozen
class Row:
    """One system against one baseline: a cell per measure, and its wins, ties and losses by the first measure."""

    system: str
    cells: tuple[Cell, ...]
    wins: int = 0
    ties: int = 0
    losses: int = 0


@frozen
class SystemTable:
    """Rows of all systems for each baseline; `chosen` is the index of the baseline that is shown first."""

    measures: tuple[str, ...]
    queries: int
    names: tuple[str, ...]
    chosen: int
    bodies: tuple[tuple[Row, ...], ...]
    intervals: Mapping[str, Sequence[tuple[float, float]]]
    means: Mapping[str, Sequence[float]]

    @property
    def caption(self) -> str:
        """How intervals and tests were computed."""
        return (
            f"In brackets: 95 % intervals of the mean, by percentile bootstrap over the "
            f"{counted(self.queries, 'query')} "
            f"({RESAMPLES:,} resamples). Below: the difference to the baseline with its p-value from a paired "
            f"two-tailed t-test, corrected by Holm over all tests against this baseline; \u25b2 and \u25bc mark "
            f"corrected p < {LEVEL}. Wins, ties and losses count queries by {self.measures[0]}."
        )


def systems_of(runs: Sequence[RunRecord]) -> list[ReportedSystem]:
    """Return the systems that a page compares: all of a single run; of several, BM25 and a retriever of each run.

    Empty if the runs were evaluated on different queries.
    """
    if not is_comparable(runs):
        return []
    if len(runs) == 1:
        names = runs[0].scores
        return [ReportedSystem(system_name(n), runs[0], n, scores) for n, scores in names.items()]
    bm25 = [run.scores[BM25_NAME].per_query if BM25_NAME in run.scores else None for run in runs]
    is_shared = bm25[0] is not None and all(one == bm25[0] for one in bm25)
    found = [ReportedSystem(system_name(BM25_NAME), runs[0], BM25_NAME, runs[0].scores[BM25_NAME])] if is_shared else []
    for run in runs:
        if run.results is not None:
            found.append(ReportedSystem(run.name, run, run.compared, run.scores[run.compared]))
    return found


def choose_compared(runs: Sequence[RunRecord], name: str | None) -> list[RunRecord]:
    """Return the runs, each with the system that is compared with those of the others.

    name: of the system in every run; None: the last retriever that all runs have and that differs between them, or, if
    no system does, the system of each run's verdict.

    Raises DrkitError if a run lacks the system.
    """
    shared = [one for one in runs[0].scores if all(one in run.scores for run in runs)]
    if name is not None and name not in shared:
        raise UnknownNameError("system", name, shared, advice="name one that every run has")
    own = [one for one in shared if one not in _SHARED and not is_baseline(one)]
    differing = [one for one in own if len({_content_hashes(run, one) for run in runs}) > 1]
    chosen = name or next(reversed(differing), "")
    return [evolve(run, system=chosen) for run in runs]


def compared_notes(runs: Sequence[RunRecord]) -> Iterator[str]:
    """Yield which system of each run is compared, and which of these are the same, byte for byte."""
    evaluated = [run for run in runs if run.results is not None]
    systems = {run.name: system_name(run.compared) for run in evaluated}
    if len(set(systems.values())) == 1:
        yield f"Each run is represented by its system {next(iter(systems.values()))!r}."
    elif systems:
        yield f"The runs are represented by: {', '.join(f'{name}: {system}' for name, system in systems.items())}."
    for one, other in combinations(evaluated, 2):
        if _content_hashes(one, one.compared) == _content_hashes(other, other.compared):
            yield (
                f"{systems[one.name]} of {one.name} and {systems[other.name]} of {other.name} are the same encoder, "
                f"byte for byte: the comparison says nothing about the recipes. Choose another system (--system)."
            )


def _content_hashes(run: RunRecord, name: str) -> tuple[str, ...]:
    """Return hashes of what a system of a run is made of: its encoders, or its values for one without a stage."""
    draws = run.results.runs[name] if run.results else ()
    if all(draw in run.manifests for draw in draws):
        return tuple(run.manifests[draw].content() for draw in draws)
    return (digest(run.scores[name].per_query),)


def baseline_index(systems: Sequence[ReportedSystem], name: str | None) -> int:
    """Return the index of the baseline: the requested system, by either name, or BM25, or the first system.

    Raises DrkitError if no system has that name.
    """
    for index, system in enumerate(systems):
        if (name or BM25_NAME) in (system.name, system.system):
            return index
    if name is not None and systems:
        raise UnknownNameError("baseline", name, [system.name for system in systems])
    return 0


def system_table(systems: Sequence[ReportedSystem], chosen: int) -> SystemTable:
    """Return the table of at least one system; chosen: the index of the baseline to show first."""
    measures = systems[0].scores.measures
    intervals = {m: mean_intervals([one.scores for one in systems], m) for m in measures}
    return SystemTable(
        measures=measures,
        queries=systems[0].scores.queries,
        names=tuple(one.name for one in systems),
        chosen=chosen,
        bodies=tuple(_table_body(systems, index, intervals) for index in range(len(systems))),
        intervals=intervals,
        means={m: [one.scores.mean(m) for one in systems] for m in measures},
    )


def _table_body(
    systems: Sequence[ReportedSystem], baseline: int, intervals: Mapping[str, Sequence[tuple[float, float]]]
) -> tuple[Row, ...]:
    """Return a row per system, tested against one of them."""
    others = [(one.name, one.scores) for index, one in enumerate(systems) if index != baseline]
    named = [(systems[baseline].name, systems[baseline].scores), *others]
    tests = {(one.system, one.measure): one for one in compare(named)} if others else {}
    rows = []
    for index, one in enumerate(systems):
        cells = tuple(
            _cell(one.scores.mean(m), intervals[m][index], tests.get((one.name, m))) for m in one.scores.measures
        )
        first = tests.get((one.name, one.scores.measures[0]))
        rows.append(Row(one.name, cells, *((first.wins, first.ties, first.losses) if first else ())))
    return tuple(rows)


def _cell(mean: float, interval: tuple[float, float], versus: Versus | None) -> Cell:
    low, high = interval
    bounds = "" if low != low else f"{low:.3f}\u2013{high:.3f}"
    if versus is None:
        return Cell(f"{mean:.3f}", bounds)
    is_significant = versus.corrected < LEVEL
    return Cell(
        mean=f"{mean:.3f}",
        interval=bounds,
        difference=f"{versus.test.difference:+.3f}",
        test=format_p(versus.corrected),
        verdict=("better" if versus.test.difference > 0 else "worse") if is_significant else "",
    )


def interval_chart(table: SystemTable) -> Intervals:
    """Return the means and intervals of a table as a drawing."""
    measures = {
        measure: [(mean, *ends) for mean, ends in zip(table.means[measure], table.intervals[measure], strict=True)]
        for measure in table.measures
    }
    return Intervals("Means and 95 % intervals", table.names, measures)


@frozen
class QueryHits:
    """The top passages of a query by one system, as (passage id, score), and the rank of the first relevant one."""

    top: tuple[tuple[str, float], ...] = ()
    first_relevant: int | None = None


@frozen(eq=False)
class QueryDetails:
    """The shown queries of a page.

    opened: the index of the system that is shown first. total: number of all evaluated queries. texts: of queries, by
    id. hits: by query and system. judged: the grades of judged passages, by query. everything: the values of all
    queries by the first measure, by system. passages: texts by id, cut to a maximum length.
    """

    systems: tuple[str, ...]
    opened: int
    measures: tuple[str, ...]
    total: int
    ids: tuple[str, ...]
    values: Mapping[str, Sequence[Sequence[float]]]
    texts: Mapping[str, str]
    hits: Mapping[str, Sequence[QueryHits]]
    judged: Mapping[str, Mapping[str, int]]
    everything: Sequence[Sequence[float]]
    passages: Mapping[str, str] = field(factory=dict)

    def as_data(self) -> dict[str, Any]:
        """Return plain data for the page's script: passages by index, everything else by query."""
        index = {doc_id: position for position, doc_id in enumerate(self.passages)}
        return {
            "systems": list(self.systems),
            "opened": self.opened,
            "measures": list(self.measures),
            "everything": [[round(value, 3) for value in values] for values in self.everything],
            "passages": [{"id": doc_id, "text": text} for doc_id, text in self.passages.items()],
            "queries": [
                {
                    "id": query_id,
                    "text": self.texts.get(query_id, ""),
                    "values": [[round(value, 4) for value in row] for row in self.values[query_id]],
                    "hits": [[[index[doc], round(score, 4)] for doc, score in one.top] for one in self.hits[query_id]],
                    "first": [one.first_relevant for one in self.hits[query_id]],
                    "judged": [[index[doc], grade] for doc, grade in self.judged[query_id].items() if doc in index],
                    "relevant": sum(grade > 0 for grade in self.judged[query_id].values()),
                }
                for query_id in self.ids
            ],
        }


def spread_over_gains(systems: Sequence[ReportedSystem], baseline: int, count: int) -> list[str]:
    """Return the ids of at most `count` queries: those of each system's largest and smallest gains, and evenly between.

    Gains are those against the baseline by the first measure, without ties; losses are negative gains. Each system gets
    an equal share, and queries where no system differs fill up, spread over their values.
    """
    measure = systems[0].scores.measures[0]
    against = (systems[baseline].name, systems[baseline].scores)
    others = [(one.name, one.scores) for index, one in enumerate(systems) if index != baseline]
    lists = []
    for other in others:
        (found,) = compare([against, other], [measure], shown=against[1].queries)
        changed = [change.query_id for change in (*found.gained, *reversed(found.lost))]
        lists.append(_spread(changed, -(-count // len(others))))
    in_turns = (query_id for row in zip_longest(*lists) for query_id in row if query_id is not None)
    chosen = list(dict.fromkeys(in_turns))[:count]
    values = against[1].per_query[measure]
    rest = sorted(values.keys() - set(chosen), key=lambda query_id: (values[query_id], query_id))
    return [*chosen, *_spread(rest, count - len(chosen))]


def _spread(items: Sequence[str], count: int) -> list[str]:
    """Return `count` of the items, evenly spaced from the first to the last; all if there are fewer."""
    if len(items) <= count:
        return list(items)
    return [items[round(index * (len(items) - 1) / max(count - 1, 1))] for index in range(count)]


def query_details(
    systems: Sequence[ReportedSystem], collection: StoredCollection, split: str, ids: Sequence[str]
) -> QueryDetails:
    """Return the details of these queries; reads the rankings of every system, and the passages that are shown."""
    chosen = set(ids)
    judged: dict[str, dict[str, int]] = {query_id: {} for query_id in ids}
    for judgement in collection.judgements(split):
        if judgement.query_id in chosen:
            judged[judgement.query_id][judgement.doc_id] = judgement.relevance
    per_system = [_read_hits(system, judged) for system in systems]
    hits = {query_id: [found.get(query_id, QueryHits()) for found in per_system] for query_id in ids}
    shown: dict[str, None] = {}
    for query_id in ids:
        grades = judged[query_id]
        relevant = sorted((doc_id for doc_id in grades if grades[doc_id] > 0), key=grades.__getitem__, reverse=True)
        found_first = [doc_id for one in hits[query_id] for doc_id, _ in one.top]
        shown |= dict.fromkeys([*found_first, *relevant[:_JUDGED]])
    measures = systems[0].scores.measures
    measured = [one.run.measured[one.system] for one in systems]
    first = [scores.per_query[measures[0]] for scores in measured]
    order = sorted(first[0])
    return QueryDetails(
        systems=tuple(system.name for system in systems),
        opened=next((n for n, one in enumerate(systems) if one.system == one.run.compared), len(systems) - 1),
        measures=measures,
        total=systems[0].scores.queries,
        ids=tuple(ids),
        values={q: [[scores.per_query[m][q] for scores in measured] for m in measures] for q in ids},
        texts={query.query_id: query.text for query in collection.queries(split) if query.query_id in chosen},
        hits=hits,
        judged=judged,
        everything=[[values[q] for q in order] for values in first],
        passages=_read_passages(collection, list(shown)),
    )


def _read_hits(system: ReportedSystem, judged: Mapping[str, Mapping[str, int]]) -> dict[str, QueryHits]:
    """Return the hits of the judged queries, of the first draw if the system averages several."""
    file = system.run.systems[system.system].files[0]
    excludes_self = system.run.results is not None and system.run.results.exclude_self
    found = {}
    rankings = read_run(file)
    for row, query_id in enumerate(rankings.query_ids):
        if query_id in judged:
            kept = [hit for hit in rankings.pairs(row) if not (excludes_self and hit[0] == query_id)]
            grades = judged[query_id]
            first = next((rank for rank, (doc_id, _) in enumerate(kept, 1) if grades.get(doc_id, 0) > 0), None)
            found[query_id] = QueryHits(tuple(kept[:PASSAGES]), first)
    return found


def _read_passages(collection: StoredCollection, doc_ids: Sequence[str]) -> dict[str, str]:
    """Return the texts of passages, cut to a maximum length; an id that is not a passage has no text."""
    rows = collection.corpus.find(doc_ids)
    known = [doc_id for doc_id, row in zip(doc_ids, rows.tolist(), strict=True) if row >= 0]
    texts = {passage.doc_id: _cut(passage.content) for passage in collection.corpus.get_many(known)}
    return {doc_id: texts.get(doc_id, "") for doc_id in doc_ids}


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rstrip()} \u2026"
