"""BM25: drkit's exact search and the scores of given passages, against bm25s' own `retrieve`; milliseconds a query.

    python benchmarks/bm25.py [--passages 40000 1000000] [--queries 200] [--depth 200] [--runs 3] [--json FILE]

Texts are drawn from a vocabulary whose words fall off as Zipf's do: passages of 30 words, queries of 4. All search the
same index, in one process and one thread, in turns; the best of the runs is shown, and all must find the same scores.
bm25s' compiled search (`numba`) is measured where numba is installed; drkit does not need it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bm25s
import numpy as np

from drkit.core.types import Passage
from drkit.search import Bm25Retriever

WORDS = 100_000
# Without vowels: no stop words, and nothing that a stemmer cuts off.
LETTERS = str.maketrans("0123456789", "bcdfghjkmn")


def drawn(rng: np.random.Generator, count: int, length: int) -> list[str]:
    share = 1 / (np.arange(WORDS) + 5)
    words = np.array([f"{place:05}".translate(LETTERS) for place in range(WORDS)])
    return [" ".join(row) for row in rng.choice(words, (count, length), p=share / share.sum())]


def compiled(folder: Path) -> Any:
    engine = bm25s.BM25.load(folder, mmap=True, show_progress=False)
    engine.backend = "numba"
    engine.activate_numba_scorer()
    return engine


def seconds(search: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    found = search()
    return time.process_time() - started, found


def compare(passages: int, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    rng, depth = np.random.default_rng(0), options.depth
    texts = (Passage(str(number), text) for number, text in enumerate(drawn(rng, passages, 30)))
    Bm25Retriever().index(texts).save(folder)
    queries = drawn(rng, options.queries, 4)
    retriever, engine = Bm25Retriever.load(folder), bm25s.BM25.load(folder, mmap=True, show_progress=False)
    vocabulary = json.loads((folder / "vocab.index.json").read_text(encoding="utf-8"))
    terms = [[vocabulary[word] for word in query.split() if word in vocabulary] for query in queries]
    given = [list(hits.doc_ids[:1]) for hits in retriever.search(queries, 1)]  # as mining scores the positives
    retriever.score(queries, given)  # hashes the ids

    def own(engine: Any, name: str) -> Any:
        how = {"k": depth, "show_progress": False, "return_as": "tuple", "backend_selection": name}
        return engine.retrieve(terms, **how).scores

    sides = {
        "drkit, search": lambda: [hits.scores for hits in retriever.search(queries, depth)],
        "drkit, score of one given passage": lambda: retriever.score(queries, given),
        "bm25s, retrieve": lambda: own(engine, "numpy"),
    }
    if importlib.util.find_spec("numba"):
        numba = compiled(folder)
        own(numba, "numba")  # compiles
        sides["bm25s, retrieve, compiled by numba"] = lambda: own(numba, "numba")
    best: dict[str, float] = {}
    found: dict[str, Any] = {}
    for _ in range(options.runs):
        for name, search in sides.items():
            taken, found[name] = seconds(search)
            best[name] = min(best.get(name, taken), taken)
    for name in sides:
        if name.startswith("bm25s"):
            for ours, theirs in zip(found["drkit, search"], found[name], strict=True):
                np.testing.assert_allclose(ours, theirs[theirs > 0], rtol=1e-5)
    return {name: taken / len(queries) * 1000 for name, taken in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, nargs="+", default=[40_000, 1_000_000])
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--depth", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    for passages in options.passages:
        print(f"{passages:,} passages", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            results[passages] = compare(passages, options, Path(folder))
    print("| milliseconds a query | " + " | ".join(f"{passages:,} passages" for passages in results) + " |")
    print("|---|" + "---|" * len(results))
    for name in next(iter(results.values())):
        print(f"| {name} | " + " | ".join(f"{result[name]:.2f}" for result in results.values()) + " |")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
