"""A finished run from Python: search it, encode texts with its encoder, read its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from attrs import field, frozen

from drkit.commands import RunRecord, best_system, open_encoder, open_run, open_system, search_systems
from drkit.commands.inputs import OpenedEncoder
from drkit.core.registry import installed
from drkit.errors import UnknownNameError
from drkit.evaluate.names import system_name
from drkit.search.fusion import Searcher

_KINDS = ("passage", "query")


@frozen
class Hit:
    """A passage that was found: its id, its score, and its title (may be empty) and text."""

    id: str
    score: float
    title: str
    text: str


class ResultTable(list[dict[str, Any]]):
    """A row for each system: `system`, and its mean by each measure; `print` aligns them.

    >>> print(ResultTable([{"system": "BM25", "RR@10": 0.504}, {"system": "hybrid", "RR@10": 0.5061}]))
    system  RR@10
    BM25    0.504
    hybrid  0.506
    """

    def __str__(self) -> str:
        names = list(self[0]) if self else []
        lines = [names, *([_shown(row[name]) for name in names] for row in self)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _shown(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


@frozen(slots=False, eq=False)
class FinishedRun:
    """A finished run: searches with each of its systems, and encodes with its exported encoder.

    record: what its folder records, such as `record.table()` with intervals and tests. device: of its encoders.
    """

    record: RunRecord
    device: str = "auto"
    _searchers: dict[tuple[str, str | None], Searcher] = field(factory=dict, init=False, repr=False)

    @cached_property
    def systems(self) -> tuple[str, ...]:
        """The names of the systems that can search, as in the run's table."""
        return tuple(search_systems(self.record.folder))

    @cached_property
    def best(self) -> str:
        """The name of the system that `search` uses, the best one on the dev queries; see `best_system`."""
        return best_system(self.record.folder)

    @cached_property
    def encoder(self) -> OpenedEncoder:
        """The exported encoder; `encode_passages` and `encode_queries` return vectors."""
        return open_encoder(self.encoder_folder, device=self.device)

    @property
    def encoder_folder(self) -> Path:
        """The folder of the exported encoder, for `SentenceTransformer(folder)`."""
        return self.record.folder / "encoder"

    def search(self, query: str, k: int = 10, system: str | None = None, data_set: str | None = None) -> list[Hit]:
        """Return the best `k` passages for a query, best first; system: one of `systems` (None: `best`).

        data_set: whose passages are searched, which a run with several data sets needs.

        Raises DrkitError for an empty query, or a system or data set that the run does not have.
        """
        name = self.best if system is None else system
        key = name, data_set
        if key not in self._searchers:
            how: Mapping[str, Any] = {} if name == "bm25" else {"device": self.device}
            self._searchers[key] = open_system(self.record.folder, name, data_set=data_set, **how)
        (hits,) = self._searchers[key].search([query], k)
        collection = self.record.collection
        passages = collection.corpus.get_many(hits.doc_ids) if collection else []
        return [
            Hit(one.doc_id, float(score), one.title, one.text) for one, score in zip(passages, hits.scores, strict=True)
        ]

    def encode(self, texts: Sequence[str], kind: str = "passage") -> Any:
        """Return the vectors f32[n,D] of n texts by the exported encoder; kind: `passage` or `query`.

        Passages with titles are given as `encoder.read(passage)` returns them. Raises DrkitError for another kind.
        """
        if kind not in _KINDS:
            raise UnknownNameError("kind of text", kind, _KINDS)
        listed = [texts] if isinstance(texts, str) else list(texts)
        return self.encoder.encode_queries(listed) if kind == "query" else self.encoder.encode_passages(listed)

    @property
    def data_sets(self) -> tuple[str, ...]:
        """The names of several labelled data sets; none of a run with a single collection."""
        return self.record.recipe.data_sets

    def table(self, data_set: str | None = None) -> ResultTable:
        """Return the run's table, a row for each system; empty if the run has no evaluation.

        data_set: whose queries are evaluated, in a run with several; None: the average over data sets. Raises
        UnknownNameError for a data set that the run does not have.
        """
        if data_set is not None and data_set not in self.data_sets:
            raise UnknownNameError("data set", data_set, self.data_sets, where=self.record.folder)
        scores = self.record.scores if data_set is None else self.record.scores_of(data_set)
        return ResultTable(
            {"system": system_name(name), **{measure: one.mean(measure) for measure in one.measures}}
            for name, one in scores.items()
        )


def load(run: str | Path, *, device: str = "auto") -> FinishedRun:
    """Open a finished run to search and encode with; its encoder and indexes are loaded when they are first used.

    device: auto, cpu, cuda ..

    Raises DrkitError if the folder is not a run, or its encoder or index is not finished.
    """
    finished = FinishedRun(open_run(Path(run), installed()), device)
    search_systems(run)
    return finished
