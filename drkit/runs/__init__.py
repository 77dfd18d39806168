"""Runs: plans of stages, and the only place that knows trainers, ranks and devices."""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.runs.cached import CachedGradients
    from drkit.runs.encoders import export_checkpoint, open_encoder
    from drkit.runs.mining import Miners, Output, mine_to_file
    from drkit.runs.ranked_groups import RankedGroups
    from drkit.runs.ranking_files import Source, distill, rerank_file
    from drkit.runs.searching import encode_collection, find_queries, passages_of, queries_of, search_to_run
    from drkit.runs.systems import evaluate_files, find_judgements, find_systems
    from drkit.runs.teacher_scores import read_scores

__all__ = [
    "CachedGradients",
    "Miners",
    "Output",
    "RankedGroups",
    "Source",
    "distill",
    "encode_collection",
    "evaluate_files",
    "export_checkpoint",
    "find_judgements",
    "find_queries",
    "find_systems",
    "mine_to_file",
    "open_encoder",
    "passages_of",
    "queries_of",
    "read_scores",
    "rerank_file",
    "search_to_run",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "CachedGradients": "cached",
        "Miners": "mining",
        "Output": "mining",
        "RankedGroups": "ranked_groups",
        "Source": "ranking_files",
        "distill": "ranking_files",
        "encode_collection": "searching",
        "evaluate_files": "systems",
        "export_checkpoint": "encoders",
        "find_judgements": "systems",
        "find_queries": "searching",
        "find_systems": "systems",
        "mine_to_file": "mining",
        "open_encoder": "encoders",
        "passages_of": "searching",
        "queries_of": "searching",
        "read_scores": "teacher_scores",
        "rerank_file": "ranking_files",
        "search_to_run": "searching",
    },
)
