"""Settings of the collections; no torch here."""

from __future__ import annotations

from attrs import frozen
from attrs.validators import and_, ge, gt, in_, le, lt

from drkit.core.settings import optional, setting


@frozen
class PydocsConfig:
    """Settings of `PydocsCollection`."""

    packages: tuple[str, ...] = setting((), None, "only these packages (all installed ones where empty)")
    min_query_words: int = setting(3, ge(1), "words that a query has at least")
    max_query_words: int = setting(40, ge(1), "words that a query has at most")
    min_passage_words: int = setting(8, ge(1), "words that a passage has at least")
    dev_share: float = setting(0.05, and_(gt(0), lt(0.5)), "share of modules for dev")
    test_share: float = setting(0.10, and_(gt(0), lt(0.5)), "share of modules for test")
    limit: int | None = setting(None, optional(ge(1)), "at most this many modules, drawn by hash")


@frozen
class BeirConfig:
    """Settings of `BeirCollection`."""

    path: str = setting("", None, "folder with corpus.jsonl, queries.jsonl and qrels/*.tsv")
    train_share: float = setting(
        0.0, and_(ge(0), le(0.9)), "share of the queries to train on where there is no train split"
    )
    unknown_judgements: str = setting(
        "refuse", in_(("refuse", "drop")), "judgements that name unknown ids: an error, or left out and counted"
    )


@frozen
class IrdsConfig:
    """Settings of `IrdsCollection`."""

    dataset: str = setting("", None, "id of an ir_datasets data set, as in `ir_datasets list`")
    train_dataset: str | None = setting(None, None, "id of the data set with the training queries")
    dev_dataset: str | None = setting(None, None, "id of the data set with the development queries")
    test_datasets: tuple[str, ...] = setting((), None, "ids of the data sets with the test queries (`dataset`'s own)")
    train_share: float = setting(
        0.0, and_(ge(0), le(0.9)), "share of the queries to train on where there is no train split"
    )
    dev_share: float = setting(
        0.0, and_(ge(0), lt(0.5)), "share of the train data set's queries that is dev where there is no dev_dataset"
    )
    unknown_judgements: str = setting(
        "refuse", in_(("refuse", "drop")), "judgements that name unknown ids: an error, or left out and counted"
    )


@frozen
class JsonlConfig:
    """Settings of `JsonlCollection`."""

    path: str = setting("", None, "a file of texts: .jsonl, .tsv, .csv (gzipped or not), .json or .parquet")
    text_field: str = setting("", None, "key or column of the text (the usual names where empty)")
    id_field: str = setting("", None, "key or column of the id (the usual names where empty); else rows are numbered")
    title_field: str = setting("", None, "key or column of the title (`title` where empty)")


_DEV_SHARE = "share of the training queries that becomes dev, where there is no dev file"
_TEST_SHARE = "share of the training queries that becomes test, where there is no test file"
_UNKNOWN = "judgements and negatives that name unknown ids: an error, or left out and counted"


@frozen
class TevatronConfig:
    """Settings of `TevatronCollection`."""

    path: str = setting("", None, "a training file (.jsonl, .jsonl.gz), or a folder with train, dev, test and corpus")
    corpus: str = setting("", None, "file of all passages (docid, title, text); those of the other files where empty")
    dev: str = setting("", None, "file of development queries, in the format of the training file")
    test: str = setting("", None, "file of test queries, in the format of the training file")
    dev_qrels: str = setting("", None, "judgements of the development queries, where their file has no positives")
    test_qrels: str = setting("", None, "judgements of the test queries, where their file has no positives")
    dev_share: float = setting(0.05, and_(ge(0), lt(0.5)), _DEV_SHARE)
    test_share: float = setting(0.05, and_(ge(0), lt(0.5)), _TEST_SHARE)
    unknown_judgements: str = setting("refuse", in_(("refuse", "drop")), _UNKNOWN)

    @property
    def files(self) -> tuple[str, ...]:
        """Every path that is read."""
        return (self.path, self.corpus, self.dev, self.test, self.dev_qrels, self.test_qrels)


@frozen
class PairsConfig:
    """Settings of `PairsCollection`."""

    path: str = setting("", None, "a training file (.jsonl, .json, .tsv, .csv, .parquet), or a folder with train.*")
    dev: str = setting("", None, "file of development pairs")
    test: str = setting("", None, "file of test pairs")
    anchor: str = setting("", None, "column of the query (anchor, query, question .. where empty)")
    positive: str = setting("", None, "column of the passage (positive, pos, answer .. where empty)")
    negatives: tuple[str, ...] = setting((), None, "columns of negatives (negative, neg, negative_1 .. where empty)")
    score: str = setting("", None, "column of a score or label (score, label where empty); none: not read")
    min_score: float = setting(0.5, None, "a pair with this score or more is a positive, with less a negative")
    dev_share: float = setting(0.05, and_(ge(0), lt(0.5)), _DEV_SHARE)
    test_share: float = setting(0.05, and_(ge(0), lt(0.5)), _TEST_SHARE)

    @property
    def files(self) -> tuple[str, ...]:
        """Every path that is read."""
        return (self.path, self.dev, self.test)


@frozen
class TrecConfig:
    """Settings of `TrecCollection`."""

    path: str = setting("", None, "folder with corpus, topics and qrels under their usual names; or the corpus file")
    corpus: str = setting("", None, "file of all passages: .jsonl, .tsv, .csv (gzipped or not), .json or .parquet")
    train_topics: str = setting("", None, "training topics: TREC's <top>, .tsv, .csv or .jsonl")
    train_qrels: str = setting("", None, "judgements of the training topics: TREC's four columns, or BEIR's three")
    dev_topics: str = setting("", None, "development topics")
    dev_qrels: str = setting("", None, "judgements of the development topics")
    test_topics: str = setting("", None, "test topics")
    test_qrels: str = setting("", None, "judgements of the test topics")
    topic_field: str = setting("title", in_(("title", "desc", "narr")), "part of a <top> that is the query")
    train_share: float = setting(
        0.0, and_(ge(0), le(0.9)), "share of the queries to train on where there is no train split"
    )
    unknown_judgements: str = setting("refuse", in_(("refuse", "drop")), _UNKNOWN)

    @property
    def files(self) -> tuple[str, ...]:
        """Every path that is read."""
        by_split = (f"{split}_{what}" for split in ("train", "dev", "test") for what in ("topics", "qrels"))
        return (self.path, self.corpus, *(getattr(self, name) for name in by_split))


@frozen
class HfConfig:
    """Settings of `HfCollection`."""

    path: str = setting("", None, "folder of a data set, or its id on the Hugging Face hub")
    subset: str = setting("", None, "configuration of the data set, where it has several")
    qrels: str = setting("", None, "folder or id of the data set with the judgements, where it is another one")
    anchor: str = setting("", None, "column of the query (anchor, query, question .. where empty)")
    positive: str = setting("", None, "column of the passage (positive, pos, answer .. where empty)")
    negatives: tuple[str, ...] = setting((), None, "columns of negatives (negative, neg, negative_1 .. where empty)")
    score: str = setting("", None, "column of a score or label (score, label where empty); none: not read")
    min_score: float = setting(0.5, None, "a pair with this score or more is a positive, with less a negative")
    dev_share: float = setting(0.05, and_(ge(0), lt(0.5)), _DEV_SHARE)
    test_share: float = setting(0.05, and_(ge(0), lt(0.5)), _TEST_SHARE)
    unknown_judgements: str = setting("refuse", in_(("refuse", "drop")), _UNKNOWN)

    @property
    def files(self) -> tuple[str, ...]:
        """Every path that is read, where they are folders."""
        return (self.path, self.qrels)
