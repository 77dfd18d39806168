"""Files of queries: read in the formats that people have them in, and written while they are generated.

Written as JSON Lines, `{"doc_id": .., "queries": [..]}`. While it is made, a folder beside the file takes every batch
of every process as one line: a kill loses the batch in work, and whoever finishes last puts the file together.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from filelock import FileLock

from drkit.core.files import replacing, write_text
from drkit.core.ranks import Shard
from drkit.data.rows import read_jsonl as json_lines
from drkit.data.rows import read_lines as numbered_lines
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from drkit.data.generation import QueryModel

ID_FIELDS = ("doc_id", "_id", "id")
QUERY_FIELDS = ("queries", "query")
FORMATS = (".jsonl", ".tsv", ".csv")
_PARTS = "part-*.jsonl"


def read_queries(path: Path) -> Iterator[tuple[str, str]]:
    """(passage id, query) of every query of a `.jsonl`, `.tsv` or `.csv` file, gzipped or not.

    JSON Lines: `doc_id` (or `_id`, `id`) and `query` or `queries`, a string or a list of strings. Tables: two columns,
    id and query, or a header that names them; an id may stand in many lines.

    Raises DrkitError naming `file:line` at a line that is none of these.
    """
    path = Path(path).expanduser()
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if kind not in FORMATS:
        raise DrkitError(
            f"{path}: queries are read from {', '.join(FORMATS)} files, gzipped or not; rename it to its kind"
        )
    if not path.is_file():
        raise DrkitError(f"{path}: there is no such file of queries")
    return _from_json(path) if kind == ".jsonl" else _from_table(path, "\t" if kind == ".tsv" else ",")


def _from_json(path: Path) -> Iterator[tuple[str, str]]:
    for line in json_lines(path):
        fields = [_present(line.values, names, str(line)) for names in (ID_FIELDS, QUERY_FIELDS)]
        doc_id, found = line.id(fields[0]), line.values[fields[1]]
        queries = found if isinstance(found, list) else [found]
        if not all(isinstance(query, str) for query in queries):
            raise DrkitError(f"{line}: {fields[1]!r} is {found!r:.60}; a string or a list of strings is wanted")
        yield from ((doc_id, query) for query in queries)


def _present(record: dict[str, Any], names: tuple[str, ...], where: str) -> str:
    for name in names:
        if record.get(name) is not None:
            return name
    raise DrkitError(f"{where}: one of {', '.join(map(repr, names))} is wanted; keys here: {', '.join(record)}")


def _from_table(path: Path, separator: str) -> Iterator[tuple[str, str]]:
    lines = (f"{line}\n" for _, line in numbered_lines(path))
    quoted = separator == ","
    reader = csv.reader(lines) if quoted else csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_NONE)
    id_column, query_column, columns = 0, 1, 2
    try:
        for number, cells in enumerate(reader):
            where = f"{path}:{reader.line_num}"
            if number == 0 and (header := _header(cells)):
                id_column, query_column, columns = header
                continue
            if len(cells) != columns or not cells[id_column]:
                wanted = "an id and a query are wanted" if columns == 2 else f"the header has {columns}"
                raise DrkitError(f"{where}: {len(cells)} cells found, {wanted}, in columns separated by {separator!r}")
            yield cells[id_column], cells[query_column]
    except csv.Error as error:
        raise DrkitError(f"{path}:{reader.line_num}: {error}") from None


def _header(cells: list[str]) -> tuple[int, int, int] | None:
    """The columns of id and query, and the number of columns, where the cells name them."""
    ids, queries = ([cells.index(name) for name in names if name in cells] for names in (ID_FIELDS, QUERY_FIELDS))
    return (ids[0], queries[0], len(cells)) if ids and queries else None


def generate_file(
    texts: Iterable[tuple[str, str]],
    model: QueryModel,
    path: Path,
    *,
    shard: Shard | None = None,
    advance: Callable[[int], None] | None = None,
) -> Path | None:
    """Generate the queries of (id, text) pairs into a JSON Lines file; None where other processes are still at theirs.

    Called again it goes on where it was cut off, with any number of processes; a file that is there is left as it is.
    All processes are given all texts, and see one file system. advance: told how many texts are through.

    Raises DrkitError where the folder beside the file holds parts of other settings.
    """
    shard, path = shard or Shard(), Path(path)
    if path.exists():
        return path
    parts = path.with_name(f".{path.name}.parts")
    _claim(parts, model)
    done = _finished(parts)
    total = 0
    with _own_part(parts, shard).open("ab") as file:
        for block, (first, batch) in enumerate(blocks(texts, model.sampling.batch_size)):
            total = block + 1
            if block % shard.processes == shard.rank and block not in done:
                queries = model([text for _, text in batch], range(first, first + len(batch)))
                line = {"block": block, "ids": [name for name, _ in batch], "queries": queries}
                file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                file.flush()
            if advance:
                advance(first + len(batch))
    return _assemble(parts, path, total)


def blocks(texts: Iterable[Any], size: int) -> Iterator[tuple[int, list[Any]]]:
    """(the number of its first text, texts) of each run of `size` texts."""
    stream, first = iter(texts), 0
    while batch := list(islice(stream, size)):
        yield first, batch
        first += len(batch)


def _claim(parts: Path, model: QueryModel) -> None:
    """Make the folder of parts, or see that it holds parts of the same model and settings."""
    settings = parts / "settings.json"
    ours = {"model": str(model.model.name_or_path), **attrs.asdict(model.sampling)}
    if settings.is_file() and (theirs := json.loads(settings.read_text(encoding="utf-8"))) != ours:
        changed = [name for name in ours if theirs.get(name) != ours[name]]
        raise DrkitError(
            f"{parts} holds queries that were generated with other settings ({', '.join(changed)}): "
            f"generate with those, or remove the folder"
        )
    write_text(settings, json.dumps(ours))


def _own_part(parts: Path, shard: Shard) -> Path:
    """This process' part; a line that a kill left unfinished is cut off it."""
    path = parts / f"part-{shard.rank}.jsonl"
    if path.is_file():
        with path.open("rb+") as file:
            file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))
    return path


def _finished(parts: Path) -> dict[int, tuple[Path, int]]:
    """Where each block that is done stands: its part, and the place of its line."""
    found: dict[int, tuple[Path, int]] = {}
    for path in sorted(parts.glob(_PARTS)):
        with path.open("rb") as file:
            start = 0
            for line in file:
                if line.endswith(b"\n"):
                    found[int(json.loads(line)["block"])] = (path, start)
                start += len(line)
    return found


def _assemble(parts: Path, path: Path, blocks: int) -> Path | None:
    """The file, put together in the texts' order, once all blocks are there."""
    lock = path.with_name(f".{path.name}.lock")
    with FileLock(lock):
        if path.exists():
            return path
        done = _finished(parts)
        if len(done) < blocks:
            return None
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
            for block in range(blocks):
                for name, queries in _block(*done[block]):
                    file.write(json.dumps({"doc_id": name, "queries": queries}, ensure_ascii=False) + "\n")
        shutil.rmtree(parts)
    lock.unlink(missing_ok=True)
    return path


def _block(path: Path, start: int) -> Iterator[tuple[str, list[str]]]:
    with path.open("rb") as file:
        file.seek(start)
        line = json.loads(file.readline())
    return zip(line["ids"], line["queries"], strict=True)
