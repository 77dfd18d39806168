"""Mining: drkit's miner `dense` against sentence-transformers' `mine_hard_negatives`; time and peak memory.

    python benchmarks/mining.py [--passages 5000 50000] [--queries 2000] [--encoder FOLDER] [--runs 3] [--json FILE]

Both encode the same passages and queries with the same encoder, search exactly, leave out the positive, and give the
ten best others of the fifty they rank. Texts are drawn from a vocabulary whose words fall off as Zipf's do, so that any
number can be had; a query is six words of its passage. Where none is given, the encoder is a BERT of two layers of 64
with random weights: small, so that the mining is measured. Each measurement is a fresh process that loads the model and
is timed for all the rest; the sides take turns.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIDES = ("drkit", "sentence-transformers", "sentence-transformers, faiss")
DEPTH, KEPT = 50, 10
WORDS = 4000
LENGTH = 64


def texts_of(count: int, queries: int) -> dict[str, list[str]]:
    import numpy as np

    rng = np.random.default_rng(0)
    words = np.array([f"w{place}" for place in range(WORDS)])
    share = 1 / (np.arange(WORDS) + 10)
    drawn = rng.choice(words, (count, 40), p=share / share.sum())
    lengths = rng.integers(15, 40, count)
    passages = [
        f"{place} {' '.join(row[:length])}" for place, (row, length) in enumerate(zip(drawn, lengths, strict=True))
    ]
    asked = [" ".join(rng.choice(row[:15], 6, replace=False)) for row in drawn[:queries]]
    return {"passages": passages, "queries": asked}


def random_encoder(folder: Path, texts: list[str]) -> Path:
    import torch
    from transformers import BertConfig, BertModel

    from drkit.data import train_wordpiece
    from drkit.encoders.export import export_encoder

    tokenizer = train_wordpiece(iter(texts), folder.parent / "tokenizer", size=5000)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    model = BertModel(BertConfig(vocab_size=len(tokenizer), **sizes))
    for parameter in model.parameters():
        parameter.data.mul_(4)  # away from the tiny initial weights, so that texts differ
    how = {"pooling": "mean", "similarity": "cosine", "query_length": LENGTH, "passage_length": LENGTH}
    return export_encoder(model, tokenizer, folder, **how)


def mine_by_drkit(encoder: str, texts: dict[str, list[str]]):
    from drkit.core.types import BuildContext, MiningRequest, Passage
    from drkit.miners import mine
    from drkit.search import FlatIndex, Retriever, TextEncoder, Vectors, encode_corpus

    class Corpus(list):
        def get_many(self, doc_ids):
            return [self[int(doc_id)] for doc_id in doc_ids]

    loaded = TextEncoder.load(encoder, "auto")
    corpus = Corpus(Passage(str(place), text) for place, text in enumerate(texts["passages"]))
    requests = (MiningRequest(f"q{n}", text, frozenset({str(n)})) for n, text in enumerate(texts["queries"]))

    def run():
        with tempfile.TemporaryDirectory() as scratch:
            encode_corpus(loaded, ((p.doc_id, p.content) for p in corpus), scratch)
            vectors = Vectors.open(scratch)
            context = BuildContext(retriever=Retriever(loaded, FlatIndex.build(vectors.shards, vectors.doc_ids)))
            mined = mine(corpus, requests, ["dense", f"ranks:1-{DEPTH}"], depth=KEPT, context=context)
            return {texts["queries"][n]: [int(d) for d in found.doc_ids] for n, found in enumerate(mined)}

    return run


def mine_by_sentence_transformers(encoder: str, texts: dict[str, list[str]], *, faiss: bool):
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import mine_hard_negatives

    model = SentenceTransformer(encoder, local_files_only=True)
    model.max_seq_length = LENGTH
    passages, queries = texts["passages"], texts["queries"]
    pairs = Dataset.from_dict({"anchor": queries, "positive": passages[: len(queries)]})

    def run():
        mined = mine_hard_negatives(
            pairs,
            model,
            corpus=passages,
            range_max=DEPTH,
            num_negatives=KEPT,
            output_format="triplet",
            use_faiss=faiss,
            verbose=False,
        )
        found: dict[str, list[int]] = {}
        for query, negative in zip(mined["anchor"], mined["negative"], strict=True):
            found.setdefault(query, []).append(int(negative.split(" ", 1)[0]))
        return found

    return run


def one(side: str, encoder: str, texts: dict[str, list[str]], keep: Path) -> None:
    faiss = side.endswith("faiss")
    ready = (
        mine_by_drkit(encoder, texts) if side == "drkit" else mine_by_sentence_transformers(encoder, texts, faiss=faiss)
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started = time.perf_counter()
    found = ready()
    seconds = time.perf_counter() - started
    keep.write_text(json.dumps(found))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak_mb": peak, "grown_mb": peak - before}))


def measure(side: str, encoder: Path, texts: Path, keep: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", side, "--encoder", str(encoder), "--read", str(texts)]
    done = subprocess.run(
        [*command, "--keep", str(keep)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(options: argparse.Namespace, count: int, folder: Path) -> dict[str, object]:
    texts = texts_of(count, min(options.queries, count))
    read = folder / "texts.json"
    read.write_text(json.dumps(texts))
    encoder = Path(options.encoder) if options.encoder else random_encoder(folder / "encoder", texts["passages"][:5000])
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(options.runs):
        for side in SIDES:
            runs[side].append(measure(side, encoder, read, folder / f"{SIDES.index(side)}.json"))
    found = [json.loads((folder / f"{place}.json").read_text()) for place in range(len(SIDES))]
    print(f"\n{count:,} passages, {len(texts['queries']):,} queries, {encoder.name}\n")
    print("| mining | median s | peak MB | of it, grown MB | same negatives |\n|---|---|---|---|---|")
    rows: dict[str, object] = {"passages": count, "queries": len(texts["queries"])}
    for side, own in zip(SIDES, found, strict=True):
        median = {key: statistics.median(run[key] for run in runs[side]) for key in ("seconds", "peak_mb", "grown_mb")}
        shared = [query for query, kept in found[0].items() if len(kept) == KEPT and query in own]
        alike = sum(len({*found[0][query]} & {*own[query]}) for query in shared) / max(KEPT * len(shared), 1)
        print(
            f"| {side} | {median['seconds']:.2f} | {median['peak_mb']:.0f} | {median['grown_mb']:.0f} | "
            f"{alike:.1%} of {len(shared):,} queries |"
        )
        rows[side] = {**median, "same": alike, "compared": len(shared), "runs": runs[side]}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, nargs="+", default=[5000, 50_000])
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--encoder")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    for hidden in ("--one", "--read", "--keep"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.one, options.encoder, json.loads(Path(options.read).read_text()), Path(options.keep))
        return
    rows = []
    for count in options.passages:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(compare(options, count, Path(folder)))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
