"""Memory and time of each data stage as a corpus grows: does peak memory stay flat, does time grow linearly?

    python benchmarks/memory.py [--passages 10000 100000] [--folder FOLDER] [--memory 256] [--json FILE] [--plot FILE]
    python benchmarks/memory.py --stages collection vocabulary tokens ppmi

Passages are generated: 20 to 100 words (`--words`) of a Zipfian vocabulary (exponent 1, a million types), in BEIR's
format, with 1,000 training queries. Stages run in a fresh process each, on what the stages before them wrote:

    collection  passages and queries are read, checked and stored      vocabulary  a WordPiece vocabulary of 30,000
    tokens      all passages are tokenised                             statistics  n-grams up to order 4 are counted
    importance  a PMI weight for every token                           ppmi        co-occurrences and their SVD
    encoding    a static encoder with 128 dimensions                   index       a flat index of the vectors
    mining      100 hard negatives for each query                      search      100 hits for each query

`peak` is the largest memory of the process that is not a page of a mapped file, sampled every 5 ms, `with files` the
kernel's peak with those pages, which it takes back when memory is short. `growth` is this peak over that of the
smallest corpus; `linear` is the processor time per passage over that of the smallest corpus: other programs on the
machine change it less than the time on the clock.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

QUERIES, TYPES, VOCABULARY, DIMENSION, DEPTH = 1000, 1_000_000, 30_000, 128, 100


def write_corpus(folder: Path, passages: int, words_of_a_passage: list[int]) -> None:
    """A BEIR folder of generated text; the first passages of a larger corpus are those of a smaller one."""
    import numpy as np

    rng = np.random.default_rng(0)
    weights = np.cumsum(1 / np.arange(1, TYPES + 1))
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]

    def word(rank: int) -> str:
        spelled = ""
        while True:
            rank, place = divmod(rank, len(syllables))
            spelled += syllables[place]
            if not rank:
                return spelled

    words = [word(rank) for rank in range(TYPES)]

    def text(length: int) -> str:
        ranks = np.searchsorted(weights, rng.random(length) * weights[-1])
        return " ".join([words[rank] for rank in ranks.tolist()])

    (folder / "qrels").mkdir(parents=True)
    step = max(passages // QUERIES, 1)
    names = ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv")
    with ExitStack() as stack:
        corpus, queries, judged = (stack.enter_context((folder / name).open("w")) for name in names)
        judged.write("query-id\tcorpus-id\tscore\n")
        for number in range(passages):
            content = text(int(rng.integers(words_of_a_passage[0], words_of_a_passage[1] + 1)))
            corpus.write(json.dumps({"_id": f"d{number}", "text": content}) + "\n")
            if number % step == 0 and number < step * QUERIES:
                query = " ".join(content.split()[2:8])
                queries.write(json.dumps({"_id": f"q{number}", "text": query}) + "\n")
                judged.write(f"q{number}\td{number}\t1\n")


def corpus_of(folder: Path):
    from drkit.data.corpus import StoredCorpus

    return StoredCorpus(folder / "collection" / "passages")


def tokenizer_of(folder: Path):
    from drkit.train.checkpoints import load_tokenizer

    return load_tokenizer(str(folder / "vocabulary"))


def encoder_of(folder: Path):
    import torch

    from drkit.encoders import EncoderCard
    from drkit.encoders.static import StaticModel
    from drkit.search import TextEncoder

    tokenizer = tokenizer_of(folder)
    table = torch.randn(len(tokenizer), DIMENSION, generator=torch.Generator().manual_seed(0))
    return TextEncoder(EncoderCard(pooling="mean", passage_length=128), StaticModel.of(table), tokenizer)


def collection(folder: Path, _memory: int) -> None:
    from drkit.core.registry import installed
    from drkit.data.writing import write_collection

    registry = installed().registry
    config = registry.get("collection", "beir").config(path=str(folder / "source"))
    write_collection(registry.build("collection", "beir", config), folder / "collection")


def vocabulary(folder: Path, memory: int) -> None:
    from drkit.data.vocabulary import train_wordpiece

    texts = (passage.content for passage in corpus_of(folder))
    train_wordpiece(texts, folder / "vocabulary", size=VOCABULARY, memory_mb=memory)


def tokens(folder: Path, _memory: int) -> None:
    from drkit.data.store import tokenise

    texts = ((passage.doc_id, passage.content) for passage in corpus_of(folder))
    tokenise(texts, tokenizer_of(folder), folder / "tokens", max_length=128)


def statistics(folder: Path, memory: int) -> None:
    from drkit.data.counts import count_ngrams
    from drkit.data.store import TokenStore

    count_ngrams(TokenStore.open(folder / "tokens"), folder / "statistics", window=4, memory_mb=memory)


def importance(folder: Path, _memory: int) -> None:
    from drkit.data.counts import NgramCounts
    from drkit.data.store import TokenStore
    from drkit.signals.pmi import importance as weigh

    weigh(TokenStore.open(folder / "tokens"), NgramCounts(folder / "statistics"), folder / "importance")


def ppmi(folder: Path, memory: int) -> None:
    from drkit.data.store import TokenStore
    from drkit.data.word_embeddings import ppmi_svd

    store, limit = TokenStore.open(folder / "tokens"), {"folder": folder, "memory_mb": memory}
    ppmi_svd(store, vocab_size=VOCABULARY, dim=DIMENSION, seed=0, **limit)


def encoding(folder: Path, _memory: int) -> None:
    from drkit.core.processes import Shard
    from drkit.data.store import TokenStore
    from drkit.search import encode_corpus

    store, corpus = TokenStore.open(folder / "tokens"), corpus_of(folder)
    rows = ((doc_id, store.tokens(number)) for number, doc_id in enumerate(corpus.ids()))
    encode_corpus(encoder_of(folder), rows, folder / "vectors", shard=Shard(0, 1))


def index(folder: Path, _memory: int) -> None:
    from drkit.search import build_index

    build_index(folder / "vectors", folder / "index")


def mining(folder: Path, memory: int) -> None:
    from drkit.core.registry import installed
    from drkit.core.types import BuildContext
    from drkit.data.corpus import open_collection
    from drkit.miners.chain import build_chain, mining_requests, parse_chain, write_negatives
    from drkit.search import Retriever, open_index

    registry, stored = installed().registry, open_collection(folder / "collection")
    retriever = Retriever(encoder_of(folder), open_index(folder / "index", memory=memory * 2**20))
    chain = build_chain(parse_chain(("dense",), (), registry), registry, BuildContext(retriever=retriever))
    chain.index(stored.corpus)
    write_negatives(chain.mine(mining_requests(stored), DEPTH), stored.corpus, folder / "negatives")


def search(folder: Path, memory: int) -> None:
    from drkit.commands import rank_to_run
    from drkit.data.corpus import open_collection
    from drkit.search import Retriever, open_index

    queries = open_collection(folder / "collection").queries("train")
    index = open_index(folder / "index", memory=memory * 2**20)
    rank_to_run(Retriever(encoder_of(folder), index), queries, folder / "run.trec", depth=DEPTH)


STAGES = (collection, vocabulary, tokens, statistics, importance, ppmi, encoding, index, mining, search)


def resident(name: str) -> float:
    """MB of a line of /proc/self/status."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{name}:")[1].split()[0]) / 1024


@contextmanager
def sampled():
    """Yield a list whose last entry is the largest memory in MB that is not a page of a file."""
    peak, done = [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], resident("RssAnon") + resident("RssShmem"))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield peak
    done.set()
    thread.join()
    peak[0] = max(peak[0], resident("RssAnon") + resident("RssShmem"))


def one(name: str, folder: Path, memory: int) -> None:
    stage = next(stage for stage in STAGES if stage.__name__ == name)
    started, cpu = time.perf_counter(), time.process_time()
    with sampled() as peak:
        stage(folder, memory)
    spent = {"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu}
    print(json.dumps({**spent, "peak": peak[0], "files": resident("VmHWM")}))


def measured(passages: int, folder: Path, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Time and peaks of every stage, those of an earlier call included: finished stages are not repeated."""
    if not (folder / "source").is_dir():
        shutil.rmtree(folder / ".source", ignore_errors=True)
        write_corpus(folder / ".source", passages, options.words)
        (folder / ".source").rename(folder / "source")
    kept = folder / "measured.json"
    found: dict[str, dict[str, float]] = json.loads(kept.read_text()) if kept.is_file() else {}
    for name in (stage.__name__ for stage in STAGES):
        if name in found or name not in options.stages:
            continue
        command = [sys.executable, __file__, "--one", name, "--folder", str(folder), "--memory", str(options.memory)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
        kept.write_text(json.dumps(found))
        print(f"{passages:,} {name}: {found[name]}", file=sys.stderr)
    return found


def plot(found: dict[int, dict[str, dict[str, float]]], file: Path) -> None:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), sharex=True)
    colors = plt.colormaps["tab10"].colors
    for color, name in zip(colors, found[min(found)], strict=False):
        rows = {size: measured[name] for size, measured in found.items() if name in measured}
        style = {"marker": "o", "markersize": 4, "color": color, "label": name}
        left.plot(list(rows), [row["peak"] for row in rows.values()], **style)
        right.plot(list(rows), [1e6 * row["cpu"] / size for size, row in rows.items()], **style)
    left.set(xscale="log", xlabel="passages", title="peak memory, MB (without mapped files)")
    right.set(yscale="log", xlabel="passages", title="processor time per passage, microseconds")
    left.set_ylim(bottom=0)
    for axes in (left, right):
        axes.set_xticks(list(found), [f"{size / 1e6:g}M" if size >= 1e6 else f"{size / 1e3:g}k" for size in found])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    right.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    figure.tight_layout()
    figure.savefig(file, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, nargs="+", default=[10_000, 100_000])
    names = [stage.__name__ for stage in STAGES]
    parser.add_argument(
        "--stages", nargs="+", choices=names, default=names, help="those to run; each reads what earlier ones wrote"
    )
    parser.add_argument("--words", type=int, nargs=2, default=[20, 100], help="fewest and most of a passage")
    parser.add_argument("--folder", type=Path, help="keep all files here; a second call continues")
    parser.add_argument("--memory", type=int, default=256, help="MB, for stages with such a setting")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.one, options.folder, options.memory)
        return
    with tempfile.TemporaryDirectory() as scratch:
        root = options.folder or Path(scratch)
        sizes = sorted(options.passages)
        found = {size: measured(size, root / str(size), options) for size in sizes}
    print("| stage | passages | s | processor s | linear | peak MB | growth | with files MB |")
    print("|---|---|---|---|---|---|---|---|")
    for stage in options.stages:
        first = found[sizes[0]][stage]
        for size, row in ((size, found[size][stage]) for size in sizes):
            linear = row["cpu"] / size / (first["cpu"] / sizes[0])
            print(
                f"| {stage} | {size:,} | {row['seconds']:.1f} | {row['cpu']:.1f} | {linear:.2f} | "
                f"{row['peak']:.0f} | {row['peak'] / first['peak']:.2f} | {row['files']:.0f} |"
            )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if options.plot:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
