"""Runs: plans of stages, and the only place that knows trainers, ranks and devices."""

from typing import TYPE_CHECKING

from drkit.core.lazy import lazy_exports

if TYPE_CHECKING:
    from drkit.runs.files.encoders import export_checkpoint as export_checkpoint
    from drkit.runs.files.encoders import open_encoder as open_encoder
    from drkit.runs.files.mining import Miners as Miners
    from drkit.runs.files.mining import Output as Output
    from drkit.runs.files.mining import mine_to_file as mine_to_file
    from drkit.runs.files.ranking import Source as Source
    from drkit.runs.files.ranking import distill as distill
    from drkit.runs.files.ranking import rerank_file as rerank_file
    from drkit.runs.files.searching import encode_collection as encode_collection
    from drkit.runs.files.searching import find_queries as find_queries
    from drkit.runs.files.searching import passages_of as passages_of
    from drkit.runs.files.searching import queries_of as queries_of
    from drkit.runs.files.searching import search_to_run as search_to_run
    from drkit.runs.files.systems import evaluate_files as evaluate_files
    from drkit.runs.files.systems import find_judgements as find_judgements
    from drkit.runs.files.systems import find_systems as find_systems
    from drkit.runs.finetuning.teacher_scores import read_scores as read_scores
    from drkit.runs.training.cached import CachedGradients as CachedGradients
    from drkit.runs.training.ranked_groups import RankedGroups as RankedGroups

lazy_exports(__name__)
