"""Systems that every run may have: their ids in folders, run files and options, and their names in tables and texts."""

from drkit.recipe.schema import LABELS_ONLY

BM25_NAME, AS_IT_IS, INITIAL, HYBRID_NAME = "bm25", "as-it-is", "initial", "hybrid"
# The encoder from which a run starts, in either reading.
STARTS = (INITIAL, AS_IT_IS)
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
    return _NAMES.get(system, system)


def system_in_words(system: str) -> str:
    """Return the name of a system in a sentence.

    >>> system_in_words("initial"), system_in_words("bm25")
    ('the encoder as it starts', 'BM25')
    """
    return f"the encoder {system_name(system)}" if system in _ENCODERS else system_name(system)
