"""`drkit inspect`: what it shows, as text and as data; and what it says where it cannot."""

import io
import json
import re
import shutil

import pytest
import torch
from attrs import evolve

from drkit.core.progress import Silent
from drkit.core.registry import Registry, installed
from drkit.core.spec import Choice, ComponentSpec, Kind, NoSettings
from drkit.core.types import TokenBatch
from drkit.errors import DrkitError
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from drkit_report.inspect.hidden import TextSample
from drkit_report.inspect.masks import inspect_mask
from drkit_report.inspect.source import COUNTS_STAGE, TextSource, run_source
from drkit_report.inspect.words import inspect_words

PACKAGES = "collection.packages=['asyncio', 'email', 'logging']"
SMALL = (PACKAGES, "encoder.vocab_size=600")
TEXT = "Return the name of the logger; if it isn't set, the root logger <b>is</b> returned."


@pytest.fixture
def drkit(run_drkit, monkeypatch):
    """The command line on a terminal of some columns."""

    def call(*arguments, columns=80):
        monkeypatch.setenv("COLUMNS", str(columns))
        code, out, err = run_drkit(*arguments)
        assert "Traceback" not in err
        return code, out, err

    return call


def counted_texts(request, run):
    """The source of a run that has got as far as its n-gram counts."""
    recipe = compose(request, installed())
    stages = plan(recipe, installed().registry).stages
    last = [stage.name for stage in stages].index(COUNTS_STAGE)
    execute(stages[: last + 1], run, recipe, registry=installed().registry, progress=Silent())
    return TextSource(run, recipe)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return counted_texts(ComposeRequest(masker="pmi", settings=SMALL), tmp_path_factory.mktemp("runs") / "pmi")


@pytest.fixture(scope="module")
def counted(source, tmp_path_factory):
    """The folder of a run that has got as far as its statistics."""
    return shutil.copytree(source.folder, tmp_path_factory.mktemp("runs") / "counted")


@pytest.fixture(scope="module")
def without_counts(tmp_path_factory):
    """The folder of a run whose masker needed no statistics."""
    run = tmp_path_factory.mktemp("runs") / "uniform"
    recipe = compose(ComposeRequest(masker="uniform", settings=SMALL), installed())
    first = plan(recipe, installed().registry).stages[:3]
    execute(first, run, recipe, registry=installed().registry, progress=Silent())
    return run


@pytest.fixture(scope="module")
def bag_of_words(tmp_path_factory):
    """A run of CPDAE, pre-trained for a few steps, and no further."""
    run = tmp_path_factory.mktemp("runs") / "cpdae"
    small = (*SMALL, "encoder.hidden=32", "encoder.heads=2", "encoder.intermediate=32", "pretrain.max_steps=3")
    wanted = ComposeRequest(paper="cpdae", settings=(*small, "pretrain.per_device_train_batch_size=4"))
    recipe = compose(wanted, installed())
    stages = plan(recipe, installed().registry).stages
    last = [stage.name for stage in stages].index("pretrained")
    execute(stages[: last + 1], run, recipe, registry=installed().registry, progress=Silent())
    return run


# ------------------------------------------------------------------ inspect mask, as data
def test_the_views_are_those_of_the_masker(source):
    registry = installed().registry
    found = inspect_mask(TEXT, source, registry, seed=5, epoch=2)
    (text,) = found.texts
    encoder, decoder = text.views
    maskable = sum(text.maskable)
    assert decoder.hidden == maskable // 2
    assert 0 < encoder.hidden <= round(0.3 * maskable)
    assert len(text.pieces) == len(encoder.cells) == len(text.common) == len(text.maskable)
    assert {cell.state for view in text.views for cell in view.cells} <= {"seen", "masked", "replaced", "kept"}
    assert all(piece.importance is not None for piece in text.pieces)


def test_pieces_put_together_are_the_text(source):
    (text,) = inspect_mask(TEXT, source, installed().registry, seed=1).texts
    assert put_together(text) == TEXT


def put_together(text):
    return "".join(" " * piece.spaced + piece.text for piece in text.pieces)


def test_without_noise_the_most_important_are_hidden(source):
    changed = run_source(source.folder, installed(), settings=["masker.sigma=0.0"])
    (text,) = inspect_mask(TEXT, changed, installed().registry, seed=1).texts
    decoder = text.views[1]
    hidden = [p.importance for p, c in zip(text.pieces, decoder.cells, strict=True) if c.state != "seen"]
    seen = [
        p.importance
        for p, c, m in zip(text.pieces, decoder.cells, text.maskable, strict=True)
        if c.state == "seen" and m
    ]
    assert min(hidden) >= max(seen)


def test_draws_depend_on_seed_and_epoch_alone(source):
    registry = installed().registry
    first = inspect_mask(TEXT, source, registry, seed=1, epoch=0)
    assert inspect_mask(TEXT, source, registry, seed=1, epoch=0) == first
    assert inspect_mask(TEXT, source, registry, seed=2, epoch=0).texts != first.texts
    assert inspect_mask(TEXT, source, registry, seed=1, epoch=1).texts != first.texts


def test_a_long_text_is_cut_as_in_the_run_and_says_so(source):
    found = inspect_mask("logger " * 300, source, installed().registry, seed=1)
    length = source.recipe.encoder.passage_length
    assert len(found.texts[0].pieces) == length - 2
    assert any(f"truncated to {length} tokens" in note for note in found.notes)


def test_a_second_text_is_shown_where_the_decoder_rebuilds_another(source):
    query = run_source(source.folder, installed(), settings=["pretrain.decoders.main.context=query"])
    found = inspect_mask(TEXT, query, installed().registry, seed=1, context="what is the root logger")
    passage, context = found.texts
    assert [view.name for view in passage.views] == ["encoder"]
    assert [view.name for view in context.views] == ["decoder"]
    assert put_together(context) == "what is the root logger"
    extracted = inspect_mask(TEXT, query, installed().registry, seed=1).texts[1]
    assert 3 < len(put_together(extracted)) < len(TEXT)
    assert put_together(extracted) in TEXT


def test_a_generators_samples_are_shown_where_the_run_has_one(source, counted, tmp_path):
    from drkit.encoders import BertSizes, MaskedLmEncoder
    from drkit.train.checkpoints import save_masked_lm

    registry = installed().registry
    both = {"masker": "generator", "settings": ["pretrain.encoder.masker=generator"]}
    without = inspect_mask(TEXT, run_source(counted, installed(), **both), registry, seed=1)
    states = {cell.state for view in without.texts[0].views for cell in view.cells}
    assert states == {"seen", "masked"}
    assert any("generator" in note for note in without.notes)
    run = shutil.copytree(counted, tmp_path / "run")
    sizes = BertSizes(hidden=16, layers=1, heads=2, intermediate=16)
    made = MaskedLmEncoder.from_scratch(sizes, source.tokenizer)
    save_masked_lm(made, source.tokenizer, run / "generator")
    found = inspect_mask(TEXT, run_source(run, installed(), **both), registry, seed=1)
    for view, unfilled in zip(found.texts[0].views, without.texts[0].views, strict=True):
        places = [place for place, cell in enumerate(unfilled.cells) if cell.state == "masked"]
        assert [place for place, cell in enumerate(view.cells) if cell.state != "seen"] == places
        assert {view.cells[place].state for place in places} <= {"replaced", "kept"}
        assert any(view.cells[place].shown for place in places)
    assert not any("generator" in note for note in found.notes)


# ------------------------------------------------------------------ inspect mask, on the command line
def test_piped_output_has_brackets_no_colours_and_fits(drkit, counted):
    code, out, _ = drkit("inspect", "mask", TEXT, "--run", counted)
    assert code == 0
    assert "\x1b" not in out
    assert "[_]" in out
    assert re.search(r"^importance +-?\d+\.\d", out, flags=re.MULTILINE)
    assert re.search(r"^decoder hides \d+ of \d+ tokens \(\d+%\)", out, flags=re.MULTILINE)
    table = [line for line in out.splitlines() if line.startswith(("token", "importance", "encoder  "))]
    assert max(map(len, table)) <= 80


def test_a_terminal_gets_colours(counted, source):
    from rich.console import Console

    from drkit_report.inspect.terminal import print_masks

    screen = Console(force_terminal=True, width=80, record=True, color_system="256", file=io.StringIO())
    print_masks(inspect_mask(TEXT, source, installed().registry, seed=1), screen)
    assert "\x1b[7m" in screen.export_text(styles=True), "hidden tokens are reversed"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["", "--run", "RUN"], "empty (after mask)"),
        (["   ", "--run", "RUN"], "empty; "),
        (["text", "--run", "RUN", "--masker", "pmii"], "'pmi'"),
        (["text", "--run", "/no/run"], "not found: /no/run"),
        (["text", "--run", "RUN", "--set", "masker.sigm=1"], "'sigma'"),
        (["text", "--run", "RUN", "--set", "masker.sigma=-1"], "sigma"),
        (["text", "--run", "RUN", "--set", "masker.window=3"], "window 4"),
        (["text", "--run", "UNCOUNTED", "--masker", "pmi"], "composed with --masker pmi"),
        (["\u4f60\u597d", "--run", "RUN"], "no words"),
        (["text", "--run", "RUN", "--set", "pretrain.decoders.main.context=span"], "--context TEXT"),
    ],
)
def test_a_mistake_ends_with_two_and_says_what_to_do(drkit, counted, without_counts, arguments, said):
    named = {"RUN": counted, "UNCOUNTED": without_counts}
    code, _, err = drkit("inspect", "mask", *(named.get(argument, argument) for argument in arguments))
    assert code == 2
    assert said in err


def test_a_run_without_counts_shows_masks_and_says_what_is_missing(drkit, without_counts):
    code, out, _ = drkit("inspect", "mask", TEXT, "--run", without_counts)
    assert code == 0
    assert "encoder hides" in out
    assert "has no n-gram counts" in out
    assert not re.search(r"^importance", out, flags=re.MULTILINE)


# ------------------------------------------------------------------ inspect words
def test_words_are_the_decoders_distribution(bag_of_words):
    import torch

    from drkit.encoders import context_from
    from drkit.train.checkpoints import DECODER, load_encoder, load_part, part_file

    found = inspect_words(TEXT, bag_of_words, installed(), top=10)
    source = run_source(bag_of_words, installed())
    tokenizer = source.tokenizer
    encoder = load_encoder(bag_of_words / "pretrained", pooling=source.recipe.encoder.pooling.use).eval()
    decoder = installed().registry.build("decoder", "bow", None, context_from(encoder, tokenizer))
    load_part(decoder, part_file(bag_of_words / "pretrained", DECODER, "main"))
    ids = tokenizer([TEXT], return_tensors="pt")
    with torch.no_grad():
        vector = encoder.encode(ids["input_ids"], ids["attention_mask"].bool()).bottleneck
        scores = decoder.eval()(inputs_of(vector, ids), None)["vocab_logits"][0].double().sigmoid()
    shares = scores / scores.sum()
    best = shares.sort(descending=True)
    assert [word.probability for word in found.top] == pytest.approx(best.values[:10].tolist(), rel=1e-4)
    assert [word.text for word in found.top] == [tokenizer.decode([i]).strip() for i in best.indices[:10].tolist()]
    own = ids["input_ids"][0, 1:-1].unique()
    assert found.own_share == pytest.approx(float(shares[own].sum()), rel=1e-4)
    assert found.vocabulary == len(shares)
    pieces = tokenizer("returned", add_special_tokens=False)["input_ids"]
    (word,) = [word for word in found.words if word.text == "returned"]
    assert word.probability == pytest.approx(float(shares[pieces].sum()), rel=1e-4)


def inputs_of(vector, encoding):
    from drkit.core.types import DecoderInput, Encoded
    from drkit.encoders import token_batch

    tokens = token_batch(encoding)
    return DecoderInput(encoded=Encoded(bottleneck=vector, hidden=vector[:, None]), tokens=tokens, view=None)


def test_words_are_printed(drkit, bag_of_words):
    code, out, _ = drkit("inspect", "words", TEXT, "--run", bag_of_words, "--top", 7)
    assert code == 0
    assert "7 " in out
    assert "per cent" in out
    assert "\x1b" not in out


def test_words_of_a_run_without_a_bag_of_words(drkit, counted, bag_of_words):
    code, _, err = drkit("inspect", "words", TEXT, "--run", counted)
    assert code == 2
    assert "predicts words (decoders: 'enhanced')" in err
    assert "--decoder bow" in err
    code, _, err = drkit("inspect", "words", " ", "--run", bag_of_words)
    assert code == 2
    assert "empty; " in err


class WithoutTokens:
    """A store whose texts are all empty: special tokens alone."""

    def __len__(self):
        return 3

    def batch(self, indices, signals):
        ids, none = torch.ones(len(indices), 2, dtype=torch.long), torch.zeros(len(indices), 2, dtype=torch.bool)
        values = {name: torch.zeros(len(indices), 2) for name in signals}
        return TokenBatch(
            ids, attention=~none, maskable=none, words=ids - 2, keys=torch.arange(len(ids)), signals=values
        )


def test_texts_without_tokens_have_no_tenths_of_importance():
    sample = TextSample(source=None, store=WithoutTokens(), importance=object(), count=3)
    assert sample.borders is None


CHANGING = "masker.ratio={from=0.1, to=0.9, shape='steps', steps=3}"


def test_the_masks_of_a_step_have_its_ratio(counted, drkit):
    steps = ("--set", "pretrain.max_steps=30", "--set", CHANGING)
    hidden = {}
    for step in (0, 14, 30):
        code, out, err = drkit("inspect", "mask", TEXT, "--run", counted, *steps, "--step", step, "--json")
        assert code == 0, err
        found = json.loads(out)
        hidden[step] = sum(cell["state"] != "seen" for cell in found["texts"][0]["views"][1]["cells"])
        assert found["settings"]["decoder"]["ratio"] == {0: 0.1, 14: 0.5, 30: 0.9}[step]
    assert 0 < hidden[0] < hidden[14] < hidden[30]
    code, _, err = drkit("inspect", "mask", TEXT, "--run", counted, *steps, "--step", 31)
    assert code == 2
    assert "--step 31 is after the last of 30 steps" in err
    code, _, err = drkit("inspect", "mask", TEXT, "--run", counted, "--set", "pretrain.max_steps=-1", "--step", 1)
    assert code == 2
    assert "--set pretrain.max_steps=N" in err


class LastWords:
    """A context that needs no other text: the end of the text itself."""

    def __init__(self, config=None, context=None):
        pass

    def __call__(self, tokens, texts, *, seed, epoch):
        batch = texts.batch(tokens.keys.numpy())
        return evolve(batch, attention=batch.attention.clone().fill_(False).index_fill(1, torch.arange(4), True))


def test_a_context_that_needs_no_second_text_is_inspected(source):
    spec = ComponentSpec(Kind.CONTEXT, "last-words", f"{__name__}:LastWords", NoSettings, "The end of the text")
    registry = Registry([*installed().registry, spec])
    recipe = source.recipe
    task = evolve(recipe.pretrain.decoders["main"], context=Choice("last-words", NoSettings()))
    recipe = evolve(recipe, pretrain=evolve(recipe.pretrain, decoders={"main": task}))
    found = inspect_mask(TEXT, TextSource(source.folder, recipe), registry, seed=1)
    assert [text.title for text in found.texts] == ["the encoder's text", "its context"]
    assert len(found.texts[1].pieces) < len(found.texts[0].pieces)
    task = evolve(task, context=Choice("span", NoSettings()))
    recipe = evolve(recipe, pretrain=evolve(recipe.pretrain, decoders={"main": task}))
    with pytest.raises(DrkitError, match="needs a second text"):
        inspect_mask(TEXT, TextSource(source.folder, recipe), registry, seed=1)
