"""Time and peak memory of a pre-training step: forward + backward, 6 layers x 384, vocabulary 30522, 32 x 144 tokens.

    python benchmarks/pretrain_step.py [--every-masker] [--one NAME] [--small] [--json FILE]

Every installed decoder with the losses that a recipe gives it, at default settings and full targets, and the plain
Hugging Face masked LM for scale (logits and loss at every position, as its own forward does it). A decoder is
measured with `uniform`, or, where that does not fit it, with the first masker that does; `--every-masker` measures
all pairs that go together. A generator has the encoder's layers and a third of its width, as ELECTRA's. Each is
measured in a fresh process; masking is not part of it. `share` is that of the rate at which torch multiplies square
matrices of 2048 in the same process. `--small`: 1 layer x 128, vocabulary 8000, as in the default run.
`benchmarks/parts.py` prints this with the maskers' latency.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

TEXTS, LENGTH, VOCAB = 32, 144, 30522
PLAIN, PREFERRED = "plain masked LM", "uniform"
SIZES = {"hidden": 384, "layers": 6, "heads": 12, "intermediate": 1536, "dropout": 0.0}
GENERATOR = {**SIZES, "hidden": 128, "heads": 4, "intermediate": 512}


def tokenizer():
    """A tokenizer whose ids are BERT's: 0 is [PAD], and 100 to 103 are [UNK], [CLS], [SEP] and [MASK]."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    special = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
    words = {special.get(number, f"word{number}"): number for number in range(VOCAB)}
    names = {f"{word.strip('[]').lower()}_token": word for word in special.values()}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="[UNK]")), **names)


def texts(seed: int):
    """A batch of 32 full texts."""
    import numpy as np
    import torch

    from drkit.core.types import TokenBatch

    rng = np.random.default_rng(seed)
    ids = torch.from_numpy(rng.integers(1000, VOCAB, (TEXTS, LENGTH)))
    ids[:, 0], ids[:, -1] = 101, 102
    words = torch.from_numpy(np.cumsum(rng.random((TEXTS, LENGTH)) < 0.75, axis=1))
    words[:, 0] = words[:, -1] = -1
    return TokenBatch(
        ids=ids,
        attention=ids != 0,
        maskable=words >= 0,
        words=words,
        keys=torch.arange(TEXTS),
        signals={"importance": torch.from_numpy(rng.random(ids.shape, dtype=np.float32))},
    )


def make_small() -> None:
    """Measure a model of the default run's size from now on."""
    global SIZES, GENERATOR, VOCAB
    SIZES = {"hidden": 128, "layers": 1, "heads": 2, "intermediate": 256, "dropout": 0.0}
    GENERATOR, VOCAB = SIZES, 8000


def product_rate() -> float:
    """Operations a second of the product of two square matrices of 2048."""
    import torch

    one, times = torch.randn(2048, 2048), []
    for _ in range(6):
        start = time.perf_counter()
        one @ one
        times.append(time.perf_counter() - start)
    return 2 * 2048**3 / statistics.median(times[1:])


def operations(step) -> int:
    """Operations of the matrix products of a step; the counter cannot look into a fused cross-entropy."""
    from torch.nn import functional as F
    from torch.utils.flop_counter import FlopCounterMode

    def in_two_steps(states, weight, labels, *, linear_bias, **_options):
        return F.cross_entropy(F.linear(states, weight, linear_bias), labels)

    opened = mock.patch.object(F, "linear_cross_entropy", in_two_steps, create=True)
    with opened, FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def step_of(name: str):
    """A function that does one forward and backward."""
    import torch

    from drkit.train.gradients import GradientStrategy, backward

    if name != PLAIN:
        module, tensors = pair(name)
        return lambda: backward(module, tensors, GradientStrategy(forward=module, backward=torch.Tensor.backward))
    model, view = plain()
    return lambda: model(view.ids, attention_mask=view.attention, labels=view.labels).loss.backward()


def new_encoder():
    """The encoder, and the context of parts beside it."""
    from drkit.encoders import BertSizes, MaskedLmEncoder, context_from

    encoder = MaskedLmEncoder.from_scratch(BertSizes(**SIZES), tokenizer())
    return encoder, context_from(encoder, tokenizer())


def plain():
    """The masked LM of Hugging Face, and a masked view of the texts."""
    from drkit.core.draws import Draws
    from drkit.maskers import UniformConfig, UniformMasker

    encoder, context = new_encoder()
    tokens = texts(0)
    return encoder.model, UniformMasker(UniformConfig(), context)(tokens, Draws(1, 0, tokens.keys.numpy()))


def pair(name: str):
    """The module of a masker and a decoder (`MASKER + DECODER`), and the tensors of a batch."""
    import torch
    from attrs import evolve

    from drkit.core.draws import Draws
    from drkit.core.registry import installed
    from drkit.decoders.layers import visibility_rows
    from drkit.encoders import BertSizes, MaskedLmEncoder
    from drkit.runs.making.pretrain import auto_encoder, build_maskers
    from drkit.train.pretrain import side_tensors

    (encoder, context), (masker_name, decoder) = new_encoder(), name.split(" + ")
    settings, registry = pretraining(masker_name, decoder), installed().registry
    task = settings.decoders["main"]
    if "generator" in registry.get("masker", masker_name).requires_of(task.masker.config):
        context = evolve(context, generator=MaskedLmEncoder.from_scratch(BertSizes(**GENERATOR), tokenizer()))
    context = evolve(context, signals={"idf": torch.ones(VOCAB)})
    maskers = build_maskers(settings, registry, context)
    module = auto_encoder(settings, registry, encoder, context, maskers).train()
    tokens = texts(0)
    rng = Draws(1, 0, tokens.keys.numpy())
    tensors = side_tensors("encoder", maskers["encoder"](tokens, rng), tokens)
    view = maskers["main"](tokens, rng, rows=visibility_rows(module.decoders["main"], LENGTH))
    return module, tensors | side_tensors("main", view, None)


def pretraining(masker: str, decoder: str):
    """What `drkit compose --masker M --decoder D` pre-trains with, every setting of the parts at its default."""
    from attrs import evolve

    from drkit.core.registry import installed
    from drkit.recipe.compose import ComposeRequest, compose

    settings = compose(ComposeRequest(masker=masker, decoder=decoder), installed()).pretrain
    task = settings.decoders["main"]
    chosen = evolve(task.decoder, config=type(task.decoder.config)())
    main = evolve(task, decoder=chosen, losses=plainly(task.losses))
    encoder = evolve(settings.encoder, losses=plainly(settings.encoder.losses))
    return evolve(settings, encoder=encoder, decoders={"main": main})


def plainly(losses: dict):
    """The losses at their default settings, with a weight of 1."""
    from attrs import evolve

    return {name: evolve(term, config=type(term.config)(), weight=1.0) for name, term in losses.items()}


def measure(name: str, repeats: int) -> dict:
    """In this process: seconds of a step, the most memory the process has had, and the share of the products' rate."""
    step, times = step_of(name), []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    seconds, peak = statistics.median(times[1:]), peak_memory() / 1024
    return {"step": name, "seconds": seconds, "peak_gib": peak, "share": operations(step) / seconds / product_rate()}


def peak_memory() -> float:
    """MB, from /proc: what getrusage says of a process begins with the size of the one that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measured_apart(name: str, repeats: int, *options: str) -> dict:
    """`measure` in a process of its own; raises RuntimeError with its last words where it fails."""
    command = [sys.executable, __file__, "--one", name, "--repeats", str(repeats), *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def names(every_masker: bool = False) -> list[str]:
    """The plain masked LM, and the pairs to measure."""
    from drkit.core.registry import installed
    from drkit.recipe.matrix import matrix

    made, found = matrix(installed()), [PLAIN]
    for decoder in made.decoders:
        fitting = [pair.masker for pair in made.pairs if pair.decoder == decoder and not pair.problems]
        fitting.sort(key=lambda masker: masker != PREFERRED)
        found += [f"{masker} + {decoder}" for masker in (fitting if every_masker else fitting[:1])]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--every-masker", action="store_true", help="all pairs that go together, not one a decoder")
    parser.add_argument("--small", action="store_true", help="a model of the default run's size")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help="measure this one in this process and print it as JSON")
    options = parser.parse_args()
    if options.small:
        make_small()
    if options.one:
        print(json.dumps(measure(options.one, options.repeats)))
        return
    found = []
    print("| step | seconds | peak GiB | share |\n|---|---|---|---|")
    for name in names(options.every_masker):
        row = measured_apart(name, options.repeats, *(["--small"] if options.small else []))
        print(f"| {row['step']} | {row['seconds']:.3f} | {row['peak_gib']:.2f} | {row['share']:.0%} |", flush=True)
        found.append(row)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
