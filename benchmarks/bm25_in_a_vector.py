"""How much of BM25 fits into a vector: the scores of a hybrid as one inner product, of retriever and BM25 together.

    python benchmarks/bm25_in_a_vector.py RUN [--seed 0]

RUN: a finished default run, whose exported encoder is the retriever. BM25's score is a sum over terms, so it is the
inner product of two sparse vectors, of the query's terms and of the passage's weights; a matrix of random signs maps
both to fewer dimensions, which keeps inner products up to noise (Johnson and Lindenstrauss). Each row appends that many
dimensions to the retriever's vectors, with the best of four weights on the dev queries: RR@10 / R@100 of the dev and
test queries. The last column is BM25 through these dimensions, by itself; the last row the exact hybrid.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import scipy.sparse as sparse
import Stemmer
import torch
from torch import Tensor

from drkit.data.corpus import StoredCollection, open_collection
from drkit.search.bm25 import split_words
from drkit.search.text_encoder import TextEncoder

WEIGHTS, DIMENSIONS = (0.01, 0.015, 0.02, 0.03), (512, 1024, 2048, 4096, None)
Scores = Callable[[slice], Tensor]  # of some queries with all passages, f[q,N]


def passage_weights(folder: Path) -> tuple[Any, dict[str, int]]:
    """Return BM25's weight of each term in each passage, a sparse matrix [N,V], and the number of each stem."""
    engine = bm25s.BM25.load(folder)
    parts = engine.scores
    shape = (parts["num_docs"], len(parts["indptr"]) - 1)
    return sparse.csc_matrix((parts["data"], parts["indices"], parts["indptr"]), shape).tocsr(), engine.vocab_dict


def query_terms(texts: list[str], terms: dict[str, int], count: int) -> Any:
    """Return how often each query has each term, a sparse matrix [Q,V]; unknown words are left out."""
    stem = Stemmer.Stemmer("english")
    found = [[terms[word] for word in stem.stemWords(split_words(text)) if word in terms] for text in texts]
    columns = np.array([term for row in found for term in row], dtype=np.int64)
    rows = np.repeat(np.arange(len(found)), [len(row) for row in found])
    return sparse.csr_matrix((np.ones(len(columns), dtype=np.float32), (rows, columns)), (len(texts), count))


def judged(collection: StoredCollection, split: str) -> tuple[list[str], Tensor]:
    """Return a split's queries with a relevant passage, and the index of the first one of each, i64[Q]."""
    positives = collection.positive_indices(split)
    queries = [query for query in collection.queries(split) if query.query_id in positives]
    return [query.text for query in queries], torch.tensor([int(positives[q.query_id][0]) for q in queries])


def measures(scores: Scores, own: Tensor) -> tuple[float, float]:
    """Return RR@10 and R@100; a query's rank is that of its passage."""
    ranks = []
    for start in range(0, len(own), 256):
        some = slice(start, min(start + 256, len(own)))
        found = scores(some)
        ranks.append(1 + (found > found.gather(1, own[some, None])).sum(1))
    rank = torch.cat(ranks).float()
    return float((rank.reciprocal() * (rank <= 10)).mean()), float((rank <= 100).float().mean())


def lexical_scores(weights: Any, terms: Any, dimensions: int | None, seed: int) -> Scores:
    """Return BM25's scores: exact, or through this many dimensions."""
    if dimensions is None:
        return lambda some: torch.from_numpy((terms[some] @ weights.T).toarray().astype(np.float32))
    draw = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (weights.shape[1], dimensions), generator=draw).float() * 2 - 1
    signs = (signs / dimensions**0.5).numpy()
    passages, queries = (torch.from_numpy(matrix @ signs).float() for matrix in (weights, terms))
    return lambda some: queries[some] @ passages.T


def added(queries: Tensor, passages: Tensor, words: Scores, weight: float) -> Scores:
    """Return the scores of the retriever and BM25's, added."""
    return lambda some: queries[some] @ passages.T + weight * words(some)


def shown(found: tuple[float, float]) -> str:
    return f"{found[0]:.3f} / {found[1]:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    run, collection = options.run, open_collection(options.run / "collection")
    weights, terms = passage_weights(run / "bm25")
    encoder = TextEncoder.load(run / "encoder")
    passages = torch.from_numpy(encoder.encode_passages([passage.content for passage in collection.corpus])).float()
    splits = {split: judged(collection, split) for split in ("dev", "test")}
    vectors = {split: torch.from_numpy(encoder.encode_queries(texts)).float() for split, (texts, _) in splits.items()}
    counts = {split: query_terms(texts, terms, weights.shape[1]) for split, (texts, _) in splits.items()}
    alone = {
        split: measures(lambda some, q=vectors[split]: q[some] @ passages.T, own) for split, (_, own) in splits.items()
    }
    print("| dimensions of BM25 | weight | dev | test | BM25 by itself, test |\n|---|---|---|---|---|")
    print(f"| none | | {shown(alone['dev'])} | {shown(alone['test'])} | |", flush=True)
    for dimensions in DIMENSIONS:
        words = {split: lexical_scores(weights, counts[split], dimensions, options.seed) for split in splits}
        found = {
            (split, weight): measures(added(vectors[split], passages, words[split], weight), own)
            for split, (_, own) in splits.items()
            for weight in WEIGHTS
        }
        best = max(WEIGHTS, key=lambda weight: found["dev", weight])
        cells = [
            shown(found["dev", best]),
            shown(found["test", best]),
            shown(measures(words["test"], splits["test"][1])),
        ]
        print(f"| {dimensions or 'all terms, exact'} | {best} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
