"""Settings of the maskers; no torch here."""

from __future__ import annotations

from attrs import frozen
from attrs.validators import and_, ge, gt, in_, le, lt

from drkit.core.settings import setting, shares

Shares = tuple[float, float, float]


@frozen
class UniformConfig:
    """Settings of `UniformMasker`."""

    encoder_ratio: float = setting(0.3, and_(gt(0), lt(1)), "share of tokens hidden from the encoder")
    decoder_ratio: float = setting(0.5, and_(gt(0), lt(1)), "share of tokens hidden from the decoder")
    nested: bool = setting(False, None, "hide from the decoder all that is hidden from the encoder")
    mask_token_share: Shares = setting(
        (0.8, 0.1, 0.1), shares, "of the hidden tokens: share made [MASK], made random, kept"
    )


@frozen
class PmiConfig:
    """Settings of `PmiMasker` (CDMAE section 3.2)."""

    encoder_ratio: float = setting(0.3, and_(gt(0), lt(1)), "share of tokens hidden from the encoder")
    decoder_ratio: float = setting(0.5, and_(gt(0), lt(1)), "share of tokens hidden from the decoder")
    sigma: float = setting(1.0, ge(0), "standard deviation of the noise added to the importance")
    unit: str = setting("token", in_(("token", "word")), "what is hidden as a whole: token or word")
    window: int = setting(4, and_(ge(2), le(8)), "longest n-gram that is counted")
    pmi: str = setting("fragment", in_(("fragment", "specific")), "how an n-gram's PMI is taken apart")
    min_count: int = setting(1, ge(1), "rarer n-grams contribute nothing")
    mask_token_share: Shares = setting(
        (0.8, 0.1, 0.1), shares, "of the hidden tokens: share made [MASK], made random, kept"
    )
