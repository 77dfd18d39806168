"""Use a cross-encoder on files: re-rank a TREC run, or score mined negatives as training data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field

from drkit.commands.inputs import NamedCollection
from drkit.core.files import replacing
from drkit.data.rows import Row, read_jsonl
from drkit.errors import DrkitError
from drkit.search import read_run, rerank, write_run
from drkit.search.reranking import in_order
from drkit.search.retrieve import batched
from drkit.train.teacher import Agreement

if TYPE_CHECKING:
    from drkit.search.reranking import Scorer

LINES_PER_BATCH = 64


def rerank_file(
    run: Path,
    scorer: Scorer,
    collection: NamedCollection,
    output: Path,
    *,
    split: str = "test",
    depth: int = 200,
    on_progress: Callable[[int], None] | None = None,
) -> Counter[str]:
    """Re-rank the first `depth` passages of every query of a TREC run, and write a run.

    Memory holds the texts of these passages. on_progress: called with the number of queries done. Returns counts:
    `ranked` queries, and what `drkit.search.rerank` reports as `missing`: `queries` (they keep their rankings) and
    `passages`.

    Raises DrkitError if the run cannot be read, or none of its queries or passages belongs to the collection.
    """
    queries = {query.query_id: query.text for query in collection.queries(split)}
    doc_ids = {
        doc_id for query, hits in read_run(run) if query in queries for doc_id, _ in in_order(hits)[: max(depth, 1)]
    }
    if not doc_ids:
        raise DrkitError(
            f"{run}: none of its queries is among the {split} queries of {collection.name}; give the collection of "
            f"the run (--collection), or another split (--split)"
        )
    texts = _texts(collection, doc_ids)
    if not texts:
        raise DrkitError(f"{run}: none of its passages is in {collection.name}; give the collection of the run")
    counts = Counter[str]()

    def rows() -> Iterator[tuple[str, list[tuple[str, float]]]]:
        for row in rerank(read_run(run), scorer, queries=queries, corpus=texts, depth=depth, missing=counts):
            counts["ranked"] += row[0] in queries
            if on_progress:
                on_progress(counts["ranked"])
            yield row

    write_run(output, rows(), tag="reranker")
    return counts


@define
class Distilled:
    """What `distill` wrote: queries, pairs, and the agreement of the teacher's scores with the judgements."""

    queries: int = 0
    pairs: int = 0
    agreement: Agreement = field(factory=Agreement)


def distill(
    negatives: Path,
    teacher: Scorer,
    collection: NamedCollection,
    output: Path,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> Distilled:
    """Score every positive and negative of a file written by `drkit mine`; writes training data with texts and scores.

    A line of `output`: query_id, query, positives and negatives (texts), positive_ids and negative_ids, positive_scores
    and negative_scores (raw scores of the teacher). Lines are streamed; memory holds the texts of these passages.
    on_progress: called with the number of lines done.

    Raises DrkitError, with file and line, for an invalid line, a passage that is not in the collection, or a score that
    is not finite.
    """
    doc_ids = {
        doc_id for line in read_jsonl(negatives) for name in ("positives", "negatives") for doc_id in _ids(line, name)
    }
    if not doc_ids:
        raise DrkitError(
            f"{negatives} names no passage; expected a file written by `drkit mine`, with a line per query"
        )
    texts = _texts(collection, doc_ids)
    done = Distilled()
    with replacing(output) as temporary, temporary.open("w", encoding="utf-8") as file:
        for lines in batched(read_jsonl(negatives), LINES_PER_BATCH):
            for row in _scored(lines, teacher, texts):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                done.queries += 1
                done.pairs += len(row["positives"]) + len(row["negatives"])
                done.agreement.add(row["positive_scores"], row["negative_scores"])
            if on_progress:
                on_progress(done.queries)
    return done


def _texts(collection: NamedCollection, doc_ids: set[str]) -> dict[str, str]:
    """Return the texts of these passages by id, as far as the collection has them, in one pass."""
    return {doc_id: text for doc_id, text in collection.contents() if doc_id in doc_ids}


def _scored(lines: Sequence[Row], teacher: Scorer, texts: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    groups = [(line, _ids(line, "positives"), _ids(line, "negatives")) for line in lines]
    pairs = [
        (line.text("query"), _text(line, doc_id, texts)) for line, *ids in groups for side in ids for doc_id in side
    ]
    scores = iter(teacher.score(pairs).tolist() if pairs else [])
    for line, positives, negatives in groups:
        row = {
            "query_id": line.id("query_id"),
            "query": line.text("query"),
            "positives": [texts[doc_id] for doc_id in positives],
            "negatives": [texts[doc_id] for doc_id in negatives],
            "positive_ids": positives,
            "negative_ids": negatives,
            "positive_scores": [next(scores) for _ in positives],
            "negative_scores": [next(scores) for _ in negatives],
        }
        for score in (*row["positive_scores"], *row["negative_scores"]):
            if score - score != 0:
                raise DrkitError(f"{line}: the teacher's score is {score}, not finite; its training may have diverged")
        yield row


def _ids(line: Row, name: str) -> list[str]:
    value = line.values.get(name)
    if not isinstance(value, list) or not all(isinstance(doc_id, str) and doc_id for doc_id in value):
        raise DrkitError(f"{line}: {name!r} must be a list of passage ids; give a file written by `drkit mine`")
    return value


def _text(line: Row, doc_id: str, texts: Mapping[str, str]) -> str:
    if doc_id not in texts:
        raise DrkitError(f"{line}: passage {doc_id!r} is not in the collection; give the collection that was mined")
    return texts[doc_id]
