"""A passage's title and text as a pair: the same ids, types and vectors as the tokenizer's and transformers' own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, BertTokenizerFast, PreTrainedTokenizerFast

from drkit.core.draws import Draws
from drkit.core.types import BackboneInfo, BuildContext, Passage
from drkit.data.special_tokens import special_ids
from drkit.data.store import TokenStore, tokenise
from drkit.data.titles import AS_PAIR, JOINED, SEPARATED, TEXT_ALONE, TITLES, TITLES_SETTING, Titles
from drkit.encoders.masked_lm import MaskedLmEncoder
from drkit.errors import DrkitError
from drkit.maskers.uniform import UniformConfig, UniformMasker
from drkit.search.encode import passage_texts
from tests.search.made import reader_of
from tests.search.toys import VOCABULARY, WORDS, masked_lm

words = st.lists(st.sampled_from([*WORDS, "cafe", "x!", "Suffix"]), max_size=8).map(" ".join)


def bert():
    return BertTokenizerFast(vocab={word: number for number, word in enumerate(VOCABULARY)})


def byte_level(pair="<s> $A </s> </s> $B </s>"):
    """A tokenizer of bytes whose pairs have two separators, as RoBERTa's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", "<mask>", *alphabet])}
    backend = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair=pair, special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    names = {"pad": "<pad>", "bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, **{f"{name}_token": token for name, token in names.items()}
    )


def pair(tokenizer, title, text, **how):
    """The encoding of a title and a text, in a list: given alone, transformers leaves out an empty second text."""
    encoding = tokenizer([title], [text], **how) if title else tokenizer([text], **how)
    return {name: rows[0] for name, rows in encoding.items()}


@given(words, words)
@pytest.mark.parametrize("tokenizer", [bert(), byte_level()], ids=["BERT", "bytes"])
def test_a_pair_has_the_tokenizers_ids(tokenizer, title, text):
    titles = Titles.of(AS_PAIR, tokenizer)
    assert tokenizer(titles.read(Passage("1", text, title)))["input_ids"] == pair(tokenizer, title, text)["input_ids"]


@given(st.lists(st.tuples(words, words), min_size=1, max_size=4))
def test_a_pair_has_the_tokenizers_types(pairs):
    tokenizer, config = bert(), masked_lm().config
    titles = Titles.of(AS_PAIR, tokenizer, config)
    rows = [tokenizer(titles.text_of(*texts))["input_ids"] for texts in pairs]
    expected = [pair(tokenizer, *texts)["token_type_ids"] for texts in pairs]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    types = titles.inputs(ids)["token_type_ids"]
    assert [types[n, : len(row)].tolist() for n, row in enumerate(rows)] == expected
    assert [titles.types_of(row) for row in rows] == expected


def test_a_model_without_types_is_given_none():
    assert Titles.of(AS_PAIR, byte_level(), masked_lm().config).inputs(torch.ones(1, 3)) == {}
    assert Titles().inputs(torch.ones(1, 3)) == {}


@pytest.mark.parametrize("pair", ["<s> $A $B </s>", "<s> $B </s> $A </s>"], ids=["no separator", "another order"])
def test_a_tokenizer_without_such_pairs_is_refused(pair):
    with pytest.raises(DrkitError, match=r"cannot be read (as pairs|apart from them): --set encoder.titles=joined"):
        Titles.of(AS_PAIR, byte_level(pair))


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        (JOINED, "a title some text"),
        (TEXT_ALONE, "some text"),
        (SEPARATED, "a title[SEP]some text"),
        (AS_PAIR, "a title[SEP]some text"),
    ],
)
def test_four_ways(reads, expected):
    assert Titles.of(reads, bert()).read(Passage("1", "some text", "a title")) == expected
    assert Titles.of(reads, bert()).read(Passage("1", "some text")) == "some text"


@pytest.mark.parametrize("reads", TITLES)
def test_the_way_is_kept_with_the_model(tmp_path, reads):
    model, tokenizer = masked_lm(), bert()
    titles = Titles.of(reads, tokenizer, model.config)
    titles.save(model.config)
    model.save_pretrained(tmp_path)
    assert Titles.of_config(AutoConfig.from_pretrained(tmp_path)) == titles
    Titles().save(model.config)
    assert not hasattr(model.config, TITLES_SETTING)


@pytest.mark.parametrize("saved", ["pair", {"reads": "both"}, {"reads": "pair", "more": 1}, {"types_after": "3"}])
def test_an_unknown_way_is_refused(saved):
    model = masked_lm()
    setattr(model.config, TITLES_SETTING, saved)
    with pytest.raises(DrkitError, match=r"has drkit_titles = .* does not know; update drkit, or remove it"):
        Titles.of_config(model.config)


PASSAGES = [
    Passage("1", "remove each number", "suffix file"),
    Passage("2", "string from each number file " * 9, "file"),
    Passage("3", "remove suffix"),
    Passage("4", "", "string"),
]


def test_vectors_are_those_of_the_tokenizers_pairs():
    model, tokenizer = masked_lm(), bert()
    Titles.of(AS_PAIR, tokenizer, model.config).save(model.config)
    model = model.eval()
    encoder = reader_of(model.bert, tokenizer, pooling="cls", passage_length=24)
    vectors = encoder.encode_passages([text for _, text in passage_texts(PASSAGES, encoder)])
    other = MaskedLmEncoder(model, pooling="cls")
    for passage, vector in zip(PASSAGES, vectors, strict=True):
        given = pair(tokenizer, passage.title, passage.text, return_tensors="pt", truncation=True, max_length=24)
        given = {name: row[None] for name, row in given.items()}
        with torch.no_grad():
            expected = model.bert(**given).last_hidden_state[0, 0]
            trained = other(given["input_ids"], given["attention_mask"].bool())["bottleneck"][0]
        assert np.allclose(vector, expected / expected.norm(), atol=1e-6)
        assert torch.allclose(trained, expected, atol=1e-6)


def test_separated_titles_have_a_single_separator_and_no_types():
    tokenizer, config = byte_level(), masked_lm().config
    titles = Titles.of(SEPARATED, tokenizer, config)
    title, text = (tokenizer(one, add_special_tokens=False)["input_ids"] for one in ("a b", "c"))
    separator = [tokenizer.sep_token_id]
    expected = [tokenizer.cls_token_id, *title, *separator, *text, *separator]
    assert tokenizer(titles.text_of("a b", "c"))["input_ids"] == expected
    assert Titles.of(SEPARATED, bert(), config).inputs(torch.ones(1, 3)) == {}


def test_a_tokenizer_without_a_separator_is_refused():
    tokenizer = byte_level()
    tokenizer.sep_token = None
    with pytest.raises(DrkitError, match=r"cannot be read apart from them"):
        Titles.of(SEPARATED, tokenizer)


def test_types_change_the_vector():
    model, tokenizer = masked_lm().eval(), bert()
    plain = reader_of(model.bert, tokenizer, pooling="cls")
    text = "suffix file[SEP]remove each number"
    before = plain.encode_passages([text])
    Titles.of(AS_PAIR, tokenizer, model.config).save(model.config)
    after = reader_of(model.bert, tokenizer, pooling="cls").encode_passages([text])
    assert np.abs(before - after).max() > 1e-3


def test_no_masker_hides_a_separator(tmp_path):
    tokenizer = bert()
    titles = Titles.of(AS_PAIR, tokenizer)
    tokenise(((one.doc_id, titles.read(one)) for one in PASSAGES), tokenizer, tmp_path, max_length=24)
    store = TokenStore.open(tmp_path)
    for number, passage in enumerate(PASSAGES):
        expected = pair(tokenizer, passage.title, passage.text, truncation=True, max_length=24)["input_ids"]
        assert store.tokens(number).tolist() == expected
    backbone = BackboneInfo(*(32, 2, 48, 2, len(tokenizer), 64, 4, 0), special_ids=special_ids(tokenizer))
    masker = UniformMasker(UniformConfig(ratio=0.9), BuildContext(backbone=backbone, tokenizer=tokenizer, seed=1))
    tokens = store.batch([0, 1, 3])
    view = masker(tokens, Draws(1, 0, tokens.keys.numpy()), rows=0, nested=None)
    separators = tokens.ids == tokenizer.sep_token_id
    assert separators.sum() == 6
    assert (view.ids[separators] == tokenizer.sep_token_id).all()
