"""Collections in files: BEIR folders, files of texts alone, TREC and MS MARCO files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from drkit.core.files import local_path
from drkit.core.types import BuildContext, Judgement, Passage, Query
from drkit.data.collection import (
    QRELS_FORMATS,
    SPLIT_NAMES,
    TEXT_TABLES,
    FileCollection,
    PassageColumns,
    find_corpus,
    find_file,
    find_titled,
    judged_queries,
    passage_files,
    passage_notes,
    read_passages,
    with_titles,
)
from drkit.data.columns import (
    ID_COLUMN,
    QUERY_COLUMN,
    QUERY_ID,
    TEXT_COLUMN,
    TEXT_NAMES,
    TITLE,
    TITLE_NAMES,
    GivenColumns,
    checked,
)
from drkit.data.negative_ids import (
    NEGATIVE_FORMATS,
    NEGATIVE_NAMES,
    NegativeIds,
    read_negative_ids,
    systems_of,
)
from drkit.data.qrels import read_judgements
from drkit.data.rows import COMPRESSED, FileRow, read_jsonl, require_file
from drkit.data.specs import BeirConfig, JsonlConfig, TrecConfig
from drkit.data.splits import SPLITS, Splits
from drkit.data.topics import TOPIC_FORMATS, read_topics, topic_notes
from drkit.errors import DrkitError, ProblemsError, UnknownNameError

_BEIR_LAYOUT = "expected: corpus.jsonl, queries.jsonl (each may end in .gz or .zst) and qrels/*.tsv with a header"


class JudgedFiles(FileCollection):
    """Passages, and topics and judgements by split, all in files.

    Without a train split, `train_share` of the test topics (by the hash of their ids) become training queries, a tenth
    of them dev if there is no dev split. With 0, the default, no test topic is ever trained on.
    """

    config: BeirConfig | TrecConfig
    topics: Mapping[str, Path]
    qrels: Mapping[str, Path]

    @cached_property
    def split_rules(self) -> Splits:
        """The splits with judgements, and those taken from the test topics."""
        return Splits.of(self.name, self.qrels, train_share=self.config.train_share).filled(self._answered)

    def _answered(self) -> Iterator[str]:
        """Yield the id of the topic of every judgement of test above 0."""
        judgements = read_judgements(self.qrels["test"], beir=isinstance(self.config, BeirConfig))
        return (judgement.query_id for _, judgement in judgements if judgement.relevance > 0)

    def located_passages(self) -> Iterator[tuple[FileRow, Passage]]:
        """Yield every row of the corpus."""
        return read_passages(self.passage_files, self.columns)

    @property
    def columns(self) -> PassageColumns:
        """Where ids, titles and texts of the passages are: as the settings say, else under the usual names."""
        return PassageColumns(self._given.only(ID_COLUMN, TITLE, TEXT_COLUMN))

    @property
    def _element(self) -> str:
        """The element of a topic that is the query."""
        return self.config.topic_field if isinstance(self.config, TrecConfig) else "title"

    @property
    def _given(self) -> GivenColumns:
        return GivenColumns.of(self.config.columns)

    def located_queries(self, split: str) -> Iterator[tuple[object, Query]]:
        """Yield the judged topics of a split. Raises DrkitError at an empty one."""
        path = self.topics[self.split_rules.source(split)]
        topics = read_topics(path, self._element, self._given.only(QUERY_ID, QUERY_COLUMN))
        return judged_queries(topics, self.judgements(split))

    def located_judgements(self, split: str) -> Iterator[tuple[object, Judgement]]:
        """Yield the split's judgements, each with the line it was read from."""
        belongs = self.split_rules.membership(split)
        rows = read_judgements(self.qrels[self.split_rules.source(split)], beir=isinstance(self.config, BeirConfig))
        return ((where, judgement) for where, judgement in rows if belongs(judgement.query_id))

    def files(self) -> Iterable[Path]:
        """Return the files of the corpus, of topics and of judgements."""
        return (*self.passage_files, *(self.topics[split] for split in self.qrels), *self.qrels.values())

    def notes(self) -> Iterator[str]:
        """Yield how the passages and topics are read."""
        yield from passage_notes(self.passage_files, self.columns)
        given = self._given.only(QUERY_ID, QUERY_COLUMN)
        for path in dict.fromkeys(self.topics[split] for split in self.qrels):
            yield from topic_notes(path, self._element, given)
        yield from self.split_rules.notes()


class BeirCollection(JudgedFiles):
    """Passages, judged queries and judgements of a BEIR folder. Only the ids of a split's queries are held in memory.

    Raises DrkitError if a file of the layout is missing; bad lines are named as `file:line` when they are read.
    """

    def __init__(self, config: BeirConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        if not config.path:
            raise DrkitError(f"collection beir: no path given; name a folder, as in `beir:PATH`; {_BEIR_LAYOUT}")
        self.folder = local_path(config.path)
        self.name = f"beir:{self.folder.resolve().name}"
        if not self.folder.is_dir():
            problem = "is not a folder" if self.folder.exists() else "does not exist"
            raise DrkitError(f"collection beir: {self.folder} {problem}; {_BEIR_LAYOUT}")
        corpus, queries = self._find("corpus.jsonl", "queries.jsonl")
        self.passage_files = (corpus,)
        self.qrels = {split: path for split in SPLITS if (path := self._find_qrels(split))}
        self.topics = dict.fromkeys(self.qrels, queries)
        if not self.qrels:
            raise DrkitError(
                f"collection beir: {self.folder}/qrels has none of train.tsv, dev.tsv, test.tsv; {_BEIR_LAYOUT}"
            )

    def _find(self, *names: str) -> list[Path]:
        endings = ("", *COMPRESSED)
        found = {name: [p for end in endings if (p := self.folder / f"{name}{end}").is_file()] for name in names}
        missing = [f"{self.folder / name} is missing; {_BEIR_LAYOUT}" for name, paths in found.items() if not paths]
        if missing:
            raise ProblemsError("collection beir", missing)
        return [paths[0] for paths in found.values()]

    def _find_qrels(self, split: str) -> Path | None:
        names = (f"{name}.tsv{end}" for name in SPLIT_NAMES[split] for end in ("", *COMPRESSED))
        found = [path for name in names if (path := self.folder / "qrels" / name).is_file()]
        if len(found) > 1:
            both = " and ".join(path.name for path in found)
            raise DrkitError(f"collection beir: {self.folder}/qrels: {both} are both judgements of {split}; remove one")
        return found[0] if found else None

    def located_passages(self) -> Iterator[tuple[FileRow, Passage]]:
        """Yield every line of the corpus; title and text may be missing or null, but never of another type."""
        (title,) = GivenColumns.of(self.config.columns).names(TITLE, (TITLE,))
        for row in checked(read_jsonl(self.passage_files[0]), self._check):
            yield row, Passage(row.id("_id"), row.text("text", default=""), row.text(title, default=""))

    def _check(self, rows: Sequence[FileRow]) -> None:
        """Raise DrkitError for first rows with texts under other names, which would all be empty passages."""
        others = {name for row in rows for name in row.find((*TEXT_NAMES, *TITLE_NAMES))}
        if others and not any({"text", "title"} & row.values.keys() for row in rows):
            raise DrkitError(
                f"no key 'text' or 'title'; keys: {', '.join(rows[0].values)}. Rename {', '.join(sorted(others))}, or "
                f"read the folder by trec:{self.folder}, which finds other names",
                where=rows[0],
            )


class JsonlCollection(FileCollection):
    """The texts of a `.jsonl`, `.tsv`, `.csv` or `.parquet` file, or of a folder of such files; no queries.

    Raises DrkitError as `passage_files` does; a bad line is named as `file:line` when it is read.
    """

    def __init__(self, config: JsonlConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        if not config.path:
            raise DrkitError("collection jsonl: no path given; name a .jsonl, .tsv or .csv file, as in `jsonl:PATH`")
        self.passage_files = passage_files(config.path, "collection jsonl")
        self.name = f"jsonl:{local_path(config.path).resolve().name}"
        own = {ID_COLUMN: config.id_field, TEXT_COLUMN: config.text_field, TITLE: config.title_field}
        self._columns = PassageColumns(GivenColumns.of(config.columns, own))

    def located_passages(self) -> Iterator[tuple[FileRow, Passage]]:
        """Yield the text of every row."""
        return read_passages(self.passage_files, self._columns)

    def notes(self) -> Iterator[str]:
        """Yield how the columns are read."""
        return passage_notes(self.passage_files, self._columns)


_TREC_FILES = (
    "a corpus (corpus.jsonl, collection.tsv, ..), topics (topics.test.tsv, queries.dev.tsv, ..) and judgements "
    "(qrels.test.txt, qrels.dev.tsv, ..)"
)


class TrecCollection(JudgedFiles):
    """A corpus, and topics and judgements by split; given one by one, or found in a folder by their names.

    Only judged topics are queries. One topic file may serve all splits. A file may have negatives of the training
    topics by id; its positives are judgements if no file has those of train.

    Raises DrkitError if a file is missing; bad lines are named as `file:line` when they are read.
    """

    config: TrecConfig

    def __init__(self, config: TrecConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        self.name = f"trec:{local_path(config.path or config.corpus).resolve().name}"
        given = local_path(config.path)
        folder = given if config.path and given.is_dir() else None
        if config.path and not given.exists():
            raise DrkitError(f"collection trec: {given} does not exist; expected: a folder with {_TREC_FILES}")
        corpus = config.corpus or (config.path if given.is_file() else "")
        found = passage_files(corpus, "collection trec", TEXT_TABLES) if corpus else ()
        self.titles = require_file(config.titles, "collection trec", TEXT_TABLES) if config.titles else None
        if folder and not found:
            found, named = find_titled(folder)
            self.titles, found = self.titles or named, found or find_corpus(folder)
        self.qrels = _by_split(config, folder, ("qrels", "qrel"), QRELS_FORMATS)
        self.topics = _by_split(config, folder, ("topics", "queries", "query"), TOPIC_FORMATS)
        self.negative_ids = _find_negatives(config, folder)
        if self.negative_ids and "train" not in self.qrels and "train" in self.topics:
            self.qrels = {"train": self.negative_ids, **self.qrels}
        problems = [] if found else ["no corpus: --set collection.corpus=FILE"]
        problems += [] if self.qrels else ["no judgements: --set collection.test_qrels=FILE"]
        problems += [f"no topics of {s}: --set collection.{s}_topics=FILE" for s in self.qrels if s not in self.topics]
        if problems:
            raise ProblemsError(f"collection trec: {config.path}; expected: {_TREC_FILES}", problems)
        self.passage_files = found

    def located_passages(self) -> Iterator[tuple[FileRow, Passage]]:
        """Yield every row of the corpus, with its title if titles have a file of their own."""
        passages = super().located_passages()
        return with_titles(passages, self.titles) if self.titles else passages

    def located_judgements(self, split: str) -> Iterator[tuple[object, Judgement]]:
        """Yield the judgements of a split; without a file of them, the positives that come with the negatives."""
        if self.negative_ids is None or self.qrels.get(split) != self.negative_ids:
            yield from super().located_judgements(split)
            return
        before: tuple[str, str] | None = None
        for line in self._negative_lines():
            for doc_id in line.positives:
                if before != (before := (line.query_id, doc_id)):  # triples repeat their positive
                    yield line.row, Judgement(*before, 1)

    def located_negatives(self, split: str) -> Iterator[tuple[FileRow, tuple[str, str]]]:
        """Yield (query id, passage id) of the negatives that are given by id, of the training topics."""
        if split == "train" and self.negative_ids:
            for line in self._negative_lines():
                yield from ((line.row, (line.query_id, doc_id)) for doc_id in line.negatives)

    def negatives(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream (query id, passage id) of the negatives of a split, in the order of the file."""
        return (ids for _, ids in self.located_negatives(split))

    def _negative_lines(self) -> Iterator[NegativeIds]:
        assert self.negative_ids is not None
        return read_negative_ids(self.negative_ids, self.config.negative_systems)

    def files(self) -> Iterable[Path]:
        """Return the files of the corpus, of titles, of topics, of judgements and of negatives."""
        return (*super().files(), *filter(None, (self.titles, self.negative_ids)))

    def notes(self) -> Iterator[str]:
        """Yield how the files are read."""
        yield from super().notes()
        if self.titles and not self.config.titles:
            yield f"{self.titles} has the titles of {self.passage_files[0].name}"
        found = systems_of(self.negative_ids) if self.negative_ids else ()
        if unknown := [name for name in self.config.negative_systems if name not in found]:
            raise UnknownNameError("system", unknown[0], found, where=str(self.negative_ids))
        if len(found) > 1 and not self.config.negative_systems:
            yield (
                f"{self.negative_ids}: the negatives of {', '.join(found)} are interleaved; "
                f"--set collection.negative_systems={found[0]} reads one system's"
            )


def _find_negatives(config: TrecConfig, folder: Path | None) -> Path | None:
    """Return the file of negatives by id that is set, or that a folder has."""
    if config.train_negatives:
        return require_file(config.train_negatives, "collection trec", NEGATIVE_FORMATS)
    if folder is None:
        return None
    own = find_file(folder, NEGATIVE_NAMES, "train", formats=NEGATIVE_FORMATS)
    return own or find_file(folder, NEGATIVE_NAMES, formats=NEGATIVE_FORMATS)


def _by_split(
    config: TrecConfig, folder: Path | None, names: tuple[str, ...], formats: tuple[str, ...]
) -> dict[str, Path]:
    """Return topic or qrels files by split; a name without a split means all splits for topics, and test for qrels."""
    role = names[0]
    given = {split: getattr(config, f"{split}_{role}") for split in SPLITS}
    found = {split: require_file(path, "collection trec", formats) if path else None for split, path in given.items()}
    if folder:
        common = find_file(folder, names, formats=formats)
        for split in SPLITS:
            found[split] = found[split] or find_file(folder, names, split, formats=formats)
            if role == "topics" or split == "test":
                found[split] = found[split] or common
    return {split: path for split, path in found.items() if path}
