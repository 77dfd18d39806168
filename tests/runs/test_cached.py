"""Cached gradients outside drkit's runs: equal to one graph, and a loss of sentence-transformers' own trainer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from drkit.errors import DrkitError
from drkit.losses import ContrastiveConfig, ContrastiveLoss, KlDistillationConfig, KlDistillationLoss
from drkit_sentence_transformers import CachedGradients
from drkit_sentence_transformers.losses import _fingerprints
from tests.search.made import export_made
from tests.search.toys import TEXTS, masked_lm, tokenizer
from tests.torchrun import run_processes

CONTRASTIVE = ContrastiveConfig(temperature=0.05)


class Bag(nn.Module):
    """Means of word vectors, with dropout."""

    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(60, 16, padding_idx=0)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features):
        return self.dropout(self.words(features["input_ids"])).mean(1)


def columns(count, rows=10, length=6, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(1, 60, (rows, length), generator=generator)} for _ in range(count)]


def taken(model, loss, features, labels=None):
    model.zero_grad()
    torch.manual_seed(7)
    value = loss(features, labels)
    (value / 4).backward()
    return value.item(), [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("chunk", [1, 3, 10, 64])
def test_chunks_give_the_gradients_of_one_graph_with_dropout_on(chunk):
    model, features = Bag(dropout=0.3), columns(4)
    got, gradients = taken(model, CachedGradients(model, ContrastiveLoss(CONTRASTIVE), chunk=chunk), features)
    # The same chunks, so the same dropout, in one graph.
    model.zero_grad()
    torch.manual_seed(7)
    vectors = [
        torch.cat([model({"input_ids": f["input_ids"][s : s + chunk]}) for s in range(0, 10, chunk)]) for f in features
    ]
    unit = [nn.functional.normalize(v, dim=1) for v in vectors]
    scores = unit[0] @ torch.cat(unit[1:]).T / 0.05
    wanted = nn.functional.cross_entropy(scores, torch.arange(10))
    (wanted / 4).backward()
    assert got == pytest.approx(wanted.item(), rel=1e-6)
    for mine, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=0, atol=1e-6)


def test_a_copy_of_the_positive_is_no_negative_whatever_its_padding():
    model, (queries, passages) = Bag(), columns(2, rows=4)
    copied = {"input_ids": passages["input_ids"].clone()}
    copied["input_ids"][1] = copied["input_ids"][0]
    loss = CachedGradients(model, ContrastiveLoss(CONTRASTIVE))
    once = loss([queries, copied]).item()
    pairs = [model(queries), model(copied)]
    unit = [nn.functional.normalize(v, dim=1) for v in pairs]
    scores = unit[0] @ unit[1].T / 0.05
    scores[0, 1] = scores[1, 0] = float("-inf")
    scores[2:, 1] = float("-inf")  # the copy counts once
    assert once == pytest.approx(nn.functional.cross_entropy(scores, torch.arange(4)).item(), rel=1e-5)
    wide = {"input_ids": nn.functional.pad(passages["input_ids"], (0, 3))}
    masks = [torch.ones(4, 6), nn.functional.pad(torch.ones(4, 6), (0, 3))]
    prints = [_fingerprints({**f, "attention_mask": m}) for f, m in zip([passages, wide], masks, strict=True)]
    assert torch.equal(*prints)
    assert len(set(prints[0].tolist())) == 4


def test_another_positive_of_the_same_query_is_no_negative():
    model, (queries, passages) = Bag(), columns(2, rows=4)
    twice = {"input_ids": queries["input_ids"].clone()}
    twice["input_ids"][2] = twice["input_ids"][0]
    unit = [nn.functional.normalize(model(f), dim=1) for f in (twice, passages)]
    scores = unit[0] @ unit[1].T / 0.05
    scores[0, 2] = scores[2, 0] = float("-inf")
    once = CachedGradients(model, ContrastiveLoss(CONTRASTIVE))([twice, passages]).item()
    assert once == pytest.approx(nn.functional.cross_entropy(scores, torch.arange(4)).item(), rel=1e-5)


class Cast(Bag):
    """A bag whose vectors go through a matrix, and which notes in what numbers that was done."""

    def __init__(self):
        super().__init__()
        self.turn, self.kinds = nn.Linear(16, 16), []

    def forward(self, features):
        turned = self.turn(super().forward(features))
        self.kinds.append(turned.dtype)
        return nn.functional.normalize(turned.float(), dim=1)


@pytest.mark.parametrize("inside", [False, True])
def test_under_autocast_both_passes_are_cast_and_scores_are_not(inside):
    model, features, sharp = Cast(), columns(3), ContrastiveConfig(temperature=0.01)
    with torch.autocast("cpu", torch.bfloat16):
        vectors = [model(f) for f in features]
    scores = vectors[0] @ torch.cat(vectors[1:]).T / 0.01
    wanted = nn.functional.cross_entropy(scores, torch.arange(10))
    wanted.backward()
    expected = model.turn.weight.grad.clone()
    model.zero_grad()
    model.kinds.clear()
    with torch.autocast("cpu", torch.bfloat16):
        got = CachedGradients(model, ContrastiveLoss(sharp), chunk=10)(features)
        if inside:
            got.backward()
    if not inside:
        got.backward()
    assert model.kinds == [torch.bfloat16] * 6
    assert got.item() == pytest.approx(wanted.item(), rel=1e-6)
    torch.testing.assert_close(model.turn.weight.grad, expected, rtol=0.01, atol=0.01 * float(expected.abs().max()))


def test_labels_are_a_teachers_scores():
    model, features = Bag(), columns(4)
    teacher = torch.randn(10, 3)
    loss = KlDistillationLoss(KlDistillationConfig(alpha=0.0, temperature=0.05))
    got, _ = taken(model, CachedGradients(model, loss, chunk=4), features, teacher)
    unit = [nn.functional.normalize(model(f), dim=1) for f in features]
    scores = torch.stack([(unit[0] * passage).sum(1) for passage in unit[1:]], 1) / 0.05
    wanted = nn.functional.kl_div(scores.log_softmax(1), teacher.log_softmax(1), log_target=True, reduction="batchmean")
    assert got == pytest.approx(wanted.item(), rel=1e-5)


def test_evaluation_needs_no_gradient():
    model, features = Bag(), columns(3)
    loss = CachedGradients(model, ContrastiveLoss(CONTRASTIVE))
    with torch.no_grad():
        value = loss(features)
    assert value.item() == pytest.approx(loss(features).item())
    assert loss.metrics["accuracy"] <= 1


@pytest.mark.parametrize(
    ("features", "labels", "said"),
    [
        (columns(1), None, "at least 2 columns .*got 1"),
        ([*columns(1, rows=3), *columns(1, rows=4)], None, "columns .*rows.*3, 4$"),
        (columns(3), torch.zeros(10), "teacher"),
    ],
)
def test_what_does_not_fit_is_told(features, labels, said):
    with pytest.raises(DrkitError, match=said):
        CachedGradients(Bag(), ContrastiveLoss(CONTRASTIVE))(features, labels)
    with pytest.raises(DrkitError, match=r"chunk .*1, got 0"):
        CachedGradients(Bag(), ContrastiveLoss(CONTRASTIVE), chunk=0)


def triplets():
    return {"anchor": TEXTS * 3, "positive": [*TEXTS[1:], TEXTS[0]] * 3, "negative": [*TEXTS[2:], *TEXTS[:2]] * 3}


@pytest.fixture
def sentence_transformer(tmp_path, monkeypatch):
    from sentence_transformers import SentenceTransformer

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    how = {"pooling": "mean", "similarity": "cosine", "query_length": 48, "passage_length": 48}
    folder = export_made(masked_lm(), tokenizer(), tmp_path / "e", **how)
    return lambda: SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def test_the_value_is_sentence_transformers_own(sentence_transformer):
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

    model = sentence_transformer().eval()
    # No text twice: theirs does not know a copy of a positive.
    features = [model.preprocess(TEXTS[index : index + 2]) for index in (0, 2, 4)]
    reference = CachedMultipleNegativesRankingLoss(model, scale=20.0, mini_batch_size=1)
    theirs = reference([dict(f) for f in features], torch.zeros(2))
    ours = CachedGradients(model, ContrastiveLoss(CONTRASTIVE), chunk=1)([dict(f) for f in features])
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)


def test_sentence_transformers_trainer_trains_with_it(sentence_transformer, tmp_path):
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    def trained(chunk):
        model = sentence_transformer()
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(tmp_path / "out"),
            max_steps=3,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            learning_rate=1e-2,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        loss = CachedGradients(model, ContrastiveLoss(CONTRASTIVE), chunk=chunk)
        data = Dataset.from_dict(triplets())
        SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss).train()
        return model.eval().encode(TEXTS)

    for module in (before := sentence_transformer()).modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    first, second = trained(8), trained(8)
    assert (first == second).all()
    assert abs(first - before.encode(TEXTS)).max() > 1e-3


def test_two_processes_take_the_gradients_of_one_batch(tmp_path):
    run_processes("tests.runs.two_cached", tmp_path)
    found = torch.load(tmp_path / "found.pt", weights_only=True)
    model = Bag()
    loss = CachedGradients(model, ContrastiveLoss(CONTRASTIVE), chunk=4)
    loss(columns(3, rows=12)).backward()
    torch.testing.assert_close(found, model.words.weight.grad, rtol=0, atol=1e-6)


def test_flat_tokens_with_offsets_are_the_same_rows_as_padded_ones():
    """What `StaticEmbedding` of sentence-transformers receives."""
    padded, bag = Bag(), nn.EmbeddingBag(60, 16)
    bag.load_state_dict(padded.words.state_dict())
    features = columns(3)
    features[1]["input_ids"][4] = features[1]["input_ids"][2]  # a copy of a positive
    flat = [{"input_ids": f["input_ids"].flatten(), "offsets": torch.arange(0, 60, 6)} for f in features]
    wanted, gradients = taken(padded, CachedGradients(padded, ContrastiveLoss(CONTRASTIVE), chunk=4), features)

    def model(features):
        return bag(features["input_ids"], features["offsets"])

    for chunk in (1, 4, 64):
        bag.zero_grad()
        loss = CachedGradients(model, ContrastiveLoss(CONTRASTIVE), chunk=chunk)(flat)
        (loss / 4).backward()
        assert loss.item() == pytest.approx(wanted, rel=1e-6)
        torch.testing.assert_close(bag.weight.grad, gradients[0], rtol=0, atol=1e-6)
    texts = [torch.tensor([5, 6]), torch.tensor([7]), torch.tensor([5, 6])]
    prints = _fingerprints({"input_ids": torch.cat(texts), "offsets": torch.tensor([0, 2, 3])})
    assert prints[0] == prints[2] != prints[1]
