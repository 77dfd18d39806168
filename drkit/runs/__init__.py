"""Runs: plans of stages, and the only place that knows trainers, ranks and devices."""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.runs.files.encoders import export_checkpoint, open_encoder
    from drkit.runs.files.mining import Miners, Output, mine_to_file
    from drkit.runs.files.ranking import Source, distill, rerank_file
    from drkit.runs.files.searching import encode_collection, find_queries, passages_of, queries_of, search_to_run
    from drkit.runs.files.systems import evaluate_files, find_judgements, find_systems
    from drkit.runs.finetuning.teacher_scores import read_scores
    from drkit.runs.training.cached import CachedGradients
    from drkit.runs.training.ranked_groups import RankedGroups

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
        "CachedGradients": "training.cached",
        "Miners": "files.mining",
        "Output": "files.mining",
        "RankedGroups": "training.ranked_groups",
        "Source": "files.ranking",
        "distill": "files.ranking",
        "encode_collection": "files.searching",
        "evaluate_files": "files.systems",
        "export_checkpoint": "files.encoders",
        "find_judgements": "files.systems",
        "find_queries": "files.searching",
        "find_systems": "files.systems",
        "mine_to_file": "files.mining",
        "open_encoder": "files.encoders",
        "passages_of": "files.searching",
        "queries_of": "files.searching",
        "read_scores": "finetuning.teacher_scores",
        "rerank_file": "files.ranking",
        "search_to_run": "files.searching",
    },
)
