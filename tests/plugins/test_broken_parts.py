"""Broken parts of strangers: one line each, before the first stage, naming part and package and what is wrong."""

import attrs
import pytest

from drkit.core.registry import Registry, installed
from drkit.core.spec import ComponentSpec, NoSettings
from drkit.errors import DrkitError
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.trial import try_parts
from tests.cli.test_light_commands import drkit
from tests.plugins.broken import Loose
from tests.plugins.packages import path_with, write_package

HERE = "tests.plugins.broken"
MASKERS = {
    "NotCallable": "NotCallable is not callable",
    "OneView": "a masker must return Views, got MaskedView",
    "HidesSpecials": "encoder's view: a special token or padding is a target",
    "ShortInts": "encoder's view: labels is torch.int32, expected int64",
    "WrongKeywords": "called with (tokens, rng, rows=..): TypeError: .*unexpected keyword argument 'rows'",
    "RaisesWhenBuilt": "while it was built: KeyError: 'width' (.*broken.py:[0-9]+)",
}
DECODERS = {
    "NoRows": "NoRows has no method rows",
    "NotCallable": "expected an nn.Module, got NotCallable",
    "AnotherName": "its spec provides token_states; its output has states",
    "NoMapping": "expected a mapping of names to outputs, got Tensor",
    "WrongStates": r"token_states has states ([0-9]+, 64), expected ([0-9]+, 64)",
    "WrongLabels": "token_states has labels outside the vocabulary",
    "FloatLabels": "token_states has labels of torch.float32, expected int64",
    "NanStates": "token_states has values that are nan or infinite",
    "IdleWeights": "no gradient reaches its own weights never_used.weight, never_used.bias",
    "NoSuchLayer": "while reading its rows and layers: .*40",
    "RaisesLongMessage": "RuntimeError: the first of many words .*[.][.][.] (.*broken.py:[0-9]+)",
}
LOSSES = {
    "gives_a_float": "expected StepOutput(loss=..), got float",
    "gives_a_tensor": "expected StepOutput(loss=..), got Tensor",
    "gives_rows": r"the loss has shape (8,), expected a scalar",
    "detaches": "the loss carries no gradient",
    "gives_nan": "the loss is nan, expected a finite number",
    "has_nan_gradient": "a gradient of the loss is nan",
    "wants_other_words": "called with (bottleneck=..): TypeError: .*'bottleneck'",
}
PAIR_LOSSES = {
    "wants_pairs_of_its_own": "AttributeError: 'EmbeddedPairs' object has no attribute 'no_such_field'",
    "detaches_pairs": "the loss carries no gradient",
}
SOURCES = {
    "FindsPositives": "q0 has a judged positive among its negatives",
    "Unsorted": "scores do not descend",
    "TooMany": "q0 has 8 negatives, expected at most 5",
    "LeavesOneOut": "expected results for q0, q1, q2, q3, q4, got q1, q2, q3, q4",
    "NoIndex": "NoIndex has no method index and no method mine",
}
SIGNALS = {
    "NoValues": "NoValues has no method values",
    "TooFewValues": "while computing its values: the signal 'broken' gave 3 values for [0-9]+ of scope",
    "FitsWithoutFacts": "fit(texts, folder) must return a mapping of facts, got NoneType",
    "NanValues": "the signal 'broken' is not finite at token 0 of [0-9]+",
}


def with_part(kind, target, config=NoSettings, **rest):
    """drkit's parts and one of a stranger's."""
    spec = ComponentSpec(
        kind=kind,
        name="broken",
        target=target if ":" in target else f"{HERE}:{target}",
        config=config,
        summary="a part",
        provider="stranger-package 2.3",
        **rest,
    )
    here = installed()
    return attrs.evolve(here, registry=Registry([*here.registry, spec]))


def refusal(parts, kind, **wanted):
    """The one line that the trial of a recipe ends with."""
    recipe = compose(ComposeRequest(**wanted), parts)
    with pytest.raises(DrkitError) as caught:
        try_parts(recipe, parts.registry)
    line = str(caught.value)
    assert line.startswith(f"{kind} 'broken' (stranger-package 2.3)")
    assert len(line.splitlines()) == 1
    assert len(line) < 500
    return line


def says(said, line):
    """Whether a line has this; `.*`, `[0-9]+` and `[.]` are patterns."""
    import re

    pattern = re.escape(said)
    for plain in (".*", "[0-9]+", "[.]"):
        pattern = pattern.replace(re.escape(plain), plain)
    assert re.search(pattern, line), line


@pytest.mark.parametrize("target", MASKERS)
def test_maskers(target):
    parts = with_part("masker", target, provides=("view",))
    says(MASKERS[target], refusal(parts, "masker", masker="broken", decoder="mlm"))


@pytest.mark.parametrize("target", DECODERS)
def test_decoders(target):
    parts = with_part("decoder", target, receives=("view",), provides=("token_states",))
    says(DECODERS[target], refusal(parts, "decoder", decoder="broken"))


@pytest.mark.parametrize("target", LOSSES)
def test_losses_of_pre_training(target):
    parts = with_part("loss", target, receives=("bottleneck",))
    line = refusal(parts, "loss", settings=('pretrain.losses.more={use="broken", on="encoder"}',))
    says(LOSSES[target], line)


@pytest.mark.parametrize("target", PAIR_LOSSES)
def test_losses_of_fine_tuning(target):
    parts = with_part("loss", target, receives=("pairs",), scope="batch")
    says(PAIR_LOSSES[target], refusal(parts, "loss", loss="broken"))


@pytest.mark.parametrize("target", SOURCES)
def test_sources_of_negatives(target):
    says(SOURCES[target], refusal(with_part("miner", target), "miner", miners=("broken",)))


def test_a_filter_that_adds_candidates():
    parts = with_part("miner", "Adds", receives=("candidates",))
    says("has a candidate that did not come in", refusal(parts, "miner", miners=("bm25", "broken")))


def test_a_collection_without_methods():
    parts = with_part("collection", "NoSplits", provides=("texts", "queries", "judgements"))
    says("NoSplits has no method splits and no method queries", refusal(parts, "collection", collection="broken"))


@pytest.mark.parametrize("target", SIGNALS)
def test_signals(target):
    parts = with_part("signal", target, scope="token")
    asking = ComponentSpec("decoder", "asking", f"{HERE}:Sound", NoSettings, "a part", signals=("broken",))
    parts = attrs.evolve(parts, registry=Registry([*parts.registry, attrs.evolve(asking, provides=("token_states",))]))
    says(SIGNALS[target], refusal(parts, "signal", decoder="asking"))


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            "no_such_package.module:Part",
            "cannot import its target 'no_such_package.module:Part': ModuleNotFoundError",
        ),
        (f"{HERE}:NoSuchClass", "cannot import its target .*: AttributeError: .*NoSuchClass"),
        (f"{HERE}:__name__", "its target .* is not callable"),
    ],
)
def test_targets_that_do_not_resolve(target, said):
    says(said, refusal(with_part("masker", target, provides=("view", "rows")), "masker", masker="broken"))


def test_settings_that_are_not_frozen():
    parts = with_part("masker", "OneView", config=Loose, provides=("view", "rows"))
    says("settings class Loose is not frozen", refusal(parts, "masker", masker="broken"))


BROKEN_PACKAGE = """
from torch import nn

class Detached:
    def __init__(self, config, context):
        pass

    def __call__(self, *, bottleneck):
        from drkit.core.types import StepOutput
        return StepOutput(loss=bottleneck.detach().mean())

class FailsLater:
    "Passes the trial; fails on texts that are longer."
    def __init__(self, config, context):
        from drkit.maskers import UniformConfig, UniformMasker
        self.inner = UniformMasker(UniformConfig(), context)

    def __call__(self, tokens, rng, rows=0):
        if len(tokens.ids) > 10:
            raise OverflowError("too many texts")
        return self.inner(tokens, rng, rows)
"""
BROKEN_SPECS = """
@hookimpl
def drkit_components():
    return [
        part("loss", "detached", target="late_parts:Detached", receives=("bottleneck",)),
        part("masker", "fails-later", target="late_parts:FailsLater", provides=("view", "rows")),
    ]
"""


@pytest.fixture
def texts(site):
    write_package(site, "broken-package", BROKEN_SPECS, version="0.7")
    (site / "late_parts.py").write_text(BROKEN_PACKAGE)
    file = site / "texts.jsonl"
    file.write_text(
        "".join(
            f'{{"text": "{who} {did} in {year}"}}\n'
            for who in ("ada", "alan")
            for did in ("proved", "wrote")
            for year in range(20)
        )
    )
    return file


SMALL = [
    "encoder.vocab_size=110",
    "encoder.hidden=16",
    "encoder.heads=2",
    "encoder.init_embeddings=random",
    "pretrain.max_steps=3",
    "finetune=none",
]


def composed(site, texts, *arguments):
    settings = [f"--set={setting}" for setting in SMALL]
    return drkit(
        *("compose", "--collection", f"jsonl:{texts}", *settings, "--run-dir", site / "run", *arguments),
        PYTHONPATH=path_with(site),
    )


def test_an_installed_broken_part_ends_with_one_line_before_the_first_stage(site, texts):
    code, _, err = composed(site, texts, '--set=pretrain.losses.more={use="detached", on="encoder"}')
    assert code == 2
    (line,) = err.splitlines()
    assert line.startswith("error: loss 'detached' (broken-package 0.7): the loss carries no gradient")
    assert not (site / "run").exists()


def test_an_exception_inside_a_run_names_the_part_before_its_traceback(site, texts):
    code, _, err = composed(site, texts, "--masker", "fails-later")
    assert code == 1
    said = "error in masker 'fails-later' (broken-package 0.7): OverflowError: too many texts"
    lines = err.splitlines()
    assert said in lines
    assert lines.index(said) < next(n for n, line in enumerate(lines) if line.startswith("Traceback"))
    assert lines[-1] == "OverflowError: too many texts"
