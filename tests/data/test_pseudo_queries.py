"""Pseudo-queries: what each source takes from a passage, and that it depends on the seed and the passage alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from drkit.core.draws import Draws
from drkit.core.types import Passage
from drkit.data.corpus import collection_of, open_collection
from drkit.data.counts import count_ngrams
from drkit.data.formats import JsonlCollection
from drkit.data.queries import (
    _CROPS,
    EXTRACT_TOKENS,
    Crops,
    ImportantSpans,
    Sentences,
    extractive_queries,
    given_queries,
    made_queries,
    titles,
)
from drkit.data.spans import punkt_for
from drkit.data.specs import JsonlConfig
from drkit.data.store import TokenStore, prompt_tokens, tokenise
from drkit.data.writing import write_collection, write_pairs
from drkit.signals.pmi import importance

PROMPT = "passage: "


@pytest.fixture(scope="module")
def corpus(real_texts, tmp_path_factory):
    """The real texts and an empty one, every second with a title: ids t0, t1, .."""
    folder = tmp_path_factory.mktemp("collection")
    rows = [{"_id": f"t{i}", "text": text} for i, text in enumerate([*real_texts, ""])]
    lines = [
        json.dumps({**row, "title": f"Title of {i}"} if i % 2 and row["text"] else row) for i, row in enumerate(rows)
    ]
    (folder / "texts.jsonl").write_text("\n".join(lines))
    write_collection(JsonlCollection(JsonlConfig(path=str(folder / "texts.jsonl"))), folder / "stage")
    return open_collection(folder / "stage").corpus


@pytest.fixture(scope="module")
def spans(corpus, tokenizer, tmp_path_factory):
    """Sources of extractive queries of the corpus, without and with a prompt before every passage."""

    def source(prompt):
        folder = tmp_path_factory.mktemp("store")
        tokenise(((p.doc_id, p.content) for p in corpus), tokenizer, folder, max_length=40, prompt=prompt)
        store = TokenStore.open(folder)
        values = importance(store, count_ngrams(store, folder / "counts", workers=1), folder / "importance")
        return ImportantSpans(3, store, values, tokenizer, len(prompt_tokens(prompt, tokenizer, 40)))

    return {prompt: source(prompt) for prompt in ("", PROMPT)}


def sources(corpus, spans):
    splitter = punkt_for(corpus, 1)
    return {"crops": Crops(3, 1), "sentences": Sentences(3, 1, splitter), "extractive": spans[""], "titles": titles}


@pytest.mark.parametrize("name", ["crops", "sentences", "extractive", "titles"])
def test_a_passages_queries_are_its_own_words_and_do_not_depend_on_its_batch(name, corpus, spans):
    source, passages = sources(corpus, spans)[name], list(corpus)
    everything = np.arange(len(passages))
    found = source(passages, everything)
    assert sum(map(len, found)) > len(passages) / 3
    assert found[-1] == []
    one_by_one = [source([passages[i]], everything[i : i + 1])[0] for i in everything]
    assert one_by_one == found
    for passage, queries in zip(passages, found, strict=True):
        assert all(query and query in passage.content for query in queries)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(0, 5), st.integers(1, 4))
def test_crops_are_those_of_a_loop_over_passages(lengths, seed, number):
    passages = [Passage(str(n), " ".join(f"w{i}" for i in range(length))) for n, length in enumerate(lengths)]
    expected = []
    for index, passage in enumerate(passages):
        words, own = passage.content.split(), []
        sizes, places = Draws(seed + _CROPS, 0, [index]).uniform(2, number)[0]
        for size, place in zip(sizes, places, strict=True):
            length = min(4 + int(size * 13), len(words))
            start = int(place * (len(words) - length + 1))
            own += [" ".join(words[start : start + length])] * bool(words)
        expected.append(own)
    assert Crops(number, seed)(passages, np.arange(len(passages))) == expected
    assert all(min(4, n) <= len(crop.split()) <= 16 for n, own in zip(lengths, expected, strict=True) for crop in own)


def test_another_seed_crops_elsewhere(corpus):
    passages, indices = list(corpus), np.arange(len(corpus))
    assert Crops(3, 1)(passages, indices) != Crops(3, 2)(passages, indices)


def test_sentences_are_the_splitters_and_a_single_one_is_no_query(corpus):
    source = Sentences(2, 1, punkt_for(corpus, 1))
    several = 0
    for index, passage in enumerate(corpus):
        own = [passage.content[a:b] for a, b in source.splitter(passage.content)]
        found = source([passage], np.array([index]))[0]
        assert len(found) == (min(2, len(own)) if len(own) > 1 else 0)
        assert set(found) <= set(own)
        several += len(own) > 2 and found != own[:2]
    assert several > 3, "they are drawn"


@pytest.mark.parametrize("prompt", ["", PROMPT])
def test_extractive_queries_have_the_tokens_of_the_best_spans(prompt, corpus, spans, tokenizer):
    source, checked = spans[prompt], 0
    ranges = list(extractive_queries(source.store, source.importance, count=3, length=EXTRACT_TOKENS))
    for index, (passage, own) in enumerate(zip(corpus, ranges, strict=True)):
        found = source([passage], np.array([index]))[0]
        begin = source.store.offsets[index] + source.prompt_tokens
        inside = [(max(a, begin), b) for a, b in own if b > begin]
        assert len(found) == len(inside)
        for query, (a, b) in zip(found, inside, strict=True):
            assert tokenizer(query, add_special_tokens=False)["input_ids"] == source.store.flat_ids[a:b].tolist()
            checked += 1
    assert checked > 100


def test_a_query_is_never_its_whole_passage_nor_twice_the_same(corpus):
    def source(passages, indices):
        return [["a  query", "a query", "", passage.content] for passage in passages]

    found = list(made_queries(corpus, source))
    assert found == [(index, "a query") for index in range(len(corpus))]


def test_given_queries_of_unknown_passages_and_empty_ones(corpus, tmp_path):
    rows = [{"doc_id": "t1", "queries": ["one", " ", "two"]}, {"doc_id": "nowhere", "query": "three"}]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert list(given_queries(corpus, tmp_path / "q.jsonl")) == [(1, "one"), (1, "two"), (-1, "three")]


def test_pairs_are_read_back_as_a_split(corpus, tmp_path):
    pairs = [("what is it", 3), ("and why", 0), ("what is it", 5)]
    write_pairs(iter(pairs), corpus, tmp_path / "train")
    collection = collection_of({"passages": corpus.folder, "train": tmp_path / "train"})
    queries = list(collection.queries("train"))
    assert [query.text for query in queries] == [text for text, _ in pairs]
    positives = collection.positive_indices("train")
    assert [positives[query.query_id].tolist() for query in queries] == [[index] for _, index in pairs]


def test_a_source_has_no_more_queries_than_asked_for(corpus, spans):
    for name, source in sources(corpus, spans).items():
        few = source if name == "titles" else evolve(source, count=1)
        assert max(map(len, few(list(corpus), np.arange(len(corpus))))) == 1, name
