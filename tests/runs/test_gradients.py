"""Gradients of a batch: whole = in chunks, with dropout; one process = two; contrast and token losses alike."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from drkit.core.types import StepOutput
from drkit.train import gradients
from drkit.train.biencoder import BiEncoder
from drkit.train.pretrain import AutoEncoder, Term
from tests.torchrun import run_processes

HERE = Path(__file__).parent


class Contrast:
    """Find each row's partner among all rows."""

    def __call__(self, *, bottleneck, partners):
        scores = bottleneck @ bottleneck.T / 4
        scores = scores.masked_fill(torch.eye(len(scores), dtype=torch.bool), float("-inf"))
        return StepOutput(loss=F.cross_entropy(scores, partners))


def auto_encoder(dropout=0.0):
    """A toy auto-encoder with a loss over tokens, one over rows, and one that compares rows."""
    from drkit.core.registry import installed
    from drkit.core.spec import Kind
    from drkit.encoders import BertSizes, MaskedLmEncoder
    from drkit.testing.toys import toy_context, toy_tokenizer

    sizes = BertSizes(hidden=16, layers=2, heads=2, intermediate=24, max_positions=64, dropout=dropout)
    encoder = MaskedLmEncoder.from_scratch(sizes, toy_tokenizer(), seed=3)
    registry = installed().registry
    mlm = registry.build(Kind.LOSS, "mlm", None, toy_context())
    decoder = registry.build(Kind.DECODER, "mlm", None, toy_context())
    terms = {
        "encoder": Term(mlm, ("token_states",), "encoder", 0.7),
        "decoder": Term(mlm, ("token_states",), "decoder", 1.0),
        "contrast": Term(Contrast(), ("bottleneck", "partners"), "encoder", 0.3, "batch"),
    }
    return AutoEncoder(encoder, {"decoder": decoder}, terms)


def masked(tokens, rng, rows=0):
    """The tensors of a text that the encoder reads and a decoder rebuilds, each with its own view."""
    from drkit.maskers import UniformConfig, UniformMasker
    from drkit.testing.toys import toy_context
    from drkit.train.pretrain import side_tensors

    outer, inner = (UniformMasker(UniformConfig(ratio=ratio), toy_context()) for ratio in (0.3, 0.5))
    tensors = side_tensors("encoder", outer(tokens, rng), tokens)
    return tensors | side_tensors("decoder", inner(tokens, rng, rows=rows), None)


def paired_batch():
    """Sixteen rows: eight texts, and the same masked anew; row i + 8 is the partner of row i."""
    from attrs import evolve

    from drkit.core.draws import Draws
    from drkit.testing.toys import toy_tokens
    from drkit.train.pretrain import PARTNER, stacked

    tokens = toy_tokens()
    both = stacked(tokens, evolve(tokens, keys=tokens.keys + PARTNER), pad_id=0)
    return {**masked(both, Draws(1, 0, both.keys.numpy())), "partners": torch.arange(16).roll(8)}


class Apart:
    """Compares rows without partners, and each row by its signals: f[B,L] of tokens, f[B] of texts."""

    def __call__(self, *, bottleneck, importance, a_mark):
        near = torch.exp(-(bottleneck[:, None] - bottleneck).pow(2).sum(2))
        unlike = (importance.sum(1)[:, None] - importance.sum(1)).pow(2) + (a_mark[:, None] - a_mark).pow(2)
        assert importance.isfinite().all()
        return StepOutput(loss=(near * unlike).mean())


def signal_encoder():
    """The toy auto-encoder with a loss over the batch that receives signals, and none that receives partners."""
    module = auto_encoder()
    apart = Term(Apart(), ("bottleneck",), "encoder", 0.3, "batch", ("importance", "a-mark"))
    terms = {name: term for name, term in module.terms.items() if name != "contrast"}
    return AutoEncoder(module.encoder, dict(module.decoders), {**terms, "apart": apart})


def signal_batch():
    """Eight texts with a signal of their tokens and one of each text."""
    from drkit.core.draws import Draws
    from drkit.testing.toys import toy_tokens, with_signals

    tokens = with_signals(toy_tokens(), {"a-mark": ("text", ()), "importance": ("token", ())})
    return masked(tokens, Draws(1, 0, tokens.keys.numpy()))


TRAINED = {
    "pretrain": (auto_encoder, paired_batch),
    "signals": (signal_encoder, signal_batch),
}


def test_a_loss_over_the_batch_needs_no_partners():
    module, batch = signal_encoder().train(), signal_batch()
    assert module.compares()
    assert not module.paired()
    whole, figures, expected = taken(module, batch)
    assert float(figures["apart_loss"]) > 0
    for chunk in (1, 3, 5):
        loss, shown, found = taken(module, batch, chunk)
        assert float(loss) == pytest.approx(float(whole), rel=1e-5)
        assert float(shown["apart_loss"]) == pytest.approx(float(figures["apart_loss"]), rel=1e-5)
        close(found, expected, 2e-6)


def taken(module, batch, chunk=0):
    module.zero_grad()
    strategy = gradients.GradientStrategy(forward=module, backward=lambda loss: loss.backward(), chunk=chunk)
    loss, metrics = gradients.backward(module, batch, strategy)
    return loss, metrics, {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


def written_out(module, parts, rows):
    """The same loss with one graph through all parts, drawing the same random numbers."""
    outs = [module(**part) for part in parts]
    total = 0.0
    for name, weight in module.weights.items():
        count = sum(int(out[f"items.{name}"]) for out in outs)
        total = total + weight * sum(out[f"loss.{name}"] * int(out[f"items.{name}"]) / count for out in outs)
    joined = {name: torch.cat([out[f"rows.{name}"] for out in outs if f"rows.{name}" in out]) for name in rows}
    return total + module.compare(joined)[0]


def close(one, two, tolerance=1e-6):
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=tolerance, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("chunk", [0, 16, 5, 1])
def test_cached_gradients_are_those_of_one_graph_with_dropout_on(chunk):
    module, batch = auto_encoder(dropout=0.2).train(), paired_batch()
    torch.manual_seed(11)
    loss, _, found = taken(module, batch, chunk)
    after = torch.rand(1)
    torch.manual_seed(11)
    module.zero_grad()
    parts = module.chunks(batch, chunk) if chunk else [batch]
    expected = written_out(module, parts, ("encoder.bottleneck", "encoder.partners"))
    expected.backward()
    assert torch.equal(after, torch.rand(1)), "the random numbers go on as after one forward"
    assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-5)
    close(found, {n: p.grad for n, p in module.named_parameters() if p.grad is not None})


def test_the_size_of_chunks_changes_nothing_without_dropout():
    module, batch = auto_encoder().train(), paired_batch()
    whole, metrics, expected = taken(module, batch)
    for chunk in (1, 3, 8, 100):
        loss, shown, found = taken(module, batch, chunk)
        assert float(loss) == pytest.approx(float(whole), rel=1e-5)
        assert {n: float(v) for n, v in shown.items() if n.endswith("_loss")} == pytest.approx(
            {n: float(v) for n, v in metrics.items() if n.endswith("_loss")}, rel=1e-4
        )
        close(found, expected, 2e-6)


def bi_encoder():
    from drkit.losses import ContrastiveConfig, ContrastiveLoss
    from drkit.testing.toys import toy_encoder

    return BiEncoder(toy_encoder(), ContrastiveLoss(ContrastiveConfig(temperature=0.2)))


def pairs_batch():
    from drkit.testing.toys import toy_tokens
    from drkit.train.biencoder import pad_lists

    queries, passages = toy_tokens((6, 5, 9, 4)), toy_tokens((30, 22, 9, 14, 13, 12, 17, 22, 8, 30))
    lists = [[3], [7, 9], [1], [4, 2, 6]]
    return {
        "query.ids": queries.ids,
        "query.attention": queries.attention,
        "passage.ids": passages.ids,
        "passage.attention": passages.attention,
        "positives": torch.arange(4),
        "judged": pad_lists(lists),
        "passage_indices": torch.tensor([3, 7, 1, 4, 9, 2, 3, 11, 6, 12]),
    }


def test_a_bi_encoder_in_chunks_has_the_same_gradients():
    module, batch = bi_encoder(), pairs_batch()
    whole, _, expected = taken(module, batch)
    for chunk in (1, 3):
        loss, _, found = taken(module, batch, chunk)
        assert float(loss) == pytest.approx(float(whole), rel=1e-5)
        close(found, expected)


TRAINED["finetune"] = (bi_encoder, pairs_batch)


# What each of two and of three processes gets: rows of the batch; of queries and passages when fine-tuning.
PARTS = {
    # The first has shorter texts only, padded less: its signals are padded to the others' length when gathered.
    ("signals", 2): [[1, 2, 3, 4], [0, 5, 6, 7]],
    ("signals", 3): [[1, 2, 3], [0, 4], [5, 6, 7]],
    ("pretrain", 2): [[0, 1, 2], [3, 4, 5, 6, 7]],
    ("pretrain", 3): [[0, 1], [2, 3, 4], [5, 6, 7]],
    ("finetune", 2): [([0], [0, 4, 5]), ([1, 2, 3], [1, 2, 3, 6, 7, 8, 9])],
    ("finetune", 3): [([0], [0, 4, 5]), ([1, 2], [1, 2, 6, 7]), ([3], [3, 8, 9])],
}
# Kind, wrapper, rows per forward, and batches whose gradients are accumulated.
CASES = [
    *((kind, "ddp", chunk, steps) for kind in TRAINED for chunk in (0, 2) for steps in (1, 2)),
    *((kind, "fsdp2", 0, steps) for kind in TRAINED for steps in (1, 2)),
]


def shares(batch, kind, processes):
    """What each process gets of a batch; row numbers are its own."""
    return [share(batch, kind, rows, is_first=index == 0) for index, rows in enumerate(PARTS[kind, processes])]


def share(batch, kind, rows, is_first):
    if kind == "signals":
        return {n: t[rows, :22] if is_first and t.ndim > 1 and t.shape[1] == 30 else t[rows] for n, t in batch.items()}
    if kind == "pretrain":
        both = [*rows, *(row + 8 for row in rows)]
        part = {name: tensor[both] for name, tensor in batch.items()}
        return {**part, "partners": torch.arange(len(both)).roll(len(rows))}
    queries, passages = rows
    part = {
        n: t[passages] if n.startswith("passage") or n == "passage_indices" else t[queries] for n, t in batch.items()
    }
    width = 1 if is_first else 3
    return {**part, "positives": torch.arange(len(queries)), "judged": part["judged"][:, :width]}


def reverse(batch, kind):
    """Another batch: the same texts, each read backwards."""
    ids = [name for name in batch if name.endswith(".ids") and (kind == "finetune" or name.startswith("tokens"))]
    return {**batch, **{name: backwards(batch[name]) for name in ids}}


def backwards(ids):
    """Rows i64[B,L] in reverse, before their padding."""
    lengths = (ids != 0).sum(1)
    return torch.stack([torch.cat([row[:n].flip(0), row[n:]]) for row, n in zip(ids, lengths, strict=True)])


@pytest.fixture(scope="module")
def one_process():
    """Kind and number of accumulated batches -> loss and gradients of one process."""
    made = {}
    for kind in TRAINED:
        for steps in (1, 2):
            module, batch = (make() for make in TRAINED[kind])
            taken_of = [taken(module.train(), b) for b in (batch, reverse(batch, kind))[:steps]]
            loss = sum(float(loss) for loss, _, _ in taken_of) / steps
            made[kind, steps] = loss, {n: sum(g[n] for _, _, g in taken_of) / steps for n in taken_of[0][2]}
    return made


@pytest.fixture(scope="module", params=[2, 3])
def several_processes(request, tmp_path_factory):
    """Loss and gradients of every case, of two and of three processes."""
    folder = tmp_path_factory.mktemp("processes")
    run_processes("tests.runs.many_processes", folder, processes=request.param)
    return torch.load(folder / "found.pt", weights_only=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_several_processes_have_the_gradients_of_one_big_batch(one_process, several_processes, case):
    found, (whole, expected) = several_processes["-".join(map(str, case))], one_process[case[0], case[3]]
    assert float(found["loss"]) == pytest.approx(whole, rel=1e-5)
    close(found["gradients"], expected, 2e-6)


def test_a_part_without_a_target_counts_nothing():
    module, batch = auto_encoder().train(), paired_batch()
    silent = {**batch, "decoder.labels": torch.full_like(batch["decoder.labels"], -100)}
    silent["decoder.labels"][0] = batch["decoder.labels"][0]
    whole, _, expected = taken(module, silent)
    loss, _, found = taken(module, silent, 4)
    assert torch.isfinite(loss)
    assert float(loss) == pytest.approx(float(whole), rel=1e-5)
    close(found, expected, 2e-6)


def test_the_toy_contrast_is_no_constant():
    assert isinstance(auto_encoder(), nn.Module)
    module, batch = auto_encoder().train(), paired_batch()
    _, metrics, found = taken(module, batch)
    assert float(metrics["contrast_loss"]) > 0
    assert all(gradient.isfinite().all() for gradient in found.values())
