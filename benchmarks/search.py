"""Search: every kind of index of drkit against faiss (and torch) alone: time, memory, disk, and the rankings.

    python benchmarks/search.py [--vectors 100000] [--dimension 384] [--queries 512] [--depth 100] [--only TEXT ..]

Vectors are clustered, of length 1, and one in a hundred is a copy of another, so that scores tie. Every index is built
and saved once. A measurement is a fresh process: it opens the files, searches once to warm up, and is timed for all
queries. The searches take turns; the table has medians of --repeats turns. Peak memory counts the pages of mapped files
that were touched, and the libraries. `same order`: queries whose ranking equals drkit's exact one, ties in the order of
the vectors; `alone`: queries that give the same hits and scores when they are searched one by one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pretrain_step import peak_memory

FLAT, BLOCKS, MAPPED = "drkit flat", "drkit flat, block by block", "faiss Flat, mapped"
# Name: factory string of faiss, its search parameters, and whether its files are mapped.
FAISS = {
    "faiss Flat": ("Flat", "", False),
    MAPPED: ("Flat", "", True),
    "faiss SQ8": ("SQ8", "", True),
    "faiss SQ8,RFlat": ("SQ8,RFlat", "k_factor_rf=4", True),
    "faiss SQ8,Refine(SQfp16)": ("SQ8,Refine(SQfp16)", "k_factor_rf=4", True),
    "faiss LSH,RFlat": ("LSH,RFlat", "k_factor_rf=4", True),
    "faiss RaBitQ,RFlat": ("RaBitQ,RFlat", "k_factor_rf=4", True),
    "faiss HNSW32": ("HNSW32", "efSearch=128", True),
}
# Name: kind, and settings.
DRKIT = {
    FLAT: ("flat", {}),
    BLOCKS: ("flat", {}),
    "drkit int8": ("int8", {}),
    "drkit int8, codes": ("int8", {"rescore": "codes"}),
    "drkit binary": ("binary", {}),
    "drkit binary, codes": ("binary", {"rescore": "codes"}),
    "drkit hnsw": ("hnsw", {}),
    "drkit ivf-pq": ("ivf-pq", {}),
}
TORCH = "torch matmul + topk"
NAMES = (FLAT, *(n for n in (*FAISS, TORCH, *DRKIT) if n != FLAT))
Search = Callable[["np.ndarray", int], list[list[tuple[int, float]]]]  # noqa: F821


def clustered(count: int, dimension: int, seed: int):
    import numpy as np

    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).standard_normal((1000, dimension), dtype=np.float32)
    made = centres[rng.integers(1000, size=count)]
    made += 0.7 * rng.standard_normal((count, dimension), dtype=np.float32)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    made[rng.integers(count, size=count // 100)] = made[rng.integers(count, size=count // 100)]
    return made


def build(name: str, vectors: Path, folder: Path) -> None:
    import numpy as np

    matrix = np.load(vectors, mmap_mode="r")
    if name in FAISS:
        import faiss

        text = FAISS[name][0]
        metric = faiss.METRIC_L2 if "LSH" in text else faiss.METRIC_INNER_PRODUCT
        index = faiss.index_factory(matrix.shape[1], text, metric)
        index.train(matrix)
        index.add(matrix)
        folder.mkdir()
        faiss.write_index(index, str(folder / "index.faiss"))
    elif name in DRKIT:
        build_drkit(name, matrix, folder)


def build_drkit(name: str, matrix, folder: Path) -> None:
    from drkit.search import FaissIndex, FaissSettings, FlatIndex

    ids = [str(position) for position in range(len(matrix))]
    kind, settings = DRKIT[name]
    if kind == "flat":
        FlatIndex.build(matrix, ids).save(folder)
    else:
        FaissIndex.build(matrix, ids, kind=kind, settings=FaissSettings(**settings)).save(folder)


def open_search(name: str, vectors: Path, folder: Path) -> Search:
    """Return what finds (position, score) of the best for queries and a depth."""
    import numpy as np

    if name in FAISS:
        import faiss

        _, parameters, mapped = FAISS[name]
        index = faiss.read_index(str(folder / "index.faiss"), faiss.IO_FLAG_MMAP_IFC if mapped else 0)
        if parameters.startswith("k_factor"):
            index.k_factor = float(parameters.split("=")[1])
        elif parameters:
            faiss.ParameterSpace().set_index_parameters(index, parameters)
        return lambda queries, depth: pairs(*index.search(queries, depth)[::-1])
    if name == TORCH:
        import torch

        matrix = torch.from_numpy(np.load(vectors))

        def top(queries, depth):
            some = [torch.from_numpy(queries[at : at + 64]) for at in range(0, len(queries), 64)]
            found = [torch.topk(part @ matrix.T, depth) for part in some]
            return pairs(*(torch.cat([getattr(f, name) for f in found]).numpy() for name in ("indices", "values")))

        return top
    from drkit.search import open_index

    index = open_index(folder, memory=0) if name == BLOCKS else open_index(folder)

    def search(queries, depth):
        hits = index.search(queries, depth)
        return [list(zip(map(int, each.doc_ids), each.scores, strict=True)) for each in hits]

    return search


def pairs(positions, scores) -> list[list[tuple[int, float]]]:
    return [
        [(p, s) for p, s in zip(row.tolist(), values.tolist(), strict=True) if p >= 0]
        for row, values in zip(positions, scores, strict=True)
    ]


def one(name: str, vectors: Path, folder: Path, depth: int) -> dict[str, object]:
    import numpy as np

    queries = np.load(vectors.parent / "queries.npy")
    started = time.perf_counter()
    search = open_search(name, vectors, folder)
    opened = time.perf_counter() - started
    search(queries[:8], depth)
    started, cpu = time.perf_counter(), time.process_time()
    found = search(queries, depth)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    peak = peak_memory()
    alone = [search(queries[i : i + 1], depth)[0] == found[i] for i in range(0, len(queries), 16)]
    return {
        "open_s": opened,
        "seconds": seconds,
        "cpu_s": cpu,
        "peak_mb": peak,
        "alone": statistics.mean(alone),
        "found": [[position for position, _ in row] for row in found],
    }


def fresh(*arguments: object) -> str:
    """What this script prints in a process of its own."""
    command = [sys.executable, __file__, *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def compare(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, float]]:
    import numpy as np

    vectors = folder / "vectors.npy"
    np.save(vectors, clustered(options.vectors, options.dimension, 0))
    np.save(folder / "queries.npy", clustered(options.queries, options.dimension, 1))
    names = [FLAT, *(n for n in NAMES[1:] if not options.only or any(text in n for text in options.only))]
    rows: dict[str, dict[str, float]] = {}
    for name in names:
        started = time.perf_counter()
        fresh("--build", name, "--folder", folder)
        files = [file for file in (folder / name).glob("*") if file.name not in ("ids.arrow", "index.json")]
        size = sum(file.stat().st_size for file in files or [vectors])
        rows[name] = {"build_s": time.perf_counter() - started, "disk_mb": size / 1e6}
    turns = [
        {name: json.loads(fresh("--one", name, "--folder", folder, "--depth", options.depth)) for name in names}
        for _ in range(options.repeats)
    ]
    exact = turns[0][FLAT]["found"]
    for name, row in rows.items():
        every = [turn[name] for turn in turns]
        row |= {
            key: statistics.median(one[key] for one in every) for key in every[0] if key not in ("found", "alone")
        } | {"alone": min(one["alone"] for one in every)}
        found = every[0]["found"]
        row["recall@10"] = statistics.mean(len({*f[:10]} & {*e[:10]}) / 10 for f, e in zip(found, exact, strict=True))
        row["recall"] = statistics.mean(len({*f} & {*e}) / len(e) for f, e in zip(found, exact, strict=True))
        row["same"] = statistics.mean(f == e for f, e in zip(found, exact, strict=True))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--queries", type=int, default=512)
    parser.add_argument("--depth", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], help="Searches whose name contains one of these.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--build", help=argparse.SUPPRESS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    name = options.build or options.one
    if name:
        given = (name, options.folder / "vectors.npy", options.folder / name)
        print(build(*given) if options.build else json.dumps(one(*given, options.depth)))
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(options, Path(folder))
    print(f"{options.vectors:,} vectors of {options.dimension}, {options.queries} queries, depth {options.depth}\n")
    columns = "search", "build s", "open s", "search s", "CPU s", "peak MB", "disk MB"
    print(f"| {' | '.join(columns)} | recall@10 | recall | same order | alone |\n|{'---|' * 11}")
    for name, row in rows.items():
        print(
            "| {} | {build_s:.1f} | {open_s:.2f} | {seconds:.2f} | {cpu_s:.2f} | {peak_mb:.0f} | {disk_mb:.0f} | "
            "{recall@10:.4f} | {recall:.4f} | {same:.0%} | {alone:.0%} |".format(name, **row)
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
