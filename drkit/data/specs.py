"""The collections, and the contexts of texts: their settings and specs. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen
from attrs.validators import and_, ge, in_, le, lt, min_len, optional

from drkit.core.citations import DPR, LLARA, QUERY_AS_CONTEXT
from drkit.core.settings import QuerySettings, at_least, query_source, setting
from drkit.core.spec import Citation, ComponentSpec, Kind, NoSettings


def _train_share() -> Any:
    return setting(0.0, and_(ge(0), le(0.9)), "share of the test queries to train on if there is no train split")


def _held_out(split: str) -> Any:
    return setting(0.05, and_(ge(0), lt(0.5)), f"share of the training queries for {split} if it has no file")


def _columns(*roles: str) -> Any:
    def check(_instance: Any, _attribute: Any, value: Mapping[str, Any]) -> None:
        unknown = [role for role in value if role not in roles]
        if unknown:
            raise ValueError(f"no role {unknown[0]!r}; the roles of columns: {', '.join(roles)}")
        for role, given in value.items():
            names = given if isinstance(given, (list, tuple)) and role == "negative" else [given]
            if not names or not all(isinstance(one, (str, int)) and str(one) and one is not True for one in names):
                raise ValueError(f"the column of {role!r} must be its name, or its number from 1, got {given!r:.60}")

    text = f"columns by their role ({', '.join(roles)}): names, or numbers from 1 in a table without a header"
    return attrs.field(factory=dict, validator=check, metadata={"help": text})


def _unknown(what: str = "judgements") -> Any:
    return setting("refuse", in_(("refuse", "drop")), f"{what} that name unknown ids: refuse them, or drop and count")


@frozen
class BeirConfig:
    """Settings of `BeirCollection`: a folder in BEIR's layout, and how to split its training queries."""

    path: str = setting("", None, "folder with corpus.jsonl, queries.jsonl and qrels/*.tsv")
    columns: Mapping[str, Any] = _columns("title")
    train_share: float = _train_share()
    unknown_judgements: str = _unknown()


@frozen
class IrdsConfig:
    """Settings of `IrdsCollection`: ids of ir_datasets, one for each split that has its own."""

    dataset: str = setting("", None, "id of an ir_datasets dataset, as in `ir_datasets list`")
    train_dataset: str | None = setting(None, None, "id of the dataset with the training queries")
    dev_dataset: str | None = setting(None, None, "id of the dataset with the dev queries")
    test_datasets: tuple[str, ...] = setting((), None, "ids of the datasets with the test queries (empty: `dataset`)")
    train_share: float = _train_share()
    dev_share: float = setting(
        0.0, and_(ge(0), lt(0.5)), "share of the queries of `train_dataset` for dev if there is no `dev_dataset`"
    )
    unknown_judgements: str = _unknown()

    @property
    def test_dataset(self) -> str | None:
        """The id of the dataset with the test queries; None if there are several."""
        given = self.test_datasets or (self.dataset,)
        return given[0] if len(given) == 1 else None


@frozen
class JsonlConfig:
    """Settings of `JsonlCollection`: texts without queries, and the names of their columns."""

    path: str = setting("", None, "texts: a .jsonl, .tsv, .csv (or .gz, .zst) or .parquet file, or a folder of them")
    text_field: str = setting("", None, "key or column of the text (empty: the usual names)")
    id_field: str = setting("", None, "key or column of the id (empty: the usual names, else the row number)")
    title_field: str = setting("", None, "key or column of the title (empty: `title`)")
    columns: Mapping[str, Any] = _columns("id", "title", "text")


@frozen
class DocumentsConfig:
    """Settings of `DocumentsCollection`: a folder of documents, and the length of its passages."""

    path: str = setting("", None, "a folder of .md and .txt files")
    words: int = setting(200, at_least(1), "most words of a passage, unless a single paragraph has more")


@frozen
class LabelledConfig:
    """Settings of `LabelledCollection`: texts, files of labels, and how labels refer to texts."""

    path: str = setting("", None, "texts: a folder of .md and .txt files, or a .jsonl, .tsv, .csv or .parquet file")
    more_texts: tuple[str, ...] = setting((), None, "further folders or files of texts")
    labels: tuple[str, ...] = setting((), None, "files of labels (.csv, .tsv, .jsonl, .parquet): query and article")
    refers_to: str = setting(
        "",
        in_(("", "id", "path", "title", "text")),
        "what labels name articles by: id, path, title or text (empty: what all of them resolve by)",
    )
    columns: Mapping[str, Any] = _columns("id", "title", "text", "query", "article", "score")
    words: int = setting(200, at_least(1), "most words of a passage of a document, unless a paragraph has more")
    dev_share: float = setting(0.0, and_(ge(0), lt(0.5)), "share of the labelled queries for dev")
    test_share: float = setting(0.0, and_(ge(0), lt(0.5)), "share of the labelled queries for test")
    unknown_judgements: str = _unknown("labels")


@frozen
class TevatronConfig:
    """Settings of `TevatronCollection`: training files in Tevatron's format, a corpus, and held-out files or shares."""

    path: str = setting(
        "", None, "a training file (.jsonl, .jsonl.gz ..), or a folder with train, dev, test and corpus"
    )
    corpus: str = setting("", None, "file or folder of all passages (docid, title, text); empty: those of the queries")
    dev: str = setting("", None, "file of dev queries, in the format of the training file")
    test: str = setting("", None, "file of test queries, in the format of the training file")
    dev_qrels: str = setting("", None, "judgements of the dev queries, if their file has no positives")
    test_qrels: str = setting("", None, "judgements of the test queries, if their file has no positives")
    columns: Mapping[str, Any] = _columns("id", "title", "text")
    dev_share: float = _held_out("dev")
    test_share: float = _held_out("test")
    unknown_judgements: str = _unknown("judgements and negatives")


@frozen
class DprConfig(TevatronConfig):
    """Settings of `DprCollection`: those of Tevatron's, for the training files of DPR."""


@frozen(kw_only=True)
class PairSettings:
    """Columns of training pairs, the meaning of their scores, and which of them are held out."""

    anchor: str = setting("", None, "column of the query (empty: anchor, query, question, ..)")
    positive: str = setting("", None, "column of the passage (empty: positive, pos, answer, ..)")
    negatives: tuple[str, ...] = setting((), None, "columns of negatives (empty: negative, neg, negative_1, ..)")
    score: str = setting("", None, "column of a score or label (empty: score, label); none: ignore it")
    min_score: float | None = setting(
        None,
        optional(at_least(-1e9)),
        "minimum score of a positive, a lower one is a negative's (empty: 0.5, and scores must lie in 0 .. 1)",
    )
    columns: Mapping[str, Any] = _columns("query", "text", "positive", "negative", "score")
    dev_share: float = _held_out("dev")
    test_share: float = _held_out("test")


@frozen
class PairsConfig(PairSettings):
    """Settings of `PairsCollection`: files of training pairs; `PairSettings` names their columns."""

    path: str = setting("", None, "a training file (.jsonl, .tsv, .csv, .parquet), or a folder with train.*")
    dev: str = setting("", None, "file of dev pairs")
    test: str = setting("", None, "file of test pairs")


@frozen
class TrecConfig:
    """Settings of `TrecCollection`: a corpus, and topics, judgements and negatives by split."""

    path: str = setting("", None, "folder with corpus, topics and qrels under their usual names; or the corpus file")
    corpus: str = setting("", None, "all passages: a .jsonl, .tsv, .csv (or .gz, .zst) or .parquet file, or a folder")
    titles: str = setting("", None, "titles of the passages, if they are in a file of their own: id and title")
    train_topics: str = setting("", None, "training topics: TREC's <top>, .tsv, .csv or .jsonl")
    train_qrels: str = setting("", None, "judgements of the training topics: TREC's four columns, or BEIR's three")
    dev_topics: str = setting("", None, "dev topics")
    dev_qrels: str = setting("", None, "judgements of the dev topics")
    test_topics: str = setting("", None, "test topics")
    test_qrels: str = setting("", None, "judgements of the test topics")
    train_negatives: str = setting(
        "", None, "negatives of the training topics by id: lines of qid, pos, neg (JSON), or a table of three ids"
    )
    negative_systems: tuple[str, ...] = setting((), None, "only the negatives that these systems found (empty: all)")
    topic_field: str = setting("title", min_len(1), "element of a topic that is the query: title, desc, narr ..")
    columns: Mapping[str, Any] = _columns("id", "title", "text", "query_id", "query")
    train_share: float = _train_share()
    unknown_judgements: str = _unknown("judgements and negatives")


@frozen
class HfConfig(PairSettings):
    """Settings of `HfCollection`: a Hugging Face dataset of training pairs, or with queries and judgements."""

    path: str = setting("", None, "folder of a dataset, or its id on the Hugging Face hub")
    subset: str = setting("", None, "configuration of the dataset, if it has several")
    qrels: str = setting("", None, "folder or id of the dataset with the judgements, if it is a different one")
    columns: Mapping[str, Any] = _columns("id", "title", "text", "query_id", "query", "positive", "negative", "score")
    unknown_judgements: str = _unknown("judgements and negatives")


BEIR = Citation(
    key="thakur2021beir",
    title="BEIR: A Heterogeneous Benchmark for Zero-shot Evaluation of Information Retrieval Models",
    year=2021,
    url="https://arxiv.org/abs/2104.08663",
)
IR_DATASETS = Citation(
    key="macavaney2021irds",
    title="Simplified Data Wrangling with ir_datasets",
    year=2021,
    url="https://arxiv.org/abs/2103.02280",
)
TEVATRON = Citation(
    key="gao2023tevatron",
    title="Tevatron: An Efficient and Flexible Toolkit for Neural Retrieval",
    year=2023,
    url="https://arxiv.org/abs/2203.05765",
)
SBERT = Citation(
    key="reimers2019sbert",
    title="Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks",
    year=2019,
    url="https://arxiv.org/abs/1908.10084",
)
HF_DATASETS = Citation(
    key="lhoest2021datasets",
    title="Datasets: A Community Library for Natural Language Processing",
    year=2021,
    url="https://arxiv.org/abs/2109.02846",
)

_JUDGED = ("texts", "queries", "judgements")


def _collection(name: str, code: str, config: type, summary: str, **more: Any) -> ComponentSpec:
    target = f"drkit.data.{code}"
    return ComponentSpec(kind=Kind.COLLECTION, name=name, target=target, config=config, summary=summary, **more)


COLLECTIONS = (
    _collection(
        "beir",
        "formats:BeirCollection",
        BeirConfig,
        "A folder in the BEIR layout: corpus, queries, qrels",
        cite=BEIR,
        provides=_JUDGED,
        shorthand="path",
        files=("path",),
    ),
    _collection(
        "irds",
        "irds:IrdsCollection",
        IrdsConfig,
        "Any dataset of ir_datasets, by its id",
        cite=IR_DATASETS,
        provides=_JUDGED,
        shorthand="dataset",
        extras=("data",),
    ),
    _collection(
        "tevatron",
        "tevatron:TevatronCollection",
        TevatronConfig,
        "Tevatron's training files: queries with their passages",
        cite=TEVATRON,
        provides=_JUDGED,
        shorthand="path",
        files=("path", "corpus", "dev", "test", "dev_qrels", "test_qrels"),
    ),
    _collection(
        "dpr",
        "dpr:DprCollection",
        DprConfig,
        "DPR's training files: questions with their passages",
        cite=DPR,
        provides=_JUDGED,
        shorthand="path",
        files=("path", "corpus", "dev", "test", "dev_qrels", "test_qrels"),
    ),
    _collection(
        "pairs",
        "pairs:PairsCollection",
        PairsConfig,
        "Files of (query, passage, negatives) as texts; tables or JSON",
        cite=SBERT,
        provides=_JUDGED,
        shorthand="path",
        files=("path", "dev", "test"),
    ),
    _collection(
        "trec",
        "formats:TrecCollection",
        TrecConfig,
        "A corpus file, TREC topics and judgements by split",
        provides=_JUDGED,
        shorthand="path",
        files=(
            *("path", "corpus", "train_topics", "train_qrels", "train_negatives"),
            *("dev_topics", "dev_qrels", "test_topics", "test_qrels"),
        ),
    ),
    _collection(
        "hf",
        "hf:HfCollection",
        HfConfig,
        "A Hugging Face dataset, by folder or id",
        cite=HF_DATASETS,
        provides=_JUDGED,
        shorthand="path",
        files=("path", "qrels"),
        extras=("data",),
    ),
    _collection(
        "documents",
        "documents:DocumentsCollection",
        DocumentsConfig,
        "A folder of .md and .txt files, a passage for each section",
        provides=("texts",),
        shorthand="path",
        files=("path",),
    ),
    _collection(
        "labelled",
        "labelled:LabelledCollection",
        LabelledConfig,
        "Folders and files of texts, and files of labels: query and article",
        provides=_JUDGED,
        shorthand="path",
        files=("path", "more_texts", "labels"),
    ),
    _collection(
        "jsonl",
        "formats:JsonlCollection",
        JsonlConfig,
        "A file of texts alone, without queries",
        provides=("texts",),
        shorthand="path",
        files=("path",),
    ),
)


@frozen
class QueryContextConfig:
    """Settings of `QueryContext`: a text is paired with a query made from it (Query-as-context, section 3.1)."""

    queries: str = setting("extractive", query_source, "extractive, file:PATH, or model:PATH_OR_ID of a seq2seq model")
    candidates: int = setting(5, at_least(1), "maximum number of queries per text; each epoch draws one")
    prefix: str = setting("", None, "put before each text for the model, as in 'text2query: '")

    @property
    def signals(self) -> Mapping[str, Mapping[str, Any]]:
        """The signal `importance`, which picks extractive queries."""
        return {"importance": {}}

    @property
    def requires(self) -> Mapping[str, Any]:
        """Candidate queries, which a stage of the run makes with these settings."""
        return {"generated-queries": QuerySettings(self.queries, self.candidates, self.prefix)}


@frozen
class MixedContextConfig(QueryContextConfig):
    """Settings of `MixedContext`: some texts are paired with a query, others a span (Query-as-context, table 4)."""

    share: float = setting(0.5, and_(ge(0), le(1)), "share of the spans whose context is a query; the rest get a span")

    @property
    def requires(self) -> Mapping[str, Any]:
        """Documents cut into spans, and candidate queries of each span."""
        return {"spans": None, **super().requires}


def _context(name: str, code: str, summary: str, config: type = NoSettings, **more: Any) -> ComponentSpec:
    target = f"drkit.data.contexts:{code}"
    return ComponentSpec(kind=Kind.CONTEXT, name=name, target=target, config=config, summary=summary, **more)


CONTEXTS = (
    _context("self", "SelfContext", "The text itself"),
    _context("span", "SpanContext", "Another span of the same document", requires=("spans",), cite=QUERY_AS_CONTEXT),
    _context("next-span", "NextSpanContext", "The next span of the same document", requires=("spans",), cite=LLARA),
    _context("query", "QueryContext", "One of the text's candidate queries", QueryContextConfig, cite=QUERY_AS_CONTEXT),
    _context(
        "mixed", "MixedContext", "A query of the span, or another span", MixedContextConfig, cite=QUERY_AS_CONTEXT
    ),
)
