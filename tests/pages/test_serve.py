"""`drkit serve`: what its page shows, what it keeps, and what it refuses."""

import http.client
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from types import SimpleNamespace

import pytest

from drkit.commands import find_system, open_run, open_system, search_systems
from drkit.core.types import Judgement, Query
from drkit.data.examples import example_queries
from drkit.errors import DrkitError
from drkit.search import read_qrels
from drkit_report.search import KeptJudgements, SearchedRuns, _folded, _spans
from tests.pages.conftest import HOSTILE, PARTS
from tests.pages.test_report_page import Page
from tests.refusals import says
from tests.warm import drkit, warm_process

pytest.importorskip("starlette", reason="the extra `serve` is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(*arguments):
    command = [sys.executable, "-m", "drkit_cli.main", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def start_warm(*arguments):
    warm_process().start(*arguments)
    return warm_process()


class Server:
    """`drkit serve` in a process of its own, or in a child of the warm one."""

    def __init__(self, qrels, *runs, start=start):
        self.port, self.qrels = free_port(), qrels
        self.process = start("serve", *runs, "--port", self.port, "--qrels", qrels)
        self.url = f"http://127.0.0.1:{self.port}/"
        for _ in range(600):
            try:
                self.get("")
                return
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the server did not start")

    def get(self, query, *, fields=(), **headers):
        """(status, text) of a search; fields: others of the form."""
        asked = urllib.parse.urlencode({"q": query, **dict(fields)})
        asked = urllib.request.Request(f"{self.url}?{asked}", headers=headers)
        return answer(asked)

    def judge(self, **form):
        return answer(urllib.request.Request(f"{self.url}judge", urllib.parse.urlencode(form).encode()))

    def token(self):
        return next(a["value"] for _, a in Page(self.get("topic16")[1]).tags if a.get("name") == "token")

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=60), self.process.returncode


def answer(request):
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture(scope="module")
def server(runs, tmp_path_factory):
    started = Server(tmp_path_factory.mktemp("kept") / "mine.qrels", runs["seed-1"], runs["uniform"])
    yield started
    (out, err), code = started.stop()
    assert code == 0, err
    assert out.endswith("stopped\n")
    assert "Traceback" not in err


def test_every_system_ranks_the_passages(server, runs):
    record = open_run(runs["seed-1"], PARTS)
    searched = SearchedRuns.load([record], server.qrels)
    assert list(searched.systems) == list(search_systems(runs["seed-1"]))
    rankings = searched.search("what is topic16", list(searched.systems))
    assert [ranking.system for ranking in rankings] == [one.label for one in searched.systems.values()]
    for key, ranking in zip(searched.systems, rankings, strict=True):
        (hits,) = open_system(runs["seed-1"], key).search(["what is topic16"], 10)
        assert [(p.doc_id, p.score) for p in ranking.passages] == list(hits.pairs())
        grades = {"d16": 1, "d36": 2, "d56": 0}
        assert all(passage.grade == grades.get(passage.doc_id) for passage in ranking.passages)


def headings(text):
    return re.findall("<h2>(.*?)</h2>", text)


def test_the_best_system_of_each_run_answers_and_others_can_be_chosen(server, runs):
    best = [find_system(runs[name]).description for name in ("seed-1", "uniform")]
    status, text = server.get("what is topic16")
    assert (status, headings(text)) == (200, [f"seed-1, {best[0]}", f"uniform, {best[1]}"])
    status, text = server.get("what is topic16", fields={"system": "2:retriever-1", "beside": ""})
    assert (status, headings(text)) == (200, ["uniform, retriever-1"])
    chosen = [a["value"] for tag, a in Page(text).tags if tag == "option" and "selected" in a]
    assert chosen == ["2:retriever-1"]
    hidden = {a["name"]: a["value"] for tag, a in Page(text).tags if a.get("type") == "hidden"}
    assert (hidden["system"], hidden["beside"], hidden["q"]) == ("2:retriever-1", "", "what is topic16")
    status, text = server.get("what is topic16", fields={"system": "bm25", "beside": "bm25"})
    assert (status, headings(text)) == (200, ["seed-1, BM25"])
    status, text = server.get("what is topic16", fields={"system": "nope"})
    assert (status, headings(text)) == (400, [])
    assert "no system named" in text


def test_a_judged_passage_is_marked_and_the_others_are_not(server):
    _, text = server.get("what is topic16", fields={"system": "bm25"})
    assert "Judged for this query: 3 passages, 2 relevant" in text
    assert text.count("relevant, grade 2") == text.count("relevant, grade 1") == 1
    assert "not judged" not in text
    _, text = server.get("topic16 in words of mine", fields={"system": "bm25"})
    assert "No passage is judged for this query yet." in text
    assert 'class="hit"' in text
    assert 'class="hit relevant"' not in text


def test_examples_are_queries_of_the_test_split_and_name_nobody(runs, server, tmp_path):
    assert "<bdi>what is topic16</bdi>" in server.get("")[1]
    record = open_run(runs["seed-1"], PARTS)
    queries = list(record.collection.queries("test"))
    texts = ["ask jane@example.org about it", *(query.text for query in queries)]
    asked = SimpleNamespace(queries=lambda split: [Query(str(n), text) for n, text in enumerate(texts) if split])
    assert example_queries(asked, "test", 3) == ["what is topic16", "what is topic17", "what is topic18"]
    assert example_queries(SimpleNamespace(queries=lambda _: []), "test", 3) == []


def test_matching_words_are_marked_and_stop_words_are_not(runs, tmp_path):
    searched = SearchedRuns.load([open_run(runs["seed-1"], PARTS)], tmp_path / "q")
    (bm25,) = searched.search("What is TOPIC3 about", ["bm25"])
    best = bm25.passages[0]
    assert {span.text for span in best.spans if span.is_match} == {"topic3"}
    (passage,) = searched.collection.corpus.get_many([best.doc_id])
    assert "".join(span.text for span in best.spans) == passage.content


def test_a_judgement_is_kept_and_shown(server):
    token = server.token()
    assert server.judge(q="topic3 my own words", row="3", grade="1", token=token)[0] == 200
    assert server.judge(q="topic3 my own words", row="23", grade="0", token=token)[0] == 200
    assert server.judge(q="what is topic17 ", row="17", grade="0", token=token)[0] == 200
    kept = list(read_qrels(server.qrels))
    assert [(row.doc_id, row.relevance) for row in kept] == [("d3", 1), ("d23", 0), ("d17", 0)]
    assert kept[2].query_id == "q17", "a query of the collection keeps its id"
    name, text = server.qrels.with_name("mine.qrels.queries.tsv").read_text().strip().split("\t")
    assert (name, text) == (kept[0].query_id, "topic3 my own words")
    assert "judged not relevant" in server.get("topic3 my own words")[1]
    assert server.judge(q="topic3 my own words", row="3", grade="0", token=token)[0] == 200
    assert [row.relevance for row in read_qrels(server.qrels)] == [0, 0, 0], "a later judgement replaces it"


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"q": "a", "row": "1", "grade": "1", "token": "guessed"}, "search again"),
        ({"q": "a", "row": "1", "grade": "1"}, "search again"),
        ({"q": "a", "row": "60", "grade": "1"}, "the judgement was not kept: unknown passage"),
        ({"q": "a", "row": "1", "grade": "7"}, "0 or 1"),
        ({"q": "a", "row": "-1", "grade": "1"}, "row"),
        ({"q": " ", "row": "1", "grade": "1"}, "query"),
        ({"q": "a" * 70_000, "row": "1", "grade": "1"}, "too large"),
    ],
)
def test_a_judgement_that_is_not_one_is_refused(server, form, said):
    before = server.qrels.read_bytes() if server.qrels.exists() else None
    if said not in ("search again",):
        form = {**form, "token": server.token()}
    status, text = server.judge(**form)
    assert status == 400
    assert said in text
    assert (server.qrels.read_bytes() if server.qrels.exists() else None) == before


def test_other_hosts_and_methods_are_refused(server):
    assert server.get("a", Host="evil.example")[0] == 400
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("DELETE", "/")
    assert connection.getresponse().status == 405


def test_input_is_escaped(server):
    hostile = '</title><script>alert(1)</script>" onfocus="x \u202e'
    status, text = server.get(hostile)
    assert status == 200
    page = Page(text)
    assert not [
        tag for tag, attributes in page.tags if tag == "script" or any(name.startswith("on") for name in attributes)
    ]
    assert "\u202e" not in text
    assert "script-src" not in text


def test_hostile_passages_are_text(hostile_run, tmp_path):
    started = Server(tmp_path / "q.qrels", hostile_run, start=start_warm)
    try:
        status, text = started.get("what is topic3")
        page = Page(text)
        assert status == 200
        assert {tag for tag, _ in page.tags} <= {
            *("html", "head", "meta", "title", "style", "body", "header", "h1", "p", "code", "main", "form", "label"),
            *("input", "button", "div", "section", "h2", "ol", "li", "span", "bdi", "b", "mark", "select", "option"),
        }
        row = next(a["value"] for _, a in page.tags if a.get("name") == "row")
        token = next(a["value"] for _, a in page.tags if a.get("name") == "token")
        assert "\u202e" not in text
        assert started.judge(q="what is topic3", row=row, grade="1", token=token)[0] == 200
        assert [kept.doc_id for kept in read_qrels(started.qrels)] == [f"d{row}{HOSTILE}"], "control characters, too"
    finally:
        started.process.send_signal(signal.SIGINT)
        ended = started.process.wait()
    assert ended["code"] == 0, ended["err"]


@pytest.mark.parametrize("content", ["not a judgement\n", "query-id\tcorpus-id\tscore\nq\td\t1\n", "q\t0\td\thigh\n"])
def test_a_qrels_file_that_is_none_is_refused(runs, tmp_path, content):
    (tmp_path / "bad.qrels").write_text(content)
    with pytest.raises(DrkitError, match=r"bad\.qrels:1"):
        SearchedRuns.load([open_run(runs["seed-1"], PARTS)], tmp_path / "bad.qrels")


def test_judgements_of_an_earlier_start_are_kept(tmp_path):
    KeptJudgements(tmp_path / "q").add(Judgement("a b", "d 1", 1), "text")
    KeptJudgements(tmp_path / "q").add(Judgement("c", "d2", 0))
    assert list(read_qrels(tmp_path / "q")) == [Judgement("a b", "d 1", 1), Judgement("c", "d2", 0)]


def test_runs_of_other_passages_are_refused(runs, hostile_run, tmp_path):
    records = [open_run(runs["seed-1"], PARTS), open_run(hostile_run, PARTS)]
    with pytest.raises(DrkitError, match="different passages"):
        SearchedRuns.load(records, tmp_path / "q")


def test_a_port_in_use_is_one_line(server, runs, tmp_path):
    code, _, err = drkit("serve", runs["seed-1"], "--port", server.port, cwd=tmp_path)
    assert code == 2
    assert err.count("\n") == 1
    assert says(err, "error: ", f"127.0.0.1:{server.port}: ", "--port")


def raw(server, *lines, body=b""):
    """Send a request as it is; return the first line of the answer."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall("\r\n".join([*lines, "Host: localhost", "", ""]).encode() + body)
        return connection.recv(4096).decode().splitlines()[0]


@pytest.mark.parametrize(
    "framing",
    [
        ("Transfer-Encoding: chunked",),
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Content-Length: 400000000",),
        ("Content-Length: -1",),
        ("Content-Length: 5", "Content-Length: 6"),
        (),
    ],
)
def test_forms_of_unclear_or_large_length_are_refused_unread(server, framing):
    assert " 400 " in raw(server, "POST /judge HTTP/1.1", *framing, body=b"5\r\nhello\r\n")


def test_two_servers_drop_nothing_that_the_other_wrote(tmp_path):
    first, second = (KeptJudgements(tmp_path / "q.qrels") for _ in range(2))
    assert first.grades == second.grades == {}
    for number in range(4):
        (first, second)[number % 2].add(Judgement(f"q{number}", "d", 1), f"text {number}")
    with (tmp_path / "q.qrels").open("a") as file:
        file.write("mine 0 d 1\n")
    first.add(Judgement("q0", "d", 0))
    expected = {("q0", "d"): 0, ("mine", "d"): 1, **{(f"q{number}", "d"): 1 for number in range(1, 4)}}
    assert KeptJudgements(tmp_path / "q.qrels").grades == first.grades == expected
    assert len((tmp_path / "q.qrels.queries.tsv").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("query", "text", "marked"),
    [
        ("हिन्दी", "भारत की हिन्दी भाषा", ["हिन्दी"]),
        ("كتاب", "هذا كِتَابٌ", ["كِتَابٌ"]),
        ("e\u0301cole", "une École", ["École"]),
        ("東京都", "東京、大阪", ["東京"]),
        ("Rank it", "rank and bank", ["rank"]),
    ],
)
def test_words_of_a_query_are_marked_in_any_script(query, text, marked):
    assert [span.text for span in _spans(text, _folded(query)) if span.is_match] == marked
