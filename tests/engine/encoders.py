"""Encoders that worker processes load, with faults that a test turns on and off by files in a folder."""

import os
import time
from pathlib import Path

from tests.search.test_encoding import encoder

LONGEST = 120


def wait_until_allowed(folder):
    """Say in a folder that this process works, and wait for the file `go`."""
    (folder / f"working-{os.getpid()}").touch()
    deadline = time.monotonic() + LONGEST
    while not (folder / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


class Watched:
    """An encoder that says where it works, waits for the file `go`, and fails at texts that have `poison`."""

    def __init__(self, folder):
        self._encoder, self.folder = encoder(), Path(folder)
        (self.folder / f"loaded-{os.getpid()}-{time.monotonic_ns()}").touch()

    dimension = property(lambda self: self._encoder.dimension)

    def identity(self):
        return self._encoder.identity()

    def encode_passages(self, texts):
        wait_until_allowed(self.folder)
        if (self.folder / "poison").exists() and any("poison" in text for text in texts):
            with (self.folder / "attempts").open("a") as file:
                file.write("x")
            raise ValueError("poison\x1b[31m in a text")
        return self._encoder.encode_passages(texts)

    encode_queries = encode_passages


def other_encoder_elsewhere(first):
    """The encoder of seed 0 in process `first`, and another in any other process."""
    return encoder(seed=0 if os.getpid() == first else 1)
