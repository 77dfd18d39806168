"""Collections by their id: any dataset of ir_datasets, and datasets of Hugging Face.

Planning downloads nothing. Datasets of Hugging Face are folders or hub ids: local data is streamed from where it is,
and only a dataset that is named by its id is downloaded; its code is never run. They have a corpus, queries and
judgements, or pairs of texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.core.files import local_path
from drkit.core.loading import may_be_hub_id, reaches_hub
from drkit.core.types import BuildContext, CollectionSize, Judgement, Passage, Query
from drkit.data.collection import (
    SPLIT_NAMES,
    PassageColumns,
    Splits,
    judged_queries,
    words_of,
)
from drkit.data.columns import PairColumns
from drkit.data.pairs import PairTables, Rows, TableCollection
from drkit.data.qrels import parse_relevance
from drkit.data.rows import FORMATS, Row, file_kind, read_rows
from drkit.data.specs import HfConfig, IrdsConfig
from drkit.data.topics import query_of, require_text
from drkit.errors import DrkitError

# Tokens of passages and of queries where none has been read.
_USUAL_PASSAGE, _USUAL_QUERY = (100,), (10,)


class IrdsCollection:
    """The documents of `dataset`, and queries of the datasets that are named for train, dev and test.

    All of them must share the documents of `dataset`. Several test datasets are joined; without any, test is the
    queries of `dataset` itself. Without `train_dataset`, `train_share` of the test queries (by the hash of their ids)
    become training queries, a tenth of them dev if there is no `dev_dataset`; with 0, the default, no test query is
    ever trained on. Without `dev_dataset`, `dev_share` of the queries of `train_dataset` are dev. ir_datasets keeps its
    files in `IR_DATASETS_HOME` and downloads missing ones when they are read: planning a run downloads nothing.

    Raises DrkitError if an id is unknown, a dataset has no documents or those of another one, or a download fails.
    """

    def __init__(self, config: IrdsConfig, _context: BuildContext | None = None) -> None:
        if not config.dataset:
            raise DrkitError("collection irds: no dataset given; name one, as in `irds:vaswani`")
        self.config = config
        self.name = f"irds:{config.dataset}"
        self._dataset = _load_irds(config.dataset)
        if not self._dataset.has_docs():
            raise DrkitError(f"collection irds: {config.dataset!r} has no documents; name a dataset that has some")
        train, dev = ((name,) if name else () for name in (config.train_dataset, config.dev_dataset))
        named = {"train": train, "dev": dev, "test": config.test_datasets}
        self._sources = {split: {name: self._judged(name) for name in names} for split, names in named.items() if names}
        if not config.test_datasets and self._dataset.has_queries() and self._dataset.has_qrels():
            self._sources["test"] = {config.dataset: self._dataset}
        self._splits = Splits.of(self.name, self._sources, dev_share=config.dev_share, train_share=config.train_share)

    def _judged(self, name: str) -> Any:
        """Load a dataset with queries and judgements of the same documents."""
        dataset = _load_judged(name)
        ours, theirs = (_documents_of(d) for d in (self._dataset, dataset))
        if ours != theirs:
            raise DrkitError(
                f"collection irds: {name!r} judges the documents of {theirs!r}, but {self.config.dataset!r} has those "
                f"of {ours!r}; name datasets with the same documents"
            )
        return dataset

    def passages(self) -> Iterator[Passage]:
        """Stream every document, with its title if it has one."""
        with _reading_irds(self.config.dataset):
            for document in self._dataset.docs_iter():
                yield _passage(document)

    def splits(self) -> tuple[str, ...]:
        """Return the splits with judged queries, those taken from another split included."""
        return self._splits.names()

    def queries(self, split: str) -> Iterator[Query]:
        """Stream the queries of a split. Raises DrkitError at an empty one."""
        for name, query in self._items(split, lambda dataset: dataset.queries_iter()):
            yield require_text(Query(query.query_id, query.default_text()), name)

    def judgements(self, split: str) -> Iterator[Judgement]:
        """Stream the judgements of a split."""
        for _, qrel in self._items(split, lambda dataset: dataset.qrels_iter()):
            yield Judgement(qrel.query_id, qrel.doc_id, int(qrel.relevance))

    def _items(self, split: str, iterate: Callable[[Any], Iterator[Any]]) -> Iterator[tuple[str, Any]]:
        """Yield (dataset's name, query or judgement) of a split."""
        belongs = self._splits.membership(split)
        for name, dataset in self._sources[self._splits.source(split)].items():
            with _reading_irds(name):
                yield from ((name, item) for item in iterate(dataset) if belongs(item.query_id))

    def size(self) -> CollectionSize | None:
        """Return the counts that ir_datasets knows without reading anything, and usual lengths; None without them."""
        passages = _known_count(self._dataset, "docs")
        counts = {
            split: sum(_known_count(one, "queries") for one in self._sources[self._splits.source(split)].values())
            for split in self.splits()
        }
        return CollectionSize(passages, counts, _USUAL_PASSAGE, _USUAL_QUERY) if passages else None

    def describe(self) -> Mapping[str, Any]:
        """Return the ids, the version of ir_datasets, and how many documents it counts."""
        from importlib.metadata import version

        with _reading_irds(self.name):
            documents = self._dataset.docs_count()
        return {
            "collection": "irds",
            "dataset": self.config.dataset,
            **{f"{split}_datasets": list(found) for split, found in self._sources.items()},
            "train_share": self.config.train_share,
            "dev_share": self.config.dev_share,
            "documents": documents,
            "ir_datasets": version("ir_datasets"),
        }


def _known_count(dataset: Any, table: str) -> int:
    return int(dataset.metadata().get(table, {}).get("count", 0))


def _passage(document: Any) -> Passage:
    title, text = getattr(document, "title", None), getattr(document, "text", None)
    if not isinstance(text, str):
        return Passage(document.doc_id, document.default_text())
    return Passage(document.doc_id, text, title if isinstance(title, str) else "")


def _load_irds(name: str) -> Any:
    import ir_datasets

    with _reading_irds(name):
        try:
            return ir_datasets.load(name)
        except KeyError:
            close = get_close_matches(name, sorted(ir_datasets.registry._registered), n=3)
            hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
            raise DrkitError(
                f"ir_datasets has no dataset {name!r}; {hint}See `ir_datasets list` and https://ir-datasets.com"
            ) from None


def _documents_of(dataset: Any) -> str:
    """Return the name of a dataset's documents, equal for datasets that share them; empty if it has none."""
    if not dataset.has_docs():
        return ""
    try:
        return str(dataset.docs_namespace())
    except TypeError:  # vaswani's is declared without `self`
        return type(dataset.docs_handler()).__name__


def _load_judged(name: str) -> Any:
    dataset = _load_irds(name)
    missing = [w for w, has in (("queries", dataset.has_queries()), ("judgements", dataset.has_qrels())) if not has]
    if missing:
        raise DrkitError(
            f"collection irds: {name!r} has no {' and no '.join(missing)}; name a dataset with both as a split"
        )
    return dataset


@contextmanager
def _reading_irds(name: str) -> Iterator[None]:
    """Turn the many exceptions of ir_datasets into one DrkitError."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        reason = str(error).strip().splitlines()
        raise DrkitError(
            f"ir_datasets cannot read {name!r}: {reason[0] if reason else type(error).__name__}; "
            f"check the network, or put its files into IR_DATASETS_HOME"
        ) from error


_QRELS = (
    ("query-id", "query_id", "qid"),
    ("corpus-id", "corpus_id", "doc_id", "docid"),
    ("score", "relevance", "label"),
)
_SAVED = ("dataset_dict.json", "dataset_info.json")
_FORMATS = (*FORMATS, ".arrow")


class HfCollection(TableCollection):
    """A dataset with `corpus`, `queries` and judgements, as BEIR's have; or one with columns for query and passage.

    A folder: written by `save_to_disk`, or with Parquet, Arrow, JSON or CSV files named by split; corpus, queries and
    judgements in folders or files named `corpus`, `queries` and `qrels`. On the hub these are configurations, and the
    judgements may be a dataset of their own (`qrels`). Pairs are read as `PairsCollection` reads them.

    Raises DrkitError if a dataset is not available or lacks a part; bad rows are named when they are read.
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
        parts = _parts_of(config.path)
        if not config.subset and {"corpus", "queries"} <= parts:
            qrels_part = "" if config.qrels else "qrels" if "qrels" in parts else "default"
            qrels = _open_part(config.qrels or config.path, qrels_part)
            corpus, queries = (_open_part(config.path, part) for part in ("corpus", "queries"))
            return RetrievalTables(corpus, queries, qrels, Splits.of(self.name, qrels))
        columns = PairColumns.of(config)
        sources = _open_part(config.path, config.subset, columns)
        split_rules = Splits.of(self.name, sources, dev_share=config.dev_share, test_share=config.test_share)
        return PairTables(sources, columns, split_rules)

    def describe(self) -> Mapping[str, Any]:
        """Return the paths or ids that were given, and the version of `datasets`."""
        from importlib.metadata import version

        return {
            "collection": "hf",
            "path": self.config.path,
            "subset": self.config.subset,
            "qrels": self.config.qrels,
            "shares": dict(self.split_rules.held_out),
            "datasets": version("datasets"),
        }


@frozen
class RetrievalTables:
    """The tables of a collection, read from rows of a corpus, of queries and of judgements, each by split."""

    corpus: Mapping[str, Rows]
    all_queries: Mapping[str, Rows]
    qrels: Mapping[str, Rows]
    split_rules: Splits

    def passages(self) -> Iterator[tuple[Row, Passage]]:
        """Yield every row of the corpus."""
        columns = PassageColumns()
        return ((row, columns.read(row)) for rows in self.corpus.values() for row in rows())

    def queries(self, split: str) -> Iterator[tuple[object, Query]]:
        """Yield the judged queries of a split."""
        queries = ((row, query_of(row)) for rows in self.all_queries.values() for row in rows())
        return judged_queries(queries, (judgement for _, judgement in self.judgements(split)))

    def judgements(self, split: str) -> Iterator[tuple[Row, Judgement]]:
        """Yield the judgements of a split."""
        for row in self.qrels[self.split_rules.source(split)]():
            query, doc, score = (row.first(names) for names in _QRELS)
            relevance = parse_relevance(str(row.values[score]), str(row))
            yield row, Judgement(row.id(query), row.id(doc), relevance)

    def negatives(self, _split: str) -> Iterator[tuple[Row, tuple[str, str]]]:
        """Yield nothing; the judgements say what is not relevant."""
        return iter(())

    def scores(self, _split: str) -> Iterator[tuple[Row, tuple[str, str, float]]]:
        """Yield nothing; judgements come without a teacher's scores."""
        return iter(())


def _parts_of(path: str) -> set[str]:
    """Return the parts of a dataset: its configurations, and the files and folders of a folder, without suffixes."""
    folder = local_path(path)
    names = {entry.name.split(".")[0] for entry in folder.iterdir()} if folder.is_dir() else set()
    if folder.is_dir() and not (folder / "README.md").is_file():
        return names
    import datasets

    _check_hub(path)
    with _reading_hf(path):
        return names | set(datasets.get_dataset_config_names(str(folder) if folder.is_dir() else path))


def _open_part(path: str, part: str, columns: PairColumns | None = None) -> dict[str, Rows]:
    """Return the rows of a dataset, or of its folder, file or configuration `part`, by split.

    columns: of tables without a header. Raises DrkitError for a dataset without rows.
    """
    folder = local_path(path)
    if not folder.is_dir():
        return _load_hf(path, part)
    inner = folder / part if part and (folder / part).is_dir() else folder
    if any((inner / name).is_file() for name in _SAVED):
        return _load_saved(inner)
    found = (path for path in inner.rglob("*") if path.is_file() and not path.name.startswith("."))
    files = sorted(path for path in found if file_kind(path) in _FORMATS)
    if part and inner == folder:
        files = [file for file in files if file.name.startswith(f"{part}.")]
    if (folder / "README.md").is_file() and inner == folder and not (part and files):
        # The README says which files are what; streaming copies nothing to a cache.
        return _load_hf(str(folder), part, streaming=True)
    if not files:
        missing = f"no part {part!r}" if part else "no data"
        raise DrkitError(
            f"collection hf: {folder} has {missing}; expected {', '.join(_FORMATS)} files or a saved dataset"
        )
    return _split_of_files(files, columns)


def _load_hf(path: str, part: str, **options: Any) -> dict[str, Rows]:
    import datasets

    _check_hub(path)
    with _reading_hf(path):
        loaded = datasets.load_dataset(path, part or None, **options)
    return _by_split(loaded, f"{path}{f' ({part})' if part else ''}")


def _check_hub(path: str) -> None:
    """Raise DrkitError for a file, for what cannot be a hub id, and if a hub that is needed does not answer soon."""
    import datasets

    local = local_path(path)
    if local.is_dir():
        return
    if local.exists():
        raise DrkitError(f"collection hf: {path} is a file; give its folder, or a table of pairs as `pairs:{path}`")
    if not may_be_hub_id(path):
        raise DrkitError(
            f"collection hf: no folder {path!r} exists, and it cannot be a hub id (NAME or OWNER/NAME); check the path"
        )
    if not datasets.config.HF_HUB_OFFLINE:  # also HF_DATASETS_OFFLINE
        reaches_hub(path, "dataset")


def _load_saved(folder: Path) -> dict[str, Rows]:
    import datasets

    with _reading_hf(str(folder)):
        saved = datasets.load_from_disk(str(folder))
    return _by_split(saved if isinstance(saved, datasets.DatasetDict) else {"train": saved}, str(folder))


def _split_of_files(files: list[Path], columns: PairColumns | None) -> dict[str, Rows]:
    """Files by the split among the words of their names; those without one are train."""
    found: dict[str, list[Path]] = {}
    for path in files:
        words = words_of(path.name)
        split = next((split for split, names in SPLIT_NAMES.items() if words & {*names}), "train")
        found.setdefault(split, []).append(path)
    return {split: partial(_read_files, paths, columns) for split, paths in found.items()}


def _read_files(paths: list[Path], columns: PairColumns | None) -> Iterator[Row]:
    is_header = columns.is_header if columns else PassageColumns(texts=("text", "score", "_id", "id")).is_header
    for path in paths:
        yield from read_rows(path, is_header, columns.default_names if columns else lambda _: ())


def _by_split(found: Mapping[str, Any], name: str) -> dict[str, Rows]:
    """Return the splits by drkit's names; a single split with another name is train."""
    names = {split: next((n for n in (split, *usual) if n in found), None) for split, usual in SPLIT_NAMES.items()}
    named: dict[str, Rows] = {
        split: partial(_stream, found[n], f"{name} [{n}]") for split, n in names.items() if n is not None
    }
    if not named and len(found) != 1:
        raise DrkitError(
            f"collection hf: {name} has the splits {', '.join(found)}; expected train, dev or test. Name another "
            f"configuration with --set collection.subset=NAME"
        )
    return named or {"train": partial(_stream, next(iter(found.values())), name)}


def _stream(table: Any, name: str) -> Iterator[Row]:
    with _reading_hf(name):
        for number, values in enumerate(table, start=1):
            yield Row(name, number, dict(values), "row")


@contextmanager
def _reading_hf(name: str) -> Iterator[None]:
    """Turn the many exceptions of `datasets` into one DrkitError."""
    from datasets import config
    from datasets.exceptions import DatasetsError

    try:
        yield
    except DrkitError:
        raise
    except (OSError, DatasetsError, ValueError, RuntimeError, KeyError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        advice = "check the path, the id, or the network"
        if config.HF_HUB_OFFLINE and not local_path(name).exists():
            advice = "HF_HUB_OFFLINE is set: unset it, or give the path of a folder"
        raise DrkitError(f"datasets cannot read {name!r}: {reason}; {advice}") from error
