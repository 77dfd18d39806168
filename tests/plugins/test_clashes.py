"""Names that several packages claim: drkit's own keep working, and everyone's can be named."""

import pytest

from drkit.core.registry import installed
from drkit.errors import DrkitError, UnknownNameError
from drkit.recipe.compose import ComposeRequest, compose
from drkit_cli.commands.listing import KINDS, PARTS
from tests.plugins.packages import installed_with, path_with, write_package
from tests.warm import drkit

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
    return {name: HERE / "own.toml" for name in ("default", "transformer", "two-stage", "retromae")}

@hookimpl
def drkit_pipelines():
    return {"two-stage": HERE / "own.toml"}
"""
OTHER = """
@hookimpl
def drkit_components():
    return [part("collection", "shelf"), part("masker", "only-mine", provides=("view", "rows"))]
"""


@pytest.fixture
def greedy(site):
    simlm = installed().recipe("simlm").text(small=True)
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
    assert greedy.recipe("default") == installed().recipe("default")


def test_everyones_part_is_named_by_its_package(greedy):
    found = compose(ComposeRequest(masker="greedy:pmi", collection="greedy:beir:folder"), greedy)
    masker = found.pretrain.decoders["main"].masker
    assert (masker.use, masker.config.ratio) == ("greedy:pmi", 0.5)
    assert (found.collection.use, found.collection.config.path) == ("greedy:beir", "folder")
    assert found.name == "folder-greedy-pmi-enhanced", "after the folder that it is to read"
    assert compose(ComposeRequest(masker="drkit:pmi"), greedy) == compose(ComposeRequest(masker="pmi"), greedy)
    assert (
        compose(ComposeRequest(masker="my_other:only-mine"), greedy).pretrain.decoders["main"].masker.use == "only-mine"
    )
    chained = compose(ComposeRequest(miners=("run-file:x.trec", "greedy:margin")), greedy).finetune.rounds[0].miners
    assert [c.use for c in chained] == ["run-file", "greedy:margin"]
    assert chained[0].config.path == "x.trec"
    assert (
        compose(ComposeRequest(paper="greedy:retromae"), greedy).pretrain
        == compose(ComposeRequest(paper="simlm"), greedy).pretrain
    )


def test_a_recipe_names_a_strangers_part_and_reads_back(greedy):
    from drkit.recipe.toml import parse_toml, recipe_from_table, recipe_toml

    wanted = ComposeRequest(
        settings=('pretrain.decoders.main.masker.use="greedy:pmi"', "pretrain.decoders.main.masker.ratio=0.4")
    )
    found = compose(wanted, greedy)
    assert found.pretrain.decoders["main"].masker.config.ratio == 0.4
    assert recipe_from_table(parse_toml(recipe_toml(found), "recipe"), greedy.registry) == found


def test_between_two_strangers_a_bare_name_is_an_error_that_names_both(greedy):
    with pytest.raises(DrkitError, match=r"greedy 1\.0 and my-other 2\.1; write 'greedy:shelf' or 'my-other:shelf'"):
        compose(ComposeRequest(collection="shelf"), greedy)
    assert compose(ComposeRequest(collection="greedy:shelf:a:b"), greedy).collection.config.path == "a:b"
    assert compose(ComposeRequest(collection="my-other:shelf"), greedy).collection.use == "my-other:shelf"
    with pytest.raises(UnknownNameError, match=r"greedy:shelf, .*my-other:shelf"):
        compose(ComposeRequest(collection="shelves"), greedy)


def test_the_word_before_a_colon_is_a_part_of_drkits_own_first_then_a_package_then_a_part(site):
    write_package(
        site,
        "beir",  # a package with the name of a part of drkit's own
        """
        @frozen
        class Settings:
            path: str = setting("", None, "a file")

        @hookimpl
        def drkit_components():
            return [part("collection", name, config=Settings, shorthand="path") for name in ("beir", "old", "new")]
        """,
    )
    write_package(
        site,
        "old",
        """
        @frozen
        class Settings:
            path: str = setting("", None, "a file")

        @hookimpl
        def drkit_components():
            return [part("collection", name, config=Settings, shorthand="path") for name in ("shelf", "box")]
        """,
    )
    registry = installed_with(site).registry

    def read(text):
        spec, value = registry.split("collection", text)
        return spec.provider.split()[0], spec.name, value

    assert read("beir:new") == ("drkit", "beir", "new")
    assert read("beir") == ("drkit", "beir", None)
    assert read("old:shelf") == ("old", "shelf", None)
    assert read("old:shelf:x") == ("old", "shelf", "x")
    assert read("old:letters") == ("beir", "old", "letters")
    assert read("new:x") == ("beir", "new", "x")
    assert registry.get("collection", "beir:beir").provider == "beir 1.0"
    with pytest.raises(DrkitError, match="'margin' takes no value after a colon; write `margin`"):
        registry.split("miner", "margin:3")


def test_a_name_that_one_package_registers_twice_says_so(site):
    write_package(
        site,
        "doubled",
        "@hookimpl\ndef drkit_components():\n    return [part('masker', 'same'), part('masker', 'same')]",
    )
    with pytest.raises(DrkitError, match=r"registered twice by doubled 1\.0"):
        installed_with(site).registry.get("masker", "same")


def test_clashes_are_marked_where_parts_are_listed(greedy, site):
    code, out, _ = drkit("list", "masker", PYTHONPATH=path_with(site))
    assert code == 0
    assert "masker 'pmi' is claimed by drkit and greedy: 'pmi' means drkit's, write 'greedy:pmi' for the other" in out
    assert "greedy:pmi " in out
    code, out, _ = drkit("list", "recipe", PYTHONPATH=path_with(site))
    assert "recipe 'default' is claimed by drkit and greedy" in out
    assert "a recipe of a stranger" in out
    code, out, _ = drkit("plugins", PYTHONPATH=path_with(site))
    assert code == 0
    assert "collection 'shelf' is claimed by greedy and my-other: write 'greedy:shelf' or 'my-other:shelf'" in out
    assert "pipeline 'two-stage' is claimed by drkit and greedy" in out
    code, out, _ = drkit("show", "masker", "greedy:pmi", PYTHONPATH=path_with(site))
    assert "share of tokens" in out
    code, _, err = drkit(
        "compose", "--masker", "greedy:pmi", "--decoder", "enhanced", "--dry-run", PYTHONPATH=path_with(site)
    )
    assert code == 0, err


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_of_every_kind_is_listed_and_shown(kind):
    from click.testing import CliRunner

    from drkit_cli.main import cli

    here = installed()
    names = here.registry.names(kind) if kind in PARTS else list(here.table(kind))
    listed = CliRunner().invoke(cli, ["list", kind])
    assert listed.exit_code == 0
    assert names or kind == "pooling", "those of drkit are no parts"
    for name in names:
        assert name in listed.output
        shown = CliRunner().invoke(cli, ["show", kind, name])
        assert shown.exit_code == 0, (name, shown.output)
        assert shown.output.strip()


def test_an_unknown_package_is_named():
    with pytest.raises(DrkitError, match="no package 'nobody' provides a masker named 'pmi'; write 'pmi'"):
        compose(ComposeRequest(masker="nobody:pmi"), installed())
    with pytest.raises(UnknownNameError, match="no masker named 'nobody'"):
        compose(ComposeRequest(masker="nobody:nothing"), installed())
