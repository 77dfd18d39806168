"""Numbers in data files: decimal, in ASCII digits, and grades within what every later stage can use."""

import pytest

from drkit.core.types import Judgement, Passage, Query
from drkit.data.pairs import PairsCollection
from drkit.data.qrels import read_judgements
from drkit.data.specs import PairsConfig
from drkit.data.writing import write_collection
from drkit.errors import DrkitError
from drkit.search import read_qrels, read_run
from tests.refusals import refused

ODD = ("1_0.0", "1_0", "١٢", "nan", "inf", "0x1", "9" * 5000)


@pytest.mark.parametrize("text", [*ODD, "1000001", "1e7", "-2147483649"])
def test_a_grade_is_a_decimal_number_of_at_most_a_million(text, tmp_path):
    path = tmp_path / "qrels.tsv"
    path.write_text(f"q1 0 d1 1\nq1 0 d2 {text}\n", encoding="utf-8")
    with refused(where="qrels.tsv:2"):
        list(read_judgements(path))


@pytest.mark.parametrize("text", ODD)
def test_other_readers_read_the_same_numbers(text, tmp_path):
    path = tmp_path / "file"
    path.write_text(f"q1 0 d1 {text}\n", encoding="utf-8")
    with refused(where="file:1"):
        list(read_qrels(path))
    if text != "9" * 5000:
        path.write_text(f"q1 Q0 d1 1 {text} tag\n", encoding="utf-8")
        with refused(where="file:1"):
            list(read_run(path))
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(f"query\tpassage\tscore\na\tb\t{text}\n", encoding="utf-8")
    if text != "9" * 5000:
        with refused(where="pairs.tsv:2"):
            list(PairsCollection(PairsConfig(path=str(pairs))).judgements("train"))


class TooHigh:
    """A collection of anyone's, with one grade."""

    name = "too-high"

    def splits(self):
        return ("test",)

    def passages(self):
        return iter([Passage("d", "", "text")])

    def queries(self, split):
        return iter([Query("q", "text")])

    def judgements(self, split):
        return iter([Judgement("q", "d", 1_000_001)])


def test_a_grade_that_cannot_be_evaluated_is_refused_when_the_collection_is_stored(tmp_path):
    with pytest.raises(DrkitError, match=r"1000001 .*'d' .*'q', .*test; .*1,000,000"):
        write_collection(TooHigh(), tmp_path)
