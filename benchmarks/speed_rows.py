"""What speed.py compares: what each side of a comparison does, in its own process, on an input of `speed_inputs.py`."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attrs import frozen
from pretrain_step import peak_memory
from speed_inputs import (
    SHORT,
    TINY,
    Sizes,
    prepare_bm25,
    prepare_data_sets,
    prepare_mining,
    prepare_nothing,
    prepare_openvino,
    prepare_pairs,
    prepare_run,
    prepare_short_texts,
    prepare_texts,
    prepare_vectors,
    read_json,
    write_json,
)

SEED, TEMPERATURE, DEPTH, MINED = 1, 0.05, 50, 10
COMPARED = 1000  # rows of what both sides find
MEASURES = ("nDCG@10", "R@100")


class Clock:
    """Times a side: what is between `start` and the last `lap`, divided by the number of laps."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def start(self, *, with_imports: bool = False) -> None:
        """Start from here, or from the start of the process."""
        import psutil

        age = time.time() - psutil.Process().create_time() if with_imports else 0.0
        self.times = [(time.perf_counter() - age, 0.0 if with_imports else time.process_time())]

    def lap(self) -> None:
        """End a lap."""
        self.times.append((time.perf_counter(), time.process_time()))

    def result(self) -> dict[str, float]:
        """Return the seconds of a lap, and the peak memory of the process."""
        laps = len(self.times) - 1
        wall, processor = ((after - before) / laps for before, after in zip(self.times[0], self.times[-1], strict=True))
        return {"wall": wall, "processor": processor, "peak_mb": peak_memory()}


# Sides: each loads what it needs, starts the clock, and returns what it found


def pretraining_step(recipe: str) -> Callable[..., Any]:
    """The step of a paper's recipe, or that of transformers' masked LM, on the same masked texts."""

    def side(_folder: Path, sizes: Sizes, clock: Clock) -> list[float]:
        import gpu_rows
        import torch

        torch.manual_seed(SEED)
        gpu_rows.LAYERS = sizes.layers
        widths = {"hidden": sizes.hidden, "intermediate": 4 * sizes.hidden}
        given = gpu_rows.Sizes(texts=sizes.pairs, length=144, **widths)
        module, tensors = gpu_rows.paper_step(recipe, given) if recipe else gpu_rows.plain_step(given)
        loss = gpu_rows.one_step(module, tensors, "fp32")
        clock.start()
        for _ in range(sizes.steps):
            gpu_rows.one_step(module, tensors, "fp32")
            clock.lap()
        return [loss]

    return side


def schedule(folder: Path, pairs: int, size: int, sizes: Sizes) -> Any:
    """The batches of both sides: random ones, or of one data set each, where the pairs have ids of several."""
    import numpy as np

    from drkit.batching.parts import OneDataSet
    from drkit.batching.specs import OneDataSetConfig
    from drkit.core.types import BatchRows
    from drkit.train.batches import PartBatches, Schedule

    ids = folder / "ids.json"
    rows = BatchRows(pairs, query_ids=read_json(ids) if ids.is_file() else ())
    source = PartBatches(OneDataSet(OneDataSetConfig()), rows, SEED, "one-data-set") if ids.is_file() else None
    lengths = np.ones(pairs, dtype=np.int32)
    return Schedule(lengths=lengths, batch_size=size, batches=sizes.steps + 1, seed=SEED, source=source)


def ticking(clock: Clock) -> Any:
    """A callback of transformers' Trainer that starts the clock after the first step, which warms up."""
    from transformers import TrainerCallback

    class Ticking(TrainerCallback):
        def on_step_end(self, *_arguments: Any, **_options: Any) -> None:
            if clock.times:
                clock.lap()
            else:
                clock.start()

    return Ticking()


def train_drkit(folder: Path, sizes: Sizes, clock: Clock, *, length: int, chunks: int) -> list[float]:
    import numpy as np
    from transformers import AutoTokenizer

    from drkit.core.progress import Silent
    from drkit.core.registry import installed
    from drkit.data.store import TokenStore, tokenise
    from drkit.encoders import MaskedLmEncoder
    from drkit.recipe.training import Training
    from drkit.train.biencoder import BiEncoder, PairCollator, TrainingPairs
    from drkit.train.trainer import train

    encoder, pairs, work = folder / "encoder", read_json(folder / "pairs.json"), folder / "drkit"
    shutil.rmtree(work, ignore_errors=True)  # of the turn before, which would be resumed
    size = sizes.pairs * (chunks or 1)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    for side, name in enumerate(("queries", "passages")):
        tokenise(((str(i), pair[side]) for i, pair in enumerate(pairs)), tokenizer, work / name, max_length=length)
    queries, passages = (TokenStore.open(work / name) for name in ("queries", "passages"))
    registry = installed().registry
    config = registry.get("loss", "contrastive").config(temperature=TEMPERATURE, similarity="cosine")
    module = BiEncoder(
        MaskedLmEncoder.from_pretrained(encoder, pooling="mean"), registry.build("loss", "contrastive", config)
    )
    own, none = [np.array([i]) for i in range(len(pairs))], [np.empty(0, dtype=np.int64) for _ in pairs]
    collate = PairCollator(TrainingPairs(np.arange(len(pairs)), own, none), queries, passages, negatives=0, seed=SEED)
    how = {"learning_rate": 1e-5, "max_steps": sizes.steps + 1, "per_device_train_batch_size": size, "warmup_steps": 0}
    training = Training(**how, gradient_cache_chunk=sizes.pairs if chunks else 0, logging_steps=1, save_steps=10_000)
    given = {"training": training, "folder": work / "checkpoints", "progress": Silent(), "seed": SEED}
    done = train(module, schedule(folder, len(pairs), size, sizes), collate, callbacks=[ticking(clock)], **given)
    return [done.log[0]["loss"]]


def train_sentence_transformers(folder: Path, sizes: Sizes, clock: Clock, *, length: int, chunks: int) -> list[float]:
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import CachedMultipleNegativesRankingLoss, MultipleNegativesRankingLoss
    from torch.utils.data import BatchSampler, SequentialSampler

    pairs, size = read_json(folder / "pairs.json"), sizes.pairs * (chunks or 1)
    model = SentenceTransformer(str(folder / "encoder"), device="cpu", local_files_only=True)
    model.max_seq_length = length
    how = {"scale": 1 / TEMPERATURE}
    if chunks:
        loss = CachedMultipleNegativesRankingLoss(model, mini_batch_size=sizes.pairs, **how)
    else:
        loss = MultipleNegativesRankingLoss(model, **how)
    order = [row for rows in schedule(folder, len(pairs), size, sizes) for _, row in rows]
    columns = {name: [pairs[row][side] for row in order] for side, name in enumerate(("anchor", "positive"))}
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "sentence-transformers"),
        max_steps=sizes.steps + 1,
        per_device_train_batch_size=size,
        learning_rate=1e-5,
        weight_decay=0.01,
        optim="adamw_torch_fused",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=SEED,
    )

    class Ordered(SentenceTransformerTrainer):
        def get_batch_sampler(self, dataset, batch_size, drop_last, **_options):
            return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)

    trainer = Ordered(
        model, args=arguments, train_dataset=Dataset.from_dict(columns), loss=loss, callbacks=[ticking(clock)]
    )
    trainer.train()
    return [next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)]


def encode_drkit(folder: Path, _sizes: Sizes, clock: Clock, *, backend: str = "torch", queries: bool = False) -> Any:
    from drkit.search import TextEncoder

    loaded, texts = TextEncoder.load(folder / "encoder", "cpu", backend=backend), read_json(folder / "texts.json")
    encode = loaded.encode_queries if queries else loaded.encode_passages
    return timed(clock, lambda: encode(texts), lambda: encode(texts[:64]))


def encode_sentence_transformers(folder: Path, _sizes: Sizes, clock: Clock) -> Any:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder / "encoder"), device="cpu", local_files_only=True)
    texts = read_json(folder / "texts.json")
    return timed(clock, lambda: model.encode(texts), lambda: model.encode(texts[:64]))


def start_drkit(folder: Path, _sizes: Sizes, clock: Clock) -> Any:
    from drkit.search import TextEncoder

    clock.start(with_imports=True)
    vectors = TextEncoder.load(folder / "encoder", "cpu").encode_queries(["a word"])
    clock.lap()
    return vectors


def start_sentence_transformers(folder: Path, _sizes: Sizes, clock: Clock) -> Any:
    from sentence_transformers import SentenceTransformer

    clock.start(with_imports=True)
    vectors = SentenceTransformer(str(folder / "encoder"), device="cpu", local_files_only=True).encode(["a word"])
    clock.lap()
    return vectors


def timed(clock: Clock, work: Callable[[], Any], warm_up: Callable[[], Any] | None = None) -> Any:
    """Return what `work` returns, after it was done once, or something smaller."""
    (warm_up or work)()
    clock.start()
    found = work()
    clock.lap()
    return found


def mine_drkit(folder: Path, _sizes: Sizes, clock: Clock) -> Any:
    from drkit.core.types import BuildContext, MiningRequest, Passage
    from drkit.miners import mine
    from drkit.search import FlatIndex, Retriever, TextEncoder, Vectors, encode_corpus

    class Corpus(list[Passage]):
        def get_many(self, doc_ids):
            return [self[int(doc_id)] for doc_id in doc_ids]

    texts, loaded = read_json(folder / "texts.json"), TextEncoder.load(folder / "encoder", "auto")
    corpus = Corpus(Passage(str(number), text) for number, text in enumerate(texts["passages"]))
    requests = [MiningRequest(f"q{n}", text, frozenset({str(n)})) for n, text in enumerate(texts["queries"])]
    vectors = folder / "vectors"
    shutil.rmtree(vectors, ignore_errors=True)
    clock.start()
    encode_corpus(loaded, ((p.doc_id, p.content) for p in corpus), vectors)
    opened = Vectors.open(vectors)
    context = BuildContext(retriever=Retriever(loaded, FlatIndex.build(opened.shards, opened.doc_ids)))
    mined = mine(corpus, requests, ["dense", f"ranks:1-{DEPTH}"], depth=MINED, context=context)
    found = [[int(doc_id) for doc_id in one.doc_ids] for one in mined]
    clock.lap()
    return found


def mine_sentence_transformers(folder: Path, _sizes: Sizes, clock: Clock, *, use_faiss: bool) -> Any:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import mine_hard_negatives

    model, texts = SentenceTransformer(str(folder / "encoder"), local_files_only=True), read_json(folder / "texts.json")
    model.max_seq_length = SHORT
    passages, queries = texts["passages"], texts["queries"]
    pairs = Dataset.from_dict({"anchor": queries, "positive": passages[: len(queries)]})
    how = {"range_max": DEPTH, "num_negatives": MINED, "output_format": "triplet", "verbose": False}
    clock.start()
    mined = mine_hard_negatives(pairs, model, corpus=passages, use_faiss=use_faiss, **how)
    clock.lap()
    found: dict[str, list[int]] = {query: [] for query in queries}
    for query, negative in zip(mined["anchor"], mined["negative"], strict=True):
        found[query].append(int(negative.split(" ", 1)[0]))
    return list(found.values())


def bm25_drkit(folder: Path, _sizes: Sizes, clock: Clock) -> Any:
    from drkit.search import Bm25Retriever

    retriever, queries = Bm25Retriever.load(folder / "bm25"), read_json(folder / "queries.json")
    return [hits.scores[0] for hits in timed(clock, lambda: retriever.search(queries, 200))]


def bm25_bm25s(folder: Path, _sizes: Sizes, clock: Clock, *, backend: str) -> Any:
    import bm25s

    engine = bm25s.BM25.load(folder / "bm25", mmap=True, show_progress=False)
    if backend == "numba":
        engine.backend = backend
        engine.activate_numba_scorer()
    known = read_json(folder / "bm25" / "vocab.index.json")
    terms = [[known[word] for word in query.split() if word in known] for query in read_json(folder / "queries.json")]
    how = {"k": 200, "show_progress": False, "return_as": "tuple", "backend_selection": backend}
    return timed(clock, lambda: engine.retrieve(terms, **how)).scores[:, 0].tolist()


def search_vectors(name: str) -> Callable[..., Any]:
    def side(folder: Path, _sizes: Sizes, clock: Clock) -> list[list[int]]:
        import numpy as np
        from search import open_search

        search, queries = open_search(name, folder / "vectors.npy", folder / name), np.load(folder / "queries.npy")
        found = timed(clock, lambda: search(queries, 100), lambda: search(queries[:8], 100))
        return [[position for position, _ in row] for row in found]

    return side


def evaluate_drkit(folder: Path, _sizes: Sizes, clock: Clock) -> list[float]:
    from drkit.data.qrels import read_qrels
    from drkit.evaluate import evaluate
    from drkit.search import read_run

    def work() -> dict[str, float]:
        return evaluate(read_run(folder / "run.trec"), read_qrels(folder / "qrels"), MEASURES).means()

    return list(timed(clock, work).values())


def evaluate_pytrec_eval(folder: Path, _sizes: Sizes, clock: Clock) -> list[float]:
    import pytrec_eval

    def work() -> dict[str, dict[str, float]]:
        with (folder / "qrels").open() as qrels, (folder / "run.trec").open() as run:
            judged = pytrec_eval.parse_qrel(qrels)
            return pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.10", "recall.100"}).evaluate(
                pytrec_eval.parse_run(run)
            )

    found = timed(clock, work).values()
    return [sum(one[name] for one in found) / len(found) for name in ("ndcg_cut_10", "recall_100")]


def evaluate_ranx(folder: Path, _sizes: Sizes, clock: Clock) -> list[float]:
    from ranx import Qrels, Run, evaluate

    def work() -> dict[str, float]:
        qrels, run = (
            kind.from_file(str(folder / name), kind="trec") for kind, name in ((Qrels, "qrels"), (Run, "run.trec"))
        )
        return evaluate(qrels, run, ["ndcg@10", "recall@100"])

    return list(map(float, timed(clock, work).values()))


# Comparisons


@frozen
class Comparison:
    """What is done, for the table; its input; drkit's side; and its rivals, whose names end with the package they need.

    same: what both sides must find: `ids`, `numbers`, or nothing, where random numbers differ. needs: a package of
    drkit's side.
    """

    what: str
    prepare: Callable[[Path, Sizes], None]
    drkit: Callable[..., Any]
    rivals: dict[str, Callable[..., Any]]
    same: str = "numbers"
    needs: str = "drkit"

    def sides(self) -> dict[str, Callable[..., Any]]:
        """Return drkit's side, and those of rivals that are installed."""
        packages = {name: name.rpartition(", ")[2].replace("-", "_") for name in self.rivals}
        return {"drkit": self.drkit} | {name: side for name, side in self.rivals.items() if find_spec(packages[name])}


def fine_tuning(what: str, prepare: Callable[[Path, Sizes], None] = prepare_pairs, **how: Any) -> Comparison:
    rivals = {"sentence-transformers": partial(train_sentence_transformers, **how)}
    return Comparison(what, prepare, partial(train_drkit, **how), rivals)


PLAIN = {"transformers": pretraining_step("")}
MINERS = {
    "sentence-transformers": partial(mine_sentence_transformers, use_faiss=False),
    "sentence-transformers, faiss": partial(mine_sentence_transformers, use_faiss=True),
}
ENCODER = {"sentence-transformers": encode_sentence_transformers}
COMPARISONS = {
    "masked-lm": Comparison("a pre-training step, masked LM", prepare_nothing, pretraining_step("mlm-only"), PLAIN),
    "retromae": Comparison(
        "a pre-training step, RetroMAE beside a masked LM",
        prepare_nothing,
        pretraining_step("retromae"),
        PLAIN,
        "",
    ),
    "fine-tuning-256": fine_tuning("a fine-tuning step, {pairs} pairs, at most 256 tokens", length=256, chunks=0),
    "fine-tuning-128": fine_tuning("a fine-tuning step, {pairs} pairs, at most 128 tokens", length=128, chunks=0),
    "one-data-set": fine_tuning(
        "a fine-tuning step, {pairs} pairs of one of three data sets", prepare_data_sets, length=256, chunks=0
    ),
    "cached": fine_tuning("a step with 2 cached chunks of {pairs} pairs, at most 256 tokens", length=256, chunks=2),
    "encoding": Comparison("encoding {texts} docstrings", prepare_texts, encode_drkit, ENCODER),
    "openvino": Comparison(
        "encoding {texts} docstrings, openvino-int8",
        prepare_openvino,
        partial(encode_drkit, backend="openvino-int8"),
        ENCODER,
        needs="openvino",
    ),
    "static": Comparison(
        "encoding {short_texts:,} texts of 6 words, static",
        prepare_short_texts,
        partial(encode_drkit, queries=True),
        ENCODER,
    ),
    "start": Comparison(
        "a process that encodes a word",
        prepare_texts,
        start_drkit,
        {"sentence-transformers": start_sentence_transformers},
    ),
    "mining": Comparison(
        "mining for {queries:,} queries in {passages:,} passages", prepare_mining, mine_drkit, MINERS, "ids"
    ),
    "bm25": Comparison(
        "BM25, {bm25_queries} queries of {bm25_passages:,} passages",
        prepare_bm25,
        bm25_drkit,
        {"bm25s": partial(bm25_bm25s, backend="numpy"), "bm25s, numba": partial(bm25_bm25s, backend="numba")},
    ),
    "search": Comparison(
        "exact search, {searched} queries of {vectors:,} vectors",
        prepare_vectors,
        search_vectors("drkit flat"),
        {"faiss": search_vectors("faiss Flat"), "matmul and topk, torch": search_vectors("torch matmul + topk")},
        "ids",
    ),
    "evaluation": Comparison(
        "reading and evaluating {rankings:,} rankings of 1,000 hits",
        prepare_run,
        evaluate_drkit,
        {"pytrec_eval": evaluate_pytrec_eval, "ranx": evaluate_ranx},
    ),
}


def main() -> None:
    """Write the input of a comparison, or measure one of its sides: print the times, and leave what it found."""
    name, side, path, tiny = sys.argv[1:]
    comparison, folder, sizes = COMPARISONS[name], Path(path), TINY if tiny == "True" else Sizes()
    if not side:
        comparison.prepare(folder, sizes)
        return
    clock = Clock()
    found = comparison.sides()[side](folder, sizes, clock)[:COMPARED]
    print(json.dumps(clock.result()))
    write_json(folder / f"{side}.json", getattr(found, "tolist", lambda: found)())


if __name__ == "__main__":
    main()
