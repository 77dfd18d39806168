"""Evaluation: measures per query, significance, and the table of systems."""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.evaluate.measures import MEASURES, Scores, check_measures, evaluate
    from drkit.evaluate.significance import TTest, paired_t_test
    from drkit.evaluate.table import Row, comparison, to_markdown

__all__ = [
    "MEASURES",
    "Row",
    "Scores",
    "TTest",
    "check_measures",
    "comparison",
    "evaluate",
    "paired_t_test",
    "to_markdown",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "MEASURES": "measures",
        "Row": "table",
        "Scores": "measures",
        "TTest": "significance",
        "check_measures": "measures",
        "comparison": "table",
        "evaluate": "measures",
        "paired_t_test": "significance",
        "to_markdown": "table",
    },
)
