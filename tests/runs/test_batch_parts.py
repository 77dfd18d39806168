"""Batches composed by parts: what is together, how often, and that neither a cut nor a second process changes it."""

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from drkit.batching import ClustersConfig, DocumentBatchesConfig, OneDataSetConfig
from drkit.batching.drawing import checked_batches, grouped_batches
from drkit.batching.parts import ByLength, Clusters, Documents, OneDataSet, Random
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.core.spec import ComponentSpec, Kind, NoSettings
from drkit.core.types import BatchRows
from drkit.data.corpus import open_collection
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import recipe_from_table, recipe_table
from drkit.recipe.training import Training
from drkit.runs.making.finetune import judged_pairs
from drkit.runs.plan import plan
from drkit.testing import check_batches
from drkit.testing.specs import ContractError
from drkit.train.batches import PartBatches, Schedule, batches_per_epoch
from drkit.train.biencoder import drawn_passages, schedule_lengths
from drkit.train.refresh import BatchRefresher
from drkit.train.trainer import train
from tests.refusals import says
from tests.runs.conftest import drkit, tiny, write_lines
from tests.runs.test_refreshing import BATCH, PLAIN, QUERIES, CutOff, made, make_parts, same
from tests.search.made import reader_of
from tests.torchrun import run_processes


def composed(part, rows, size, epochs, seed=5):
    """The batches of some epochs, checked."""
    count = max(len(rows) // size, 1)
    return [
        checked_batches(
            part(rows, size=size, count=count, seed=seed, epoch=epoch), rows, size=size, count=count, title="part"
        )
        for epoch in range(epochs)
    ]


@given(n=st.integers(1, 200), size=st.integers(1, 40), epoch=st.integers(0, 4), seed=st.integers(0, 5))
def test_random_batches_are_the_permutation_that_schedules_had(n, size, epoch, seed):
    rng = np.random.default_rng([seed, epoch])
    order, whole = rng.permutation(n), min(size, n)
    expected = order[: n // whole * whole].reshape(-1, whole)
    expected = expected[rng.permutation(len(expected))]
    rows = BatchRows(n)
    schedule = Schedule(lengths=np.full(n, 9, np.int32), batch_size=size, batches=1, seed=seed)
    through_part = evolve(schedule, source=PartBatches(Random(NoSettings()), rows, seed, "random"))
    for found in (schedule.epoch(epoch), through_part.epoch(epoch)):
        assert [batch.tolist() for batch in found] == expected.tolist()


def test_by_length_needs_little_padding_and_leaves_others_out_every_epoch():
    lengths = np.random.default_rng(0).integers(3, 64, 203).astype(np.int32)
    epochs = composed(ByLength(NoSettings()), BatchRows(203, query_lengths=lengths), 20, 30)
    for batches in epochs:
        rows = np.concatenate(batches)
        assert len({*rows.tolist()}) == len(rows) == 200
        spans = sorted((lengths[batch].min(), lengths[batch].max()) for batch in batches)
        assert all(before <= after for (_, before), (after, _) in pairwise(spans))
    assert {*range(203)} == {row for batches in epochs for batch in batches for row in batch.tolist()}
    assert len({tuple(batches[0].tolist()) for batches in epochs}) == 30


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    size=st.integers(1, 12),
    uniform=st.booleans(),
    seed=st.integers(0, 9),
)
def test_groups_are_drawn_as_often_as_they_should_and_read_to_their_end(sizes, size, uniform, seed):
    """Against a count by hand over six epochs."""
    bounds = np.cumsum([0, *sizes])
    groups = [np.arange(a, b) for a, b in pairwise(bounds)]
    weights = np.ones(len(sizes)) if uniform else np.array(sizes, dtype=float)
    count = max(sum(sizes) // size, 1)
    drawn, read = Counter(), {number: [] for number in range(len(groups))}
    for epoch in range(6):
        now = Counter()
        batches = grouped_batches(groups, weights, size=size, count=count, seed=seed, epoch=epoch)
        again = grouped_batches(groups, weights, size=size, count=count, seed=seed, epoch=epoch)
        assert [one.tolist() for one in batches] == [one.tolist() for one in again]
        assert len(batches) == count
        for batch in batches:
            (group,) = {int(np.searchsorted(bounds, row, side="right")) - 1 for row in batch}
            assert len({*batch.tolist()}) == len(batch) == min(size, sizes[group])
            now[group] += 1
            read[group] += batch.tolist()
        for number, weight in enumerate(weights):
            assert abs(now[number] - count * weight / weights.sum()) < 1 + 1e-9
        drawn += now
    for number, rows in read.items():
        often = Counter(rows)
        rounds = drawn[number] / (sizes[number] // min(size, sizes[number]))
        assert max(often.values(), default=0) <= np.ceil(rounds) + 1, "an epoch's batches are in random order"


def test_a_row_comes_again_only_after_the_whole_group():
    groups, weights = [np.arange(20), np.arange(20, 60)], np.array([3.0, 1.0])
    seen = Counter()
    for epoch in range(4):  # 9 or so of 12 batches of 5 are of the first group: over two rounds of it an epoch
        for batch in grouped_batches(groups, weights, size=5, count=12, seed=2, epoch=epoch):
            seen.update(batch[batch < 20].tolist())
    counts = [seen[row] for row in range(20)]
    assert max(counts) - min(counts) <= 1


def test_one_data_set_a_batch_by_ids_or_a_column():
    ids = [f"{'abc'[number % 3]}/{number}" for number in range(90)] + [f"d/{number}" for number in range(3)]
    rows = BatchRows(93, query_ids=ids, columns={"source": np.array([ord(one[0]) for one in ids])})
    for config in (OneDataSetConfig(), OneDataSetConfig(column="source")):
        for batches in composed(OneDataSet(config), rows, 10, 3):
            names = [{ids[row][0] for row in batch} for batch in batches]
            assert all(len(own) == 1 for own in names)
            assert all(len(batch) == (3 if own == {"d"} else 10) for batch, own in zip(batches, names, strict=True))

    def share(config, name):
        epochs = composed(OneDataSet(config), rows, 10, 40)
        return np.mean([ids[batch[0]][0] == name for batches in epochs for batch in batches])

    assert share(OneDataSetConfig(), "d") == pytest.approx(3 / 93, abs=0.01)
    assert share(OneDataSetConfig(frequency="uniform"), "d") == pytest.approx(1 / 4, abs=0.01)
    weighted = OneDataSetConfig(frequency="uniform", weights={"a": 2.0, "d": 0.0})
    assert [share(weighted, name) for name in "ad"] == [pytest.approx(1 / 2, abs=0.01), 0]


@pytest.mark.parametrize(
    ("config", "ids", "message"),
    [
        (OneDataSetConfig(), ["a/1", "b2"], "'b2' has no data set"),
        (OneDataSetConfig(), ["a/1", "a/2"], "one data set, a"),
        (OneDataSetConfig(weights={"bee": 2.0}), ["a/1", "be/2"], "'bee'; did you mean 'be'"),
        (OneDataSetConfig(weights={"a": 0.0, "b": 0.0, "c": 1.0}), ["a/1", "b/2"], "'c'"),
    ],
)
def test_data_sets_that_are_not_there_are_refused(config, ids, message):
    with pytest.raises(DrkitError, match=message):
        OneDataSet(config)(BatchRows(2, query_ids=ids), size=1, count=2, seed=0, epoch=0)


def test_queries_of_a_document_are_together_in_the_order_of_its_passages():
    places = [(number % 7, number // 7) for number in range(70)]
    rows = BatchRows(70, positive_ids=[[f"dir/d#{document}#{passage}", "other#1"] for document, passage in places])
    for batches in composed(Documents(DocumentBatchesConfig()), rows, 5, 3):
        for batch in batches:
            assert len({places[row][0] for row in batch}) == 1, "ten queries of each document, five in a batch"
            passages = sorted(places[row][1] for row in batch)
            assert passages in ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])
    plain = BatchRows(6, positive_ids=[["x:1"], ["y:1"], ["x:2"], ["y:2"], ["z"], ["z"]])
    (batches,) = composed(Documents(DocumentBatchesConfig(separator=":")), plain, 2, 1)
    assert sorted(sorted(batch.tolist()) for batch in batches) == [[0, 2], [1, 3], [4, 5]]


def blobs(sizes, distance=100.0):
    rng = np.random.default_rng(3)
    centres = distance * rng.normal(size=(len(sizes), 6))
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return labels, (centres[labels] + rng.normal(size=(len(labels), 6))).astype(np.float32)


def test_clusters_are_those_of_the_vectors():
    labels, vectors = blobs([40, 25, 30, 12])
    rows = BatchRows(len(labels), query_vectors=vectors)
    one, two = ClustersConfig(clusters=4), ClustersConfig(clusters=4, per_batch=2, every=2)
    for batches in composed(Clusters(one), rows, 10, 2):
        assert {len({*labels[batch].tolist()}) for batch in batches} == {1}
    for batches in composed(Clusters(two), rows, 10, 4):
        assert all(sorted(Counter(labels[batch].tolist()).values()) == [5, 5] for batch in batches)
    often = Counter(labels[batch[0]] for batches in composed(Clusters(one), rows, 10, 20) for batch in batches)
    assert max(often.values()) - min(often.values()) <= 2, "all clusters equally often"


def test_a_cluster_that_is_too_small_is_joined_with_the_nearest():
    labels, vectors = blobs([40, 40, 3], distance=1000.0)
    vectors[labels == 2] = vectors[labels == 1].mean(0) + 30
    batches = composed(Clusters(ClustersConfig(clusters=3)), BatchRows(83, query_vectors=vectors), 20, 1)[0]
    assert all(len(batch) == 20 for batch in batches)
    assert not any({*labels[batch].tolist()} >= {0, 2} for batch in batches)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "expected a list of 3 batches, got NoneType"),
        ([np.arange(2)] * 2, "expected 3 batches in an epoch, got 2"),
        ([np.arange(5)] * 3, "1 to 4 rows in each batch"),
        ([np.arange(0)] * 3, "1 to 4 rows in each batch"),
        ([np.arange(2.0)] * 3, "array of whole numbers"),
        ([np.array([0, 12])] * 3, "from 0 to 11 .*others"),
        ([np.array([1, 1])] * 3, "a row twice"),
    ],
)
def test_what_is_no_epoch_is_refused(found, message):
    with pytest.raises(DrkitError, match=f"^mine: .*{message}"):
        checked_batches(found, BatchRows(12), size=4, count=3, title="mine")


class Counting:
    """Batches that depend on what was called before."""

    def __init__(self, config, context=None):
        self.calls = 0

    def __call__(self, rows, *, size, count, seed, epoch):
        self.calls += 1
        order = np.random.default_rng([id(self), self.calls]).permutation(len(rows))
        return list(order[: size * count].reshape(count, size))


class Sorting(Counting):
    """Batches that change the rows."""

    def __call__(self, rows, *, size, count, seed, epoch):
        rows.query_lengths.sort()
        return list(np.arange(size * count).reshape(count, size))


@pytest.mark.parametrize(("part", "said"), [(Counting, "other batches"), (Sorting, "read-only")])
def test_the_contract_notices_what_breaks_it(part, said):
    target = f"{__name__}:{part.__name__}"
    spec = ComponentSpec(Kind.BATCHES, "broken", target, NoSettings, "Breaks.", receives=("query_lengths",))
    with pytest.raises(ContractError, match=said):
        check_batches(spec)


# A training whose batches are clusters of the queries' vectors by the model in training.


@pytest.fixture(scope="session")
def parts(tmp_path_factory):
    return make_parts(tmp_path_factory.mktemp("batches"))


def clustered(parts, checkpoints, *, every=1, dropout=0.2):
    """A bi-encoder with dropout, its collator, and what composes its batches."""
    folder, tokenizer = parts
    module, collate, _ = made(parts, checkpoints, dropout=dropout)
    config = ClustersConfig(clusters=3, every=every, frequency="proportional")
    batches = PartBatches(Clusters(config), BatchRows(QUERIES), 5, "clusters")
    queries = open_collection(folder / "collection").queries("train")
    refresher = BatchRefresher(
        batches,
        module,
        reader_of(module.encoder.backbone, tokenizer, similarity="dot", query_length=16, passage_length=16),
        folder=checkpoints,
        texts=[query.text for query in queries],
        every=every,
        size=BATCH,
        per_epoch=batches_per_epoch(QUERIES, BATCH),
    )
    return module, evolve(collate, refreshed=None), refresher


def train_clustered(made, folder, *, steps=9, world=1, collate=None, **settings):
    module, plain, refresher = made
    accumulated = settings.get("gradient_accumulation_steps", 1)
    lengths = np.full(QUERIES, 5, np.int32)
    schedule = Schedule(lengths, BATCH, steps * accumulated, seed=5, per_step=accumulated, source=refresher)
    chosen = {"max_steps": steps, "save_steps": 2, "logging_steps": 1, "learning_rate": 0.02, **settings}
    training = Training(**chosen, per_device_train_batch_size=BATCH // world)
    return train(
        module,
        schedule,
        collate or plain,
        training=training,
        folder=folder,
        progress=Silent(),
        seed=7,
        callbacks=[refresher],
    )


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("batches-*.npy"))}


@pytest.mark.parametrize(("every", "accumulated", "cut_off"), [(1, 1, 4), (1, 1, 6), (2, 1, 5), (2, 2, 7)])
def test_cut_off_and_gone_on_equals_uninterrupted(parts, tmp_path, every, accumulated, cut_off):
    settings = {"gradient_accumulation_steps": accumulated}
    whole = clustered(parts, tmp_path / "whole", every=every)
    expected = train_clustered(whole, tmp_path / "whole", **settings)
    first = clustered(parts, tmp_path / "cut", every=every)
    with pytest.raises(KeyboardInterrupt):
        train_clustered(first, tmp_path / "cut", collate=CutOff(first[1], cut_off), **settings)
    resumed = clustered(parts, tmp_path / "cut", every=every)
    result = train_clustered(resumed, tmp_path / "cut", **settings)
    assert same(whole[0], resumed[0])
    last = min(len(result.log), len(expected.log))
    assert [line["loss"] for line in result.log[-last:]] == [line["loss"] for line in expected.log[-last:]]
    assert len(files_of(tmp_path / "whole")) == -(-9 * accumulated // (3 * every))
    assert files_of(tmp_path / "cut") == files_of(tmp_path / "whole")


def test_two_processes_read_the_batches_of_one(parts, tmp_path):
    one = clustered(parts, tmp_path / "one", dropout=0.0)
    train_clustered(one, tmp_path / "one", **PLAIN)
    folder, _ = parts
    (tmp_path / "two").mkdir()
    run_processes("tests.runs.two_processes_batches", folder, tmp_path / "two")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_a_damaged_file_is_made_again_and_a_missing_one_is_named(parts, tmp_path):
    _, _, refresher = clustered(parts, tmp_path, every=2)
    refresher.make_before(0, 1)
    (path,) = tmp_path.glob("batches-*.npy")
    before = path.read_bytes()
    path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    refresher.make_before(0, 1)
    assert path.read_bytes() == before
    assert [len(refresher(epoch, size=BATCH, count=3)) for epoch in (0, 1)] == [3, 3]
    with pytest.raises(DrkitError, match=r"batches of epoch 2 .*dataloader_num_workers"):
        refresher(2, size=BATCH, count=3)


# Recipes, plans and runs.

SETTINGS = ("pretrain=none", "finetune.max_steps=-1", "finetune.num_train_epochs=2", "finetune.baselines=[]")


def recipe_of(*given, **choices):
    request = ComposeRequest(settings=(*SETTINGS, *given), pipeline="dpr", scale="quick", **choices)
    return compose(request, installed())


def stage_of(recipe, name):
    return next(stage for stage in plan(recipe, installed().registry).stages if stage.name == name)


def test_a_recipe_names_batches_and_a_round_others():
    assert recipe_of().finetune.batches.use == "random"
    recipe = recipe_of("finetune.rounds.0.batches={use='documents', separator=':'}", batches="one-data-set:uniform")
    assert recipe.finetune.batches.config == OneDataSetConfig(frequency="uniform")
    assert recipe.finetune.for_round(recipe.finetune.rounds[0]).batches.config.separator == ":"
    assert recipe_from_table(recipe_table(recipe), installed().registry) == recipe
    assert recipe_of("finetune.batches.use=by-length").finetune.batches.use == "by-length"


def test_other_batches_are_another_training_and_random_ones_the_old(beir):
    stages = [
        stage_of(recipe_of(f"finetune.batches.use={name}", collection=f"beir:{beir}"), "retriever-1")
        for name in ("random", "by-length", "documents")
    ]
    identities = [stage.identity(dict.fromkeys(stage.inputs, "")) for stage in stages]
    assert not any("batches" in name for name in identities[0]["settings"])
    assert identities[1]["settings"]["batches.use"] == "by-length"
    assert len({json.dumps(one, sort_keys=True) for one in identities}) == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("finetune.batches={use='one-data-set', column='kind'}", ["'kind'", "finetune.columns.kind=file:PATH"]),
        ("finetune.batches={use='one-data-set', weights={a=-1}}", ["from 0"]),
        ("finetune.batches={use='clusters', clusters=1}", [">= 2"]),
        ("finetune.batches=by-size", ["by-size", "by-length"]),
    ],
)
def test_batches_that_cannot_be_are_refused_with_the_remedy(given, said):
    with pytest.raises((ProblemsError, DrkitError)) as refused:
        check(recipe_of(given), installed().registry)
    assert says(str(refused.value), *said)


def test_the_plan_refuses_ids_without_a_data_set(beir):
    with pytest.raises(DrkitError, match=r"'q0' has no data set.*finetune\.batches\.column=NAME @ finetune\.batches$"):
        plan(recipe_of(batches="one-data-set", collection=f"beir:{beir}"), installed().registry)


def test_a_column_of_batches_has_a_value_per_query(beir, tmp_path):
    write_lines(tmp_path / "kinds.jsonl", [{"doc_id": f"d{number}", "value": 1} for number in range(60)])
    column = f"finetune.columns.kind=file:{tmp_path / 'kinds.jsonl'}"
    recipe = recipe_of("finetune.batches={use='one-data-set', column='kind'}", column, collection=f"beir:{beir}")
    with pytest.raises(DrkitError, match=r"'kind', which has a value per passage; expected a value per query"):
        plan(recipe, installed().registry)
    write_lines(tmp_path / "kinds.jsonl", [{"query_id": f"q{number}", "value": 1} for number in range(11)])
    with pytest.raises(DrkitError, match=r"'kind' .* 1 of the 12 .*query 'q11'"):
        plan(recipe, installed().registry)


ONE_DATA_SET = "{use='one-data-set', column='kind', frequency='uniform', weights={0=3.0}}"


@pytest.mark.parametrize("batches", [ONE_DATA_SET, "{use='clusters', clusters=3, per_batch=2}"])
def test_a_teacher_scores_what_the_batches_read_through_a_run(beir, tmp_path, batches):
    """The pairs of the column are those that the batches draw; with clusters, all that any batches may draw."""
    write_lines(tmp_path / "kinds.jsonl", [{"query_id": f"q{number}", "value": number % 2} for number in range(12)])
    scores = [
        {"query_id": f"q{query}", "doc_id": f"d{passage}", "score": float(passage % 20 == query)}
        for query in range(12)
        for passage in range(60)
    ]
    write_lines(tmp_path / "scores.jsonl", scores)
    run = tmp_path / "run"
    drkit(
        *("compose", *tiny(beir, "pretrain.", "layers", "baselines"), "--miner", "random", "--run-dir", run),
        *(f"--set={one}" for one in SETTINGS),
        *(f"--set=finetune.batches={batches}", f"--set=finetune.columns.kind=file:{tmp_path / 'kinds.jsonl'}"),
        *("--set=finetune.loss=margin-mse", f"--set=finetune.rounds.0.teacher=file:{tmp_path / 'scores.jsonl'}"),
        *("--set=finetune.per_device_train_batch_size=4", "--set=encoder.layers=1", "--set=finetune.negatives=2"),
        *("--set=evaluation.start=false", "--set=evaluation.bm25=false"),
    )
    collection, seed = open_collection(run / "collection"), 42
    pairs = judged_pairs({"negatives": run / "negatives-retriever-1"}, collection, "the test")
    training = Training(num_train_epochs=2, per_device_train_batch_size=4)
    source = None
    if "clusters" not in batches:
        kinds = np.array([int(query.query_id[1:]) % 2 for query in collection.queries("train")])
        config = OneDataSetConfig(column="kind", frequency="uniform", weights={"0": 3.0})
        rows = BatchRows(12, columns={"kind": kinds})
        source = PartBatches(OneDataSet(config), rows, seed, "one-data-set")
    schedule = Schedule.of(training, schedule_lengths(pairs), seed=seed, compares=True, source=source)
    read = schedule if source else [[(epoch, row) for row in range(12)] for epoch in range(2)]
    drawn = drawn_passages(pairs, read, negatives=2, seed=seed)
    manifest = json.loads((run / "teacher-retriever-1" / "manifest.json").read_text())
    assert manifest["metrics"]["pairs"] == sum(map(len, drawn))
    assert ("batches/kind" in manifest["inputs"]) == ("clusters" not in batches)
    log = [json.loads(line) for line in (run / "retriever-1" / "log.jsonl").read_text().splitlines()]
    assert log[-1]["step"] == 6
