"""Search: encoding, indexes, retrievers, re-rankers, and the run files they write."""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.search.adapters import CrossEncoderScorer, Encoder, SentenceTransformerEncoder
    from drkit.search.bm25 import Bm25Retriever
    from drkit.search.building import AnyIndex, build_index, open_index
    from drkit.search.dual import AnyEncoder, DualEncoder
    from drkit.search.encode import TextEncoder
    from drkit.search.encoding import encode_corpus
    from drkit.search.hits import Hits
    from drkit.search.hnsw import Hnsw, HnswIndex
    from drkit.search.index import FlatIndex
    from drkit.search.ivf_pq import IvfPq, IvfPqIndex
    from drkit.search.reranking import Reranker, rerank
    from drkit.search.retrieve import Retriever
    from drkit.search.trec import read_qrels, read_run, write_qrels, write_run
    from drkit.search.vectors import Storage, Vectors

__all__ = [
    "AnyEncoder",
    "AnyIndex",
    "Bm25Retriever",
    "CrossEncoderScorer",
    "DualEncoder",
    "Encoder",
    "FlatIndex",
    "Hits",
    "Hnsw",
    "HnswIndex",
    "IvfPq",
    "IvfPqIndex",
    "Reranker",
    "Retriever",
    "SentenceTransformerEncoder",
    "Storage",
    "TextEncoder",
    "Vectors",
    "build_index",
    "encode_corpus",
    "open_index",
    "read_qrels",
    "read_run",
    "rerank",
    "write_qrels",
    "write_run",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "AnyEncoder": "dual",
        "AnyIndex": "building",
        "Bm25Retriever": "bm25",
        "CrossEncoderScorer": "adapters",
        "DualEncoder": "dual",
        "Encoder": "adapters",
        "FlatIndex": "index",
        "Hits": "hits",
        "Hnsw": "hnsw",
        "HnswIndex": "hnsw",
        "IvfPq": "ivf_pq",
        "IvfPqIndex": "ivf_pq",
        "Reranker": "reranking",
        "Retriever": "retrieve",
        "SentenceTransformerEncoder": "adapters",
        "Storage": "vectors",
        "TextEncoder": "encode",
        "Vectors": "vectors",
        "build_index": "building",
        "encode_corpus": "encoding",
        "open_index": "building",
        "read_qrels": "trec",
        "read_run": "trec",
        "rerank": "reranking",
        "write_qrels": "trec",
        "write_run": "trec",
    },
)
