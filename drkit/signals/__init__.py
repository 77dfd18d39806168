"""Signals: a number (or a vector) for every token, text or vocabulary entry, made once from the corpus.

Any masker, decoder or loss can read one by its name; see docs/plugins.md for one of your own.
"""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.signals.idf import IdfSignal
    from drkit.signals.importance import ImportanceSignal
    from drkit.signals.specs import IdfConfig, ImportanceConfig

__all__ = ["IdfConfig", "IdfSignal", "ImportanceConfig", "ImportanceSignal"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "IdfConfig": "specs",
        "IdfSignal": "idf",
        "ImportanceConfig": "specs",
        "ImportanceSignal": "importance",
    },
)
