"""Collections read in parts, by tasks and by a cluster: the files of one process, and its errors."""

import json
import os
import signal
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkit.core.engine import LocalEngine, open_engine
from drkit.core.file_chunks import FileChunks
from drkit.data import ranges, writing
from drkit.data.formats import BeirCollection, JsonlCollection, TevatronCollection, TrecCollection
from drkit.data.ranges import file_ranges
from drkit.data.rows import read_lines
from drkit.data.specs import BeirConfig, JsonlConfig, TevatronConfig, TrecConfig
from drkit.data.writing import write_collection
from drkit.errors import DrkitError
from tests.engine.encoders import wait_until_allowed
from tests.engine.engines import Pickling
from tests.engine.test_encoding import in_the_middle, watched, workers
from tests.refusals import refused

ROWS = [{"_id": f"d{n}", "title": "Zoë" * (n % 3), "text": "zebra " * (n * 7 % 23)} for n in range(60)]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Ranges of 300 bytes, and batches of 7 passages."""
    monkeypatch.setattr(ranges, "RANGE_BYTES", 300)
    monkeypatch.setattr(writing, "_ROWS", 7)


def jsonl(folder, name="texts.jsonl", rows=ROWS, start=b""):
    lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    (folder / name).write_bytes(start + lines.encode())
    return JsonlCollection(JsonlConfig(path=str(folder / name)))


def without_ids(folder):
    return jsonl(folder, rows=[{"text": row["text"] or "none"} for row in ROWS])


def marked(folder):
    """A file that starts with the mark of UTF-8."""
    return jsonl(folder, start=b"\xef\xbb\xbf")


def without_last_line_end(folder):
    found = jsonl(folder)
    found.passage_files[0].write_bytes(found.passage_files[0].read_bytes().rstrip(b"\n"))
    return found


def table(folder, header=""):
    rows = "".join(f"{row['_id']}\t{row['text'] or 'none'}\t{row['title']}\n" for row in ROWS)
    (folder / "collection.tsv").write_text(header + rows)
    return JsonlCollection(JsonlConfig(path=str(folder / "collection.tsv")))


def table_with_header(folder):
    return table(folder, "id\tcontents\ttitle\n")


def parquet(folder):
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "texts.parquet", row_group_size=8)
    return JsonlCollection(JsonlConfig(path=str(folder / "texts.parquet")))


def beir(folder):
    jsonl(folder, "corpus.jsonl")
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "a zebra"}\n')
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td59\t1\n")
    return BeirCollection(BeirConfig(path=str(folder)))


def trec(folder):
    table(folder)
    (folder / "topics.test.tsv").write_text("q\ta zebra\n")
    (folder / "qrels.test.txt").write_text("q 0 d59 1\n")
    return TrecCollection(TrecConfig(path=str(folder)))


def tevatron(folder):
    jsonl(folder, "corpus.jsonl", [{"docid": row["_id"], "title": row["title"], "text": row["text"]} for row in ROWS])
    train = {"query_id": "q", "query": "a zebra", "positive_passages": [{"docid": "d59", "text": "a"}]}
    (folder / "train.jsonl").write_text(json.dumps({**train, "negative_passages": []}) + "\n")
    return TevatronCollection(TevatronConfig(path=str(folder), dev_share=0.0, test_share=0.0))


READ = (jsonl, without_ids, marked, without_last_line_end, table, table_with_header, parquet, beir, trec, tevatron)


def here(collection, folder):
    counts = write_collection(collection, folder)
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}, counts


def in_tasks(collection, folder, engine):
    parts = FileChunks(folder / "parts")
    counts = write_collection(collection, folder, parts=parts, engine=engine)
    assert not parts.folder.exists()
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}, counts


@pytest.mark.parametrize("make", READ)
def test_the_files_are_those_of_one_process(make, tmp_path):
    engine, collection = Pickling(), make(tmp_path)
    assert in_tasks(collection, tmp_path / "tasks", engine) == here(collection, tmp_path / "here")
    assert len(engine.names) > 3
    assert {f"part {number} of the passages" for number in (1, 2, 3)} <= {*engine.names}
    assert {*engine.uses.values()} == {"core"}


def test_a_file_that_cannot_be_cut_is_read_here(tmp_path):
    (tmp_path / "texts.csv").write_text("".join(f"d{n},zebra\n" for n in range(99)))
    engine, collection = Pickling(), JsonlCollection(JsonlConfig(path=str(tmp_path / "texts.csv")))
    assert in_tasks(collection, tmp_path / "tasks", engine) == here(collection, tmp_path / "here")
    assert engine.names == []


@given(lines=st.lists(st.text("ab", max_size=30), max_size=40), size=st.integers(1, 90), ends=st.booleans())
def test_every_line_is_in_one_range_under_its_number(tmp_path_factory, lines, size, ends):
    path = tmp_path_factory.mktemp("lines") / "lines.jsonl"
    path.write_text("\n".join(lines) + "\n" * ends)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "RANGE_BYTES", size)
        cut = [*file_ranges(path)]
    assert [line for part in cut for line in read_lines(path, part)] == [*read_lines(path)]
    assert all(part.stop - part.start >= size for part in cut[:-1])


def test_a_file_that_is_missing_or_empty_is_one_error(tmp_path):
    collection = jsonl(tmp_path, rows=[])
    with pytest.raises(DrkitError, match="has no passages"):
        in_tasks(collection, tmp_path / "tasks", Pickling())
    collection.passage_files[0].unlink()
    with pytest.raises(DrkitError, match=r"texts\.jsonl: cannot be read \(No such file"):
        in_tasks(collection, tmp_path / "tasks", Pickling())


def test_a_bad_line_has_its_number_in_the_file(tmp_path):
    collection = jsonl(tmp_path)
    lines = collection.passage_files[0].read_text().splitlines()
    collection.passage_files[0].write_text("\n".join([*lines[:40], '{"_id": "d40"', *lines[41:]]))
    with refused("malformed", "JSON", where="texts.jsonl:41"):
        in_tasks(collection, tmp_path / "tasks", Pickling())


def test_a_duplicate_id_in_another_part_is_found(tmp_path):
    collection = jsonl(tmp_path, rows=[*ROWS, ROWS[1]])
    with refused("duplicate", "'d1'", "texts.jsonl:2", "texts.jsonl:61"):
        in_tasks(collection, tmp_path / "tasks", Pickling())


@pytest.mark.parametrize("rest", [LocalEngine(), Pickling()], ids=["local", "other"])
def test_finished_parts_are_kept(rest, tmp_path):
    collection = jsonl(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        in_tasks(collection, tmp_path / "tasks", Pickling(after=4))
    assert len([*(tmp_path / "tasks" / "parts").iterdir()]) == 4
    assert in_tasks(collection, tmp_path / "tasks", rest) == here(collection, tmp_path / "here")
    if isinstance(rest, Pickling):
        assert "part 1 of the passages" not in rest.names


def test_parts_of_a_file_that_has_changed_are_read_again(tmp_path):
    collection = jsonl(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        in_tasks(collection, tmp_path / "tasks", Pickling(after=4))
    text = collection.passage_files[0].read_text()
    collection.passage_files[0].write_text(text.replace("zebra", "horse"))
    os.utime(collection.passage_files[0], (time.time() + 9, time.time() + 9))
    assert in_tasks(collection, tmp_path / "tasks", Pickling()) == here(collection, tmp_path / "here")


class Watched(JsonlCollection):
    """A collection that waits for the file `go`, and cannot read its third part as long as there is `poison`."""

    def __init__(self, config, watch):
        super().__init__(config)
        self.watch = Path(watch)

    def passages_in(self, part):
        wait_until_allowed(self.watch)
        if (self.watch / "poison").exists() and part.start > 600:
            raise ValueError("poison")
        return super().passages_in(part)


@pytest.mark.slow
def test_a_cluster_writes_the_same_files_though_a_worker_is_killed(nodes, tmp_path):
    watch, plain = tmp_path / "w", jsonl(tmp_path)
    watched(watch, go=False)
    thread = in_the_middle(watch, lambda: os.kill(min(workers(watch) - {os.getpid()}), signal.SIGKILL))
    with open_engine(nodes.engine) as engine:
        found = in_tasks(Watched(plain.config, str(watch)), tmp_path / "ray", engine)
    thread.join()
    assert found == here(plain, tmp_path / "here")


@pytest.mark.slow
def test_a_cluster_names_the_bad_parts_and_keeps_the_others(nodes, tmp_path):
    watch, plain = tmp_path / "w", jsonl(tmp_path)
    watched(watch, poison=True)
    with open_engine(nodes.engine) as engine, pytest.raises(DrkitError, match="part 3 of the passages: ValueError"):
        in_tasks(Watched(plain.config, str(watch)), tmp_path / "ray", engine)
    assert len([*(tmp_path / "ray" / "parts").iterdir()]) == 2
    assert in_tasks(plain, tmp_path / "ray", LocalEngine()) == here(plain, tmp_path / "here")
