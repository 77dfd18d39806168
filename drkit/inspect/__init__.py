"""Inspect what a masker hides of a text and which words a vector predicts, as plain data."""

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.inspect.hidden import HiddenTokens as HiddenTokens
    from drkit.inspect.hidden import TextSample as TextSample
    from drkit.inspect.hidden import measure_hidden as measure_hidden
    from drkit.inspect.masks import InspectedMask as InspectedMask
    from drkit.inspect.masks import inspect_mask as inspect_mask
    from drkit.inspect.words import InspectedWords as InspectedWords
    from drkit.inspect.words import inspect_words as inspect_words

lazy_exports(__name__)
