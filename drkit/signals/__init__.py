"""Signals: a number or vector for every token, text or vocabulary entry, computed once from the corpus.

Any masker, decoder or loss can read a signal by name; docs/guide/plugins.md shows how to add your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.signals.idf import IdfSignal as IdfSignal
    from drkit.signals.pmi import ImportanceSignal as ImportanceSignal
    from drkit.signals.pmi import corpus_importance as corpus_importance
    from drkit.signals.specs import ImportanceConfig as ImportanceConfig

lazy_exports(__name__)
