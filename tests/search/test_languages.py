"""Notes on languages that BM25 may have wrong."""

from __future__ import annotations

import pytest

from drkit.commands.starter_recipe import CollectionFacts, collect_facts, suggest_recipe
from drkit.core.registry import installed
from drkit.search import Bm25Retriever
from drkit.search.languages import likely_language, note_query_language, note_stemmer

FRENCH = [
    "un outil pour la gestion des paquets dans le système",
    "les fichiers de la bibliothèque sont avec les autres",
]
ENGLISH = ["a tool for the management of packages in the system", "the files of the library are with the others"]
GERMAN = [
    "ein Werkzeug für die Verwaltung der Pakete in dem System und mit einem Fenster",
    "das ist nicht die Datei von der",
]
NAMES = ["GNOME Python KDE Emacs LaTeX Perl Apache SoapySDR kernel editor"] * 20


@pytest.mark.parametrize(("texts", "language"), [(FRENCH, "french"), (ENGLISH, "english"), (GERMAN, "german")])
def test_languages_are_recognised_in_enough_words(texts, language):
    assert likely_language(texts * 20) == language
    assert likely_language(texts) is None  # too few
    assert likely_language(NAMES) is None
    assert likely_language((FRENCH + ENGLISH + GERMAN) * 20) is None


def test_queries_in_another_language_are_noted():
    retriever = Bm25Retriever().index({"a": "the files"})
    note = note_query_language(retriever, FRENCH * 20, "test queries")
    assert note == (
        "the test queries look like French, and BM25 reads them as english: --set evaluation.bm25_query_language=french"
    )
    assert note_query_language(retriever, ENGLISH * 20, "test queries") == ""
    french = Bm25Retriever(query_language="french").index({"a": "the files"})
    assert note_query_language(french, FRENCH * 20, "test queries") == ""


def test_a_stemmer_that_changes_almost_no_word_is_noted():
    passages = {str(n): f"counting{chr(97 + n % 26)}{chr(97 + n // 26)}s files" for n in range(200)}
    assert note_stemmer(Bm25Retriever().index(passages)) == ""
    assert note_stemmer(Bm25Retriever(language="none").index(passages)) == ""
    assert "stemmer, russian, changes 0 of the passages' 201 different words" in note_stemmer(
        Bm25Retriever(language="russian").index(passages)
    )


def test_a_starter_recipe_advises_on_languages(tmp_path):
    for name, texts in (("corpus", GERMAN), ("queries", FRENCH)):
        lines = [f'{{"_id": "{n}", "title": "", "text": "{n} {text}"}}' for n, text in enumerate(texts * 20)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "qrels").mkdir()
    rows = "".join(f"{n}\t{n}\t1\n" for n in range(40))
    (tmp_path / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    facts = collect_facts(f"beir:{tmp_path}")
    assert facts.languages == ("german", "french")
    advice = "\n".join(suggest_recipe(facts, installed(), has_gpu=False).advice)
    assert 'bm25_language = "german" in [evaluation]' in advice
    assert 'bm25_query_language = "french" in [evaluation]' in advice
    plain = CollectionFacts("pydocs", passages=400, languages=("english", "english"))
    assert "look like" not in "\n".join(suggest_recipe(plain, installed(), has_gpu=False).advice)
