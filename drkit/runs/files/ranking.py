"""A cross-encoder's work on files: a run ranked anew, and mined negatives made into training data with its scores."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from drkit.core.files import replacing
from drkit.data.rows import Row, read_jsonl
from drkit.errors import DrkitError
from drkit.runs.files.searching import passages_of, queries_of
from drkit.runs.finetuning.agreement import Agreement
from drkit.search import read_run, rerank, write_run
from drkit.search.hits import batched
from drkit.search.reranking import in_order

if TYPE_CHECKING:
    from drkit.search.reranking import Scorer

Told = Callable[[int], None]
LINES = 64


@frozen
class Source:
    """Where texts come from: a run's folder, or a collection as `compose` takes it, and settings of that."""

    collection: str
    settings: tuple[str, ...] = ()

    def queries(self, split: str) -> dict[str, str]:
        """The texts of a split's queries, by id. Raises DrkitError where there is no such split."""
        return {query.query_id: query.text for query in queries_of(self.collection, split, self.settings)}

    def passages(self, doc_ids: set[str]) -> dict[str, str]:
        """Title and text of these passages, by id, where the collection has them: it is gone through once."""
        texts = passages_of(self.collection, self.settings)
        return {doc_id: text for doc_id, text in texts if doc_id in doc_ids}


def rerank_file(
    run: Path,
    scorer: Scorer,
    source: Source,
    output: Path,
    *,
    split: str = "test",
    depth: int = 200,
    told: Told | None = None,
) -> Counter[str]:
    """Rank the first `depth` passages of every query of a TREC run anew, and write a run.

    Memory holds the texts of the passages that are read. told: how many queries are done. Returns counts: `ranked`
    queries, and what `drkit.search.rerank` found `missing`: `queries` (their rankings are kept), `passages`.

    Raises DrkitError where the run cannot be read, or none of its queries or passages is the collection's.
    """
    queries = source.queries(split)
    wanted = {
        doc_id for query, hits in read_run(run) if query in queries for doc_id, _ in in_order(hits)[: max(depth, 1)]
    }
    if not wanted:
        raise DrkitError(
            f"{run}: none of its queries is among the {split} queries of {source.collection}; give the run's own "
            f"collection (--collection), or another split (--split)"
        )
    texts = source.passages(wanted)
    if not texts:
        raise DrkitError(f"{run}: none of its passages is in {source.collection}; give the run's own collection")
    counts = Counter[str]()

    def rows() -> Iterator[tuple[str, list[tuple[str, float]]]]:
        for row in rerank(read_run(run), scorer, queries=queries, corpus=texts, depth=depth, missing=counts):
            counts["ranked"] += row[0] in queries
            if told:
                told(counts["ranked"])
            yield row

    write_run(output, rows(), tag="reranker")
    return counts


@define
class Distilled:
    """What `distill` wrote: queries, pairs, and how well the teacher's scores go with the judgements."""

    queries: int = 0
    pairs: int = 0
    agreement: Agreement = field(factory=Agreement)


def distill(negatives: Path, teacher: Scorer, source: Source, output: Path, *, told: Told | None = None) -> Distilled:
    """Score every positive and negative of a file that `drkit mine` wrote; training data with texts and scores.

    A line of `output`: query_id, query, positives and negatives (texts), positive_ids and negative_ids, positive_scores
    and negative_scores (the teacher's, raw). Lines stream; memory holds the texts of the passages named. told: how many
    lines are done.

    Raises DrkitError, with file and line, for a line of another shape, a passage that the collection does not have, or
    a score that is no finite number.
    """
    wanted = {
        doc_id for line in read_jsonl(negatives) for name in ("positives", "negatives") for doc_id in _ids(line, name)
    }
    if not wanted:
        raise DrkitError(f"{negatives} names no passage; `drkit mine` writes a line a query")
    texts = source.passages(wanted)
    done = Distilled()
    with replacing(output) as temporary, temporary.open("w", encoding="utf-8") as file:
        for lines in batched(read_jsonl(negatives), LINES):
            for row in _scored(lines, teacher, texts):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                done.queries += 1
                done.pairs += len(row["positives"]) + len(row["negatives"])
                done.agreement.add(row["positive_scores"], row["negative_scores"])
            if told:
                told(done.queries)
    return done


def _scored(lines: Sequence[Row], teacher: Scorer, texts: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    asked = [(line, _ids(line, "positives"), _ids(line, "negatives")) for line in lines]
    pairs = [
        (line.text("query"), _text(line, doc_id, texts)) for line, *ids in asked for side in ids for doc_id in side
    ]
    scores = iter(teacher.score(pairs).tolist() if pairs else [])
    for line, positives, negatives in asked:
        own = {
            "query_id": line.id("query_id"),
            "query": line.text("query"),
            "positives": [texts[doc_id] for doc_id in positives],
            "negatives": [texts[doc_id] for doc_id in negatives],
            "positive_ids": positives,
            "negative_ids": negatives,
            "positive_scores": [next(scores) for _ in positives],
            "negative_scores": [next(scores) for _ in negatives],
        }
        for score in (*own["positive_scores"], *own["negative_scores"]):
            if score - score != 0:
                raise DrkitError(f"{line}: the teacher gave {score}, no finite number; its training may have diverged")
        yield own


def _ids(line: Row, name: str) -> list[str]:
    value = line.values.get(name)
    if not isinstance(value, list) or not all(isinstance(doc_id, str) and doc_id for doc_id in value):
        raise DrkitError(f"{line}: {name!r} is no list of passage ids; give a file that `drkit mine` wrote")
    return value


def _text(line: Row, doc_id: str, texts: Mapping[str, str]) -> str:
    if doc_id not in texts:
        raise DrkitError(f"{line}: the collection has no passage {doc_id!r}; give the one that was mined in")
    return texts[doc_id]
