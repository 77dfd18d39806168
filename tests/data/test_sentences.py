"""Sentences end where the marks of their script say so, with the quotes and brackets that close there."""

# ruff: noqa: RUF001

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkit.core.types import Passage
from drkit.data.queries import Sentences
from drkit.data.sentences import cut_at_ends
from drkit.data.spans import Spans, split_documents, train_punkt
from tests.data.test_whole_words import family

# Sentences, one after the other, and what is between them.
TEXTS = {
    "Chinese": (["他说：「走吧。」", "她走了！", "然后呢？", "（完。）"], ""),
    "Chinese, with straight quotes": (["他说。", '"好。"', "她走了。"], ""),
    "Chinese, with points of ASCII": (["你好!", "他走了.", "她也走了?", "(对.)", "是"], ""),
    "Chinese, with wide points": (["圆周率是３．１４．", "很好．"], ""),
    "several marks": (["真的？！", "是的……好！！", "完。"], ""),
    "Japanese": (["これは本です。", "あれは何？", "『はい。』", "おわり"], ""),
    "Japanese, narrow": (["ｶﾀｶﾅ｡", "ﾂｷﾞ｡"], ""),
    "Hindi": (["यह वाक्य है।", "दूसरा वाक्य॥", "(तीसरा।)"], " "),
    "Arabic": (["هل أنت هنا؟", "نعم أنا هنا"], " "),
    "Urdu": (["یہ ایک جملہ ہے۔", "یہ دوسرا ہے۔"], " "),
    "Amharic": (["ሰላም።", "እንዴት፧", "ደህና።"], " "),
    "Armenian": (["Բարեւ։", "Ինչպես ես։"], " "),
    "Khmer": (["ភាសាខ្មែរ។", "ទីពីរ៕"], ""),
    "Burmese": (["မြန်မာဘာသာ။", "ဒုတိယ။"], " "),
    "Tibetan": (["བོད་སྐད།", "གཉིས་པ།"], ""),
    "Greek": (["τι κάνεις;", "καλά είμαι."], " "),
    "Latin, with quotes": (["He said \u201cno.\u201d", "Then he left."], " "),
    "mixed": (["Python 很好。", "Use it!", "好"], ""),
}
ENGLISH = ["The cat sat. The dog ran.", "Is it so? It is.", "We went home. They stayed."]


@pytest.fixture(scope="module")
def punkt():
    return pickle.loads(pickle.dumps(train_punkt([*ENGLISH, *("".join(some) for some, _ in TEXTS.values())])))


@pytest.mark.parametrize("name", TEXTS)
def test_sentences_of_every_script(name, punkt):
    sentences, between = TEXTS[name]
    text = between.join(sentences)
    assert [text[a:b] for a, b in punkt(text)] == sentences


@given(st.text(alphabet="a。！.?\"」「' \n漢1．；;ω।", max_size=30))
def test_sentences_are_in_order_and_lose_no_character(text):
    spans = list(cut_at_ends(text, [(0, len(text))]))
    borders = [border for span in spans for border in span]
    assert borders == sorted(borders)
    assert "".join("".join(text[a:b] for a, b in spans).split()) == "".join(text.split())
    assert all(text[a:b] == text[a:b].strip() != "" for a, b in spans)


def test_numbers_addresses_and_names_are_not_cut():
    for text in ("圆周率是３．１４左右", "v2.0.1 of a.b.c", "http://x.y/?q=1.2!a", "yes;no", "a!b?c"):
        assert list(cut_at_ends(text, [(0, len(text))])) == [(0, len(text))], text


@pytest.mark.parametrize("name", ["Chinese", "Japanese", "Hindi", "Amharic", "Khmer"])
def test_a_document_of_several_sentences_is_no_context_of_itself(name, punkt, tmp_path):
    sentences, between = TEXTS[name]
    text, tokenizer = between.join(sentences), family("GPT-2's bytes")
    counts = split_documents([(0, text)], tokenizer, tmp_path, max_length=512, splitter=punkt)
    spans = Spans.open(tmp_path)
    assert counts["alone"] == 0
    assert counts["sentences"] == len(sentences)
    assert len(spans) == 2
    second = text[spans.begins[1] :].strip()
    assert any(second.startswith(sentence) for sentence in sentences[1:])


def test_sentences_are_queries(punkt):
    sentences, _ = TEXTS["Chinese"]
    (found,) = Sentences(8, 1, punkt)([Passage("1", "".join(sentences))], [0])
    assert sorted(found) == sorted(sentences)
