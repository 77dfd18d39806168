"""BM25 against the formula by hand, on a toy corpus."""

from __future__ import annotations

import json
import math
import re
from importlib.metadata import version

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkit.core.types import Passage
from drkit.data.words import find_words
from drkit.errors import DrkitError
from drkit.recipe.evaluation import LANGUAGES
from drkit.search import HybridRetriever
from drkit.search.bm25 import Bm25Retriever, best_positions, split_words
from tests.refusals import unknown

TEXTS = {
    "d1": "remove suffix string",
    "d2": "remove remove remove file",
    "d3": "string string suffix prefix long passage the nothing else",
    "d4": "number sum",
    "d5": "",
}


def corpus(texts=TEXTS):
    return [Passage(doc_id, text) for doc_id, text in texts.items()]


def by_hand(terms, k1, b):
    """Lucene's BM25; no two words of the toy corpus share a stem, and `the` is a stop word."""
    split = {d: [w for w in t.split() if w != "the"] for d, t in TEXTS.items()}
    average = sum(map(len, split.values())) / len(split)
    scores = {}
    for doc_id, words in split.items():
        total = 0.0
        for term in terms:
            holding = sum(term in other for other in split.values())
            idf = math.log(1 + (len(split) - holding + 0.5) / (holding + 0.5))
            frequency = words.count(term)
            total += idf * frequency / (frequency + k1 * (1 - b + b * len(words) / average))
        if total:
            scores[doc_id] = total
    return sorted(scores.items(), key=lambda hit: -hit[1])


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.5, 0.75), (0.5, 0.0)])
@pytest.mark.parametrize("query", ["remove suffix string", "string", "suffix suffix remove"])
def test_scores_are_those_of_the_formula(k1, b, query):
    retriever = Bm25Retriever(k1=k1, b=b).index(corpus())
    (hits,) = retriever.search([query], 10)
    expected = by_hand(query.split(), k1, b)
    assert list(hits.doc_ids) == [doc_id for doc_id, _ in expected]
    np.testing.assert_allclose(hits.scores, [score for _, score in expected], rtol=1e-5)


def test_plain_texts_are_indexed_as_passages_are():
    (expected,) = Bm25Retriever().index(corpus()).search(["remove string"], 10)
    for plain in (TEXTS, TEXTS.items(), iter(TEXTS.items())):
        retriever = Bm25Retriever().index(plain)
        assert retriever.search(["remove string"], 10) == [expected]
    hybrid = HybridRetriever(retriever, Bm25Retriever(language="none").index(TEXTS), weight=0.0)
    assert hybrid.search(["remove string"], 2)[0].doc_ids == expected.doc_ids[:2]


def test_parts_of_identifiers_are_found():
    retriever = Bm25Retriever().index(corpus({"a": "calls removeSuffixes()", "b": "str_ends_with", "c": "of a string"}))
    assert retriever.search(["remove the suffix"], 5)[0].doc_ids == ("a",)
    assert retriever.search(["what it ends with"], 5)[0].doc_ids == ("b",)
    assert retriever.search(["str_ends_with"], 5)[0].doc_ids == ("b",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("HTTPServer", ["httpserver", "http", "server"]),
        ("École naïveBayes", ["école", "naïvebayes", "naïve", "bayes"]),
        ("NASA's sha256", ["nasa", "sha256", "sha", "256"]),
        ("__init__ x_1", ["__init__", "init", "x_1"]),
        ("\u5b57\u5b57 \u0441\u043b\u043e\u0432\u043e", ["\u5b57\u5b57", "\u0441\u043b\u043e\u0432\u043e"]),
    ],
)
def test_words_are_split(text, words):
    assert split_words(text) == words


@given(st.text())
def test_every_word_is_kept_whole(text):
    assert {*split_words(text)} >= {word.lower() for word in find_words(text) if len(word) > 1}


@given(st.text(st.characters(max_codepoint=127)))
def test_words_of_english_do_not_change(text):
    """Terms of ASCII texts, and so all published numbers, are those of the pattern and its parts of identifiers."""
    whole = [word.lower() for word in re.findall(r"\w\w+", text)]
    words = split_words(text)
    assert [word for word in words if word in whole and len(word) > 1][:1] == whole[:1]
    assert set(whole) <= set(words)


NAMES = ["प्रेमचंद का उपन्यास गोदान", "भारत की राजधानी दिल्ली", "हिन्दी भारत की भाषा"]
FOUND = {
    "Devanagari": (NAMES, "हिन्दी भाषा", 2),
    "vowelled Arabic": (["الكِتَابُ جَدِيدٌ", "البَيْتُ كَبِيرٌ"], "الكتاب الجديد", 0),
    "decomposed accents": (["une re\u0301ponse", "une question"], "réponse", 0),
    "Japanese": (["東京都の天気", "大阪府の料理"], "大阪の料理", 1),
    "one Chinese character": (["水", "火山"], "水", 0),
    "Thai": (["ข้าวผัดอร่อย", "รถไฟไปเชียงใหม่"], "เชียงใหม่", 1),
    "Korean": (["학교에서 공부", "시장에서 쇼핑"], "학교", 0),
    "Khmer": (["ភាសាខ្មែរ", "ទីក្រុង"], "ខ្មែរ", 0),
}


@pytest.mark.parametrize(("texts", "query", "best"), FOUND.values(), ids=FOUND)
def test_words_of_every_script_are_found(texts, query, best):
    retriever = Bm25Retriever().index(corpus({f"d{n}": text for n, text in enumerate(texts)}))
    assert retriever.search([query], 3)[0].doc_ids[0] == f"d{best}"


def test_the_language_stems_queries_of_a_saved_index_too(tmp_path):
    texts = corpus({"a": "die Häuser der Stadt", "b": "die Stadt"})
    Bm25Retriever(language="german").index(texts).save(tmp_path / "german")
    Bm25Retriever(language="none").index(texts).save(tmp_path / "none")
    german, none = (Bm25Retriever.load(tmp_path / name) for name in ("german", "none"))
    assert [one.search(["Haus", "die", "häuser"], 5)[0].doc_ids for one in (german, none)] == [("a",), ()]
    assert [len(one.search(["die"], 5)[0].doc_ids) for one in (german, none)] == [0, 2]
    with unknown("language", "klingon", "none", "arabic"):
        Bm25Retriever(language="klingon")


def test_every_language_has_its_stemmer():
    for language in LANGUAGES:
        assert Bm25Retriever(language=language).index(corpus()).search(["remove"], 5)[0].doc_ids


@pytest.mark.parametrize("analyzer", ['{"version": 1, "language": "english"}', "[]"])
def test_an_index_of_other_words_is_refused(analyzer, tmp_path):
    Bm25Retriever().index(corpus()).save(tmp_path)
    (tmp_path / "analyzer.json").write_text(analyzer)
    with pytest.raises(DrkitError, match=rf"{tmp_path} .*BM25.*version.*drkit run {tmp_path.parent}"):
        Bm25Retriever.load(tmp_path)


ORGANS = {"a": "the universities of organizing naïve people", "b": "an even number", "c": "日本語の本"}


def of_another_time(folder, stems=(), made_with=None):
    """Change a saved index to one that other versions made: its stems, and the versions; {}: of unknown versions."""
    path = folder / "vocab.tokenizer.json"
    vocabulary = json.loads(path.read_text(encoding="utf-8"))
    for word, stem in stems:
        vocabulary["stem_to_sid"][stem] = vocabulary["stem_to_sid"].pop(vocabulary["word_to_stem"][word])
        vocabulary["word_to_stem"][word] = stem
    path.write_text(json.dumps(vocabulary), encoding="utf-8")
    analyzer = json.loads((folder / "analyzer.json").read_text())
    recorded = analyzer.pop("made_with")
    known = {**recorded, **made_with} if made_with else {}
    (folder / "analyzer.json").write_text(json.dumps({**analyzer, "made_with": known} if known else analyzer))


@pytest.mark.parametrize("made_with", [{"PyStemmer": "2.2.0"}, {}])
def test_an_index_with_other_stems_is_refused(made_with, tmp_path):
    Bm25Retriever().index(corpus(ORGANS)).save(tmp_path)
    of_another_time(tmp_path, [("organizing", "organizzz")], made_with)
    told = rf"stems of PyStemmer {made_with.get('PyStemmer', 'another version')}; PyStemmer {version('PyStemmer')} has"
    with pytest.raises(
        DrkitError, match=rf"{tmp_path} .*{told}.*'organizing': 'organizzz'.*drkit run {tmp_path.parent}"
    ):
        Bm25Retriever.load(tmp_path)


def test_an_index_of_other_versions_with_the_same_terms_is_opened(tmp_path):
    for language in ("english", "none"):
        made = Bm25Retriever(language=language).index(corpus(ORGANS))
        made.save(tmp_path / language)
        of_another_time(tmp_path / language, made_with={"PyStemmer": "2.2.0", "unicode": "9.0.0"})
        queries = ["universities", "organizing naïve", "日本語", "even"]
        assert Bm25Retriever.load(tmp_path / language).search(queries, 3) == made.search(queries, 3)


def test_an_index_with_other_stop_words_or_letters_is_refused(tmp_path):
    Bm25Retriever().index(corpus(ORGANS)).save(tmp_path)
    of_another_time(tmp_path, made_with={"stop words": "0" * 32})
    with pytest.raises(DrkitError, match=r"other stop words.*Rebuild"):
        Bm25Retriever.load(tmp_path)
    Bm25Retriever().index(corpus(ORGANS)).save(tmp_path)
    of_another_time(tmp_path, made_with={"unicode": "9.0.0"})
    vocabulary = (tmp_path / "vocab.tokenizer.json").read_text(encoding="utf-8")
    other = vocabulary.replace(json.dumps("naïve"), json.dumps("na\U0001f600ve"))
    assert other != vocabulary
    (tmp_path / "vocab.tokenizer.json").write_text(other, encoding="utf-8")
    with pytest.raises(DrkitError, match=r"Unicode 9\.0\.0.*does not know.*Rebuild"):
        Bm25Retriever.load(tmp_path)


def test_stems_meet_and_stop_words_do_not():
    retriever = Bm25Retriever().index(corpus({"a": "removing the suffixes", "b": "the and of the"}))
    assert retriever.search(["Removed suffix"], 5)[0].doc_ids == ("a",)
    assert retriever.search(["the of"], 5)[0].doc_ids == ()


def test_a_passage_without_a_shared_term_is_no_hit():
    retriever = Bm25Retriever().index(corpus())
    assert [h.doc_ids for h in retriever.search(["number", "unheard"], 10)] == [("d4",), ()]


def test_equal_scores_stand_in_the_order_of_the_corpus():
    retriever = Bm25Retriever().index([Passage(f"d{i}", "same text") for i in range(50)])
    assert retriever.search(["text"], 4)[0].doc_ids == ("d0", "d1", "d2", "d3")


def test_titles_count_and_indexing_again_starts_over():
    retriever = Bm25Retriever().index([Passage("a", "body", title="heading")])
    assert retriever.search(["heading"], 1)[0].doc_ids == ("a",)
    retriever.index([Passage("b", "other words")])
    assert [h.doc_ids for h in retriever.search(["heading", "words"], 1)] == [(), ("b",)]


def test_empty_input():
    for passages in ([], [Passage("a", "..."), Passage("b", "")]):
        with pytest.raises(DrkitError, match=r"BM25.*words"):
            Bm25Retriever().index(passages)
    with pytest.raises(DrkitError, match="query 2 of 2 is empty"):
        Bm25Retriever().index(corpus()).search(["word", "  "], 3)


def test_a_saved_index_finds_the_same(tmp_path):
    made = Bm25Retriever(k1=0.9, b=0.4).index(corpus())
    made.save(tmp_path / "i")
    opened = Bm25Retriever.load(tmp_path / "i")
    queries = ["removing strings", "unheard", "the", "suffixes file"]
    assert len(opened) == len(TEXTS)
    assert opened.search(queries, 3) == made.search(queries, 3)
    given = [["d3", "d1", "none"]] * len(queries)
    np.testing.assert_array_equal(opened.score(queries, given), made.score(queries, given))
    assert {path.suffix for path in (tmp_path / "i").iterdir()} <= {".npy", ".json", ".arrow"}


def test_a_folder_without_an_index_is_refused(tmp_path):
    with pytest.raises(DrkitError, match=r"none/analyzer\.json.*BM25"):
        Bm25Retriever.load(tmp_path / "none")
    Bm25Retriever().index(corpus()).save(tmp_path)
    (tmp_path / "data.csc.index.npy").write_bytes(b"")
    with pytest.raises(DrkitError, match=rf"^{tmp_path} .*BM25.*rebuild"):
        Bm25Retriever.load(tmp_path)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(0, 45))
def test_best_positions_is_a_stable_sort(values, depth):
    scores = np.array(values, dtype=np.float32)
    expected = [p for p in sorted(range(len(values)), key=lambda p: (-values[p], p)) if values[p] > 0][:depth]
    assert best_positions(scores, depth).tolist() == expected


@pytest.mark.parametrize("size", [1, 31, 64, 1000])
def test_best_positions_of_many_scores(size):
    """In groups, whose number need not divide that of the scores, and with more equal scores than are asked for."""
    rng = np.random.default_rng(size)
    scores = np.where(rng.random(size * 33 + 7) < 0.3, rng.integers(1, 50, size * 33 + 7), 0).astype(np.float32)
    expected = np.argsort(-scores, kind="stable")
    for depth in (0, 1, 3, size, 10 * size):
        assert best_positions(scores, depth).tolist() == expected[: min(depth, np.count_nonzero(scores))].tolist()


@pytest.mark.parametrize("query", ["remove suffix string", "string string", "unheard", "number unheard file"])
def test_a_passage_has_the_score_of_a_search(query):
    retriever = Bm25Retriever().index(corpus())
    (hits,) = retriever.search([query], len(TEXTS))
    found = dict(zip(hits.doc_ids, hits.scores, strict=True))
    asked = [*TEXTS, *reversed(TEXTS), "none"]
    expected = [found.get(name, 0.0 if name in TEXTS else np.nan) for name in asked]
    np.testing.assert_array_equal(retriever.score([query], [asked])[0], expected)


def test_searching_does_not_change_what_is_saved(tmp_path):
    retriever = Bm25Retriever().index(corpus())
    files = []
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        retriever.save(tmp_path / name)
        files.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
        retriever.search(["removes unheard numbers", "suffixes"], 3)
        retriever.score(["strings unseen"], [["d1"]])
    assert files[0] == files[1]


MANUALS = {
    "a": "modules of the kernel, pour",
    "b": "a graphical editor for GNOME",
    "c": "pour the coffee, dans le pour",
}


def test_queries_in_another_language_have_its_stop_words_and_its_stemmer():
    """`pour` is a French stop word; `moduli` has a stem that passages have in Italian only."""
    assert Bm25Retriever().index(MANUALS).search(["pour le noyau"], 5)[0].doc_ids == ("c", "a")
    french = Bm25Retriever(query_language="french").index(MANUALS)
    assert french.search(["pour le noyau", "module pour GNOME"], 5)[0].doc_ids == ()
    assert {*french.search(["module pour GNOME"], 5)[0].doc_ids} == {"a", "b"}
    assert Bm25Retriever().index(MANUALS).search(["moduli"], 5)[0].doc_ids == ()
    assert Bm25Retriever(query_language="italian").index(MANUALS).search(["moduli"], 5)[0].doc_ids == ("a",)


def test_words_of_another_language_that_passages_have_keep_the_passages_stem():
    """`universities` is `univers` or `universiti` in English, whose stem is what the index has."""
    for language in ("german", "none"):
        retriever = Bm25Retriever(query_language=language).index({"a": "universities"})
        assert retriever.search(["universities"], 5)[0].doc_ids == ("a",)
    whole = Bm25Retriever(language="none", query_language="french").index(MANUALS)
    assert [hits.doc_ids for hits in whole.search(["pour", "modules", "module"], 5)] == [(), ("a",), ()]


SYMBOLS = {"a": "removeSuffix", "b": "remove a suffix", "c": "get_user", "d": "the user to get"}


@pytest.mark.parametrize(
    ("split", "known", "unknown"),
    [("always", {"a", "b"}, {"b", "a"}), ("never", {"a"}, set()), ("unknown", {"a"}, {"b", "a"})],
)
def test_identifiers_in_queries_are_split(split, known, unknown):
    retriever = Bm25Retriever(split_queries=split).index(SYMBOLS)
    assert {*retriever.search(["removeSuffix"], 5)[0].doc_ids} == known
    assert {*retriever.search(["suffix_remove"], 5)[0].doc_ids} == unknown
    assert {*retriever.search(["remove"], 5)[0].doc_ids} == {"a", "b"}
    other = Bm25Retriever().index(SYMBOLS).splitting(split)
    assert other.search(["removeSuffix", "get_user"], 5) == retriever.search(["removeSuffix", "get_user"], 5)


def test_how_queries_are_read_is_saved(tmp_path):
    made = Bm25Retriever(query_language="italian", split_queries="never").index({**MANUALS, **SYMBOLS})
    made.save(tmp_path)
    queries = ["moduli", "removeSuffix", "get_user"]
    assert Bm25Retriever.load(tmp_path).search(queries, 5) == made.search(queries, 5)
    facts = json.loads((tmp_path / "analyzer.json").read_text())
    assert (facts.pop("query_language"), facts.pop("split_queries")) == ("italian", "never")
    (tmp_path / "analyzer.json").write_text(json.dumps(facts))  # as earlier versions wrote it
    always = Bm25Retriever().index({**MANUALS, **SYMBOLS}).splitting("always")
    assert Bm25Retriever.load(tmp_path).search(queries, 5) == always.search(queries, 5)


def test_unknown_ways_of_reading_queries_are_refused():
    with pytest.raises(DrkitError, match=r"klingon.*same"):
        Bm25Retriever(query_language="klingon")
    with pytest.raises(DrkitError, match=r"sometimes.*unknown"):
        Bm25Retriever(split_queries="sometimes")
    with pytest.raises(DrkitError, match=r"sometimes.*unknown"):
        Bm25Retriever().splitting("sometimes")
