"""Settings of the maskers; no torch here."""

from __future__ import annotations

from typing import Any

from attrs import Attribute, fields, frozen
from attrs.validators import and_, ge, gt, in_, le, lt

from drkit.core.settings import optional, setting, shares

Shares = tuple[float, float, float]


@frozen
class UniformConfig:
    """Settings of `UniformMasker`."""

    encoder_ratio: float = setting(0.3, and_(ge(0), lt(1)), "share of tokens hidden from the encoder; 0: none")
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
        "the generator stays as it is, is trained beside the encoder, or that from random weights",
    )
    generator_weight: float = setting(0.2, ge(0), "weight of the generator's own loss, where it is trained")
    model: str = setting("", None, "path or hub id of a masked LM of the same vocabulary; empty: the run trains one")
    generator_layers: int = setting(1, ge(1), "transformer layers of the generator that the run makes")
    generator_hidden: int = setting(128, ge(8), "its hidden size")
    generator_heads: int = setting(4, ge(1), "its attention heads")
    generator_intermediate: int = setting(256, ge(8), "its feed-forward size")
    generator_steps: int = setting(
        0, ge(0), "optimizer steps that the run trains it for; 0: a third of the steps of pre-training"
    )

    def __attrs_post_init__(self) -> None:
        if self.generator_hidden % self.generator_heads:
            raise ValueError(
                f"'generator_hidden' ({self.generator_hidden}) is no multiple of 'generator_heads' "
                f"({self.generator_heads})"
            )

    @property
    def needs(self) -> tuple[str, ...]:
        """A masked LM, which a stage of the run loads or makes."""
        return ("generator",)

    @property
    def random(self) -> bool:
        """Whether it starts from random weights."""
        return self.variant == "joint-random"

    @property
    def trained_first(self) -> bool:
        """Whether the run trains it alone, before pre-training."""
        return not self.model and not self.random

    @classmethod
    def of(cls, config: Any) -> GeneratorConfig:
        """The generator's settings of any masker that needs one: those it has by the same names, else the defaults."""
        return cls(**{a.name: getattr(config, a.name) for a in fields(cls) if hasattr(config, a.name)})


def query_source(_instance: Any, attribute: Attribute[Any], value: str) -> None:
    """Validator: `extractive`, `file:PATH` or `model:PATH_OR_ID`."""
    kind, colon, rest = value.partition(":")
    if value != "extractive" and not (kind in ("file", "model") and colon and rest.strip()):
        raise ValueError(f"'{attribute.name}' takes extractive, file:PATH or model:PATH_OR_ID, got {value!r}")


@frozen
class QueryAsContextConfig:
    """Settings of `QueryAsContextMasker` (Query-as-context, sections 3.1 and 5)."""

    context: str = setting("query", in_(("self", "span", "query", "mixed")), "the text that the decoder rebuilds")
    base: str = setting("uniform", in_(("uniform", "pmi", "generator")), "what hides tokens of passage and context")
    variant: str = setting("frozen", in_(("frozen", "joint", "joint-random")), "of the base generator: how it learns")
    model: str = setting("", None, "of the base generator: path or hub id; empty: the run trains one")
    candidates: int = setting(5, ge(1), "queries a passage at most, one of which is drawn every epoch")
    queries: str = setting("extractive", query_source, "extractive, file:PATH, or model:PATH_OR_ID of a seq2seq model")
    query_prefix: str = setting("", None, "what is put before a passage for the model, as in 'text2query: '")
    encoder_ratio: float = setting(0.3, and_(gt(0), lt(1)), "share of tokens hidden from the encoder")
    decoder_ratio: float = setting(0.5, and_(gt(0), lt(1)), "share of the context's tokens hidden from the decoder")
    mask_token_share: Shares | None = setting(
        None, optional(shares), "of the hidden tokens: share made [MASK], made random, kept; none: as the base does"
    )

    @property
    def needs(self) -> tuple[str, ...]:
        """What these settings need from the data; extractive queries stand in wherever no other is given."""
        wanted = {
            "spans": self.context in ("span", "mixed"),
            "generated-queries": self.context in ("query", "mixed"),
            "importance": self.base == "pmi" or self.context in ("query", "mixed"),
            "generator": self.base == "generator",
        }
        return tuple(name for name, needed in wanted.items() if needed)

    @property
    def provides(self) -> tuple[str, ...]:
        """What these settings provide, beside `view` and `rows`."""
        replaced = ("replaced",) if self.base == "generator" else ()
        return (*replaced, *(() if self.context == "self" else ("context",)))
