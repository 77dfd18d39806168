"""Negatives from a ranking that stands in a file: any retriever's, in TREC's format."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from attrs import evolve

from drkit.core.protocols import Corpus
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.errors import DrkitError
from drkit.miners.chain import counted
from drkit.miners.config import RunFileConfig
from drkit.miners.known import KnownIds
from drkit.miners.ranking import negatives_of
from drkit.search.retrieve import batched
from drkit.search.trec import read_run

_ROWS = 256
_SCHEMA = pa.schema([("doc_ids", pa.large_list(pa.large_string())), ("scores", pa.large_list(pa.float64()))])


class RunFileMiner:
    """The best-ranked passages of a TREC run file that are no judged positive of the query.

    Ids that the corpus lacks are left out and counted (`unknown-id`); a query that the file lacks gets no negatives
    (`query-not-in-run`, counted in queries). Memory: a place a query; the rankings go through a temporary file.
    """

    def __init__(self, config: RunFileConfig, context: BuildContext | None = None) -> None:  # noqa: ARG002
        if not config.path:
            raise DrkitError("the run-file miner needs a file: run-file:PATH, or its setting path")
        self.config = config
        self._rankings: Rankings | None = None
        self._known: KnownIds | None = None

    @property
    def depth(self) -> int:
        """How deep the ranking is that negatives are drawn from."""
        return self.config.depth

    def index(self, corpus: Corpus) -> None:
        """Read the file, one query at a time. Raises DrkitError, with file and line, where it is no run."""
        self._rankings, self._known = Rankings(Path(self.config.path).expanduser()), KnownIds(corpus)

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Up to `depth` negatives a request, best first, in the requests' order. Raises DrkitError before `index`."""
        if self._rankings is None or self._known is None:
            raise DrkitError("the run-file miner has no corpus yet; call index(corpus) before mine(requests, depth)")
        for batch in batched(requests, _ROWS):
            for request in batch:
                yield self._answer(request, self._rankings, self._known, depth)

    def _answer(self, request: MiningRequest, rankings: Rankings, known: KnownIds, depth: int) -> Mined:
        ranking = rankings.get(request.query_id)
        if ranking is None:
            return Mined(request.query_id, (), (), dropped={"query-not-in-run": 1})
        there = known(list(ranking))
        hits = {doc_id: score for (doc_id, score), is_known in zip(ranking.items(), there, strict=True) if is_known}
        positives = {doc_id: ranking[doc_id] for doc_id in sorted(request.positives) if doc_id in ranking}
        found = negatives_of(request, (tuple(hits), tuple(hits.values())), depth, positive_scores=positives)
        return evolve(found, dropped=counted(found, unknown_id=len(ranking) - len(hits)))


class Rankings:
    """The rankings of a run file by query, on disk: best first, ties as trec_eval breaks them."""

    def __init__(self, path: Path) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="drkit-run-")
        file = Path(self._scratch.name) / "rankings.arrow"
        self._rows: dict[str, int] = {}
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
            for batch in batched(read_run(path), _ROWS):
                for query_id, _ in batch:
                    self._rows[query_id] = len(self._rows)
                ranked = [sorted(hits, key=lambda hit: (hit[1], hit[0]), reverse=True) for _, hits in batch]
                columns = [[[hit[side] for hit in hits] for hits in ranked] for side in (0, 1)]
                arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
                writer.write_batch(pa.record_batch(arrays, schema=_SCHEMA))
        reader: Any = pa.ipc.open_file(pa.memory_map(str(file)))
        self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]

    def get(self, query_id: str) -> dict[str, float] | None:
        """Scores by passage, best first; None where the file lacks the query."""
        row = self._rows.get(query_id)
        if row is None:
            return None
        doc_ids, scores = (column[row % _ROWS].as_py() for column in self._batches[row // _ROWS].columns)
        return dict(zip(doc_ids, scores, strict=True))
