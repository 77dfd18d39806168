"""Settings of all signals, and specs of those that drkit itself provides; imports no torch."""

from __future__ import annotations

from attrs import frozen
from attrs.validators import and_, ge, in_, le

from drkit.core.citations import CDMAE, SPARCK_JONES
from drkit.core.settings import at_least, setting
from drkit.core.spec import ComponentSpec, Kind, NoSettings


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


SIGNALS = (
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
