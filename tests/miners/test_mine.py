"""Mining in one call, and on the command line, into files that others train on."""

import json

import pytest
from click.testing import CliRunner
from transformers import BertModel

from drkit.commands import Miners, Output, mine_to_file
from drkit.core.registry import installed
from drkit.core.types import BuildContext, MiningRequest
from drkit.data import BeirCollection, BeirConfig, open_collection, write_collection
from drkit.errors import DrkitError, ProblemsError
from drkit.miners import MarginConfig, MarginFilter, RandomConfig, RandomMiner, mine
from drkit.miners.chain import build_chain, mining_requests, parse_chain, write_negatives
from drkit.testing.toys import ToyCorpus, ToyRetriever, toy_requests
from drkit_cli.main import cli
from tests.refusals import unknown
from tests.search.made import export_made
from tests.search.toys import masked_lm, tokenizer

WORDS = ["remove", "suffix", "string", "from", "each", "number", "file"]


@pytest.fixture(scope="session")
def collection(tmp_path_factory):
    """A BEIR folder with ids of spaces and other alphabets, an empty text, and a copy of a positive."""
    folder = tmp_path_factory.mktemp("beir")
    passages = [{"_id": f"d {i}", "title": "", "text": f"{WORDS[i % 7]} {WORDS[i % 5]} a"} for i in range(30)]
    passages += [
        {"_id": "é\u3000x", "title": "", "text": "Remove  remove a"},
        {"_id": "empty", "title": "", "text": ""},
    ]
    queries = [{"_id": f"q {i}", "text": f"{WORDS[i % 7]} {WORDS[(i + 1) % 7]}"} for i in range(12)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(p) + "\n" for p in passages))
    (folder / "queries.jsonl").write_text("".join(json.dumps(q) + "\n" for q in queries))
    (folder / "qrels").mkdir()
    lines = ["query-id\tcorpus-id\tscore", *(f"q {i}\td {i}\t1" for i in range(12)), "q 0\td 7\t2", "q 0\td 3\t0"]
    (folder / "qrels" / "train.tsv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder") / "e"
    settings = {"similarity": "dot", "query_length": 16, "passage_length": 32}
    model: BertModel = masked_lm().base_model
    return export_made(model, tokenizer(), folder, pooling="mean", **settings)


def drkit(*arguments):
    return CliRunner().invoke(cli, list(map(str, arguments)), catch_exceptions=True)


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_names_and_objects_mine_alike():
    context = BuildContext(retriever=ToyRetriever(), seed=3)
    by_name = list(
        mine(ToyCorpus(), toy_requests(9), ["random", "margin"], settings=["random.depth=7"], context=context)
    )
    parts = [RandomMiner(RandomConfig(depth=7), context), MarginFilter(MarginConfig())]
    assert by_name == list(mine(ToyCorpus(), toy_requests(9), parts))
    assert {len(m.doc_ids) for m in by_name} == {7}
    assert {len(m.doc_ids) for m in mine(ToyCorpus(), toy_requests(9), parts, depth=2)} == {2}


def test_what_cannot_be_mined_with_is_told():
    request = [MiningRequest("q", "x", frozenset())]
    with unknown("miner", "denser", "dense"):
        mine(ToyCorpus(), request, ["denser"])
    with pytest.raises(DrkitError, match="'margin' comes first"):
        mine(ToyCorpus(), request, ["margin", "bm25"])
    with pytest.raises(DrkitError, match=r"'ranks' .*chosen: bm25"):
        mine(ToyCorpus(), request, ["bm25"], settings=["ranks.keep=1-2"])
    with pytest.raises(ProblemsError, match=r"'deep'[^@]*'depth'[^@]*@ \w+$"):
        mine(ToyCorpus(), request, ["bm25"], settings=["bm25.deep=3"])
    with pytest.raises(ProblemsError, match="FIRST-LAST"):
        mine(ToyCorpus(), request, ["bm25", "ranks:9-2"])
    with pytest.raises(DrkitError, match=r"names .*objects.*`mine`.*`keep`"):
        mine(ToyCorpus(), request, ["bm25", MarginFilter(MarginConfig())])


def test_a_file_of_ids(collection, tmp_path):
    out = tmp_path / "n.jsonl"
    done = drkit("mine", "--collection", f"beir:{collection}", "--miner", "bm25", "--miner", "same-text", "-o", out)
    assert done.exit_code == 0, done.output
    rows = {row["query_id"]: row for row in read(out)}
    assert list(rows) == [f"q {i}" for i in range(12)]
    assert rows["q 0"]["positives"] == ["d 0", "d 7"]
    assert rows["q 0"]["query"] == "remove suffix"
    for row in rows.values():
        assert not set(row["positives"]) & set(row["negatives"])
        assert len(row["negatives"]) == len(row["scores"]) > 0
    assert "d 3" not in rows["q 0"]["positives"]
    assert "é\u3000x" not in rows["q 0"]["negatives"]
    assert "é\u3000x" in rows["q 6"]["negatives"]
    assert "same-text" in done.output
    assert "12 lines" in done.output


def test_what_was_judged_not_relevant_is_given(collection, tmp_path):
    figures = mine_to_file(f"beir:{collection}", Miners(["given"]), Output(tmp_path / "n.jsonl"))
    assert figures["queries_without"] == 11
    assert read(tmp_path / "n.jsonl")[0]["negatives"] == ["d 3"]


def test_dense_mining_is_the_retrievers_ranking_without_positives(collection, encoder, tmp_path):
    out = tmp_path / "n.jsonl"
    figures = mine_to_file(
        f"beir:{collection}", Miners(["dense"], ["dense.depth=5"], encoder=str(encoder)), Output(out)
    )
    assert figures["queries"] == figures["lines"] == 12
    assert figures["negatives"] == 60
    assert len(figures["models"]["retriever"]) == 32
    assert all(row["scores"] == sorted(row["scores"], reverse=True) for row in read(out))


def test_texts_for_those_who_train_elsewhere(collection, tmp_path):
    from datasets import Dataset

    out = tmp_path / "n.jsonl"
    figures = mine_to_file(f"beir:{collection}", Miners(["bm25"]), Output(out, "sentence-transformers", 3))
    rows = read(out)
    assert figures["lines"] == len(rows) == 13, "a line a positive"
    assert Dataset.from_list(rows).column_names == ["anchor", "positive", "negative_1", "negative_2", "negative_3"]
    mine_to_file(f"beir:{collection}", Miners(["bm25"]), Output(out, "triplets", 2))
    triplets = read(out)
    assert len(triplets) == 26
    assert triplets[0] == {
        "anchor": rows[0]["anchor"],
        "positive": rows[0]["positive"],
        "negative": rows[0]["negative_1"],
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--miner", "dense"], "--encoder FOLDER_OR_RUN"),
        (["--miner", "refresh"], "'refresh'"),
        (["--miner", "margin"], "the filter 'margin' comes first"),
        (["--miner", "bm25", "--split", "dev"], "no 'dev' query"),
        (["--miner", "bm25", "--miner", "cross-encoder-filter"], "cross-encoder-filter:MODEL"),
    ],
)
def test_what_is_wrong_leaves_no_file(collection, tmp_path, arguments, said):
    done = drkit("mine", "--collection", f"beir:{collection}", *arguments, "-o", tmp_path / "n.jsonl")
    assert isinstance(done.exception, DrkitError)
    assert said in str(done.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("", "is empty"),
        ("other Q0 d1 1 2.0 x\n", "query-not-in-run 12"),
        ("".join(f"{n} Q0 d1 1 2.0 x\n" for n in map("q%20{}%drkit".format, range(12))), "unknown-id 12"),
    ],
    ids=["empty", "other queries", "other passages"],
)
def test_a_run_file_of_another_collection_is_refused(collection, tmp_path, rows, said):
    run = tmp_path / "other.run"
    run.write_text(rows)
    with pytest.raises(DrkitError, match=said):
        mine_to_file(f"beir:{collection}", Miners((f"run-file:{run}",)), Output(tmp_path / "n.jsonl"))
    registry = installed().registry
    stored = tmp_path / "stored"
    write_collection(BeirCollection(BeirConfig(path=str(collection))), stored)
    corpus, requests = (opened := open_collection(stored)).corpus, mining_requests(opened, "train")
    chain = build_chain(parse_chain([f"run-file:{run}"], (), registry), registry, BuildContext())

    def in_a_run():
        chain.index(corpus)
        write_negatives(chain.mine(requests, 5), corpus, tmp_path)

    with pytest.raises(DrkitError, match=said):
        in_a_run()
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ""] == ["other.run"]


@pytest.mark.parametrize(
    ("output", "miners", "said"),
    [
        ({}, ("bm25", "ranks:900-1000"), "has a negative .*ranks"),
        ({"format": "triplets"}, ("bm25", "ranks:900-1000"), "has a negative"),
        ({"format": "sentence-transformers", "count": 3}, ("bm25", "ranks:1-2"), "has 3 negatives .*ranks"),
    ],
)
def test_a_file_without_a_negative_is_not_written(collection, tmp_path, output, miners, said):
    with pytest.raises(DrkitError, match=said):
        mine_to_file(f"beir:{collection}", Miners(miners), Output(tmp_path / "n.jsonl", **output))
    assert not list(tmp_path.iterdir())


def test_where_queries_are_passages_their_own_is_left_out_when_asked(tmp_path):
    folder = tmp_path / "arguments"
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": f"a{i}", "text": f"{WORDS[i]} {WORDS[(i + 1) % 7]}"} for i in range(7)]
    for name in ("corpus", "queries"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = ["query-id\tcorpus-id\tscore", *(f"a{i}\ta{(i + 1) % 7}\t1" for i in range(7))]
    (folder / "qrels/train.tsv").write_text("\n".join(judged) + "\n")
    command = ["mine", "--collection", f"beir:{folder}", "--miner", "bm25"]
    assert drkit(*command, "-o", tmp_path / "with.jsonl").exit_code == 0
    done = drkit(*command, "--exclude-self", "-o", tmp_path / "without.jsonl")
    assert "own-passage 7" in done.output
    assert all(row["negatives"][0] == row["query_id"] for row in read(tmp_path / "with.jsonl"))
    for row in read(tmp_path / "without.jsonl"):
        assert row["negatives"]
        assert row["query_id"] not in row["negatives"]
