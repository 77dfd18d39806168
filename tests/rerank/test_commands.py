"""`drkit rerank` on files, in processes of its own."""

import json
import subprocess
import sys

import numpy as np
import pytest

from drkit.commands import NamedCollection, rerank_file
from drkit.encoders import CrossEncoder
from drkit.errors import DrkitError
from drkit.search import Reranker, read_run, write_run
from tests.refusals import says
from tests.rerank.toys import TOPICS, checkpoint
from tests.runs.conftest import drkit


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A BEIR folder with ids in spaces and unicode, a run, mined negatives, and a re-ranker."""
    folder = tmp_path_factory.mktemp("files")
    beir = folder / "beir"
    (beir / "qrels").mkdir(parents=True)
    passages = [{"_id": f"d {topic} ü", "title": topic, "text": f"the {topic} is returned"} for topic in TOPICS]
    passages.append({"_id": "d empty", "title": "", "text": ""})
    queries = [{"_id": f"q {topic} 北", "text": f"return a {topic}"} for topic in TOPICS]
    for name, rows in (("corpus", passages), ("queries", queries)):
        (beir / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for split, topics in (("train", TOPICS[4:]), ("test", TOPICS[:4])):
        judged = [f"q {topic} 北\td {topic} ü\t1\n" for topic in topics]
        (beir / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged), encoding="utf-8")
    ids = [passage["_id"] for passage in passages]
    run = [(f"q {topic} 北", [(doc_id, float(-index)) for index, doc_id in enumerate(ids)]) for topic in TOPICS[:4]]
    run.append(("q unknown", [(ids[0], 1.0), (ids[1], 0.5)]))
    write_run(folder / "first.trec", run, "first")
    mined = []
    for topic in TOPICS[4:]:
        wrong = [*[doc_id for doc_id in ids if doc_id != f"d {topic} ü"][:5], "d empty"]
        mined.append(
            {
                "query_id": f"q {topic} 北",
                "query": f"return a {topic}",
                "positives": [f"d {topic} ü"],
                "negatives": wrong,
                "scores": [float(-i) for i in range(len(wrong))],
            }
        )
    (folder / "mined.jsonl").write_text("".join(json.dumps(row) + "\n" for row in mined), encoding="utf-8")
    CrossEncoder.start_from(str(checkpoint(folder / "lm", initializer_range=0.3)), max_length=40).save(folder / "model")
    return folder


def test_help_loads_nothing_heavy():
    probe = "import sys; from drkit_cli.main import _status; sys.argv = ['drkit', 'rerank', '--help']; _status(); "
    probe += "print('HEAVY', {'torch', 'transformers', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert "HEAVY set()" in done.stdout
    assert "\n  drkit rerank " in done.stdout, "examples have lines of their own"


def test_rerank_a_run_file(files, tmp_path):
    out = tmp_path / "reranked.trec"
    source = f"--collection=beir:{files / 'beir'}"
    done = drkit("rerank", files / "first.trec", "--model", files / "model", source, "--depth=5", "-o", out)
    assert "4 queries re-ranked" in done.stdout
    assert says(done.stderr, "1 query", "test queries")
    scorer = Reranker.load(files / "model")
    texts = {f"d {topic} ü": f"{topic} the {topic} is returned" for topic in TOPICS}
    before, after = dict(read_run(files / "first.trec")), dict(read_run(out))
    assert before.keys() == after.keys()
    for query, hits in after.items():
        ids, old = [doc_id for doc_id, _ in hits], [doc_id for doc_id, _ in before[query]]
        if query == "q unknown":
            assert ids == old
            continue
        scores = dict(
            zip(old[:5], scorer.score([(f"return a {query.split()[1]}", texts[d]) for d in old[:5]]), strict=True)
        )
        assert ids == [*sorted(old[:5], key=lambda d: -scores[d]), *old[5:]]
        np.testing.assert_allclose([score for _, score in hits[:5]], sorted(scores.values(), reverse=True), atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--model={files}/lm", "--collection=beir:{files}/beir"], ("/lm'", "BertForMaskedLM")),
        (
            ["--model={files}/model", "--collection=beir:{files}/beir", "--split=train"],
            ("first.trec", "train queries", "--split"),
        ),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(files, tmp_path, arguments, named):
    given = [argument.format(files=files) for argument in arguments]
    done = drkit("rerank", files / "first.trec", *given, "-o", tmp_path / "out.trec", check=False)
    assert done.returncode == 2, done.stderr
    assert says(done.stderr, *named)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out.trec").exists()


def test_a_device_that_torch_does_not_know(files):
    with pytest.raises(DrkitError, match="unknown device 'quantum'"):
        Reranker.load(files / "model", "quantum")


def test_a_run_of_another_collection(files, tmp_path):
    write_run(tmp_path / "other.trec", [("q file 北", [("nowhere", 1.0)])], "other")
    with pytest.raises(DrkitError, match=r"other\.trec: .*passages .*beir:"):
        rerank_file(tmp_path / "other.trec", None, NamedCollection(f"beir:{files / 'beir'}"), tmp_path / "out.trec")


def test_a_fused_run_is_re_ranked(files, tmp_path):
    first = dict(read_run(files / "first.trec"))
    ids = [doc_id for doc_id, _ in first["q file 北"]]
    turned = [(query, [(doc_id, float(i)) for i, doc_id in enumerate(ids)]) for query in first if query != "q unknown"]
    write_run(tmp_path / "second.trec", turned, "second")
    fused, out = tmp_path / "fused.trec", tmp_path / "reranked.trec"
    drkit("fuse", files / "first.trec", tmp_path / "second.trec", "--weight", "0.9", "-o", fused)
    source = f"--collection=beir:{files / 'beir'}"
    drkit("rerank", fused, "--model", files / "model", source, "--depth=4", "-o", out)
    scorer, after = Reranker.load(files / "model"), dict(read_run(out))
    texts = {f"d {topic} ü": f"{topic} the {topic} is returned" for topic in TOPICS} | {"d empty": ""}
    for query, hits in read_run(fused):
        old = [doc_id for doc_id, _ in hits]
        if query != "q unknown":
            assert old[:4] == ids[::-1][:4], "the candidates are those of the fusion"
            scores = scorer.score([(f"return a {query.split()[1]}", texts[doc_id]) for doc_id in old[:4]])
            old[:4] = [old[i] for i in np.argsort(-scores, kind="stable")]
        assert [doc_id for doc_id, _ in after[query]] == old


def test_a_run_stands_for_the_re_ranker_it_trained(files, tmp_path):
    from shutil import copytree

    from drkit.commands import open_reranker
    from tests.runs.test_systems import finished

    run = tmp_path / "run"
    copytree(files / "model", run / "reranker")
    (run / "recipe.toml").write_text("schema = 1\n")
    with pytest.raises(DrkitError, match="no finished re-ranker"):
        open_reranker(run)
    finished(run / "reranker", {})
    pair = [("who flew first", "the brothers Wright")]
    assert open_reranker(run).score(pair) == open_reranker(files / "model").score(pair)
    with pytest.raises(DrkitError, match="nowhere"):
        open_reranker(tmp_path / "nowhere")
