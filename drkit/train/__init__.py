"""Training: batches, gradients, the Trainer, and what is trained: auto-encoders, retrievers, re-rankers."""

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.train.checkpoints import save_masked_lm as save_masked_lm
    from drkit.train.columns import read_column as read_column
    from drkit.train.probes import anisotropy as anisotropy
    from drkit.train.probes import top_direction as top_direction

lazy_exports(__name__)
