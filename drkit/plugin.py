"""Everything that a plugin imports, in one place; each name is loaded on first use, so declarations import no torch.

A plugin is a package with an entry point in the group `drkit` and any of the hooks in `drkit.core.registry`:

    from drkit.plugin import ComponentSpec, Kind, hookimpl

    DRKIT_API = 1  # the version of drkit's API that it is written for

    @hookimpl
    def drkit_components():
        return [ComponentSpec(Kind.MASKER, "my-masker", "my_package.masker:MyMasker", MyConfig, "What it does.")]
"""

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.batching.drawing import cut_batches as cut_batches
    from drkit.batching.drawing import grouped_batches as grouped_batches
    from drkit.core.draws import Draws as Draws
    from drkit.core.protocols import Corpus as Corpus
    from drkit.core.protocols import ReplacingMasker as ReplacingMasker
    from drkit.core.protocols import SignalTexts as SignalTexts
    from drkit.core.registry import API_VERSION as API_VERSION
    from drkit.core.registry import hookimpl as hookimpl
    from drkit.core.registry import installed as installed
    from drkit.core.registry import registry_of as registry_of
    from drkit.core.schedules import Scheduled as Scheduled
    from drkit.core.settings import GeneratorSettings as GeneratorSettings
    from drkit.core.settings import QuerySettings as QuerySettings
    from drkit.core.settings import at_least as at_least
    from drkit.core.settings import more_than as more_than
    from drkit.core.settings import query_source as query_source
    from drkit.core.settings import setting as setting
    from drkit.core.settings import shares as shares
    from drkit.core.spec import Choice as Choice
    from drkit.core.spec import Citation as Citation
    from drkit.core.spec import ComponentSpec as ComponentSpec
    from drkit.core.spec import Extension as Extension
    from drkit.core.spec import Kind as Kind
    from drkit.core.spec import MaskerChoice as MaskerChoice
    from drkit.core.spec import NoSettings as NoSettings
    from drkit.core.types import BackboneInfo as BackboneInfo
    from drkit.core.types import BatchRows as BatchRows
    from drkit.core.types import BuildContext as BuildContext
    from drkit.core.types import CollectionSize as CollectionSize
    from drkit.core.types import DecoderInput as DecoderInput
    from drkit.core.types import EmbeddedPairs as EmbeddedPairs
    from drkit.core.types import Encoded as Encoded
    from drkit.core.types import Judgement as Judgement
    from drkit.core.types import LmHeads as LmHeads
    from drkit.core.types import MaskedView as MaskedView
    from drkit.core.types import Mined as Mined
    from drkit.core.types import MiningRequest as MiningRequest
    from drkit.core.types import Passage as Passage
    from drkit.core.types import Query as Query
    from drkit.core.types import ScoredGroups as ScoredGroups
    from drkit.core.types import StepOutput as StepOutput
    from drkit.core.types import TextStates as TextStates
    from drkit.core.types import TokenBatch as TokenBatch
    from drkit.core.types import TokenStates as TokenStates
    from drkit.data.splits import SPLITS as SPLITS
    from drkit.data.splits import split_by_hash as split_by_hash
    from drkit.data.stage_context import StageContext as StageContext
    from drkit.encoders.architectures import BERT_LAYER as BERT_LAYER
    from drkit.encoders.architectures import GELU as GELU
    from drkit.encoders.architectures import Architecture as Architecture
    from drkit.encoders.architectures import LayerNames as LayerNames
    from drkit.encoders.architectures import SizeNames as SizeNames
    from drkit.encoders.heads import highest_logits as highest_logits
    from drkit.encoders.heads import pool_logits as pool_logits
    from drkit.encoders.heads import seeded as seeded
    from drkit.encoders.heads import token_states as token_states
    from drkit.errors import DrkitError as DrkitError
    from drkit.maskers.views import make_view as make_view
    from drkit.miners.chain import keep_candidates as keep_candidates

lazy_exports(__name__)
