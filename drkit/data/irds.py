"""Any data set of ir_datasets, by its id: `vaswani`, `cranfield`, `beir/scifact/test`, `msmarco-passage/train`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from drkit.core.types import BuildContext, Judgement, Passage, Query
from drkit.data.config import IrdsConfig
from drkit.data.splits import split_by_hash, train_from_test
from drkit.errors import DrkitError


class IrdsCollection:
    """Documents of `dataset`; queries of the data sets that are named for train, dev and test, or test of its own.

    They all must have the documents of `dataset`. Several test data sets are joined. Without `train_dataset`,
    `train_share` of the test queries (by the hash of their ids) train, a tenth of them as dev where there is no
    `dev_dataset`; 0, the default, never trains on a test query. Without `dev_dataset`, `dev_share` of the queries of
    `train_dataset` are dev. ir_datasets keeps its files in `IR_DATASETS_HOME` and downloads what is missing when it is
    read, not before: a plan needs no download.

    Raises DrkitError where an id is unknown, a data set has no documents or those of another, or a download fails.
    """

    def __init__(self, config: IrdsConfig, _context: BuildContext | None = None) -> None:
        if not config.dataset:
            raise DrkitError("collection irds: no data set given; name one, as in `irds:vaswani`")
        self.config = config
        self.name = f"irds:{config.dataset}"
        self._dataset = _load(config.dataset)
        if not self._dataset.has_docs():
            raise DrkitError(f"collection irds: {config.dataset!r} has no documents; name a data set that has some")
        self._sources = {
            split: {name: self._judged(name) for name in names}
            for split, names in self._named_splits().items()
            if names
        }
        if not config.test_datasets and self._dataset.has_queries() and self._dataset.has_qrels():
            self._sources["test"] = {config.dataset: self._dataset}

    def _named_splits(self) -> dict[str, tuple[str, ...]]:
        train, dev = ((name,) if name else () for name in (self.config.train_dataset, self.config.dev_dataset))
        return {"train": train, "dev": dev, "test": self.config.test_datasets}

    def _judged(self, name: str) -> Any:
        """A data set with queries and judgements of the same documents."""
        dataset = _load_judged(name)
        ours, theirs = (_documents_of(d) for d in (self._dataset, dataset))
        if ours != theirs:
            raise DrkitError(
                f"collection irds: {name!r} judges the documents of {theirs!r}, and {self.config.dataset!r} has those "
                f"of {ours!r}; name data sets that share them"
            )
        return dataset

    @property
    def _takes_from_test(self) -> bool:
        return self.config.train_share > 0 and "test" in self._sources and "train" not in self._sources

    @property
    def _takes_from_train(self) -> bool:
        return self.config.dev_share > 0 and "train" in self._sources and "dev" not in self._sources

    def passages(self) -> Iterator[Passage]:
        """Every document; its title apart where it has one."""
        with _reading(self.config.dataset):
            for document in self._dataset.docs_iter():
                yield _passage(document)

    def splits(self) -> tuple[str, ...]:
        """The splits that have judged queries, those taken from test included."""
        taken = {"train", "dev"} if self._takes_from_test else {"dev"} if self._takes_from_train else set()
        return tuple(s for s in ("train", "dev", "test") if s in self._sources or s in taken)

    def queries(self, split: str) -> Iterator[Query]:
        """The queries of a split. Raises DrkitError at an empty one."""
        source, datasets = self._source(split)
        for name, dataset in datasets.items():
            with _reading(name):
                for query in dataset.queries_iter():
                    if self._split_of(query.query_id, source) == split:
                        yield _query(query, name)

    def judgements(self, split: str) -> Iterator[Judgement]:
        """The judgements of a split."""
        source, datasets = self._source(split)
        for name, dataset in datasets.items():
            with _reading(name):
                for qrel in dataset.qrels_iter():
                    if self._split_of(qrel.query_id, source) == split:
                        yield Judgement(qrel.query_id, qrel.doc_id, int(qrel.relevance))

    def _source(self, split: str) -> tuple[str, Mapping[str, Any]]:
        if split not in self.splits():
            raise DrkitError(f"{self.name} has no split {split!r}; it has {', '.join(self.splits()) or 'none'}")
        source = split if split in self._sources else "train" if "train" in self._sources else "test"
        return source, self._sources[source]

    def _split_of(self, query_id: str, source: str) -> str:
        if source == "train" and self._takes_from_train:
            return split_by_hash(query_id, dev_share=self.config.dev_share, test_share=0)
        if source != "test" or not self._takes_from_test:
            return source
        with_dev = "dev" not in self._sources
        return train_from_test(query_id, train_share=self.config.train_share, with_dev=with_dev)

    def describe(self) -> Mapping[str, Any]:
        """The ids, the version of ir_datasets, and how many documents it counts."""
        from importlib.metadata import version

        with _reading(self.name):
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


def _passage(document: Any) -> Passage:
    title, text = getattr(document, "title", None), getattr(document, "text", None)
    if not isinstance(text, str):
        return Passage(document.doc_id, document.default_text())
    return Passage(document.doc_id, text, title if isinstance(title, str) else "")


def _query(query: Any, name: str) -> Query:
    text = query.default_text()
    if not text.strip():
        raise DrkitError(f"{name}: the query {query.query_id!r} is empty")
    return Query(query.query_id, text)


def _load(name: str) -> Any:
    import ir_datasets

    with _reading(name):
        try:
            return ir_datasets.load(name)
        except KeyError:
            close = get_close_matches(name, _known_ids(), n=3)
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "none is close to it."
            raise DrkitError(
                f"ir_datasets has no data set {name!r}; {hint} See `ir_datasets list` and https://ir-datasets.com"
            ) from None


def _known_ids() -> list[str]:
    import ir_datasets

    return sorted(ir_datasets.registry._registered)


def _documents_of(dataset: Any) -> str:
    """The name of a data set's documents, the same wherever they are the same; empty where it has none."""
    if not dataset.has_docs():
        return ""
    try:
        return str(dataset.docs_namespace())
    except TypeError:  # vaswani's takes no argument, not even itself
        return type(dataset.docs_handler()).__name__


def _load_judged(name: str) -> Any:
    dataset = _load(name)
    missing = [w for w, has in (("queries", dataset.has_queries()), ("judgements", dataset.has_qrels())) if not has]
    if missing:
        raise DrkitError(f"collection irds: {name!r} has no {' and no '.join(missing)}, so it cannot be a split")
    return dataset


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """ir_datasets raises many things when a file cannot be had; all of them reach the user as one."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        reason = str(error).strip().splitlines()
        raise DrkitError(
            f"ir_datasets cannot read {name!r}: {reason[0] if reason else type(error).__name__}; "
            f"check the network, or place its files under IR_DATASETS_HOME"
        ) from error
