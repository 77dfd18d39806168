"""The numbers that a paper prints, beside the recipes that are to reach them: `results.toml`.

A row has the options of `drkit compose` that make it, and the paper's numbers, each of a system of the run, on a
collection and split. `quoted` are the other systems of the paper's tables. `drkit show recipe simlm --results` prints
them, and `drkit reproduce simlm "table 5, BERT"` composes a row.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import Attribute, Factory, evolve, field, frozen
from attrs.validators import in_, min_len
from cattrs import BaseValidationError, Converter, transform_error

from drkit.core.protocols import NamesDataset
from drkit.core.registry import NamedFile, NameTable
from drkit.data.titles import JOINED, TITLES
from drkit.errors import DrkitError, UnknownNameError
from drkit.recipe.schema import Recipe
from drkit.recipe.toml import parse_toml


def _check_shares(_result: object, attribute: Attribute[Any], value: Mapping[str, float]) -> None:
    wrong = [f"{measure} = {one}" for measure, one in value.items() if not 0 <= one <= 1]
    if wrong or not value:
        raise ValueError(f"'{attribute.name}' must be shares from 0 to 1, got {', '.join(wrong) or 'none'}")


@frozen
class PublishedResult:
    """Numbers of one cell or more of a paper's table: in its words (`table`, `row`), and in drkit's.

    stage: the system of a run that corresponds, as in `drkit evaluate RUN`; empty if the paper does not say, or for a
    quoted system. collection: an id of ir_datasets without `irds:`. measures: fractions by ir_measures name.
    """

    table: str = field(validator=min_len(1))
    row: str = field(validator=min_len(1))
    collection: str = field(validator=min_len(1))
    split: str = field(validator=min_len(1))
    measures: Mapping[str, float] = field(validator=_check_shares)
    stage: str = ""


@frozen
class PublishedRow:
    """A row of the paper that drkit composes: its name on the paper's page, and the options that make it.

    options: of `drkit compose`, as in a shell. A row without `--paper` or parts in them is no run of its own, such as
    one that compares others.
    """

    name: str = field(validator=min_len(1))
    options: str
    results: tuple[PublishedResult, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """The options as a list; empty for a row that is no run of its own."""
        found = shlex.split(self.options)
        return found if found and found[0].startswith("--") else []


@frozen
class PublishedPaper:
    """A paper, the encoder that its runs start from, the rows that drkit composes, and the quoted ones.

    titles: how the authors' encoder reads titles (`encoder.titles`). differs: what no option of a row brings about,
    such as texts that ir_datasets does not have.
    """

    title: str
    source: str
    encoder: str
    rows: tuple[PublishedRow, ...]
    quoted: tuple[PublishedResult, ...] = Factory(tuple)
    differs: str = ""
    titles: str = field(default=JOINED, validator=in_(TITLES))

    def row(self, name: str) -> PublishedRow:
        """Return a row by its name, one of its names, or a part of it that only one has, without regard to case.

        Raises UnknownNameError for none, and DrkitError for several.
        """
        names, asked = [row.name for row in self.rows], name.casefold()
        found = [row for row in self.rows if row.name == name]
        found = found or [row for row in self.rows if asked in row.name.casefold().split("; ")]
        found = found or [row for row in self.rows if asked in row.name.casefold()]
        if not found:
            raise UnknownNameError("row", name, names, where=self.title)
        if len(found) > 1:
            several = "; ".join(repr(row.name) for row in found)
            raise DrkitError(f"{name!r} is in the names of {len(found)} rows: {several}; give more of one")
        return found[0]

    def results(self) -> Iterator[tuple[str, PublishedResult]]:
        """Yield all numbers of the paper, each with the name of its row; empty for a quoted one."""
        for row in self.rows:
            yield from ((row.name, result) for result in row.results)
        yield from (("", result) for result in self.quoted)


def published_beside(recipe: NamedFile) -> PublishedPaper:
    """Return what the paper of a recipe prints, from the file beside it.

    Raises DrkitError if there is none, or with every problem of the file.
    """
    if recipe.results is None:
        raise DrkitError(
            f"no numbers are known of the paper of {recipe.name!r}: there is no results.toml beside its recipe"
        )
    where = f"results.toml of {recipe.name!r} ({recipe.provider})"
    table = parse_toml(recipe.results.read_text(encoding="utf-8"), where)
    try:
        return Converter(forbid_extra_keys=True).structure(table, PublishedPaper)
    except (BaseValidationError, ValueError, TypeError) as error:
        raise DrkitError(f"{where}: {'; '.join(transform_error(error, path='results'))}") from None


# What a run on a collection of the papers needs, as options of `drkit compose`.
_MEASURES = '--set evaluation.measures=["RR@10","nDCG@10","R@50","R@100","R@1000"]'
_COLLECTIONS = {
    "msmarco-passage": (
        "--collection irds:msmarco-passage --set collection.train_dataset=msmarco-passage/train/judged "
        f"--set collection.test_datasets=['msmarco-passage/dev/small'] --set collection.dev_share=0.001 {_MEASURES}"
    ),
    "msmarco-document": (
        "--collection irds:msmarco-document --set collection.train_dataset=msmarco-document/train "
        f"--set collection.test_datasets=['msmarco-document/dev'] --set collection.dev_share=0.001 {_MEASURES}"
    ),
    "dpr-w100/natural-questions": (
        "--collection irds:dpr-w100 --set collection.train_dataset=dpr-w100/natural-questions/train "
        "--set collection.test_datasets=['dpr-w100/natural-questions/dev'] --set collection.dev_share=0.01 "
        '--set evaluation.measures=["Success@20","Success@100"]'
    ),
}
_FIRST = "msmarco-passage"
# Papers train in mixed precision, and compare with no untrained encoder.
_AS_PAPERS_RUN = (
    "encoder.precision=bfloat16",
    "pretrain.bf16=true",
    "finetune.bf16=true",
    "finetune.baselines=[]",
    "evaluation.start=false",
    "evaluation.depth=1000",
)


def arguments_of(paper: PublishedPaper, row: PublishedRow, name: str, *, is_elsewhere: bool = False) -> list[str]:
    """Return the arguments of `drkit compose` that make a row of a paper, on the first collection of its numbers.

    name: of the recipe that the row is asked of. is_elsewhere: whether another collection follows, so that none is
    named here, only its measures. Raises DrkitError for a row that is no run of its own.
    """
    if not row.arguments:
        raise DrkitError(f"the row {row.name!r} of {name} is no run of its own: {row.options}")
    known = next((one.collection for one in row.results if one.collection in _COLLECTIONS), _FIRST)
    collection = [] if "--collection" in row.arguments else _COLLECTIONS[known].split(" ")
    if is_elsewhere:
        measures = [one for one in collection if one.startswith("evaluation.")]
        collection = [word for one in measures for word in ("--set", one)]
    titles = [f"encoder.titles={paper.titles}"] if collection and paper.titles != JOINED else []
    settings = (*_AS_PAPERS_RUN, *titles, f"reproduces={json.dumps(f'{name}: {row.name}')}")
    return [
        *("--encoder", paper.encoder, *collection),
        *(word for one in settings for word in ("--set", one)),
        *row.arguments,
    ]


# MS MARCO's passages and the dev queries that papers report, by which files of them are known, with titles or without.
MSMARCO_SIZE = (8_841_823, 6_980)


def place_of(recipe: Recipe, counts: Mapping[str, Any] | None = None) -> tuple[str, str] | None:
    """Return the collection and split, in the words of results.toml, on which a run of a recipe is evaluated.

    counts: of the run's collection: `passages`, and `queries` by split. None for a sample of texts, for another split
    than `test`, and for texts that are known neither by an id of ir_datasets nor by both numbers of MS MARCO. The
    papers' dev queries of MS MARCO's passages are `dev/small`, not all of them.
    """
    config, split = recipe.collection.config, recipe.evaluation.split
    size = (counts["passages"], counts["queries"].get(split)) if counts else None
    is_named = isinstance(config, NamesDataset)
    if not is_named and recipe.evaluation.passages is None and size == MSMARCO_SIZE:
        return _FIRST, "dev"
    dataset = config.test_dataset if is_named and split == "test" else None
    if dataset is None or recipe.evaluation.passages is not None or dataset == "msmarco-passage/dev":
        return None
    for suffix, split in (("/dev/small", "dev"), ("/dev", "dev"), ("/test", "test")):
        if dataset.endswith(suffix):
            return dataset.removesuffix(suffix), split
    return dataset, "test"


@frozen
class BesideThePaper:
    """A value of a run beside that of the paper, and the table of the paper that prints it."""

    system: str
    measure: str
    paper: float
    here: float
    table: str

    @property
    def difference(self) -> float:
        """How much higher the value of the run is."""
        return self.here - self.paper


def beside_the_paper(
    recipe: Recipe,
    means: Mapping[str, Mapping[str, float]],
    recipes: NameTable[NamedFile],
    counts: Mapping[str, Any] | None = None,
) -> list[BesideThePaper]:
    """Return the values of a run for which its paper prints one: same system, collection, split and measure.

    means: by system and measure. counts: of the run's collection, see `place_of`. Empty for a recipe that reproduces no
    row. A value that the paper prints differently in two tables is left out.

    Raises DrkitError if the paper or the row is not known (any more).
    """
    place = place_of(recipe, counts)
    if recipe.reproduces is None or place is None:
        return []
    results = _results_of(recipe.reproduces, recipes)
    return [one for system, values in means.items() for one in _beside(results, system, place, values)]


# The data sets of BEIR by the names of their folders: passages and judged queries, by table 1 of Thakur et al. 2021.
BEIR_SIZES = {
    "trec-covid": (171_332, 50),
    "nfcorpus": (3_633, 323),
    "bioasq": (14_914_602, 500),
    "nq": (2_681_468, 3_452),
    "hotpotqa": (5_233_329, 7_405),
    "fiqa": (57_638, 648),
    "signal1m": (2_866_316, 97),
    "trec-news": (594_977, 57),
    "robust04": (528_155, 249),
    "arguana": (8_674, 1_406),
    "webis-touche2020": (382_545, 49),
    "cqadupstack": (457_199, 13_145),
    "quora": (522_931, 10_000),
    "dbpedia-entity": (4_635_922, 400),
    "scidocs": (25_657, 1_000),
    "fever": (5_416_568, 6_666),
    "climate-fever": (5_416_593, 1_535),
    "scifact": (5_183, 300),
}


def beside_beir(
    recipe: Recipe,
    system: str,
    means: Mapping[str, Mapping[str, float]],
    sizes: Mapping[str, tuple[int, int]],
    recipes: NameTable[NamedFile],
) -> list[BesideThePaper]:
    """Return the values of a run's encoder on data sets of BEIR for which its paper prints one; `system`: the data set.

    system: the one that the run has exported. means: by the name of the data set's folder, and measure. sizes: passages
    and judged queries by that name. A folder is the data set of its name only if both are as BEIR says.

    Raises DrkitError as `beside_the_paper` does.
    """
    if recipe.reproduces is None:
        return []
    results = _results_of(recipe.reproduces, recipes)
    return [
        evolve(one, system=name)
        for name, values in means.items()
        if BEIR_SIZES.get(name) == sizes[name]
        for one in _beside(results, system, (f"beir/{name}", "test"), values)
    ]


def _results_of(reproduced: str, recipes: NameTable[NamedFile]) -> tuple[PublishedResult, ...]:
    """Return the numbers of the row that a run reproduces, as in `Recipe.reproduces`."""
    name, _, row = reproduced.partition(": ")
    return published_beside(recipes.get(name)).row(row).results


def _beside(
    results: tuple[PublishedResult, ...], system: str, place: tuple[str, str], values: Mapping[str, float]
) -> Iterator[BesideThePaper]:
    """Yield the values of a system at a collection and split for which there is one number of the paper."""
    printed: dict[str, set[tuple[float, str]]] = {}
    for one in results:
        if (one.stage, one.collection, one.split) == (system, *place):
            for measure, value in one.measures.items():
                printed.setdefault(measure, set()).add((value, one.table))
    for measure, cells in printed.items():
        if measure in values and len({value for value, _ in cells}) == 1:
            paper, table = min(cells)
            yield BesideThePaper(system, measure, paper, values[measure], table)
