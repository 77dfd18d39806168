"""The specification of a part, as data: its name, code, settings, inputs and outputs.

`PROVIDED` and `CAPABILITIES` list the built-in names that parts receive, provide and require, each with its meaning.
Plugins can add names to `provides` (a decoder's outputs) and `signals`. The check, its suggestions and the
documentation all read these tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from importlib import import_module
from typing import Annotated, Any, TypeVar

import attrs
from attrs import field, frozen
from attrs.validators import and_, ge, le, optional

from drkit.core.schedules import at_both_ends
from drkit.errors import EXTRAS, DrkitError, check_extras, did_you_mean

# The sources of names.
MASKER, ENCODER, DECODING, BATCH, FINETUNING, RERANKING, MINING, POOLING, BATCHING = (
    "masker",
    "encoder",
    "decoding",
    "batch",
    "fine-tuning",
    "re-ranking",
    "mining",
    "pooling",
    "batching",
)


@frozen
class Provided:
    """A name that the call of a part may receive, its source, and its meaning.

    masker: the encoder provides it only if its masker provides this name. whole_batch: it relates rows of the batch
    to each other, so a loss that receives it has the scope `batch`. per_text: a plain tensor with one row per text,
    which can be gathered from chunks and processes.
    """

    name: str
    source: str
    meaning: str
    masker: str = ""
    whole_batch: bool = False
    per_text: bool = False


PROVIDED = (
    Provided("view", MASKER, "a masked copy of a text"),
    Provided("corrupted", MASKER, "a copy with other tokens or another order, or a shorter one, without targets"),
    Provided("rows", MASKER, "a visibility pattern for each row of the decoder"),
    Provided("replaced", MASKER, "masked positions filled with samples of a generator"),
    Provided("ratios", MASKER, "the share of its tokens that was drawn to be hidden in each text"),
    Provided("token_states", ENCODER, "states at target positions, with their labels and the LM head", masker="view"),
    Provided(
        "preceding_states",
        ENCODER,
        "states one position before the targets, with their labels and the LM head",
        masker="view",
    ),
    Provided("text_states", ENCODER, "states of whole texts, with their tokens and the LM head", masker="view"),
    Provided("bottleneck", ENCODER, "the vector of each text, f[B,D]", per_text=True),
    Provided("replaced", ENCODER, "which targets differ from the original token, bool[N]", masker="replaced"),
    Provided("ratios", ENCODER, "the ratio that was drawn for the text of each target, f[N]", masker="ratios"),
    Provided("hidden", DECODING, "the encoder's states of all tokens, which a decoder reads, f[B,L,D]"),
    Provided("partners", BATCH, "the row that belongs to each row, i64[B]", whole_batch=True, per_text=True),
    Provided("pairs", FINETUNING, "vectors of queries and passages (`EmbeddedPairs`)", whole_batch=True),
    Provided("groups", RERANKING, "a cross-encoder's scores of each query's passages (`ScoredGroups`)"),
    Provided("candidates", MINING, "results of the previous miner in the chain"),
    Provided("heads", POOLING, "the encoder's LM head, lent for one call (`LmHeads`)"),
    Provided("query_ids", BATCHING, "the id of each training query"),
    Provided("query_lengths", BATCHING, "the tokens of each training query, i32[n]"),
    Provided("positive_ids", BATCHING, "the ids of the positives of each training query"),
    Provided("query_vectors", BATCHING, "the vector of each training query by the encoder in training, f32[n,D]"),
)
# What a pooling provides whose vectors are scores of the vocabulary's words, most of them 0, compared by dot product.
WORD_SCORES = "word-scores"
# A pooling that gives several vectors provides each as this and its name; decoders and losses receive it by the same.
_VECTOR = "bottleneck:"
# What a column provides whose values are vectors instead of numbers.
VECTOR_VALUES = "vectors"

# What a part can require of the run, besides the arguments of its call.
CAPABILITIES: Mapping[str, str] = {
    "spans": "documents split into spans of whole sentences, which become the texts",
    "generated-queries": "candidate queries for every text; settings: `QuerySettings`",
    "encoder-layers": "layers of the encoder built like BERT's, which the part copies",
    "generator": "a masked LM, as to fill masked positions; settings: `GeneratorSettings`",
    "characters": "the characters of every text, besides its tokens",
    "retriever": "the retriever of the previous round",
    "reranker": "the run's own re-ranker",
}
# What stages make for a pre-training, and all that its parts can require.
MADE_FOR_PRETRAINING = ("spans", "generated-queries", "generator")
OFFERED_TO_PRETRAINING = (*MADE_FOR_PRETRAINING, "encoder-layers")
# What a stage of a plugin can receive of the run, besides the outputs of stages that its settings name.
OFFERED_TO_STAGES: Mapping[str, str] = {
    "passages": "the passages of the collection (`StageContext.passages`)",
    "train": "the folder of the training queries and judgements (`StageContext.collection`)",
}
# Before the output of a stage of the run, in a setting with the path of a file: `stage:judge/scores.jsonl`.
STAGE_OUTPUT = "stage:"
# What a loss of fine-tuning receives besides columns, and the column of a teacher's scores.
PAIRS, TEACHER = "pairs", "teacher"
# What batches receive that is known only during a training.
QUERY_VECTORS = "query_vectors"


def is_stage_output(path: Any) -> bool:
    """Return whether the value of a setting names the output of a stage of the run, rather than a local file.

    >>> is_stage_output("stage:judge/scores.jsonl"), is_stage_output("scores.jsonl")
    (True, False)
    """
    return isinstance(path, str) and path.startswith(STAGE_OUTPUT)


def provided_by(*sources: str, masker: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the names that these sources provide, next to a masker that provides `masker`.

    >>> provided_by("encoder", "batch")
    ('bottleneck', 'partners')
    >>> provided_by("encoder", masker=["view"])
    ('token_states', 'preceding_states', 'text_states', 'bottleneck')
    """
    return tuple(p.name for p in PROVIDED if p.source in sources and p.masker in {"", *masker})


def vector_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the named vectors among the names that a part provides or receives, sorted.

    >>> vector_names(["bottleneck", "bottleneck:lexical", "bottleneck:dense"])
    ('dense', 'lexical')
    """
    return tuple(sorted(name.removeprefix(_VECTOR) for name in names if name.startswith(_VECTOR)))


def vector_name(vector: str) -> str:
    """Return the name by which a part provides or receives a named vector.

    >>> vector_name("lexical")
    'bottleneck:lexical'
    """
    return f"{_VECTOR}{vector}"


def builtin_names() -> frozenset[str]:
    """Return every name that drkit itself provides (`PROVIDED`)."""
    return frozenset(p.name for p in PROVIDED)


def _names(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(values)


_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class Kind(str, Enum):
    """The kinds of parts: those that a recipe has slots for, and signals, which other parts request by name."""

    MASKER = "masker"
    CONTEXT = "context"
    DECODER = "decoder"
    LOSS = "loss"
    MINER = "miner"
    COLLECTION = "collection"
    SIGNAL = "signal"
    POOLING = "pooling"
    COLUMN = "column"
    BATCHES = "batches"
    QUERIES = "queries"
    STAGE = "stage"

    def __str__(self) -> str:
        return self.value


# The kinds whose settings may change over a training (`drkit.core.schedules`).
SCHEDULED_KINDS = (Kind.MASKER, Kind.LOSS)


@frozen
class NoSettings:
    """Settings of a part that has none."""


@frozen
class Choice:
    """A part chosen for a slot: its name, and its settings (an instance of its spec's config class).

    Two slots add a number of their own: `weight` of a loss among those that are summed, and `default` of a column, the
    value of all that its source has none for. They are None elsewhere.
    """

    use: str
    config: Any
    weight: float | None = field(
        default=None, validator=at_both_ends(optional(and_(ge(0), le(10**9)))), metadata={"schedulable": True}
    )
    default: float | None = field(default=None, validator=optional(and_(ge(-1e12), le(1e12))))


def part_name(choice: Choice | str) -> str:
    """Return the name of a chosen part."""
    return choice.use if isinstance(choice, Choice) else choice


def brief(choice: Choice) -> Choice | str:
    """Return the text that a recipe may write for a choice, or the choice if its settings need a table.

    The text of a part without settings is its name; a config class may have a property `brief`, None for a table.

    >>> brief(Choice("mean", NoSettings()))
    'mean'
    """
    if not attrs.fields(type(choice.config)):
        return choice.use
    text: str | None = declared_by(choice.config, "brief", None)
    return choice if text is None else text


LossChoice = Annotated[Choice, Kind.LOSS]
MaskerChoice = Annotated[Choice, Kind.MASKER]


# What the result of a part belongs to, by kind; the first is the default.
SCOPES: Mapping[Kind, tuple[str, ...]] = {
    Kind.LOSS: ("rows", "batch"),
    Kind.SIGNAL: ("token", "text", "vocabulary"),
    Kind.COLUMN: ("pair", "query", "passage"),
}


@frozen
class Citation:
    """The paper that a part or a recipe comes from."""

    key: str
    title: str
    year: int
    url: str = ""


@frozen
class ComponentSpec:
    """The specification of one part; its code is imported when it is first built.

    `target` is the `"module:attribute"` of a factory that is called as `target(config, context)`. `config` is a frozen
    attrs class with every default and validator; its module must not import torch. Four fields decide which parts go
    together:

    receives: the names that its call receives, from `drkit.core.spec` or another part; beside `pairs`, the columns that
    a loss of fine-tuning reads, by `pairs.column(name)`; of batches, also columns of queries. signals: the signals it
    reads, by name (`drkit list signal`). requires: the capabilities that the run must have
    (`drkit.core.spec.CAPABILITIES`). provides: the names of its results.

    If any of these depends on the settings, the config class has a property of the same name. For `receives` and
    `provides`, it returns additional names; for `signals` and `requires`, a mapping of additional names to the settings
    that each must have (`{}` or None: any).

    `scope` of a loss is `rows` (the default) for a mean over rows or tokens, which can be computed in chunks, or
    `batch` if it compares the rows of a batch with each other; receiving `pairs` or `partners` implies `batch`.
    `scope` of a signal is what it has one value for: each `token`, each `text`, or each entry of the `vocabulary`; of a
    column, each `pair`, `query` or `passage`. A property `scope` of the config class takes precedence.

    `context` of a masker is the context that a decoder with it rebuilds, masked by the masker of its setting `base`: a
    recipe with it gets both. `trained_by` is the loss that trains a decoder if the recipe's own loss does not fit it.
    `shorthand` is the setting that `name:VALUE` fills on the command line (`beir:PATH`). `files` are the settings with
    paths of local files that a run reads. `extras` are the extras of drkit that its code needs
    (`drkit.errors.EXTRAS`). `example` is what the contract checks try it on, if toy values do not do: `texts`, such as
    those that it has looked up, and values of the columns that a loss receives, by name.

    The target of a stage is a function that is called with a `drkit.plugin.StageContext` and returns facts for the
    manifest. It receives names of `OFFERED_TO_STAGES`, and reads the outputs of other stages that its `files` name.
    `resumable`: after a kill, it goes on in the folder that it left. `records`: its files that document it (logs) and
    are not results. `version`: raised when the same settings and inputs give another result for a reason outside the
    code of its package.

    Raises ValueError if the name is not kebab-case, the target is not `module:attribute`, the summary is longer than 70
    characters, the config is not an attrs class, or a word of `requires`, `scope` or `extras` is unknown, or of
    `receives` of a stage.
    """

    kind: Kind = field(converter=Kind)
    name: str
    target: str
    config: type
    summary: str
    cite: Citation | None = None
    receives: tuple[str, ...] = field(default=(), converter=_names)
    signals: tuple[str, ...] = field(default=(), converter=_names)
    requires: tuple[str, ...] = field(default=(), converter=_names)
    provides: tuple[str, ...] = field(default=(), converter=_names)
    scope: str = ""
    files: tuple[str, ...] = field(default=(), converter=_names)
    extras: tuple[str, ...] = field(default=(), converter=_names)
    context: str = ""
    trained_by: str = ""
    shorthand: str = ""
    provider: str = ""
    example: Mapping[str, Sequence[Any]] = field(factory=dict, eq=False)
    records: tuple[str, ...] = field(default=(), converter=_names)
    resumable: bool = False
    version: int = 1

    def __attrs_post_init__(self) -> None:
        problems = [*_shape_problems(self), *self._config_problems(), *self._word_problems()]
        if problems:
            raise ValueError(f"component {self.kind}/{self.name}: " + "; ".join(problems))

    def _config_problems(self) -> list[str]:
        if not attrs.has(self.config):
            return [f"config {self.config!r} is not an attrs class"]
        known = {a.name for a in attrs.fields(self.config)}
        named = {"shorthand": (self.shorthand,) if self.shorthand else (), "files": self.files}
        named |= {"base": ("base",)} if self.context else {}
        scheduled = [a.name for a in attrs.fields(self.config) if a.metadata.get("schedulable")]
        wrong = scheduled if self.kind not in SCHEDULED_KINDS else []
        return [
            f"{name!r} cannot be schedulable: only settings of {' and '.join(SCHEDULED_KINDS)} change over a training"
            for name in wrong
        ] + [
            f"{what} {name!r} is not a setting of {self.config.__name__}"
            for what, names in named.items()
            for name in names
            if name not in known
        ]

    def _word_problems(self) -> list[str]:
        problems = [
            f"requires {word!r}, which is not a capability of a run{did_you_mean(word, CAPABILITIES)} "
            f"allowed: {', '.join(CAPABILITIES)}"
            for word in self.requires
            if word not in CAPABILITIES
        ]
        problems += [
            f"extra {extra!r} is unknown{did_you_mean(extra, EXTRAS)} allowed: {', '.join(EXTRAS)}"
            for extra in self.extras
            if extra not in EXTRAS
        ]
        problems += [
            f"receives {word!r}, which no run offers a stage{did_you_mean(word, OFFERED_TO_STAGES)} allowed: "
            f"{', '.join(OFFERED_TO_STAGES)}; the output of another stage is named by a setting in `files`"
            for word in self.receives
            if self.kind is Kind.STAGE and word not in OFFERED_TO_STAGES
        ]
        problems += [
            f"{word!r} is in both receives and signals; list it once" for word in self.receives if word in self.signals
        ]
        follows_settings = attrs.has(self.config) and _declares(self.config, "scope")
        return [*problems, *scope_problems(self.kind, self.scope, () if follows_settings else self.receives)]

    def receives_of(self, config: Any) -> frozenset[str]:
        """Return the names that its call receives with these settings."""
        return frozenset(self.receives) | frozenset(declared_by(config, "receives", ()))

    def signals_of(self, config: Any) -> dict[str, Mapping[str, Any]]:
        """Return the signals that it reads with these settings, and the settings that each must have."""
        return {**{name: {} for name in self.signals}, **self._mapping(config, "signals")}

    def requires_of(self, config: Any) -> dict[str, Any]:
        """Return the capabilities that it requires with these settings, and the settings that each must have."""
        return {**dict.fromkeys(self.requires), **self._mapping(config, "requires")}

    def provides_of(self, config: Any) -> frozenset[str]:
        """Return the names that it provides with these settings."""
        return frozenset(self.provides) | frozenset(declared_by(config, "provides", ()))

    def scope_of(self, config: Any) -> str:
        """Return its scope with these settings; empty for kinds without a scope."""
        default = SCOPES.get(self.kind, ("",))[0]
        implied = "batch" if _relates_rows(self.kind, self.receives_of(config)) else default
        return str(declared_by(config, "scope", "") or self.scope or implied)

    def paths_of(self, config: Any) -> tuple[str, ...]:
        """Return the local paths that it reads with these settings; they are not checked here."""
        return tuple(str(getattr(config, name) or "") for name in self.files)

    def _mapping(self, config: Any, name: str) -> Mapping[str, Any]:
        found = declared_by(config, name, {})
        if not isinstance(found, Mapping):
            raise DrkitError(
                f"{self.kind} {self.name!r}: the property {name} of {type(config).__name__} returned {found!r}; "
                f"return a mapping of names to the settings that each must have"
            )
        return found

    def load(self) -> Any:
        """Import and return the factory that `target` names.

        Raises MissingExtraError as `check_extras` does, and ImportError or AttributeError if the target does not exist.
        """
        self.check_extras()
        return resolve(self.target)

    def check_extras(self) -> None:
        """Raise MissingExtraError if packages that the part needs are not installed."""
        check_extras(f"{self.kind} {self.name!r}", self.extras)


_Loaded = TypeVar("_Loaded")
# What a plugin can add beside parts, recipes and pipelines. The hook of each kind is `drkit_KINDs`.
EXTENSIONS = ("architecture", "backend", "command", "engine")


@frozen
class Extension:
    """Something that a plugin adds under a name beside parts and recipes, such as an encoding backend.

    target: the `"module:attribute"` of its code, imported on first use, so it may import torch at its top. packages:
    distributions that the code uses beyond what its own package requires, as pip takes them.
    provider: filled in when the plugin is loaded.

    Raises ValueError if the name is not kebab-case, the target is not `module:attribute`, or the summary is longer than
    70 characters.
    """

    name: str
    target: str
    summary: str
    packages: tuple[str, ...] = field(default=(), converter=_names)
    provider: str = ""

    def __attrs_post_init__(self) -> None:
        if problems := _shape_problems(self):
            raise ValueError(f"extension {self.name}: " + "; ".join(problems))

    def load(self) -> Any:
        """Import and return what `target` names.

        Raises DrkitError with the command that installs its packages if one of them is missing, or with what else
        went wrong in the plugin.
        """
        try:
            return resolve(self.target)
        except (Exception, SystemExit) as error:  # third-party code may fail in any way
            self.require_packages()
            reason = f"{type(error).__name__}: {error}"
            raise DrkitError(f"{self.target} of {self.provider or 'a plugin'} cannot be loaded: {reason}") from error

    def load_as(self, expected: type[_Loaded], public_name: str) -> _Loaded:
        """Return what `target` names. Raises DrkitError as `load` does, or unless it is an instance of `expected`."""
        found = self.load()
        if not isinstance(found, expected):
            raise DrkitError(f"{self.target} of {self.provider} must be a {public_name}, got {found!r:.80}")
        return found

    def require_packages(self) -> None:
        """Raise DrkitError with the command that installs the missing packages, if there are any."""
        if missing := [name for name in self.packages if not _is_installed(name)]:
            needed = " and ".join(missing)
            raise DrkitError(f"{self.name} needs {needed}, not installed here: pip install {' '.join(missing)}")


def _is_installed(package: str) -> bool:
    from importlib.metadata import PackageNotFoundError, distribution  # 16 ms, which `drkit --help` does not need

    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def resolve(target: str) -> Any:
    """Import and return what the text `"module:attribute"` names."""
    module, attribute = target.split(":")
    return getattr(import_module(module), attribute)


def _shape_problems(spec: ComponentSpec | Extension) -> list[str]:
    problems = []
    if not _NAME.fullmatch(spec.name):
        problems.append(f"name {spec.name!r} is not kebab-case")
    if spec.target.count(":") != 1 or not all(spec.target.split(":")):
        problems.append(f"target {spec.target!r} is not 'module:attribute'")
    if not spec.summary or len(spec.summary) > 70:
        problems.append(f"summary has {len(spec.summary)} characters; 1 to 70 are allowed")
    return problems


def declared_by(config: Any, name: str, default: Any) -> Any:
    """Return the value of a property of the config class, or `default`; a setting of the same name does not count."""
    return getattr(config, name) if _declares(type(config), name) else default


def _declares(config: type, name: str) -> bool:
    is_setting = attrs.has(config) and name in {a.name for a in attrs.fields(config)}
    return hasattr(config, name) and not is_setting


def scope_problems(kind: Kind, scope: str, receives: Iterable[str]) -> list[str]:
    """Return the problems of a part's scope, given its kind and the names that it receives."""
    allowed = SCOPES.get(kind, ())
    if scope and scope not in allowed:
        return [
            f"scope {scope!r} is unknown{did_you_mean(scope, allowed)} allowed: "
            f"{', '.join(allowed) or f'none, a {kind} has no scope'}"
        ]
    across = _relates_rows(kind, receives)
    if across and scope not in ("", "batch"):
        return [
            f"receives {' and '.join(across)}, which relates rows of the batch to each other, so its scope cannot be "
            f"{scope!r}: leave scope out"
        ]
    return []


def _relates_rows(kind: Kind, receives: Iterable[str]) -> list[str]:
    """Return the names among those a loss receives that relate rows of the batch to each other."""
    return sorted({p.name for p in PROVIDED if p.whole_batch} & {*receives}) if kind is Kind.LOSS else []


def keyword(name: str) -> str:
    """Return the keyword argument by which a loss receives a signal or a named vector.

    >>> keyword("entity-flags"), keyword("bottleneck:lexical")
    ('entity_flags', 'bottleneck_lexical')
    """
    return name.replace("-", "_").replace(":", "_")
