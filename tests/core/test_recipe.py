"""Recipes: written complete, read back equal, all mistakes at once."""

import re

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkit.core.registry import NamedFile, NameTable, installed
from drkit.errors import DrkitError, ProblemsError, UnknownNameError
from drkit.recipe.check import check
from drkit.recipe.compose import SCALES, ComposeRequest, compose, merge
from drkit.recipe.encoder_settings import FROM_SCRATCH
from drkit.recipe.parts import required_capabilities, required_signals
from drkit.recipe.toml import parse_toml, read_recipe, recipe_from_table, recipe_toml, write_recipe
from tests.refusals import refused

PARTS = installed()
REGISTRY = PARTS.registry


def names(kind):
    return st.sampled_from(REGISTRY.names(kind))


@given(
    masker=names("masker"),
    decoder=names("decoder"),
    paper=st.sampled_from([None, *({*PARTS.recipes} - {"words", "improve"})]),
    rate=st.floats(1e-8, 10, allow_nan=False),
    steps=st.integers(1, 10**9),
    pooling=st.sampled_from(["cls", "mean"]),
    scale=st.sampled_from([None, *SCALES]),
    encoder=st.sampled_from([None, "/a/path", "owner/name"]),
)
def test_what_is_written_reads_back_equal(masker, decoder, paper, rate, steps, pooling, scale, encoder):
    wanted = ComposeRequest(
        masker=masker,
        decoder=decoder,
        paper=paper,
        scale=scale,
        encoder=encoder,
        settings=(f"pretrain.learning_rate={rate}", f"pretrain.max_steps={steps}", f"encoder.pooling={pooling}"),
    )
    recipe = compose(wanted, PARTS)
    assert recipe.pretrain.learning_rate == rate
    assert recipe_from_table(parse_toml(recipe_toml(recipe), "text"), REGISTRY) == recipe


def test_a_written_recipe_holds_every_setting(tmp_path):
    recipe = compose(ComposeRequest(), PARTS)
    write_recipe(recipe, tmp_path / "r.toml")
    text = (tmp_path / "r.toml").read_text()
    for attribute in attrs.fields(type(recipe.pretrain.decoders["main"].masker.config)):
        assert attribute.name in text
    assert read_recipe(tmp_path / "r.toml", REGISTRY) == recipe


def test_all_mistakes_are_told_at_once_with_their_paths():
    wrong = (
        "pretrain.max_steps=lots",
        "pretrain.decoders.main.decoder.layrs=2",
        "finetune.loss.use=contrastiv",
        "encoder.pooling=sum",
        "encoder.layers=-1",
        "finetune.rounds.1.miners.0.depth=0",
        "pretrain.decoders.main.losses.mlm.on=x",
        "seed=true",
        "pretrain.decoders.main.masker.mask_token_share=[0.5, 0.5, 0.5]",
        "evaluation.measures=[1]",
        "evaluation.depht=10",
    )
    with pytest.raises(ProblemsError) as caught:
        compose(ComposeRequest(pipeline="two-stage", settings=wrong), PARTS)
    assert sorted(caught.value.settings) == sorted(
        (
            "pretrain.max_steps",
            "pretrain.decoders.main.decoder",
            "finetune.loss",
            "encoder.pooling",
            "encoder.layers",
            "finetune.rounds[1].miners[0].depth",
            "pretrain.decoders.main.losses.mlm",
            "seed",
            "pretrain.decoders.main.masker.mask_token_share",
            "evaluation.measures[0]",
            "evaluation",
        )
    )
    problems = "\n".join(caught.value.problems)
    assert "'contrastive'" in problems
    assert "'depth'" in problems


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("nonsense", "PATH=VALUE"),
        ("finetune.rounds.7.start=previous", "list of 2"),
        ("encoder.layers.deep=1", "single value"),
    ],
)
def test_settings_that_lead_nowhere(setting, said):
    table_setting = ("encoder.layers=2", setting)
    with pytest.raises(DrkitError, match=said):
        compose(ComposeRequest(pipeline="two-stage", settings=table_setting), PARTS)


def test_a_replaced_part_brings_its_own_settings():
    recipe = compose(ComposeRequest(paper="cdmae", decoder="enhanced"), PARTS)
    assert recipe.pretrain.decoders["main"].decoder.use == "enhanced"
    assert recipe.pretrain.decoders["main"].masker.use == "pmi"
    assert merge({"a": {"use": "x", "n": 1}}, {"a": {"m": 2}}) == {"a": {"use": "x", "n": 1, "m": 2}}


def test_the_papers_schedule_comes_with_an_existing_encoder():
    assert compose(ComposeRequest(paper="retromae", encoder="some/encoder"), PARTS).pretrain.num_train_epochs == 8
    retromae = compose(ComposeRequest(paper="retromae", encoder="some/encoder"), PARTS).pretrain
    assert retromae.decoders["main"].decoder.config.targets == 1.0
    cdmae = compose(ComposeRequest(paper="cdmae", encoder="some/encoder"), PARTS).pretrain
    assert cdmae.decoders["main"].decoder.config.layers == 2
    small = compose(ComposeRequest(paper="retromae"), PARTS).pretrain
    assert (small.encoder.masker.config.ratio, small.decoders["main"].masker.config.ratio) == (0.3, 0.5)


def test_a_replaced_masker_hides_as_many_tokens_from_its_own_side():
    pretrain = compose(ComposeRequest(paper="retromae-basic", masker="pmi"), PARTS).pretrain
    assert (pretrain.encoder.masker.use, pretrain.encoder.masker.config.ratio) == ("uniform", 0.3)
    masker = pretrain.decoders["main"].masker
    assert (masker.use, masker.config.ratio, masker.config.unit) == ("pmi", 0.5, "token")
    swapped = compose(ComposeRequest(paper="retromae-basic", encoder_masker="pmi"), PARTS).pretrain
    assert (swapped.encoder.masker.use, swapped.encoder.masker.config.ratio) == ("pmi", 0.3)
    assert swapped.decoders["main"] == compose(ComposeRequest(paper="retromae-basic"), PARTS).pretrain.decoders["main"]


def test_every_further_decoder_rebuilds_the_same_text_with_its_own_loss():
    chosen = ComposeRequest(decoder=("enhanced", "bow", "bow"), context="span", masker="uniform")
    recipe = compose(chosen, PARTS)
    check(recipe, REGISTRY)
    main, *others = recipe.pretrain.decoders.values()
    assert [*recipe.pretrain.decoders] == ["main", "bow", "bow-2"]
    assert {task.context.use for task in (main, *others)} == {"span"}
    assert {task.masker for task in (main, *others)} == {main.masker}
    assert [*recipe.pretrain.losses()] == [
        "encoder_mlm",
        "main_mlm",
        "bow_bow-reconstruction",
        "bow-2_bow-reconstruction",
    ]
    assert recipe.name == "pydocs-uniform-span-enhanced-bow-bow-2"


@pytest.mark.parametrize(
    ("decoder", "added", "found"),
    [
        ("mlm", "span-contrastive=0.5", {"encoder_span-contrastive": 0.5}),
        ("mlm", "mlm=0.2", {"main_mlm": 0.2}),
        ("mlm", "mlm@encoder=2", {"encoder_mlm": 2.0}),
        ("none", "mlm=0.7", {"encoder_mlm": 0.7}),
        (("mlm", "bow"), "bow-reconstruction=0.1", {"bow_bow-reconstruction": 0.1, "main_mlm": 1.0}),
        ("bow", "js-contrastive", {"main_js-contrastive": 1.0, "main_bow-reconstruction": 1.0}),
    ],
)
def test_a_loss_is_added_to_a_side_or_gets_another_weight(decoder, added, found):
    recipe = compose(ComposeRequest(decoder=decoder, pretrain_loss=added), PARTS)
    check(recipe, REGISTRY)
    weights = {name: loss.weight for name, (_, loss) in recipe.pretrain.losses().items()}
    assert found.items() <= weights.items()
    without = compose(ComposeRequest(decoder=decoder), PARTS).pretrain.losses()
    assert weights.keys() == without.keys() | found.keys()


def test_losses_of_pretraining_repeat_and_the_last_weight_counts():
    chosen = ComposeRequest(pretrain_loss=("mlm@encoder=3", "mlm@encoder", "mlm@encoder=4"))
    assert compose(chosen, PARTS).pretrain.encoder.losses["mlm"].weight == 4


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"pretrain_loss": "contrastive"}, "--loss contrastive"),
        ({"pretrain_loss": "listwise@main"}, "--loss listwise"),
        ({"pretrain_loss": "mlmm"}, "loss named 'mlmm'"),
        ({"pretrain_loss": "mlm@mian"}, "side named 'mian'"),
        ({"pretrain_loss": "mlm=much"}, "number, got 'much'"),
    ],
)
def test_losses_of_the_other_training_are_refused(choices, said):
    with pytest.raises(DrkitError, match=re.escape(said)):
        compose(ComposeRequest(**choices), PARTS)


@pytest.mark.parametrize(
    ("settings", "setting", "named"),
    [
        (("pretrain.decoders.main=none", "pretrain.encoder.losses.mlm=none"), "pretrain", "no loss"),
        (
            ("pretrain.decoders.main.context=span", "pretrain.decoders.main.nested=true"),
            *("pretrain.decoders.main.nested", "'span'"),
        ),
        (("pretrain.encoder.context=span",), "pretrain.encoder.context", "'span'"),
        (('pretrain.decoders.words={decoder="mlm"}',), "pretrain.decoders.words.decoder", "needs view"),
        (('pretrain.decoders.encoder={decoder="bow"}',), "pretrain.decoders", "got 'encoder'"),
        (('pretrain.decoders."a b"={decoder="bow"}',), "pretrain.decoders", '"a b"'),
        (
            (
                *('pretrain.encoder.masker={use="generator", model="a"}',),
                *('pretrain.decoders.main.masker={use="generator", model="b"}',),
            ),
            *("pretrain.decoders.main.masker", "at pretrain.encoder.masker"),
        ),
    ],
)
def test_sides_that_cannot_work_are_refused(settings, setting, named):
    with refused(named, setting=setting, error=ProblemsError):
        check(compose(ComposeRequest(settings=settings), PARTS), REGISTRY)


NEEDS = {
    "generator": ("generator",),
    "pmi": ("importance",),
    "query-as-context": ("generated-queries", "importance"),
}


@pytest.mark.parametrize("masker", REGISTRY.names("masker"))
@pytest.mark.parametrize("decoder", REGISTRY.names("decoder"))
def test_every_masker_goes_with_every_decoder(masker, decoder):
    recipe = compose(ComposeRequest(masker=masker, decoder=decoder), PARTS)
    if "replaced" in REGISTRY.get("decoder", decoder).receives and masker != "generator":
        with pytest.raises(ProblemsError, match=r"'replaced-token-detection' .*masker '.*fit: generator"):
            check(recipe, REGISTRY)
        return
    check(recipe, REGISTRY)
    needed = {*required_signals(recipe.pretrain, REGISTRY), *required_capabilities(recipe.pretrain, REGISTRY)}
    assert tuple(sorted(needed)) == NEEDS.get(masker, ())


@pytest.mark.parametrize("paper", [None, "retromae", "cdmae"])
@pytest.mark.parametrize("base", ["uniform", "pmi", "generator"])
def test_query_as_context_is_the_context_query_with_any_other_masker(base, paper):
    named = compose(ComposeRequest(masker=f"query-as-context:{base}", paper=paper), PARTS)
    assert named == compose(ComposeRequest(masker=base, context="query", paper=paper), PARTS)
    check(named, REGISTRY)


def test_query_as_context_hides_tokens_of_queries_of_a_base_and_context_with_settings():
    masker = 'pretrain.decoders.main.masker={use="query-as-context", base={use="pmi", sigma=0.5}}'
    recipe = compose(
        ComposeRequest(settings=(masker, 'pretrain.decoders.main.context={use="query", candidates=2}')), PARTS
    )
    main = recipe.pretrain.decoders["main"]
    assert (main.masker.use, main.masker.config.sigma) == ("pmi", 0.5)
    assert (main.context.use, main.context.config.candidates) == ("query", 2)


@pytest.mark.parametrize(
    ("request_", "setting", "named"),
    [
        (ComposeRequest(encoder_masker="query-as-context"), "pretrain.encoder", ("query-as-context", "base")),
        (
            ComposeRequest(
                settings=(
                    "pretrain.decoders.main.masker=query-as-context",
                    "pretrain.decoders.main.context=span",
                )
            ),
            *("pretrain.decoders.main", ("'query'", "context")),
        ),
    ],
)
def test_query_as_context_where_it_cannot_be_is_refused(request_, setting, named):
    with refused(*named, setting=setting, error=ProblemsError):
        compose(request_, PARTS)


def test_query_as_context_beside_another_context_is_refused():
    with pytest.raises(DrkitError, match="--masker query-as-context has the context query, not span"):
        compose(ComposeRequest(masker="query-as-context", context="span"), PARTS)


@pytest.mark.parametrize(
    ("wanted", "setting", "named"),
    [
        (ComposeRequest(miners=("dense",)), "finetune.rounds.0.miners.0", ("'dense'", "first round")),
        (ComposeRequest(loss="mlm"), "finetune.loss", ("'mlm'", "contrastive", "--pretrain-loss mlm")),
        (
            ComposeRequest(settings=("pretrain.decoders.main.losses.mlm.use=contrastive",)),
            *("pretrain.decoders.main.losses.mlm", ("'contrastive'", "pairs")),
        ),
        (ComposeRequest(collection="beir"), "collection", ("beir:VALUE",)),
        (ComposeRequest(settings=("encoder.hidden=131",)), "encoder", ("hidden (131)", "heads (2)")),
        (
            ComposeRequest(pipeline="two-stage", settings=("finetune.rounds.1.name=retriever-1",)),
            *("finetune.rounds", ("'retriever-1'",)),
        ),
        (ComposeRequest(settings=("finetune.rounds.0.name=../x",)), "finetune.rounds", ("named '../x'",)),
        (ComposeRequest(settings=("finetune.rounds.0.name=previous",)), "finetune.rounds", ("named 'previous'",)),
    ],
)
def test_combinations_that_cannot_work_are_refused_with_the_reason(wanted, setting, named):
    with refused(*named, setting=setting, error=ProblemsError):
        check(compose(wanted, PARTS), REGISTRY)


def test_unknown_collection_and_value_where_none_is_taken():
    with pytest.raises(UnknownNameError) as caught:
        compose(ComposeRequest(collection="bier:x"), PARTS)
    assert (caught.value.kind, caught.value.name) == ("collection", "bier")
    assert "beir" in caught.value.known
    with pytest.raises(DrkitError, match=r"'pydocs' .*`pydocs`"):
        compose(ComposeRequest(collection="pydocs:x"), PARTS)


def test_unreadable_recipes(tmp_path):
    with pytest.raises(DrkitError, match=r"/none.toml; .*`drkit compose -o"):
        read_recipe(tmp_path / "none.toml", REGISTRY)
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(DrkitError, match=r"not valid TOML.*line 1"):
        read_recipe(tmp_path / "bad.toml", REGISTRY)
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(ProblemsError, match="'name' is missing"):
        read_recipe(tmp_path / "empty.toml", REGISTRY)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(DrkitError, match="cannot read"):
        read_recipe(tmp_path / "bytes.toml", REGISTRY)


def test_a_run_is_named_after_the_folder_file_or_id_of_its_collection(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "tldr").mkdir(parents=True)
    (tmp_path / "data" / "notes.v2.jsonl.gz").touch()
    for collection, name in [
        ("beir:data/tldr", "tldr-pmi-enhanced"),
        ("beir:data/tldr/", "tldr-pmi-enhanced"),
        ("jsonl:data/notes.v2.jsonl.gz", "notes-pmi-enhanced"),
        ("beir:data/missing", "data-missing-pmi-enhanced"),
        ("irds:beir/scifact/test", "beir-scifact-test-pmi-enhanced"),
        ("irds:vaswani", "vaswani-pmi-enhanced"),
        ("hf:an-owner/a dataset", "an-owner-a-dataset-pmi-enhanced"),
        ("hf:???", "hf-pmi-enhanced"),
        ("pydocs", "pydocs-pmi-enhanced"),
    ]:
        assert compose(ComposeRequest(collection=collection), PARTS).name == name, collection
    monkeypatch.chdir(tmp_path / "data" / "tldr")
    assert compose(ComposeRequest(collection="beir:.", paper="retromae"), PARTS).name == "tldr-retromae"


@pytest.mark.parametrize("settings", [(), ("encoder.dropout=0.2",)])
@pytest.mark.parametrize("how", [{"encoder": "some/encoder"}, {"settings": ("encoder.pretrained=some/encoder",)}])
def test_a_recipe_with_an_existing_encoder_lists_no_sizes_but_those_given(how, settings):
    recipe = compose(ComposeRequest(**{**how, "settings": (*how.get("settings", ()), *settings)}), PARTS)
    listed = parse_toml(recipe_toml(recipe), "text")["encoder"]
    assert listed.keys() & set(FROM_SCRATCH) == ({"dropout"} if settings else set())
    assert recipe_from_table(parse_toml(recipe_toml(recipe), "text"), PARTS.registry) == recipe
    sizes = {*FROM_SCRATCH} - {"architecture", "architecture_settings"}  # BERT's, unless they are given
    assert parse_toml(recipe_toml(compose(ComposeRequest(), PARTS)), "text")["encoder"].keys() >= sizes


def test_a_byte_order_mark_in_a_recipe_is_skipped(tmp_path):
    text = recipe_toml(compose(ComposeRequest(), installed()))
    (tmp_path / "recipe.toml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert recipe_toml(read_recipe(tmp_path / "recipe.toml", installed().registry)) == text


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("evaluation.folds", "3"),
        ("evaluation.passages", "50"),
        ("evaluation.baseline", "'bm25'"),
        ("finetune.passage_length", "64"),
        ("finetune.keep_steps", "[10]"),
        ("pretrain.keep_steps", "[10]"),
        ("pretrain.baseline_learning_rates", '{"decoder=mlm" = 1e-4}'),
    ],
)
def test_a_setting_that_may_be_none_is_set_to_none(setting, value):
    """As the messages of cross-validation advise: --set evaluation.folds=none."""
    section, name = setting.split(".")

    def found(*settings):
        return getattr(getattr(compose(ComposeRequest(settings=settings), PARTS), section), name)

    assert found(f"{setting}={value}") not in (None, ())
    assert found(f"{setting}={value}", f"{setting}=none") is None


def test_a_setting_of_a_round_is_set_to_none():
    def found(*settings):
        return compose(ComposeRequest(settings=settings), PARTS).finetune.rounds[0].negatives

    assert found("finetune.rounds.0.negatives=3") == 3
    assert found("finetune.rounds.0.negatives=3", "finetune.rounds.0.negatives=none") is None


def test_none_unsets_an_optional_setting_of_a_part():
    recipe = compose(ComposeRequest(settings=("collection.limit=3", "collection.limit=none")), PARTS)
    assert recipe.collection.config.limit is None


@pytest.mark.parametrize(
    "path",
    [
        "collection.columns",
        "pretrain.decoders",
        "pretrain.encoder.losses",
        "pretrain.arguments",
        "pretrain.baseline_learning_rates",
        "finetune.columns",
    ],
)
@pytest.mark.parametrize("value", ["3", "zzz", "[]", "true"])
def test_a_table_of_names_refuses_other_values(path, value):
    texts = "jsonl:texts.jsonl"
    with refused("expected a table of settings", setting=path):
        compose(ComposeRequest(collection=texts, masker="pmi", settings=(f"{path}={value}",)), PARTS)


def test_a_file_of_another_shape_is_named_with_its_problems(tmp_path):
    """Of a plugin: composing starts only from what is a recipe."""
    (tmp_path / "odd.toml").write_text("name = 'odd'\ncollection = 'pydocs'\npretrain = 3\nfinetune = []\n")
    recipes = NameTable("recipe", [NamedFile("odd", tmp_path / "odd.toml", "odd 1.0")])
    with refused("recipe odd", "got 3 @ pretrain", "got [] @ finetune"):
        compose(ComposeRequest(paper="odd", masker="pmi"), attrs.evolve(PARTS, recipes=recipes))


def test_a_misspelt_source_of_a_column_is_not_taken_for_a_model():
    with pytest.raises(
        ProblemsError, match=r"no column named 'rerankr'; did you mean 'reranker'.* @ finetune\.columns"
    ):
        compose(ComposeRequest(settings=("finetune.columns.teacher=rerankr",)), installed())
    for model in ("some-cross-encoder", "org/rerankr"):
        recipe = compose(ComposeRequest(settings=(f"finetune.columns.teacher={model}",)), installed())
        assert recipe.finetune.columns["teacher"].config.path == model


def test_a_column_that_is_none_is_left_out():
    recipe = compose(
        ComposeRequest(settings=("finetune.columns.age=given", "finetune.columns.teacher=none")), installed()
    )
    assert [*recipe.finetune.columns] == ["age"]
