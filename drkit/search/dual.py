"""Two encoders of one space: one for queries, one for passages (Karpukhin et al. 2020)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from drkit.errors import DrkitError
from drkit.search.encode import TextEncoder, choose_device
from drkit.search.folders import load_backbone, read_encoder_settings, read_modules

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

AnyEncoder: TypeAlias = "TextEncoder | DualEncoder"
ROUTES = ("query", "document")


@attrs.frozen(eq=False)
class DualEncoder:
    """An encoder of queries and an encoder of passages, wherever one encoder of both is taken.

    Raises DrkitError where their vectors are not made alike: other dimensions, pooling or similarity.
    """

    queries: TextEncoder
    passages: TextEncoder

    def __attrs_post_init__(self) -> None:
        one, two = (_how(side) for side in (self.queries, self.passages))
        if one != two:
            raise DrkitError(f"queries are encoded with {one}, passages with {two}; give two encoders of one space")

    @classmethod
    def load(cls, folder: str | Path, device: str | torch.device = "cpu") -> DualEncoder:
        """The two encoders of a folder that drkit or sentence-transformers (a `Router`) wrote.

        Raises DrkitError as `TextEncoder.load` does, or where a route is missing.
        """
        place = Path(folder)
        routes = _routes(place)
        settings = [read_encoder_settings(place, routes[route]) for route in ROUTES]
        loaded = [load_backbone(own.pop("transformer")) for own in settings]
        on = choose_device(device)
        return cls(*(TextEncoder(m.to(on), t, **own) for (m, t), own in zip(loaded, settings, strict=True)))

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""
        return self.passages.dimension

    @property
    def pooling(self) -> str:
        """The pooling of both."""
        return self.passages.pooling

    def identity(self) -> dict[str, Any]:
        """What its vectors depend on, as plain data: weights and tokenizer are hashes over those of both."""
        queries, passages = self.queries.identity(), self.passages.identity()
        both = {key: _joined(queries[key], passages[key]) for key in ("weights", "tokenizer")}
        return {**passages, **both}

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """f32[n,D], by the encoder of queries."""
        return self.queries.encode_queries(texts)

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """f32[n,D], by the encoder of passages."""
        return self.passages.encode_passages(texts)

    def encode_tokens(self, rows: Sequence[Any]) -> NDArray[np.float32]:
        """f32[n,D] of n passages given as token ids, as `TextEncoder.encode_tokens` takes them."""
        return self.passages.encode_tokens(rows)

    def evolve(self, **settings: Any) -> DualEncoder:
        """The same with other settings of `TextEncoder` in both."""
        return DualEncoder(attrs.evolve(self.queries, **settings), attrs.evolve(self.passages, **settings))


def read_encoder(folder: str | Path, device: str | torch.device = "cpu") -> AnyEncoder:
    """The encoder of a folder, or the two of it, as its modules.json says. Raises DrkitError as `TextEncoder.load`."""
    return DualEncoder.load(folder, device) if holds_two(Path(folder)) else TextEncoder.load(folder, device)


def holds_two(folder: Path) -> bool:
    """Whether an encoder folder sends queries and passages different ways."""
    return (folder / "modules.json").is_file() and "Router" in read_modules(folder)


def _routes(folder: Path) -> dict[str, dict[str, str]]:
    """The modules of each route: their folders, by their names; what stands behind the router is each route's too."""
    behind = read_modules(folder)
    inside = Path(behind.pop("Router"))
    path = folder / inside / "router_config.json"
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        named = {name: kind.rsplit(".", 1)[-1] for name, kind in told["types"].items()}
        own = {route: {named[name]: str(inside / name) for name in told["structure"][route]} for route in ROUTES}
    except (OSError, ValueError, KeyError) as error:
        raise DrkitError(
            f"{path} does not say which modules read a query and which a document ({error}); "
            f"drkit reads routers of sentence-transformers with these two routes"
        ) from None
    return {route: {**modules, **behind} for route, modules in own.items()}


def _how(encoder: TextEncoder) -> str:
    length = "of length 1" if encoder.normalize or encoder.similarity == "cosine" else "of any length"
    return f"{encoder.pooling} pooling to {encoder.dimension} dimensions {length}, {encoder.similarity} similarity"


def _joined(one: str, two: str) -> str:
    return hashlib.blake2b(f"{one} {two}".encode(), digest_size=16).hexdigest()
