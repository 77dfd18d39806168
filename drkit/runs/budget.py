"""The budget of a run: time, memory, disk and money of each stage, on given hardware and a collection of a given size.

The work of a stage is counted from the sizes: floating-point operations by `drkit.runs.estimate`, everything else by
the rates in this file. The rates were measured in the default run on two CPU cores (docs/experiments/costs.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from drkit.encoders.folder import BFLOAT16
from drkit.errors import DrkitError
from drkit.recipe.schema import GIVEN, Recipe
from drkit.runs import estimate
from drkit.runs.estimate import Corpus
from drkit.runs.hardware import Hardware
from drkit.runs.stage import Stage
from drkit.search.fusion import FUSED_HITS

# Seconds on two cores. For each token of the passages:
_VOCABULARY, _TOKENS, _PPMI, _SIGNAL, _BM25 = 1.9e-6, 2.3e-6, 5.2e-6, 8.3e-7, 1.8e-6
# .. where repeated words are marked, besides.
_MARKS = 1.4e-6
# Of BM25, for each further pair of k1 and b: its scores, not the search for dev queries.
_WEIGHED = 3e-7
# For each passage that is read: of Python's documentation, which is parsed, and of files with a text a line.
_PYDOCS, _LINE = 8.4e-4, 2.1e-5
_PSEUDO_QUERY = 2.7e-5
# For each hit that is searched and written, mined, fused (of two rankings) or measured, and for each query.
_SEARCHED, _MINED, _FUSED, _MEASURED, _QUERY = 3.8e-6, 1.04e-5, 3.3e-6, 2.2e-6, 1e-3
# For each passage that BM25 scores for a query.
_BM25_SCORED = 1.1e-8
# Of an encoder without layers: for each number of each token's vector, for each weight in a step of AdamW, and for each
# score of a query and a passage in a batch.
_BAG_NUMBER, _BAG_STEP, _BAG_SCORE = 1e-9, 1.25e-8, 4e-8
# Of every stage, and of the whole run: starting, checking and trying the parts.
_STAGE, _START = 0.3, 22.0
# Bytes on disk: for each token of the texts, of the tokens and of a signal; for each hit in a TREC run; for each mined.
_TEXT_BYTES, _TOKEN_BYTES, _SIGNAL_BYTES, _BM25_BYTES, _HIT_BYTES, _MINED_BYTES = 7.7, 6.1, 16.5, 4.7, 122, 12.3
# Bytes of memory: of Python and its libraries; of each passage's id; of distinct words while a vocabulary is made.
_BASE_BYTES, _ID_BYTES, _WORD_BYTES = 1.5e9, 16, 256 * 2**20
# Of co-occurrences while they are counted; the PPMI matrix stays on disk. The SVD has two vectors for each dimension.
_PAIR_BYTES, _SVD_VECTORS = 256 * 2**20, 2
# Of vectors as float32: more are not kept in memory for searches; more get no copy for faiss, made in memory.
_FLAT_BYTES, _FAISS_BYTES = 4 * 2**30, 2**30
_DEPTH = 200


@frozen
class Work:
    """What a stage has to do.

    flops: floating-point operations, of which `bf16` says the precision. parallel: seconds on two cores, fewer on more
    cores; serial: seconds on any machine. memory, disk: bytes.
    """

    flops: float = 0.0
    bf16: bool = False
    parallel: float = 0.0
    serial: float = 0.0
    memory: float = 0.0
    disk: float = 0.0

    def seconds(self, hardware: Hardware) -> float:
        """Return how long it takes."""
        return self.flops / hardware.flops(bf16=self.bf16) + self.parallel * 2 / hardware.cores + self.serial + _STAGE


@frozen
class StageBudget:
    """Seconds, bytes of memory and of disk, and US dollars, of one stage."""

    stage: str
    seconds: float
    memory: float
    disk: float
    price: float


@frozen
class Budget:
    """The budgets of all stages, in order; the first line is the start of the run."""

    hardware: Hardware
    corpus: Corpus
    stages: tuple[StageBudget, ...]

    @property
    def total(self) -> StageBudget:
        """The sum of all stages, and the largest memory."""
        seconds, disk, price = (sum(getattr(one, name) for one in self.stages) for name in ("seconds", "disk", "price"))
        return StageBudget("all", seconds, max(one.memory for one in self.stages), disk, price)

    @property
    def exceeding(self) -> tuple[str, ...]:
        """The stages that need more memory than the hardware has."""
        return tuple(one.stage for one in self.stages if one.memory > self.hardware.memory * 1e9)


def budget(stages: Sequence[Stage[Any]], recipe: Recipe, corpus: Corpus, hardware: Hardware) -> Budget:
    """Return what each stage of a plan costs on this hardware, for a collection of this size.

    Raises DrkitError for an encoder whose sizes are unknown: one on the hub, or without a configuration.
    """
    encoder = recipe.encoder
    if encoder.pretrained:
        sizes = estimate.stored_sizes(encoder.pretrained)
        if sizes is None:
            raise DrkitError(
                f"the sizes of {encoder.pretrained!r} are unknown: give the folder of a model in BERT's format, or "
                f"plan for one from scratch with --scale paper"
            )
        recipe = evolve(recipe, encoder=evolve(encoder, pretrained=None, **sizes))
    planner = _Planner(recipe, corpus, {stage.name: stage for stage in stages})
    work = {"start": Work(serial=_START - _STAGE), **{stage.name: planner.work(stage) for stage in stages}}
    return Budget(hardware, corpus, tuple(_budget(name, one, hardware) for name, one in work.items()))


def _budget(name: str, work: Work, hardware: Hardware) -> StageBudget:
    seconds = work.seconds(hardware)
    return StageBudget(name, seconds, work.memory + _BASE_BYTES, work.disk, seconds / 3600 * hardware.price)


@frozen
class _Planner:
    """Counts the work of stages, by the name of their spec, from the sizes of a recipe and of a collection."""

    recipe: Recipe
    corpus: Corpus
    stages: Mapping[str, Stage[Any]]

    def work(self, stage: Stage[Any]) -> Work:
        """Return the work of a stage; of one that is not counted, only its start."""
        count = _WORK.get(stage.spec.name)
        return count(self, stage) if count else Work()

    @property
    def _all_tokens(self) -> float:
        return self.corpus.passages * self.corpus.tokens

    @property
    def _token(self) -> float:
        """Seconds of making a token."""
        return _TOKENS + (_MARKS if self.recipe.encoder.mark_repeats else 0.0)

    @property
    def _vector_bytes(self) -> float:
        return 4.0 * self.corpus.passages * self.recipe.encoder.hidden

    @property
    def _made_queries(self) -> float:
        settings = self.recipe.pseudo_queries
        return self.corpus.passages * settings.count * len(settings.sources) if settings else 0

    def _queries(self, stage: Stage[Any]) -> float:
        """Return the number of training queries that a stage reads."""
        is_pseudo = any(name.startswith("pseudo-quer") for name in stage.needs)
        return self._made_queries if is_pseudo else self.corpus.train

    def _collection(self, _stage: Stage[Any]) -> Work:
        each = _PYDOCS if self.corpus.parsed else _LINE
        ids = _ID_BYTES * self.corpus.passages
        return Work(serial=each * self.corpus.passages, disk=_TEXT_BYTES * self._all_tokens + ids)

    def _wordpiece_vocabulary(self, _stage: Stage[Any]) -> Work:
        # 416 MB were measured for 6.75 million tokens; distinct words grow by Heaps' law, up to the stage's limit.
        words = min(416e6 * (self._all_tokens / 6.75e6) ** 0.6, _WORD_BYTES)
        return Work(parallel=_VOCABULARY * self._all_tokens, memory=words)

    def _passage_tokens(self, _stage: Stage[Any]) -> Work:
        return Work(parallel=self._token * self._all_tokens, disk=_TOKEN_BYTES * self._all_tokens)

    def _query_tokens(self, stage: Stage[Any]) -> Work:
        tokens = self._queries(stage) * self.corpus.query_tokens
        return Work(parallel=self._token * tokens, disk=_TOKEN_BYTES * tokens)

    def _pseudo_queries(self, _stage: Stage[Any]) -> Work:
        made = self._made_queries
        return Work(serial=_PSEUDO_QUERY * made, disk=_TEXT_BYTES * made * self.corpus.query_tokens)

    def _encoder_from_scratch(self, _stage: Stage[Any]) -> Work:
        if self.recipe.encoder.init_embeddings == "random":
            return self._weights(Work())
        pairs = min(144.0 * 8 * self._all_tokens, _PAIR_BYTES)
        factors = 4.0 * _SVD_VECTORS * self.recipe.encoder.hidden * self.recipe.encoder.words
        return self._weights(Work(parallel=_PPMI * self._all_tokens, memory=max(pairs, factors)))

    def _signal(self, _stage: Stage[Any]) -> Work:
        return Work(serial=_SIGNAL * self._all_tokens, disk=_SIGNAL_BYTES * self._all_tokens)

    def _pretrain(self, _stage: Stage[Any]) -> Work:
        assert self.recipe.pretrain is not None
        cost = estimate.pretraining(self.recipe, self.corpus)
        return self._trained(cost.flops, self.recipe.pretrain, 1)

    def _finetune(self, stage: Stage[Any]) -> Work:
        training, negatives = stage.settings.training, stage.settings.negatives
        queries = stage.settings.queries or self._queries(stage)
        cost = estimate.finetuning(self.recipe, training, negatives, round(queries), self.corpus)
        work = self._trained(cost.flops, training, 1 + negatives)
        if self.recipe.encoder.layers:
            return work
        steps = cost.tokens and estimate.examples(training, round(queries)) / estimate.batch(training)
        bags = _BAG_NUMBER * cost.tokens * self.recipe.encoder.hidden
        scores = estimate.batch(training) ** 2 * (1 + negatives)
        step = _BAG_STEP * estimate.parameters(self.recipe.encoder)[0] + _BAG_SCORE * scores
        return evolve(work, parallel=bags + step * steps)

    def _reranker(self, stage: Stage[Any]) -> Work:
        assert self.recipe.reranker is not None
        cost = estimate.reranking(self.recipe, self.corpus.train)
        return self._trained(cost.flops, stage.settings.training, 1 + self.recipe.reranker.negatives)

    def _index(self, _stage: Stage[Any]) -> Work:
        cost, encoder = estimate.encoding(self.recipe.encoder, self.corpus), self.recipe.encoder
        bags = 0.0 if encoder.layers else _BAG_NUMBER * cost.tokens * encoder.hidden
        copy = self._vector_bytes if self._vector_bytes <= _FAISS_BYTES else 0
        ids = _ID_BYTES * self.corpus.passages
        disk = self._vector_bytes + copy + ids
        return Work(cost.flops, encoder.precision == BFLOAT16, parallel=bags, disk=disk, memory=copy + ids)

    @property
    def _search_bytes(self) -> float:
        return min(self._vector_bytes, _FLAT_BYTES) + _ID_BYTES * self.corpus.passages

    def _bm25(self, stage: Stage[Any]) -> Work:
        disk, more = _BM25_BYTES * self._all_tokens, len(stage.settings.k1) * len(stage.settings.b) - 1
        compared = _WEIGHED * more * self._all_tokens
        return Work(serial=_BM25 * self._all_tokens + compared, disk=disk, memory=3 * disk)

    def _negatives(self, stage: Stage[Any]) -> Work:
        queries, source = self._queries(stage), stage.settings.miners[0]
        hits = queries * getattr(source.config, "depth", _DEPTH)
        found = Work(serial=_MINED * hits, disk=_MINED_BYTES * hits, memory=self._search_bytes)
        serial, flops = found.serial, 0.0
        if source.use in ("dense", "mixed", "hybrid"):
            flops = self._compared(queries)
        if source.use != "dense":
            serial += _BM25_SCORED * queries * self.corpus.passages
        if source.use == "hybrid":
            serial += _FUSED * queries * 2 * FUSED_HITS
        return evolve(found, flops=flops, serial=serial)

    def _compared(self, queries: float) -> float:
        """Return the operations of an exact search: each query with each vector."""
        return 2.0 * queries * self.corpus.passages * self.recipe.encoder.hidden

    def _evaluated(self, split: str) -> int:
        return int(getattr(self.corpus, split, 0))

    def _search(self, stage: Stage[Any]) -> Work:
        settings = stage.settings
        queries, dense, words = self._evaluated(settings.split), len(settings.retrievers), "bm25" in stage.inputs
        systems = dense + words + len(settings.reranked)
        hits = float(systems * queries * min(settings.depth, self.corpus.passages))
        serial = _SEARCHED * hits + _QUERY * systems * queries + words * _BM25_SCORED * queries * self.corpus.passages
        pairs = len(settings.reranked) * queries * settings.rerank_depth
        flops = dense * self._compared(queries) + estimate.scoring(self.recipe, pairs).flops
        return Work(flops, serial=serial, disk=_HIT_BYTES * hits, memory=self._search_bytes)

    def _hybrid(self, stage: Stage[Any]) -> Work:
        test, dev = self._evaluated("test"), self._evaluated("dev") if stage.settings.measure else 0
        hits = 2.0 * (test + dev) * min(stage.settings.depth, self.corpus.passages)
        return Work(serial=_FUSED * hits, disk=_HIT_BYTES * hits / 2 * test / max(test + dev, 1))

    def _evaluation(self, stage: Stage[Any]) -> Work:
        hits = len(stage.settings.systems) * self._evaluated(stage.settings.split)
        return Work(serial=_MEASURED * hits * min(self.recipe.evaluation.depth, self.corpus.passages))

    def _teacher_scores(self, stage: Stage[Any]) -> Work:
        draws = estimate.examples(stage.settings.training, self.corpus.train)
        pairs = draws * (1 + stage.settings.negatives)
        flops = 0.0 if stage.settings.model == GIVEN else estimate.scoring(self.recipe, pairs).flops
        return Work(flops, disk=8.0 * pairs)

    def _report(self, _stage: Stage[Any]) -> Work:
        return Work(serial=2.0)

    def _trained(self, flops: float, training: Any, texts_per_row: int) -> Work:
        """Return the work of a training: its operations, the memory of a step, and the weights on disk."""
        memory = estimate.step_bytes(self.recipe.encoder, training, texts_per_row)
        return self._weights(Work(flops, training.bf16, memory=memory))

    def _weights(self, work: Work) -> Work:
        return evolve(work, disk=4.0 * sum(estimate.parameters(self.recipe.encoder)))


# By the name of a stage's spec. Others copy or choose, or depend on a model of unknown size.
_WORK: Mapping[str, Callable[[_Planner, Stage[Any]], Work]] = {
    "collection": _Planner._collection,
    "wordpiece-vocabulary": _Planner._wordpiece_vocabulary,
    "passage-tokens": _Planner._passage_tokens,
    "query-tokens": _Planner._query_tokens,
    "pseudo-queries": _Planner._pseudo_queries,
    "encoder-from-scratch": _Planner._encoder_from_scratch,
    "signal": _Planner._signal,
    "pretrain": _Planner._pretrain,
    "finetune": _Planner._finetune,
    "reranker": _Planner._reranker,
    "index": _Planner._index,
    "bm25": _Planner._bm25,
    "negatives": _Planner._negatives,
    "search": _Planner._search,
    "hybrid": _Planner._hybrid,
    "evaluation": _Planner._evaluation,
    "teacher-scores": _Planner._teacher_scores,
    "report": _Planner._report,
}
