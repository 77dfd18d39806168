"""Datasets of Hugging Face, by folder or hub id: a corpus with queries and judgements, or pairs of texts.

Local data is read from where it is, and only a dataset that is named by its id is downloaded; its code is never run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

from attrs import field, frozen

from drkit.core.files import local_path
from drkit.core.hub import reaches_hub, require_hub_id
from drkit.core.types import BuildContext, Judgement, Passage, Query
from drkit.data.collection import SPLIT_NAMES, PassageColumns, judged_queries
from drkit.data.columns import (
    ID_COLUMN,
    QUERY_COLUMN,
    QUERY_ID,
    TEXT_COLUMN,
    TITLE,
    Columns,
    GivenColumns,
    NamedColumns,
    checked,
)
from drkit.data.pair_columns import PairColumns
from drkit.data.pairs import PairTables, RowSource, TableCollection, read_files
from drkit.data.qrels import parse_relevance
from drkit.data.rows import FileRow, file_kind
from drkit.data.specs import HfConfig
from drkit.data.splits import Splits
from drkit.data.topics import TopicColumns
from drkit.errors import DrkitError, import_extra

datasets = import_extra("datasets", "collection hf")

_QRELS = (
    ("query-id", "query_id", "qid"),
    ("corpus-id", "corpus_id", "doc_id", "docid"),
    ("score", "relevance", "label"),
)
_ROWS = 1024
_FORMATS = (".parquet", ".arrow", ".jsonl", ".json", ".csv", ".tsv")
# Formats that drkit reads itself in a folder: `datasets` takes the types of all files from the first rows of the first
# one, where ids are numbers, dates, or null.
_OWN = (".parquet", ".jsonl", ".json", ".csv")
_SAVED = ("dataset_dict.json", "dataset_info.json")


class HfCollection(TableCollection):
    """A dataset with `corpus`, `queries` and judgements, as BEIR's have; or one with columns for query and passage.

    A folder: written by `save_to_disk`, or of files that `datasets` reads; corpus, queries and judgements in folders
    named `corpus`, `queries` and `qrels`. On the hub these are configurations, and the judgements may be a dataset of
    their own (`qrels`). Pairs are read as `PairsCollection` reads them.

    Raises DrkitError if a dataset is not available or incomplete; bad rows are named when they are read.
    """

    def __init__(self, config: HfConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        if not config.path:
            raise DrkitError("collection hf: no dataset given; name a folder or a hub id, as in `hf:BeIR/scifact`")
        self.name = f"hf:{config.path}"

    @cached_property
    def tables(self) -> PairTables | RetrievalTables:
        """The tables of the dataset, opened on first use."""
        config = self.config
        names = _table_names(config.path)
        if not config.subset and {"corpus", "queries"} <= names:
            qrels_name = "" if config.qrels else "qrels" if "qrels" in names else "default"
            qrels = _open_table(config.qrels or config.path, qrels_name, NamedColumns(_QRELS))
            given = GivenColumns.of(config.columns)
            passages, topics = (
                PassageColumns(given.only(ID_COLUMN, TITLE, TEXT_COLUMN)),
                TopicColumns(given.only(QUERY_ID, QUERY_COLUMN)),
            )
            corpus = _open_table(config.path, "corpus", passages)
            queries = _open_table(config.path, "queries", topics)
            return RetrievalTables(corpus, queries, qrels, Splits.of(self.name, qrels), passages, topics)
        columns = PairColumns(config)
        sources = _open_table(config.path, config.subset, columns)
        split_rules = Splits.of(self.name, sources, dev_share=config.dev_share, test_share=config.test_share)
        return PairTables(sources, columns, split_rules)

    def describe(self) -> Mapping[str, Any]:
        """Return the paths or ids that were given, and the version of `datasets`."""
        return {
            "collection": "hf",
            "path": self.config.path,
            "subset": self.config.subset,
            "qrels": self.config.qrels,
            "shares": dict(self.split_rules.held_out),
            "datasets": datasets.__version__,
        }


@frozen
class RetrievalTables:
    """The tables of a collection, read from rows of a corpus, of queries and of judgements, each by split."""

    corpus: Mapping[str, RowSource]
    all_queries: Mapping[str, RowSource]
    qrels: Mapping[str, RowSource]
    split_rules: Splits
    columns: PassageColumns = field(factory=PassageColumns)
    topics: TopicColumns = field(factory=TopicColumns)

    def passages(self) -> Iterator[tuple[FileRow, Passage]]:
        """Yield every row of the corpus."""
        columns = self.columns
        found = (row for rows in self.corpus.values() for row in checked(rows(), columns.check))
        return ((row, columns.read(row)) for row in found)

    def notes(self) -> Iterator[str]:
        """Yield how the columns of the corpus are read, where their names leave it open."""
        for rows in self.corpus.values():
            for row in islice(rows(), 1):
                yield from self.columns.notes(row)

    def queries(self, split: str) -> Iterator[tuple[object, Query]]:
        """Yield the judged queries of a split."""
        queries = ((row, self.topics.read(row)) for rows in self.all_queries.values() for row in rows())
        return judged_queries(queries, (judgement for _, judgement in self.judgements(split)))

    def judgements(self, split: str) -> Iterator[tuple[FileRow, Judgement]]:
        """Yield the split's judgements, each with the row it was read from."""
        for row in self.qrels[self.split_rules.source(split)]():
            query, doc, score = (row.first(names) for names in _QRELS)
            relevance = parse_relevance(str(row.values[score]), str(row))
            yield row, Judgement(row.id(query), row.id(doc), relevance)

    def negatives(self, _split: str) -> Iterator[tuple[FileRow, tuple[str, str]]]:
        """Yield nothing; the judgements say what is not relevant."""
        return iter(())

    def scores(self, _split: str) -> Iterator[tuple[FileRow, tuple[str, str, float]]]:
        """Yield nothing; judgements come without a teacher's scores."""
        return iter(())


def _table_names(path: str) -> set[str]:
    """Return the names of a dataset's tables: the folders in a folder, and the configurations if it has a card."""
    folder = local_path(path)
    names = {entry.name for entry in folder.iterdir() if entry.is_dir()} if folder.is_dir() else set()
    if folder.is_dir() and not _has_card(folder):
        return names
    _check_hub(path)
    with _reading_hf(path):
        return names | set(datasets.get_dataset_config_names(str(folder) if folder.is_dir() else path))


def _open_table(path: str, name: str, columns: Columns) -> dict[str, RowSource]:
    """Return the rows of a dataset, or of its folder or configuration `name`, by split; columns: of its tables.

    Raises DrkitError for a dataset without rows.
    """
    folder = local_path(path)
    if not folder.is_dir():
        return _load_hf(path, name)
    inner = folder / name if name and (folder / name).is_dir() else folder
    if any((inner / file).is_file() for file in _SAVED):
        with _reading_hf(str(inner)):
            saved = datasets.load_from_disk(str(inner))
        tables = saved if isinstance(saved, datasets.DatasetDict) else {"train": saved}
        return _by_split(tables, str(inner), lambda table, split: partial(_stream, table, split))
    is_missing = name and inner == folder and not _has_card(folder)
    if is_missing or not any(file_kind(path) in _FORMATS for path in inner.rglob("*")):
        missing = f"no {name!r}" if is_missing else "no data"
        raise DrkitError(
            f"collection hf: {inner} has {missing}; expected a saved dataset or {', '.join(_FORMATS)} files"
        )
    subset = name if inner == folder else ""
    if files := _own_files(str(inner), subset):
        readers = {split: partial(read_files, paths, columns) for split, paths in files.items()}
        return _by_split(readers, str(inner), lambda reader, _: reader)
    # Streaming copies nothing to a cache.
    return _load_hf(str(inner), subset, streaming=True)


def _own_files(folder: str, name: str) -> dict[str, list[Path]]:
    """Return the files of a folder by split, as `datasets` finds them; none if it has to read them itself.

    It does so if a card declares how: another separator, names of columns, or features.
    """
    with _reading_hf(folder):
        config = datasets.load_dataset_builder(folder, name or None).config
    declared = [getattr(config, option, None) for option in ("field", "features", "names", "column_names", "skiprows")]
    plain = not any(declared) and (getattr(config, "sep", ","), getattr(config, "header", "infer")) == (",", "infer")
    found = {str(split): [Path(str(path)) for path in paths] for split, paths in (config.data_files or {}).items()}
    is_own = all(path.is_file() and file_kind(path) in _OWN for paths in found.values() for path in paths)
    return found if plain and is_own else {}


def _has_card(folder: Path) -> bool:
    """Return whether a folder's README begins with the metadata of a dataset card, between lines of `---`."""
    readme = folder / "README.md"
    return readme.is_file() and readme.read_bytes().lstrip(b"\xef\xbb\xbf").startswith(b"---")


def _load_hf(path: str, name: str, **options: Any) -> dict[str, RowSource]:
    _check_hub(path)
    with _reading_hf(path):
        loaded = datasets.load_dataset(path, name or None, **options, **_text_options(path, name))
    title = f"{path}{f' ({name})' if name else ''}"
    return _by_split(loaded, title, lambda table, split: partial(_stream, table, split))


def _text_options(path: str, name: str) -> dict[str, Any]:
    """Return the options by which the cells of .csv files stay texts; none for other formats."""
    config = datasets.load_dataset_builder(path, name or None).config
    if not hasattr(config, "keep_default_na") or config.features:
        return {}
    first = next(iter(datasets.load_dataset(path, name or None, streaming=True).values()))
    columns: Mapping[str, Any] = next(iter(first), {})
    features = datasets.Features({column: datasets.Value("string") for column in columns})
    return {"features": features, "keep_default_na": False, "na_filter": False}


def _check_hub(path: str) -> None:
    """Raise DrkitError for a file, for what cannot be a hub id, and if a hub that is needed does not answer soon."""
    local = local_path(path)
    if local.is_dir():
        return
    if local.exists():
        raise DrkitError(f"collection hf: {path} is a file; give its folder, or a table of pairs as `pairs:{path}`")
    require_hub_id(path)
    if not datasets.config.HF_HUB_OFFLINE:  # also HF_DATASETS_OFFLINE
        reaches_hub(path, "dataset")


def _by_split(found: Mapping[str, Any], name: str, rows: Callable[[Any, str], RowSource]) -> dict[str, RowSource]:
    """Return the splits by drkit's names; a single split with another name is train.

    rows: returns the rows of a table, given with its name.
    """
    names = {split: next((name for name in usual if name in found), None) for split, usual in SPLIT_NAMES.items()}
    named: dict[str, RowSource] = {
        split: rows(found[n], f"{name} [{n}]") for split, n in names.items() if n is not None
    }
    if not named and len(found) != 1:
        raise DrkitError(
            f"collection hf: {name} has the splits {', '.join(found)}; expected train, dev or test. Name another "
            f"configuration with --set collection.subset=NAME"
        )
    return named or {"train": rows(next(iter(found.values())), name)}


def _stream(table: Any, name: str) -> Iterator[FileRow]:
    # By Arrow's tables: `datasets` takes over ten times as long to make the same values of single rows.
    batches = table.with_format("arrow").iter(_ROWS)
    with _reading_hf(name):
        rows = (values for batch in batches for values in batch.to_pylist())
        for number, values in enumerate(rows, start=1):
            yield FileRow(name, number, values, "row")


@contextmanager
def _reading_hf(name: str) -> Iterator[None]:
    """Turn the many exceptions of `datasets` into one DrkitError."""
    try:
        yield
    except DrkitError:
        raise
    except (OSError, datasets.exceptions.DatasetsError, ValueError, RuntimeError, KeyError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        advice = "check the path, the id, or the network"
        if datasets.config.HF_HUB_OFFLINE and not local_path(name).exists():
            advice = "HF_HUB_OFFLINE is set: unset it, or give the path of a folder"
        raise DrkitError(f"datasets cannot read {name!r}: {reason}; {advice}") from error
