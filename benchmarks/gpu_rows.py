"""The rows of `gpu.py`: what each measures in this process, on the GPU if torch sees one.

A row is a step and a mode. Texts are random words, and no module has dropout. A step of pre-training is that of a
paper's recipe, with the size of BERT-base; contexts are other texts of the batch, and so are queries.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from accelerate.utils import convert_outputs_to_fp32
from attrs import evolve, frozen
from pretrain_step import operations, peak_memory
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import BertProcessing
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, TrainerCallback

from drkit.builtin import drkit_recipes
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.core.spec import Kind
from drkit.data.contexts import batch_signals
from drkit.data.store import StoredTexts, TokenStore, tokenise
from drkit.encoders import BertSizes, MaskedLmEncoder, context_from
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.parts import required_signals
from drkit.recipe.schema import Training
from drkit.runs.making.pretrain import auto_encoder, build_maskers, masking_collator, vocabulary_signals
from drkit.search import FlatIndex, TextEncoder
from drkit.testing.contexts import toy_pretraining_texts
from drkit.testing.data import written_signal
from drkit.train.batches import Schedule
from drkit.train.biencoder import BiEncoder
from drkit.train.gradients import GradientStrategy, backward
from drkit.train.trainer import train

PLAIN, CACHED, PADDED = "masked LM of transformers", "cached gradients", ", padded"
# The steps that are measured in every mode, and one of each other paper.
DETAILED, PAPERS = (PLAIN, "retromae"), ("simlm", "cpdae", "cdmae", "cotmae-qac")
COMPILED = {"arguments": {"torch_compile": True}}
MODES: Mapping[str, Mapping[str, Any]] = {
    "bf16": {"bf16": True},
    "fp32": {},
    "tf32": {},
    "bf16 compiled": {"bf16": True, **COMPILED},
    "fp32 compiled": COMPILED,
}
# How much a loss, and all gradients together, may differ from those of the CPU in float32, relative to their size.
TOLERANCES = {"fp32": (1e-5, 1e-3), "bf16": (2e-2, 1e-1)}
LAYERS, SEED, REPEATS, COUNTED_PAIRS = 12, 1, 3, 64
QUERY_LENGTH, PASSAGE_LENGTH, DEPTH, CHECKED = 32, 144, 100, 4
Row = tuple[str, str]


@frozen
class Sizes:
    """Sizes of the model and of what it reads; chunks: of cached gradients, in texts; matrix: of products."""

    texts: int = 64
    length: int = 512
    vocab: int = 30522
    hidden: int = 768
    heads: int = 12
    intermediate: int = 3072
    steps: int = 10
    pairs: int = 2048
    chunks: tuple[int, ...] = (64, 256, 1024)
    vectors: int = 500_000
    queries: int = 1000
    matrix: int = 8192

    def bert(self, share: int = 1) -> BertSizes:
        """Return the sizes of the encoder, or of one whose widths are divided by `share`."""
        widths = {"hidden": self.hidden // share, "intermediate": self.intermediate // share}
        return BertSizes(**widths, layers=LAYERS, heads=self.heads // share, dropout=0.0)


# Of comparisons with the CPU, and of `--tiny`.
EQUALITY = Sizes(texts=8, length=64, vocab=2000, hidden=96, heads=6, intermediate=192, pairs=24, chunks=(8,))
TINY = evolve(EQUALITY, texts=4, length=32, steps=2, vectors=2000, queries=8, matrix=64)


def rows(sizes: Sizes) -> list[Row]:
    """Return all rows: the cheap ones first, then those that nothing else tells, and the variants of papers last."""
    papers = [name for name in sorted({*installed().recipes} - {*drkit_recipes()}) if composed(name).pretrain]
    pairs = [f"{min(256, sizes.pairs)} pairs at once"]
    pairs += [f"{sizes.pairs} pairs in chunks of {chunk}" for chunk in sizes.chunks]
    steps = {
        "matrix product": [("", mode) for mode in ("bf16", "fp32", "tf32")],
        "equality": [(name, mode) for mode in TOLERANCES for name in (*papers, CACHED)],
        "fine-tuning": [(name, "bf16") for name in pairs],
        "encoding": [("", mode) for mode in ("bf16", "fp32")],
        "search": [("", "fp32")],
        "pre-training": [(name, "bf16") for name in (*DETAILED, *PAPERS, *(name + PADDED for name in DETAILED))]
        + [(name, mode) for mode in MODES if mode != "bf16" for name in DETAILED]
        + [(name, "bf16") for name in papers if name not in (*DETAILED, *PAPERS)],
    }
    return [(f"{kind}: {name}" if name else kind, mode) for kind, every in steps.items() for name, mode in every]


def measure(step: str, mode: str, sizes: Sizes) -> dict[str, Any]:
    """Return what a row measures; memory that earlier rows have kept does not count."""
    kinds: dict[str, Callable[[str, str, Sizes], dict[str, Any]]] = {
        "matrix product": matrix_product,
        "equality": equality,
        "fine-tuning": fine_tuning,
        "encoding": encoding,
        "search": search,
        "pre-training": pretraining,
    }
    gc.collect()
    torch.set_float32_matmul_precision("high" if mode == "tf32" else "highest")
    if device().type == "cuda":
        torch.cuda.empty_cache()
    kind, _, name = step.partition(": ")
    return kinds[kind](name, mode, sizes)


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def start_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_gib() -> float:
    """Return the most GiB since `start_peak`: of the GPU's memory, or on a CPU of the process since it began."""
    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else peak_memory() / 1024


def median_seconds(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median of calls, each waited for; one more warms up."""
    times = []
    for _ in range(repeats + 1):
        synchronize()
        start = time.perf_counter()
        call()
        synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


class Clock(TrainerCallback):  # type: ignore[misc]
    """Notes the end of every step, on a GPU in its own queue, so that no step waits; and writes no checkpoint."""

    def __init__(self) -> None:
        self.ends: list[Any] = []

    def on_step_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
        """Note the time."""
        control.should_save = False
        if torch.cuda.is_available():
            self.ends.append(torch.cuda.Event(enable_timing=True))
            self.ends[-1].record()
        else:
            self.ends.append(time.perf_counter())

    def median_seconds(self, steps: int) -> float:
        """Return the median of the last steps."""
        synchronize()
        pairs = list(zip(self.ends, self.ends[1:], strict=False))[-steps:]
        if torch.cuda.is_available():
            return statistics.median(one.elapsed_time(two) / 1000 for one, two in pairs)
        return statistics.median(two - one for one, two in pairs)


# Modules and batches


def composed(paper: str) -> Any:
    return compose(ComposeRequest(paper=paper, scale="paper"), installed())


def new_tokenizer(vocab: int) -> Any:
    """Return a tokenizer of single words whose special ids are BERT's."""
    special = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
    words = {special.get(number, f"word{number}"): number for number in range(vocab)}
    made = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = WhitespaceSplit()
    made.post_processor = BertProcessing(("[SEP]", 102), ("[CLS]", 101))
    names = {f"{word.strip('[]').lower()}_token": word for word in special.values()}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def paper_step(paper: str, sizes: Sizes, *, shortest: int = 0) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return the module that a paper's recipe pre-trains, and a batch; texts have `shortest` tokens or more."""
    recipe, registry, tokenizer = composed(paper), installed().registry, new_tokenizer(sizes.vocab)
    encoder = MaskedLmEncoder.from_scratch(sizes.bert(), tokenizer, pooling=recipe.encoder.pooling.use)
    generator = MaskedLmEncoder.from_scratch(sizes.bert(share=3), tokenizer)
    rng = np.random.default_rng(SEED)
    lengths = rng.integers(shortest or sizes.length, sizes.length + 1, sizes.texts)
    lengths[0] = sizes.length
    texts = [" ".join(f"word{n}" for n in rng.integers(1000, sizes.vocab, length - 2)) for length in lengths]
    with TemporaryDirectory() as name:
        folder = Path(name)
        tokenise(((str(n), text) for n, text in enumerate(texts)), tokenizer, folder, max_length=sizes.length)
        stored = StoredTexts(TokenStore.open(folder), tokenizer, len(tokenizer), lambda: iter(texts))
        context = evolve(context_from(encoder, tokenizer), generator=generator)
        signals = {}
        for signal, choice in required_signals(recipe.pretrain, registry).items():
            scope = registry.get(Kind.SIGNAL, choice.use).scope_of(choice.config)
            built = registry.build(Kind.SIGNAL, choice.use, choice.config, context)
            signals[signal] = written_signal(built, signal, scope, stored, folder / signal, signal)
        context = evolve(context, signals=vocabulary_signals(signals))
        maskers = build_maskers(recipe.pretrain, registry, context)
        module = auto_encoder(recipe.pretrain, registry, encoder, context, maskers).train()
        read = toy_pretraining_texts(stored.store, batch_signals(signals), folder)
        collate = masking_collator(recipe.pretrain, registry, module, context, maskers, read)
        return module, collate([(0, index) for index in range(sizes.texts)])


class Plain(nn.Module):
    """The masked LM of transformers with its own loss, as drkit's trainer takes a module."""

    row_indices: Mapping[str, str] = {}
    weights: Mapping[str, float] = {"mlm": 1.0}
    marks = ("attention_mask",)

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def compares(self) -> bool:
        """Return False."""
        return False

    def forward(self, local: bool = True, **tensors: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the loss, a mean over texts."""
        ids = tensors["input_ids"]
        return {"loss.mlm": self.model(**tensors).loss, "items.mlm": torch.tensor(len(ids), device=ids.device)}


def plain_step(sizes: Sizes, *, shortest: int = 0) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return transformers' masked LM and a masked batch."""
    module, tensors = paper_step("mlm-only", sizes, shortest=shortest)
    names = {"input_ids": "ids", "attention_mask": "attention", "labels": "labels"}
    return Plain(module.encoder.model), {name: tensors[f"encoder.{key}"] for name, key in names.items()}


def pair_step(pairs: int, sizes: Sizes) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return a bi-encoder with the loss `contrastive`, and queries with a passage each."""
    registry = installed().registry
    config = registry.get(Kind.LOSS, "contrastive").config(temperature=0.05, similarity="cosine")
    encoder = MaskedLmEncoder.from_scratch(sizes.bert(), new_tokenizer(sizes.vocab))
    rng, order = np.random.default_rng(SEED), torch.arange(pairs)
    tensors = {"positives": order, "judged": order[:, None], "passage_indices": order, "groups": order[:, None]}
    for side, length in (("query", QUERY_LENGTH), ("passage", PASSAGE_LENGTH)):
        tensors[f"{side}.ids"] = torch.from_numpy(rng.integers(1000, sizes.vocab, (pairs, length)))
        tensors[f"{side}.attention"] = torch.ones(pairs, length, dtype=torch.bool)
    return BiEncoder(encoder, registry.build(Kind.LOSS, "contrastive", config)).train(), tensors


# Rows


def matrix_product(_name: str, mode: str, sizes: Sizes) -> dict[str, Any]:
    """Multiply square matrices: what torch reaches on this device."""
    dtype = torch.bfloat16 if mode == "bf16" else torch.float32
    one, two = (torch.randn(sizes.matrix, sizes.matrix, device=device()).to(dtype) for _ in range(2))
    seconds = median_seconds(lambda: one @ two, repeats=10)
    return {"seconds": seconds, "tflops": 2 * sizes.matrix**3 / seconds / 1e12}


def equality(name: str, mode: str, _sizes: Sizes) -> dict[str, Any]:
    """Compare a step's loss and gradients with those of the CPU in float32."""
    chunk = EQUALITY.chunks[0] if name == CACHED else 0
    module, tensors = pair_step(EQUALITY.pairs, EQUALITY) if chunk else paper_step(name, EQUALITY)
    copy = deepcopy(module).to(device())
    loss, gradients = step_result(module, tensors, "fp32")
    other_loss, other_gradients = step_result(copy, tensors, mode, chunk)
    loss_error = abs(other_loss - loss) / abs(loss)
    gradient_error = float((other_gradients - gradients).norm() / gradients.norm())
    loss_limit, gradient_limit = TOLERANCES[mode]
    is_equal = loss_error <= loss_limit and gradient_error <= gradient_limit
    return {"loss": other_loss, "loss_error": loss_error, "gradient_error": gradient_error, "equal": is_equal}


def step_result(module: nn.Module, tensors: Mapping[str, Tensor], mode: str, chunk: int = 0) -> tuple[float, Tensor]:
    """Return the loss and all gradients f64[n] of one step, where the module is."""
    loss = one_step(module, tensors, mode, chunk)
    gradients = [(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in module.parameters()]
    return loss, torch.cat(gradients).double().cpu()


def one_step(module: nn.Module, tensors: Mapping[str, Tensor], mode: str, chunk: int = 0) -> float:
    """Compute the gradients of one step as the trainer does, and return its loss."""
    place = next(module.parameters()).device
    mixed = torch.autocast(place.type, dtype=torch.bfloat16, enabled=mode.startswith("bf16"))
    forward = convert_outputs_to_fp32(mixed(module.forward))
    strategy = GradientStrategy(forward=forward, backward=Tensor.backward, chunk=chunk)
    loss, _ = backward(module, {name: tensor.to(place) for name, tensor in tensors.items()}, strategy)
    return float(loss)


def pretraining(name: str, mode: str, sizes: Sizes) -> dict[str, Any]:
    """Train on one batch; `padded`: its texts have 8 tokens or more, in place of all that fit."""
    shortest = 8 if name.endswith(PADDED) else 0
    name = name.removesuffix(PADDED)
    made = plain_step(sizes, shortest=shortest) if name == PLAIN else paper_step(name, sizes, shortest=shortest)
    return trained(*made, mode, sizes.steps, flops=count_flops(*made, mode))


def fine_tuning(name: str, mode: str, sizes: Sizes) -> dict[str, Any]:
    """Train on one batch of pairs, in chunks of some number of texts or at once."""
    pairs, chunk = int(name.split()[0]), int(name.split()[-1]) if "chunks" in name else 0
    counted = min(pairs, COUNTED_PAIRS)
    flops = count_flops(*pair_step(counted, sizes), mode) * pairs / counted
    return trained(*pair_step(pairs, sizes), mode, max(sizes.steps // 3, 1), flops=flops, chunk=chunk)


def count_flops(module: nn.Module, tensors: Mapping[str, Tensor], mode: str) -> int:
    """Return the FLOPs of the matrix products of one step, forward and backward, on padding too."""
    module.to(device())
    counted = operations(lambda: one_step(module, tensors, mode))
    module.zero_grad(set_to_none=True)
    return counted


def trained(
    module: Any, tensors: Mapping[str, Tensor], mode: str, steps: int, *, flops: float, chunk: int = 0
) -> dict[str, Any]:
    """Train with drkit's trainer on one batch over and over; as many steps warm up, and compile, as are measured."""
    how = {"max_steps": 2 * steps, "logging_steps": 2 * steps, "learning_rate": 1e-5, **MODES[mode]}
    clock = Clock()
    start_peak()
    with TemporaryDirectory() as folder:
        done = train(
            module,
            Schedule(np.ones(1, np.int32), 1, 2 * steps, SEED),
            lambda _: tensors,
            training=Training(per_device_train_batch_size=1, gradient_cache_chunk=chunk, **how),
            folder=Path(folder),
            progress=Silent(),
            seed=SEED,
            callbacks=[clock],
        )
    seconds = clock.median_seconds(steps)
    tokens = sum(int(tensors[name].sum()) for name in module.marks)
    found = {"seconds": seconds, "tokens_per_second": tokens / seconds, "tflops": flops / seconds / 1e12}
    return {**found, "peak_gib": peak_gib(), "loss": done.log[-1]["loss"]}


def encoding(_name: str, mode: str, sizes: Sizes) -> dict[str, Any]:
    """Encode texts of spread lengths, as many as 32 batches have."""
    encoder = MaskedLmEncoder.from_scratch(sizes.bert(), new_tokenizer(sizes.vocab))
    precision = {"fp32": "float32", "bf16": "bfloat16"}[mode]
    read = partial(TextEncoder, tokenizer=new_tokenizer(sizes.vocab), pooling="mean", precision=precision)
    rng = np.random.default_rng(SEED)
    lengths = rng.integers(8, sizes.length + 1, 32 * sizes.texts)
    texts = [rng.integers(1000, sizes.vocab, length) for length in lengths]
    reader = read(encoder.backbone.to(device()))
    start_peak()
    seconds = median_seconds(lambda: reader.encode_tokens(texts))
    rates = {"tokens_per_second": int(lengths.sum()) / seconds, "texts_per_second": len(texts) / seconds}
    return {"seconds": seconds, **rates, "peak_gib": peak_gib()}


def search(_name: str, _mode: str, sizes: Sizes) -> dict[str, Any]:
    """Search a flat index, and compare the hits of some queries with sums in float64 on the CPU."""
    rng = np.random.default_rng(SEED)
    vectors = rng.standard_normal((sizes.vectors, sizes.hidden), dtype=np.float32)
    queries = rng.standard_normal((sizes.queries, sizes.hidden), dtype=np.float32)
    index = FlatIndex.build(vectors, [str(number) for number in range(len(vectors))])
    start_peak()
    seconds = median_seconds(lambda: index.search(queries, DEPTH))
    blocks = np.array_split(vectors, max(len(vectors) // 65_536, 1))
    exact = np.concatenate([block.astype(np.float64) @ queries[:CHECKED].T.astype(np.float64) for block in blocks])
    expected = np.argsort(-exact, axis=0)[:DEPTH].T.astype(str).tolist()
    found = [[*hits.doc_ids] for hits in index.search(queries[:CHECKED], DEPTH)]
    rates = {"seconds": seconds, "queries_per_second": len(queries) / seconds}
    return {**rates, "peak_gib": peak_gib(), "equal": found == expected}
