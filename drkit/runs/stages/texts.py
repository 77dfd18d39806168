"""Stages on the texts of a run: what is read, once, and computed before any training.

`collection` is checked and stored as Arrow; `mixture` has further collections of pre-training, too; the vocabulary is
taken from the encoder (`existing-vocabulary`) or trained (`wordpiece-vocabulary`); `passage-tokens` and `query-tokens`
are memory-mapped; `spans` are sections of documents, for pre-training on pairs of them; a `signal` is a number per
token, text or vocabulary entry, and `query-signal` the same for candidate queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from drkit.core.files import local_path, path_state
from drkit.core.hub import require_hub_id
from drkit.core.spec import Choice, Kind, resolve
from drkit.data.column_sources import GIVEN
from drkit.data.special_tokens import AUTO
from drkit.data.splits import PSEUDO
from drkit.data.titles import JOINED
from drkit.data.values import PASSAGE, QUERY
from drkit.encoders.architectures import DECLARED
from drkit.encoders.card import PassageReading, QueryReading
from drkit.errors import DrkitError
from drkit.evaluate.names import INITIAL
from drkit.recipe.encoder_settings import FROM_SCRATCH, EncoderSettings
from drkit.recipe.parts import join_names, required_signals, signal_scopes
from drkit.recipe.schema import Pretrain
from drkit.runs.stage import TRUNCATED, PlanBuilder, Stage, StageOutput, StageSpec, files_state, from_recipe
from drkit.runs.work import BERT_BASE, Sizes, Work, reading_work, stored_size, text_work
from drkit.runs.work import TOKEN_UNIT as WORK_TOKENS
from drkit.signals.specs import TextVectorsConfig

# What opens a file of vectors; a plan without one imports no pyarrow.
OPEN_VECTORS = "drkit.search.vector_files:open_vectors"


@frozen
class CollectionSettings:
    """The collection; passages: those that are read, and the seed they are drawn with (None: all).

    The others only check it: large enough for the index; scored: it has a teacher's scores.
    """

    collection: Choice = from_recipe("collection")
    passages: int | None = from_recipe("evaluation.passages", absent_when=None)
    seed: int = from_recipe("seed", absent_when=lambda settings: settings.passages is None)
    index: str = from_recipe("evaluation.index", observes=True)
    hidden: int = from_recipe("encoder.hidden", observes=True)
    scored: bool = field(default=False, metadata={"observes": True})


# Bytes of the texts for each token.
_TEXT_BYTES = 5.3


def _collection_work(stage: Stage[CollectionSettings], sizes: Sizes) -> Work:
    unit = f"passages of {stage.settings.collection.use}"
    return Work(sizes.passages, unit, disk=_TEXT_BYTES * sizes.tokens)


COLLECTION = StageSpec(
    name="collection",
    version=5,
    settings=CollectionSettings,
    run="drkit.runs.making.texts:store_collection",
    folders=("collection",),
    work=_collection_work,
)


@frozen
class MixtureSettings:
    """The further collections of pre-training, by name."""

    texts: Mapping[str, Choice] = from_recipe("pretrain.texts")


# The number of texts of each collection, in the order of the texts.
SOURCES_FILE = "sources.json"
MIXTURE = StageSpec(
    name="mixture",
    version=1,
    settings=MixtureSettings,
    run="drkit.runs.making.texts:mix_texts",
    inputs={"passages": "the run's own texts"},
    folders=("mixture",),
    work=text_work(disk=_TEXT_BYTES),
)


@frozen
class WordPieceSettings:
    """Settings of a vocabulary trained on the collection."""

    vocab_size: int = from_recipe("encoder.vocab_size")


@frozen
class ExistingVocabularySettings:
    """The encoder whose tokenizer is used, how it reads texts, and its mask token.

    The lengths are only used to check that it has enough positions.
    """

    pretrained: str = from_recipe("encoder.pretrained")
    attention: str = from_recipe("encoder.attention", absent_when=DECLARED)
    mask_token: str = from_recipe("encoder.mask_token", absent_when=AUTO)
    query_length: int = from_recipe("encoder.query_length", observes=True)
    passage_length: int = from_recipe("encoder.passage_length", observes=True)


WORDPIECE = StageSpec(
    name="wordpiece-vocabulary",
    version=3,
    settings=WordPieceSettings,
    run="drkit.runs.making.texts:train_vocabulary",
    libraries=("tokenizers",),
    inputs={"passages": "texts to train on", "queries": "training queries"},
    folders=("vocabulary",),
    work=text_work(),
)
EXISTING_VOCABULARY = StageSpec(
    name="existing-vocabulary",
    version=1,
    settings=ExistingVocabularySettings,
    run="drkit.runs.making.texts:copy_tokenizer",
    folders=("vocabulary",),
)


# Bytes of each token of a text that is tokenised.
_TOKEN_BYTES = 6.1


def _token_work(stage: Stage[PassageReading], sizes: Sizes) -> Work:
    return Work(sizes.tokens, WORK_TOKENS, disk=_TOKEN_BYTES * sizes.passage_tokens(stage.settings.length))


def _query_work(stage: Stage[QueryReading], sizes: Sizes) -> Work:
    tokens = sizes.count(str(stage.inputs["queries"])) * sizes.collection.query_tokens()
    return Work(tokens, WORK_TOKENS, disk=_TOKEN_BYTES * tokens)


_VOCABULARY = {"vocabulary": "the tokenizer"}
PASSAGE_TOKENS = StageSpec(
    name="passage-tokens",
    version=3,
    settings=PassageReading,
    run="drkit.runs.making.texts:tokenise_passages",
    libraries=("tokenizers", "regex"),
    inputs={"passages": "texts to tokenise", **_VOCABULARY},
    records=(TRUNCATED,),
    resumable=True,
    folders=("tokens", "tokens-*"),
    work=_token_work,
)
QUERY_TOKENS = StageSpec(
    name="query-tokens",
    version=3,
    settings=QueryReading,
    run="drkit.runs.making.texts:tokenise_queries",
    libraries=("tokenizers", "regex"),
    inputs={"queries": "training queries or pseudo-queries to tokenise", **_VOCABULARY},
    records=(TRUNCATED,),
    folders=("query-tokens", "pseudo-query-tokens"),
    work=_query_work,
)


@frozen
class SpanSettings:
    """The length of spans; seed: draws the texts that the sentence model is trained on."""

    max_length: int = from_recipe("encoder.passage_length")
    prompt: str = from_recipe("encoder.passage_prompt")
    seed: int = from_recipe("seed")


SPANS = StageSpec(
    name="spans",
    version=2,
    settings=SpanSettings,
    run="drkit.runs.making.texts:cut_spans",
    inputs={"passages": "documents to cut", "vocabulary": "the tokenizer"},
    extras=("nltk",),
    libraries=("tokenizers",),
    folders=("spans",),
    work=text_work(_TOKEN_BYTES),
)


# Folders of a signal: the statistics that its values depend on (counts, frequencies), and the values.
FITTED, VALUES = "fitted", "values"


@frozen
class SignalSettings:
    """A signal with its settings; prompt: the prefix of every passage, which does not belong to the text."""

    signal: Choice
    prompt: str = from_recipe("encoder.passage_prompt")
    titles: str = from_recipe("encoder.titles", absent_when=JOINED)


@frozen
class QuerySignalSettings:
    """A signal with its settings, for candidate queries."""

    signal: Choice


# Bytes of a signal for each token: a value, and the counts of n-grams that `importance` keeps.
_SIGNAL_BYTES = 20.0


def _signal_work(stage: Stage[SignalSettings], sizes: Sizes) -> Work:
    tokens = sizes.passage_tokens(sizes.length)
    return Work(tokens, f"tokens for {stage.settings.signal.use}", disk=_SIGNAL_BYTES * tokens)


_TEXT = {
    "vocabulary": "the tokenizer, for a signal that requires characters",
    "encoder": "for the size of its vocabulary, for a signal of the vocabulary",
}
SIGNAL = StageSpec(
    name="signal",
    version=2,
    settings=SignalSettings,
    run="drkit.runs.making.texts:signal_of_texts",
    inputs={
        "texts": "tokens of the texts that pre-training reads",
        "passages": "the texts themselves, for a signal that requires characters",
        "spans": "the position of each span in its passage, for such a signal",
        "vectors": "the vectors that an encoder made of the passages",
        **_TEXT,
    },
    folders=("signal-*",),
    work=_signal_work,
)
QUERY_SIGNAL = StageSpec(
    name="query-signal",
    version=1,
    settings=QuerySignalSettings,
    run="drkit.runs.making.texts:signal_of_queries",
    inputs={"texts": "tokens of the candidate queries", "fitted": "the signal's statistics of the texts", **_TEXT},
    folders=("signal-*",),
)


VOCABULARY, TOKENS = StageOutput("vocabulary"), StageOutput("tokens")
PASSAGES = StageOutput("collection", "passages")
# What pre-training reads if it has further collections: all texts, and their tokens.
MIXED_PASSAGES, MIXED_TOKENS = StageOutput("mixture", "passages"), StageOutput("tokens-mixture")


def split_of(name: str) -> StageOutput:
    """Return a split of the collection, or of queries made from it: queries, judgements and given negatives."""
    return StageOutput("pseudo-queries" if name == PSEUDO else "collection", name)


def queries_of(name: str) -> StageOutput:
    """Return the queries of a split, without its judgements."""
    split = split_of(name)
    return StageOutput(split.stage, f"{split.path}/queries.arrow")


def plan_texts(builder: PlanBuilder) -> None:
    """Add the stages that read the collection and tokenise its passages."""
    recipe = builder.recipe
    columns = recipe.finetune.column_sources() if recipe.finetune else []
    builder.add(
        "collection",
        COLLECTION,
        "read texts, queries and judgements",
        sources=_states_of_collections(builder),
        extra={"scored": any(one.use == GIVEN for one in columns)},
    )
    if recipe.pretrain and recipe.pretrain.texts:
        _plan_mixture(builder, recipe.pretrain.texts)
    if recipe.encoder.pretrained:
        if ignored := [
            name for name in FROM_SCRATCH if getattr(recipe.encoder, name) != getattr(EncoderSettings(), name)
        ]:
            names = ", ".join(f"encoder.{name}" for name in ignored)
            builder.notes.append(
                f"only an encoder made from scratch has {names}; {recipe.encoder.pretrained} keeps its own"
            )
        state = {"encoder.pretrained": path_state(recipe.encoder.pretrained)}
        builder.add("vocabulary", EXISTING_VOCABULARY, "take the encoder's tokenizer", sources=state)
    else:
        queries = {"queries": queries_of("train")} if builder.learns_from_judgements else {}
        texts = {"passages": passages_of_pretraining(builder), **queries}
        builder.add("vocabulary", WORDPIECE, "train a WordPiece vocabulary", texts)
    inputs = {"passages": PASSAGES, "vocabulary": VOCABULARY}
    builder.add("tokens", PASSAGE_TOKENS, "tokenise every passage once, memory-mapped", inputs)
    if builder.has(MIXTURE):
        mixed = {"passages": MIXED_PASSAGES, "vocabulary": VOCABULARY}
        builder.add(MIXED_TOKENS.stage, PASSAGE_TOKENS, "tokenise the texts of pre-training", mixed)


def _states_of_collections(builder: PlanBuilder) -> dict[str, str]:
    """Return the states of the local files of the collection, or of each data set of several."""
    sets = {f"collections.{name}": one.collection for name, one in (builder.recipe.collections or {}).items()}
    return {
        name: files_state(builder.registry.get(Kind.COLLECTION, one.use), one.config)
        for name, one in (sets or {"collection": builder.recipe.collection}).items()
    }


def _plan_mixture(builder: PlanBuilder, texts: Mapping[str, Choice]) -> None:
    """Add the stage that reads further collections for pre-training."""
    specs = {name: builder.registry.get(Kind.COLLECTION, chosen.use) for name, chosen in texts.items()}
    builder.add(
        MIXTURE.name,
        MIXTURE,
        f"the texts of pre-training: the collection's, and those of {join_names(texts)}",
        {"passages": PASSAGES},
        sources={f"pretrain.texts.{name}": files_state(specs[name], texts[name].config) for name in texts},
    )
    builder.notes.append("memory and disk are counted without the texts of pretrain.texts")


def passages_of_pretraining(builder: PlanBuilder) -> StageOutput:
    """Return the whole texts that pre-training reads."""
    return MIXED_PASSAGES if builder.has(MIXTURE) else PASSAGES


def tokens_of_pretraining(builder: PlanBuilder) -> StageOutput:
    """Return the tokens of whole texts that pre-training reads."""
    return MIXED_TOKENS if builder.has(MIXTURE) else TOKENS


def pretraining_texts(builder: PlanBuilder) -> StageOutput:
    """Return the tokens that pre-training reads: of the spans if there are any, else of the passages."""
    return StageOutput("spans") if builder.has(SPANS) else tokens_of_pretraining(builder)


@frozen
class EncodedSettings:
    """The encoder whose vectors a column or a signal reads, by path or hub id, and what it encodes.

    of: `passage` or `query`.
    """

    encoder: str
    of: str


def _encoded_work(stage: Stage[EncodedSettings], sizes: Sizes) -> Work:
    model = stored_size(stage.settings.encoder) or BERT_BASE
    if stage.settings.of == QUERY:
        tokens = sizes.count(str(stage.inputs["texts"])) * sizes.collection.query_tokens()
        return reading_work(model, tokens, sizes.collection.query_tokens())
    tokens = sizes.passage_tokens(sizes.length)
    return reading_work(model, tokens, tokens / max(sizes.passages, 1))


# The folder of vectors in such a stage, as `drkit encode` writes it.
ENCODED_FOLDER = "vectors"
ENCODED = StageSpec(
    name="encoded",
    version=1,
    settings=EncodedSettings,
    run="drkit.runs.making.columns:encode_for_columns",
    inputs={"passages": "the corpus", "texts": "training queries"},
    resumable=True,
    joint=True,
    folders=("encoded-*",),
    work=_encoded_work,
)


def plan_encoded(builder: PlanBuilder, encoder: str, of: str, texts: StageOutput) -> StageOutput:
    """Add the stage that encodes all passages, or all training queries, with an encoder; returns its vectors.

    There is one stage for all columns and signals that name the encoder. texts: the passages, or the split that has the
    queries. Raises DrkitError for a path that is neither a folder nor a hub id.
    """
    if not local_path(encoder).is_dir():
        require_hub_id(encoder)
    made = [stage for stage in builder.stages.values() if stage.spec is ENCODED]
    names = {(one.settings.encoder, one.settings.of, str(next(iter(one.inputs.values())))): one.name for one in made}
    inputs = (
        {"passages": texts} if of == PASSAGE else {"texts": StageOutput(texts.stage, f"{texts.path}/queries.arrow")}
    )
    name = names.get((encoder, of, str(next(iter(inputs.values())))), f"encoded-{len(made) + 1}")
    what = "passage" if of == PASSAGE else "training query"
    builder.add(
        name,
        ENCODED,
        f"encode every {what} with {encoder}",
        inputs,
        sources={"encoder": path_state(encoder)},
        extra={"encoder": encoder, "of": of},
    )
    return StageOutput(name, ENCODED_FOLDER)


def plan_signals(builder: PlanBuilder, pretrain: Pretrain, texts: Mapping[str, StageOutput]) -> dict[str, StageOutput]:
    """Add a stage for each signal of a pre-training, and one for its values of queries; returns the inputs."""
    inputs: dict[str, StageOutput] = {}
    signals, scopes = required_signals(pretrain, builder.registry), signal_scopes(pretrain, builder.registry)
    for name, chosen in signals.items():
        stage = plan_signal(builder, chosen, pretraining_texts(builder))
        inputs[f"signals/{name}"] = StageOutput(stage, VALUES)
        if "queries" in texts and scopes[name] != "vocabulary":
            read = {"texts": texts["queries"], "fitted": StageOutput(stage, FITTED), **_signal_inputs(builder, chosen)}
            summary, extra = f"the signal {name} of the candidate queries", {"signal": chosen}
            query_stage = builder.add(f"{stage}-queries", QUERY_SIGNAL, summary, read, extra=extra)
            inputs[f"query-signals/{name}"] = StageOutput(query_stage, VALUES)
    return inputs


def plan_signal(builder: PlanBuilder, chosen: Choice, texts: StageOutput) -> str:
    """Add the stage of a signal of the texts, with exactly the inputs that the signal's spec requires."""
    spec, read = builder.registry.get(Kind.SIGNAL, chosen.use), {"texts": texts}
    extra: dict[str, Any] = {"signal": chosen}
    read |= _signal_inputs(builder, chosen)
    if isinstance(chosen.config, TextVectorsConfig):
        read |= _vectors_of_texts(builder, chosen.config, texts)
    if "characters" in spec.requires_of(chosen.config):
        read["passages"] = PASSAGES if texts == TOKENS else passages_of_pretraining(builder)
        read |= {"spans": texts} if texts == StageOutput("spans") else {}
    else:
        extra |= {"prompt": "", "titles": JOINED}
    sources = {"signal": files_state(spec, chosen.config)}
    name = f"signal-{chosen.use}" if texts == pretraining_texts(builder) else f"signal-{chosen.use}-passages"
    return builder.add(name, SIGNAL, spec.summary, read, sources=sources, extra=extra)


def _vectors_of_texts(builder: PlanBuilder, config: TextVectorsConfig, texts: StageOutput) -> dict[str, StageOutput]:
    """Return the vectors of passages that an encoder makes, if the signal names one.

    Raises DrkitError without a file or encoder, with both, for a file that has no vectors, and for spans to encode.
    """
    if bool(config.path) == bool(config.encoder):
        raise DrkitError(
            "the signal 'text-vectors' needs a teacher's vectors: set either `path`, a file of them, or `encoder`, an "
            "encoder that computes them, in the loss that reads it"
        )
    if config.path:
        resolve(OPEN_VECTORS)(config.path, of=PASSAGE, by=config.by)
        return {}
    if texts == StageOutput("spans"):
        raise DrkitError(
            "an encoder makes vectors of whole passages, but this pre-training reads spans of them: give the vectors "
            'of the spans in a file (path = "FILE", by = "text")'
        )
    return {"vectors": plan_encoded(builder, config.encoder, PASSAGE, passages_of_pretraining(builder))}


def _signal_inputs(builder: PlanBuilder, chosen: Choice) -> dict[str, StageOutput]:
    """Return the inputs of a signal besides the tokens, the same for passages and queries."""
    spec, read = builder.registry.get(Kind.SIGNAL, chosen.use), {}
    if "characters" in spec.requires_of(chosen.config):
        read["vocabulary"] = VOCABULARY
    if spec.scope_of(chosen.config) == "vocabulary":
        read["encoder"] = StageOutput(INITIAL, "config.json")
    return read
