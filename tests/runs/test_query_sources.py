"""Sources of training queries: those of plugins beside drkit's own, resumed after a kill, and checked."""

import json

import pytest
from attrs import frozen

from drkit.core.engine import LocalEngine
from drkit.core.registry import Registry, installed
from drkit.core.settings import setting
from drkit.core.spec import Choice, ComponentSpec, Kind, NoSettings
from drkit.core.types import Passage
from drkit.data.queries import read_queries, write_computed
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import recipe_from_table, recipe_table
from drkit.runs.downloads import downloads
from drkit.runs.execute import execute
from drkit.runs.manifest import read_manifest
from drkit.runs.plan import plan
from drkit.runs.trial import try_parts
from drkit.testing import check_queries
from drkit.testing.specs import ContractError
from tests.refusals import says
from tests.runs.test_pseudo_queries import TINY, Notes, beir  # noqa: F401


@frozen
class AsksConfig:
    """Settings of `Asks`."""

    opening: str = setting("what is", None, "words before the title")


class Asks:
    """Asks what the title of each passage is; counts the passages that it was called with."""

    asked = 0

    def __init__(self, config, _context=None):
        self.config = config

    def queries(self, passages):
        """Yield a query for each title."""
        for passage in passages:
            type(self).asked += 1
            yield passage.doc_id, f"{self.config.opening} {passage.title or passage.text[:20]}"


ASKS = ComponentSpec(Kind.QUERIES, "asks", f"{__name__}:Asks", AsksConfig, "Asks what the title is")
PARTS = installed()
REGISTRY = Registry([*PARTS.registry, ASKS])


def recipe_of(collection, sources, *settings):
    own = ("pretrain=none", "pseudo_queries.round_trip=0", f"pseudo_queries.sources={sources}")
    request = ComposeRequest(pipeline="texts", collection=f"beir:{collection}", settings=(*TINY, *own, *settings))
    return compose(request, type(PARTS)(REGISTRY, PARTS.recipes, PARTS.plugins, PARTS.pipelines, PARTS.extensions))


def made(recipe, folder, notes=None):
    stages = plan(recipe, REGISTRY).stages
    names = [stage.name for stage in stages]
    chosen = stages[: names.index("pseudo-queries") + 1]
    execute(chosen, folder, recipe, registry=REGISTRY, progress=notes or Notes(), redo=True)
    return read_manifest(folder / "pseudo-queries")


def test_a_plugins_source_is_written_read_and_made_as_drkits_own(beir, tmp_path):  # noqa: F811
    recipe = recipe_of(beir, "['crops', {use='asks', opening='where is'}, 'asks']")
    table = recipe_table(recipe)
    assert table["pseudo_queries"]["sources"] == [
        "crops",
        {"use": "asks", "opening": "where is"},
        {"use": "asks", "opening": "what is"},
    ]
    assert recipe_from_table(table, REGISTRY) == recipe
    try_parts(recipe, REGISTRY)
    notes = Notes()
    manifest = made(recipe, tmp_path / "run", notes)
    assert {*manifest.metrics} == {"crops", "asks (2)", "asks (3)"}
    assert manifest.metrics["asks (2)"]["kept"] == 132
    assert manifest.settings["pseudo_queries.sources.1.opening"] == "where is"
    found = dict(read_queries(tmp_path / "run" / "pseudo-queries" / "queries-2.jsonl"))
    assert found["lion-bear"] == "where is the lion and the bear"
    other = made(recipe_of(beir, "['crops', {use='asks', opening='who is'}, 'asks']"), tmp_path / "run")
    assert other.fingerprint != manifest.fingerprint


def test_names_alone_stay_what_they_were(beir):  # noqa: F811
    recipe = recipe_of(beir, "['extractive', 'titles', 'model:no/such']")
    assert recipe_table(recipe)["pseudo_queries"]["sources"] == ["extractive", "titles", "model:no/such"]
    assert downloads(recipe) == ["no/such"]
    assert recipe_of(beir, "crops").pseudo_queries.sources == (Choice("crops", NoSettings()),)


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ("['asked']", "did you mean 'asks'"),
        ("['asks', 'asks']", "each once"),
        ("['file:']", "needs 'path'"),
        ("['titles:x']", "titles"),
        ("[{use='asks', closing='?'}]", "'closing'"),
    ],
)
def test_wrong_sources_are_refused_in_the_plan(sources, said, beir):  # noqa: F811
    with pytest.raises((ProblemsError, DrkitError)) as caught:
        check(recipe_of(beir, sources), REGISTRY)
    assert says(str(caught.value), said)


def test_a_kill_loses_at_most_a_chunk(tmp_path):
    passages = [Passage(f"d{n}", f"the text of number {n} is here", f"title {n}") for n in range(700)]
    whole = write_computed(Asks(AsksConfig()), passages, tmp_path / "whole.jsonl", made_by="asks", name="asks")

    class Killed(LocalEngine):
        def run(self, tasks):
            for number, task in enumerate(tasks):
                if number == 2:
                    raise KeyboardInterrupt
                yield task.function(*task.arguments)

    path = tmp_path / "killed.jsonl"
    with pytest.raises(KeyboardInterrupt):
        write_computed(Asks(AsksConfig()), passages, path, made_by="asks", name="asks", engine=Killed())
    Asks.asked = 0
    write_computed(Asks(AsksConfig()), passages, path, made_by="asks", name="asks")
    assert Asks.asked == 700 - 2 * 256
    assert path.read_bytes() == whole.read_bytes()
    assert [file.name for file in tmp_path.iterdir() if "parts" in file.name] == []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0] == {"doc_id": "d0", "queries": ["what is title 0"]}


class Yields:
    """A source that yields what a function makes of the passages."""

    def __init__(self, config, context=None):
        pass

    def queries(self, passages):
        """Yield what the function makes."""
        return type(self).function(passages)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda passages: [one.title for one in passages], "must yield"),
        (lambda passages: [("nowhere", "a query") for _ in passages], "'nowhere'"),
        (lambda passages: [(one.doc_id, one.content) for one in passages], "not all of it"),
        (lambda passages: [(one.doc_id, f"{len(passages)} of {one.doc_id}") for one in passages], "other passages"),
        (lambda passages: [(one.doc_id, f"at {next(COUNT)}") for one in passages], "second call"),
    ],
)
def test_the_contract_says_what_is_broken(function, said):
    Yields.function = staticmethod(function)
    spec = ComponentSpec(Kind.QUERIES, "yields", f"{__name__}:Yields", NoSettings, "Yields queries")
    with pytest.raises((ContractError, DrkitError), match=said):
        check_queries(spec)


COUNT = iter(range(10**6))


def test_the_contract_passes():
    Yields.function = staticmethod(lambda passages: [(one.doc_id, f"the end {one.text[-9:]}") for one in passages])
    check_queries(ComponentSpec(Kind.QUERIES, "yields", f"{__name__}:Yields", NoSettings, "Yields queries"))
