"""`drkit push-index`: what each store finds of what was pushed, what is replaced or refused, what a failure leaves."""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest

from drkit.encoders.export import export_encoder
from drkit.errors import DrkitError
from drkit.search import Retriever, TextEncoder, Vectors, open_index
from drkit.search.stores import ENTRIES_AT_ONCE, JsonLines, StoreTarget
from tests.search.toys import WORDS, masked_lm, tokenizer

HOW = {"pooling": "mean", "similarity": "cosine", "query_length": 16, "passage_length": 48}
QUERIES = ["remove suffix", "number file b", "string from each", "a b", "file abba"]
TITLES = [WORDS[i % 5] if i % 3 else "" for i in range(40)]
WORDED = [f"{WORDS[i % 7]} {'abcdefgh'[i % 8]} {WORDS[(i * i) % 6]} {'cab'[i % 3]}" for i in range(40)]
PASSAGES = {f"d {i} é": both for i, both in enumerate(zip(TITLES, WORDED, strict=True))}
CLIENTS = {"lancedb": "lancedb", "qdrant": "qdrant_client", "usearch": "usearch", "opensearch": "", "anserini": ""}


def needs_client(store):
    module = CLIENTS[store]
    absent = bool(module) and importlib.util.find_spec(module) is None
    return pytest.param(store, marks=pytest.mark.skipif(absent, reason=f"{module} is not installed"))


STORES = [needs_client(store) for store in CLIENTS]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A BEIR folder whose queries nobody needs, and an encoder."""
    root = tmp_path_factory.mktemp("files")
    (root / "beir" / "qrels").mkdir(parents=True)
    rows = [{"_id": name, "title": title, "text": text} for name, (title, text) in PASSAGES.items()]
    (root / "beir" / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "beir" / "queries.jsonl").write_text('{"_id": "q", "text": "file"}\n')
    (root / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td 0 é\t1\n")
    export_encoder(masked_lm(), tokenizer(), root / "encoder", **HOW)
    return root


@pytest.fixture
def drkit(run_drkit, monkeypatch, files):
    """The command line in the files' folder, with all its output as one text."""
    monkeypatch.chdir(files)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def call(*arguments):
        code, out, err = run_drkit(*arguments)
        return code, out + err

    return call


@pytest.fixture
def vectors(drkit, files):
    """The folder of the passages' vectors, and an index of them."""
    if not (files / "index").exists():
        options = ("--collection", "beir:beir", "--shard-size", 16, "-o", "vectors")
        assert drkit("encode", "--encoder", "encoder", *options)[0] == 0
        assert drkit("index", "vectors", "-o", "index")[0] == 0
    return files / "vectors"


def expected(files, depth=10):
    """Drkit's own hits of each query."""
    retriever = Retriever(TextEncoder.load(files / "encoder"), open_index(files / "index"))
    return retriever.search(QUERIES, depth)


def json_lines(folder):
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.open(encoding="utf-8")]


def brute_force(vectors, ids, query, payloads):
    scores = np.array(vectors, dtype=np.float32) @ query
    best = np.argsort(-scores, kind="stable")[:10]
    return [(ids[i], float(scores[i]), payloads[i]) for i in best]


def hits_of_lancedb(folder, query):
    import lancedb

    rows = lancedb.connect(str(folder)).open_table("passages").search(query).distance_type("dot").limit(10).to_list()
    return [(row.pop("doc_id"), 1 - row.pop("_distance"), row) for row in rows if row.pop("vector")]


def hits_of_qdrant(folder, query):
    from qdrant_client import QdrantClient

    client = QdrantClient(path=str(folder))
    points = client.query_points("passages", query=query.tolist(), limit=10).points
    client.close()
    return [(point.payload.pop("doc_id"), point.score, point.payload) for point in points]


def hits_of_usearch(folder, query):
    from usearch.index import Index

    index = Index.restore(str(folder / "index.usearch"), view=True)
    passages = [json.loads(line) for line in (folder / "passages.jsonl").open(encoding="utf-8")]
    found = [(passages[hit.key], 1 - hit.distance) for hit in index.search(query, 10)]
    return [(passage.pop("doc_id"), score, passage) for passage, score in found]


def hits_of_opensearch(folder, query):
    """OpenSearch itself is not here: the documents that its bulk API would read, searched by their vectors."""
    lines = json_lines(folder / "bulk")
    actions, documents = lines[::2], lines[1::2]
    ids = [document.pop("doc_id") for document in documents]
    assert [action["index"] for action in actions] == [{"_index": "passages", "_id": doc_id} for doc_id in ids]
    mapping = json.loads((folder / "mapping.json").read_text())["mappings"]["properties"]
    assert {"doc_id", *documents[0]} == {*mapping}
    found = [document.pop("vector") for document in documents]
    assert {len(vector) for vector in found} == {mapping["vector"]["dimension"]}
    return brute_force(found, ids, query, documents)


def hits_of_anserini(folder, query):
    """Nor is Lucene: the files that Anserini's two collections read."""
    rows = json_lines(folder / "vectors")
    texts = json_lines(folder / "texts") if (folder / "texts").exists() else []
    ids = [row["docid"] for row in rows]
    assert not texts or [row["id"] for row in texts] == ids
    contents = [{"contents": row["contents"]} for row in texts] or [{}] * len(rows)
    return brute_force([row["vector"] for row in rows], ids, query, contents)


SEARCH = {name.removeprefix("hits_of_"): find for name, find in dict(globals()).items() if name.startswith("hits_of_")}


def check_round_trip(store, folder, files, fields=("title", "text")):
    """The store's ten best passages are those of drkit, with the same scores and the pushed fields."""
    queries = TextEncoder.load(files / "encoder").encode_queries(QUERIES)
    for query, wanted in zip(queries, expected(files), strict=True):
        found = SEARCH[store](folder, query)
        assert [doc_id for doc_id, _, _ in found] == list(wanted.doc_ids)
        np.testing.assert_allclose([score for _, score, _ in found], wanted.scores, atol=1e-5)
        for doc_id, _, payload in found:
            whole = dict(zip(("title", "text"), PASSAGES[doc_id], strict=True))
            stored = {field: whole[field] for field in fields}
            if store == "anserini":
                stored = {"contents": " ".join(filter(None, stored.values()))} if fields else {}
            assert payload == stored


@pytest.mark.parametrize("store", STORES)
def test_a_store_finds_what_drkit_finds(store, drkit, vectors, files, tmp_path):
    code, said = drkit("push-index", "index", f"{store}:{tmp_path / 'out'}", "--collection", "beir:beir")
    assert code == 0, said
    assert "40 vectors of 32, with id, title and text" in said
    check_round_trip(store, tmp_path / "out", files)


@pytest.mark.parametrize("store", STORES)
def test_a_second_push_is_refused_or_replaces(store, drkit, vectors, files, tmp_path):
    target = f"{store}:{tmp_path / 'out'}"
    code, said = drkit("push-index", "vectors", target)
    assert (code, "with id\n" in said) == (0, True), said
    check_round_trip(store, tmp_path / "out", files, fields=())
    again = ("push-index", "vectors", target, "--collection", "beir:beir", "--payload", "title", "--json", "-q")
    code, said = drkit(*again)
    assert code == 2
    assert "already exists; add --replace" in said
    check_round_trip(store, tmp_path / "out", files, fields=())
    code, said = drkit(*again, "--replace")
    assert code == 0, said
    assert json.loads(said) == {
        **{"target": target, "name": "passages", "vectors": 40, "dimension": 32},
        "payload": ["id", "title"],
    }
    check_round_trip(store, tmp_path / "out", files, fields=("title",))


@pytest.mark.parametrize("store", STORES)
def test_an_encoder_encodes_the_collection(store, drkit, vectors, files, tmp_path):
    target = f"{store}:{tmp_path / 'out'}"
    code, said = drkit("push-index", "encoder", target)
    assert code == 2
    assert "give the passages that it encodes (--collection)" in said
    code, said = drkit("push-index", "encoder", target, "--collection", "beir:beir", "--payload", "id")
    assert code == 0, said
    check_round_trip(store, tmp_path / "out", files, fields=())


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("before", [False, True])
def test_a_push_that_fails_leaves_what_was_there(store, before, drkit, vectors, files, tmp_path):
    """The collection ends before the vectors do, after some batches."""
    target = f"{store}:{tmp_path / 'out'}"
    if before:
        assert drkit("push-index", "vectors", target)[0] == 0
    rows = (files / "beir" / "corpus.jsonl").read_text().splitlines(keepends=True)
    shorter = tmp_path / "shorter.jsonl"
    shorter.write_text("".join(rows[:20]))
    given = ("push-index", "vectors", target, "--collection", f"jsonl:{shorter}", "--replace")
    code, said = drkit(*given, "--set", "collection.id_field=_id")
    assert code == 2, said
    assert "does not have the passages of these vectors, in their order: expected 'd 20 é', got its end" in said
    if before:
        check_round_trip(store, tmp_path / "out", files, fields=())
    code, said = drkit("push-index", "vectors", target, *(["--replace"] if before else []))
    assert code == 0, said
    check_round_trip(store, tmp_path / "out", files, fields=())


def test_a_folder_of_something_else_is_not_replaced(drkit, vectors, tmp_path):
    (tmp_path / "thesis.tex").write_text("all of it")
    for store in ("anserini", "opensearch"):
        for more in ((), ("--replace",)):
            code, said = drkit("push-index", "vectors", f"{store}:{tmp_path}", *more)
            assert (code, "already exists" in said or "did not write thesis.tex there" in said) == (2, True), said
    assert (tmp_path / "thesis.tex").read_text() == "all of it"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("vectors", "lanced:x"), "no store named 'lanced'; did you mean 'lancedb'?"),
        (("vectors", "anserini:"), "has no folder; give one, as in anserini:pushed/"),
        (("vectors", "usearch:https://u:secret@host"), "only qdrant and opensearch have a server"),
        (("vectors", "anserini:x", "--name", "A B"), "invalid name 'A B'"),
        (("vectors", "anserini:x", "--payload", "text"), "vectors without texts; give their passages (--collection)"),
        (("queries", "anserini:x"), "holds vectors of queries; push those of passages"),
        (("graph", "anserini:x"), "an index of kind 'hnsw', which keeps no vectors in a file of their own"),
    ],
)
def test_refusals(arguments, reason, drkit, vectors, files):
    if not (files / "queries").exists():
        options = ("--collection", "beir:beir", "--split", "test", "-o", "queries")
        assert drkit("encode", "--encoder", "encoder", *options)[0] == 0
        assert drkit("index", "vectors", "--kind", "hnsw", "-o", "graph")[0] == 0
    code, said = drkit("push-index", *arguments)
    assert (code, reason in said, "secret" in said) == (2, True, False), said
    assert not (files / "x").exists()


@pytest.mark.parametrize("store", ["lancedb", "qdrant", "usearch", "opensearch"])
def test_a_missing_client_is_named_with_its_extra(store, drkit, vectors, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] in (*CLIENTS.values(), "opensearchpy")]:
        monkeypatch.delitem(sys.modules, name)
    for module in ("lancedb", "qdrant_client", "usearch.index", "opensearchpy"):
        monkeypatch.setitem(sys.modules, module, None)
    where = "http://127.0.0.1:1" if store == "opensearch" else tmp_path / "out"
    code, said = drkit("push-index", "vectors", f"{store}:{where}")
    assert code == 2
    assert f"pip install 'drkit[{store}]'" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("store", STORES)
def test_a_folder_needs_no_network(store, drkit, vectors, tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert drkit("push-index", "vectors", f"{store}:{tmp_path / 'out'}")[0] == 0


class Server:
    """Answers what a client asks as a server would whose index does not exist, and keeps every request."""

    def __init__(self, answers):
        self.requests = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                outer.requests.append((self.command, self.path.partition("?")[0], body))
                status, found = answers(self.command, self.path.partition("?")[0], body)
                content = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.http.server_port}"

    def bodies(self, *where):
        return [body for command, path, body in self.requests if (command, path) == where]


@pytest.fixture
def serve():
    servers = []

    def start(answers):
        servers.append(Server(answers))
        return servers[-1]

    yield start
    for server in servers:
        server.http.shutdown()
        server.http.server_close()


def qdrant(exists=False, fails=False):
    def answers(command, path, _body):
        if path.endswith("/exists"):
            return 200, {"result": {"exists": exists}, "status": "ok", "time": 0.0}
        if path.endswith("/points"):
            done = {"result": {"operation_id": 1, "status": "completed"}, "status": "ok", "time": 0.0}
            return (500, {"status": {"error": "out of memory"}, "time": 0.0}) if fails else (200, done)
        if command == "GET":
            return 200, {"title": "qdrant", "version": "1.20.0"}
        return 200, {"result": True, "status": "ok", "time": 0.0}

    return answers


def opensearch(exists=False, fails=False):
    def answers(command, path, body):
        if command == "HEAD":
            return 200 if exists else 404, {}
        if path.endswith("/_bulk"):
            items = [json.loads(line)["index"]["_id"] for line in body.splitlines()[::2]]
            rows = [{"index": {"_id": name, "status": 201}} for name in items]
            return (503, {"error": "overloaded"}) if fails else (200, {"errors": False, "items": rows})
        return 200, {"acknowledged": True}

    return answers


@pytest.mark.skipif(importlib.util.find_spec("qdrant_client") is None, reason="qdrant_client is not installed")
def test_a_qdrant_server_gets_every_point(drkit, vectors, files, serve):
    server = serve(qdrant())
    code, said = drkit("push-index", "index", f"qdrant:{server.url}", "--collection", "beir:beir", "--name", "mine")
    assert code == 0, said
    (created,) = server.bodies("PUT", "/collections/mine")
    assert json.loads(created)["vectors"] == {"size": 32, "distance": "Dot"}
    batches = [json.loads(body)["batch"] for body in server.bodies("PUT", "/collections/mine/points")]
    assert [row["doc_id"] for batch in batches for row in batch["payloads"]] == list(PASSAGES)
    assert [key for batch in batches for key in batch["ids"]] == list(range(40))
    pushed = np.array([row for batch in batches for row in batch["vectors"]], dtype=np.float32)
    np.testing.assert_array_equal(pushed, Vectors.open(vectors).shards[:])


@pytest.mark.skipif(importlib.util.find_spec("opensearchpy") is None, reason="opensearchpy is not installed")
def test_an_opensearch_server_gets_every_document(drkit, vectors, serve, tmp_path):
    server = serve(opensearch())
    code, said = drkit("push-index", "index", f"opensearch:{server.url}", "--collection", "beir:beir")
    assert code == 0, said
    folder = tmp_path / "out"
    assert drkit("push-index", "index", f"opensearch:{folder}", "--collection", "beir:beir")[0] == 0
    (created,) = server.bodies("PUT", "/passages")
    assert json.loads(created) == json.loads((folder / "mapping.json").read_text())
    sent = [json.loads(line) for body in server.bodies("POST", "/_bulk") for line in body.splitlines()]
    assert sent == json_lines(folder / "bulk")


@pytest.mark.parametrize(("store", "answers"), [("qdrant", qdrant), ("opensearch", opensearch)])
def test_a_server_refuses_replaces_and_is_left_without_half_an_index(store, answers, drkit, vectors, serve):
    pytest.importorskip({"qdrant": "qdrant_client", "opensearch": "opensearchpy"}[store])
    path = "/collections/passages" if store == "qdrant" else "/passages"
    server = serve(answers(exists=True))
    code, said = drkit("push-index", "vectors", f"{store}:{server.url}")
    assert (code, "already exists; add --replace" in said) == (2, True), said
    assert not server.bodies("PUT", path)
    assert drkit("push-index", "vectors", f"{store}:{server.url}", "--replace")[0] == 0
    changes = [command for command, where, _ in server.requests if where == path and command in ("PUT", "DELETE")]
    assert changes == ["DELETE", "PUT"]
    server = serve(answers(fails=True))
    code, said = drkit("push-index", "vectors", f"{store}:{server.url}")
    assert (code, f"cannot push to {store}:{server.url}" in said) == (2, True), said
    changes = [command for command, where, _ in server.requests if where == path and command in ("PUT", "DELETE")]
    assert changes == ["PUT", "DELETE"]


def test_a_password_is_not_shown():
    assert str(StoreTarget.parse("qdrant:https://u:secret@host:1/x")) == "qdrant:https://host:1/x"


def test_json_lines_end_a_file_before_it_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr("drkit.search.stores._PART_BYTES", 70)
    lines = JsonLines(tmp_path / "out")
    for number in range(7):
        lines.write({"id": number}, {"text": "é" * 5})
    lines.close()
    sizes = [path.stat().st_size for path in sorted((tmp_path / "out").iterdir())]
    assert len(sizes) == 4
    assert max(sizes) <= 70
    assert json_lines(tmp_path / "out") == [row for number in range(7) for row in ({"id": number}, {"text": "é" * 5})]


def test_batches_follow_the_shards(vectors):
    """Else every test above would see one batch only."""
    assert [len(rows) for _, rows in Vectors.open(vectors).shards.blocks(ENTRIES_AT_ONCE)] == [16, 16, 8]


def test_the_vectors_must_be_finite_and_unique(drkit, vectors, files, tmp_path):
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(vectors, broken)
    rows = np.load(broken / "00001.npy")
    rows[3, 5] = np.nan
    np.save(broken / "00001.npy", rows)
    code, said = drkit("push-index", broken, f"anserini:{tmp_path / 'out'}")
    assert (code, "the vector of 'd 19 é' is not finite" in said) == (2, True), said
    with pytest.raises(DrkitError, match="no store named"):
        StoreTarget.parse("nowhere:x")
