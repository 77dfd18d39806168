"""Search: encoding, exact indexes, retrievers, and the run files they write."""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.search.bm25 import Bm25Retriever
    from drkit.search.encode import TextEncoder
    from drkit.search.hits import Hits
    from drkit.search.index import FlatIndex
    from drkit.search.reranking import Reranker, rerank
    from drkit.search.retrieve import Retriever
    from drkit.search.trec import read_qrels, read_run, write_qrels, write_run

__all__ = [
    "Bm25Retriever",
    "FlatIndex",
    "Hits",
    "Reranker",
    "Retriever",
    "TextEncoder",
    "read_qrels",
    "read_run",
    "rerank",
    "write_qrels",
    "write_run",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Bm25Retriever": "bm25",
        "FlatIndex": "index",
        "Hits": "hits",
        "Reranker": "reranking",
        "Retriever": "retrieve",
        "TextEncoder": "encode",
        "read_qrels": "trec",
        "read_run": "trec",
        "rerank": "reranking",
        "write_qrels": "trec",
        "write_run": "trec",
    },
)
