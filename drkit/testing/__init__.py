"""The contract of each kind of part, as a check for a plugin's own tests: `check_masker(spec)` is enough.

Each check raises AssertionError with what is broken. It needs no data, no network, and about a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.testing.batches import check_batches as check_batches
    from drkit.testing.contexts import check_context as check_context
    from drkit.testing.data import check_collection as check_collection
    from drkit.testing.data import check_column as check_column
    from drkit.testing.data import check_queries as check_queries
    from drkit.testing.data import check_signal as check_signal
    from drkit.testing.decoders import check_decoder as check_decoder
    from drkit.testing.encoders import check_architecture as check_architecture
    from drkit.testing.encoders import check_pooling as check_pooling
    from drkit.testing.extensions import check_command as check_command
    from drkit.testing.extensions import check_recipe as check_recipe
    from drkit.testing.losses import check_loss as check_loss
    from drkit.testing.maskers import check_masker as check_masker
    from drkit.testing.miners import check_filter as check_filter
    from drkit.testing.miners import check_miner as check_miner
    from drkit.testing.specs import check_spec as check_spec
    from drkit.testing.stages import check_stage as check_stage

lazy_exports(__name__)
