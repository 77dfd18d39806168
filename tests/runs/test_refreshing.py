"""Mining with the model in training: when, with what, and that neither a cut nor a second process changes it."""

import json

import numpy as np
import pytest
import torch
from attrs import evolve
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from drkit.builtin import drkit_components
from drkit.core.draws import Draws
from drkit.core.progress import Silent
from drkit.core.registry import Registry
from drkit.core.spec import Choice
from drkit.core.types import Judgement, Mined, MiningRequest, Passage, Query
from drkit.data.corpus import open_collection
from drkit.data.store import TokenStore, tokenise
from drkit.data.writing import write_collection
from drkit.encoders import BertSizes, MaskedLmEncoder
from drkit.errors import DrkitError
from drkit.losses import ContrastiveConfig, ContrastiveLoss
from drkit.miners import RanksConfig, RefreshConfig
from drkit.miners.chain import read_negatives
from drkit.recipe.training import Training
from drkit.train.batches import Schedule, batches_per_epoch
from drkit.train.biencoder import BiEncoder, PairCollator, training_pairs
from drkit.train.refresh import ChainMiner, Refresher
from drkit.train.trainer import train
from tests.runs.damages import empty, flip_byte, halve
from tests.search.made import reader_of
from tests.torchrun import run_processes

QUERIES, PASSAGES, BATCH = 14, 60, 4
PLAIN = {"arguments": {"optim": "sgd"}, "learning_rate": 0.5}
WORDS = [f"w{i}" for i in range(40)]


class Toy:
    """Queries of three words, each answered by one or two of sixty passages."""

    name = "toy"

    def passages(self):
        draws = Draws(1, 0, np.arange(PASSAGES)).integers(len(WORDS), 6)
        return (Passage(f"d {i}", " ".join(WORDS[w] for w in row)) for i, row in enumerate(draws))

    def splits(self):
        return ("train",)

    def queries(self, split):
        draws = Draws(2, 0, np.arange(QUERIES)).integers(len(WORDS), 3)
        return (Query(f"q{i}", " ".join(WORDS[w] for w in row)) for i, row in enumerate(draws))

    def judgements(self, split):
        for i in range(QUERIES):
            yield Judgement(f"q{i}", f"d {i}", 1)
            if i % 2:
                yield Judgement(f"q{i}", f"d {i + 20}", 1)

    def describe(self):
        return {}


def word_tokenizer():
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{n}_token": f"[{n.upper()}]" for n in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


@pytest.fixture(scope="session")
def parts(tmp_path_factory):
    return make_parts(tmp_path_factory.mktemp("refreshing"))


def make_parts(folder):
    tokenizer = word_tokenizer()
    write_collection(Toy(), folder / "collection")
    collection = open_collection(folder / "collection")
    tokenise(((q.query_id, q.text) for q in collection.queries("train")), tokenizer, folder / "queries", max_length=16)
    tokenise(((p.doc_id, p.content) for p in collection.corpus), tokenizer, folder / "passages", max_length=16)
    return folder, tokenizer


def made(parts, checkpoints, *, every=1, given=None, dropout=0.2):
    """A bi-encoder with dropout, its collator, and the refresher."""
    folder, tokenizer = parts
    collection = open_collection(folder / "collection")
    sizes = BertSizes(hidden=16, layers=1, heads=2, intermediate=24, max_positions=32, dropout=dropout)
    encoder = MaskedLmEncoder.from_scratch(sizes, tokenizer, seed=3)
    for parameter in encoder.parameters():
        parameter.data.mul_(5)  # away from the tiny initial weights, so that texts differ visibly
    judged = collection.positives("train")
    positives = {q: np.asarray(collection.corpus.positions(list(docs))) for q, docs in judged.items()}
    pairs = training_pairs([q.query_id for q in collection.queries("train")], positives, given or {})
    passages = TokenStore.open(folder / "passages")
    miner = ChainMiner(
        encoder=reader_of(encoder.backbone, tokenizer, similarity="dot", query_length=16, passage_length=16),
        passages=passages,
        corpus=collection.corpus,
        requests=[
            MiningRequest(q.query_id, q.text, frozenset(judged[q.query_id])) for q in collection.queries("train")
        ],
        choices=[Choice("refresh", RefreshConfig(depth=12)), Choice("ranks", RanksConfig(keep="2-9"))],
        registry=Registry(drkit_components()),
        scratch=checkpoints,
    )
    checkpoints.mkdir(exist_ok=True)
    refresher = Refresher(
        miner,
        collection.corpus,
        folder=checkpoints,
        query_ids=[r.query_id for r in miner.requests],
        initial=pairs.negatives if given else None,
        every=every,
        per_epoch=batches_per_epoch(QUERIES, BATCH),
    )
    queries = TokenStore.open(folder / "queries")
    collate = PairCollator(pairs, queries, passages, negatives=2, seed=9, refreshed=refresher)
    return (
        BiEncoder(encoder, ContrastiveLoss(ContrastiveConfig(similarity="dot", temperature=100.0))),
        collate,
        refresher,
    )


def go(module, collate, folder, *callbacks, steps=9, batch=BATCH, world=1, **settings):
    lengths = np.full(QUERIES, 5, np.int32)
    accumulated = settings.get("gradient_accumulation_steps", 1)
    schedule = Schedule(lengths, batch, steps * accumulated, seed=5, per_step=accumulated)
    chosen = {"max_steps": steps, "save_steps": 2, "logging_steps": 1, "learning_rate": 0.02, **settings}
    return train(
        module,
        schedule,
        collate,
        training=Training(**chosen, per_device_train_batch_size=batch // world),
        folder=folder,
        progress=Silent(),
        seed=7,
        callbacks=callbacks,
    )


def same(one, two):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


class CutOff:
    """A collator that ends the training at its n-th batch."""

    def __init__(self, collate, at):
        self.collate, self.left = collate, at

    def __call__(self, examples):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return self.collate(examples)


@pytest.fixture(scope="module")
def uninterrupted(parts, tmp_path_factory):
    """A whole training: its module, its result and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    module, collate, refresher = made(parts, folder)
    return module, go(module, collate, folder, refresher), folder


@pytest.mark.parametrize("cut_off", [1, 4, 6])
def test_cut_off_and_gone_on_equals_uninterrupted(parts, uninterrupted, tmp_path, cut_off):
    whole, expected, folder = uninterrupted
    first, collate, refresher = made(parts, tmp_path / "cut")
    with pytest.raises(KeyboardInterrupt):
        go(first, CutOff(collate, cut_off), tmp_path / "cut", refresher)
    resumed, collate, refresher = made(parts, tmp_path / "cut")
    result = go(resumed, collate, tmp_path / "cut", refresher)
    assert same(whole, resumed)
    last = min(len(result.log), len(expected.log))
    assert [line["loss"] for line in result.log[-last:]] == [line["loss"] for line in expected.log[-last:]]
    for epoch in (0, 1, 2):
        one, two = (read_negatives(path, f"negatives-{epoch}.arrow") for path in (folder, tmp_path / "cut"))
        assert {q: p.tolist() for q, p in one.items()} == {q: p.tolist() for q, p in two.items()}
    assert not list(tmp_path.glob("*/vectors-*"))
    assert not list(folder.glob("vectors-*"))


def test_each_epoch_is_mined_by_the_model_as_it_is_when_it_begins(parts, tmp_path):
    """Against the same training stopped there, and its model asked by hand."""
    settings = {"lr_scheduler_type": "constant", "warmup_steps": 0.0}
    module, collate, refresher = made(parts, tmp_path / "run", every=2)
    start = refresher._miner.models()["retriever"]
    go(module, collate, tmp_path / "run", refresher, steps=8, **settings)  # epochs of three steps: 0, 1 and 2
    stopped, collate, other = made(parts, tmp_path / "stopped", every=2)
    go(stopped, collate, tmp_path / "stopped", other, steps=6, **settings)
    mined = {epoch: metrics["models"]["retriever"] for epoch, metrics in refresher.metrics().items()}
    assert mined == {"0": start, "2": other._miner.models()["retriever"]}
    assert start != mined["2"]


def test_what_is_mined_is_the_exact_ranking_of_the_models_own_vectors(parts, tmp_path):
    _, _, refresher = made(parts, tmp_path)
    refresher.make_before(0, 1)
    miner = refresher._miner
    texts = [p.content for p in miner.corpus]
    passages = miner.encoder.encode_passages(texts)
    queries = miner.encoder.encode_queries([r.text for r in miner.requests])
    read = read_negatives(tmp_path, "negatives-0.arrow")
    for request, scores in zip(miner.requests, queries.astype(float) @ passages.astype(float).T, strict=True):
        judged = set(miner.corpus.positions(sorted(request.positives)).tolist())
        ranked = [index for index in np.argsort(-scores, kind="stable").tolist() if index not in judged]
        assert read[request.query_id].tolist() == ranked[1:9]
    assert refresher.metrics()["0"]["dropped"]["ranks"] == QUERIES * 4


def test_a_kill_while_vectors_are_removed_does_not_stop_the_next_mining(parts, tmp_path, monkeypatch):
    _, _, refresher = made(parts, tmp_path)

    def removed_in_part(folder, **_):
        if folder.exists():
            (folder / "vectors.json").unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", removed_in_part)
        with pytest.raises(KeyboardInterrupt):
            refresher.make_before(0, 1)
    refresher.make_before(0, 1)
    assert sorted(refresher.metrics()) == ["0"]


def test_mining_leaves_dropout_and_the_model_s_mode_alone(parts, tmp_path):
    """The same lists, given beforehand, give the same training."""
    module, collate, refresher = made(parts, tmp_path / "mined", every=9)
    go(module, collate, tmp_path / "mined", refresher)
    given = dict(read_negatives(tmp_path / "mined", "negatives-0.arrow"))
    other, collate, _ = made(parts, tmp_path / "given", given=given)
    go(other, evolve(collate, refreshed=None), tmp_path / "given")
    assert same(module, other)


def test_negatives_mined_before_serve_the_first_epochs(parts, tmp_path):
    given = {f"q{i}": np.array([40 + i, 41 + i]) for i in range(QUERIES)}
    module, collate, refresher = made(parts, tmp_path, every=2, given=given)
    go(module, collate, tmp_path, refresher, steps=8)
    assert list(refresher.metrics()) == ["2"]
    assert refresher(0) is refresher(1) is collate.pairs.negatives
    assert refresher(2) is not refresher(0)


@pytest.mark.parametrize(("examples", "batch", "accumulated"), [(14, 4, 1), (14, 4, 2), (3, 8, 1), (10, 5, 7)])
def test_the_steps_of_mining_are_those_of_the_schedule(parts, tmp_path, examples, batch, accumulated):
    _, _, refresher = made(parts, tmp_path, every=2)
    refresher._per_epoch = batches_per_epoch(examples, batch)
    schedule = list(Schedule(np.full(examples, 5, np.int32), batch, 40 * accumulated, seed=1))
    seen, expected = set(), {}
    for number, examples_of in enumerate(schedule):
        epoch = examples_of[0][0]
        if epoch not in seen and epoch % 2 == 0:
            expected.setdefault(number // accumulated, []).append(epoch)
        seen.add(epoch)
    found = {step: refresher.epochs_at(step, accumulated) for step in range(40)}
    assert {step: epochs for step, epochs in found.items() if epochs} == expected


def test_batches_made_ahead_are_refused(parts, tmp_path):
    module, collate, refresher = made(parts, tmp_path)
    with pytest.raises(DrkitError, match="dataloader_num_workers to 0"):
        go(module, collate, tmp_path, refresher, arguments={"dataloader_num_workers": 1})
    with pytest.raises(DrkitError, match=r"epoch 4 .*dataloader_num_workers"):
        refresher(4)


def test_a_file_without_its_figures_is_mined_again(parts, tmp_path):
    class Counts:
        calls = 0

        def mine(self):
            Counts.calls += 1
            return [Mined(f"q{i}", (), ()) for i in range(QUERIES)]

        def models(self):
            return {}

    _, _, refresher = made(parts, tmp_path)
    refresher._miner = Counts()
    refresher.make_before(0, 1)
    refresher.make_before(0, 1)
    assert Counts.calls == 1
    (tmp_path / "negatives-0.json").unlink()
    refresher.make_before(0, 1)
    assert Counts.calls == 2
    flip_byte(tmp_path / "negatives-0.arrow")
    refresher.make_before(0, 1)
    assert Counts.calls == 3


@pytest.mark.parametrize("damage", [flip_byte, empty, halve])
@pytest.mark.parametrize("file", ["negatives-0.arrow", "negatives-0.json"])
def test_damaged_negatives_are_mined_again_and_never_trained_on(parts, uninterrupted, tmp_path, file, damage):
    first, collate, refresher = made(parts, tmp_path / "cut")
    with pytest.raises(KeyboardInterrupt):
        go(first, CutOff(collate, 3), tmp_path / "cut", refresher)
    damage(tmp_path / "cut" / file)
    resumed, collate, refresher = made(parts, tmp_path / "cut")
    go(resumed, collate, tmp_path / "cut", refresher)
    assert same(uninterrupted[0], resumed)


def test_a_training_that_was_done_mines_nothing_more(parts, tmp_path):
    whole, collate, refresher = made(parts, tmp_path)
    go(whole, collate, tmp_path, refresher)
    mined = refresher.metrics()
    again, collate, refresher = made(parts, tmp_path)
    go(again, collate, tmp_path, refresher)
    assert refresher.metrics() == mined
    assert same(whole, again)


def test_two_processes_mine_and_train_what_one_does(parts, tmp_path):
    # Without dropout, which each process draws for itself, and by plain steps, which magnify no rounding.
    whole, collate, refresher = made(parts, tmp_path / "one", dropout=0.0)
    go(whole, collate, tmp_path / "one", refresher, **PLAIN)
    run_processes("tests.runs.two_processes_refresh", parts[0], tmp_path / "two")
    for epoch in (0, 1, 2):
        path = f"negatives-{epoch}.json"
        one, two = (json.loads((tmp_path / n / path).read_text())["counts"] for n in ("one", "two"))
        assert {**one, "models": None} == {**two, "models": None}
        one, two = (read_negatives(tmp_path / n, f"negatives-{epoch}.arrow") for n in ("one", "two"))
        assert {q: p.tolist() for q, p in one.items()} == {q: p.tolist() for q, p in two.items()}
