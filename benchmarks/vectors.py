"""Smaller vectors: what truncation, int8 and binary codes lose in quality, and gain in size and speed.

    python benchmarks/vectors.py RUN [RUN ..] [--dimensions 128 64 32] [--copies 1] [--json FILE]

Each RUN is a finished run whose collection has test queries. Its vectors are cut to each dimension and normalised again
(as by `drkit export --dimension`), and every kind of index is searched for the test queries at depth 100. A measurement
is a fresh process that opens the saved index, searches once to warm up, and is timed for all queries; the kinds take
turns. Sizes are those of the files, without ids; `in memory` leaves out the vectors that candidates are scored with,
which stay in their file. The table has means over runs, with the smallest and largest loss of nDCG@10 against the flat
index of whole vectors of the same run. --copies appends shuffled, noisy copies of the passages before timing, so that
indexes are larger; quality is that of the collection as it is. With --repeats 0 nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DEPTH = 100
KINDS = {
    "flat": None,
    "int8, codes": ("int8", "codes", 1),
    "int8, vectors": ("int8", "vectors", 4),
    "binary, codes": ("binary", "codes", 4),
    "binary, vectors": ("binary", "vectors", 4),
    "binary, vectors, 16 candidates": ("binary", "vectors", 16),
}
MEASURES = ("nDCG@10", "R@100")


def encoded(run: Path):
    """Passage vectors f32[N,D], their ids, query vectors f32[Q,D], their ids, and the test judgements."""
    from drkit.data.corpus import open_collection
    from drkit.search.dual_encoder import read_encoder

    collection, encoder = open_collection(run / "collection"), read_encoder(run / "encoder")
    passages = list(collection.corpus)
    queries = list(collection.queries("test"))
    return (
        encoder.encode_passages([passage.content for passage in passages]),
        [passage.doc_id for passage in passages],
        encoder.encode_queries([query.text for query in queries]),
        [query.query_id for query in queries],
        list(collection.judgements("test")),
    )


def cut(vectors, dimension: int):
    import numpy as np

    kept = vectors[:, :dimension]
    return np.ascontiguousarray(kept / np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), 1e-12))


def grown(vectors, copies: int):
    """The vectors, followed by noisy copies of them."""
    import numpy as np

    rng = np.random.default_rng(0)
    noise = [rng.standard_normal(vectors.shape, dtype=np.float32) / vectors.shape[1] ** 0.5 for _ in range(copies - 1)]
    return np.concatenate([vectors, *(cut(vectors + one, vectors.shape[1]) for one in noise)])


def write_index(name: str, vectors, ids: list[str], folder: Path) -> None:
    from drkit.search import FaissIndex, FaissSettings, FlatIndex

    if KINDS[name] is None:
        FlatIndex.build(vectors, ids).save(folder)
        return
    kind, rescore, candidates = KINDS[name]
    settings = FaissSettings(rescore=rescore, candidates=candidates)
    FaissIndex.build(vectors, ids, kind=kind, settings=settings).save(folder)


def sizes(folder: Path) -> dict[str, float]:
    """Bytes of the files, and of those that a search holds in memory."""
    files = (folder / file for file in ("index.faiss", "vectors.npy"))
    found = {file.name: file.stat().st_size for file in files if file.is_file()}
    in_memory = found.get("index.faiss", found.get("vectors.npy", 0))
    return {"files": sum(found.values()), "memory": in_memory}


def one(folder: Path, queries: Path) -> None:
    import numpy as np

    from drkit.search import open_index

    index, vectors = open_index(folder), np.load(queries)
    index.search(vectors[:64], DEPTH)
    started = time.perf_counter()
    index.search(vectors, DEPTH)
    print(json.dumps({"ms": 1000 * (time.perf_counter() - started) / len(vectors)}))


def timed(folder: Path, queries: Path) -> float:
    command = [sys.executable, __file__, "--one", str(folder), str(queries)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["ms"])


def quality(folder: Path, queries, query_ids: list[str], judgements) -> dict[str, float]:
    from drkit.evaluate import evaluate
    from drkit.search import open_index

    hits = open_index(folder).search(queries, DEPTH)
    rows = [
        (query, list(zip(found.doc_ids, found.scores, strict=True)))
        for query, found in zip(query_ids, hits, strict=True)
    ]
    return evaluate(rows, judgements, MEASURES).means()


def measured(run: Path, options: argparse.Namespace, folder: Path) -> dict[tuple[int, str], dict[str, float]]:
    import numpy as np

    passages, ids, queries, query_ids, judgements = encoded(run)
    whole = passages.shape[1]
    found: dict[tuple[int, str], dict[str, float]] = {}
    for dimension in (whole, *(d for d in options.dimensions if d < whole)):
        short, asked = cut(passages, dimension), cut(queries, dimension)
        np.save(folder / "queries.npy", asked)
        for name in KINDS:
            write_index(name, short, ids, folder / "index")
            found[dimension, name] = quality(folder / "index", asked, query_ids, judgements)
            large = grown(short, options.copies)
            write_index(name, large, [f"{n}" for n in range(len(large))], folder / name)
            found[dimension, name] |= sizes(folder / name)
        times: dict[str, list[float]] = {name: [] for name in KINDS}
        for _ in range(options.repeats):
            for name in KINDS:
                times[name].append(timed(folder / name, folder / "queries.npy"))
        for name in KINDS:
            found[dimension, name]["ms"] = statistics.median(times[name]) if times[name] else math.nan
            found[dimension, name]["loss"] = found[dimension, name]["nDCG@10"] - found[whole, "flat"]["nDCG@10"]
            found[dimension, name]["speed"] = found[whole, "flat"]["ms"] / found[dimension, name]["ms"]
    print(f"{run}: {len(ids):,} passages x {options.copies}, {len(query_ids):,} queries", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--dimensions", type=int, nargs="+", default=[128, 64, 32])
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(*options.one)
        return
    every = []
    for run in options.runs:
        with tempfile.TemporaryDirectory() as folder:
            every.append(measured(run, options, Path(folder)))
    print("| numbers | index | files MB | in memory MB | nDCG@10 | loss, least to most | R@100 | ms a query | speed |")
    print("|---|---|---|---|---|---|---|---|---|")
    for key in every[0]:
        rows = [found[key] for found in every]
        mean = {name: statistics.mean(row[name] for row in rows) for name in rows[0]}
        losses = sorted((row["loss"] for row in rows), reverse=True)
        print(
            f"| {key[0]} | {key[1]} | {mean['files'] / 1e6:.2f} | {mean['memory'] / 1e6:.2f} | {mean['nDCG@10']:.3f} | "
            f"{losses[0]:+.3f} to {losses[-1]:+.3f} | {mean['R@100']:.3f} | {mean['ms']:.2f} | {mean['speed']:.1f} x |"
        )
    if options.json:
        rows = [{f"{d} {name}": row for (d, name), row in found.items()} for found in every]
        options.json.write_text(json.dumps(dict(zip(map(str, options.runs), rows, strict=True)), indent=1))


if __name__ == "__main__":
    main()
