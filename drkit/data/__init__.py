"""Where texts come from, and how they are kept: collections, tables, token stores, corpus statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.data.beir import BeirCollection
    from drkit.data.config import (
        BeirConfig,
        HfConfig,
        IrdsConfig,
        JsonlConfig,
        PairsConfig,
        PydocsConfig,
        TevatronConfig,
        TrecConfig,
    )
    from drkit.data.contexts import MixedContexts, QueryContexts, SpanContexts, open_contexts
    from drkit.data.embeddings import log_frequencies, ppmi_svd
    from drkit.data.extractive import extractive_queries
    from drkit.data.generation import QueryModel, Sampling, generate_queries
    from drkit.data.hf import HfCollection
    from drkit.data.irds import IrdsCollection
    from drkit.data.jsonl import JsonlCollection
    from drkit.data.ngrams import NgramCounts
    from drkit.data.pairs import PairsCollection
    from drkit.data.pydocs import PydocsCollection
    from drkit.data.queries import Queries
    from drkit.data.query_files import generate_file, read_queries
    from drkit.data.sentences import train_punkt
    from drkit.data.spans import Spans, split_documents
    from drkit.data.store import TokenStore, tokenise
    from drkit.data.tables import StoredCollection, open_collection
    from drkit.data.tevatron import TevatronCollection
    from drkit.data.trec import TrecCollection
    from drkit.data.vocabulary import train_wordpiece
    from drkit.data.writing import write_collection

__getattr__, __dir__ = attach(
    __name__,
    {
        "BeirCollection": "beir",
        "BeirConfig": "config",
        "HfCollection": "hf",
        "HfConfig": "config",
        "IrdsCollection": "irds",
        "IrdsConfig": "config",
        "JsonlCollection": "jsonl",
        "JsonlConfig": "config",
        "MixedContexts": "contexts",
        "NgramCounts": "ngrams",
        "PairsCollection": "pairs",
        "PairsConfig": "config",
        "PydocsCollection": "pydocs",
        "PydocsConfig": "config",
        "Queries": "queries",
        "QueryContexts": "contexts",
        "QueryModel": "generation",
        "Sampling": "generation",
        "SpanContexts": "contexts",
        "Spans": "spans",
        "StoredCollection": "tables",
        "TevatronCollection": "tevatron",
        "TevatronConfig": "config",
        "TokenStore": "store",
        "TrecCollection": "trec",
        "TrecConfig": "config",
        "extractive_queries": "extractive",
        "generate_file": "query_files",
        "generate_queries": "generation",
        "log_frequencies": "embeddings",
        "open_collection": "tables",
        "open_contexts": "contexts",
        "ppmi_svd": "embeddings",
        "read_queries": "query_files",
        "split_documents": "spans",
        "tokenise": "store",
        "train_punkt": "sentences",
        "train_wordpiece": "vocabulary",
        "write_collection": "writing",
    },
)

__all__ = [
    "BeirCollection",
    "BeirConfig",
    "HfCollection",
    "HfConfig",
    "IrdsCollection",
    "IrdsConfig",
    "JsonlCollection",
    "JsonlConfig",
    "MixedContexts",
    "NgramCounts",
    "PairsCollection",
    "PairsConfig",
    "PydocsCollection",
    "PydocsConfig",
    "Queries",
    "QueryContexts",
    "QueryModel",
    "Sampling",
    "SpanContexts",
    "Spans",
    "StoredCollection",
    "TevatronCollection",
    "TevatronConfig",
    "TokenStore",
    "TrecCollection",
    "TrecConfig",
    "extractive_queries",
    "generate_file",
    "generate_queries",
    "log_frequencies",
    "open_collection",
    "open_contexts",
    "ppmi_svd",
    "read_queries",
    "split_documents",
    "tokenise",
    "train_punkt",
    "train_wordpiece",
    "write_collection",
]
