"""A fault while `drkit serve` keeps a judgement."""

import errno
import random
import re
import signal
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from http.client import HTTPException

import pytest

from drkit.core.files import is_temporary
from tests.faults.test_faults import ERRORS, FAULTS, KILL, SEED, contents

QUERY = "my own words of topic3"
JUDGED = "<b>relevant, grade 1</b>"


@pytest.fixture
def run(finished):
    return finished("ance")[0]


class Page:
    """The page of a server that is starting on a port."""

    def __init__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def answer(self, path, **form):
        """(status, text) of a page, or of a form that is sent."""
        data = urllib.parse.urlencode(form).encode() if form else None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", data, timeout=60) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def await_start(self):
        for _ in range(1200):
            try:
                return self.answer("")
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the server did not start")

    def search(self):
        return self.answer(f"?{urllib.parse.urlencode({'q': QUERY})}")[1]

    def judge(self):
        """Judge the best passage of the query."""
        row, token = (re.search(rf'name="{name}" value="([^"]+)"', self.search())[1] for name in ("row", "token"))
        return self.answer("judge", q=QUERY, row=row, grade=1, token=token)


@contextmanager
def serving(server, run, folder, at=0, error=0):
    """A server that keeps judgements in a folder: its page, and its result once it has ended."""
    folder.mkdir(exist_ok=True)
    page, result = Page(), {}
    server.start("serve", run, "--port", page.port, "--qrels", folder / "mine.qrels", root=folder, at=at, error=error)
    try:
        page.await_start()
        yield page, result
    finally:
        server.process.send_signal(signal.SIGINT)
        result.update(server.wait())
    assert "Traceback" not in result["output"]


def kept(folder):
    return {path: held for path, held in contents(folder).items() if not is_temporary(folder / path)}


def test_a_judgement_with_a_fault_is_kept_or_refused(server, run, tmp_path):
    """A kill leaves the files of before or after; an error is on the page, and judging again keeps the judgement."""
    with serving(server, run, tmp_path / "whole") as (page, result):
        assert page.judge()[0] == 200
        assert JUDGED in page.search()
    assert result["code"] == 0
    expected, rng = kept(tmp_path / "whole"), random.Random(f"serve {SEED}")
    assert set(expected) == {"mine.qrels", "mine.qrels.queries.tsv", ".mine.qrels.lock"}
    for number in range(max(3, FAULTS // 20)):
        folder, at, error = tmp_path / str(number), rng.randint(1, result["operations"]), rng.choice(ERRORS)
        check_a_fault(server, run, folder, at, error, expected)


def check_a_fault(server, run, folder, at, error, expected):
    where = f"operation {at}, {errno.errorcode.get(error, 'kill')}"
    with serving(server, run, folder, at, error) as (page, result):
        if error == KILL:
            with pytest.raises((OSError, HTTPException)):
                page.judge()
        else:
            status, text = page.judge()
            assert (status == 200) is ("the judgement was not kept" not in text), (where, text)
            assert (JUDGED in page.search()) is (status == 200), where
    assert result["code"] == (-signal.SIGKILL if error == KILL else 0), where
    assert all(expected[path] == held for path, held in kept(folder).items()), where
    with serving(server, run, folder) as (page, _):
        assert page.judge()[0] == 200, where
    assert kept(folder) == expected, where
