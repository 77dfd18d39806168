"""A finished stage is never stale and never repeated without need: by property over every setting, and by a table."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import attrs
import pytest

from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.core.settings import NEVER_ABSENT
from drkit.core.spec import Choice
from drkit.errors import DrkitError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.schema import Recipe
from drkit.recipe.toml import assign, recipe_from_table, recipe_table
from drkit.runs.execute import execute
from drkit.runs.manifest import read_manifest
from drkit.runs.plan import plan
from drkit.runs.stage import Stage
from drkit.runs.survey import State, survey
from tests.runs.test_run import STAGES

PARTS = installed()
TINY = (
    *("encoder.vocab_size=120", "encoder.hidden=16", "encoder.heads=2", "encoder.intermediate=32"),
    *("encoder.passage_length=24", "encoder.query_length=16", "evaluation.depth=20"),
    *("pretrain.max_steps=4", "pretrain.per_device_train_batch_size=4", "pretrain.probe.every=2"),
    *("finetune.max_steps=4", "finetune.per_device_train_batch_size=4"),
    *("finetune.baselines=['labels-only']", "evaluation.start=true"),
    *("evaluation.bm25_k1=[1.2]", "evaluation.bm25_b=[0.75]"),
)
RECIPES = {
    "pmi": ComposeRequest(masker="pmi", decoder="enhanced", pipeline="two-stage"),
    "generator": ComposeRequest(paper="simlm", pipeline="two-stage"),
    "contexts": ComposeRequest(paper="cocondenser-qac", pipeline="ance"),
    "idf": ComposeRequest(paper="cpdae-idf"),
    "three-stage": ComposeRequest(paper="cdmae", pipeline="three-stage"),
    "matryoshka": ComposeRequest(
        masker="uniform",
        decoder="enhanced",
        pipeline="two-stage",
        settings=("finetune.loss={use = 'matryoshka'}",),
    ),
    "texts": ComposeRequest(masker="pmi", decoder="enhanced", pipeline="texts", settings=("encoder.layers=1",)),
}


def recipe_of(name, folder, *settings):
    wanted = RECIPES[name]
    settings = (*TINY, *wanted.settings, *settings)
    return compose(attrs.evolve(wanted, collection=f"beir:{folder}", settings=settings), PARTS)


class Begun(Silent):
    """Keeps the stages that were made, and why."""

    def __init__(self):
        self.stages, self.reasons = [], {}

    def begin(self, stage, summary, reason=""):
        self.stages.append(stage)
        self.reasons[stage] = reason


def run(recipe, folder, upto=None):
    stages = plan(recipe, PARTS.registry).stages
    begun = Begun()
    needed = {upto}
    for stage in reversed(stages):
        needed |= set(stage.needs) if stage.name in needed else set()
    kept = stages if upto is None else tuple(stage for stage in stages if stage.name in needed)
    execute(kept, folder, recipe, registry=PARTS.registry, progress=begun, redo=True)
    return begun


# Settings of pre-training that no stage knows unless they are set, and one of every training.
UNLESS_SET = ("keep_steps", "texts", "text_weights", "weigh_by")
BATCH_SIZE = "batch_size"
# Which only the stages of baselines know (tests/runs/test_evaluation_stage.py).
BASELINE_RATES = "pretrain.baseline_learning_rates"

# -- every leaf setting, from the attrs classes themselves


def leaves(value: Any, declared: Any = None, path: str = "") -> Iterator[tuple[str, Any, attrs.Attribute[Any]]]:
    """(dotted path, value, attribute) of every setting that is not a table."""
    if isinstance(value, Choice) or hasattr(value, "use"):
        if value.weight is not None:
            yield f"{path}.weight", value.weight, attrs.fields(type(value)).weight
        yield from leaves(value.config, None, path)
    elif attrs.has(type(value)):
        for a in attrs.fields(type(value)):
            yield from leaves(getattr(value, a.name), a, f"{path}.{a.name}" if path else a.name)
    elif isinstance(value, dict) and value and all(attrs.has(type(item)) for item in value.values()):
        for key, item in value.items():
            yield from leaves(item, declared, f"{path}.{key}")
    elif isinstance(value, tuple) and value and all(attrs.has(type(item)) for item in value):
        for index, item in enumerate(value):
            yield from leaves(item, declared, f"{path}.{index}")
    else:
        yield path, value, declared


def others(value: Any, attribute: Any) -> Iterator[Any]:
    """Other values that the setting may have, the likeliest first."""
    options = getattr(attribute.validator, "options", None)
    if options is not None:
        yield from (option for option in options if option != value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1, value * 2, 2, 1)
    elif isinstance(value, float):
        yield from (value / 2, value * 1.5, 0.5, 0.1)
    elif isinstance(value, str):
        yield from ("hnsw", f"{value}x", "constant", "nDCG@10", "max")
    elif isinstance(value, tuple):
        yield from (
            (0.5,),
            (0.6, 0.2, 0.2),
            ("RR@5",),
            ("query-passage", "query-query"),
            ("titles",),
            ("encoder",),
            (),
            ("x",),
            ("always",),
        )
    elif isinstance(value, dict):
        yield from ({"adam_beta1": 0.8}, {"title": "none"})
    elif value is None:
        yield from (
            1,
            2,
            16,
            24,
            0.5,
            "constant",
            "eager",
            "x",
            (0.6, 0.2, 0.2),
            (1,),
            True,
            {"adam_beta1": 0.8},
            {"decoder=mlm": 0.5},
            "distilbert",
            "mean",
            "weighted",
            "by-length",
            {"rank": 4},
        )


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def changed(recipe: Recipe, paths: dict[str, Any]) -> Recipe:
    table = recipe_table(recipe)
    for path, value in paths.items():
        assign(table, f"{path}={toml(value)}")
    made = recipe_from_table(table, PARTS.registry)
    check(made, PARTS.registry)
    return made


def variations(recipe: Recipe) -> dict[str, tuple[Any, set[str]]]:
    """Another value for every leaf setting of a recipe that has one, and the stages that it touches."""
    found, before = {}, stages_of(recipe)
    for path, value, attribute in leaves(recipe):
        for other in others(value, attribute):
            with suppress(DrkitError, OSError):
                found[path] = other, touched(before, stages_of(changed(recipe, {path: other})))
                break
    return found


def stages_of(recipe: Recipe) -> dict[str, Stage[Any]]:
    return {stage.name: stage for stage in plan(recipe, PARTS.registry).stages}


def touched(before: dict[str, Stage[Any]], after: dict[str, Stage[Any]]) -> set[str]:
    """The stages whose own identity differs, and all that read them."""
    found: set[str] = set()
    for name, stage in before.items():
        new = after.get(name)
        blank = dict.fromkeys(stage.inputs, "")
        own = new is None or new.inputs != stage.inputs or new.identity(blank) != stage.identity(blank)
        if own or any(part.stage in found for part in stage.inputs.values() if not part.observed):
            found.add(name)
    return found


def test_a_precision_of_encoding_trains_only_what_mines_with_it(beir):
    recipe, precise = recipe_of("pmi", beir), ("encoder.precision=bfloat16",)
    indexes = {"index-initial", "index-labels-only", "index-retriever-1", "index-retriever-2"}
    follow = {"retriever-2", "choice-runs", "choice", "encoder", "index", "dev-runs", "runs", "hybrid", *REPORTED}
    assert (
        touched(stages_of(recipe), stages_of(recipe_of("pmi", beir, *precise)))
        == indexes | {"negatives-retriever-2"} | follow
    )
    validated = ("finetune.validation.every=2",)
    again = touched(*(stages_of(recipe_of("pmi", beir, *validated, *more)) for more in ((), precise)))
    assert {"labels-only", "retriever-1"} <= again


@pytest.fixture(scope="module")
def varied(beir):
    """Another value for every leaf setting of a recipe, and the stages that it touches; found once."""
    return cache(lambda name: variations(recipe_of(name, beir)))


def harmless(
    recipe: Recipe, before: dict[str, Stage[Any]], stage: str, kept: dict[str, Any], more: dict[str, Any]
) -> dict[str, Any]:
    """The settings `kept`, and as many of `more` as go together with them and leave a stage of `before` alone."""
    both = {**kept, **more}
    with suppress(DrkitError, OSError):  # two changes that do not go together
        if stage not in touched(before, stages_of(changed(recipe, both))):
            return both
    if len(more) == 1:
        return kept
    items = [*more.items()]
    half = len(items) // 2
    kept = harmless(recipe, before, stage, kept, dict(items[:half]))
    return harmless(recipe, before, stage, kept, dict(items[half:]))


@pytest.mark.parametrize("name", RECIPES)
def test_every_setting_is_varied_and_one_that_observes_makes_nothing_again(name, beir, varied):
    recipe, tried = recipe_of(name, beir), {path: stages for path, (_, stages) in varied(name).items()}
    declared = {path: attribute for path, _, attribute in leaves(recipe)}
    # no other value is possible alone: it must fit another setting, names a file, or is a table that is left out
    tables = ("reranker", "pseudo_queries", "stages", "collections")
    alone = (
        "collection.path",
        "finetune.columns",
        "schema",
        *tables,
        ".loss",
        ".model",
        ".queries",
        "pretrained",
        "encoder.mask_token",
        "pretrain.lora",
        "architecture",
        "architecture_settings",
        "teacher",
        "start",
        "evaluation.baseline",
        "evaluation.folds",
        ".pairs",
        BASELINE_RATES,
        *UNLESS_SET,
    )
    of_one_generator = tuple(f"generator_{name}" for name in ("layers", "hidden", "heads", "intermediate", "steps"))
    fitting = ("variant", "heads", "similarity", *of_one_generator)
    untried = {path for path in declared.keys() - tried.keys() if not path.endswith(alone)}
    assert {path for path in untried if path.rpartition(".")[2] not in fitting} == set()
    may_be_absent = {
        path for path, a in declared.items() if a and a.metadata.get("absent_when", NEVER_ABSENT) is not NEVER_ABSENT
    }
    for path in (
        *(f"pretrain.{name}" for name in UNLESS_SET),
        *(path for path in declared if path.endswith(BATCH_SIZE)),
    ):
        assert path.endswith("train_batch_size") or path in may_be_absent, path
    observing = {path for path, a in declared.items() if a and a.metadata.get("observes")}
    observing.remove(BASELINE_RATES)
    assert {"pretrain.logging_steps", "pretrain.probe.every", "finetune.save_steps"} <= observing
    for path in observing:
        assert not tried[path], path
    assert "pretrained" in tried["pretrain.keep_steps"]


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        *(("pmi", stage) for stage in STAGES),
        ("generator", "generator"),
        ("contexts", "queries"),
        ("contexts", "retriever-2"),
        ("idf", "pretrained"),
        ("matryoshka", "pretrained"),
        ("matryoshka", "retriever-1"),
        ("texts", "pseudo-queries"),
        ("texts", "retriever-2"),
    ],
)
def test_a_stage_that_is_kept_would_have_come_out_the_same(name, stage, beir, tmp_path, finished, varied):
    """All settings at once that leave the stage alone are changed; made again alone, it is the same bit for bit."""
    recipe = recipe_of(name, beir)
    alone = {path: value for path, (value, stages) in varied(name).items() if stage not in stages}
    settings = harmless(recipe, stages_of(recipe), stage, {}, alone)
    assert len(settings) > max(5, 0.9 * len(alone))
    folder = tmp_path / "run"
    shutil.copytree(finished(name), folder)
    shutil.rmtree(folder / stage)
    assert run(changed(recipe, settings), folder, upto=stage).stages == [stage]
    one, two = read_manifest(finished(name) / stage), read_manifest(folder / stage)
    assert one is not None
    assert two is not None
    assert one.fingerprint == two.fingerprint
    same = {path: file for path, file in two.files.items() if path not in two.records and path != "README.md"}
    assert {path: one.files[path] for path in same} == same


@pytest.fixture(scope="module")
def finished(beir, tmp_path_factory):
    """A finished run of a recipe, made once."""
    made: dict[str, Any] = {}

    def of(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("finished") / name
            run(recipe_of(name, beir), made[name])
        return made[name]

    return of


# -- a change, and exactly what it repeats

REPORTED = {"evaluation"}
FUSED = {"hybrid", *REPORTED}
SEARCHED = {"runs", *FUSED}
CHOSEN = {"choice-runs", "choice"}
EXPORTED = {"encoder", "index"}
FROM_RETRIEVER_2 = {"retriever-2", "index-retriever-2", *CHOSEN, *EXPORTED, *SEARCHED}
FROM_RETRIEVER_1 = {"retriever-1", "index-retriever-1", "negatives-retriever-2", *FROM_RETRIEVER_2}
FINE_TUNED = {"labels-only", "index-labels-only", *FROM_RETRIEVER_1}
FROM_PRETRAINED = {"pretrained", *FROM_RETRIEVER_1}
CHANGES = {
    "a test judgement": ({"collection"} | REPORTED, "qrels/test.tsv", "q16\td36\t2", "q16\td36\t3"),
    # the grade changes no RR@10, so the weight and the choice stay, and with them the fused ranking and the export
    "a dev judgement": ({"collection", "bm25", "choice", "hybrid"}, "qrels/dev.tsv", "q12\td32\t2", "q12\td32\t1"),
    "a training judgement": (
        {"collection", "negatives-retriever-1"} | FINE_TUNED,
        "qrels/train.tsv",
        "q3\td23\t2",
        "q3\td24\t2",
    ),
    "a test query": ({"collection"} | SEARCHED, "queries.jsonl", "what is topic17 about", "tell me of topic17"),
    "a dev query": (
        {"collection", "bm25"} | CHOSEN | {"dev-runs"} | FUSED,
        "queries.jsonl",
        "what is topic12 about",
        "tell me of topic12",
    ),
    "query_prompt": ({"query-tokens", "index-initial", "dev-runs"} | FINE_TUNED, "encoder.query_prompt='ask: '"),
    "evaluation.depth": (SEARCHED | CHOSEN | {"dev-runs"}, "evaluation.depth=10"),
    "evaluation.measures": (FUSED | {"bm25", "choice"}, "evaluation.measures=['RR@5']"),
    "evaluation.bm25": ({"runs", *REPORTED}, "evaluation.bm25=false"),
    "BM25's b": ({"bm25", "dev-runs", "runs", "hybrid", "evaluation"}, "evaluation.bm25_b=0.9"),
    # the first of equal values stays
    "values of BM25's b": ({"bm25"}, "evaluation.bm25_b=[0.75, 0.9]"),
    "evaluation.hybrid": (REPORTED, "evaluation.hybrid=false"),
    "evaluation.start": (SEARCHED | CHOSEN | EXPORTED, "evaluation.start=false"),
    "evaluation.export": (EXPORTED | {"dev-runs"} | FUSED, "evaluation.export=last"),
    "a masker's setting": (FROM_PRETRAINED, "pretrain.decoders.main.masker.sigma=0.5"),
    "a signal's setting": ({"signal-importance"} | FROM_PRETRAINED, "pretrain.decoders.main.masker.window=3"),
    "the rate of fine-tuning": (FINE_TUNED, "finetune.learning_rate=5e-4"),
    "the last round": (FROM_RETRIEVER_2, "finetune.rounds.1.learning_rate=5e-4"),
    "mined negatives": ({"negatives-retriever-2"} | FROM_RETRIEVER_2, "finetune.rounds.1.miners.0.depth=7"),
    "pooling": (FINE_TUNED | {"pretrained", "index-initial", "dev-runs"}, "encoder.pooling=cls"),
    "token weights": ({"initial", "pretrained", "index-initial", "dev-runs"} | FINE_TUNED, "encoder.pooling=weighted"),
    "how often is logged": (set(), "pretrain.logging_steps=3"),
    "how often is probed": (set(), "pretrain.probe.every=4"),
    "validation that is off": (set(), "finetune.validation.patience=3"),
    "the name": (set(), "name=another"),
}
# The first round of texts has no mined negatives.
FROM_PSEUDO_QUERIES = {"pseudo-query-tokens"} | FINE_TUNED
CHANGES_OF_TEXTS = {
    "a training judgement": ({"collection"}, "qrels/train.tsv", "q3\td23\t2", "q3\td24\t2"),
    "a training query": ({"collection"}, "queries.jsonl", "what is topic3 about", "tell me of topic3"),
    "a test judgement": ({"collection"} | REPORTED, "qrels/test.tsv", "q16\td36\t2", "q16\td36\t3"),
    "the sources": ({"pseudo-queries"} | FROM_PSEUDO_QUERIES, "pseudo_queries.sources=['crops']"),
    "the pipeline's name": (set(), "finetune.pipeline=another"),
}
ALL_CHANGES = [("pmi", change) for change in CHANGES] + [("texts", change) for change in CHANGES_OF_TEXTS]


def made_from(recipe, folder):
    """All that each stage of a finished run is made from, by the stage's name: settings, files outside, and inputs."""
    stages = plan(recipe, PARTS.registry).stages
    made = {stage.name: read_manifest(folder / stage.name) for stage in stages}
    return {
        stage.name: (
            stage.settings,
            dict(stage.sources),
            {name: made[part.stage].content(part.path) for name, part in stage.inputs.items() if not part.observed},
        )
        for stage in stages
    }


@pytest.fixture
def edit(beir):
    """Replace words in a file of the collection, for one test."""
    files = {}

    def replace(name, words, others):
        path = beir / name
        text = path.read_text()
        files[path] = text, path.stat()
        assert words in text
        path.write_text(text.replace(words, others))

    yield replace
    for path, (text, stat) in files.items():
        path.write_text(text)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize(("name", "change"), ALL_CHANGES)
def test_a_change_repeats_exactly_these_stages(name, change, beir, tmp_path, finished, edit):
    expected, *how = (CHANGES if name == "pmi" else CHANGES_OF_TEXTS)[change]
    former, again = recipe_of(name, beir), tmp_path / "run"
    shutil.copytree(finished(name), again)
    before = made_from(former, again)
    if len(how) > 1:
        edit(*how)
        recipe = former
    else:
        recipe = recipe_of(name, beir, *how)
    findings = {finding.stage.name: finding for finding in survey(plan(recipe, PARTS.registry).stages, again)}
    begun = run(recipe, again)
    # A probe, a choice or a weight may come out as before, as a processor rounds; then what is made from it is kept.
    after = made_from(recipe, again)
    assert set(begun.stages) == {stage for stage in expected if before.get(stage) != after.get(stage)}
    assert expected <= {name for name, finding in findings.items() if finding.state is State.AGAIN}
    assert all(begun.reasons[name].startswith("again because ") for name in begun.stages)
    assert run(recipe, again).stages == []


def test_the_reasons_are_settings_and_inputs_by_name(beir, tmp_path, finished):
    again = tmp_path / "run"
    shutil.copytree(finished("pmi"), again)
    begun = run(recipe_of("pmi", beir, "encoder.pooling=cls"), again)
    assert begun.reasons["pretrained"].endswith(" encoder.pooling: mean -> cls")
    assert "pretrained changed" in begun.reasons["retriever-1"]
    assert begun.reasons["evaluation"].endswith(" runs changed; hybrid changed; choice/chosen.txt changed")


def test_types_of_settings_are_all_known_to_this_test():
    """A setting of a new type must be varied too."""
    for spec in PARTS.registry:
        for hint in get_type_hints(spec.config, include_extras=True).values():
            origin = get_args(hint)[0] if get_origin(hint) is Annotated else hint
            assert any(word in str(origin) for word in ("str", "int", "float", "bool", "tuple", "Choice")), (
                spec.name,
                hint,
            )
