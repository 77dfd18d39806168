"""Settings of all signals, and specs of those that drkit itself provides; imports no torch."""

from __future__ import annotations

from attrs import frozen
from attrs.validators import and_, ge, in_, le

from drkit.core.citations import CDMAE, SPARCK_JONES
from drkit.core.settings import at_least, setting
from drkit.core.spec import VECTOR_VALUES, ComponentSpec, Kind, NoSettings
from drkit.data.column_sources import ROW_KEYS


@frozen
class ImportanceConfig:
    """Settings of `ImportanceSignal`: a token's mean PMI with the n-grams around it (CDMAE section 3.2)."""

    window: int = setting(4, and_(ge(2), le(8)), "longest n-gram that is counted")
    pmi: str = setting(
        "fragment",
        in_(("fragment", "specific")),
        "PMI of a token with the rest of an n-gram, or of all its tokens",
    )
    min_count: int = setting(1, at_least(1), "rarer n-grams contribute nothing")
    ends: str = setting(
        "fitting",
        in_(("fitting", "window")),
        "near the ends of a text, divide a side by the n-grams that fit in it, or by those of the window",
    )


@frozen
class TextVectorsConfig:
    """Settings of `TextVectors`: a teacher's vectors of the texts of pre-training, from a file or by an encoder."""

    path: str = setting("", None, "a folder of drkit encode, or a .parquet, .arrow, .feather or .npy file")
    by: str = setting("", in_(ROW_KEYS), "what a row names its text by: id or text; empty: its id, if it has one")
    encoder: str = setting("", None, "path or hub id of an encoder that makes them, instead of a file")


SIGNALS = (
    ComponentSpec(
        kind=Kind.SIGNAL,
        name="text-vectors",
        target="drkit.train.vector_columns:TextVectors",
        config=TextVectorsConfig,
        summary="A teacher's vector of every text",
        requires=("characters",),
        provides=(VECTOR_VALUES,),
        scope="text",
        files=("path", "encoder"),
    ),
    ComponentSpec(
        kind=Kind.SIGNAL,
        name="importance",
        target="drkit.signals.pmi:ImportanceSignal",
        config=ImportanceConfig,
        summary="PMI of every token with the n-grams around it",
        cite=CDMAE,
        scope="token",
    ),
    ComponentSpec(
        kind=Kind.SIGNAL,
        name="idf",
        target="drkit.signals.idf:IdfSignal",
        config=NoSettings,
        summary="Inverse document frequency of every vocabulary entry",
        cite=SPARCK_JONES,
        scope="vocabulary",
    ),
)
