"""Encoding short texts with a static encoder on one core: drkit, and sentence-transformers on the same folder.

    python benchmarks/static_encoding.py [--texts 50000] [--words 6] [--encoder FOLDER] [--runs 3]

Texts are runs of consecutive words of docstrings, as the collection pydocs reads them. Without --encoder, the encoder
has random vectors of 256 dimensions and a WordPiece vocabulary of 8,000. Rates are per second of the process's CPU time
and per second of wall time; the first run also fills drkit's cache of words.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from pathlib import Path

os.environ.update(TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")


def short_texts(count: int, words: int) -> list[str]:
    from drkit.data import PydocsCollection, PydocsConfig

    found = " ".join(passage.content for passage in PydocsCollection(PydocsConfig(limit=1000)).passages()).split()
    draw = random.Random(0)
    starts = (draw.randrange(len(found) - words) for _ in range(count))
    return [" ".join(found[start : start + words]) for start in starts]


def random_encoder(folder: Path, texts: list[str]) -> Path:
    from drkit.data import train_wordpiece
    from drkit.encoders import BertSizes, MaskedLmEncoder
    from drkit.encoders.export import export_encoder

    tokenizer = train_wordpiece(iter(texts), folder / "tokenizer", size=8000)
    encoder = MaskedLmEncoder.from_scratch(BertSizes(hidden=256, layers=0), tokenizer)
    how = {"pooling": "mean", "similarity": "cosine", "query_length": 32, "passage_length": 32}
    return export_encoder(encoder.model, tokenizer, folder / "encoder", **how)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=50_000)
    parser.add_argument("--words", type=int, default=6)
    parser.add_argument("--encoder")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()

    import numpy as np
    import torch
    from sentence_transformers import SentenceTransformer

    from drkit.search import TextEncoder

    torch.set_num_threads(1)
    texts = short_texts(options.texts, options.words)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.encoder or str(random_encoder(Path(scratch), texts))
        theirs = SentenceTransformer(folder, device="cpu", local_files_only=True)
        sides = {"drkit": TextEncoder.load(folder).encode_queries, "sentence-transformers": theirs.encode_query}
    vectors = {}
    print("| encoder of the texts | run | texts/s of CPU time | texts/s |\n|---|---|---|---|")
    for run in range(1, options.runs + 1):
        for name, encode in sides.items():
            wall, cpu = time.perf_counter(), time.process_time()
            vectors[name] = encode(texts)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            print(f"| {name} | {run} | {len(texts) / cpu:,.0f} | {len(texts) / wall:,.0f} |")
    print(f"largest difference: {np.abs(vectors['drkit'] - vectors['sentence-transformers']).max():.1e}")


if __name__ == "__main__":
    main()
