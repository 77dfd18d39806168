"""Teacher scores: what is scored, that a kill costs a block, that processes share the work, and looking up."""

import json
import pickle
from functools import partial
from unittest.mock import Mock, patch

import numpy as np
import pyarrow as pa
import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from drkit.core.draws import Draws
from drkit.core.files import CHECKPOINTS
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.core.spec import Choice, NoSettings
from drkit.core.types import CollectionSize, Mined, Query
from drkit.data.column_sources import GIVEN, MODEL, RERANKER, ModelConfig
from drkit.data.corpus import open_collection
from drkit.data.pairs import PairsCollection, text_id
from drkit.data.specs import PairsConfig
from drkit.data.store import tokenise
from drkit.data.writing import write_collection
from drkit.encoders import CrossEncoder, EncoderCard
from drkit.errors import DrkitError
from drkit.losses import MarginMseConfig
from drkit.miners.chain import read_negatives, write_negatives
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.training import Training
from drkit.runs.costs import planned_sizes
from drkit.runs.making.columns import make_column
from drkit.runs.making.finetune import finetune
from drkit.runs.making.texts import store_collection
from drkit.runs.plan import plan
from drkit.runs.stages.columns import COLUMN, ColumnSettings
from drkit.runs.stages.finetune import FINETUNE, FinetuneSettings
from drkit.runs.stages.texts import COLLECTION
from drkit.runs.work import BERT_BASE
from drkit.search import Reranker
from drkit.train import teacher as teacher_scores
from drkit.train.batches import Schedule
from drkit.train.biencoder import TrainingPairs, draw_passages, draw_queries, drawn_passages, training_pairs
from drkit.train.columns import read_column
from drkit.train.teacher import Agreement, ScoreBlocks, ScoreRequest, cut_blocks
from tests.encoders.toys import tiny
from tests.refusals import refused, says
from tests.rerank.toys import checkpoint, mined, parts_of, query_tokens, stage_run, stored

RERANKS = Choice(RERANKER, NoSettings())
FEW = Training(max_steps=3, per_device_train_batch_size=4, learning_rate=0.01)


class Lengths:
    """Scores a pair by the lengths of its texts; counts what it was asked, and may break down."""

    def __init__(self, fail_after=10**9):
        self.pairs, self.calls, self.fail_after = 0, 0, fail_after

    def score(self, pairs):
        self.calls += 1
        if self.calls > self.fail_after:
            raise KeyboardInterrupt
        self.pairs += len(pairs)
        return np.array([100 * len(query) + len(passage) for query, passage in pairs], dtype=np.float32)


def every_pair(collection, negatives):
    """A request for every judged query: all its positives and negatives."""
    queries = list(collection.queries("train"))
    pairs = training_pairs([query.query_id for query in queries], collection.positive_indices("train"), negatives)
    return [
        ScoreRequest(index, queries[index], np.union1d(positives, negatives))
        for index, positives, negatives in zip(pairs.queries.tolist(), pairs.positives, pairs.negatives, strict=True)
    ]


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.setattr(teacher_scores, "BLOCK_PAIRS", 30)
    collection = open_collection(stored(tmp_path / "collection"))
    negatives = read_negatives(mined(tmp_path / "collection", tmp_path / "negatives"))
    asked = every_pair(collection, negatives)

    def blocks(scorer, **changes):
        given = {"teacher": "one", "corpus": collection.corpus, "blocks": tmp_path / "blocks", **changes}
        return ScoreBlocks(scorer, **given)

    return collection, asked, blocks


def test_every_judged_query_with_its_positives_and_negatives(work, tmp_path):
    collection, asked, blocks = work
    made = blocks(Lengths())
    made.make(asked, Silent())
    made.join(asked, tmp_path)
    found = read_column(tmp_path)
    queries = list(collection.queries("train"))
    assert len(found) == len(asked) == len(queries) - 1, "all but the unjudged one"
    corpus, judged = collection.corpus, collection.positives("train")
    texts = [passage.content for passage in corpus]
    for index, query in enumerate(queries):
        scores = found.lookup(index, np.arange(len(corpus)))
        for passage, score in enumerate(scores):
            known = query.query_id in judged and (
                query.query_id != "q file 0" or passage in corpus.positions([*judged["q file 0"]]) or passage in (1, 2)
            )
            if known:
                assert score == 100 * len(query.text) + len(texts[passage])
            else:
                assert np.isnan(score)


def test_looking_up_in_any_order_and_for_unknown_queries(work, tmp_path):
    _, asked, blocks = work
    made = blocks(Lengths())
    made.make(asked, Silent())
    made.join(asked, tmp_path)
    found = pickle.loads(pickle.dumps(read_column(tmp_path)))
    first = asked[1]
    turned = first.passages[::-1]
    np.testing.assert_array_equal(found.lookup(first.index, turned), found.lookup(first.index, first.passages)[::-1])
    assert np.isnan(found.lookup(10**6, first.passages)).all()
    assert np.isnan(found.lookup(first.index, np.array([10**9]))).all()
    assert found.lookup(first.index, np.empty(0, dtype=np.int64)).shape == (0,)
    assert found.lookup(first.index, first.passages).dtype == np.float32


def test_a_kill_costs_a_block(work, tmp_path):
    _, asked, blocks = work
    with pytest.raises(KeyboardInterrupt):
        blocks(Lengths(fail_after=2)).make(asked, Silent())
    again = Lengths()
    done = blocks(again).make(asked, Silent())
    total = sum(len(own.passages) for own in asked)
    standing = sum(len(own.passages) for block in list(cut_blocks(asked))[:2] for own in block)
    assert again.pairs == done["scored"] == total - standing
    resumed = blocks(again).join(asked, tmp_path / "resumed").read_bytes()
    whole = blocks(Lengths(), blocks=tmp_path / "others")
    whole.make(asked, Silent())
    assert whole.join(asked, tmp_path / "whole").read_bytes() == resumed


def test_a_block_that_cannot_be_read_is_scored_again(work, tmp_path):
    _, asked, blocks = work
    blocks(Lengths()).make(asked, Silent())
    whole = blocks(Lengths()).join(asked, tmp_path / "whole").read_bytes()
    first, second = sorted((tmp_path / "blocks").iterdir())[:2]
    first.write_bytes(first.read_bytes()[:200])
    second.write_text("no scores")
    again = Lengths()
    blocks(again).make(asked, Silent())
    assert again.pairs == sum(len(own.passages) for block in list(cut_blocks(asked))[:2] for own in block)
    assert blocks(again).join(asked, tmp_path / "again").read_bytes() == whole


def test_processes_share_the_blocks(work, tmp_path):
    _, asked, blocks = work
    scorers = [Lengths(), Lengths()]
    for rank, scorer in enumerate(scorers):
        blocks(scorer, rank=rank, processes=2).make(asked, Silent())
    assert all(scorer.pairs for scorer in scorers)
    assert sum(scorer.pairs for scorer in scorers) == sum(len(own.passages) for own in asked)
    both = blocks(Lengths()).join(asked, tmp_path / "both").read_bytes()
    alone = blocks(Lengths(), blocks=tmp_path / "alone")
    alone.make(asked, Silent())
    assert alone.join(asked, tmp_path / "one").read_bytes() == both


def test_another_teachers_blocks_are_made_again(work, tmp_path):
    _, asked, blocks = work
    blocks(Lengths()).make(asked, Silent())
    other = Lengths()
    blocks(other, teacher="two").make(asked, Silent())
    assert other.pairs == sum(len(own.passages) for own in asked)


def test_a_missing_block_is_told(work, tmp_path):
    _, asked, blocks = work
    blocks(Lengths()).make(asked, Silent())
    sorted((tmp_path / "blocks").iterdir())[1].unlink()
    with pytest.raises(DrkitError, match=r"block 1 .*/blocks;"):
        blocks(Lengths()).join(asked, tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_no_numbers_are_refused(work, value):
    class Broken:
        def score(self, pairs):
            return np.full(len(pairs), value, dtype=np.float32)

    _, asked, blocks = work
    with pytest.raises(DrkitError, match=r"'return a file ' .*'file the file is returned' .*finite"):
        blocks(Broken()).make(asked, Silent())


def test_another_file_is_no_scores(tmp_path):
    with pytest.raises(DrkitError, match=r"/values\.arrow: "):
        read_column(tmp_path)
    table = pa.table({"query": [1]})
    with pa.OSFile(str(tmp_path / "values.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DrkitError, match=r"/values\.arrow .*column"):
        read_column(tmp_path)


@settings(max_examples=30)
@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 50))
def test_blocks_hold_whole_queries_in_order(sizes, limit):
    asked = [ScoreRequest(i, Query(str(i), ""), np.arange(size)) for i, size in enumerate(sizes)]
    blocks = list(cut_blocks(asked, limit))
    assert [own.index for block in blocks for own in block] == list(range(len(sizes)))
    for block in blocks:
        assert sum(len(own.passages) for own in block[:-1]) < limit


def taught(folder, inputs, **changes):
    """The metrics of the stage, which writes into `folder/teacher`."""
    training = Training(num_train_epochs=30)  # every query in every batch
    given = {
        "column": "teacher",
        "source": RERANKS,
        "default": None,
        "max_length": None,
        "queries": 0,
        "draws": 1,
        "training": training,
        "negatives": 63,
    }
    given |= {"seed": 7, **changes}
    return make_column(stage_run(COLUMN, folder / "teacher", inputs, ColumnSettings(**given)))


@pytest.mark.parametrize("where", ["stage", "folder"])
def test_the_stage_scores_with_a_real_cross_encoder(tmp_path, where):
    model = CrossEncoder.start_from(str(checkpoint(tmp_path / "lm")), max_length=32, seed=2)
    model.save(tmp_path / "reranker")
    inputs = parts_of(stored(tmp_path / "collection"), "train")
    inputs["negatives"] = mined(tmp_path / "collection", tmp_path / "negatives")
    if where == "stage":
        inputs["reranker"] = tmp_path / "reranker"
    other = Choice(MODEL, ModelConfig(str(tmp_path / "reranker")))
    metrics = taught(tmp_path, inputs, source=RERANKS if where == "stage" else other)
    assert metrics["queries"] == 13
    assert metrics["pairs_per_second"] > 0
    assert len(metrics["model"]) == 32
    assert metrics["max_length"] == 32
    found = read_column(tmp_path / "teacher")
    collection = open_collection(tmp_path / "collection")
    query = next(iter(collection.queries("train")))
    passages = collection.corpus.positions(["d path ü", "d list ü"])
    texts = [passage.content for passage in collection.corpus.at(passages)]
    expected = Reranker.load(tmp_path / "reranker").score([(query.text, text) for text in texts])
    np.testing.assert_allclose(found.lookup(0, passages), expected, atol=1e-6)
    assert sorted(path.name for path in (tmp_path / "teacher").iterdir()) == [CHECKPOINTS, "values.arrow"]
    judged, first = collection.positives("train"), []
    for index, query in enumerate(collection.queries("train")):
        if query.query_id in judged and query.query_id in read_negatives(inputs["negatives"]):
            own, scores = found.row(index)
            first.append(own[scores.argmax()] in collection.corpus.positions([*judged[query.query_id]]))
    assert metrics["positive_first"] == pytest.approx(np.mean(first), abs=1e-4)
    assert 0 < metrics["by_chance"] < 0.5


def test_the_stage_reads_no_more_than_the_recipe_says(tmp_path):
    CrossEncoder.start_from(str(checkpoint(tmp_path / "lm")), max_length=64).save(tmp_path / "reranker")
    inputs = {**parts_of(stored(tmp_path / "collection"), "train"), "reranker": tmp_path / "reranker"}
    metrics = taught(tmp_path, inputs, max_length=16)
    assert metrics["max_length"] == 16
    assert metrics["pairs"] == 14, "without negatives the positives alone"
    assert "positive_first" not in metrics, "nothing to tell apart"


def test_the_stage_scores_the_queries_that_the_round_trains_on_alone(tmp_path):
    CrossEncoder.start_from(str(checkpoint(tmp_path / "lm")), max_length=32).save(tmp_path / "reranker")
    inputs = {**parts_of(stored(tmp_path / "collection"), "train"), "reranker": tmp_path / "reranker"}
    metrics = taught(tmp_path, inputs, queries=4, draws=2, seed=5)
    collection = open_collection(tmp_path / "collection")
    ids = [query.query_id for query in collection.queries("train")]
    pairs = training_pairs(ids, collection.positive_indices("train"), {})
    drawn = {int(pairs.queries[p]) for draw in (0, 1) for p in draw_queries(len(pairs), 4, seed=5, draw=draw)}
    found = read_column(tmp_path / "teacher")
    assert {index for index in range(len(ids)) if found.row(index) is not None} == drawn
    assert metrics["queries"] == len(drawn) < len(pairs)


SCORED = [  # as FlagEmbedding and others write them, and with another score of a pair
    {"query": "a", "pos": ["b", "c"], "neg": ["d", "e"], "pos_scores": [3, 2.5], "neg_scores": [0.5, -1]},
    {"query": "f", "positives": ["d"], "negatives": ["b"], "positive_scores": [7], "negative_scores": [6]},
    {"query": "f", "pos": "d", "neg": ["b", "c"], "pos_scores": 1, "neg_scores": [2, 3]},
    {"anchor": "f", "positive": "d", "negative_1": "e", "negative_2": "c", "scores": [0, 4, 5], "pos_scores": []},
]


def pairs_of(folder, rows):
    """A stored collection of rows with texts, and the inputs of a stage that trains on their own negatives."""
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    collection = PairsCollection(PairsConfig(path=str(path), dev_share=0.0, test_share=0.0))
    counts = write_collection(collection, folder / "collection")
    stored = open_collection(folder / "collection")
    found = [Mined(query, tuple(ids), (0.0,) * len(ids)) for query, ids in stored.negatives("train").items()]
    (folder / "negatives").mkdir()
    write_negatives(found, stored.corpus, folder / "negatives")
    return counts, {**parts_of(folder / "collection", "train"), "negatives": folder / "negatives"}


def test_scores_of_the_training_rows_teach_without_a_model(tmp_path):
    counts, inputs = pairs_of(tmp_path, SCORED)
    assert counts["teacher_scores"] == 12
    metrics = taught(tmp_path, inputs, source=Choice(GIVEN, NoSettings()))
    assert (metrics["queries"], metrics["pairs"], metrics["positive_first"]) == (2, 8, 1.0)
    found, corpus = read_column(tmp_path / "teacher"), open_collection(tmp_path / "collection").corpus
    for index, scores in enumerate(({"b": 3, "c": 2.5, "d": 0.5, "e": -1}, {"d": 7, "b": 6, "c": 3, "e": 4})):
        passages = corpus.positions([text_id(text) for text in scores])
        assert found.lookup(index, passages).tolist() == [*scores.values()]


def test_a_row_without_scores_is_refused_before_it_trains(tmp_path):
    _, inputs = pairs_of(tmp_path, [*SCORED, {"query": "g", "pos": "b", "neg": "c"}])
    with pytest.raises(DrkitError, match=r"'teacher' .* 2 of the 10 .* query '\w+' \('g'\) and passage"):
        taught(tmp_path, inputs, source=Choice(GIVEN, NoSettings()))


@pytest.mark.parametrize("scores", [[1], [1, None], [1, "x"], {"b": 1}, "high"])
def test_scores_that_do_not_fit_their_passages_are_refused(tmp_path, scores):
    with refused("'neg_scores'", "2 passages", where="rows.jsonl:1"):
        pairs_of(tmp_path, [{**SCORED[0], "neg_scores": scores}])


@pytest.mark.parametrize(
    ("rows", "teacher", "said"),
    [
        (SCORED, "given", ("12 teacher scores", "used")),
        (SCORED, "", ("12 teacher scores", "not used", "teacher=given")),
        ([{"query": "a", "pos": "b", "neg": "c"}], "given", ("none",)),
        ([{"query": "a", "pos": "b", "neg": "c"}], "", None),
    ],
)
def test_a_run_says_what_becomes_of_scores_in_training_rows(tmp_path, rows, teacher, said):
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    round_settings = ("finetune.rounds.0.teacher=given", "finetune.rounds.0.loss=margin-mse") if teacher else ()
    settings = ("collection.dev_share=0", "collection.test_share=0", "evaluation.split=train", *round_settings)
    path = f"pairs:{tmp_path / 'rows.jsonl'}"
    recipe = compose(ComposeRequest(collection=path, miners=("given",), settings=settings), installed())
    (stage,) = (one for one in plan(recipe, installed().registry).stages if one.name == "collection")
    notes = Mock(wraps=Silent())
    run = partial(store_collection, stage_run(COLLECTION, tmp_path / "stage", {}, stage.settings, notes))
    if said == ("none",):
        with pytest.raises(DrkitError, match=r"teacher.* none"):
            run()
        return
    run()
    found = [call.args[0] for call in notes.note.call_args_list]
    assert len(found) == (said is not None)
    assert all(says(note, *said) for note in found)


@pytest.fixture
def finetuned(tmp_path):
    """Fine-tune on the margins of the scores in a folder; returns the weights."""
    collection, negatives = stored(tmp_path / "collection"), mined(tmp_path / "collection", tmp_path / "negatives")
    inputs = {**parts_of(collection, "train"), "negatives": negatives, "start": checkpoint(tmp_path / "lm")}
    tokens = [(passage.doc_id, passage.content) for passage in open_collection(collection).corpus]
    tokenise(iter(tokens), tiny("bert")[1], tmp_path / "passage-tokens", max_length=32)
    stores = {"tokens": tmp_path / "passage-tokens", "query-tokens": query_tokens(collection, tmp_path / "tokens")}

    def train(scores, name, **changes):
        settings = FinetuneSettings(
            data_sets=(),
            weights={},
            miners=(),
            queries=6,
            draw=1,
            reading=EncoderCard("mean", "dot", 16, 32),
            training=evolve(FEW, **changes),
            loss=Choice("margin-mse", MarginMseConfig()),
            negatives=2,
            keep_steps=None,
            encoders="shared",
            exclude_self=False,
            passage_length=None,
            draws=2,
            validation=None,
            seed=7,
        )
        stage = stage_run(FINETUNE, tmp_path / name, {**inputs, **stores, "column/teacher": scores}, settings)
        finetune(stage)
        return load_file(tmp_path / name / "model.safetensors")

    return inputs, train


def test_the_pairs_that_a_round_draws_train_it_as_all_pairs_do(tmp_path, finetuned):
    inputs, train = finetuned
    collection = open_collection(tmp_path / "collection")
    everything = every_pair(collection, read_negatives(inputs["negatives"]))
    blocks = ScoreBlocks(Lengths(), "one", collection.corpus, tmp_path / "blocks")
    blocks.make(everything, Silent())
    blocks.join(everything, tmp_path / "everything")
    CrossEncoder.start_from(str(tmp_path / "lm"), max_length=32).save(tmp_path / "reranker")
    scored = {name: inputs[name] for name in ("passages", "train", "negatives")} | {"reranker": tmp_path / "reranker"}
    with patch.object(Reranker, "score", Lengths().score):
        metrics = taught(tmp_path, scored, queries=6, draws=2, training=FEW.schedule_only(), negatives=2)
    drawn = read_column(tmp_path / "teacher")
    assert metrics["pairs"] == sum(len(row[0]) for i in range(14) if (row := drawn.row(i)) is not None)
    # the two draws of six queries see 2 x 3 steps of four queries with three passages each
    assert 0 < metrics["pairs"] <= 72 < sum(len(one.passages) for one in everything)
    one, other = train(tmp_path / "everything", "one"), train(tmp_path / "teacher", "other")
    start = load_file(tmp_path / "lm" / "model.safetensors")
    assert any(not torch.equal(one[name], start[name]) for name in one if name in start)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_training_that_draws_other_pairs_than_were_scored_is_refused(tmp_path, finetuned):
    inputs, train = finetuned
    CrossEncoder.start_from(str(tmp_path / "lm"), max_length=32).save(tmp_path / "reranker")
    scored = {name: inputs[name] for name in ("passages", "train", "negatives")} | {"reranker": tmp_path / "reranker"}
    taught(tmp_path, scored, queries=6, draws=2, training=FEW.schedule_only(), negatives=2)
    with pytest.raises(DrkitError, match=r"of the 46 pairs .*'teacher': .*processes.*\(1 now\)"):
        train(tmp_path / "teacher", "longer", max_steps=9)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_drawn_passages_are_those_of_every_batch(data):
    lists = st.lists(st.integers(0, 40), max_size=6, unique=True).map(lambda own: np.array(own, dtype=np.int64))
    positives = data.draw(st.lists(lists.filter(len), min_size=1, max_size=9))
    negatives = data.draw(st.lists(lists, min_size=len(positives), max_size=len(positives)))
    pairs = TrainingPairs(np.arange(len(positives)), positives, negatives)
    training = Training(
        max_steps=data.draw(st.integers(1, 6)), per_device_train_batch_size=data.draw(st.integers(1, 4))
    )
    batches = Schedule.of(training, np.array([len(own) for own in positives], dtype=np.int32), seed=3, compares=True)
    naive = [set() for _ in positives]
    for batch in batches:
        for epoch, row in batch:
            drawn = draw_passages([positives[row]], [negatives[row]], Draws(5, epoch, [row]), negatives=2)
            naive[row] |= {int(drawn[0][0]), *drawn[1][0].tolist()}
    found = drawn_passages(pairs, batches, negatives=2, seed=5)
    assert [own.tolist() for own in found] == [sorted(own) for own in naive]


def test_progress_is_reported_within_a_block(work, monkeypatch):
    monkeypatch.setattr(teacher_scores, "REPORTED_PAIRS", 10)
    _, asked, blocks = work
    seen = []
    progress = Mock(advance=lambda done, total, unit: seen.append((done, total, unit)))
    blocks(Lengths()).make(asked, progress)
    total = sum(len(one.passages) for one in asked)
    assert {unit for *_, unit in seen} == {"pairs"}
    assert {end for _, end, _ in seen} == {total}
    done = [at for at, *_ in seen]
    assert done == sorted(done)
    assert len({*done}) > len(list(cut_blocks(asked)))
    assert done[-1] == total


def test_the_work_of_a_teacher_is_counted_in_pairs(tmp_path):
    lm, parts = checkpoint(tmp_path / "lm", "distilbert"), installed()
    steps = ("finetune.max_steps=5", "finetune.batch_size=4", "finetune.rounds.2.negatives=3")
    collection = CollectionSize(1000, {"train": 500}, (400,), (10,))

    def work(*settings, **choices):
        request = ComposeRequest(pipeline="three-stage", collection="pydocs", settings=(*steps, *settings), **choices)
        recipe = compose(request, parts)
        (stage,) = (one for one in plan(recipe, parts.registry).stages if one.spec is COLUMN)
        return stage.spec.work(stage, planned_sizes(recipe, collection))

    layer = 4 * 16**2 + 2 * 16 * 24
    given, pairs = work(encoder=str(lm)), 5 * 4 * (1 + 3)
    assert given.disk == 8 * pairs
    assert given.amount == 2 * (pairs * 192) * 2 * (layer + 2 * 192 * 16)
    assert work(encoder=str(lm), scale="paper").amount == given.amount
    hub = work("finetune.rounds.2.teacher=some/cross-encoder", encoder=str(lm))
    assert hub.amount == BERT_BASE.flops(pairs * 192, 192)
    assert work().amount > 0


def test_a_teacher_that_knows_no_more_than_chance_is_told():
    rng, noise, good = np.random.default_rng(3), Agreement(), Agreement()
    for _ in range(500):
        scores = rng.normal(size=8)
        noise.add(scores[:1].tolist(), scores[1:].tolist())
        good.add([scores.max() + (scores[0] > -1)], scores[1:].tolist())  # some wrong
    assert noise.is_chance
    assert "noise" in noise.summary()
    assert noise.chance == pytest.approx(1 / 8)
    assert not good.is_chance
    assert "noise" not in good.summary()
    assert "12.5%" in good.summary()
    tied = Agreement()
    tied.add([1.0], [1.0])
    assert (tied.queries, tied.first) == (1, 0), "a constant teacher tells nothing apart"


def test_an_agreement_over_nothing():
    nothing = Agreement()
    nothing.add([1.0], [])
    nothing.add([], [1.0])
    assert nothing.metrics() == {}
    assert says(nothing.summary(), "positive", "negative")
    with pytest.raises(DrkitError, match="no query"):
        _ = nothing.share
