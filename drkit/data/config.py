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
    train_share: float = setting(
        0.0, and_(ge(0), le(0.9)), "share of the queries to train on where there is no train split"
    )
    unknown_judgements: str = setting(
        "refuse", in_(("refuse", "drop")), "judgements that name unknown ids: an error, or left out and counted"
    )


@frozen
class JsonlConfig:
    """Settings of `JsonlCollection`."""

    path: str = setting("", None, "a .jsonl file (or .jsonl.gz) with a text a line")
    text_field: str = setting("text", None, "key of the text")
    id_field: str = setting("_id", None, "key of the id; lines without one are numbered")
