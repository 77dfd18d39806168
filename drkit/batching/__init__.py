"""Batches: parts that decide which training queries make up each batch of an epoch of fine-tuning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.batching.specs import ClustersConfig as ClustersConfig
    from drkit.batching.specs import DocumentBatchesConfig as DocumentBatchesConfig
    from drkit.batching.specs import OneDataSetConfig as OneDataSetConfig

lazy_exports(__name__)
