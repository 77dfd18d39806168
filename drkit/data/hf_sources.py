"""Where the rows of a Hugging Face data set are: files of a folder, a saved data set, or the hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from drkit.data.layouts import SPLIT_NAMES, words_of
from drkit.data.lines import Record
from drkit.data.pair_rows import UNNAMED, PairColumns, Rows
from drkit.data.records import FORMATS, kind_of, records
from drkit.data.text_files import Columns
from drkit.errors import DrkitError

_SAVED = ("dataset_dict.json", "dataset_info.json")
_FORMATS = (*FORMATS, ".arrow")


def parts_of(path: str) -> set[str]:
    """What a data set has apart: the folders and files of a folder, by name; else its configurations."""
    folder = Path(path).expanduser()
    names = {entry.name.split(".")[0] for entry in folder.iterdir()} if folder.is_dir() else set()
    if folder.is_dir() and not (folder / "README.md").is_file():
        return names
    import datasets

    with _reading(path):
        return names | set(datasets.get_dataset_config_names(str(folder) if folder.is_dir() else path))


def open_part(path: str, part: str, columns: PairColumns | None = None) -> dict[str, Rows]:
    """The rows of a data set, or of its folder, file or configuration `part`, by split: train, dev, test.

    columns: what tables without a header hold. Raises DrkitError where there are none.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return _by_split(_downloaded(path, part), f"{path}{f' ({part})' if part else ''}")
    inner = folder / part if part and (folder / part).is_dir() else folder
    if any((inner / name).is_file() for name in _SAVED):
        return _by_split(_saved(inner), str(inner))
    files = (
        _files(inner) if inner != folder or not part else [f for f in _files(folder) if f.name.startswith(f"{part}.")]
    )
    if (folder / "README.md").is_file() and (inner == folder and not (part and files)):
        return _by_split(_configured(folder, part), f"{folder}{f' ({part})' if part else ''}")
    if not files:
        what = f"no part {part!r}" if part else "no data"
        raise DrkitError(
            f"collection hf: {folder} has {what}; data are {', '.join(_FORMATS)} files or a saved data set"
        )
    return _of_files(files, columns)


def joined(splits: Mapping[str, Rows]) -> Rows:
    """The rows of all splits, one after the other."""

    def rows() -> Iterator[Record]:
        for split in splits.values():
            yield from split()

    return rows


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and kind_of(p) in _FORMATS and not p.name.startswith("."))


def _of_files(files: list[Path], columns: PairColumns | None) -> dict[str, Rows]:
    """Files by the split that their name has among its words; those without one are train."""
    found: dict[str, list[Path]] = {}
    for path in files:
        words = words_of(path.name)
        split = next((split for split, names in SPLIT_NAMES.items() if words & {*names}), "train")
        found.setdefault(split, []).append(path)
    return {split: partial(_read, paths, columns) for split, paths in found.items()}


def _read(paths: list[Path], columns: PairColumns | None) -> Iterator[Record]:
    header = columns.header if columns else Columns(texts=("text", "score", "_id", "id")).header
    for path in paths:
        if kind_of(path) == ".arrow":
            import datasets

            with _reading(str(path)):
                table = datasets.Dataset.from_file(str(path))
            yield from _rows(table, str(path))
        else:
            yield from records(path, header, unnamed=UNNAMED if columns else ())


def _saved(folder: Path) -> dict[str, Any]:
    import datasets

    with _reading(str(folder)):
        saved = datasets.load_from_disk(str(folder))
    return dict(saved) if isinstance(saved, datasets.DatasetDict) else {"train": saved}


def _configured(folder: Path, part: str) -> dict[str, Any]:
    """A folder whose README.md says which files are what; streamed, so that nothing is copied to a cache."""
    import datasets

    with _reading(str(folder)):
        return dict(datasets.load_dataset(str(folder), part or None, streaming=True))


def _downloaded(name: str, part: str) -> dict[str, Any]:
    import datasets

    with _reading(name):
        return dict(datasets.load_dataset(name, part or None))


def _by_split(found: Mapping[str, Any], name: str) -> dict[str, Rows]:
    """Of the splits, those whose names are known; a single one of another name is train."""
    names = {split: next((n for n in (split, *usual) if n in found), None) for split, usual in SPLIT_NAMES.items()}
    known = {split: partial(_rows, found[n], f"{name} [{n}]") for split, n in names.items() if n}
    if not known and len(found) != 1:
        raise DrkitError(f"collection hf: {name} has the splits {', '.join(found)}; none is train, dev or test")
    return {**known} or {"train": partial(_rows, next(iter(found.values())), name)}


def _rows(table: Any, name: str) -> Iterator[Record]:
    number = 0
    with _reading(f"{name} past row {number}"):
        for number, row in enumerate(table, start=1):
            yield Record(name, number, dict(row), "row")


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """`datasets` raises many things where data cannot be had; all of them reach the user as one."""
    from datasets.exceptions import DatasetsError

    try:
        yield
    except DrkitError:
        raise
    except (OSError, DatasetsError, ValueError, RuntimeError, KeyError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise DrkitError(f"datasets cannot read {name!r}: {reason}; check the path, the id, or the network") from error
