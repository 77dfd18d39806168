"""Settings of all maskers, and specs of those that drkit itself provides; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import Attribute, field, frozen
from attrs.validators import and_, ge, gt, in_, le, lt, optional

from drkit.core.citations import BERT
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


@frozen
class GeneratorConfig:
    """Settings of `GeneratorMasker` (SimLM sections 3.1 and C)."""

    encoder_ratio: float = setting(0.3, and_(gt(0), lt(1)), "share of tokens replaced for the encoder")
    decoder_ratio: float = setting(
        0.5, and_(gt(0), lt(1)), "share of tokens replaced for the decoder, the encoder's too"
    )
    variant: str = setting(
        "frozen",
        in_(("frozen", "joint", "joint-random")),
        "frozen; trained jointly with the encoder; or jointly from random weights",
    )
    generator_weight: float = setting(0.2, at_least(0), "weight of the generator's own loss, if it is trained")
    model: str = setting("", None, "path or hub id of a masked LM with the same vocabulary; empty: the run trains one")
    generator_layers: int = setting(1, at_least(1, 512), "transformer layers of the generator that the run trains")
    generator_hidden: int = setting(128, at_least(8, 16_384), "its hidden size")
    generator_heads: int = setting(4, at_least(1, 512), "its attention heads")
    generator_intermediate: int = setting(256, at_least(8, 65_536), "its feed-forward size")
    generator_steps: int = setting(
        0, at_least(0), "optimizer steps the run trains it for; 0: a third of the steps of pre-training"
    )

    def __attrs_post_init__(self) -> None:
        if self.generator_hidden % self.generator_heads:
            raise ValueError(
                f"'generator_hidden' ({self.generator_hidden}) must be a multiple of 'generator_heads' "
                f"({self.generator_heads})"
            )

    @property
    def requires(self) -> Mapping[str, GeneratorConfig]:
        """A masked LM, which a stage of the run loads or trains with these settings."""
        return {"generator": self}

    @property
    def random(self) -> bool:
        """Whether the generator starts from random weights."""
        return self.variant == "joint-random"

    @property
    def trained_first(self) -> bool:
        """Whether the run trains the generator on its own, before pre-training."""
        return not self.model and not self.random


def query_source(_instance: Any, attribute: Attribute[Any], value: str) -> None:
    """Validator: `extractive`, `file:PATH` or `model:PATH_OR_ID`."""
    kind, colon, rest = value.partition(":")
    if value != "extractive" and not (kind in ("file", "model") and colon and rest.strip()):
        raise ValueError(f"'{attribute.name}' must be extractive, file:PATH or model:PATH_OR_ID, got {value!r}")


@frozen
class QuerySettings:
    """Settings of the candidate queries that a part requires for every text (`generated-queries`).

    origin: `extractive`, `file:PATH` or `model:PATH_OR_ID`; count: maximum number of queries per text; prefix: put
    before each text for the model.
    """

    origin: str = field(default="extractive", validator=query_source)
    count: int = 5
    prefix: str = ""


@frozen
class QueryAsContextConfig:
    """Settings of `QueryAsContextMasker` (Query-as-context, sections 3.1 and 5)."""

    context: str = setting("query", in_(("self", "span", "query", "mixed")), "the text that the decoder rebuilds")
    base: str = setting("uniform", in_(("uniform", "pmi", "generator")), "the masker of passage and context")
    variant: str = setting("frozen", in_(("frozen", "joint", "joint-random")), "for base = generator: how it learns")
    model: str = setting("", None, "for base = generator: path or hub id; empty: the run trains one")
    candidates: int = setting(5, at_least(1), "maximum number of queries per passage; each epoch draws one")
    queries: str = setting("extractive", query_source, "extractive, file:PATH, or model:PATH_OR_ID of a seq2seq model")
    query_prefix: str = setting("", None, "put before each passage for the model, as in 'text2query: '")
    encoder_ratio: float = setting(0.3, and_(gt(0), lt(1)), "share of tokens hidden from the encoder")
    decoder_ratio: float = setting(0.5, and_(gt(0), lt(1)), "share of the context's tokens hidden from the decoder")
    mask_token_share: Shares | None = setting(
        None, optional(shares), "shares of the hidden tokens: made [MASK], made random, kept; none: as the base does"
    )

    @property
    def reads_queries(self) -> bool:
        """Whether any context is a query."""
        return self.context in ("query", "mixed")

    @property
    def signals(self) -> Mapping[str, Mapping[str, Any]]:
        """The signal `importance`, if it decides what is hidden or picks extractive queries."""
        return {"importance": {}} if self.base == "pmi" or self.reads_queries else {}

    @property
    def requires(self) -> Mapping[str, Any]:
        """What the run must provide for these settings."""
        required: dict[str, Any] = {"spans": None} if self.context in ("span", "mixed") else {}
        if self.reads_queries:
            required["generated-queries"] = QuerySettings(self.queries, self.candidates, self.query_prefix)
        if self.base == "generator":
            required["generator"] = self.generator
        return required

    @property
    def generator(self) -> GeneratorConfig:
        """Settings of the base masker `generator`."""
        given: dict[str, Any] = {"encoder_ratio": self.encoder_ratio, "decoder_ratio": self.decoder_ratio}
        return GeneratorConfig(**given, variant=self.variant, model=self.model)

    @property
    def provides(self) -> tuple[str, ...]:
        """What the masker provides with these settings, besides `view` and `rows`."""
        replaced = ("replaced",) if self.base == "generator" else ()
        return (*replaced, *(() if self.context == "self" else ("context",)))


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
)
