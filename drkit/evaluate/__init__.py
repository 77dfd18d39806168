"""Evaluation: measures per query, significance, and the tables of systems."""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.evaluate.measures import MEASURES, Scores, average, check_measures, cutoff, evaluate
    from drkit.evaluate.significance import TTest, holm, paired_t_test
    from drkit.evaluate.table import Row, comparison, to_markdown
    from drkit.evaluate.versus import Change, Versus, compare, versus_markdown

__all__ = [
    "MEASURES",
    "Change",
    "Row",
    "Scores",
    "TTest",
    "Versus",
    "average",
    "check_measures",
    "compare",
    "comparison",
    "cutoff",
    "evaluate",
    "holm",
    "paired_t_test",
    "to_markdown",
    "versus_markdown",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "MEASURES": "measures",
        "Change": "versus",
        "Row": "table",
        "Scores": "measures",
        "TTest": "significance",
        "Versus": "versus",
        "average": "measures",
        "check_measures": "measures",
        "compare": "versus",
        "comparison": "table",
        "cutoff": "measures",
        "evaluate": "measures",
        "holm": "significance",
        "paired_t_test": "significance",
        "to_markdown": "table",
        "versus_markdown": "versus",
    },
)
