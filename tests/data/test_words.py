"""Words of texts in any script: marks stay with their letters, and scripts without spaces give pairs."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from drkit.data.vocabulary import train_wordpiece
from drkit.data.words import estimate_tokens, find_words, is_unspaced


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("हिन्दी भारत", ["हिन्दी", "भारत"]),
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("e\u0301cole x\u0302y", ["école", "x\u0302y"]),
        ("كِتَابٌ كتاب كتـاب", ["كتاب", "كتاب", "كتاب"]),
        ("שָׁלוֹם שלום", ["שלום", "שלום"]),
        ("\u0645\u06cc\u200c\u062e\u0648 co\u00adoperate", ["\u0645\u06cc\u062e\u0648", "cooperate"]),
        ("日本語 の 水", ["日本", "本語", "の", "水"]),
        ("ｶﾞｲﾄﾞ \uff21\uff22 ﬁle", ["ガイ", "イド", "AB", "file"]),
        ("ที่นี่ Python入門3", ["ที่นี่", "Python", "入門", "3"]),
        ("ខ្មែរ", ["ខ្មែ", "មែរ"]),
        ("한국어", ["한국", "국어"]),
        ("\u0301 -- .", []),
    ],
)
def test_words_of_scripts(text, words):
    assert find_words(text) == [unicodedata.normalize("NFKC", word) for word in words]


@given(st.text())
def test_no_letter_is_lost_and_no_word_begins_with_a_mark(text):
    words = find_words(text)
    assert not [word for word in words if unicodedata.category(word[0])[0] == "M"]
    left_out = {"\u0640", "\u06dd", "\u06e5", "\u06e6"}  # Arabic's tatweel and small letters of recitation
    letters = {character for character in unicodedata.normalize("NFKC", text) if character.isalnum()}
    assert {character for word in words for character in word if character.isalnum()} == letters - left_out


@given(st.text(st.characters(max_codepoint=127)))
def test_words_of_ascii_are_those_of_the_pattern(text):
    assert find_words(text) == re.findall(r"\w+", text)


@pytest.mark.parametrize(
    ("texts", "other", "same"),
    [
        (["हिन्दी कुल कल भाषा"], ("कुल", "कल"), False),
        (["ข้าวผัด ที่นี่ ที"], ("ที่", "ที"), False),
        (["が か ガラス カラス"], ("ガラス", "カラス"), False),
        (["café cafe naïve"], ("café", "cafe"), True),
        (["كِتَابٌ كتاب"], ("كِتَابٌ", "كتاب"), True),
        (["the word हिन्दी alone in English texts " + "of many words " * 40], ("café", "cafe"), True),
    ],
)
def test_vocabularies_keep_marks_that_make_another_word(texts, other, same, tmp_path):
    tokenizer = train_wordpiece(iter(texts * 9), tmp_path, size=200)
    assert same == (tokenizer.tokenize(other[0]) == tokenizer.tokenize(other[1]))
    assert AutoTokenizer.from_pretrained(tmp_path).tokenize(other[0]) == tokenizer.tokenize(other[0])


def test_lengths_count_words_with_marks_once_and_characters_without_spaces():
    assert estimate_tokens("हिन्दी भारत") == estimate_tokens("hindi bharat") == 3
    assert estimate_tokens("日本語" * 50) == 150
    assert [is_unspaced(word) for word in ("日", "a")] == [True, False]
