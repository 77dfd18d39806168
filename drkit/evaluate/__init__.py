"""Evaluation: measures per query, significance tests, and tables of systems."""

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.evaluate.engines import MEASURES as MEASURES
    from drkit.evaluate.measures import Scores as Scores
    from drkit.evaluate.measures import average as average
    from drkit.evaluate.measures import balanced as balanced
    from drkit.evaluate.measures import check_measures as check_measures
    from drkit.evaluate.measures import cutoff as cutoff
    from drkit.evaluate.measures import evaluate as evaluate
    from drkit.evaluate.measures import of_data_set as of_data_set
    from drkit.evaluate.significance import TTest as TTest
    from drkit.evaluate.significance import bootstrap_intervals as bootstrap_intervals
    from drkit.evaluate.significance import holm as holm
    from drkit.evaluate.significance import paired_t_test as paired_t_test
    from drkit.evaluate.systems import Change as Change
    from drkit.evaluate.systems import Row as Row
    from drkit.evaluate.systems import Versus as Versus
    from drkit.evaluate.systems import compare as compare
    from drkit.evaluate.systems import comparison as comparison
    from drkit.evaluate.systems import to_markdown as to_markdown
    from drkit.evaluate.systems import versus_markdown as versus_markdown
    from drkit.evaluate.ties import TieRange as TieRange
    from drkit.evaluate.ties import order_bounds as order_bounds
    from drkit.evaluate.ties import tie_ranges as tie_ranges
    from drkit.evaluate.tuning import TunedWeight as TunedWeight
    from drkit.evaluate.tuning import tune_bm25 as tune_bm25
    from drkit.evaluate.tuning import tune_weight as tune_weight

lazy_exports(__name__)
