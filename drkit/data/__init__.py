"""Where texts come from, and how they are kept: collections, tables, token stores, corpus statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.data.beir import BeirCollection
    from drkit.data.config import BeirConfig, IrdsConfig, JsonlConfig, PydocsConfig
    from drkit.data.embeddings import log_frequencies, ppmi_svd
    from drkit.data.importance import Importance
    from drkit.data.irds import IrdsCollection
    from drkit.data.jsonl import JsonlCollection
    from drkit.data.ngrams import NgramCounts
    from drkit.data.pydocs import PydocsCollection
    from drkit.data.store import TokenStore, tokenise
    from drkit.data.tables import StoredCollection, open_collection, write_collection
    from drkit.data.vocabulary import train_wordpiece

__getattr__, __dir__ = attach(
    __name__,
    {
        "BeirCollection": "beir",
        "BeirConfig": "config",
        "Importance": "importance",
        "IrdsCollection": "irds",
        "IrdsConfig": "config",
        "JsonlCollection": "jsonl",
        "JsonlConfig": "config",
        "NgramCounts": "ngrams",
        "PydocsCollection": "pydocs",
        "PydocsConfig": "config",
        "StoredCollection": "tables",
        "TokenStore": "store",
        "log_frequencies": "embeddings",
        "open_collection": "tables",
        "ppmi_svd": "embeddings",
        "tokenise": "store",
        "train_wordpiece": "vocabulary",
        "write_collection": "tables",
    },
)

__all__ = [
    "BeirCollection",
    "BeirConfig",
    "Importance",
    "IrdsCollection",
    "IrdsConfig",
    "JsonlCollection",
    "JsonlConfig",
    "NgramCounts",
    "PydocsCollection",
    "PydocsConfig",
    "StoredCollection",
    "TokenStore",
    "log_frequencies",
    "open_collection",
    "ppmi_svd",
    "tokenise",
    "train_wordpiece",
    "write_collection",
]
