"""Pairs of a fine-tuning batch: what may be a negative, what is drawn, and that neither depends on the batch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from drkit.data.store import TokenStore, tokenise
from drkit.recipe.training import Training
from drkit.train.batches import Schedule
from drkit.train.biencoder import (
    PairCollator,
    TrainingPairs,
    candidate_mask,
    pad_lists,
    schedule_lengths,
    training_pairs,
)

WORDS = [f"w{i}" for i in range(60)]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{n}_token": f"[{n.upper()}]" for n in ("pad", "unk", "cls", "sep", "mask")}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    folder = tmp_path_factory.mktemp("stores")
    # Text i is i + 1 words w_i, so that a row of ids tells which text it is.
    for name, count in (("queries", 12), ("passages", 50)):
        texts = [(str(i), " ".join([WORDS[i]] * (i + 1))) for i in range(count)]
        tokenise(iter(texts), tokenizer, folder / name, max_length=64)
    return TokenStore.open(folder / "queries"), TokenStore.open(folder / "passages")


def pairs_of(rng):
    positives = [np.sort(rng.choice(50, rng.integers(1, 4), replace=False)) for _ in range(12)]
    negatives = [np.setdiff1d(rng.choice(50, rng.integers(0, 8), replace=False), positive) for positive in positives]
    return TrainingPairs(queries=np.arange(12), positives=positives, negatives=negatives)


@given(st.lists(st.integers(0, 9), min_size=3, max_size=12), st.integers(0, 2**31))
def test_candidates_equal_the_rule_written_out(indices, seed):
    rng = np.random.default_rng(seed)
    judged = [np.unique(np.append(rng.choice(10, 3), indices[q])) for q in range(3)]
    allowed = candidate_mask(torch.tensor(indices), pad_lists(judged), torch.arange(3))
    for q in range(3):
        for p, index in enumerate(indices):
            may_stand = index not in judged[q] and index not in indices[:p]
            assert allowed[q, p] == (p == q or may_stand), (q, p)


@pytest.mark.parametrize("wanted", [0, 1, 3])
def test_a_batch_holds_queries_positives_and_distinct_negatives(stores, wanted):
    queries, passages = stores
    pairs = pairs_of(np.random.default_rng(0))
    collate = PairCollator(pairs=pairs, queries=queries, passages=passages, negatives=wanted, seed=5)
    batch = collate([(0, q) for q in range(12)])
    first = batch["passage.ids"][:, 1].tolist()
    indices = [token - 5 for token in first]
    assert batch["query.ids"][:, 1].tolist() == [5 + q for q in range(12)]
    assert batch["positives"].tolist() == list(range(12))
    for q in range(12):
        assert indices[q] in pairs.positives[q]
    rest = iter(indices[12:])
    for q in range(12):
        mine = [next(rest) for _ in range(min(wanted, len(pairs.negatives[q])))]
        assert len(set(mine)) == len(mine)
        assert set(mine) <= set(pairs.negatives[q])
    assert not list(rest)
    assert batch["passage_indices"].tolist() == indices
    judged = [[int(index) for index in row if index >= 0] for row in batch["judged"]]
    assert judged == [positive.tolist() for positive in pairs.positives]


def test_a_querys_own_passage_does_not_stand_against_it_in_the_batch(stores):
    queries, passages = stores
    pairs = pairs_of(np.random.default_rng(0))
    plain = PairCollator(pairs=pairs, queries=queries, passages=passages, negatives=2, seed=5)(
        [(0, q) for q in range(12)]
    )
    own = plain["passage_indices"].numpy()[(np.arange(12) + 1) % 12].copy()  # each query is the next one's answer
    own[3] = -1
    collate = PairCollator(pairs=pairs, queries=queries, passages=passages, negatives=2, seed=5, self_passages=own)
    batch = collate([(0, q) for q in range(12)])
    before, after = (candidate_mask(b["passage_indices"], b["judged"], b["positives"]) for b in (plain, batch))
    for q in range(12):
        gone = {int(p) for p in batch["passage_indices"][before[q] & ~after[q]]}
        assert gone <= {int(own[q])}
        stands = {int(p) for p in batch["passage_indices"][after[q]]} - {int(batch["passage_indices"][q])}
        assert int(own[q]) not in stands
    assert (before[3] == after[3]).all()
    assert (before != after).any()


def test_what_a_query_gets_does_not_depend_on_the_batch_but_on_the_epoch():
    pairs = pairs_of(np.random.default_rng(1))

    def drawn(examples):
        rows = np.array([q for _, q in examples])
        positives, negatives = pairs.draw(rows, examples[0][0], seed=5, negatives=2)
        return {q: (p, n.tolist()) for (_, q), p, n in zip(examples, positives, negatives, strict=True)}

    alone = {q: drawn([(3, q)])[q] for q in range(12)}
    assert drawn([(3, q) for q in reversed(range(12))]) == alone
    later = {q: drawn([(4, q)])[q] for q in range(12)}
    assert later != alone


def test_queries_without_a_positive_are_left_out():
    pairs = training_pairs(["a", "b", "c"], {"a": np.array([1]), "c": np.array([2, 3])}, {"c": np.array([7])})
    assert pairs.queries.tolist() == [0, 2]
    assert [n.tolist() for n in pairs.negatives] == [[], [7]]


class Sums:
    """A teacher that has not read every passage: its score tells query and passage."""

    per = "pair"

    def lookup(self, query_index, passages):
        return np.where(passages % 7 == 0, np.nan, 100 * query_index + passages).astype(np.float32)


def test_a_query_brings_its_own_group_and_what_a_teacher_thinks_of_it(stores):
    queries, passages = stores
    pairs = pairs_of(np.random.default_rng(2))
    pairs = TrainingPairs(queries=pairs.queries[::-1].copy(), positives=pairs.positives, negatives=pairs.negatives)
    collate = PairCollator(
        pairs=pairs, queries=queries, passages=passages, negatives=4, seed=5, columns={"teacher": Sums()}
    )
    chosen = [7, 0, 3, 11]
    batch = collate([(1, q) for q in chosen])
    groups, indices = batch["groups"], batch["passage_indices"]
    assert groups[:, 0].tolist() == batch["positives"].tolist()
    assert sorted(groups[groups >= 0].tolist()) == list(range(len(indices))), "every passage is some query's own"
    for row, (q, own) in enumerate(zip(chosen, groups.tolist(), strict=True)):
        real = [index for index in own if index >= 0]
        assert len(real) == 1 + min(4, len(pairs.negatives[q]))
        assert {int(indices[p]) for p in real[1:]} <= {*pairs.negatives[q]}
        expected = Sums().lookup(int(pairs.queries[q]), indices[real].numpy())
        np.testing.assert_array_equal(batch["column.teacher"][row, : len(real)].numpy(), expected)
        assert batch["column.teacher"][row, len(real) :].isnan().all()


def test_batches_mix_queries_of_all_lengths():
    """In-batch negatives of queries of one length only teach less; query i has the i-th length here."""
    pairs = TrainingPairs(np.arange(256), [np.array([i]) for i in range(256)], [np.empty(0, np.int64)] * 256)
    training = Training(batch_size=64, per_device_train_batch_size=16, max_steps=4)
    schedule = Schedule.of(training, schedule_lengths(pairs), seed=1, compares=True)
    batches = [[row for _, row in batch] for batch in schedule]
    assert sorted(row for batch in batches for row in batch) == list(range(256)), "one epoch"
    assert {len(batch) for batch in batches} == {64}, "read in chunks, and compared as a whole"
    assert min(np.ptp(batch) for batch in batches) > 200
