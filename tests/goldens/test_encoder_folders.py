"""Encoder folders of every kind are written as on record, byte for byte, and read as on record."""

import json

import pytest

from tests.goldens.encoder_folders import CASES, GOLDEN, WRITTEN, declarations, read, write

RECORDED = json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_every_kind_is_on_record():
    assert RECORDED["written"].keys() == WRITTEN.keys()
    assert RECORDED["read"].keys() == {*WRITTEN, *(f"sentence-transformers: {name}" for name in CASES)}


@pytest.mark.parametrize("name", WRITTEN)
def test_folders_of_drkit(name, tmp_path):
    folder = write(name, tmp_path / "e")
    found = declarations(folder)
    assert found.keys() == RECORDED["written"][name].keys()
    for file, text in RECORDED["written"][name].items():
        assert found[file] == text, file
    assert read(folder) == RECORDED["read"][name]


@pytest.mark.parametrize("name", CASES)
def test_folders_of_sentence_transformers(name, tmp_path):
    CASES[name](tmp_path / "e")
    assert read(tmp_path / "e") == RECORDED["read"][f"sentence-transformers: {name}"]
