"""The trial uses the first texts, queries and values of a run's own collection, which a part may have looked up."""

import json

import attrs
import pytest
import torch

from drkit.core.registry import Registry, installed
from drkit.core.spec import ComponentSpec, NoSettings
from drkit.core.types import StepOutput
from drkit.errors import DrkitError
from drkit.maskers import UniformConfig, UniformMasker
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.attribution import build_collection
from drkit.runs.trial import first_examples, try_parts
from drkit.testing import check_column, check_loss, check_signal, toys
from drkit.testing.specs import ContractError

KNOWN = [
    f"the story of the {animal} in the forest is a long one"
    for animal in ["fox", "owl", "hare", "deer", "boar", "wolf"]
]
KNOWN += ["a tale of wolves and bears in winter", "what the raven told the old bear in spring"]
LISTED = [*KNOWN, "", "Turing and Lovelace in Berlin"]
ASKED = ("where is the fox", "who is the owl")


class Lookup:
    """The length of texts that are known; None of others."""

    def __init__(self, _config, _context):
        pass

    def values(self, items):
        yield from (float(len(one.text)) if one.text in ASKED else None for one in items)


class Rarity:
    """A number per text, which it knows only for the texts of its list."""

    def __init__(self, _config, _context):
        pass

    def values(self, texts, _folder):
        yield torch.tensor([1.0 + LISTED.index(text) for text, _ in texts.read()]).numpy()


class Positive:
    """A loss that is undefined unless its column is positive."""

    def __init__(self, _config, _context):
        pass

    def __call__(self, pairs):
        value = (pairs.queries.sum(1) * pairs.column("seconds").log()).mean() + pairs.passages.sum()
        return StepOutput(loss=value)


class RarityMasker(UniformMasker):
    """A masker that reads the signal above."""

    def __init__(self, config, context):
        super().__init__(config, context)


def _spec(kind, name, target, config=NoSettings, **more):
    return ComponentSpec(kind, name, f"{__name__}:{target}", config, f"A {kind}.", **more)


LOOKUP = _spec("column", "lookup", "Lookup", scope="query")
RARITY = _spec("signal", "rarity", "Rarity", scope="text")
POSITIVE = _spec("loss", "positive", "Positive", receives=("pairs", "seconds"))
MASKER = _spec("masker", "by-rarity", "RarityMasker", UniformConfig, provides=("view",), signals=("rarity",))
PARTS = installed()
OURS = attrs.evolve(PARTS, registry=Registry([*PARTS.registry, LOOKUP, RARITY, POSITIVE, MASKER]))


@pytest.fixture
def folder(tmp_path):
    """A collection of files whose queries and texts the parts of this test know."""
    texts = [{"_id": f"d{row}", "title": "", "text": text} for row, text in enumerate(KNOWN)]
    queries = [{"_id": f"q{row}", "text": text} for row, text in enumerate(ASKED)]
    (tmp_path / "qrels").mkdir()
    for name, rows in (("corpus", texts), ("queries", queries)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    for split, row in (("train", "q0\td0\t1"), ("test", "q1\td1\t1")):
        (tmp_path / f"qrels/{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{row}\n", encoding="utf-8")
    return tmp_path


def _tried(folder, *settings, on_files=True, masker=None):
    recipe = compose(ComposeRequest(collection=f"beir:{folder}", settings=settings, masker=masker), OURS)
    collection = build_collection(recipe, OURS.registry) if on_files else None
    try_parts(recipe, OURS.registry, collection)


COLUMN = ("finetune.loss=positive", "finetune.columns={seconds={use='lookup', default=2.0}}")


def test_a_column_and_its_loss_are_tried_on_the_first_queries(folder):
    _tried(folder, *COLUMN)


def test_a_default_takes_the_place_of_values_that_are_none(folder):
    _tried(folder, *COLUMN, on_files=False)  # of toy queries, which the part does not know


def test_without_values_and_default_the_part_is_named(folder):
    settings = COLUMN[0], "finetune.columns={seconds='lookup'}"
    with pytest.raises(DrkitError, match=r"column 'lookup' .*every value is None, and it has no default$"):
        _tried(folder, *settings, on_files=False)


def test_the_values_of_a_file_are_those_that_a_loss_is_tried_on(folder):
    lines = ["query_id\tseconds", "q0\t3.5"]
    (folder / "seconds.tsv").write_text("\n".join(lines), encoding="utf-8")
    settings = COLUMN[0], f"finetune.columns={{seconds='file:{folder / 'seconds.tsv'}'}}"
    _tried(folder, *settings)
    (folder / "seconds.tsv").write_text("\n".join([lines[0], "q0\t-3.5"]), encoding="utf-8")
    with pytest.raises(DrkitError, match=r"is nan, expected a finite number \(tried on the first texts and queries of"):
        _tried(folder, *settings)


def test_a_signal_that_looks_texts_up_is_tried_on_the_first_texts(folder):
    _tried(folder, masker="by-rarity")
    with pytest.raises(DrkitError, match="ValueError"):
        _tried(folder, masker="by-rarity", on_files=False)


def test_examples_are_toys_where_a_collection_has_too_few_words(folder):
    (folder / "corpus.jsonl").write_text('{"_id": "d0", "text": "fox"}\n{"_id": "d1", "text": "owl"}', encoding="utf-8")
    recipe = compose(ComposeRequest(collection=f"beir:{folder}"), OURS)
    assert first_examples(build_collection(recipe, OURS.registry)) == toys.toy_examples()


def test_a_toy_vocabulary_of_texts_knows_their_words():
    tokenizer = toys.tokenizer_for(KNOWN)
    assert len(tokenizer) == toys.VOCAB == len(toys.toy_tokenizer())
    ids = tokenizer(KNOWN)["input_ids"]
    assert all(toys.UNK not in row for row in ids)
    assert [tokenizer.decode(row, skip_special_tokens=True) for row in ids] == KNOWN


def test_the_contract_of_a_part_uses_the_example_of_its_spec():
    with pytest.raises(ContractError, match=r"every value is None.*example=\{'texts'"):
        check_column(LOOKUP)
    check_column(attrs.evolve(LOOKUP, example={"texts": ASKED}))
    with pytest.raises(ContractError, match="ValueError"):
        check_signal(RARITY)
    check_signal(attrs.evolve(RARITY, example={"texts": KNOWN[:3]}))
    with pytest.raises(ContractError, match="nan"):
        check_loss(POSITIVE, columns={"seconds": "query"})
    check_loss(attrs.evolve(POSITIVE, example={"seconds": [1.0, 2.5]}), columns={"seconds": "query"})
