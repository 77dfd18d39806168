"""drkit: compose maskers, decoders, losses and negative miners into dense retrievers."""

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.experiments import compose as compose
    from drkit.experiments import run as run
    from drkit.finished_run import FinishedRun as FinishedRun
    from drkit.finished_run import Hit as Hit
    from drkit.finished_run import ResultTable as ResultTable
    from drkit.finished_run import load as load
    from drkit.studies.results import Study as Study
    from drkit.studies.results import study as study

__version__ = "0.1.0"

lazy_exports(__name__)
