"""Marks of repeated words: which words get one, and that every library makes the same."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from drkit.data.repeats import MARK, mark_repeats, markable_entries, marks_repeats, unmarked
from drkit.data.vocabulary import train_wordpiece
from drkit.encoders.static import fast_ids
from drkit.errors import DrkitError
from tests.search.toys import TEXTS
from tests.search.toys import tokenizer as toy_tokenizer

PLAIN = toy_tokenizer()
MARKED = mark_repeats(PLAIN)
WORD = re.compile(r"[^\s!-/:-@\[-`{-~“”—]+")
# Words, parts of words, and what separates words or does not.
PARTS = [*TEXTS, "a", "B", "ab", "number", "É", "²", "→", "漢", " ", "_", ".", "—", "“", "\n", "$", "[SEP]"]
ANY_TEXT = st.lists(st.sampled_from(PARTS)).map("".join) | st.text(max_size=80)
SPACED = st.lists(
    st.sampled_from(["a", "ab", "b.", "(file", "file_b", "x→y", "²", "—a", "“b”", "c" * 99, "d" * 100])
).map(" ".join)


def marked_naively(text: str) -> str:
    """Mark every word that occurs again with at most 300 characters and two separators between; lower case already."""
    found = [(match.group(), *match.span()) for match in WORD.finditer(text)]
    marks = [
        start
        for i, (word, start, end) in enumerate(found)
        if len(word) < 100 and any(other == word and begin - end <= 300 for other, begin, _ in found[i + 1 :])
    ]
    return "".join(MARK * (i in marks) + character for i, character in enumerate(text))


@given(text=SPACED)
def test_words_that_occur_again_soon_are_marked(text):
    assert MARKED.backend_tokenizer.normalizer.normalize_str(text) == marked_naively(text)


@given(text=ANY_TEXT)
def test_a_marked_text_has_the_tokens_that_it_had(text):
    plain, marked = (tokenizer(text, return_offsets_mapping=True) for tokenizer in (PLAIN, MARKED))
    assert unmarked(MARKED)[marked["input_ids"]].tolist() == plain["input_ids"]
    ends = [[end for _, end in one["offset_mapping"]] for one in (plain, marked)]
    assert ends[0] == ends[1]


def test_only_a_plain_bert_tokenizer_can_be_made_to_mark():
    backend = Tokenizer(models.BPE({"a": 0}, []))
    for tokenizer in (MARKED, PreTrainedTokenizerFast(tokenizer_object=backend)):
        with pytest.raises(DrkitError, match="only by a tokenizer with BertNormalizer"):
            mark_repeats(tokenizer)
    assert not marks_repeats(PreTrainedTokenizerFast(tokenizer_object=backend))


def test_marks_are_tokens_of_their_own():
    plain, number = unmarked(MARKED), len(PLAIN)
    assert plain[:number].tolist() == list(range(number))
    spelled = MARKED.convert_ids_to_tokens(plain[number:])
    assert MARKED.convert_ids_to_tokens(list(range(number, len(MARKED)))) == [MARK + token for token in spelled]
    assert sorted(spelled) == sorted(t for t in PLAIN.get_vocab() if not t.startswith(("##", "[")))
    assert MARKED.tokenize("Number from file, number") == [f"{MARK}number", "from", "file", "[UNK]", "number"]
    assert MARKED.tokenize("abba abba") == [f"{MARK}a", "##b", "##b", "##a", "a", "##b", "##b", "##a"]
    assert marks_repeats(MARKED)
    assert not marks_repeats(PLAIN)
    assert unmarked(PLAIN).tolist() == list(range(number))
    assert markable_entries(MARKED) == set(plain[number:].tolist()), "no punctuation in this vocabulary"
    assert not markable_entries(PLAIN)


@given(text=ANY_TEXT)
def test_cached_words_give_the_ids_of_the_tokenizer(text):
    for length in (2, 5, 24):
        assert fast_ids(MARKED)(text, length) == MARKED(text, truncation=True, max_length=length)["input_ids"]


@pytest.mark.parametrize("text", ["a" * 300_000, "a " * 150_000, "ab, cd " * 50_000, " ".join(map(str, range(60_000)))])
def test_very_long_texts_are_marked(text):
    ids = np.array(MARKED(text, add_special_tokens=False, verbose=False)["input_ids"])
    assert len(ids) == len(PLAIN(text, add_special_tokens=False, verbose=False)["input_ids"])


def test_a_vocabulary_with_marks_loads_as_it_was_saved(real_texts, tmp_path):
    trained = train_wordpiece(iter(real_texts), tmp_path / "marked", size=500, repeats=True)
    plain = train_wordpiece(iter(real_texts), tmp_path / "plain", size=500)
    loaded = AutoTokenizer.from_pretrained(tmp_path / "marked")
    first = [token for token in plain.get_vocab() if not token.startswith(("##", "["))]
    first += [token for token in plain.get_vocab() if token == "["]
    assert len(loaded) == len(trained) == len(plain) + len(first)
    assert loaded.special_tokens_map == plain.special_tokens_map
    for text in [*real_texts[:50], "Return the File, the file"]:
        assert loaded(text)["input_ids"] == trained(text)["input_ids"]
        assert len(loaded(text)["input_ids"]) == len(plain(text)["input_ids"])
    assert f"{MARK}the" in loaded.tokenize("Return the File, the file")
    markable = loaded.convert_ids_to_tokens(sorted(markable_entries(loaded)))
    assert {"return", "the"} <= set(markable)
    assert not {".", ",", "(", "_", MARK + "the"} & set(markable)
