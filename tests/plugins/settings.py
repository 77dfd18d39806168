"""Settings of the parts of test_broken.py, apart from them so that importing the settings imports no torch."""

from __future__ import annotations

import attrs

# As if it were declared beside code that imports torch.
ImportsTorch = attrs.make_class("ImportsTorch", {}, frozen=True)
ImportsTorch.__module__ = "drkit.losses.contrastive"


@attrs.define
class Loose:
    """Settings that can be changed."""

    ratio: float = 0.1
