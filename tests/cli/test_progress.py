"""What is drawn of a run's progress: rates of the work at hand, whatever went before."""

import pytest

from drkit_cli import progress
from drkit_cli.progress import RichProgress


@pytest.fixture
def said(monkeypatch, capsys):
    """Tells a progress bar (seconds, done, unit) events of 300 in all; its lines come back."""

    def tell(*events):
        now = [0.0]
        monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
        bar = RichProgress(1)
        bar.begin("runs", "search")
        for now[0], done, unit in events:
            bar.advance(done, 300, unit)
        return capsys.readouterr().err.splitlines()[1:]

    return tell


def test_another_kind_of_work_starts_counting_over(said):
    lines = said((1, 100, "queries"), (21, 300, "queries"), (61, 1, "pairs"), (81, 101, "pairs"))
    assert [line.strip() for line in lines] == [
        "runs: 300/300 queries  10.0/s, 0 s left",
        "runs: 1/300 pairs",
        "runs: 101/300 pairs  5.0/s, 40 s left",
    ]


def test_a_second_pass_over_the_same_work_starts_counting_over(said):
    lines = said((1, 100, "queries"), (2, 300, "queries"), (32, 100, "queries"), (52, 200, "queries"))
    assert [line.strip() for line in lines] == [
        "runs: 100/300 queries",
        "runs: 200/300 queries  5.0/s, 20 s left",
    ]


def test_what_it_took_to_start_does_not_count_as_speed(said):
    lines = said((600, 100, "queries"), (620, 200, "queries"))
    assert [line.strip() for line in lines] == ["runs: 100/300 queries", "runs: 200/300 queries  5.0/s, 20 s left"]
