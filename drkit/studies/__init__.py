"""Studies: factorial designs over parts and settings, and the search for the best of many compositions."""

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.studies.design import Cell as Cell
    from drkit.studies.design import Design as Design
    from drkit.studies.design import design_study as design_study
    from drkit.studies.results import Study as Study
    from drkit.studies.results import study as study

lazy_exports(__name__)
