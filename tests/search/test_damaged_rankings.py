"""Files of rankings that are damaged, of another kind, or changed after drkit wrote them: one message, no other result.

The files here are wrong in harmless ways: values that another reader would accept, cut files, files of other formats.
"""

import numpy as np
import pyarrow as pa
import pytest

from drkit.core.checksums import check_unchanged
from drkit.core.files import replacing_folder
from drkit.data.arrays import arrow_file
from drkit.errors import DrkitError
from drkit.search import read_run, write_run
from tests.refusals import refused

ROWS = [("q1", [("a", 3.0), ("b", 2.0), ("c", 1.0)]), ("q2", [("c", 1.5), ("é", 0.5)])]


@pytest.fixture
def file(tmp_path):
    write_run(tmp_path / "run.arrow", ROWS, "t")
    return tmp_path / "run.arrow"


def replaced(file, before, after):
    """Change bytes that occur once in a file."""
    content = file.read_bytes()
    assert content.count(before) == 1
    file.write_bytes(content.replace(before, after))


def rewritten(file, change):
    """Write a file's one record batch again, changed, without a checksum: as another program may."""
    (batch,) = (pa.ipc.open_file(file.read_bytes()).get_batch(0),)
    columns = change(dict(zip(batch.schema.names, batch.columns, strict=True)))
    made = pa.record_batch(columns)
    with arrow_file(file, made.schema) as writer:
        writer.write_batch(made)


def test_a_changed_score_is_found_by_the_checksum(file):
    replaced(file, np.float32(2.0).tobytes() + np.float32(1.0).tobytes(), np.float32([2.5, 1.0]).tobytes())
    assert pa.ipc.open_file(file.read_bytes()).get_batch(0).column("score")[0].as_py() == [3.0, 2.5, 1.0], "it reads"
    with refused("changed", "checksum", "again", where="run.arrow"):
        read_run(file)


def test_a_changed_id_is_found_by_the_checksum(file):
    replaced(file, b"q1q2", b"q1q3")
    with refused("changed", "checksum", where="run.arrow"):
        read_run(file)


def test_a_byte_that_is_no_text_is_one_message(file):
    replaced(file, b"q1q2", b"q1q\xff")
    with refused("Arrow", "TREC run", where="run.arrow"):
        read_run(file)


@pytest.mark.parametrize("kept", [8, 100, 0.5, 0.9, -1])
def test_a_cut_file_is_one_message(file, kept):
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content)) if isinstance(kept, float) else kept])
    with refused("Arrow", where="run.arrow"):
        read_run(file)


def test_a_text_file_with_that_name_is_read_as_text_and_refused_by_line(file):
    file.write_text("not a run\n")
    with refused("columns", where="run.arrow:1"):
        read_run(file)


def test_rankings_without_a_checksum_are_validated(file):
    rewritten(file, lambda columns: columns)
    assert list(read_run(file)) == ROWS


def lists(values, ends=(0, 3, 5)):
    return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), values)


def documents(names, codes=(0, 1, 2, 2, 3)):
    return lists(pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(names, pa.large_string())))


def scores(*values, ends=(0, 3, 5)):
    return lists(pa.array(values, pa.float32()), ends)


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("score", scores(3, 2, float("nan"), 1.5, 0.5), "not finite"),
        ("score", scores(3, 2, None, 1.5, 0.5), "missing"),
        ("score", scores(3, 2, 1, 1.5, 0.5, ends=(0, 2, 5)), "do not match"),
        ("score", lists(pa.array([3, 2, 1, 1, 0], pa.float64())), "not a file of rankings"),
        ("doc_id", documents(["a", "b", "c", "é"], (0, 1, 1, 2, 3)), "duplicate document"),
        ("doc_id", documents(["a", "b", "c", "a"]), "twice"),
        ("doc_id", documents(["a", "b", "c", ""]), "empty"),
        ("doc_id", lists(pa.array(list("abccd"), pa.large_string())), "not a file of rankings"),
        ("query_id", pa.array(["q1", "q1"], pa.large_string()), "duplicate query 'q1'"),
        ("query_id", pa.array(["q1", None], pa.large_string()), "missing"),
        ("query_id", pa.nulls(2), "missing"),
    ],
)
def test_what_rankings_must_not_have_is_refused(file, column, values, said):
    rewritten(file, lambda columns: columns | {column: values})
    with refused(said, "TREC run", where="run.arrow"):
        read_run(file)


def test_a_file_in_a_folder_of_drkit_is_compared_with_the_record_of_the_folder(tmp_path):
    with replacing_folder(tmp_path / "made") as folder:
        write_run(folder / "runs.trec", ROWS, "t")
    assert len(read_run(tmp_path / "made/runs.trec")) == 2
    replaced(tmp_path / "made/runs.trec", b"2.0", b"2.5")
    with refused("changed since drkit wrote it", where="made/runs.trec"):
        read_run(tmp_path / "made/runs.trec")


def test_files_without_a_record_are_not_compared(tmp_path):
    (tmp_path / "manifest.json").write_text('{"name": "of a web page", "files": ["a.txt"]}')
    (tmp_path / "a.txt").write_text("anything")
    check_unchanged(tmp_path / "a.txt")
    check_unchanged(tmp_path)


def test_a_recorded_file_that_is_missing_or_has_another_size_is_named_with_the_advice(tmp_path):
    with replacing_folder(tmp_path / "made") as folder:
        (folder / "one").write_text("1")
        (folder / "two").write_text("22")
    (tmp_path / "made/one").unlink()
    with refused("is missing", "write it anew", where="made/one"):
        check_unchanged(tmp_path / "made", "write it anew")
    (tmp_path / "made/one").write_text("11")
    with pytest.raises(DrkitError, match="2 bytes, expected 1"):
        check_unchanged(tmp_path / "made")
