"""Systems that every run may have: their ids in folders, run files and options, and their names in tables and texts."""

from drkit.recipe.schema import LABELS_ONLY

BM25_NAME, AS_IT_IS, INITIAL, HYBRID_NAME = "bm25", "as-it-is", "initial", "hybrid"
# The folder of the rankings that are fused with BM25, one for each retriever.
HYBRIDS = "hybrids"
# The encoder from which a run starts, in either reading.
STARTS = (INITIAL, AS_IT_IS)
# Of a system that is fused with BM25: tuned+bm25.
_FUSED = f"+{BM25_NAME}"
_NAMES = {
    BM25_NAME: "BM25",
    AS_IT_IS: "as it is",
    INITIAL: "as it starts",
    LABELS_ONLY: "labels only",
}
# Whose names need a noun in a sentence.
_ENCODERS = (AS_IT_IS, INITIAL)


def system_name(system: str) -> str:
    """Return the name of a system in tables and charts: its id, unless every run may have it.

    >>> system_name("labels-only"), system_name("retriever-1")
    ('labels only', 'retriever-1')
    """
    alone = system.removesuffix(_FUSED)
    return f"{system_name(alone)} + {_NAMES[BM25_NAME]}" if alone != system else _NAMES.get(system, system)


def system_in_words(system: str) -> str:
    """Return the name of a system in a sentence.

    >>> system_in_words("initial"), system_in_words("bm25")
    ('the encoder as it starts', 'BM25')
    """
    return f"the encoder {system_name(system)}" if without_bm25(system) in _ENCODERS else system_name(system)


def fused_with_bm25(system: str) -> str:
    """Return the name of a system's fusion with BM25.

    >>> fused_with_bm25("tuned"), system_name("tuned+bm25"), without_bm25("tuned+bm25")
    ('tuned+bm25', 'tuned + BM25', 'tuned')
    """
    return f"{system}{_FUSED}"


def without_bm25(system: str) -> str:
    """Return the retriever of a system, whether it is fused with BM25 or not."""
    return system.removesuffix(_FUSED)
