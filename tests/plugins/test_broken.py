"""Plugins that are broken, in whole or in part, or claim the names of others: each is named, and takes nobody down."""

import json
import re
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points

import attrs
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from drkit.core.registry import GROUP, Registry, discover, installed
from drkit.core.spec import ComponentSpec, NoSettings
from drkit.core.types import StepOutput
from drkit.errors import DrkitError, UnknownNameError
from drkit.maskers import UniformConfig
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.attribution import build_collection
from drkit.runs.trial import try_parts
from drkit.testing import (
    check_collection,
    check_context,
    check_decoder,
    check_filter,
    check_loss,
    check_masker,
    check_miner,
    check_signal,
    check_spec,
)
from drkit_cli.commands.listing import KINDS, PARTS
from drkit_cli.main import cli
from tests.plugins.packages import installed_with, write_package
from tests.plugins.settings import ImportsTorch, Loose
from tests.refusals import says

# Packages that cannot be loaded

LOST_RECIPE = """
@hookimpl
def drkit_components():
    return [part("masker", "sound", provides=("view", "rows"))]

@hookimpl
def drkit_recipes():
    here = Path(__file__).parent
    return {"lost": here / "lost.toml", "found": here / "found.toml", "number": 3}
"""
LOOSE = """
@define
class Loose:
    ratio: float = 0.1

@frozen
class Asking:
    ratio: float

@hookimpl
def drkit_components():
    return [part("masker", "loose", config=Loose), part("masker", "asking", config=Asking), part("masker", "sound")]
"""
BROKEN = {
    "import-error": ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    "misspelled": ("@hookimpl\ndef drkit_componets():\n    return []", "did you mean 'drkit_components'"),
    "extra-argument": ("@hookimpl\ndef drkit_components(what):\n    return []", "PluginValidationError"),
    "raises-in-hook": ("@hookimpl\ndef drkit_components():\n    return 1 / 0", "ZeroDivisionError"),
    "of-tomorrow": ("DRKIT_API = 2", "version 2 of drkit's API, and this drkit has 1; update drkit"),
    "not-a-spec": ("@hookimpl\ndef drkit_components():\n    return ['pmi']", "must return ComponentSpecs, got 'pmi'"),
    "not-an-extension": ("@hookimpl\ndef drkit_backends():\n    return [3]", "must return Extensions, got 3"),
    "exiting": ("raise SystemExit(3)", "SystemExit: 3"),
    "skipping": ("import pytest\npytest.skip('theirs', allow_module_level=True)", "Skipped: theirs"),
    "many-lines": ("raise RuntimeError('first line\\nsecond line')", "RuntimeError: first line"),
}


GOOD = """
def make(config, context):
    return ("made", config)

@hookimpl
def drkit_components():
    return [part("masker", "stranger", "good:make")]
"""


def report_of(here, name):
    return next(report for report in here.plugins if report.name == name)


@pytest.mark.parametrize("name", BROKEN)
def test_an_unknown_name_lists_the_plugins_that_failed(name, site):
    source, said = BROKEN[name]
    write_package(site, name, source)
    here = installed_with(site)
    assert said in report_of(here, name).error
    with pytest.raises(UnknownNameError) as caught:
        here.registry.get("masker", "theirs")
    assert f"Not loaded: {name} (" in str(caught.value)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(UnknownNameError, match="Not loaded"):
        compose(ComposeRequest(paper="theirs"), here)
    assert compose(ComposeRequest(), here).name == "pydocs-pmi-enhanced"


def test_all_of_them_leave_a_good_one_working_in_any_order(site):
    for name, (source, _) in BROKEN.items():
        write_package(site, name, source)
    write_package(site, "good", GOOD)
    found = [*entry_points(group=GROUP), EntryPoint("missing", "no_such_module", GROUP)]
    for here in (discover(found), discover(reversed(found))):
        assert here.registry.build("masker", "stranger")[0] == "made"
        failed = {report.name: report for report in here.plugins if report.error}
        assert {*failed} == {*BROKEN, "missing"}
        assert not any(report.specs for report in failed.values())
    assert [r.name for r in here.plugins] == [r.name for r in discover(found).plugins]


def test_a_missing_recipe_file_takes_nothing_else_away(site, command):
    (site / "found.toml").write_text(installed().recipes.get("retromae").text())
    write_package(site, "lost-recipe", LOST_RECIPE)
    here = installed_with(site)
    report = report_of(here, "lost-recipe")
    assert not report.error
    assert [spec.name for spec in report.specs] == ["sound"]
    assert compose(ComposeRequest(paper="found", masker="sound"), here).pretrain.decoders["main"].masker.use == "sound"
    with pytest.raises(DrkitError, match=r"'lost' .*lost-recipe 1\.0 .*: .*lost\.toml"):
        compose(ComposeRequest(paper="lost"), here)
    with pytest.raises(DrkitError, match=r"'number' .*lost-recipe 1\.0 .*: 'int' object"):
        here.recipes.get("number").text()
    code, out, err = command("list")
    assert code == 0, err
    assert says(out, "broken: ", "'lost'", "lost-recipe 1.0")
    code, _, err = command("show", "recipe", "lost")
    assert (code, len(err.splitlines())) == (2, 1)


def test_settings_that_are_not_frozen_or_lack_defaults_are_refused_at_load(site):
    write_package(site, "loose", LOOSE)
    here = installed_with(site)
    report = report_of(here, "loose")
    assert [spec.name for spec in report.specs] == ["sound"]
    assert any(says(problem, "masker 'loose': ", "Loose", "attrs.frozen") for problem in report.problems)
    assert any(says(problem, "masker 'asking': ", "'ratio'") for problem in report.problems)
    with pytest.raises(UnknownNameError, match=r"Not loaded: .*'loose': .*Loose .*attrs\.frozen"):
        here.registry.get("masker", "loose")


def test_what_a_plugin_prints_is_no_result_of_a_command(site, command):
    write_package(site, "talking", "print('hello from a plugin')\n\n@hookimpl\ndef drkit_components():\n    return []")
    _, out, err = command("plugins", "--json")
    assert "talking" in {plugin["name"] for plugin in json.loads(out)["plugins"]}
    assert "hello from a plugin" in err


def test_ctrl_c_while_plugins_are_loaded_ends_the_program(site):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    write_package(site, "slow", "import signal\nsignal.raise_signal(signal.SIGINT)")
    try:
        with pytest.raises(KeyboardInterrupt):
            installed_with(site)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


# Names that several packages claim: drkit's own keep working

# Claims the recipes that every `compose` starts from, and a part and a pipeline of drkit's own.
GREEDY = """
HERE = Path(__file__).parent

@frozen
class Settings:
    ratio: float = setting(0.3, None, "share of tokens")
    path: str = setting("", None, "a file")

@hookimpl
def drkit_components():
    return [
        part("masker", "pmi", config=Settings, provides=("view", "rows")),
        part("masker", "uniform", config=Settings, provides=("view", "rows")),
        part("miner", "margin", config=Settings, receives=("candidates",)),
        part("collection", "shelf", config=Settings, shorthand="path", provides=("texts", "queries", "judgements")),
        part("collection", "beir", config=Settings, shorthand="path", provides=("texts", "queries", "judgements")),
    ]

@hookimpl
def drkit_recipes():
    return {name: HERE / "own.toml" for name in ("default", "texts", "two-stage", "retromae")}

@hookimpl
def drkit_pipelines():
    return {"two-stage": HERE / "own.toml"}
"""
SHELVES = """
@frozen
class Settings:
    path: str = setting("", None, "a file")

@hookimpl
def drkit_components():
    return [part("collection", name, config=Settings, shorthand="path") for name in COLLECTIONS]

"""
OTHER = """
@hookimpl
def drkit_components():
    return [part("collection", "shelf"), part("masker", "only-mine", provides=("view", "rows"))]
"""


@pytest.fixture
def greedy(site):
    simlm = installed().recipes.get("simlm").text(small=True)
    (site / "own.toml").write_text(f"# a recipe of a stranger. A copy of SimLM's\n{simlm}")
    write_package(site, "greedy", GREEDY)
    write_package(site, "my-other", OTHER, version="2.1")
    return installed_with(site)


def test_drkits_own_names_mean_drkits_own(greedy):
    for wanted in (
        ComposeRequest(),
        ComposeRequest(scale="quick"),
        ComposeRequest(paper="retromae", masker="pmi"),
        ComposeRequest(pipeline="two-stage", collection="beir:folder", miners=("bm25", "margin")),
    ):
        assert compose(wanted, greedy) == compose(wanted, installed())
    assert greedy.registry.get("masker", "pmi").provider.startswith("drkit ")
    assert greedy.recipes.get("default") == installed().recipes.get("default")


def test_between_two_strangers_a_name_means_neither_and_the_error_names_both(greedy):
    with pytest.raises(UnknownNameError, match=r"2 times, by greedy 1\.0 and my-other 2\.1;"):
        compose(ComposeRequest(collection="shelf"), greedy)
    chosen = compose(ComposeRequest(masker="only-mine"), greedy).pretrain.decoders["main"].masker
    assert (chosen.use, greedy.registry.get("masker", "only-mine").provider) == ("only-mine", "my-other 2.1")


def test_the_word_before_a_colon_is_a_part(site):
    write_package(site, "shelves", SHELVES + "COLLECTIONS = 'old', 'beir'")
    registry = installed_with(site).registry

    def read(text):
        spec, value = registry.split("collection", text)
        return spec.provider.split()[0], spec.name, value

    assert read("beir:new") == ("drkit", "beir", "new")
    assert read("beir") == ("drkit", "beir", None)
    assert read("old:beir:x") == ("shelves", "old", "beir:x")
    with pytest.raises(DrkitError, match=r"'margin' .*`margin`"):
        registry.split("miner", "margin:3")


def test_a_name_that_one_package_registers_twice_says_so(site):
    write_package(
        site,
        "doubled",
        "@hookimpl\ndef drkit_components():\n    return [part('masker', 'same'), part('masker', 'same')]",
    )
    with pytest.raises(UnknownNameError, match=r"declared 2 times, by doubled 1\.0"):
        installed_with(site).registry.get("masker", "same")


def test_clashes_are_listed_with_the_plugins(greedy, command):
    code, out, _ = command("plugins")
    assert code == 0
    version = installed().registry.get("masker", "pmi").provider
    assert says(out, "masker 'pmi'", f"{version} and greedy 1.0; drkit's own")
    assert "recipe 'default' is declared 2 times" in out
    assert says(out, "collection 'shelf'", "greedy 1.0 and my-other 2.1; none")
    assert "pipeline 'two-stage' is declared 2 times" in out


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_of_every_kind_is_listed_and_shown(kind):
    here = installed()
    names = here.registry.names(kind) if kind in PARTS else list(here.table(kind))
    listed = CliRunner().invoke(cli, ["list", kind])
    assert listed.exit_code == 0
    assert names or kind == "stage"  # drkit has none of its own
    for name in names:
        assert name in listed.output
        shown = CliRunner().invoke(cli, ["show", kind, name])
        assert shown.exit_code == 0, (name, shown.output)
        assert shown.output.strip()


# Parts: the contract names the defect in one line, and so does a recipe before its first stage

HERE = "tests.plugins.broken"
# How the parts of a kind are declared, what checks their contract, and a recipe that uses one.
OTHER_LOSS = {"settings": ('pretrain.encoder.losses.more={use="broken"}',)}
DECLARED = {
    "masker": ("masker", {"provides": ("view",)}, check_masker, {"masker": "broken", "decoder": "mlm"}),
    "masker with rows": ("masker", {"provides": ("view", "rows")}, check_masker, {"masker": "broken"}),
    "masker of another text": (
        *("masker", {"provides": ("corrupted",), "config": UniformConfig}),
        *(lambda spec: check_masker(spec, UniformConfig(ratio=0.6)), {}),
    ),
    "context": ("context", {}, check_context, {}),
    "decoder": (
        *("decoder", {"receives": ("view",), "provides": ("token_states",)}),
        *(check_decoder, {"decoder": "broken"}),
    ),
    "decoder without view": ("decoder", {"provides": ("token_states",)}, check_decoder, {"decoder": "broken"}),
    "loss": ("loss", {"receives": ("bottleneck",)}, check_loss, OTHER_LOSS),
    "loss of tokens": ("loss", {"receives": ("token_states",)}, check_loss, OTHER_LOSS),
    "loss of pairs": ("loss", {"receives": ("pairs",), "scope": "batch"}, check_loss, {"loss": "broken"}),
    "miner": ("miner", {}, check_miner, {"miners": ("broken",)}),
    "filter": ("miner", {"receives": ("candidates",)}, check_filter, {"miners": ("bm25", "broken")}),
    "signal": ("signal", {"requires": ("characters",)}, check_signal, {"decoder": "asking"}),
    "collection": (
        *("collection", {"provides": ("texts", "queries", "judgements")}),
        *(lambda spec: check_collection(spec, NoSettings()), {"collection": "broken"}),
    ),
}
# What is said of a part, by the contract and by the trial of a recipe.
BOTH = {
    "masker": {
        "TwoViews": "a masker must return a MaskedView, got tuple",
        "HidesSpecials": "a special token or padding is a target",
        "ShortInts": "labels is torch.int32, expected int64",
    },
    "decoder": {
        "WrongStates": "token_states has states \\([0-9]+, [0-9]+\\), expected \\([0-9]+, [0-9]+\\)",
        "WrongLabels": "token_states has labels outside the vocabulary",
        "FloatLabels": "token_states has labels of torch.float32, expected int64",
        "NanStates": "token_states has values that are nan or infinite",
        "IdleWeights": "no gradient reaches its own weights never_used.weight, never_used.bias",
        "KeepsTheEmbeddings": "no gradient reaches the bottleneck",
        "AnotherName": "its spec provides token_states; its output has states",
        "NoMapping": "a decoder must return a mapping of names, got Tensor",
    },
    "loss": {
        "gives_a_float": "expected StepOutput\\(loss=..\\), got float",
        "gives_a_tensor": "expected StepOutput\\(loss=..\\), got Tensor",
        "gives_rows": "the loss.* has shape \\(8,\\), expected a scalar",
        "detaches": "the loss carries no gradient, so no gradient reaches its inputs",
        "gives_nan": "the loss.* is nan, expected a finite number",
        "has_nan_gradient": "a gradient of the loss is nan",
    },
    "loss of pairs": {
        "wants_pairs_of_its_own": "AttributeError: 'EmbeddedPairs' object has no attribute 'no_such_field'",
        "detaches_pairs": "the loss carries no gradient",
    },
    "miner": {
        "FindsPositives": "q0 has a judged positive among its negatives",
        "Unsorted": "scores do not descend",
        "TooMany": "q0 has [0-9]+ negatives, expected at most [0-9]+",
        "LeavesOneOut": "answers are not in order: expected results for q0, q1.*, got q1, q2",
        "YieldsIds": "an answer must be Mined, got tuple",
        "AsksTheCorpus": "unknown passage 'nowhere'; corpus.find\\(doc_ids\\) is -1",
    },
    "filter": {
        "Adds": "has a candidate that did not come in",
        "DropsSilently": "lost 1 candidates, but 0 are counted as dropped",
        "AsksForPositives": "unknown passage 'nowhere 3'",
    },
    "signal": {
        "OnePerText": "the signal 'broken' gave [0-9]+ values for [0-9]+ of scope 'token'",
        "Undefined": "the signal 'broken' is not finite at token 0 of [0-9]+",
        "FitsWithoutFacts": "fit\\(texts, folder\\) must return a mapping of facts, got NoneType",
        "FitsTensors": "fit\\(texts, folder\\) cannot be written as JSON",
    },
}
BY_THE_CONTRACT = {
    "masker": {
        "NotCallable": "a masker must be callable, got NotCallable",
        "RaisesWhenBuilt": "building it by .* raises KeyError: 'width'",
        "FailsOnOneText": "masking 1 text.s. with rows=0.* raises IndexError",
        "FailsOnEmptyTexts": "raises RuntimeError: ZeroDivisionError",
        "UndeclaredSignal": "the batch does not have the signal 'importance'",
        "GlobalDraws": "the same seed gives a different mask",
        "Counts": "the same seed gives a different mask",
        "CannotBePickled": "pickling it, as worker processes need, raises",
        "HidesShortestFirst": "a text's mask depends on its padding",
        "ChangesItsInput": "the masker changed its input",
        "IgnoresTheEarlierView": "a token that the view `nested` hides is visible; see make_view",
        "NeedsAnotherSetting": "building it by .* raises AttributeError: 'NoSettings' object has no attribute 'ratio'",
    },
    "masker with rows": {
        "HidesNothing": "has maskable tokens, but no targets",
        "DrawsByItself": "same seed gives a different mask",
        "LooksAtItsNeighbours": "depends on the other texts of the batch",
        "ShowsPadding": "padding is visible",
        "CountsItsRows": "what a row sees depends on the number of rows",
    },
    "masker of another text": {
        "LeavesGaps": "tokens .*padding",
        "HasTargets": "targets",
        "DeletesNothing": "not corrupted",
    },
    "context": {
        "TextBelow": "a text's context depends on the other texts of the batch",
        "OneText": "8 texts, .*got 1",
    },
    "decoder": {
        "NotCallable": "a decoder must be an nn.Module",
        "EveryTokenBackwards": "the labels of token_states are not tokens of the texts in reading order",
    },
    "decoder without view": {
        "DropsOutAlways": "a second call in eval mode gives another result",
        "ForgetsATensor": "saving and loading its weights changes the result; register every tensor",
        "NormalisesOverTheBatch": "the result of a text depends on the other texts of the batch",
        "AverageOverPadding": "padding changes the result",
        "DetachesTheVector": "no gradient reaches the bottleneck",
        "StartsAtRandom": "building it draws from the global generator",
        "TooManyRows": "rows\\(33\\) must be a number of rows from 0 to 33, got 34",
        "NoLayers": "needs_layers must be a tuple of layer numbers, got None",
    },
    "loss": {
        "ComparesRows": "scope is 'rows', but the loss of a batch is .* set scope='batch' if it compares rows",
        "SumsRows": "its scope is 'rows', but the loss of a batch is",
        "SpreadOfOne": "the loss of a batch of one is nan, expected a finite number",
        "PlainNumber": "the loss of a batch must be a tensor, got float",
        "Noisy": "a second call gives a different loss",
        "KeepsTheGraph": "the metric 'norm' is not a detached scalar tensor",
        "wants_other_words": "calling it with bottleneck raises TypeError",
    },
    "loss of tokens": {"NoGradient": "no gradient reaches its inputs"},
    "miner": {
        "Guesses": "a second run gives different negatives",
        "HoldsTheStream": "queries before its first answer; it must stream them",
    },
    "filter": {"HoldsThePairs": "stream them"},
    "signal": {
        "NoValues": "a signal must have a method `values`",
        "RelativeToAll": "the values of a text depend on the other texts, but it has no method `fit`",
        "RandomSignal": "a second run gives other values",
    },
    "collection": {
        "ReadsOnce": "passages: reading again gives something else; return a new iterator in each call",
        "SameIds": "passages: an id occurs twice",
        "UnknownPassages": "refers to a passage that the collection does not have",
        "AnySplit": "queries\\('nosuch'\\) must raise DrkitError",
        "FlagsAsGrades": "has the grade True, expected a whole number",
        "Tuples": "passages: expected Passage, got tuple",
        "ForgetsASplit": r"size\(\) must have passages, some of their lengths, and queries of every split",
    },
}
BY_THE_TRIAL = {
    "masker": {
        "MaskerThatChangesDtype": "changed torch's default dtype, called with",
        "NotCallable": "NotCallable is not callable",
        "RaisesWhenBuilt": "while it was built: KeyError: 'width' \\(.*broken.py:[0-9]+\\)",
        "WrongKeywords": "called with \\(tokens, rng, rows=.., nested=..\\): TypeError: .*unexpected keyword .*'rows'",
    },
    "decoder": {
        "NotCallable": "expected an nn.Module, got NotCallable",
        "SavesANumber": "saving the weights of state_dict\\(\\) raises",
        "SavesSparsely": "saving the weights of state_dict\\(\\) raises",
        "RegistersLate": "loading the weights of state_dict\\(\\) into a new one raises .*seen",
        "RenamesItsWeights": "loading the weights of state_dict\\(\\) into a new one raises",
        "LoadsNothing": "'scale' is another tensor after its weights are saved and loaded",
        "DefaultDtype": "changed torch's default dtype, called with",
        "GradMode": "changed torch's gradient mode, called with",
        "DefaultDevice": "changed torch's default device",
        "Deterministic": "changed torch's deterministic algorithms",
        "Threads": "changed torch's number of threads",
        "Seed": "changed torch's random seed",
        "Precision": "changed torch's precision of matrix products",
        "DtypeWhenBuilt": "changed torch's default dtype, while it was built",
        "NoSuchLayer": "while reading its rows and layers: .*40",
        "RaisesLongMessage": "RuntimeError: the first of many words .*[.][.][.] \\(.*broken.py:[0-9]+\\)",
    },
    "loss": {"wants_other_words": "called with \\(bottleneck=..\\): TypeError: .*'bottleneck'"},
    "miner": {"NoIndex": "NoIndex has no method index and no method mine"},
    "signal": {"NoValues": "NoValues has no method values"},
    "collection": {"NoSplits": "NoSplits has no method splits and no method queries"},
}
SOUND = {
    "masker": ("ReadsWords",),
    "masker with rows": ("GoodMasker", "EveryOtherWord"),
    "masker of another text": ("Deletion",),
    "context": ("NextText",),
    "decoder": ("NotContiguous", "SharesATensor", "StartsClosed", "SaysMore", "EveryToken"),
    "decoder without view": ("GoodDecoder",),
    "loss": ("GoodLoss",),
    "loss of tokens": ("LearnsAnAngle",),
    "miner": ("Miner",),
    "filter": ("GoodFilter",),
    "signal": ("GoodSignal", "Fitted"),
    "collection": ("GoodCollection", "KnowsItsSize"),
}
pytestmark = [
    pytest.mark.filterwarnings("ignore:std"),
    pytest.mark.filterwarnings("ignore:invalid value"),
    pytest.mark.filterwarnings("ignore:divide by zero"),
]


def cases(*tables):
    """(how it is declared, target, what is said) of each part of the tables."""
    return [(how, target, said) for table in tables for how, found in table.items() for target, said in found.items()]


def declared(how, target, **fields):
    kind, own, *_ = DECLARED[how]
    target = target if ":" in target else f"{HERE}:{target}"
    fields = {"config": NoSettings, **own, "provider": "stranger-package 2.3", **fields}
    return ComponentSpec(kind, "broken", target, summary="a part", **fields)


def refused(spec, check):
    """The one line that the contract says of a part."""
    with pytest.raises(AssertionError) as caught:
        check(spec)
    message = str(caught.value)
    assert message.startswith("broken")
    assert "\n" not in message
    return message


def refusal(spec, wanted):
    """The one line that the trial of a recipe ends with."""
    asking = declared("decoder", "Sound", signals=("broken",)) if spec.kind == "signal" else None
    here = installed()
    more = [attrs.evolve(asking, name="asking", receives=())] if asking else []
    parts = attrs.evolve(here, registry=Registry([*here.registry, spec, *more]))
    recipe = compose(ComposeRequest(**wanted), parts)
    with pytest.raises(DrkitError) as caught:
        (build_collection if spec.kind == "collection" else try_parts)(recipe, parts.registry)
    line = str(caught.value)
    assert line.startswith(f"{spec.kind} 'broken' (stranger-package 2.3)")
    assert len(line.splitlines()) == 1
    assert len(line) < 500
    return line


@pytest.mark.parametrize(("how", "target", "said"), cases(BOTH, BY_THE_CONTRACT))
def test_the_contract_names_the_defect(how, target, said):
    message = refused(declared(how, target), DECLARED[how][2])
    assert re.search(said, message), message


@pytest.mark.parametrize(("how", "target", "said"), cases(BOTH, BY_THE_TRIAL))
def test_a_recipe_names_the_defect_before_it_runs(how, target, said):
    line = refusal(declared(how, target), DECLARED[how][3])
    assert re.search(said, line), line


@pytest.mark.parametrize("how", SOUND)
def test_parts_without_a_defect_pass(how):
    for target in SOUND[how]:
        DECLARED[how][2](declared(how, target))


@pytest.mark.parametrize(
    ("how", "target"), [(how, target) for how in ("decoder", "loss of tokens") for target in SOUND[how]]
)
def test_a_recipe_with_parts_without_a_defect_passes_the_trial(how, target):
    here = installed()
    parts = attrs.evolve(here, registry=Registry([*here.registry, declared(how, target)]))
    try_parts(compose(ComposeRequest(**DECLARED[how][3]), parts), parts.registry)


class Three:
    """A signal of three numbers for each text."""

    def __init__(self, config, context):
        pass

    def values(self, texts, fitted):
        counts = np.diff(texts.store.offsets)
        yield np.stack([counts, counts**2, counts % 2], 1).astype(np.float32)


class ReadsThree:
    def __init__(self, config, context):
        pass

    def __call__(self, *, bottleneck, three):
        assert three.shape == (len(bottleneck), 3)
        return StepOutput((bottleneck[:, :3] * three).sum(1).mean())


def test_toy_signals_have_vectors_where_the_signal_has(monkeypatch):
    signal = ComponentSpec("signal", "three", f"{__name__}:Three", NoSettings, "a signal", scope="text")
    registry = attrs.evolve(installed(), registry=Registry([*installed().registry, signal]))
    monkeypatch.setattr("drkit.testing.data.installed", lambda: registry)
    check_loss(declared("loss", f"{__name__}:ReadsThree", signals=("three",)))


def test_a_loss_that_compares_rows_passes_if_it_says_so():
    check_loss(declared("loss", "ComparesRows", scope="batch"))


def test_a_loss_is_checked_on_what_its_decoder_returns():
    decoder = declared("decoder without view", "WithABag", provides=("token_states", "bag"))
    check_decoder(decoder)
    bag, sack = (declared("loss", "OfTheBag", receives=(name,)) for name in ("bag", "sack"))
    check_loss(bag, decoder=decoder)
    assert says(refused(bag, check_loss), "broken", "check_loss", "bag")
    assert says(refused(sack, lambda spec: check_loss(spec, decoder=decoder)), "broken", "decoder", "sack")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            "no_such_package.module:Part",
            "'no_such_package.module:Part': ModuleNotFoundError",
        ),
        (f"{HERE}:NoSuchClass", "target .*: AttributeError: .*NoSuchClass"),
        (f"{HERE}:__name__", "target .*callable"),
    ],
)
def test_targets_that_do_not_resolve(target, said):
    line = refusal(declared("masker with rows", target), {"masker": "broken"})
    assert re.search(said, line), line
    assert says(refused(declared("masker", target), check_spec), "broken", f"'{target}'")


def test_settings_that_are_not_frozen_or_import_torch():
    loose = declared("masker with rows", "TwoViews", config=Loose)
    assert says(refusal(loose, {"masker": "broken"}), "Loose", "frozen")
    assert says(refused(loose, check_spec), "Loose", "frozen")
    heavy = declared("masker", "GoodMasker", config=ImportsTorch)
    assert says(refused(heavy, check_masker), "broken", "drkit.losses.contrastive", "torch")


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

    def __call__(self, tokens, rng, rows=0, nested=None):
        if len(tokens.ids) > 10:
            raise OverflowError("too many texts")
        return self.inner(tokens, rng, rows, nested)
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


@pytest.fixture
def composed(site, texts, command):
    """`command` for a small recipe of these texts."""
    settings = [f"--set={setting}" for setting in SMALL]
    wanted = ("compose", "--collection", f"jsonl:{texts}", *settings, "--run-dir", site / "run")
    return lambda *arguments: command(*wanted, *arguments)


def test_an_installed_broken_part_ends_with_one_line_before_the_first_stage(site, composed):
    code, _, err = composed('--set=pretrain.encoder.losses.more={use="detached"}')
    assert code == 2
    (line,) = err.splitlines()
    assert line.startswith("error: loss 'detached' (broken-package 0.7): ")
    assert "gradient" in line
    assert not (site / "run").exists()


def test_an_exception_inside_a_run_names_the_part_before_its_traceback(composed):
    code, _, err = composed("--masker", "fails-later")
    assert code == 1
    said = "error in masker 'fails-later' (broken-package 0.7): OverflowError: too many texts"
    lines = err.splitlines()
    assert said in lines
    assert lines.index(said) < next(n for n, line in enumerate(lines) if line.startswith("Traceback"))
    assert lines[-1] == "OverflowError: too many texts"


def torch_settings():
    return torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled(), torch.get_num_threads()


def test_what_a_part_changed_of_torch_is_set_back():
    before = torch_settings()
    for target in ("DefaultDtype", "GradMode", "DefaultDevice", "Threads"):
        refusal(declared("decoder", target), DECLARED["decoder"][3])
        assert torch_settings() == before


@pytest.mark.parametrize("imported", [True, False])
def test_what_an_import_changes_of_torch_is_set_back(imported, tmp_path):
    code = f"""
{"import torch" if imported else ""}
from drkit.core.process_state import restored_process_state
with restored_process_state() as changed:
    import torch
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
print(changed, torch.get_default_dtype(), torch.is_grad_enabled())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == """["torch's default dtype", "torch's gradient mode"] torch.float32 True"""


def test_what_the_program_set_before_the_run_is_not_blamed_on_a_part():
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(DrkitError, match=r"^torch's default dtype is torch\.float64,.*torch\.set_default_dtype"):
            try_parts(compose(ComposeRequest(), installed()), installed().registry)
    finally:
        torch.set_default_dtype(torch.float32)
