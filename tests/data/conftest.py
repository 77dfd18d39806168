from __future__ import annotations

import os
from pathlib import Path

import pytest

from drkit_pydocs.docstrings import read_file, summary_and_rest


@pytest.fixture(scope="session")
def shared() -> Path:
    folder = Path(os.environ.get("DRKIT_SHARED", Path(__file__).resolve().parents[2].parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no sample collections: {folder} is not there")
    return folder


@pytest.fixture(scope="session")
def real_texts() -> list[str]:
    """A few hundred docstrings of the standard library."""
    folder = Path(os.__file__).parent
    names = ("argparse", "ast", "functools", "heapq", "random", "shutil", "statistics", "string", "textwrap", "zipfile")
    found = [text for name in names for _, text in read_file(folder / f"{name}.py") or ()]
    return [" ".join(filter(None, summary_and_rest(text))) for text in found]


@pytest.fixture(scope="session")
def tokenizer(real_texts: list[str], tmp_path_factory: pytest.TempPathFactory):
    from drkit.data.vocabulary import train_wordpiece

    return train_wordpiece(iter(real_texts), tmp_path_factory.mktemp("vocabulary"), size=600)


@pytest.fixture(scope="session")
def store(real_texts: list[str], tokenizer, tmp_path_factory: pytest.TempPathFactory):
    from drkit.data.store import TokenStore, tokenise

    folder = tmp_path_factory.mktemp("tokens")
    tokenise(((str(i), text) for i, text in enumerate([*real_texts, ""])), tokenizer, folder, max_length=40)
    return TokenStore.open(folder)
