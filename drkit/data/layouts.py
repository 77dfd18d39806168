"""Folders in which files are known by their names: which is the corpus, which are the queries of a split."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from drkit.data.records import FORMATS
from drkit.errors import DrkitError

SPLIT_NAMES = {"train": ("train", "training"), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}
CORPUS_NAMES = ("corpus", "collection", "docs", "documents", "passages")
_ALL_SPLITS = frozenset(name for names in SPLIT_NAMES.values() for name in names)
_PARTS = re.compile(r"[./_-]+")


def words_of(name: str) -> set[str]:
    """What dots, dashes, underscores and slashes part, in lower case.

    >>> sorted(words_of("qrels/Dev.tsv"))
    ['dev', 'qrels', 'tsv']
    """
    return set(_PARTS.split(name.lower()))


def named_file(
    folder: Path, names: Sequence[str], split: str = "", *, formats: Collection[str] = FORMATS
) -> Path | None:
    """The file of a folder, or of its folders, that has one of `names` among the words of its path, and the split's.

    `queries.dev.tsv`, `qrels/dev.tsv`, `nq-dev.jsonl.gz`: words are what dots, dashes and slashes part. Without a
    split, one that names no split. Of several the one with the fewest words counts (`queries.dev.tsv` before
    `queries.dev.small.tsv`).

    Raises DrkitError where two have as few.
    """
    found: list[tuple[int, Path]] = []
    for path in sorted(p for p in (*folder.glob("*"), *folder.glob("*/*")) if p.is_file()):
        words = words_of(str(path.relative_to(folder)))
        of_split = bool(words & set(SPLIT_NAMES[split])) if split else not words & _ALL_SPLITS
        kind = (path.with_suffix("") if path.suffix == ".gz" else path).suffix
        if words & set(names) and of_split and kind in formats and not path.name.startswith("."):
            found.append((len(words - {"gz"}), path))
    found.sort()
    if len(found) > 1 and found[0][0] == found[1][0]:
        what = f"the {names[0]}{f' of {split}' if split else ''}"
        raise DrkitError(
            f"{folder}: {found[0][1].name} and {found[1][1].name} may both be {what}; name one by a setting"
        )
    return found[0][1] if found else None
