"""The default collection: docstrings of the installed Python packages, and their summaries as queries."""

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit_pydocs.collection import PydocsCollection as PydocsCollection
    from drkit_pydocs.specs import PydocsConfig as PydocsConfig

lazy_exports(__name__)
