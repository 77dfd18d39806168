"""The public API changes only together with its page and the changelog."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from tests.core import parts_page
from tests.core.public_api import FOLDER, PACKAGES, ROOT, described, exports, pages, public_names
from tests.warm import warm_process


def test_the_pages_list_every_public_name():
    files = [FOLDER / "api.md", *(FOLDER / "api").rglob("*")]
    written = {file.relative_to(FOLDER).as_posix(): file.read_text(encoding="utf-8") for file in files}
    assert written == pages(), "run: python -m tests.core.public_api"


def test_no_page_of_the_api_is_long():
    """One page of 30,000 words loads slowly and cannot be searched by eye."""
    assert max(len(text.split()) for text in pages().values()) < 6000


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_has_the_name_of_an_export(package):
    """Once somebody imports such a module, its package has the module under that name."""
    modules = {path.stem for path in (ROOT / package.replace(".", "/")).glob("*.py")}
    assert not modules & set(exports(package))


def test_the_page_of_parts_is_that_of_the_registry():
    assert parts_page.PAGE.read_text(encoding="utf-8") == parts_page.page(), "run: python -m tests.core.parts_page"


def test_a_change_of_the_api_is_in_the_changelog(tmp_path):
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    # In a process of its own: other tests change classes.
    script = tmp_path / "script.py"
    script.write_text("from tests.core.public_api import fingerprint; print(fingerprint())")
    done = warm_process().drkit(script=str(script))
    assert done["code"] == 0, done["err"]
    now = done["out"].strip()
    assert f"The public API is `{now}`" in changelog, (
        f"a public name or signature changed; say in CHANGELOG.md what changed, and that the public API is `{now}`"
    )


def test_public_names_are_documented():
    values = [(name, getattr(import_module(module), name)) for module, name in public_names()]
    assert len(values) > 100
    assert not [name for name, value in values if callable(value) and not (value.__doc__ or "").strip()]


IMPORTS = re.compile(r"^(?:>>> )?[ \t]*from (drkit[\w.]*) import (.+)$", re.MULTILINE)


def imported_from_drkit(text):
    """(module, name) of every import from drkit in source code or in the code of a page."""
    return [(module, name.strip()) for module, names in IMPORTS.findall(text) for name in names.split(",")]


def private(found):
    return [(module, name) for module, name in found if module not in PACKAGES or name not in exports(module)]


def test_a_new_plugin_imports_public_names_only(tmp_path):
    from drkit.commands.new_plugin import SUMMARIES, write_plugin

    write_plugin("mine", list(SUMMARIES), tmp_path / "mine")
    found = [one for file in tmp_path.rglob("*.py") for one in imported_from_drkit(file.read_text())]
    assert len(found) > 30
    assert not private(found)
    assert private([("drkit.data.collection", "SPLITS"), ("drkit.plugin", "NoSuchName"), ("drkit.plugin", "Kind")]) == [
        ("drkit.data.collection", "SPLITS"),
        ("drkit.plugin", "NoSuchName"),
    ]


def test_the_page_for_authors_imports_public_names_only():
    found = imported_from_drkit((ROOT / "docs" / "guide" / "plugins.md").read_text(encoding="utf-8"))
    assert found
    assert not private(found)


def test_a_changed_signature_changes_what_is_described():
    assert described("drkit.testing", "check_masker") == [
        "drkit.testing.check_masker(POSITIONAL_OR_KEYWORD part, POSITIONAL_OR_KEYWORD config=)"
    ]
    assert "drkit.plugin.Kind.MASKER" in described("drkit.plugin", "Kind")
