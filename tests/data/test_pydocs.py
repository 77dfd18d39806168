"""The docstring collection, on a small folder of packages made here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from drkit.errors import DrkitError
from drkit_pydocs import PydocsCollection, PydocsConfig
from drkit_pydocs import docstrings as docstrings_module
from drkit_pydocs.docstrings import read_file, read_files

REST = "The rest of it says {} in more words than eight, so that it is kept."


def function(name: str, summary: str, rest: str, indent: str = "") -> str:
    return f'{indent}def {name}():\n{indent}    """{summary}\n\n{indent}    {rest}\n{indent}    """\n'


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    for package in ("alpha", "beta"):
        (folder / package / "tests").mkdir(parents=True)
        (folder / package / "__init__.py").write_text(f'"""The package {package}.\n\n{REST.format(package)}\n"""\n')
        hidden = function("hidden", "A test of something else.", REST.format("hidden"))
        (folder / package / "tests" / "test_it.py").write_text(hidden)
        for i in range(30):
            text = function(f"f{i}", f"Compute the {package} number {i}.", REST.format(f"{package} {i}"))
            (folder / package / f"m{i}.py").write_text(text)
    (folder / "drkit").mkdir()
    (folder / "drkit" / "__init__.py").write_text(function("own", "A docstring of our own.", REST.format("own")))
    (folder / "single.py").write_text('"""A single module file.\n\n' + REST.format("single") + '\n"""\n')
    return folder


def pydocs(folder: Path, **settings) -> PydocsCollection:
    return PydocsCollection(PydocsConfig(**settings), roots=[folder])


def texts(collection: PydocsCollection) -> dict[str, str]:
    return {p.doc_id: p.text for p in collection.passages()}


def summaries(collection: PydocsCollection) -> dict[str, str]:
    return {q.query_id: q.text for split in collection.splits() for q in collection.queries(split)}


def test_summary_is_the_query_and_the_rest_is_the_passage(packages):
    found = pydocs(packages)
    assert texts(found)["alpha.m3.f3"] == REST.format("alpha 3")
    assert summaries(found)["alpha.m3.f3"] == "Compute the alpha number 3."
    assert texts(found)["beta"] == REST.format("beta")
    assert summaries(found)["single"] == "A single module file."
    assert not [name for name in texts(found) if "test" in name or name.startswith("drkit")]
    assert len(texts(found)) == 63


def test_whole_modules_go_to_one_split_and_each_query_has_one_answer(packages):
    found = pydocs(packages, test_share=0.3, dev_share=0.2)
    assert found.splits() == ("train", "dev", "test")
    seen: set[str] = set()
    for split in found.splits():
        ids = [q.query_id for q in found.queries(split)]
        assert [(j.query_id, j.doc_id, j.relevance) for j in found.judgements(split)] == [(i, i, 1) for i in ids]
        assert not seen & set(ids)
        seen.update(ids)
    assert seen == set(texts(found))


def test_the_same_files_give_the_same_collection(packages):
    one, other = pydocs(packages), pydocs(packages)
    assert list(one.passages()) == list(other.passages())
    assert one.describe() == other.describe()
    before = one.describe()["content_sha256"]
    with (packages / "single.py").open("a") as file:
        file.write(function("more", "One more of these functions.", REST.format("more")))
    assert pydocs(packages).describe()["content_sha256"] != before


def test_a_split_does_not_depend_on_the_other_modules(packages):
    def splits(collection):
        return {q.query_id: s for s in collection.splits() for q in collection.queries(s)}

    alone = splits(pydocs(packages, packages=("alpha",)))
    together = splits(pydocs(packages))
    assert alone == {name: split for name, split in together.items() if name.startswith("alpha")}


def write(packages: Path, text: str) -> PydocsCollection:
    (packages / "single.py").write_text(text)
    return pydocs(packages, packages=("single",))


def test_duplicates_are_dropped(packages):
    found = write(
        packages,
        function("a", "Say something about it.", REST.format("one"))
        + function("b", "Another summary of it.", REST.format("one").upper())
        + function("c", "Do a shared thing.", REST.format("two"))
        + function("d", "Do a shared thing!", REST.format("three")),
    )
    assert list(texts(found)) == ["single.a", "single.c", "single.d"]
    assert list(summaries(found)) == ["single.a"]


def test_names_are_made_unique_and_nested_ones_are_readable(packages):
    inner = function("f", "Get the value of it.", REST.format("get"), "    ")
    setter = function("f", "Set the value of it.", REST.format("set"), "    ")
    found = write(packages, "class C:\n" + inner + setter + "if True:\n" + function("g", "A b c.", REST, "    "))
    assert list(texts(found)) == ["single.C.f", "single.C.f#2", "single.g"]


def test_short_and_long_texts(packages):
    long = " ".join(["word"] * 41)
    found = write(
        packages,
        function("a", "Too short.", REST.format("a"))
        + function("b", long, REST.format("b"))
        + function("c", "A fine summary here.", "Too short a rest.")
        + 'def d():\n    """One paragraph alone is not a passage: the summary is all of it."""\n'
        + function("e", "A fine summary this.", REST.format("e")),
    )
    assert list(texts(found)) == ["single.a", "single.b", "single.e"]
    assert list(summaries(found)) == ["single.e"]


@pytest.mark.parametrize(
    "personal", ["<jane.doe@example.org>", "Copyright (c) 2020 Jane Doe", "mail a@b-c.co.uk", "Copyright 2020 Jane"]
)
@pytest.mark.parametrize("in_summary", [True, False])
def test_docstrings_that_name_somebody_are_left_out(packages, personal, in_summary):
    summary, rest = "A fine summary here.", REST.format("it")
    texts_of = (f"{personal} {summary}", rest) if in_summary else (summary, f"{rest} {personal}")
    found = write(packages, function("a", *texts_of) + function("b", "About a @ b.c and name@1.2.", REST.format("b")))
    assert list(texts(found)) == list(summaries(found)) == ["single.b"]


def test_a_passage_keeps_its_lines(packages):
    rest = ["", "", "        of one:  ", "            two", "   ", "", "    three four five", "    six seven."]
    lines = ["def a():", '    """Say', "    something here.", *rest, '    """', ""]
    found = write(packages, "\n".join(lines))
    assert texts(found)["single.a"] == "    of one:\n        two\n\nthree four five\nsix seven."
    assert summaries(found)["single.a"] == "Say something here."


@pytest.mark.parametrize(
    "summary", ["alpha.headings ~~~~~~~~", "===== Sums (:mod:`alpha`) =====", ">>> compute(3) == 4"]
)
def test_headings_and_examples_are_no_queries(packages, summary):
    (packages / "alpha" / "junk.py").write_text(function("junk", summary, REST.format("junk")))
    found = pydocs(packages)
    assert "alpha.junk.junk" in texts(found)
    assert "alpha.junk.junk" not in summaries(found)


def test_files_that_cannot_be_parsed_are_counted(packages):
    (packages / "alpha" / "broken.py").write_text('def f(:\n    """x"""')
    (packages / "alpha" / "binary.py").write_bytes(b'"""\xff\xfe\x00"""')
    (packages / "alpha" / "deep.py").write_text('"""x"""\nx = ' + "(" * 3000 + ")" * 3000)
    (packages / "alpha" / "gone.py").symlink_to(packages / "nowhere.py")
    counts = pydocs(packages).describe()["counts"]
    assert counts["unreadable"] == 4
    assert counts["passages"] == 63


def test_a_limit_takes_the_same_modules_each_time(packages):
    few = pydocs(packages, limit=20)
    assert few.describe()["counts"]["modules"] == 20
    assert set(texts(few)) < set(texts(pydocs(packages)))
    assert texts(few) == texts(pydocs(packages, limit=20))


def test_an_unknown_package_is_named(packages):
    with pytest.raises(DrkitError, match=r"package 'alpah' .*'alpha'"):
        list(pydocs(packages, packages=("alpah",)).passages())


def test_nothing_to_read_says_so(tmp_path):
    with pytest.raises(DrkitError, match="no Python sources in"):
        list(pydocs(tmp_path).passages())
    (tmp_path / "bare.py").write_text("x = 1\n")
    with pytest.raises(DrkitError, match=r"collection pydocs: .*docstring .*packages"):
        list(pydocs(tmp_path).passages())


def test_processes_give_what_one_gives(packages):
    files = sorted(packages.rglob("*.py"))
    paths = files * (600 // len(files) + 1)
    assert list(read_files(paths, workers=3)) == [read_file(path) for path in files] * (len(paths) // len(files))


def test_a_worker_that_dies_is_an_error_and_not_a_short_collection(packages, monkeypatch):
    monkeypatch.setattr(docstrings_module.sys, "executable", "/bin/false")
    with pytest.raises((subprocess.CalledProcessError, BrokenPipeError)):
        list(read_files([packages / "single.py"] * 600, workers=3))


def test_the_reading_of_sources_is_shown(packages):
    collection, shown = pydocs(packages), []
    collection.read_ahead(lambda done, total: shown.append((done, total)))
    assert shown[-1][0] == shown[-1][1] == collection.describe()["counts"]["modules"]
    collection.read_ahead(shown.append)  # is read already


def test_the_worker_runs_alone(packages):
    done = subprocess.run(
        [sys.executable, "-I", docstrings_module.__file__],
        input=f'["{packages / "single.py"}"]',
        capture_output=True,
        text=True,
        check=True,
    )
    assert "A single module file." in done.stdout


def test_the_standard_library_is_an_honest_collection():
    found = PydocsCollection(PydocsConfig(packages=("json", "argparse", "email", "unittest", "asyncio")))
    facts = found.describe()
    assert facts["packages"].keys() == {"Python"}
    assert facts["counts"]["passages"] == len(set(texts(found).values())) > 100
    queries = list(summaries(found).values())
    assert len(queries) == len(set(queries)) > 80
