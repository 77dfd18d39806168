"""What is drawn of a run's progress: rates of the work at hand, whatever went before."""

import io
import itertools

import pytest
from rich.console import Console

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


def test_metrics_come_after_the_time_left(said, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = RichProgress(1)
    bar.begin("retriever-1", "fine-tune")
    for now[0], done in ((1, 10), (21, 30)):
        bar.advance(done, 100, "steps", loss=2.5)
    assert capsys.readouterr().err.splitlines()[-1].strip() == "retriever-1: 30/100 steps  1.0/s, 70 s left  loss 2.5"


@pytest.mark.parametrize("width", [60, 80, 160])
def test_on_a_narrow_terminal_the_description_is_cut_and_the_numbers_stay(monkeypatch, width):
    now, terminal = [0.0], io.StringIO()
    made = Console(file=terminal, force_terminal=True, width=width, color_system=None, highlight=False)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "error_console", lambda: made)
    bar = RichProgress(1)
    bar.begin("pretrained", "pre-train with masker pmi and decoder enhanced, 3,000 steps of 32, keeping the best")
    for now[0], done in ((1, 0), (11, 70)):
        bar.advance(done, 3000, "steps")
    with made.capture() as drawn:
        made.print(bar._bar.get_renderable())
    (line,) = drawn.get().rstrip().splitlines()
    numbers, _, described = line.partition("s left")
    assert "70/3,000 steps  7.0/s, 419 " in numbers
    assert described.strip().startswith("pre")
    assert described.endswith("…") == (width < 160)


def seconds_left(line):
    return float(line.split(" s left")[0].rsplit(" ", 1)[1].replace(",", ""))


def test_the_time_left_does_not_jump(monkeypatch, capsys):
    """A step a second, one that takes ten: rich averages over a minute, so what is left changes by little."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "_INTERVAL", 0.5)
    bar = RichProgress(1)
    bar.begin("pretrained", "pre-train")
    for step in range(120):
        now[0] += 10 if step == 100 else 1
        bar.advance(step, 1000, "steps")
    lines = [line for line in capsys.readouterr().err.splitlines() if "s left" in line]
    left = [seconds_left(line) for line in lines]
    assert len(left) > 100
    assert left[90] == pytest.approx(1000 - 92, abs=2)
    jumps = [abs(b - a) / a for a, b in itertools.pairwise(left)]
    assert max(jumps) < 0.2, "a slow step out of sixty"


def test_a_stage_of_unknown_length_has_no_time_left(said, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = RichProgress(2)
    bar.begin("first", "of known length")
    bar.advance(1, 10, "texts")
    bar.begin("second", "of unknown length")
    for now[0], done in ((1, 10), (21, 30)):
        bar.advance(done, None, "texts")
    assert capsys.readouterr().err.splitlines()[-1].strip() == "second: 30 texts  1.0/s"


def test_many_small_steps_count_in_full(said, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = RichProgress(1)
    bar.begin("encode", "passages")
    for step in range(20_001):
        now[0] = step / 1000
        bar.advance(step, 40_000, "texts")
    line = capsys.readouterr().err.splitlines()[-1]
    rate = float(line.split("texts  ")[1].split("/s")[0].replace(",", ""))
    assert rate == pytest.approx(1000, rel=0.02)
    assert seconds_left(line) == pytest.approx(40 - 15, abs=1.1), "rich rounds up"
