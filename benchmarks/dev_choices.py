"""What choosing BM25's k1 and b, and the weight of a hybrid, on a few dev queries costs, simulated on real collections.

    python benchmarks/dev_choices.py beir:FOLDER .. [--encoder PATH_OR_ID] [--passages 5000] [--queries 1000]

The judged queries of a collection (at most `--queries`, of all splits) stand for all queries that there are. A draw
takes 30, 100 or 300 of them with replacement, chooses on these, and what it chose is evaluated on all of them. Shown
are means of RR@10 over the draws, less RR@10 of the plain choice: the first pair, the weight 0.5. `best`: the choice
with the best mean on the dev queries; `rule`: the best only if it gains more than one standard error
(`choose_plainly`). With `--encoder`, the hybrid of BM25 and this encoder is measured, on `--passages` passages,
those that are judged first, since encoding takes long; without it, BM25 on all passages.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from drkit.commands.collections import NamedCollection
from drkit.commands.inputs import open_encoder
from drkit.core.types import Judgement, Passage, Query
from drkit.evaluate import evaluate
from drkit.evaluate.tuning import HYBRID_WEIGHTS, choose_plainly
from drkit.recipe.evaluation import Evaluation
from drkit.search import Bm25Retriever, FlatIndex, Retriever, align, convex
from drkit.search.fusion import DEFAULT_WEIGHT, find_rankings

MEASURE, SIZES, DEPTH = "RR@10", (30, 100, 300), 1000
Values = Mapping[Any, Mapping[str, float]]  # RR@10 of each query under each choice, the plain one first


def judged_queries(collection: NamedCollection, most: int, seed: int) -> tuple[list[Query], list[Judgement]]:
    """Draw queries with judgements from all splits."""
    splits = collection.source.splits()
    judgements = [one for split in splits for one in collection.judgements(split)]
    judged = {one.query_id for one in judgements if one.relevance > 0}
    queries = [one for split in splits for one in collection.queries(split) if one.query_id in judged]
    drawn = np.random.default_rng(seed).permutation(len(queries))[:most]
    kept = [queries[number] for number in sorted(drawn)]
    asked = {query.query_id for query in kept}
    return kept, [one for one in judgements if one.query_id in asked]


def sampled(passages: Iterator[Passage], judgements: Sequence[Judgement], most: int, seed: int) -> list[Passage]:
    """Return the judged passages, and others drawn up to this number."""
    everything, judged = list(passages), {one.doc_id for one in judgements}
    order = np.random.default_rng(seed).permutation(len(everything))
    first = sorted(order, key=lambda number: everything[number].doc_id not in judged)
    return [everything[number] for number in first[: max(most, len(judged))]]


def bm25_values(passages: Iterator[Passage], queries: Sequence[Query], judgements: Sequence[Judgement]) -> Values:
    """Return the values of each pair of k1 and b."""
    pairs = list(product(Evaluation().bm25_k1, Evaluation().bm25_b))
    ids, texts = [query.query_id for query in queries], [query.text for query in queries]
    made = zip(pairs, Bm25Retriever.variants(passages, pairs), strict=True)
    runs = ((pair, retriever.rankings(ids, texts, 10)) for pair, retriever in made)
    return {pair: evaluate(run, judgements, [MEASURE]).per_query[MEASURE] for pair, run in runs}


def hybrid_values(
    encoder: str, passages: Sequence[Passage], queries: Sequence[Query], judgements: Sequence[Judgement]
) -> Values:
    """Return the values of each weight of a hybrid of BM25 and an encoder."""
    opened = open_encoder(encoder)
    vectors = opened.encode_passages([passage.content for passage in passages])
    dense = Retriever(opened, FlatIndex.build(vectors, [passage.doc_id for passage in passages]))
    ids, texts = [query.query_id for query in queries], [query.text for query in queries]
    words, found = (find_rankings(one, ids, texts, DEPTH) for one in (Bm25Retriever().index(passages), dense))
    nearest = sorted(HYBRID_WEIGHTS, key=lambda weight: (abs(weight - DEFAULT_WEIGHT), weight))
    runs = ((weight, convex(align(words, found), weight, 10)) for weight in nearest)
    return {weight: evaluate(run, judgements, [MEASURE]).per_query[MEASURE] for weight, run in runs}


def simulate(values: Values, size: int, draws: int, seed: int) -> tuple[float, float]:
    """Return the mean gain over the plain choice of the best choice, and of the rule's, on dev queries of this size."""
    drawing, queries = np.random.default_rng(seed), sorted(next(iter(values.values())))
    means = {choice: float(np.mean([*one.values()])) for choice, one in values.items()}
    gains = []
    for _ in range(draws):
        drawn = [queries[number] for number in drawing.integers(len(queries), size=size)]
        dev = {choice: {str(n): one[query] for n, query in enumerate(drawn)} for choice, one in values.items()}
        found = choose_plainly(dev)
        gains.append([means[found.best] - means[found.plain], means[found.chosen] - means[found.plain]])
    best, rule = np.mean(gains, axis=0)
    return float(best), float(rule)


def describe(values: Values, named: Callable[[Any], str], fixed: Hashable, draws: int, seed: int) -> list[str]:
    """Return the cells of a collection's row: the plain choice's value, the fixed one's gain, then pairs of gains."""
    means = {choice: float(np.mean([*one.values()])) for choice, one in values.items()}
    plain = next(iter(values))
    print(f"  queries {len(values[plain]):,}", ", ".join(f"{named(one)}: {mean:.4f}" for one, mean in means.items()))
    cells = [f"{means[plain]:.3f}", *([f"{means[fixed] - means[plain]:+.4f}"] if fixed is not None else [])]
    return [*cells, *(" / ".join(f"{gain:+.4f}" for gain in simulate(values, n, draws, seed)) for n in SIZES)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="+")
    parser.add_argument("--encoder")
    parser.add_argument("--passages", type=int, default=5000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rows = []
    for name in options.collections:
        collection = NamedCollection(name)
        queries, judgements = judged_queries(collection, options.queries, options.seed)
        if options.encoder:
            passages = sampled(collection.passages(), judgements, options.passages, options.seed)
            values = hybrid_values(options.encoder, passages, queries, judgements)
            cells = describe(values, lambda weight: f"{weight:g}", 0.3, options.draws, options.seed)
        else:
            values = bm25_values(collection.passages(), queries, judgements)
            cells = describe(values, lambda pair: f"k1 {pair[0]:g} b {pair[1]:g}", None, options.draws, options.seed)
        rows.append([name, f"{len(queries):,}", *cells])
    sizes = [f"{size} dev queries: best / rule" for size in SIZES]
    head = ["collection", "queries", *(["0.5", "0.3"] if options.encoder else ["first pair"]), *sizes]
    for row in (head, ["---"] * len(head), *rows):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
