"""Pipelines: how a recipe is fine-tuned, apart from how it is pre-trained; and the plans they make."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import asdict, evolve, fields

from drkit.builtin import drkit_recipes
from drkit.core.registry import NamedFile, NameTable, installed
from drkit.errors import DrkitError, ProblemsError, UnknownNameError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose, quickened
from drkit.recipe.toml import assign, plain, read_recipe, recipe_from_table, recipe_table, write_recipe
from drkit.recipe.training import Training
from drkit.runs.plan import plan
from drkit.runs.stage import StageOutput
from drkit.runs.stages.texts import PASSAGES, split_of
from drkit.train.batches import StepSize
from drkit_report.comparison import learning_curve
from tests.refusals import refused, says

PARTS = installed()
REGISTRY = PARTS.registry
SIZES = ("100", "300", "1k", "3k", "10k", "all")
PIPELINES = ("ance", "dpr", "gpl", "iterative", "low-resource", "texts", "three-stage", "two-stage", "words")


def rounds(recipe):
    return [(r.name, tuple(m.use for m in r.miners), r.start, plain(r)["teacher"]) for r in recipe.finetune.rounds]


def stages(recipe):
    return {stage.name: stage for stage in plan(recipe, REGISTRY).stages}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"miners": ("run-file:no/such.trec",)}, "run file 'no/such.trec' does not exist"),
        ({"miners": ("random", "has-answer:no/such.jsonl")}, r"has-answer of .*: no/such\.jsonl "),
        ({"settings": ("finetune.validation.measure=RR@ten",)}, "unknown measure 'RR@ten'"),
        ({"settings": ("evaluation.measures=['RR@10', 'nDGC@10']",)}, "unknown measure 'nDGC@10'"),
        ({"settings": ("evaluation.measures=['alpha_nDCG@20']",)}, "alpha_nDCG@20.* (engine|subtopics)"),
    ],
)
def test_what_would_end_a_run_after_hours_is_refused_before(changed, said):
    with pytest.raises(DrkitError, match=said):
        plan(
            compose(ComposeRequest(masker="uniform", decoder="mlm", pipeline="two-stage", **changed), PARTS),
            REGISTRY,
        )


def test_what_is_there():
    assert tuple(sorted(PARTS.pipelines)) == PIPELINES
    with pytest.raises(UnknownNameError) as caught:
        compose(ComposeRequest(pipeline="three-stages"), PARTS)
    assert (caught.value.kind, caught.value.name) == ("pipeline", "three-stages")
    assert {*caught.value.known} >= {*PIPELINES}


@pytest.mark.parametrize("encoder", [None, "some/encoder"])
@pytest.mark.parametrize(
    ("pipeline", "paper"),
    [
        (name, paper)
        for turn, name in enumerate(PIPELINES)
        for paper in (None, ("simlm", "cpdae", "retromae")[turn % 3])
    ],
)
def test_every_pipeline_follows_any_pre_training(pipeline, encoder, paper):
    recipe = compose(ComposeRequest(paper=paper, pipeline=pipeline, encoder=encoder), PARTS)
    check(recipe, REGISTRY)
    assert recipe_from_table(recipe_table(recipe), REGISTRY) == recipe
    # From scratch, three pipelines have word vectors, but not under a paper.
    own = encoder is None and pipeline in ("low-resource", "texts", "words")
    for other in ((paper and "retromae"),) if own else (None, "retromae"):
        another = compose(ComposeRequest(paper=other, pipeline=pipeline, encoder=encoder), PARTS)
        assert recipe.finetune == another.finetune
        assert (recipe.reranker, recipe.pseudo_queries) == (another.reranker, another.pseudo_queries)


def test_a_paper_brings_its_own_pipeline_and_another_one_swaps_the_second_half():
    own = compose(ComposeRequest(paper="simlm", scale="paper"), PARTS)
    assert own.reranker is not None
    assert [r.name for r in own.finetune.rounds] == ["retriever-1", "retriever-2", "retriever-distilled"]
    assert len(own.finetune.loss.config.directions) == 4
    swapped = compose(ComposeRequest(paper="simlm", scale="paper", pipeline="two-stage"), PARTS)
    assert swapped.pretrain == own.pretrain
    assert swapped.reranker is None
    assert rounds(swapped) == [
        ("retriever-1", ("bm25",), "pretrained", ""),
        ("retriever-2", ("dense",), "pretrained", ""),
    ]
    assert len(swapped.finetune.loss.config.directions) == 1


def test_a_paper_leaves_out_a_reranker_made_from_scratch_unless_it_is_asked_for():
    for paper in ("simlm", "cdmae"):
        small = compose(ComposeRequest(paper=paper), PARTS)
        assert small.reranker is None
        assert [one.name for one in small.finetune.rounds] == ["retriever-1", "retriever-2"]
        for whole in (
            {"pipeline": "three-stage"},
            {"pipeline": "three-stage", "settings": ("reranker.pretrained=some/model",)},
            {"pipeline": "three-stage", "scale": "quick"},
            {"scale": "paper"},
            {"encoder": "some/encoder"},
        ):
            recipe = compose(ComposeRequest(paper=paper, **whole), PARTS)
            assert recipe.reranker
            assert recipe.finetune.rounds[-1].teacher.use == "reranker"


def test_a_reranker_that_no_round_learns_from_is_said_to_only_rerank():
    said = "--set reranker=none leaves it out"
    whole = ComposeRequest(paper="cdmae", pipeline="three-stage", scale="quick")
    own = evolve(whole, settings=('finetune.rounds=[{name="own", miners=["bm25"]}]',))
    for request, noted in ((own, True), (whole, False)):
        planned = plan(compose(request, PARTS), REGISTRY)
        assert "reranker" in [stage.name for stage in planned.stages]
        assert any(said in note for note in planned.notes) == noted


@pytest.mark.parametrize("recipe", sorted({*drkit_recipes()} - {"low-resource", "improve"}))
def test_whoever_starts_from_an_encoder_trains_on_64_queries_a_step(recipe):
    """As the papers do: tests/core/test_paper_scale.py has theirs."""
    finetune = compose(ComposeRequest(paper=recipe, encoder="some/encoder"), PARTS).finetune
    assert {finetune.for_round(r).batch_size for r in finetune.rounds} == {64}


def test_a_smoke_run_lets_the_teacher_score_what_is_learned_from():
    taught = compose(ComposeRequest(pipeline="three-stage", scale="quick"), PARTS).finetune.rounds[-1]
    assert taught.miners[0].config.depth == taught.negatives == 3
    assert compose(ComposeRequest(pipeline="three-stage"), PARTS).finetune.rounds[-1].miners[0].config.depth == 12


def test_the_plan_of_three_stages():
    made = stages(compose(ComposeRequest(paper="cdmae", pipeline="three-stage"), PARTS))
    order = list(made)
    expected = ["retriever-1", "retriever-2", "reranker", "teacher-retriever-distilled", "retriever-distilled"]
    assert [name for name in order if name in expected] == expected
    read = {"passages": PASSAGES, "train": split_of("train"), "negatives": StageOutput("negatives-reranker")}
    assert made["reranker"].inputs == {"start": StageOutput("retriever-2"), **read}
    own = stages(compose(ComposeRequest(pipeline="three-stage", settings=("reranker.start=pretrained",)), PARTS))
    assert own["reranker"].inputs == {"start": StageOutput("pretrained"), **read}
    given = stages(compose(ComposeRequest(pipeline="three-stage", settings=("reranker.pretrained=some/model",)), PARTS))
    assert given["reranker"].inputs == read, "it waits for no retriever"
    assert made["negatives-reranker"].needs == ("collection",)
    assert {"retriever-2", "index-retriever-2"} <= set(made["negatives-retriever-distilled"].needs)
    assert {"reranker", "negatives-retriever-distilled"} <= set(made["teacher-retriever-distilled"].needs)
    assert made["retriever-distilled"].inputs["start"] == StageOutput("pretrained")
    retrievers = ("initial", "labels-only", "retriever-1", "retriever-2", "retriever-distilled")
    assert made["choice"].settings.candidates == retrievers, "a re-ranker is no encoder"
    chosen = {"choice": StageOutput("choice", "chosen.txt")}
    assert made["encoder"].inputs == {**{f"checkpoint/{name}": StageOutput(name) for name in retrievers}, **chosen}
    assert made["index"].inputs == {**{f"index/{name}": StageOutput(f"index-{name}") for name in retrievers}, **chosen}
    assert made["evaluation"].settings.systems == (
        "bm25",
        "initial",
        "labels-only",
        "retriever-1",
        "retriever-2",
        "reranker",
        "retriever-distilled",
        "hybrid",
    )
    assert made["hybrid"].inputs == {
        "bm25": StageOutput("runs", "bm25.arrow"),
        **{f"retriever/{name}": StageOutput("runs", f"{name}.arrow") for name in retrievers},
        **chosen,
        **{f"dev-retriever/{name}": StageOutput("choice-runs", f"{name}.arrow") for name in retrievers},
        "dev-bm25": StageOutput("dev-runs", "bm25.arrow"),
        "dev": split_of("dev"),
    }
    assert made["runs"].settings.reranked == {"reranker": "retriever-2"}


def test_the_papers_reranker_and_its_pupil_draw_from_one_list():
    made = stages(compose(ComposeRequest(pipeline="three-stage", encoder="some/encoder"), PARTS))
    assert made["teacher-retriever-distilled"].inputs["negatives"] == StageOutput("negatives-reranker")
    assert {"retriever-2", "index-retriever-2"} <= set(made["negatives-reranker"].needs)


def test_draws_of_queries_are_trained_apart_and_averaged():
    made = stages(compose(ComposeRequest(pipeline="low-resource", paper="retromae"), PARTS))
    names = [f"retriever-100-draw-{draw}" for draw in (1, 2, 3)]
    assert set(names) <= set(made)
    assert [made[name].settings.draw for name in names] == [0, 1, 2]
    assert list(made["evaluation"].settings.draws["retriever-100"]) == names
    assert {made[name].inputs["negatives"] for name in names} == {StageOutput("negatives-scratch-100")}
    # The same chain on the same collection is mined once, whatever the number of queries.
    assert [name for name in made if name.startswith("negatives-")] == ["negatives-scratch-100"]


def test_the_low_resource_pipeline_is_a_learning_curve():
    made = stages(compose(ComposeRequest(pipeline="low-resource", paper="retromae"), PARTS))
    curve = learning_curve(compose(ComposeRequest(pipeline="low-resource", paper="retromae"), PARTS))
    sizes = SIZES
    assert {name for name, line in curve.items() if line == "pre-trained"} == {
        "pretrained",
        *(f"retriever-{size}" for size in sizes),
    }
    for size in sizes:
        draws = [""] if size == "all" else [f"-draw-{draw}" for draw in (1, 2, 3)]
        for name in (f"{kind}-{size}{draw}" for kind in ("scratch", "retriever") for draw in draws):
            assert made[name].inputs["start"] == StageOutput("initial" if name.startswith("scratch") else "pretrained")
        with_and_without = [made[f"{kind}-{size}{draws[0]}"].settings for kind in ("scratch", "retriever")]
        assert with_and_without[0] == with_and_without[1]
    assert {*curve} <= {*made["evaluation"].settings.systems, "as-it-is"}
    assert learning_curve(compose(ComposeRequest(), PARTS)) == {}


def test_from_scratch_the_learning_curve_is_that_of_the_word_vectors():
    recipe = compose(ComposeRequest(pipeline="low-resource"), PARTS)
    words = compose(ComposeRequest(pipeline="words"), PARTS)
    assert evolve(recipe.encoder, passage_length=256) == words.encoder
    assert recipe.pseudo_queries == words.pseudo_queries
    settings = [one.finetune.for_round(one.finetune.rounds[0]) for one in (recipe, words)]
    assert evolve(settings[0], rounds=(), pipeline="words", baselines=("labels-only",)) == evolve(
        settings[1], rounds=()
    )
    made = stages(recipe)
    curve = learning_curve(recipe)
    with_crops = {name for name, line in curve.items() if line != "without pre-training"}
    assert with_crops == {"unsupervised", *(f"retriever-{size}" for size in SIZES)}
    for size in SIZES:
        draws = [""] if size == "all" else [f"-draw-{draw}" for draw in (1, 2, 3)]
        for kind, start in (("scratch", "initial"), ("retriever", "unsupervised")):
            assert {made[f"{kind}-{size}{draw}"].inputs["start"] for draw in draws} == {StageOutput(start)}
    assert {*curve} <= {*made["evaluation"].settings.systems, "as-it-is"}


def test_texts_alone_take_word_vectors_unless_a_paper_brings_its_encoder():
    words = compose(ComposeRequest(pipeline="words"), PARTS)
    alone = compose(ComposeRequest(pipeline="texts"), PARTS)
    assert alone.encoder == words.encoder
    assert alone.finetune.training_only() == words.finetune.training_only()
    assert [[miner.use for miner in one.miners] for one in alone.finetune.rounds] == [[], ["dense", "margin"]]
    assert compose(ComposeRequest(pipeline="texts", paper="retromae"), PARTS).encoder.layers == 1
    with_encoder = compose(ComposeRequest(pipeline="texts", encoder="some/encoder"), PARTS)
    assert with_encoder.finetune.learning_rate == 2e-5


def test_a_teacher_reads_the_queries_that_its_pupil_is_trained_on():
    made = stages(compose(ComposeRequest(pipeline="three-stage"), PARTS))
    assert made["teacher-retriever-distilled"].settings.queries == 0, "all of them"
    some = ComposeRequest(
        pipeline="three-stage", settings=("finetune.rounds.2.queries=50", "finetune.rounds.2.draws=2")
    )
    made = stages(compose(some, PARTS))
    pupil, teacher = (made[name].settings for name in ("retriever-distilled-draw-2", "teacher-retriever-distilled"))
    assert (teacher.queries, teacher.draws, teacher.seed) == (pupil.queries, 2, pupil.seed)
    assert (teacher.queries, pupil.draws) == (50, 2)


def test_a_querys_own_passage_is_a_negative_in_no_stage_where_it_is_no_hit():
    for pipeline, trained in (("two-stage", ("retriever-1",)), ("ance", ("retriever-2",))):
        plain, other = (
            stages(compose(ComposeRequest(pipeline=pipeline, settings=settings), PARTS))
            for settings in ((), ("evaluation.exclude_self=true",))
        )
        mined = [name for name in plain if name.startswith("negatives-")]
        for name in (*mined, *trained):
            assert plain[name].settings.exclude_self is False
            assert other[name].settings.exclude_self is True


ABLATIONS = {
    "cpdae": ("cpdae-r", "cpdae-no-cl", "cpdae-idf"),
    "simlm": ("simlm-mlm", "simlm-rtd", "simlm-autoencoder", "mlm-only"),
    "retromae": ("retromae-basic", "dupmae"),
    "cocondenser": ("cocondenser-qac",),
    "cotmae": ("cotmae-qac", "cotmae-qac-ar"),
}


@pytest.mark.parametrize("encoder", [None, "some/encoder"])
@pytest.mark.parametrize("paper", ABLATIONS)
def test_an_ablation_is_fine_tuned_as_what_it_is_held_against(paper, encoder):
    main = compose(ComposeRequest(paper=paper, encoder=encoder), PARTS)
    for name in ABLATIONS[paper]:
        other = compose(ComposeRequest(paper=name, encoder=encoder), PARTS)
        assert (other.finetune, other.reranker) == (main.finetune, main.reranker)
        assert other.pretrain != main.pretrain
        assert other.pretrain.max_steps == main.pretrain.max_steps


@pytest.mark.parametrize(("spans", "queries"), [("cotmae", "cotmae-qac"), ("cocondenser", "cocondenser-qac")])
@pytest.mark.parametrize("scale", ["paper", "small"])
def test_query_as_context_replaces_the_context_alone(spans, queries, scale):
    """Query-as-context, sections 3.1 and 4.1: both cut documents into passages, and read the same."""
    recipes = [compose(ComposeRequest(paper=name, scale=scale, name="x"), PARTS) for name in (spans, queries)]
    plans = [stages(recipe) for recipe in recipes]
    assert len({str(made["pretrained"].inputs["spans"]) for made in plans}) == 1
    assert plans[0]["spans"] == plans[1]["spans"]
    side = "decoders.main" if spans == "cotmae" else "encoder"
    assert plans[1]["queries"].inputs["spans"] == StageOutput("spans")
    span, mixed = (recipe_table(recipe) for recipe in recipes)
    assign(span, f"pretrain.{side}.context={{use='mixed', share=1.0}}")
    assert recipe_from_table(span, REGISTRY) == recipe_from_table(mixed, REGISTRY)


def installed_with(folder, **texts):
    """What is installed, and recipes of these names and texts."""
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    mine = [NamedFile(name, folder / f"{name}.toml") for name in texts]
    return evolve(PARTS, recipes=NameTable("recipe", [*PARTS.recipes.items(), *mine]))


def test_a_copy_of_a_recipe_is_a_recipe(tmp_path):
    shown = PARTS.recipes.get("retromae").text(small=True).replace("ratio = 0.3", "ratio = 0.2")
    own, retromae = (
        compose(ComposeRequest(paper=name), installed_with(tmp_path, mine=shown)) for name in ("mine", "retromae")
    )
    assert evolve(own, name="x", pretrain=None) == evolve(retromae, name="x", pretrain=None)
    assert own.pretrain.encoder.masker.config.ratio == 0.2
    assert read_recipe(tmp_path / "mine.toml", REGISTRY).pretrain == own.pretrain


def test_what_a_round_sets_is_its_own():
    settings = ("finetune.rounds.1.learning_rate=0.5", "finetune.learning_rate=0.25")
    wanted = ComposeRequest(pipeline="two-stage", settings=settings)
    recipe = compose(wanted, PARTS)
    assert [recipe.finetune.for_round(r).learning_rate for r in recipe.finetune.rounds] == [0.25, 0.5]
    made = stages(recipe)
    assert made["retriever-1"].settings.training.learning_rate == 0.25
    assert made["retriever-2"].settings.training.learning_rate == 0.5


def test_a_round_may_have_every_setting_of_a_training_of_its_own(tmp_path):
    own = {
        **{"learning_rate": 0.5, "max_steps": 7, "num_train_epochs": 2.5, "per_device_train_batch_size": 3},
        **{"batch_size": 12, "gradient_accumulation_steps": 1, "gradient_cache_chunk": 2, "weight_decay": 0.25},
        **{"max_grad_norm": 0.5, "lr_scheduler_type": "constant", "logging_steps": 6, "save_steps": 8},
        **{"bf16": True, "arguments": {"adam_beta2": 0.5}, "warmup_steps": 9.0},
        "lora": {"rank": 4, "alpha": 8.0, "dropout": 0.1, "targets": ()},
    }
    assert {*own} == {a.name for a in fields(Training)}
    table = recipe_table(compose(ComposeRequest(pipeline="two-stage"), PARTS))
    table["finetune"]["rounds"][1] |= own
    recipe = recipe_from_table(table, REGISTRY)
    whole = recipe.finetune
    first, second = (whole.for_round(one) for one in whole.rounds)
    assert first == whole
    assert asdict(second.training_only()) == own
    write_recipe(recipe, tmp_path / "r.toml")
    assert read_recipe(tmp_path / "r.toml", REGISTRY) == recipe
    assert stages(recipe)["retriever-2"].settings.training == second.training_only()
    for wrong in ("warmup_steps=-1", "arguments={output_dir='x'}", "bf16=1"):
        with refused(setting=f"finetune.rounds[1].{wrong.partition('=')[0]}", error=ProblemsError):
            compose(ComposeRequest(pipeline="two-stage", settings=(f"finetune.rounds.1.{wrong}",)), PARTS)


def test_a_smoke_run_leaves_no_round_a_schedule_of_its_own(tmp_path):
    own = "negatives = 63\ngradient_accumulation_steps = 8\nwarmup_steps = 1000.0\n"
    parts = installed_with(tmp_path, mine=PARTS.recipes.get("cdmae").text().replace("negatives = 63\n", own, 1))
    distilled, quick = (
        compose(ComposeRequest(paper="mine", scale=scale), parts).finetune.rounds[-1] for scale in ("paper", "quick")
    )
    assert (distilled.gradient_accumulation_steps, distilled.warmup_steps) == (8, 1000)
    assert (quick.gradient_accumulation_steps, quick.warmup_steps) == (None, None)


@pytest.mark.parametrize("encoder", [None, "some/encoder"])
def test_a_smoke_run_of_a_complete_recipe_has_small_steps_and_downloads_nothing(encoder):
    quick = quickened(compose(ComposeRequest(paper="simlm", encoder=encoder, scale="paper"), PARTS), REGISTRY)
    trainings = [quick.pretrain, *(quick.finetune.for_round(one) for one in quick.finetune.rounds), quick.reranker]
    assert {StepSize.of(one, compares=True).examples for one in trainings} <= {2, 8, 32}
    check(quick, REGISTRY)
    if encoder:
        assert quick.reranker.pretrained is None
        assert quick.pretrain.encoder.masker.config.model == ""


def test_the_first_round_mines_with_the_encoder_that_the_run_starts_from():
    dense = ComposeRequest(encoder="some/encoder", miners=("dense",), settings=("pretrain=none",))
    recipe = compose(dense, PARTS)
    check(recipe, REGISTRY)
    made = stages(recipe)
    # The encoder as it is reads texts alike: its index serves mining and evaluation.
    assert made["negatives-retriever-1"].inputs["encoder"] == StageOutput("as-it-is")
    assert made["negatives-retriever-1"].inputs["index"] == StageOutput("index-as-it-is")
    assert "index-initial" not in made
    unseen = stages(compose(evolve(dense, settings=(*dense.settings, "evaluation.start=false")), PARTS))
    assert unseen["negatives-retriever-1"].inputs["encoder"] == StageOutput("initial")
    assert unseen["negatives-retriever-1"].inputs["index"] == StageOutput("index-initial")
    for request in (evolve(dense, settings=()), evolve(dense, encoder=None)):
        with refused("'dense'", "--encoder", setting="finetune.rounds.0.miners.0", error=ProblemsError):
            check(compose(request, PARTS), REGISTRY)


@pytest.mark.parametrize(
    ("settings", "setting", "named"),
    [
        (("finetune.rounds.0.teacher=reranker",), "0.teacher", "[reranker]"),
        (("finetune.rounds.1.loss=kl-distillation",), "1", "column 'teacher'"),
        (("finetune.rounds.1.loss={use='pairwise', similarity='dot'}",), "1.loss", "(cosine, dot)"),
        (("finetune.rounds.0.miners=['margin']",), "0.miners.0", "'margin' only filters"),
        (("finetune.rounds.0.miners=['bm25', 'random']",), "0.miners.1", "'random' "),
        (("finetune.rounds.0.miners=['bm25', 'cross-encoder-filter']",), "0.miners.1", "`model`"),
        (("finetune.rounds.0.teacher=given",), "0", 'miners = [{use = "given"}] and pairs = "judged"'),
        (("finetune.rounds.1.teacher=some/model", "finetune.rounds.1.miners=['refresh']"), "1.miners", "'refresh'"),
        (("finetune.rounds.1.start=retriever-2",), "1.start", "'retriever-2'"),
        (("finetune.rounds.1.start=retreiver-1",), "1.start", "'retreiver-1'"),
    ],
)
def test_rounds_that_cannot_work_are_refused_with_the_reason(settings, setting, named):
    with refused(named, setting=f"finetune.rounds.{setting}", error=ProblemsError):
        check(compose(ComposeRequest(pipeline="two-stage", settings=settings), PARTS), REGISTRY)


def test_a_reranker_without_rounds_before_it_is_refused():
    wanted = ComposeRequest(pipeline="three-stage", settings=("finetune.rounds.0.teacher=reranker",))
    with refused("first round", setting="finetune.rounds.0.teacher", error=ProblemsError):
        check(compose(wanted, PARTS), REGISTRY)


def test_another_run_file_makes_the_mining_anew(tmp_path: Path):
    file = tmp_path / "a.trec"
    file.write_text("q Q0 d 1 1.0 x\n")
    wanted = ComposeRequest(miners=(f"run-file:{file}",))
    first = stages(compose(wanted, PARTS))["negatives-retriever-1"]
    file.write_text("q Q0 d 1 1.0 x\nq Q0 e 2 0.5 x\n")
    again = stages(compose(wanted, PARTS))["negatives-retriever-1"]
    contents = {"passages": "", "train": ""}
    assert first.fingerprint(contents) != again.fingerprint(contents)
    file.write_bytes(b"")
    with refused(f"{str(file)!r} is empty", "retriever-1"):
        stages(compose(wanted, PARTS))


def test_validation_without_dev_queries_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d", "text": "a"}\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "train", "text": "a"}\n{"_id": "test", "text": "b"}\n')
    for split in ("train", "test"):
        (tmp_path / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{split}\td\t1\n")
    wanted = ComposeRequest(collection=f"beir:{tmp_path}", settings=("finetune.validation.every=10",))
    with pytest.raises(DrkitError, match="splits: train, test"):
        plan(compose(wanted, PARTS), REGISTRY)


def test_a_round_is_validated_where_the_recipe_says_so_and_else_not():
    off, on = (
        stages(compose(ComposeRequest(settings=(f"finetune.validation.every={every}",)), PARTS))["retriever-1"]
        for every in (0, 10)
    )
    assert off.settings.validation is None
    assert on.settings.validation.every == 10
    assert ("dev" in off.inputs, on.inputs["dev"]) == (False, split_of("dev"))


def test_a_pipeline_alone():
    """`pretrain=none`: the rounds start from the encoder as it is."""
    recipe = compose(ComposeRequest(pipeline="two-stage", settings=("pretrain=none",)), PARTS)
    check(recipe, REGISTRY)
    made = stages(recipe)
    assert "pretrained" not in made
    assert {made[name].inputs["start"] for name in ("retriever-1", "retriever-2")} == {StageOutput("initial")}
    assert "labels-only" not in made


def test_each_named_part_is_compared_with_the_plainest_of_its_kind():
    recipe = compose(ComposeRequest(masker="pmi", decoder="enhanced"), PARTS)
    made = stages(recipe)
    assert recipe.finetune.baselines == ("labels-only", "masker=uniform", "decoder=mlm")
    own = made["pretrained"]
    for name in ("masker=uniform", "decoder=mlm"):
        assert made[name].inputs == {**made["retriever-1"].inputs, "start": StageOutput(f"pretrained-{name}")}
        assert made[name].settings == made["retriever-1"].settings
        training, rates = made[f"pretrained-{name}"].settings.pretrain.training_only(), {"decoder=mlm": 3e-4}
        expected = own.settings.pretrain.training_only()
        assert training == evolve(expected, learning_rate=rates.get(name, expected.learning_rate))
    masked, decoded = (
        made[f"pretrained-{name}"].settings.pretrain.decoders["main"] for name in ("masker=uniform", "decoder=mlm")
    )
    task = own.settings.pretrain.decoders["main"]
    assert (masked.masker.use, masked.masker.config.ratio) == ("uniform", task.masker.config.ratio)
    assert evolve(masked, masker=task.masker) == task
    assert evolve(decoded, decoder=task.decoder, losses=task.losses) == task
    predicted = decoded.masker.config.ratio * decoded.losses["mlm"].config.targets
    assert predicted == task.decoder.config.target_share, "as many predictions as the part that it replaces"
    read = {name: {*made[name].inputs} for name in ("pretrained-masker=uniform", "pretrained-decoder=mlm")}
    assert [any("signals" in one for one in inputs) for inputs in read.values()] == [False, True], "PMI is the masker's"
    settings = made["evaluation"].settings
    assert settings.composed == "retriever-1"
    assert settings.replaced == {"masker=uniform": "pmi", "decoder=mlm": "enhanced"}


@pytest.mark.parametrize(
    ("chosen", "rows"),
    [
        (ComposeRequest(), ["labels-only", "masker=uniform", "decoder=mlm"]),
        (ComposeRequest(masker="pmi"), ["labels-only", "masker=uniform"]),
        (ComposeRequest(masker="uniform"), ["labels-only"]),
        (ComposeRequest(masker="uniform", decoder="enhanced"), ["labels-only", "decoder=mlm"]),
        (ComposeRequest(decoder="bow"), ["labels-only", "decoder=mlm"]),
        (ComposeRequest(decoder="none"), ["labels-only"]),
        (ComposeRequest(context="span"), ["labels-only", "context=self"]),
        (ComposeRequest(encoder_masker="pmi"), ["labels-only", "encoder-masker=uniform"]),
        (ComposeRequest(paper="retromae", masker="pmi", scale="small"), ["labels-only", "masker=uniform"]),
        (ComposeRequest(paper="retromae", masker="pmi", scale="paper"), ["labels-only"]),
        (ComposeRequest(settings=("finetune.baselines=['decoder=none']",)), ["decoder=none"]),
        (ComposeRequest(masker="query-as-context:pmi"), ["labels-only", "masker=uniform", "context=self"]),
    ],
)
def test_the_rows_answer_for_the_parts_that_were_named(chosen, rows):
    found = systems(chosen)
    assert [name for name in found if name == "labels-only" or "=" in name] == rows


def test_a_baseline_that_this_run_cannot_make_has_no_row_and_a_note():
    wanted = ComposeRequest(settings=("finetune.baselines=['context=span']",))
    found = plan(compose(wanted, PARTS), REGISTRY)
    assert any(says(note, "no row context=span", "spans") for note in found.notes)
    assert "context=span" not in {stage.name for stage in found.stages}


@pytest.mark.parametrize(
    ("baselines", "said"),
    [
        (["masked-lm"], ("labels-only or SLOT=PART", "masker, encoder-masker, context, decoder", "'masked-lm'")),
        (["pooling=mean"], ("SLOT=PART", "'pooling=mean'")),
        (["masker=unifrom"], ("masker=unifrom", "did you mean 'uniform'?", "finetune.baselines")),
        (["labels-only", "labels-only"], ("each baseline once",)),
    ],
)
def test_baselines_that_do_not_exist_are_refused(baselines, said):
    with pytest.raises(DrkitError) as refused:
        check(compose(ComposeRequest(settings=(f"finetune.baselines={baselines}",)), PARTS), REGISTRY)
    assert says(str(refused.value), *said)


def test_the_words_have_no_pre_training_that_parts_could_be_of():
    with pytest.raises(DrkitError, match="--masker, --decoder"):
        compose(ComposeRequest(pipeline="words", masker="pmi", decoder="enhanced"), PARTS)


def systems(request):
    return stages(compose(request, PARTS))["evaluation"].settings.systems


def test_the_table_begins_with_the_encoder_that_the_run_starts_from():
    rounds = ("labels-only", "retriever-1", "retriever-2")
    named = ("labels-only", "masker=uniform", "decoder=mlm", "retriever-1", "hybrid")
    assert systems(ComposeRequest()) == ("bm25", *named)
    assert systems(ComposeRequest(settings=("evaluation.start=true",))) == ("bm25", "initial", *named)
    assert systems(ComposeRequest(pipeline="words")) == ("bm25", "initial", "unsupervised", *rounds[:-1], "hybrid")
    assert systems(ComposeRequest(pipeline="two-stage")) == ("bm25", *rounds, "hybrid")
    given = ComposeRequest(encoder="some/encoder")
    assert systems(given) == ("bm25", "as-it-is", "labels-only", "retriever-1", "retriever-2", "hybrid")
    assert "initial" in systems(ComposeRequest(scale="paper"))
    assert "as-it-is" not in systems(evolve(given, settings=("evaluation.start=false",)))


@pytest.mark.parametrize("setting", ["finetune=none", "finetune.rounds=[]"])
@pytest.mark.parametrize("pipeline", [None, "two-stage"])
def test_a_run_without_rounds_evaluates_what_it_has(setting, pipeline):
    request = ComposeRequest(pipeline=pipeline, settings=(setting,))
    recipe = compose(request, PARTS)
    check(recipe, REGISTRY)
    assert recipe_from_table(recipe_table(recipe), REGISTRY) == recipe
    assert systems(request) == ("bm25", "pretrained", "hybrid")
    untrained = ComposeRequest(encoder="some/encoder", settings=(setting, "pretrain=none"))
    check(compose(untrained, PARTS), REGISTRY)
    assert systems(untrained) == ("bm25", "as-it-is", "hybrid")
    with pytest.raises(ProblemsError, match="trains nothing"):
        check(compose(evolve(untrained, encoder=None), PARTS), REGISTRY)


def test_a_reranker_goes_with_fine_tuning_and_is_refused_without_a_round():
    assert compose(ComposeRequest(pipeline="three-stage", settings=("finetune=none",)), PARTS).reranker is None
    empty = ComposeRequest(pipeline="three-stage", settings=("finetune.rounds=[]",))
    with refused("--set reranker=none", setting="reranker", error=ProblemsError):
        check(compose(empty, PARTS), REGISTRY)
    check(compose(evolve(empty, settings=(*empty.settings, "reranker=none")), PARTS), REGISTRY)


def test_the_last_retriever_is_exported_where_dev_cannot_or_must_not_decide(tmp_path):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d", "text": "a"}\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "train", "text": "a"}\n{"_id": "test", "text": "b"}\n')
    for split in ("train", "test"):
        (tmp_path / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{split}\td\t1\n")
    by_wish = plan(compose(ComposeRequest(pipeline="two-stage", settings=("evaluation.export=last",)), PARTS), REGISTRY)
    without_dev = plan(compose(ComposeRequest(pipeline="two-stage", collection=f"beir:{tmp_path}"), PARTS), REGISTRY)
    for made in (by_wish, without_dev):
        by_name = {stage.name: stage for stage in made.stages}
        assert by_name["encoder"].inputs == {"checkpoint/retriever-2": StageOutput("retriever-2")}
        assert by_name["index"].inputs == {"index/retriever-2": StageOutput("index-retriever-2")}
        assert "choice" not in by_name
    assert not by_wish.notes
    assert any("dev queries" in note for note in without_dev.notes)


def test_a_setting_of_a_reranker_that_is_not_there_is_told():
    with pytest.raises(DrkitError, match="--pipeline three-stage"):
        compose(ComposeRequest(pipeline="two-stage", settings=("reranker.negatives=3",)), PARTS)


@pytest.mark.parametrize("setting", ["reranker.pretrained", "finetune.rounds.2.teacher"])
def test_a_model_that_is_not_there_is_told_before_anything_runs(setting, tmp_path):
    """Both are loaded when retrievers are trained already."""
    wanted = ComposeRequest(pipeline="three-stage", settings=(f"{setting}={tmp_path / 'nothing'}",))
    with refused(str(tmp_path / "nothing"), setting=setting, error=ProblemsError):
        check(compose(wanted, PARTS), REGISTRY)
    check(compose(ComposeRequest(pipeline="three-stage", settings=(f"{setting}=some/model",)), PARTS), REGISTRY)


def test_a_teacher_that_reads_pairs_in_another_way_is_told_before_anything_runs(tmp_path):
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "config.json").write_text('{"architectures": ["BertForSequenceClassification"], "model_type": "bert"}')
    wanted = ComposeRequest(pipeline="three-stage", settings=(f"finetune.rounds.2.teacher={tmp_path}",))
    check(compose(wanted, PARTS), REGISTRY)
    (tmp_path / "sentence_bert_config.json").write_text('{"processing_kwargs": {"text": {"max_length": 9}}}')
    with refused("processing_kwargs", setting="finetune.rounds.2.teacher", error=ProblemsError):
        check(compose(wanted, PARTS), REGISTRY)


def test_rounds_learn_from_pseudo_queries_and_then_from_judgements():
    made = stages(compose(ComposeRequest(pipeline="words"), PARTS))
    inputs = {name: {key: str(part) for key, part in stage.inputs.items()} for name, stage in made.items()}
    assert inputs["unsupervised"]["train"].startswith("pseudo-queries")
    assert inputs["unsupervised"]["start"] == "initial"
    for name, start in {
        "labels-only": "initial",
        "retriever-1": "unsupervised",
    }.items():
        assert inputs[name]["start"] == start
        assert inputs[name]["train"] == "collection/train"


def test_without_training_queries_a_recipes_own_rounds_end_with_the_pseudo_queries(tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"id": "d", "text": "a b c"}\n')
    texts = f"jsonl:{tmp_path / 'texts.jsonl'}"
    request = ComposeRequest(pipeline="words", collection=texts, settings=("finetune.pipeline=''",))
    planned = plan(compose(request, PARTS), REGISTRY)
    names = [stage.name for stage in planned.stages]
    assert "unsupervised" in names
    assert "retriever-1" not in names
    assert any(says(note, "'unsupervised'") for note in planned.notes)


@pytest.mark.parametrize(
    ("settings", "setting", "named"),
    [
        (("finetune.loss=listwise",), "finetune.loss", "fit: contrastive"),
        (("pseudo_queries=none",), "finetune.rounds.0.pairs", "[pseudo_queries]"),
        (("finetune.rounds.0.pairs=judged", "pseudo_queries.count=2"), "pseudo_queries", "pairs = 'pseudo'"),
        (("finetune.rounds.0.pairs=both",), "finetune.rounds[0].pairs", "('judged', 'pseudo')"),
    ],
)
def test_losses_and_queries_that_no_round_can_use_are_refused(settings, setting, named):
    with refused(named, setting=setting, error=ProblemsError):
        check(compose(ComposeRequest(pipeline="words", settings=settings), PARTS), REGISTRY)


def test_a_miner_that_is_asked_for_is_used():
    made = stages(compose(ComposeRequest(miners=("random",)), PARTS))
    assert made["retriever-1"].settings.negatives == 1
    assert "negatives-retriever-1" in made
    assert "pseudo-queries" not in made
