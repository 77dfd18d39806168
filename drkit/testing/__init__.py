"""The contract of each kind of part, to be run on anyone's: `check_masker(spec)` in a plugin's own tests is enough.

Each check raises AssertionError, which says what is broken. They need no data, no network and about a second.
"""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.testing.decoders import check_decoder
    from drkit.testing.filters import check_filter
    from drkit.testing.losses import check_loss
    from drkit.testing.maskers import check_masker
    from drkit.testing.miners import check_miner
    from drkit.testing.specs import check_spec

__all__ = ["check_decoder", "check_filter", "check_loss", "check_masker", "check_miner", "check_spec"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "check_decoder": "decoders",
        "check_filter": "filters",
        "check_loss": "losses",
        "check_masker": "maskers",
        "check_miner": "miners",
        "check_spec": "specs",
    },
)
