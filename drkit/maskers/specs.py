"""The maskers: their settings and specs; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen
from attrs.validators import and_, ge, gt, in_, le, lt

from drkit.core.citations import BERT, CDMAE
from drkit.core.settings import at_least, setting, shares
from drkit.core.spec import ComponentSpec, Kind

Shares = tuple[float, float, float]


@frozen
class UniformConfig:
    """Settings of `UniformMasker`."""

    encoder_ratio: float = setting(0.3, and_(ge(0), lt(1)), "share of tokens hidden from the encoder; 0: none")
    decoder_ratio: float = setting(0.5, and_(gt(0), lt(1)), "share of tokens hidden from the decoder")
    nested: bool = setting(False, None, "hide from the decoder everything that is hidden from the encoder")
    mask_token_share: Shares = setting(
        (0.8, 0.1, 0.1), shares, "shares of the hidden tokens: replaced by [MASK], replaced by a random token, kept"
    )


@frozen
class PmiConfig:
    """Settings of `PmiMasker` (CDMAE section 3.2)."""

    encoder_ratio: float = setting(0.3, and_(gt(0), lt(1)), "share of tokens hidden from the encoder")
    decoder_ratio: float = setting(0.5, and_(gt(0), lt(1)), "share of tokens hidden from the decoder")
    sigma: float = setting(1.0, at_least(0), "standard deviation of the noise added to the importance")
    unit: str = setting("token", in_(("token", "word")), "unit of hiding: token or word")
    window: int = setting(4, and_(ge(2), le(8)), "longest n-gram that is counted")
    pmi: str = setting(
        "fragment",
        in_(("fragment", "specific")),
        "PMI of a token with the rest of an n-gram, or of all its tokens",
    )
    min_count: int = setting(1, at_least(1), "rarer n-grams contribute nothing")
    mask_token_share: Shares = setting(
        (0.8, 0.1, 0.1), shares, "shares of the hidden tokens: replaced by [MASK], replaced by a random token, kept"
    )

    @property
    def signals(self) -> Mapping[str, Mapping[str, Any]]:
        """The signal `importance`, with the settings of its n-grams."""
        return {"importance": {"window": self.window, "pmi": self.pmi, "min_count": self.min_count}}


MASKERS = (
    ComponentSpec(
        kind=Kind.MASKER,
        name="uniform",
        target="drkit.maskers.uniform:UniformMasker",
        config=UniformConfig,
        summary="Whole words at random, independent or nested views",
        cite=BERT,
        provides=("view", "rows"),
    ),
    ComponentSpec(
        kind=Kind.MASKER,
        name="pmi",
        target="drkit.maskers.pmi:PmiMasker",
        config=PmiConfig,
        summary="Hides the most informative tokens from the decoder",
        cite=CDMAE,
        signals=("importance",),
        provides=("view", "rows"),
    ),
)
