"""Collections of ir_datasets, by the id of a dataset. Planning downloads nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from drkit.core.types import BuildContext, CollectionSize, Judgement, Passage, Query
from drkit.data.specs import IrdsConfig
from drkit.data.splits import Splits
from drkit.data.topics import require_text
from drkit.errors import DrkitError, import_extra

ir_datasets = import_extra("ir_datasets", "collection irds")

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
        dataset = _load_irds(name)
        found = {"queries": dataset.has_queries(), "judgements": dataset.has_qrels()}
        if missing := [table for table, has in found.items() if not has]:
            raise DrkitError(
                f"collection irds: {name!r} has no {' and no '.join(missing)}; name a dataset with both as a split"
            )
        ours, theirs = (_documents_of(d) for d in (self._dataset, dataset))
        if ours != theirs:
            raise DrkitError(
                f"collection irds: {name!r} judges the documents of {theirs!r}, but {self.config.dataset!r} has those "
                f"of {ours!r}; name datasets with the same documents"
            )
        return dataset

    @property
    def has_titles(self) -> bool:
        """Whether documents have a title apart from their text, by their type."""
        return {"title", "text"} <= {*getattr(self._dataset.docs_cls(), "_fields", ())}

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
            answers = getattr(query, "answers", None)
            known = None if answers is None else tuple(answers)
            yield require_text(Query(query.query_id, query.default_text(), known), name)

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
        counts = {}
        for split in self.splits():
            sources = self._sources[self._splits.source(split)].values()
            known = sum(_known_count(one, "queries") for one in sources)
            counts[split] = round(self._splits.share(split) * known)
        return CollectionSize(passages, counts, _USUAL_PASSAGE, _USUAL_QUERY) if passages else None

    def describe(self) -> Mapping[str, Any]:
        """Return the ids, the version of ir_datasets, and how many documents it counts."""
        with _reading_irds(self.name):
            documents = self._dataset.docs_count()
        return {
            "collection": "irds",
            "dataset": self.config.dataset,
            **{f"{split}_datasets": list(found) for split, found in self._sources.items()},
            "train_share": self.config.train_share,
            "dev_share": self.config.dev_share,
            "documents": documents,
            "ir_datasets": ir_datasets.__version__,
        }


def _known_count(dataset: Any, table: str) -> int:
    return int(dataset.metadata().get(table, {}).get("count", 0))


def _passage(document: Any) -> Passage:
    title, text = getattr(document, "title", None), getattr(document, "text", None)
    if not isinstance(text, str):
        return Passage(document.doc_id, document.default_text())
    return Passage(document.doc_id, text, title if isinstance(title, str) else "")


def _load_irds(name: str) -> Any:
    with _reading_irds(name):
        try:
            return ir_datasets.load(name)
        except KeyError:
            close = get_close_matches(name, sorted(ir_datasets.registry), n=3)
            hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
            raise DrkitError(
                f"ir_datasets has no dataset {name!r}; {hint}see `ir_datasets list` and https://ir-datasets.com"
            ) from None


def _documents_of(dataset: Any) -> str:
    """Return the name of a dataset's documents, equal for datasets that share them; empty if it has none."""
    if not dataset.has_docs():
        return ""
    try:
        return str(dataset.docs_namespace())
    except TypeError:  # vaswani's is declared without `self`
        return type(dataset.docs_handler()).__name__


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
