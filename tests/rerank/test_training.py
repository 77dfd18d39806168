"""Training a cross-encoder: what a group holds, chunks and processes, a kill, and that it learns to rank."""

import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.parallel import DistributedDataParallel

from drkit.core import processes
from drkit.core.files import CHECKPOINTS
from drkit.core.progress import Silent
from drkit.core.types import ScoredGroups
from drkit.data.column_sources import RERANKER
from drkit.data.corpus import open_collection
from drkit.encoders import CrossEncoder
from drkit.errors import DrkitError
from drkit.losses import ListwiseLoss
from drkit.miners.chain import read_negatives
from drkit.plugin import NoSettings
from drkit.recipe.schema import Choice, RerankerTraining, Training
from drkit.runs.making.columns import make_column
from drkit.runs.making.reranker import train_reranker
from drkit.runs.stage import settings_from
from drkit.runs.stages.columns import COLUMN, ColumnSettings
from drkit.runs.stages.reranker import TRAIN_RERANKER, RerankerSettings
from drkit.search import Reranker as Ranker
from drkit.train import gradients
from drkit.train.biencoder import training_pairs
from drkit.train.reranker import GroupCollator, GroupRanker
from tests.refusals import says
from tests.rerank.toys import TOPICS, checkpoint, lines, mined, parts_of, stage_run, stored
from tests.torchrun import run_processes

# Scores that are nearly equal, as those of a new head are, would hang on rounding.
APART = {"initializer_range": 0.3}
DROPOUT = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.1}


def ranker(folder, forward_factor=1, **changes):
    encoder = CrossEncoder.start_from(str(checkpoint(folder / "lm", **APART, **changes)), max_length=32, seed=1)
    return GroupRanker(encoder, ListwiseLoss(), forward_factor=forward_factor)


def collator(folder, tokens, negatives=4):
    collection = open_collection(stored(folder / "collection"))
    judged = collection.positives("train")
    positives = {query: collection.corpus.positions(list(docs)) for query, docs in judged.items()}
    queries = list(collection.queries("train"))
    mine = read_negatives(mined(folder / "collection", folder / "negatives"))
    pairs = training_pairs([query.query_id for query in queries], positives, mine)
    texts = [queries[index].text for index in pairs.queries]
    return GroupCollator(pairs, texts, collection.corpus, tokens, negatives=negatives, seed=3)


def taken(module, batch, chunk=0):
    module.zero_grad()
    strategy = gradients.GradientStrategy(forward=module, backward=lambda loss: loss.backward(), chunk=chunk)
    loss, metrics = gradients.backward(module, batch, strategy)
    return loss, metrics, {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


def close(one, two, tolerance=2e-7):
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=tolerance, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_a_group_is_a_positive_and_distinct_negatives_drawn_anew(tmp_path):
    module = ranker(tmp_path)
    collate = collator(tmp_path, module.encoder.pairs)
    seen = set()
    for epoch in range(4):
        batch = collate([(epoch, query) for query in range(len(collate.pairs))])
        assert batch["sizes"].tolist() == [3, *[5] * 12]
        ends = np.cumsum(batch["sizes"].numpy())
        for query, end in enumerate(ends):
            rows = batch["ids"][end - int(batch["sizes"][query]) : end]
            assert len({tuple(row.tolist()) for row in rows}) == len(rows), "no passage stands twice"
            first = rows[0][batch["attention"][end - int(batch["sizes"][query])]].tolist()
            wanted = [
                module.encoder.tokenizer([(collate.texts[query], passage.content)])["input_ids"][0]
                for passage in collate.corpus.at(collate.pairs.positives[query])
            ]
            assert first in wanted
        seen.add(tuple(map(tuple, batch["ids"].tolist())))
    assert len(seen) == 4
    alone = collate([(2, 5)])
    together = collate([(2, 3), (2, 5), (2, 0)])
    width = int(alone["attention"].sum(1).max())
    assert torch.equal(alone["ids"][:, :width], together["ids"][5:10, :width]), "whatever the batch"


@pytest.mark.parametrize("chunk", [1, 7, 12, 100])
def test_chunks_of_groups_add_up(tmp_path, chunk):
    module = ranker(tmp_path)
    batch = collator(tmp_path, module.encoder.pairs)([(0, query) for query in range(9)])
    loss, metrics, expected = taken(module.train(), batch)
    again, others, found = taken(module, batch, chunk)
    assert float(again) == pytest.approx(float(loss), rel=1e-5)
    assert float(others["ranking_accuracy"]) == pytest.approx(float(metrics["ranking_accuracy"]))
    close(found, expected)
    parts = module.chunks(batch, chunk)
    assert sum(len(part["ids"]) for part in parts) == len(batch["ids"])
    for part in parts:
        assert len(part["ids"]) == int(part["sizes"].sum()), "a group is never cut"
        assert len(part["ids"]) <= max(chunk, 5)


def test_dropout_differs_between_chunks_and_steps_and_gradients_are_those_of_what_was_drawn(tmp_path):
    module = ranker(tmp_path, **DROPOUT).train()
    batch = collator(tmp_path, module.encoder.pairs)([(0, query) for query in range(6)])
    torch.manual_seed(5)
    loss, _, found = taken(module, batch, 6)
    module.zero_grad()
    torch.manual_seed(5)
    written = 0.0
    for part in module.chunks(batch, 6):
        written = written + module(**part)["loss.ranking"] * len(part["sizes"]) / 6
    written.backward()
    assert float(loss) == pytest.approx(float(written.detach()), rel=1e-5)
    close(found, {n: p.grad for n, p in module.named_parameters() if p.grad is not None})
    assert float(taken(module, batch, 6)[0]) != float(loss)


def test_the_loss_written_out(tmp_path):
    module = ranker(tmp_path).eval()
    batch = collator(tmp_path, module.encoder.pairs)([(1, query) for query in range(5)])
    scores = module.encoder(batch["ids"], batch["attention"], batch["types"]).detach().tolist()
    losses, start = [], 0
    for size in batch["sizes"].tolist():
        own = np.array(scores[start : start + size])
        losses.append(np.log(np.exp(own).sum()) - own[0])
        start += size
    assert float(taken(module, batch)[0]) == pytest.approx(np.mean(losses), rel=1e-5)


def test_forward_factor_keeps_the_positive_and_the_hardest(tmp_path):
    module = ranker(tmp_path, forward_factor=2).eval()
    batch = collator(tmp_path, module.encoder.pairs)([(1, query) for query in range(4)])
    scores = module.encoder(batch["ids"], batch["attention"], batch["types"]).detach()
    given = []
    module.loss = lambda groups: given.append(groups) or ListwiseLoss()(groups=groups)
    taken(module, batch)
    (groups,) = given
    assert isinstance(groups, ScoredGroups)
    assert groups.scores.shape == (4, 2)
    start = 0
    for size, kept in zip(batch["sizes"].tolist(), groups.scores, strict=True):
        own = scores[start : start + size]
        torch.testing.assert_close(kept, torch.stack([own[0], own[1:].max()]))
        start += size


def test_forward_factor_keeps_of_a_group_what_it_keeps_alone(tmp_path):
    module = ranker(tmp_path, forward_factor=2)
    batch = collator(tmp_path, module.encoder.pairs, negatives=7)([(0, query) for query in range(4)])
    assert batch["sizes"].tolist() == [3, 8, 8, 8]
    loss, _, expected = taken(module.eval(), batch)
    again, _, found = taken(module, batch, 1)
    assert float(again) == pytest.approx(float(loss), rel=1e-5)
    close(found, expected)


def settings(**changes):
    given = {
        "loss": Choice("listwise", NoSettings()),
        "miners": (Choice("bm25", None),),
        "negatives": 5,
        "max_length": 32,
        "max_steps": 8,
        "save_steps": 2,
        "logging_steps": 1,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
    }
    return RerankerTraining(**{**given, **changes})


def trained(folder, name="reranker", seed=7, start_changes=DROPOUT, **changes):
    if not (folder / "lm").exists():
        checkpoint(folder / "lm", **start_changes)
        mined(stored(folder / "collection", repeats=2), folder / "negatives")
    recipe = SimpleNamespace(reranker=settings(**changes), seed=seed)
    inputs = {**parts_of(folder / "collection", "train"), "negatives": folder / "negatives", "start": folder / "lm"}
    given = settings_from(RerankerSettings, recipe, training=recipe.reranker.training_only())
    return train_reranker(stage_run(TRAIN_RERANKER, folder / name, inputs, given))


def test_the_stage_trains_and_leaves_a_cross_encoder(tmp_path):
    metrics = trained(tmp_path, gradient_accumulation_steps=2)
    assert metrics["steps"] == 8
    assert metrics["training_queries"] == 25
    assert metrics["queries_per_batch"] == 4
    assert metrics["queries_per_step"] == 8
    assert metrics["processes"] == 1
    assert metrics["negatives_per_query"] == pytest.approx((24 * 5 + 2) / 25, abs=1e-3)
    assert len(lines(tmp_path / "reranker" / "log.jsonl")) == 8
    loaded = CrossEncoder.load(str(tmp_path / "reranker"))
    assert loaded.max_length == 32
    fresh = CrossEncoder.start_from(str(tmp_path / "lm"), max_length=32, seed=7)
    assert not torch.equal(loaded.model.classifier.weight, fresh.model.classifier.weight)


def test_more_layers_than_its_start_has_unless_another_model_was_asked_for(tmp_path):
    trained(tmp_path, max_steps=2, layers=3)
    assert CrossEncoder.load(str(tmp_path / "reranker")).config.num_hidden_layers == 3
    own = CrossEncoder.start_from(str(tmp_path / "lm"), max_length=32).config.num_hidden_layers
    trained(tmp_path, "given", max_steps=2, layers=3, pretrained=str(tmp_path / "lm"))
    assert CrossEncoder.load(str(tmp_path / "given")).config.num_hidden_layers == own != 3


def test_killed_and_resumed_is_uninterrupted_bit_for_bit(tmp_path, monkeypatch):
    trained(tmp_path, "whole")
    calls = []
    original = GroupCollator.__call__

    def cut_off(self, examples):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return original(self, examples)

    with monkeypatch.context() as patched:
        patched.setattr(GroupCollator, "__call__", cut_off)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path, "killed")
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    trained(tmp_path, "killed")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    logs = [[line["loss"] for line in lines(tmp_path / name / "log.jsonl")] for name in ("whole", "killed")]
    assert logs[0] == logs[1]


def test_it_learns_to_rank(tmp_path):
    changes = {"hidden_size": 64, "intermediate_size": 128, "initializer_range": 0.2}
    how = {"max_steps": 90, "learning_rate": 2e-3, "per_device_train_batch_size": 8, "negatives": 8}
    trained(tmp_path, start_changes=changes, save_steps=500, **how)
    collection = open_collection(tmp_path / "collection")
    passages = [passage for passage in collection.corpus if passage.text]
    scorer = Ranker.load(tmp_path / "reranker")
    positives = collection.positives("train")
    queries = [query for query in collection.queries("train") if query.text and query.query_id in positives]
    first = []
    for query in queries:
        scores = scorer.score([(query.text, passage.content) for passage in passages])
        first.append(passages[int(scores.argmax())].doc_id in positives[query.query_id])
    assert len(first) == 24
    assert sum(first) >= 20, "by chance two"


def test_nothing_to_train_on(tmp_path):
    from drkit.miners.chain import write_negatives

    checkpoint(tmp_path / "lm")
    collection = open_collection(stored(tmp_path / "collection"))
    (tmp_path / "negatives").mkdir()
    write_negatives([], collection.corpus, tmp_path / "negatives")
    with pytest.raises(DrkitError, match=r"training query .*negative.*reranker.miners"):
        trained(tmp_path)


def test_what_answers_a_query_is_dropped_from_its_negatives(tmp_path):
    from drkit.core.types import Mined
    from drkit.miners.chain import write_negatives

    checkpoint(tmp_path / "lm")
    collection = open_collection(stored(tmp_path / "collection"))
    (tmp_path / "negatives").mkdir()
    wrong = [Mined(f"q {topic} 0", (f"d {topic} ü",), (1.0,)) for topic in TOPICS]
    write_negatives(wrong, collection.corpus, tmp_path / "negatives")
    with pytest.raises(DrkitError, match=r"training query .*negative.*reranker.miners"):
        trained(tmp_path)


def test_two_processes_have_the_gradients_of_one_big_batch_and_share_the_teachers_work(tmp_path):
    module = ranker(tmp_path)
    collate = collator(tmp_path, module.encoder.pairs)
    loss, _, expected = taken(module.train(), collate([(0, query) for query in range(7)]))
    module.encoder.save(tmp_path / "reranker")
    (tmp_path / "teacher-0" / CHECKPOINTS).mkdir(parents=True)
    (tmp_path / "teacher-1").mkdir()
    (tmp_path / "teacher-1" / CHECKPOINTS).symlink_to(tmp_path / "teacher-0" / CHECKPOINTS)
    run_processes("tests.rerank.test_training", tmp_path)
    for chunk in (0, 5):
        found = load_file(tmp_path / f"found-{chunk}.safetensors")
        assert float(found.pop("loss")) == pytest.approx(float(loss), rel=1e-5)
        close(found, expected)
    taught(tmp_path, "alone")
    shared, alone = ((tmp_path / name / "values.arrow").read_bytes() for name in ("teacher-0", "alone"))
    assert shared == alone
    made = {int((tmp_path / f"teacher-{rank}" / "scored").read_text()) for rank in (0, 1)}
    assert 0 not in made
    assert not (tmp_path / "teacher-1" / "values.arrow").exists()


def taught(folder, name):
    """The teacher's stage, in blocks of a few pairs; a re-ranker is saved for it unless one is given."""
    from drkit.train import teacher as teacher_scores

    teacher_scores.BLOCK_PAIRS = 30
    inputs = {name: folder / name for name in ("negatives", "reranker")} | parts_of(folder / "collection", "train")
    given = ColumnSettings(
        column="teacher",
        source=Choice(RERANKER, NoSettings()),
        default=None,
        max_length=None,
        queries=0,
        draws=1,
        training=Training(num_train_epochs=30),
        negatives=63,
        seed=7,
    )
    return make_column(stage_run(COLUMN, folder / name, inputs, given))


def process(folder):
    """One process' share of the batch above; the first writes the averaged gradients of both, whole and in chunks."""
    import torch.distributed as dist
    from safetensors.torch import save_file

    rank = processes.rank()
    encoder = CrossEncoder.start_from(str(folder / "lm"), max_length=32, seed=1)
    module = GroupRanker(encoder, ListwiseLoss()).train()
    collection = open_collection(folder / "collection")
    judged = collection.positives("train")
    positives = {query: collection.corpus.positions(list(docs)) for query, docs in judged.items()}
    queries = list(collection.queries("train"))
    mine = read_negatives(folder / "negatives")
    pairs = training_pairs([query.query_id for query in queries], positives, mine)
    texts = [queries[index].text for index in pairs.queries]
    collate = GroupCollator(pairs, texts, collection.corpus, encoder.pairs, negatives=4, seed=3)
    batch = collate([(0, query) for query in range(7)][rank::2])
    with processes.group():
        wrapped = DistributedDataParallel(module, broadcast_buffers=False)
        for chunk in (0, 5):
            module.zero_grad()
            strategy = gradients.GradientStrategy(
                wrapped, lambda loss: loss.backward(), chunk=chunk, accumulate=wrapped.no_sync
            )
            loss, _ = gradients.backward(module, batch, strategy)
            dist.all_reduce(loss)
            if rank == 0:
                found = {name: p.grad.contiguous() for name, p in module.named_parameters()}
                save_file({**found, "loss": loss / 2}, folder / f"found-{chunk}.safetensors")
        del wrapped, strategy  # which would keep the group beyond its end
        done = taught(folder, f"teacher-{rank}")
    (folder / f"teacher-{rank}" / "scored").write_text(str(round(done["pairs_per_second"])))


if __name__ == "__main__":
    process(Path(sys.argv[1]))


def test_the_stage_says_what_batch_it_really_has(tmp_path):
    notes = []
    with patch.object(Silent, "note", lambda _, text: notes.append(text)):
        trained(tmp_path)
    assert any(says(note, "25 training queries, 4 ", " 4.88, ", "23.5") for note in notes)
