"""Collections in files: BEIR folders, files of texts alone, TREC and MS MARCO files, and Tevatron's training files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from drkit.core.files import local_path
from drkit.core.types import BuildContext, Judgement, Passage, Query
from drkit.data.collection import (
    QRELS_FORMATS,
    SPLIT_NAMES,
    FileCollection,
    PassageColumns,
    find_corpus,
    find_file,
    judged_queries,
    passage_files,
    passage_notes,
    read_passages,
)
from drkit.data.columns import (
    ID,
    QUERY,
    QUERY_ID,
    TEXT,
    TEXTS,
    TITLE,
    TITLES,
    GivenColumns,
    checked,
)
from drkit.data.corpus import id_hash
from drkit.data.qrels import read_judgements
from drkit.data.rows import COMPRESSED, Row, read_jsonl, require_file
from drkit.data.specs import BeirConfig, JsonlConfig, TevatronConfig, TrecConfig
from drkit.data.splits import SPLITS, Splits
from drkit.data.topics import TOPIC_FORMATS, query_of, read_topics, topic_notes
from drkit.errors import DrkitError, ProblemsError

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

    def located_passages(self) -> Iterator[tuple[Row, Passage]]:
        """Yield every row of the corpus."""
        return read_passages(self.passage_files, self.columns)

    @property
    def columns(self) -> PassageColumns:
        """The columns of the passages."""
        return PassageColumns(self._given.only(ID, TITLE, TEXT))

    @property
    def _given(self) -> GivenColumns:
        return GivenColumns.of(getattr(self.config, "columns", {}))

    def located_queries(self, split: str) -> Iterator[tuple[object, Query]]:
        """Yield the judged topics of a split. Raises DrkitError at an empty one."""
        path, element = self.topics[self.split_rules.source(split)], getattr(self.config, "topic_field", "title")
        topics = read_topics(path, element, self._given.only(QUERY_ID, QUERY))
        return judged_queries(topics, self.judgements(split))

    def located_judgements(self, split: str) -> Iterator[tuple[str, Judgement]]:
        """Yield the judgements of a split."""
        belongs = self.split_rules.membership(split)
        rows = read_judgements(self.qrels[self.split_rules.source(split)], beir=isinstance(self.config, BeirConfig))
        return ((where, judgement) for where, judgement in rows if belongs(judgement.query_id))

    def files(self) -> Iterable[Path]:
        """Return the files of the corpus, of topics and of judgements."""
        return (*self.passage_files, *(self.topics[split] for split in self.qrels), *self.qrels.values())

    def notes(self) -> Iterator[str]:
        """Yield how the passages and topics are read."""
        yield from passage_notes(self.passage_files, self.columns)
        element, given = getattr(self.config, "topic_field", "title"), self._given.only(QUERY_ID, QUERY)
        for path in dict.fromkeys(self.topics[split] for split in self.qrels):
            yield from topic_notes(path, element, given)
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

    def located_passages(self) -> Iterator[tuple[Row, Passage]]:
        """Yield every line of the corpus; title and text may be missing or null, but never of another type."""
        for row in checked(read_jsonl(self.passage_files[0]), self._check):
            yield row, Passage(row.id("_id"), row.text("text", default=""), row.text("title", default=""))

    def _check(self, rows: Sequence[Row]) -> None:
        """Raise DrkitError for first rows with texts under other names, which would all be empty passages."""
        others = {name for row in rows for name in row.find((*TEXTS, *TITLES))}
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
        own = {ID: config.id_field, TEXT: config.text_field, TITLE: config.title_field}
        self._columns = PassageColumns(GivenColumns.of(config.columns, own))

    def located_passages(self) -> Iterator[tuple[Row, Passage]]:
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

    Only judged topics are queries. One topic file may serve all splits.

    Raises DrkitError if a file is missing; bad lines are named as `file:line` when they are read.
    """

    def __init__(self, config: TrecConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        self.name = f"trec:{local_path(config.path or config.corpus).resolve().name}"
        given = local_path(config.path)
        folder = given if config.path and given.is_dir() else None
        if config.path and not given.exists():
            raise DrkitError(f"collection trec: {given} does not exist; expected: a folder with {_TREC_FILES}")
        corpus = config.corpus or (config.path if given.is_file() else "")
        found = passage_files(corpus, "collection trec") if corpus else find_corpus(folder) if folder else ()
        self.qrels = _by_split(config, folder, ("qrels", "qrel"), QRELS_FORMATS)
        self.topics = _by_split(config, folder, ("topics", "queries"), TOPIC_FORMATS)
        problems = [] if found else ["no corpus: --set collection.corpus=FILE"]
        problems += [] if self.qrels else ["no judgements: --set collection.test_qrels=FILE"]
        problems += [f"no topics of {s}: --set collection.{s}_topics=FILE" for s in self.qrels if s not in self.topics]
        if problems:
            raise ProblemsError(f"collection trec: {config.path}; expected: {_TREC_FILES}", problems)
        self.passage_files = found


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


_TEVATRON_FORMATS = (".jsonl",)
_TEVATRON = "collection tevatron"


class TevatronCollection(FileCollection):
    """Queries with `positive_passages` and `negative_passages`, each with `docid`, `title` and `text`.

    With a corpus, its passages are the collection and the other files name them by `docid`. Without one, the
    collection is all passages of the files, and a `docid` must always have the same text. Files whose queries have no
    positives (Tevatron's dev and test files) need judgements. Without files of their own, dev and test are shares of
    the training queries.

    Raises DrkitError if a file is missing; bad lines are named as `file:line` when they are read.
    """

    def __init__(self, config: TevatronConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        if not config.path:
            raise DrkitError(f"{_TEVATRON}: no path given; name a training file, as in `tevatron:train.jsonl`")
        folder = local_path(config.path)
        self.name = f"tevatron:{folder.resolve().name}"
        self._columns = PassageColumns(GivenColumns.of(config.columns))
        self._queries = _query_files(config, folder)
        corpus = find_corpus(folder) if folder.is_dir() else ()
        self.passage_files = passage_files(config.corpus, _TEVATRON) if config.corpus else corpus
        qrels = {"dev": config.dev_qrels, "test": config.test_qrels}
        self._qrels = {split: require_file(path, _TEVATRON, QRELS_FORMATS) for split, path in qrels.items() if path}
        for split in sorted(self._qrels.keys() - self._queries.keys()):
            raise DrkitError(f"{_TEVATRON}: {split}_qrels needs the {split} queries; set {split} to their file")

    @cached_property
    def split_rules(self) -> Splits:
        """The splits with a file, and those that are a share of the training queries."""
        shares = {"dev_share": self.config.dev_share, "test_share": self.config.test_share}
        return Splits.of(self.name, self._queries, **shares).filled(self._answered)

    def _answered(self) -> Iterator[str]:
        """Yield the id of every training query with a positive."""
        rows = read_jsonl(self._queries["train"])
        return (row.id("query_id") for row in rows if next(_items(row, "positive"), None))

    def located_passages(self) -> Iterator[tuple[Row, Passage]]:
        """Yield the passages of the corpus; without one, those of all queries, each once."""
        if self.passage_files:
            return read_passages(self.passage_files, self._columns)
        return self._passages_of_queries()

    def _passages_of_queries(self) -> Iterator[tuple[Row, Passage]]:
        seen: dict[int, int] = {}
        for path in self._queries.values():
            for row in read_jsonl(path):
                for passage in (*_passages(row, "positive"), *_passages(row, "negative")):
                    key, content = id_hash(passage.doc_id), id_hash(f"{passage.title}\0{passage.text}")
                    if key not in seen:
                        seen[key] = content
                        yield row, passage
                    elif seen[key] != content:
                        raise DrkitError(
                            f"the passage {passage.doc_id!r} has a different title or text than on an earlier "
                            f"line; give each text a unique id",
                            where=row,
                        )

    def located_queries(self, split: str) -> Iterator[tuple[object, Query]]:
        """Yield the queries of a split; only the judged ones if the split has a qrels file."""
        queries = ((row, query_of(row, ids=("query_id",), texts=("query", "query_text"))) for row in self._rows(split))
        return judged_queries(queries, self.judgements(split)) if split in self._qrels else queries

    def located_judgements(self, split: str) -> Iterator[tuple[object, Judgement]]:
        """Yield the positives of a split with relevance 1; or the judgements of its qrels file."""
        if split in self._qrels:
            yield from read_judgements(self._qrels[split])
        else:
            for row, query_id, doc_id in self._listed(split, "positive"):
                yield row, Judgement(query_id, doc_id, 1)

    def located_negatives(self, split: str) -> Iterator[tuple[Row, tuple[str, str]]]:
        """Yield (query id, passage id) of the negatives of a split."""
        return ((row, (query_id, doc_id)) for row, query_id, doc_id in self._listed(split, "negative"))

    def negatives(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream (query id, passage id) of the negatives of a split, in the order of the file."""
        return (ids for _, ids in self.located_negatives(split))

    def _listed(self, split: str, kind: str) -> Iterator[tuple[Row, str, str]]:
        for row in self._rows(split):
            query_id = row.id("query_id")
            yield from ((row, query_id, item.id("docid")) for item in _items(row, kind))

    def _rows(self, split: str) -> Iterator[Row]:
        belongs = self.split_rules.membership(split)
        rows = read_jsonl(self._queries[self.split_rules.source(split)])
        return (row for row in rows if belongs(row.id("query_id")))

    def files(self) -> Iterable[Path]:
        """Return the files of queries, of passages and of judgements."""
        return (*self._queries.values(), *self.passage_files, *self._qrels.values())

    def notes(self) -> Iterator[str]:
        """Yield how the corpus is read, and which splits have no query."""
        yield from passage_notes(self.passage_files, self._columns)
        yield from self.split_rules.notes()


def _query_files(config: TevatronConfig, folder: Path) -> dict[str, Path]:
    """Return the files of queries by split: found in the folder, or the training file, and those that are set."""
    if folder.is_dir():
        found = {
            s: p for s, names in SPLIT_NAMES.items() if (p := find_file(folder, names, s, formats=_TEVATRON_FORMATS))
        }
    else:
        found = {"train": require_file(config.path, _TEVATRON, _TEVATRON_FORMATS)}
    given = {"dev": config.dev, "test": config.test}
    found |= {split: require_file(path, _TEVATRON, _TEVATRON_FORMATS) for split, path in given.items() if path}
    if not found:
        raise DrkitError(f"{_TEVATRON}: {folder} has none of train.jsonl, dev.jsonl, test.jsonl (or .gz, .zst)")
    return found


def _passages(row: Row, kind: str) -> Iterator[Passage]:
    """Yield the positive or negative passages of a query, with their texts."""
    if _list(row, f"{kind}_document_ids"):
        raise DrkitError(
            "passages given by id alone need a corpus; name its file: --set collection.corpus=FILE", where=row
        )
    for item in _items(row, kind):
        yield Passage(item.id("docid"), item.text("text"), item.text("title", default=""))


def _items(row: Row, kind: str) -> Iterator[Row]:
    """Yield the positive or negative passages of a query: objects with docid, title and text, or ids alone."""
    for number, item in enumerate(_list(row, f"{kind}_passages"), start=1):
        yield Row(f"{row}: {kind}_passages", number, item if isinstance(item, dict) else {}, "item")
    for number, doc_id in enumerate(_list(row, f"{kind}_document_ids"), start=1):
        yield Row(str(row), number, {"docid": doc_id}, "item")


def _list(row: Row, key: str) -> Sequence[Any]:
    value = row.values.get(key)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise DrkitError(f"{key!r} must be a list, got {type(value).__name__}", where=row)
    return value
