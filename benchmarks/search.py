"""Search: drkit's exact index against faiss and torch alone, and its approximate ones; time, peak memory, recall.

    python benchmarks/search.py [--vectors 200000] [--dimension 384] [--queries 512] [--depth 100] [--json FILE]

Vectors are clustered, of length 1, in a .npy file that every process maps. A measurement is a fresh process: it builds
or loads, searches once to warm up, and is timed for all queries. `drkit, block by block` has a budget of no memory, so
it reads the vectors from their file in pieces of 64 MB. Peak memory counts the pages of mapped files that were touched.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXACT = ("faiss IndexFlatIP alone", "torch matmul + topk alone", "drkit flat")
BLOCKS = "drkit flat, block by block"
APPROXIMATE = ("drkit hnsw", "drkit hnsw, float16", "drkit ivf-pq")


def peak_memory() -> float:
    """MB, from /proc: what getrusage says of a process begins with the size of the one that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def clustered(count: int, dimension: int, seed: int):
    import numpy as np

    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).standard_normal((1000, dimension), dtype=np.float32)
    made = centres[rng.integers(1000, size=count)]
    made += 0.7 * rng.standard_normal((count, dimension), dtype=np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def searcher(name: str, folder: Path):
    """What answers (places or hits) for queries and a depth."""
    import numpy as np

    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    ids = [str(place) for place in range(len(vectors))]
    if name.startswith("faiss"):
        import faiss

        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(np.ascontiguousarray(vectors))
        return lambda queries, depth: index.search(queries, depth)[1]
    if name.startswith("torch"):
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        matrix = torch.from_numpy(np.array(vectors)).to(device)

        def top(queries, depth):
            some = [torch.from_numpy(queries[at : at + 64]).to(device) for at in range(0, len(queries), 64)]
            return torch.cat([torch.topk(part @ matrix.T, depth).indices for part in some]).cpu().numpy()

        return top
    from drkit.search import FlatIndex, Hnsw, HnswIndex, IvfPqIndex

    if name in ("drkit flat", BLOCKS):
        budget = {"memory": 0} if name == BLOCKS else {}
        index = FlatIndex.load(folder / "index", **budget)
    elif "hnsw" in name:
        index = HnswIndex.build(vectors, ids, settings=Hnsw(half=name.endswith("16")))
    else:
        index = IvfPqIndex.build(vectors, ids)
    return lambda queries, depth: [[int(d) for d in hits.doc_ids] for hits in index.search(queries, depth)]


def one(name: str, folder: Path, depth: int) -> None:
    import numpy as np

    queries = np.load(folder / "queries.npy")
    started = time.perf_counter()
    search = searcher(name, folder)
    built = time.perf_counter() - started
    search(queries[:8], depth)
    started = time.perf_counter()
    found = search(queries, depth)
    seconds = time.perf_counter() - started
    peak = peak_memory()
    print(
        json.dumps({"build_s": built, "seconds": seconds, "peak_mb": peak, "found": [list(map(int, f)) for f in found]})
    )


def compare(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    import numpy as np

    from drkit.search import FlatIndex

    vectors = clustered(options.vectors, options.dimension, 0)
    np.save(folder / "vectors.npy", vectors)
    np.save(folder / "queries.npy", clustered(options.queries, options.dimension, 1))
    FlatIndex.build(vectors, [str(place) for place in range(len(vectors))]).save(folder / "index")
    del vectors
    print(f"{options.vectors:,} vectors of {options.dimension}, {options.queries} queries, depth {options.depth}\n")
    print("| search | ready after s | all queries s | peak MB | recall |\n|---|---|---|---|---|")
    rows: dict[str, object] = {}
    truth: list[set[int]] = []
    for name in (*EXACT, BLOCKS, *APPROXIMATE):
        command = [sys.executable, __file__, "--one", name, "--folder", str(folder), "--depth", str(options.depth)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        row = json.loads(done.stdout.splitlines()[-1])
        found = [set(places) for places in row.pop("found")]
        truth = truth or found
        row["recall"] = sum(len(f & t) for f, t in zip(found, truth, strict=True)) / sum(map(len, truth))
        print("| {} | {build_s:.2f} | {seconds:.2f} | {peak_mb:.0f} | {recall:.4f} |".format(name, **row))
        rows[name] = row
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=200_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--queries", type=int, default=512)
    parser.add_argument("--depth", type=int, default=100)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.one, options.folder, options.depth)
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(options, Path(folder))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
