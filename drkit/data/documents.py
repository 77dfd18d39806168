"""A folder of documents in plain text or Markdown: every section is a passage, long ones are several."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from drkit.core.files import local_path
from drkit.core.types import BuildContext, Passage
from drkit.data.collection import FileCollection
from drkit.data.specs import DocumentsConfig
from drkit.data.words import word_spans
from drkit.errors import DrkitError

ENDINGS = (".md", ".markdown", ".txt")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$")
_FENCE = re.compile(r" {0,3}(```|~~~)")


class DocumentsCollection(FileCollection):
    """The sections of the .txt and .md files of a folder and its folders; no queries.

    An id is the file's path within the folder and the number of the passage, as in `guide/install.md#2`; the title of a
    Markdown section is its heading, below those that it stands under. Hidden files and folders are left out.

    Raises DrkitError for a folder without such files, and, when it is read, for a file that is not UTF-8.
    """

    def __init__(self, config: DocumentsConfig, _context: BuildContext | None = None) -> None:
        self.config, self.folder = config, local_path(config.path)
        self.name = f"documents:{self.folder.resolve().name}"
        if not config.path or not self.folder.is_dir():
            raise DrkitError(f"collection documents: {config.path!r} is not a folder; name one with .md or .txt files")
        found = ((path.relative_to(self.folder), path) for path in self.folder.rglob("*") if path.is_file())
        visible = {inner: path for inner, path in found if not any(name.startswith(".") for name in inner.parts)}
        self.documents = tuple(visible[one] for one in sorted(visible) if one.suffix.lower() in ENDINGS)
        if not self.documents:
            raise DrkitError(f"collection documents: {self.folder} has no file that ends in {', '.join(ENDINGS)}")

    def located_passages(self) -> Iterator[tuple[Path, Passage]]:
        """Yield the passages of each file, in the order of their paths."""
        for path in self.documents:
            try:
                text = path.read_text(encoding="utf-8-sig")
            except UnicodeDecodeError as error:
                raise DrkitError(f"{path} is not text in UTF-8 ({error.reason}); convert or move it") from None
            found = sections(text) if path.suffix.lower() != ".txt" else [("", text)]
            passages = ((title, piece) for title, body in found for piece in pieces(body, self.config.words))
            name = path.relative_to(self.folder).as_posix()
            for number, (title, piece) in enumerate(passages, start=1):
                yield path, Passage(f"{name}#{number}", piece, title)

    def files(self) -> Iterable[Path]:
        """Return the documents, the only files that the collection reads."""
        return self.documents


def sections(text: str) -> Iterator[tuple[str, str]]:
    r"""Yield (title, text) of each section of a Markdown document; a title has the headings above it, too.

    >>> list(sections("Intro.\n# Wings\nThey lift.\n## Slots\nGaps."))
    [('', 'Intro.'), ('Wings', 'They lift.'), ('Wings / Slots', 'Gaps.')]
    """
    above: dict[int, str] = {}
    lines: list[str] = []
    fence = ""
    for line in text.splitlines():
        if mark := _FENCE.match(line):
            fence = "" if fence == mark[1] else fence or mark[1]
        heading = None if fence else _HEADING.match(line)
        if heading is None:
            lines.append(line)
            continue
        yield " / ".join(above.values()), "\n".join(lines).strip()
        level = len(heading[1])
        above = {**{depth: name for depth, name in above.items() if depth < level}, level: heading[2]}
        lines = []
    yield " / ".join(above.values()), "\n".join(lines).strip()


def pieces(text: str, words: int) -> Iterator[str]:
    r"""Yield a text in pieces of whole paragraphs, of at most so many words each unless a paragraph has more.

    >>> list(pieces("One two.\n\nThree four.\n\nFive.", words=4))
    ['One two.\n\nThree four.', 'Five.']
    """
    piece: list[str] = []
    length = 0
    for paragraph in filter(None, map(str.strip, re.split(r"\n[ \t]*\n", text))):
        count = len(word_spans(paragraph))
        if piece and length + count > words:
            yield "\n\n".join(piece)
            piece, length = [], 0
        piece.append(paragraph)
        length += count
    if piece:
        yield "\n\n".join(piece)
