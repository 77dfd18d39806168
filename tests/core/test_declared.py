"""What an encoder folder declares is taken over, and a recipe that says otherwise is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from drkit.core.registry import installed
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.start import declared_settings_of
from drkit.recipe.toml import plain
from drkit.runs.plan import plan
from tests.refusals import says

PARTS = installed()
FLAGS = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "include_prompt": True}


def folder(path: Path, *, own=None, prompts=None, pooling=FLAGS, longest=256) -> Path:
    """An encoder folder as sentence-transformers writes it; `own`: and as drkit does."""
    (path / "1_Pooling").mkdir(parents=True)
    modules = [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    files = {
        "config.json": {},
        "modules.json": modules,
        "1_Pooling/config.json": pooling,
        "sentence_bert_config.json": {"max_seq_length": longest},
        "config_sentence_transformers.json": {"prompts": prompts or {}},
        **({"drkit.json": own} if own else {}),
    }
    for name, content in files.items():
        (path / name).write_text(json.dumps(content))
    return path


def composed(encoder: Path, *settings: str, paper: str | None = None):
    recipe = compose(ComposeRequest(encoder=str(encoder), paper=paper, settings=settings), PARTS)
    check(recipe, PARTS.registry)
    return recipe


def test_what_a_folder_of_sentence_transformers_says(tmp_path):
    found = declared_settings_of(folder(tmp_path / "a", prompts={"query": "q: ", "document": "d: "}))
    assert found.settings == {"pooling": "mean", "query_prompt": "q: ", "passage_prompt": "d: "}
    assert found.max_tokens == 256
    assert declared_settings_of(folder(tmp_path / "b")).settings == {"pooling": "mean"}
    assert declared_settings_of(folder(tmp_path / "c", pooling={"pooling_mode": "cls"})).settings == {"pooling": "cls"}
    assert declared_settings_of(folder(tmp_path / "d", pooling={"pooling_mode": "weightedmean"})).settings == {}
    last = declared_settings_of(folder(tmp_path / "e", pooling={"pooling_mode": "lasttoken"}))
    assert last.settings == {"pooling": "last"}
    assert declared_settings_of(tmp_path / "nowhere") is None


def test_it_stands_before_the_recipes_own(tmp_path):
    own = {"query_length": 20, "passage_length": 40, "query_prompt": "q: ", "passage_prompt": "", "format": 1}
    encoder = composed(folder(tmp_path / "a", own=own), paper="retromae").encoder
    assert (encoder.pooling.use, encoder.query_length, encoder.passage_length) == ("mean", 20, 40)
    assert (encoder.query_prompt, encoder.passage_prompt) == ("q: ", "")


def test_the_one_length_of_sentence_transformers_is_that_of_queries_and_passages(tmp_path):
    encoder = composed(folder(tmp_path / "a")).encoder
    assert (encoder.query_length, encoder.passage_length) == (256, 256)
    shorter = composed(folder(tmp_path / "b"), "encoder.query_length=40").encoder
    assert (shorter.query_length, shorter.passage_length) == (40, 256)
    silent = composed(folder(tmp_path / "c", longest=None), paper="retromae").encoder
    assert (silent.query_length, silent.passage_length) == (32, 144), "the recipe's"


OWN = {"query_length": 20, "passage_length": 40, "query_prompt": "q: ", "passage_prompt": ""}


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("encoder.pooling=cls", ("pooling = 'mean'", "'cls'", "--set encoder.pooling=mean ")),
        ("encoder.query_prompt=x", ("query_prompt = 'q: '", "'x'", "--set encoder.query_prompt='\"q: \"'")),
        ("encoder.passage_prompt=x", ("passage_prompt = ''", "'x'", "--set encoder.passage_prompt='\"\"'")),
        ("encoder.passage_length=41", ("passage_length = 40", "41", "--set encoder.passage_length=40")),
    ],
)
def test_a_clash_is_refused_with_both_values_and_the_way_out(tmp_path, setting, named):
    encoder = folder(tmp_path / "a", own=OWN)
    with pytest.raises(ProblemsError) as error:
        composed(encoder, setting)
    assert says(str(error.value), *named, "--set encoder.declared=ignore")
    name, _, value = setting.partition("=")
    recipe = composed(encoder, setting, "encoder.declared=ignore")
    assert str(plain(recipe)["encoder"][name.removeprefix("encoder.")]) == value


def test_shorter_texts_are_allowed_and_longer_than_the_folder_reads_are_not(tmp_path):
    assert composed(folder(tmp_path / "a", own=OWN), "encoder.passage_length=30").encoder.passage_length == 30
    plain = folder(tmp_path / "b", longest=64)
    with pytest.raises(ProblemsError, match=r"/b .*64 tokens, .*passage_length = 100.*@ encoder\.passage_length"):
        composed(plain, "encoder.passage_length=100")
    assert composed(plain, "encoder.passage_length=64", "encoder.query_prompt='q: '").encoder.query_prompt == "q: "


def words(path: Path) -> Path:
    """Give a folder a tokenizer of whole words, which adds [CLS] and [SEP], and truncates to 4 tokens if it may."""
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "find": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    backend.enable_truncation(4)
    backend.save(str(path / "tokenizer.json"))
    return path


@pytest.mark.parametrize("kind", ["query", "passage"])
@pytest.mark.parametrize("ways", [(), ("encoder.declared=ignore",)])
def test_a_prompt_as_long_as_the_encoder_reads_is_refused_before_the_run(tmp_path, kind, ways):
    encoder, length = words(folder(tmp_path / "a", longest=64)), f"encoder.{kind}_length=24"
    fits, too_long = (f"encoder.{kind}_prompt='{'find ' * count}'" for count in (21, 22))
    composed(encoder, length, fits, *ways)
    with pytest.raises(ProblemsError) as error:
        composed(encoder, length, too_long, *ways)
    assert says(str(error.value), "22 tokens", "no room for text in 24", f"encoder.{kind}_prompt")


def test_a_declared_prompt_without_room_is_refused_too(tmp_path):
    encoder = words(folder(tmp_path / "a", prompts={"query": "find " * 20}, longest=22))
    with pytest.raises(ProblemsError, match=r"20 tokens .* in 22; .*encoder\.query_prompt"):
        composed(encoder)


def test_the_plan_refuses_such_a_prompt_without_reading_the_collection(tmp_path, run_drkit):
    (tmp_path / "t.jsonl").write_text('{"text": "a file"}\n')
    more = ("--encoder", words(folder(tmp_path / "a")), "--set", f"encoder.passage_prompt={'find ' * 300}", "--dry-run")
    code, _, err = run_drkit("compose", "--collection", f"jsonl:{tmp_path / 't.jsonl'}", *more)
    assert (code, "Traceback" in err) == (2, False)
    assert says(err, "300 tokens", "encoder.passage_prompt")


def test_a_tokenizer_that_cannot_be_read_is_left_to_the_stage_that_loads_it(tmp_path):
    encoder = folder(tmp_path / "a")
    (encoder / "tokenizer.json").write_text("{}")
    composed(encoder, f"encoder.query_prompt='{'find ' * 300}'")


def test_a_runs_checkpoint_declares_what_its_recipe_says(tmp_path):
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "pretrained" / "config.json").write_text("{}")
    (tmp_path / "recipe.toml").write_text('[encoder]\npooling = "cls"\nquery_length = 16\nhidden = 8\n')
    assert declared_settings_of(tmp_path / "pretrained") is None, "any folder beside a recipe is not a checkpoint of it"
    (tmp_path / "pretrained" / "manifest.json").write_text("{}")
    assert declared_settings_of(tmp_path / "pretrained").settings == {"pooling": "cls", "query_length": 16}
    with pytest.raises(ProblemsError, match=r"pooling = 'cls', .*'mean'.*@ encoder\.pooling"):
        composed(tmp_path, "encoder.pooling=mean")


def test_a_broken_file_is_named(tmp_path):
    (folder(tmp_path / "a") / "modules.json").write_text("[")
    with pytest.raises(DrkitError, match=r"modules\.json .*JSON"):
        declared_settings_of(tmp_path / "a")


def test_an_encoder_of_sentences_is_tuned_without_pre_training_unless_asked(tmp_path):
    encoder = str(folder(tmp_path / "encoder"))
    recipe = compose(ComposeRequest(encoder=encoder), PARTS)
    assert (recipe.pretrain, recipe.finetune.learning_rate) == (None, 5e-5)
    assert recipe.encoder.passage_length == 256
    assert [current.name for current in recipe.finetune.rounds] == ["tuned"]
    for asked in ({"masker": "pmi"}, {"decoder": "enhanced"}, {"settings": ("pretrain.max_steps=10",)}):
        found = compose(ComposeRequest(encoder=encoder, **asked), PARTS)
        assert found.pretrain is not None
        assert found.finetune.learning_rate == 2e-5
    assert compose(ComposeRequest(encoder=encoder, scale="quick"), PARTS).is_smoke
    assert not compose(ComposeRequest(encoder=encoder, settings=("finetune.max_steps=25",)), PARTS).is_smoke
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text("{}")
    assert compose(ComposeRequest(encoder=str(bare)), PARTS).pretrain is not None


def test_no_scale_has_the_rates_of_random_weights_for_an_existing_encoder(tmp_path):
    encoder = str(folder(tmp_path / "encoder"))
    for pipeline in (one.name for one in PARTS.pipelines.items()):
        for scale in ("paper", "small", "quick"):
            recipe = compose(ComposeRequest(encoder=encoder, pipeline=pipeline, masker=None, scale=scale), PARTS)
            trainings = [recipe.pretrain, recipe.reranker, *map(recipe.finetune.for_round, recipe.finetune.rounds)]
            assert all(one.learning_rate <= 1e-4 for one in trainings if one), (pipeline, scale)


def test_a_prompt_that_the_folder_does_not_declare_is_noted(tmp_path):
    plain, prompted = folder(tmp_path / "a"), folder(tmp_path / "b", prompts={"query": "q: ", "document": "d: "})
    collection = f"jsonl:{tmp_path / 'texts.jsonl'}"
    (tmp_path / "texts.jsonl").write_text('{"id": "1", "text": "a text"}\n')
    for encoder, settings, noted in (
        (plain, (), False),
        (plain, ("encoder.query_prompt='query: '",), True),
        (prompted, (), False),
    ):
        recipe = compose(ComposeRequest(encoder=str(encoder), collection=collection, settings=settings), PARTS)
        notes = [note for note in plan(recipe, PARTS.registry).notes if "declares no such prompt" in note]
        assert [("query_prompt = 'query: '" in note) for note in notes] == [True] * noted


def test_a_pipeline_does_not_ask_for_pre_training_and_a_paper_gets_a_careful_rate(tmp_path):
    encoder = str(folder(tmp_path / "encoder"))
    for pipeline in ("texts", "two-stage"):
        recipe = compose(ComposeRequest(encoder=encoder, pipeline=pipeline), PARTS)
        assert recipe.pretrain is None
        assert recipe.finetune.baselines == ()
    asked = compose(ComposeRequest(encoder=encoder, pipeline="texts", masker="pmi"), PARTS)
    assert asked.pretrain is not None
    for name in ("retromae", "condenser", "cdmae"):
        for scale in (None, "paper", "small"):
            recipe = compose(ComposeRequest(encoder=encoder, paper=name, scale=scale), PARTS)
            assert recipe.pretrain.learning_rate <= 5e-5
