"""Stages of plugins: planned where they are read, resumed after a kill, and made again when something changes."""

import json

import pytest
from attrs import evolve, frozen

from drkit.core.registry import Registry, installed
from drkit.core.settings import setting
from drkit.core.spec import Choice, ComponentSpec, Kind, NoSettings
from drkit.data.corpus import collection_of
from drkit.data.queries import read_queries
from drkit.data.specs import BeirConfig
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.parts import stage_outputs
from drkit.recipe.toml import recipe_from_table, recipe_table
from drkit.runs.execute import execute
from drkit.runs.making.parts import run_part
from drkit.runs.manifest import read_manifest
from drkit.runs.plan import plan
from drkit.runs.stage import StageRun
from drkit.runs.stages.parts import PartSettings
from drkit.runs.survey import State, survey
from drkit.runs.trial import try_parts
from drkit.search import Bm25Retriever
from drkit.train.columns import read_column
from tests.refusals import says
from tests.runs.test_pseudo_queries import TINY, Notes, beir  # noqa: F401


@frozen
class AskConfig:
    """Settings of `ask`."""

    opening: str = setting("where is", None, "words before the title")


@frozen
class KeepConfig:
    """Settings of `keep`."""

    queries: str = setting("stage:ask/queries.jsonl", None, "the queries")
    modulo: int = setting(2, None, "keep every so many")


@frozen
class JudgeConfig:
    """Settings of `judge`."""

    queries: str = setting("stage:pseudo-queries/train", None, "the queries")
    depth: int = setting(3, None, "passages per query")


CALLS = []
KILL_AT = None


def ask(stage):
    """Write a query for each title, 20 passages at a time."""

    def queries(passages):
        CALLS.append(len(passages))
        if len(CALLS) == KILL_AT:
            raise KeyboardInterrupt
        for one in passages:
            yield {"doc_id": one.doc_id, "queries": [f"{stage.settings.opening} {one.title} of {stage.seed}"]}

    stage.write_rows("queries.jsonl", stage.passages(), queries, size=20)
    return {"passages": len(stage.passages())}


def keep(stage):
    """Keep some of the queries."""
    rows = list(read_queries(stage.settings.queries))[:: stage.settings.modulo]
    lines = [json.dumps({"doc_id": doc_id, "query": query}) + "\n" for doc_id, query in rows]
    (stage.folder / "queries.jsonl").write_text("".join(lines))


def judge(stage):
    """Write candidates of BM25 as a run, and a score for each of them and of the positives."""
    collection = stage.collection(stage.settings.queries)
    bm25, positives = Bm25Retriever().index(collection.corpus), collection.positives("train")
    queries = list(collection.queries("train"))
    run, scores = [], []
    for query, hits in zip(queries, bm25.search([one.text for one in queries], stage.settings.depth), strict=True):
        for rank, doc_id in enumerate(dict.fromkeys([*hits.doc_ids, *positives[query.query_id]]), start=1):
            run.append(f"{query.query_id} Q0 {doc_id} {rank} {1 / rank} judge\n")
            scores.append(
                json.dumps({"query_id": query.query_id, "doc_id": doc_id, "score": len(doc_id) / rank}) + "\n"
            )
    (stage.folder / "candidates.trec").write_text("".join(run))
    (stage.folder / "scores.jsonl").write_text("".join(scores))
    return {"pairs": len(scores)}


def spec(function, config, **more):
    return ComponentSpec(
        Kind.STAGE, function.__name__, f"{__name__}:{function.__name__}", config, f"{function.__name__}s", **more
    )


STAGES = (
    spec(ask, AskConfig, receives=("passages",), resumable=True),
    spec(keep, KeepConfig, files=("queries",)),
    spec(judge, JudgeConfig, receives=("passages",), files=("queries",)),
)
PARTS = installed()
PARTS = evolve(PARTS, registry=Registry([*PARTS.registry, *STAGES]))
REGISTRY = PARTS.registry
LAB = (
    *("pretrain=none", "pseudo_queries.round_trip=0", "pseudo_queries.sources='stage:keep/queries.jsonl'"),
    *("stages.ask.use=ask", "stages.keep.use=keep", "stages.judge.use=judge"),
    "finetune.loss={use='margin-mse'}",
    *("encoder.pooling=mean", "finetune.negatives=1"),
    "finetune.rounds=[{name='retriever-1', pairs='pseudo', start='initial', teacher='stage:judge/scores.jsonl', "
    "miners=[{use='run-file', path='stage:judge/candidates.trec'}]}]",
)


def recipe_of(collection, *settings):
    request = ComposeRequest(pipeline="texts", collection=f"beir:{collection}", settings=(*TINY, *LAB, *settings))
    return compose(request, PARTS)


def run(recipe, folder):
    notes = Notes()
    stages = plan(recipe, REGISTRY).stages
    return execute(stages, folder, recipe, registry=REGISTRY, progress=notes, redo=True)


def files_of(folder):
    """Content of all results of a run by name, but for the manifests, which have times."""
    found = {}
    for stage in ("ask", "keep", "pseudo-queries", "judge", "negatives-retriever-1", "teacher-retriever-1"):
        found[stage] = read_manifest(folder / stage).content()
    found["weights"] = (folder / "retriever-1" / "model.safetensors").read_bytes()
    return found


@pytest.fixture(scope="module")
def whole(beir, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(recipe_of(beir), folder)
    return folder


def test_stages_are_planned_before_the_first_stage_that_reads_them(beir):  # noqa: F811
    recipe = recipe_of(beir)
    check(recipe, REGISTRY)
    try_parts(recipe, REGISTRY)
    stages = {stage.name: stage for stage in plan(recipe, REGISTRY).stages}
    order = [*stages]
    chain = ("ask", "keep", "pseudo-queries", "judge", "negatives-retriever-1", "teacher-retriever-1", "retriever-1")
    assert [name for name in order if name in chain] == [*chain]
    assert str(stages["keep"].inputs["stage:ask/queries.jsonl"]) == "ask/queries.jsonl"
    assert str(stages["judge"].inputs["stage:pseudo-queries/train"]) == "pseudo-queries/train"
    table = recipe_table(recipe)
    assert table["stages"]["judge"] == {"use": "judge", "queries": "stage:pseudo-queries/train", "depth": 3}
    assert table["pseudo_queries"]["sources"] == ["stage:keep/queries.jsonl"]
    assert table["finetune"]["rounds"][0]["teacher"] == {"use": "stage:judge/scores.jsonl"} or (
        table["finetune"]["rounds"][0]["teacher"] == "stage:judge/scores.jsonl"
    )
    assert recipe_from_table(table, REGISTRY) == recipe


def test_outputs_are_queries_negatives_and_scores(whole):
    asked = dict(read_queries(whole / "ask" / "queries.jsonl"))
    assert len(asked) == 132
    assert read_manifest(whole / "ask").metrics == {"passages": 132}
    collection = collection_of({"passages": whole / "collection/passages", "train": whole / "pseudo-queries/train"})
    queries = [one.text for one in collection.queries("train")]
    assert queries == [*asked.values()][::2]
    scores = read_column(whole / "teacher-retriever-1")
    assert len(scores) > 20
    assert read_manifest(whole / "judge").inputs["stage:pseudo-queries/train"]
    assert "stage:judge/scores.jsonl" in read_manifest(whole / "teacher-retriever-1").inputs
    assert str(whole) not in json.dumps(read_manifest(whole / "teacher-retriever-1").settings)


def test_two_runs_have_the_same_bytes_though_one_was_killed(whole, beir, tmp_path, monkeypatch):  # noqa: F811
    CALLS.clear()
    monkeypatch.setattr("tests.runs.test_plugin_stages.KILL_AT", 4)
    with pytest.raises(KeyboardInterrupt):
        run(recipe_of(beir), tmp_path / "run")
    assert not (tmp_path / "run" / "ask").exists()
    finding = {one.stage.name: one for one in survey(plan(recipe_of(beir), REGISTRY).stages, tmp_path / "run")}
    assert finding["ask"].state is State.RESUMED
    CALLS.clear()
    monkeypatch.setattr("tests.runs.test_plugin_stages.KILL_AT", None)
    run(recipe_of(beir), tmp_path / "run")
    assert CALLS == [20, 20, 20, 12]
    assert files_of(tmp_path / "run") == files_of(whole)


def repeated(recipe, folder):
    stages = plan(recipe, REGISTRY).stages
    return {one.stage.name: one.summary for one in survey(stages, folder) if not one.is_finished}


def test_a_setting_repeats_its_stage_and_those_that_follow(whole, beir):  # noqa: F811
    assert repeated(recipe_of(beir), whole) == {}
    deeper = repeated(recipe_of(beir, "stages.judge.depth=4"), whole)
    assert "part.depth: 3 -> 4" in deeper["judge"]
    assert {"negatives-retriever-1", "teacher-retriever-1", "retriever-1"} < {*deeper}
    assert {"ask", "keep", "pseudo-queries"}.isdisjoint(deeper)
    assert "ask" in repeated(recipe_of(beir, "seed=7"), whole)


def test_contexts_of_pretraining_read_the_output_of_a_stage(beir, tmp_path):  # noqa: F811
    queries = "pretrain.decoders.main.context={use='query', queries='stage:ask/queries.jsonl'}"
    only = ("finetune=none", "evaluation.split=test", "evaluation.bm25=false", "stages.ask.use=ask")
    request = ComposeRequest(
        decoder="enhanced", collection=f"beir:{beir}", settings=(*TINY[:-2], "pseudo_queries=none", *only, queries)
    )
    recipe = compose(request, PARTS)
    check(recipe, REGISTRY)
    stages = plan(recipe, REGISTRY).stages
    names = [stage.name for stage in stages]
    assert names.index("ask") < names.index("queries")
    execute(stages[: names.index("queries") + 1], tmp_path / "run", recipe, registry=REGISTRY, progress=Notes())
    found = read_manifest(tmp_path / "run" / "queries")
    assert (found.metrics["given"], found.metrics["unknown"], found.metrics["extractive"]) == (132, 0, 0)


def test_an_unread_stage_is_made_too(beir):  # noqa: F811
    recipe = recipe_of(beir, "stages.more={use='judge', queries='stage:pseudo-queries/train', depth=9}")
    assert "more" in [stage.name for stage in plan(recipe, REGISTRY).stages]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("stages.keep.queries='stage:asks/queries.jsonl'",), "'asks'"),
        (("stages.keep.queries='stage:keep/queries.jsonl'",), "which reads its output"),
        (("stages.keep.queries='stage:ask/../../etc'",), "expected stage:NAME"),
        (
            ("stages.judge.queries='stage:retriever-1'",),
            "'retriever-1', which is not a stage that this run makes before it",
        ),
        (("stages.tokens.use=ask",), "cannot be named 'tokens'"),
        (("stages.retriever-1.use=ask",), "cannot be named 'retriever-1'"),
        (("stages.No.use=ask",), "small letters"),
        (("stages.ask.use=aks",), "did you mean 'ask'"),
        (("stages.ask.openings=x",), "did you mean 'opening'"),
        (("pretrain.weigh_by=none", "stages.ask.opening=3"), "expected str"),
    ],
)
def test_what_cannot_be_planned_is_refused(settings, said, beir):  # noqa: F811
    with pytest.raises((ProblemsError, DrkitError)) as caught:
        plan(recipe_of(beir, *settings), REGISTRY)
    assert says(str(caught.value), said)


def test_only_some_kinds_read_outputs():
    chosen = Choice("beir", BeirConfig(path="stage:ask"))
    with pytest.raises(DrkitError, match="only parts of the kinds queries, column, miner, stage"):
        stage_outputs({"any": [chosen]}, REGISTRY)


def test_a_spec_says_what_a_stage_may_receive():
    with pytest.raises(ValueError, match="receives 'passage', which no run offers a stage; did you mean 'passages'"):
        spec(ask, AskConfig, receives=("passage",))


def returns(_stage):
    """Return what is not JSON."""
    return {"it": object()}


def test_facts_must_be_json(tmp_path):
    registry = Registry([spec(returns, NoSettings)])
    chosen = PartSettings(Choice("returns", NoSettings()), seed=1)
    with pytest.raises(DrkitError, match="facts that can be written as JSON"):
        run_part(StageRun("b", chosen, {}, tmp_path, registry, Notes()))


def test_a_file_that_a_stage_did_not_write_is_named(whole, beir, tmp_path):  # noqa: F811
    recipe = recipe_of(beir, "stages.keep.queries='stage:ask/queries.json'")
    with pytest.raises(DrkitError, match=r"'ask' has no queries\.json; its files: queries\.jsonl"):
        run(recipe, tmp_path / "run")
