"""The papers' own numbers: complete beside their pages, printed, composed, and shown only beside their like."""

from __future__ import annotations

import json
import re
from pathlib import Path

import attrs
import pytest

from drkit.core.registry import NamedFile, installed
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.published import arguments_of, beside_the_paper, place_of, published_beside
from drkit.recipe.toml import parse_toml, recipe_from_table, recipe_toml
from tests.cli.asked import request_of
from tests.refusals import refused, unknown
from tests.warm import drkit

PARTS = installed()
PAGES = Path(__file__).parents[2] / "docs" / "papers"
# The recipe of each page.
PAPERS = {
    "retromae": "retromae",
    "simlm": "simlm",
    "cpdae": "cpdae",
    "cdmae": "cdmae",
    "query-as-context": "cocondenser-qac",
}
PUBLISHED = {page: published_beside(PARTS.recipes.get(recipe)) for page, recipe in PAPERS.items()}
ROWS = [(page, row.name) for page, paper in PUBLISHED.items() for row in paper.rows if row.arguments]
_ROW = re.compile(r"^\| (.+?) \| (.+?) \|.*\|$", flags=re.MULTILINE)


def rows_of(page):
    """(name, options) of each row of the tables of a page whose first column is `in the paper`."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| in the paper \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    return [(name, options.strip("`")) for table in tables for name, options in _ROW.findall(table)]


def composed(page, row):
    paper = PUBLISHED[page]
    return compose(request_of(arguments_of(paper, paper.row(row), PAPERS[page])), PARTS)


@pytest.mark.parametrize("page", PAPERS)
def test_every_row_of_a_page_has_its_numbers_beside_the_recipe(page):
    found = [(row.name, row.options) for row in PUBLISHED[page].rows]
    assert len(found) >= 9
    assert found == rows_of(page)
    assert len({name for name, _ in found}) == len(found)
    base = f"Every row is `drkit compose --encoder {PUBLISHED[page].encoder} --collection COLLECTION`"
    assert base in (PAGES / f"{page}.md").read_text(encoding="utf-8")


# Read from the papers by eye, another time than the files.
@pytest.mark.parametrize(
    ("page", "table", "row", "place", "measure", "value"),
    [
        ("simlm", "table 2", "SIMLM", "msmarco-passage dev", "RR@10", 0.411),
        ("simlm", "table 8", "40% / 60%", "msmarco-passage dev", "RR@10", 0.380),
        ("retromae", "table 2", "RetroMAE", "msmarco-passage dev", "RR@10", 0.3553),
        ("retromae", "table 2", "RetroMAE", "dpr-w100/natural-questions test", "Success@100", 0.8812),
        ("retromae", "table 5", "RetroMAE", "msmarco-passage dev", "R@100", 0.927),
        ("cdmae", "table 1", "CDMAE", "msmarco-passage/trec-dl-2020/judged test", "nDCG@10", 0.711),
        ("cdmae", "table 2", "CDMAE, Hard Negatives", "msmarco-passage dev", "RR@10", 0.402),
        ("cpdae", "table 1", "CPDAE", "msmarco-document/trec-dl-2019/judged test", "nDCG@10", 0.615),
        ("query-as-context", "table 1", "retriever 2", "msmarco-passage dev", "RR@10", 0.402),
        ("query-as-context", "table 1", "retriever 1", "msmarco-passage/trec-dl-2020/judged test", "nDCG@10", 0.678),
    ],
)
def test_numbers_read_by_eye(page, table, row, place, measure, value):
    found = [
        one.measures[measure]
        for _, one in PUBLISHED[page].results()
        if one.table == table
        and row in one.row
        and f"{one.collection} {one.split}" == place
        and measure in one.measures
    ]
    assert value in found


@pytest.mark.parametrize(("page", "row"), ROWS)
def test_every_row_composes_with_what_belongs_to_it(page, row):
    recipe = composed(page, row)
    check(recipe, PARTS.registry)
    assert recipe.reproduces == f"{PAPERS[page]}: {row}"
    assert (recipe.encoder.precision, recipe.finetune.bf16) == ("bfloat16", True)
    assert not recipe.finetune.baselines
    assert (place_of(recipe) is None) is ("--collection" in PUBLISHED[page].row(row).arguments)
    # a recipe that is written is the same when it is read
    assert recipe_from_table(parse_toml(recipe_toml(recipe), "recipe"), PARTS.registry) == recipe


def test_values_stand_beside_their_like_only():
    recipe = composed("simlm", "table 5, BERT")
    assert place_of(recipe) == ("msmarco-passage", "dev")
    means = {"reranker": {"RR@10": 0.4, "nDCG@10": 0.45}, "retriever-1": {"RR@10": 0.3}}
    (found,) = beside_the_paper(recipe, means, PARTS.recipes)
    assert (found.system, found.measure, found.table) == ("reranker", "RR@10", "table 5")
    assert found.difference == pytest.approx(0.4 - found.paper)
    other = attrs.evolve(recipe.collection.config, test_datasets=("msmarco-passage/trec-dl-2019/judged",))
    elsewhere = attrs.evolve(recipe, collection=attrs.evolve(recipe.collection, config=other))
    dev = attrs.evolve(recipe, evaluation=attrs.evolve(recipe.evaluation, split="dev"))
    everyone = attrs.evolve(recipe.collection.config, test_datasets=("msmarco-passage/dev",))
    longer = attrs.evolve(recipe, collection=attrs.evolve(recipe.collection, config=everyone))
    sample = attrs.evolve(recipe, evaluation=attrs.evolve(recipe.evaluation, passages=1000))
    for no in (elsewhere, longer, sample, dev, attrs.evolve(recipe, reproduces=None)):
        assert beside_the_paper(no, means, PARTS.recipes) == []
    with unknown("row", "table 55"):
        beside_the_paper(attrs.evolve(recipe, reproduces="simlm: table 55"), means, PARTS.recipes)


def test_a_part_of_a_name_is_enough_if_only_one_row_has_it():
    paper = PUBLISHED["simlm"]
    assert paper.row("enc-dec rtd").name == "table 7, Enc-Dec RTD"
    assert PUBLISHED["retromae"].row("Table 2").name.startswith("table 2; table 6")  # two have it in their names
    with refused("rows", "table 8, 15/15"):
        paper.row("table 8")
    with unknown("row", "table 77"):
        paper.row("table 77")
    row = paper.row("table 5, BERT")
    here, elsewhere = (arguments_of(paper, row, "simlm", is_elsewhere=other) for other in (False, True))
    assert next(one for one in here if one not in elsewhere) == "--collection"
    assert not any("collection" in one for one in elsewhere)
    assert any(one.startswith("evaluation.measures=") for one in elsewhere)
    assert "encoder.titles=pair" in here
    assert "encoder.titles=pair" in elsewhere
    with refused("no run of its own"):
        arguments_of(paper, paper.row("tables 9 and 14"), "simlm")


def test_titles_are_read_as_the_authors_code_does():
    retromae = PUBLISHED["retromae"]
    assert "encoder.titles=separated" in arguments_of(retromae, retromae.row("table 2"), "retromae")
    on_beir = arguments_of(retromae, retromae.row("table 1, RetroMAE"), "retromae")
    assert not any(one.startswith("encoder.titles") for one in on_beir)
    cdmae = PUBLISHED["cdmae"]
    assert not any(one.startswith("encoder.titles") for one in arguments_of(cdmae, cdmae.rows[0], "cdmae"))


def test_files_of_ms_marco_are_known_by_both_of_their_numbers():
    settings = ("evaluation.split=dev",)
    request = ComposeRequest(paper="simlm", encoder="bert", collection="trec:marco", settings=settings)
    recipe = compose(request, PARTS)
    counts = {"passages": 8_841_823, "queries": {"train": 502_939, "dev": 6_980}}
    assert place_of(recipe, counts) == ("msmarco-passage", "dev")
    sample = attrs.evolve(recipe, evaluation=attrs.evolve(recipe.evaluation, passages=1000))
    test = attrs.evolve(recipe, evaluation=attrs.evolve(recipe.evaluation, split="test"))
    fewer = {**counts, "queries": {"dev": 6_979}}
    assert place_of(sample, counts) is place_of(test, counts) is place_of(recipe, fewer) is place_of(recipe) is None


def test_a_damaged_file_is_refused_with_every_problem(tmp_path):
    (tmp_path / "results.toml").write_text(
        'title = "A"\nsource = "B"\n[[rows]]\nname = "x"\noptions = ""\n[[rows.results]]\ntable = "t"\nrow = "r"\n'
        'collection = "c"\nsplit = "dev"\nmeasures = {"RR@10" = 41.1}\n[[quoted]]\nrow = "r"\n'
    )
    file = NamedFile("a", tmp_path / "a.toml", "b", results=tmp_path / "results.toml")
    with refused("measures", "table"):
        published_beside(file)
    with refused("no results.toml"):
        published_beside(NamedFile("a", tmp_path / "a.toml", "b"))


def test_the_commands_print_them(tmp_path):
    code, out, _ = drkit("show", "recipe", "simlm", "--results", "--json", cwd=tmp_path)
    shown = json.loads(out)
    assert code == 0
    assert sum(len(one["measures"]) for one in shown["results"]) == 128
    code, out, _ = drkit("show", "recipe", "simlm", "--results", cwd=tmp_path)
    assert code == 0
    assert "table 2: SIMLM" in out
    code, out, _ = drkit("reproduce", "simlm", cwd=tmp_path)
    assert code == 0
    assert "table 7, Enc-Dec RTD" in out
    code, out, _ = drkit("reproduce", "simlm", "--json", cwd=tmp_path)
    assert [row["name"] for row in json.loads(out)["rows"]] == [row.name for row in PUBLISHED["simlm"].rows]
    for wrong, said in (
        (("show", "masker", "pmi", "--results"), "paper's recipe"),
        (("show", "recipe", "default", "--results"), "no results.toml"),
        (("reproduce", "simlm", "--dry-run"), "name the row before the options"),
        (("reproduce", "simlm", "table 77"), "no row named"),
    ):
        code, _, err = drkit(*wrong, cwd=tmp_path)
        assert code == 2, wrong
        assert said in " ".join(err.split())


def test_papers_numbers_are_in_mixed_precision_where_a_gpu_is(run_drkit, tmp_path, monkeypatch):
    paper = ("compose", "--paper", "cdmae", "--set", "finetune.bf16=false", "--dry-run", "-o", str(tmp_path / "r.toml"))
    for has_gpu, scale, found in (
        (True, "paper", [True, False, True]),
        (True, "small", [False] * 2),
        (False, "paper", [False] * 3),
    ):
        monkeypatch.setattr("drkit.runs.costs.has_gpu", lambda has_gpu=has_gpu: has_gpu)
        code, out, err = run_drkit(*paper, "--scale", scale)
        assert code == 0, err
        made = parse_toml((tmp_path / "r.toml").read_text(), "recipe")
        assert [made[name]["bf16"] for name in ("pretrain", "finetune", "reranker") if name in made] == found
        assert ("pretrain.bf16 and reranker.bf16: mixed precision" in " ".join(out.split())) is (True in found)


def test_a_row_is_planned_without_a_download(tmp_path):
    code, _, err = drkit("reproduce", "simlm", "table 5, BERT", "--dry-run", "-o", "r.toml", cwd=tmp_path)
    assert code == 0, err
    assert "drkit compose --encoder" in err
    assert "have titles" in " ".join(err.split())
    assert 'reproduces = "simlm: table 5, BERT"' in (tmp_path / "r.toml").read_text()
    given = ("--json", "--set", "pretrain.max_steps=7", "--dry-run")
    code, out, _ = drkit("reproduce", "simlm", "table 5, BERT", *given, cwd=tmp_path)
    assert code == 0
    assert json.loads(out)["recipe"]["pretrain"]["max_steps"] == 7
