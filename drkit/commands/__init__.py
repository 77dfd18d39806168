"""Commands: what the command line does outside a run, as functions on collections, models and files."""

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.commands.card import model_card as model_card
    from drkit.commands.card import write_model_card as write_model_card
    from drkit.commands.collections import NamedCollection as NamedCollection
    from drkit.commands.encoder_evaluation import BeirTable as BeirTable
    from drkit.commands.encoder_evaluation import EncoderEvaluation as EncoderEvaluation
    from drkit.commands.encoder_evaluation import evaluate_encoder as evaluate_encoder
    from drkit.commands.evaluation import evaluate_files as evaluate_files
    from drkit.commands.evaluation import export_rankings as export_rankings
    from drkit.commands.evaluation import find_judgements as find_judgements
    from drkit.commands.evaluation import find_systems as find_systems
    from drkit.commands.evaluation import judge_by_answers as judge_by_answers
    from drkit.commands.inputs import export_checkpoint as export_checkpoint
    from drkit.commands.inputs import find_index as find_index
    from drkit.commands.inputs import find_queries as find_queries
    from drkit.commands.inputs import open_encoder as open_encoder
    from drkit.commands.inputs import open_reranker as open_reranker
    from drkit.commands.inputs import open_retriever as open_retriever
    from drkit.commands.new_plugin import write_plugin as write_plugin
    from drkit.commands.prune import Pruned as Pruned
    from drkit.commands.prune import prune_run as prune_run
    from drkit.commands.records import RunRecord as RunRecord
    from drkit.commands.records import open_run as open_run
    from drkit.commands.search import encode_collection as encode_collection
    from drkit.commands.search import rerank_file as rerank_file
    from drkit.commands.starter_recipe import CollectionFacts as CollectionFacts
    from drkit.commands.starter_recipe import collect_facts as collect_facts
    from drkit.commands.starter_recipe import describe_facts as describe_facts
    from drkit.commands.starter_recipe import suggest_recipe as suggest_recipe
    from drkit.commands.starter_recipe import write_starter as write_starter
    from drkit.commands.systems import SearchSystem as SearchSystem
    from drkit.commands.systems import best_system as best_system
    from drkit.commands.systems import data_sets_of as data_sets_of
    from drkit.commands.systems import find_system as find_system
    from drkit.commands.systems import open_system as open_system
    from drkit.commands.systems import search_systems as search_systems
    from drkit.commands.training_data import Miners as Miners
    from drkit.commands.training_data import Output as Output
    from drkit.commands.training_data import mine_to_file as mine_to_file
    from drkit.commands.vector_export import export_vectors as export_vectors
    from drkit.core.engine import Loaded as Loaded
    from drkit.core.engine import open_engine as open_engine
    from drkit.search.blocks import rank_to_run as rank_to_run

lazy_exports(__name__)
