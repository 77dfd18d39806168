"""The table `[encoder]` of a recipe: an existing encoder or the sizes of a new one, and how it reads texts."""

from __future__ import annotations

from typing import Annotated, Any

from attrs import field, frozen
from attrs.validators import and_, ge, in_, lt, min_len, optional

from drkit.core.settings import at_least, setting
from drkit.core.spec import Choice, Kind, NoSettings, brief
from drkit.core.types import EncoderSizes
from drkit.data.special_tokens import AUTO
from drkit.data.titles import JOINED, TITLES
from drkit.encoders.architectures import ATTENTIONS, DECLARED
from drkit.encoders.folder import PRECISIONS

PoolingChoice = Annotated[Choice, Kind.POOLING]
MEAN = Choice("mean", NoSettings())

# Settings of an encoder made from scratch, which do not apply to an existing one.
FROM_SCRATCH = (
    "architecture",
    "architecture_settings",
    "layers",
    "hidden",
    "heads",
    "intermediate",
    "vocab_size",
    "dropout",
    "init_embeddings",
    "lm_head",
)


@frozen
class EncoderSettings(EncoderSizes):
    """The encoder: an existing one (`pretrained`), or the sizes of one made from scratch.

    A class of its own, because users write it: the table `[encoder]` of a recipe.
    """

    pretrained: str | None = setting(None, optional(min_len(1)), "path or hub id of an encoder to start from")
    architecture: str | None = setting(
        None, optional(min_len(1)), "model type, when made from scratch, of `drkit list architecture`; none: bert"
    )
    architecture_settings: dict[str, Any] | None = setting(
        None, None, "further keys of the model's configuration, when made from scratch"
    )
    layers: int = setting(1, at_least(0, 512), "transformer layers, when made from scratch; 0: only word embeddings")
    hidden: int = setting(128, at_least(8, 16_384), "hidden size, when made from scratch")
    heads: int = setting(2, at_least(1, 512), "attention heads, when made from scratch")
    intermediate: int = setting(256, at_least(8, 65_536), "feed-forward size, when made from scratch")
    vocab_size: int = setting(
        8000, at_least(64, 1_000_000), "size of the WordPiece vocabulary trained on the collection"
    )
    dropout: float = setting(0.0, and_(ge(0), lt(1)), "dropout, when made from scratch")
    init_embeddings: str = setting(
        "random", in_(("random", "ppmi-svd")), "word embeddings to start from, when made from scratch"
    )
    lm_head: str = setting(
        "tied",
        in_(("transform", "tied")),
        "LM head, when made from scratch: BERT's transform and tied projection, or only the projection",
    )
    pooling: PoolingChoice = field(
        default=MEAN, metadata={"help": "how hidden states become the bottleneck", "written": brief}
    )
    query_length: int = setting(32, at_least(4, 131_072), "maximum tokens of a query, special tokens included")
    passage_length: int = setting(128, at_least(8, 131_072), "maximum tokens of a passage, special tokens included")
    passages_per_document: int | None = setting(
        None,
        optional(at_least(2, 1000)),
        "passages that a long text is split into for search, ranked by the best one; none: only its beginning",
    )
    query_prompt: str = setting("", None, "text put before every query, in training and search")
    passage_prompt: str = setting("", None, "text put before every passage, in training and search")
    titles: str = setting(
        JOINED,
        in_(TITLES),
        "how a passage's title and text are read: joined by a space, separated by [SEP], as a pair, or the text alone",
    )
    attention: str = setting(
        DECLARED,
        in_(ATTENTIONS),
        "how a decoder-only model reads a text: as its configuration declares, bidirectional, or causal",
    )
    mask_token: str = setting(
        AUTO,
        min_len(1),
        "token for what is hidden from an existing encoder; auto: its mask token, or a spare special token of a "
        "decoder-only model; a special token by name; new: one more word",
    )
    precision: str = setting(
        "float32",
        in_(PRECISIONS),
        "of matrix products when texts are encoded; for training, set bf16",
    )
    declared: str = setting(
        "keep",
        in_(("keep", "ignore")),
        "pooling, lengths and prompts that the pretrained encoder declares; keep: reject others; ignore: override them",
    )
