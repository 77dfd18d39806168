"""drkit inside sentence-transformers: mined negatives as its datasets, and drkit's losses in its trainers.

The other direction, drkit's encoder folders and search over any SentenceTransformer, is part of drkit itself:
`drkit/encoders/export.py`, `drkit/encoders/sentence_module.py` and `drkit/search/sentence_encoder.py`.
"""

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit_sentence_transformers.hard_negatives import HardNegatives as HardNegatives
    from drkit_sentence_transformers.losses import CachedGradients as CachedGradients
    from drkit_sentence_transformers.losses import RankedGroups as RankedGroups

lazy_exports(__name__)
