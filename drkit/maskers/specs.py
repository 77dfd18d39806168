"""The maskers: their settings and specs; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen
from attrs.validators import and_, ge, gt, in_, le

from drkit.core.citations import BERT, CDMAE, LLADA
from drkit.core.settings import at_least, setting, shares
from drkit.core.spec import ComponentSpec, Kind

Shares = tuple[float, float, float]
BERT_SHARES = (0.8, 0.1, 0.1)
SHARES_MEANING = "shares of the hidden tokens: replaced by [MASK], replaced by a random token, kept"
UNITS = ("token", "word")


def ratio_setting(default: float = 0.3) -> Any:
    """Return the setting `ratio`, which all maskers share: the share of tokens that is hidden."""
    return setting(default, and_(ge(0), le(1)), "share of the tokens that is hidden; 0: none", schedulable=True)


def unit_setting(default: str = "word") -> Any:
    """Return the setting `unit`, which all maskers share: whether tokens or whole words are hidden."""
    return setting(default, in_(UNITS), "unit of hiding: token or word")


@frozen
class UniformConfig:
    """Settings of `UniformMasker`: whole words, or tokens, are hidden in random order."""

    ratio: float = ratio_setting()
    unit: str = unit_setting()
    mask_token_share: Shares = setting(BERT_SHARES, shares, SHARES_MEANING)
    row_share: str = setting(
        "fixed",
        in_(("fixed", "random")),
        "share that each row of `enhanced` does not see: fixed (words up to `ratio`), or random (each by a coin)",
    )


@frozen
class PmiConfig:
    """Settings of `PmiMasker`: tokens with the largest noisy PMI importance are hidden (CDMAE section 3.2)."""

    ratio: float = ratio_setting()
    unit: str = unit_setting("token")
    sigma: float = setting(
        1.0, at_least(0), "standard deviation of the noise added to the importance", schedulable=True
    )
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
    mask_token_share: Shares = setting(BERT_SHARES, shares, SHARES_MEANING)

    @property
    def signals(self) -> Mapping[str, Mapping[str, Any]]:
        """The signal `importance`, with the settings of its n-grams."""
        settings = {"window": self.window, "pmi": self.pmi, "min_count": self.min_count, "ends": self.ends}
        return {"importance": settings}


@frozen
class DiffusionConfig:
    """Settings of `DiffusionMasker`: another share of every text is hidden (LLaDA, MDLM)."""

    least: float = setting(0.001, and_(gt(0), le(1)), "smallest share of a text that is hidden")
    most: float = setting(1.0, and_(gt(0), le(1)), "largest share of a text that is hidden")
    hides: str = setting(
        "coins", in_(("coins", "count")), "coins: each token with that probability; count: exactly that share"
    )

    def __attrs_post_init__(self) -> None:
        if self.most < self.least:
            raise ValueError(f"'most' must be at least 'least', got {self.most} and {self.least}")


MASKERS = (
    ComponentSpec(
        kind=Kind.MASKER,
        name="uniform",
        target="drkit.maskers.uniform:UniformMasker",
        config=UniformConfig,
        summary="Whole words, or tokens, at random",
        cite=BERT,
        provides=("view", "rows"),
    ),
    ComponentSpec(
        kind=Kind.MASKER,
        name="pmi",
        target="drkit.maskers.pmi:PmiMasker",
        config=PmiConfig,
        summary="The most informative tokens, after some noise",
        cite=CDMAE,
        signals=("importance",),
        provides=("view", "rows"),
    ),
    ComponentSpec(
        kind=Kind.MASKER,
        name="diffusion",
        target="drkit.maskers.diffusion:DiffusionMasker",
        config=DiffusionConfig,
        summary="Tokens at random, another share of every text",
        cite=LLADA,
        provides=("view", "rows", "ratios"),
    ),
)
