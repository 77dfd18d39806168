"""Search: encoding, indexes, retrievers, re-rankers, and the run files they write."""

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.data.qrels import read_qrels as read_qrels
    from drkit.data.qrels import write_qrels as write_qrels
    from drkit.search.averaging import average_encoders as average_encoders
    from drkit.search.backends import Backend as Backend
    from drkit.search.bm25 import Bm25Retriever as Bm25Retriever
    from drkit.search.dual_encoder import AnyEncoder as AnyEncoder
    from drkit.search.dual_encoder import DualEncoder as DualEncoder
    from drkit.search.encode import encode_corpus as encode_corpus
    from drkit.search.flat import FlatIndex as FlatIndex
    from drkit.search.fusion import align as align
    from drkit.search.fusion import convex as convex
    from drkit.search.fusion import reciprocal_ranks as reciprocal_ranks
    from drkit.search.index import AnyIndex as AnyIndex
    from drkit.search.index import FaissIndex as FaissIndex
    from drkit.search.index import FaissSettings as FaissSettings
    from drkit.search.index import build_index as build_index
    from drkit.search.index import open_index as open_index
    from drkit.search.rankings import Hits as Hits
    from drkit.search.reranking import CrossEncoderScorer as CrossEncoderScorer
    from drkit.search.reranking import Reranker as Reranker
    from drkit.search.reranking import rerank as rerank
    from drkit.search.retriever import HybridRetriever as HybridRetriever
    from drkit.search.retriever import Retriever as Retriever
    from drkit.search.run_files import read_run as read_run
    from drkit.search.run_files import write_run as write_run
    from drkit.search.sentence_encoder import SentenceTransformerEncoder as SentenceTransformerEncoder
    from drkit.search.text_encoder import Encoder as Encoder
    from drkit.search.text_encoder import TextEncoder as TextEncoder
    from drkit.search.vectors import Storage as Storage
    from drkit.search.vectors import Vectors as Vectors

lazy_exports(__name__)
