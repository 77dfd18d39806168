"""Where texts come from and how they are stored: collections, token stores, corpus statistics, queries and spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.data.contexts import MixedContext as MixedContext
    from drkit.data.contexts import NextSpanContext as NextSpanContext
    from drkit.data.contexts import PretrainingTexts as PretrainingTexts
    from drkit.data.contexts import QueryContext as QueryContext
    from drkit.data.contexts import SelfContext as SelfContext
    from drkit.data.contexts import SpanContext as SpanContext
    from drkit.data.corpus import StoredCollection as StoredCollection
    from drkit.data.corpus import open_collection as open_collection
    from drkit.data.counts import NgramCounts as NgramCounts
    from drkit.data.documents import DocumentsCollection as DocumentsCollection
    from drkit.data.dpr import DprCollection as DprCollection
    from drkit.data.formats import BeirCollection as BeirCollection
    from drkit.data.formats import JsonlCollection as JsonlCollection
    from drkit.data.formats import TrecCollection as TrecCollection
    from drkit.data.generation import QueryModel as QueryModel
    from drkit.data.generation import Sampling as Sampling
    from drkit.data.generation import generate_file as generate_file
    from drkit.data.generation import generate_queries as generate_queries
    from drkit.data.hf import HfCollection as HfCollection
    from drkit.data.irds import IrdsCollection as IrdsCollection
    from drkit.data.pairs import PairsCollection as PairsCollection
    from drkit.data.queries import Queries as Queries
    from drkit.data.queries import extractive_queries as extractive_queries
    from drkit.data.queries import read_queries as read_queries
    from drkit.data.spans import Spans as Spans
    from drkit.data.spans import split_documents as split_documents
    from drkit.data.spans import train_punkt as train_punkt
    from drkit.data.specs import BeirConfig as BeirConfig
    from drkit.data.specs import DocumentsConfig as DocumentsConfig
    from drkit.data.specs import DprConfig as DprConfig
    from drkit.data.specs import HfConfig as HfConfig
    from drkit.data.specs import IrdsConfig as IrdsConfig
    from drkit.data.specs import JsonlConfig as JsonlConfig
    from drkit.data.specs import PairsConfig as PairsConfig
    from drkit.data.specs import TevatronConfig as TevatronConfig
    from drkit.data.specs import TrecConfig as TrecConfig
    from drkit.data.store import TokenStore as TokenStore
    from drkit.data.store import tokenise as tokenise
    from drkit.data.tevatron import TevatronCollection as TevatronCollection
    from drkit.data.vocabulary import train_wordpiece as train_wordpiece
    from drkit.data.word_embeddings import log_frequencies as log_frequencies
    from drkit.data.word_embeddings import ppmi_svd as ppmi_svd
    from drkit.data.writing import write_collection as write_collection

lazy_exports(__name__)
