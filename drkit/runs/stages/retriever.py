"""Stages around a retriever: choose and export one, index its vectors, and mine negatives with it.

`choice` is the retriever that is best on the dev queries; `export` writes the encoder folder that users load, and
`chosen-index` takes its index. `index` encodes all passages; `bm25` indexes their words. `negatives` are mined for
every training query, by the previous retriever or by BM25. The functions at the end load and write the encoders of a
run: from a checkpoint, from the exported folder, or from a model in training.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import asdict, fields, frozen

from drkit.core.files import write_text
from drkit.recipe.schema import Choice
from drkit.recipe.toml import json_text
from drkit.runs.stage import StageRun, StageSpec, TextReading, from_recipe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from drkit.core.engine import Loaded
    from drkit.core.types import BuildContext, Mined
    from drkit.encoders import MaskedLmEncoder
    from drkit.miners.chain import Chain
    from drkit.search import AnyEncoder, Retriever, TextEncoder
    from drkit.train.biencoder import BiEncoder


CHOICE, CHOSEN = "choice.json", "chosen.txt"


@frozen
class ChoiceSettings:
    """The retrievers to choose from, in the order of the table, and the measure that decides."""

    candidates: tuple[str, ...]
    measure: str
    exclude_self: bool = from_recipe("evaluation.exclude_self")


def choose(stage: StageRun[ChoiceSettings]) -> Mapping[str, Any]:
    """Write `choice.json`: the chosen retriever, and the value of each; returns the same.

    Of equal retrievers the earlier one is chosen. `chosen.txt` has only the name, so that other values repeat the
    export only if the choice changes.
    """
    from drkit.data.corpus import collection_of
    from drkit.evaluate import evaluate
    from drkit.search import read_run

    settings, runs = stage.settings, stage.inputs["runs"]
    judgements = list(collection_of({"dev": stage.inputs["judged"]}).judgements("dev"))
    rankings = {name: read_run(runs / f"{name}.trec") for name in settings.candidates}
    values = {
        name: evaluate(found, judgements, [settings.measure], exclude_self=settings.exclude_self).mean(settings.measure)
        for name, found in rankings.items()
    }
    choice = {
        "chosen": max(values, key=lambda name: values[name]),
        "last": settings.candidates[-1],
        "measure": settings.measure,
        "queries": len({judgement.query_id for judgement in judgements}),
        "values": values,
    }
    write_text(stage.folder / CHOICE, json_text(choice))
    write_text(stage.folder / CHOSEN, str(choice["chosen"]))
    stage.progress.note(describe_choice(choice))
    return choice


def describe_choice(choice: Mapping[str, Any]) -> str:
    """Return in words which retriever is exported, and why.

    >>> choice = {"chosen": "as-it-is", "last": "retriever-1", "measure": "RR@10", "queries": 9}
    >>> describe_choice({**choice, "values": {"as-it-is": 0.5, "retriever-1": 0.25}})
    'exported: as-it-is, the best of 2 retrievers on 9 dev queries (RR@10 0.500; retriever-1, the last, 0.250)'
    """
    chosen, last, values, measure = (choice[key] for key in ("chosen", "last", "values", "measure"))
    against = "the last" if chosen == last else f"{last}, the last, {values[last]:.3f}"
    return (
        f"exported: {chosen}, the best of {len(values)} retrievers on {choice['queries']:,} dev queries "
        f"({measure} {values[chosen]:.3f}; {against})"
    )


def chosen_input(inputs: Mapping[str, Path], kind: str) -> Path:
    """Return the input `KIND/NAME` of the chosen retriever, or the only one if there is no choice."""
    named = {name.partition("/")[2]: path for name, path in inputs.items() if name.startswith(f"{kind}/")}
    if "choice" not in inputs:
        (only,) = named.values()
        return only
    return named[inputs["choice"].read_text(encoding="utf-8")]


CHOOSE = StageSpec(
    name="choice",
    version=1,
    settings=ChoiceSettings,
    run=choose,
    inputs={"judged": "the dev split of the collection", "runs": "the retrievers' rankings of the dev queries"},
)


@frozen
class ExportSettings:
    """How the exported encoder reads texts."""

    reading: TextReading


def export_chosen(stage: StageRun[ExportSettings]) -> Mapping[str, Any]:
    """Write the folder for SentenceTransformer and AutoModel; returns its origin and number of parameters."""
    from drkit.runs.manifest import versions

    source = chosen_input(stage.inputs, "checkpoint")
    encoder = load_text_encoder(source, stage.settings.reading, device="cpu")
    parameters = write_encoder(encoder, stage.folder, {"stage": source.name, **versions()})
    return {"from": source.name, "parameters": parameters}


EXPORT = StageSpec(
    name="export",
    version=2,
    settings=ExportSettings,
    run=export_chosen,
    inputs={"checkpoint/*": "a retriever's checkpoint", "choice": "which one is exported, if there are several"},
)


_VECTORS, _INDEX = "vectors", ".index"


@frozen
class IndexSettings:
    """How passages are encoded, and the kind of index: flat, hnsw, ivf-pq."""

    kind: str
    reading: TextReading


@frozen
class Bm25Settings:
    """No settings: BM25 has the defaults of `Bm25Retriever`."""


def index_vectors(stage: StageRun[IndexSettings]) -> Mapping[str, Any]:
    """Write the index; returns its size and kind, and the measured recall of an approximate one.

    All processes, or the machines of the engine, encode shards of the vectors, which are kept until the index is
    written, so that an interrupted stage can resume.
    """
    from drkit.core import processes
    from drkit.core.engine import Loaded
    from drkit.core.files import CHECKPOINTS
    from drkit.core.processes import Shard
    from drkit.search import Vectors, build_index, encode_corpus
    from drkit.search.index import LOW_RECALL

    joint = processes.count() > 1
    # Resolved: in other processes the folder is a link to the first one's folder, which may not exist yet.
    vectors = (stage.folder / CHECKPOINTS).resolve() / _VECTORS
    encoder = Loaded(load_text_encoder, stage.inputs["encoder"], stage.settings.reading)
    shard = Shard.from_environment() if joint else Shard()
    encode_corpus(encoder, _passage_tokens(stage), vectors, shard=shard, engine=stage.engine)
    if joint:
        processes.barrier()
        if processes.rank():
            return {}
    scratch = stage.folder / _INDEX
    shutil.rmtree(scratch, ignore_errors=True)  # an interrupted attempt may have moved only some of its files
    index = build_index(Vectors.open(vectors), scratch, kind=stage.settings.kind)
    if index.facts.get("recall@10", 1.0) < LOW_RECALL:
        stage.progress.note(
            f"the {stage.settings.kind} index finds {index.facts['recall@10']:.1%} of the 10 nearest passages; "
            f"--set evaluation.index=flat finds all"
        )
    for path in scratch.iterdir():
        path.replace(stage.folder / path.name)
    scratch.rmdir()
    return {"vectors": len(index), "dimensions": index.dimension, "kind": stage.settings.kind, **index.facts}


def index_words(stage: StageRun[Bm25Settings]) -> Mapping[str, Any]:
    """Write BM25's index of all passages; returns its size."""
    from drkit.data.corpus import StoredCorpus
    from drkit.search import Bm25Retriever

    retriever = Bm25Retriever().index(StoredCorpus(stage.inputs["passages"]))
    retriever.save(stage.folder)
    return {"passages": len(retriever)}


def _passage_tokens(stage: StageRun[IndexSettings]) -> Iterator[tuple[str, NDArray[Any]]]:
    from drkit.data.corpus import StoredCorpus
    from drkit.data.store import TokenStore

    store = TokenStore.open(stage.inputs["tokens"])
    for index, doc_id in enumerate(StoredCorpus(stage.inputs["passages"]).doc_ids):
        if index % 1000 == 0:
            stage.progress.advance(index, len(store), "passages")
        yield doc_id, store.tokens(index)


@frozen
class ChosenIndexSettings:
    """No settings: the index is copied unchanged."""


def copy_index(stage: StageRun[ChosenIndexSettings]) -> Mapping[str, Any]:
    """Link or copy the index of the exported retriever; returns which one, and what its manifest says."""
    from drkit.core.files import link_or_copy
    from drkit.runs.manifest import FILE, read_manifest

    source = chosen_input(stage.inputs, "index")
    shutil.copytree(
        source, stage.folder, ignore=shutil.ignore_patterns(FILE), copy_function=link_or_copy, dirs_exist_ok=True
    )
    manifest = read_manifest(source)
    return {"from": source.name, **(manifest.metrics if manifest else {})}


INDEX = StageSpec(
    name="index",
    version=1,
    settings=IndexSettings,
    run=index_vectors,
    inputs={"encoder": "an encoder's folder", "tokens": "the passages' tokens", "passages": "for their ids"},
    resumable=True,
    joint=True,
)
BM25 = StageSpec(
    name="bm25",
    version=2,
    settings=Bm25Settings,
    run=index_words,
    inputs={"passages": "the passages to index"},
)
CHOSEN_INDEX = StageSpec(
    name="chosen-index",
    version=1,
    settings=ChosenIndexSettings,
    run=copy_index,
    inputs={"index/*": "a retriever's index", "choice": "which retriever is exported, if there are several"},
)


@frozen
class NegativeSettings:
    """A chain of miners: a source, then filters; reading: how the retriever reads texts, None without one."""

    miners: tuple[Choice, ...]
    reading: TextReading | None
    exclude_self: bool = from_recipe("evaluation.exclude_self")
    seed: int = from_recipe("seed")


def mine_negatives(stage: StageRun[NegativeSettings]) -> Mapping[str, Any]:
    """Write `negatives.arrow`; returns counts, dropped candidates by reason, and hashes of the weights."""
    from drkit.data.corpus import collection_of
    from drkit.miners.chain import build_chain, weight_hashes, write_negatives
    from drkit.miners.specs import refresh_settings

    settings = stage.settings
    collection = collection_of(stage.inputs)
    context = _mining_context(stage.inputs, settings.reading, settings.seed)
    if refresh_settings(settings.miners) and context.retriever is None:
        stage.progress.note("the model in training mines all negatives, including those of the first epoch")
        return write_negatives((), collection.corpus, stage.folder)
    miner = build_chain(settings.miners, stage.registry, context)
    counts = write_negatives(_mined(stage, miner, context), collection.corpus, stage.folder)
    if counts["queries_without"]:
        dropped = ", ".join(f"{why} {count:,}" for why, count in counts["dropped"].items()) or "none"
        stage.progress.note(
            f"{counts['queries_without']:,} of {counts['queries']:,} queries have no hard negative; dropped: {dropped}"
        )
    return {**counts, "weights": weight_hashes(context)}


def _mining_context(inputs: Mapping[str, Path], reading: TextReading | None, seed: int) -> BuildContext:
    """Return what miners are built with: the retriever and the re-ranker, as far as they are inputs."""
    from drkit.core.processes import local_device
    from drkit.core.types import BuildContext
    from drkit.data.corpus import collection_of
    from drkit.search import Reranker

    searches = "index" in inputs and reading is not None
    return BuildContext(
        retriever=load_retriever(inputs["encoder"], inputs["index"], reading) if searches and reading else None,
        reranker=Reranker.load(inputs["reranker"], local_device()) if "reranker" in inputs else None,
        negatives=collection_of(inputs).negatives("train"),
        seed=seed,
    )


def _mined(stage: StageRun[NegativeSettings], miner: Chain, context: BuildContext) -> Iterator[Mined]:
    """Yield the negatives of all training queries, mined in this process or on the engine."""
    from drkit.core.engine import Loaded
    from drkit.core.file_parts import FileParts
    from drkit.core.files import CHECKPOINTS
    from drkit.data.corpus import collection_of
    from drkit.miners.blocks import chain_text, mine_in_blocks
    from drkit.miners.chain import mining_requests, weight_hashes

    settings, kept = stage.settings, stage.folder / CHECKPOINTS
    collection, parts = collection_of(stage.inputs), FileParts(kept / "mined")
    total = len(collection.positives("train"))
    requests = mining_requests(collection, exclude_self=settings.exclude_self)
    if not parts.are_needed(stage.engine):
        miner.index(collection.corpus)
        for done, mined in enumerate(miner.mine(requests, miner.depth), start=1):
            stage.progress.advance(done, total, "queries")
            yield mined
        return
    miner.save_index(kept / "index", collection.corpus)
    given = tuple(stage.inputs.items()), settings.reading, settings.seed
    loaded = Loaded(
        load_chain, chain_text(settings.miners), *given, kept / "index", tuple(weight_hashes(context).items())
    )
    yield from mine_in_blocks(
        loaded,
        requests,
        miner.depth,
        size=miner.queries_per_block(miner.depth),
        parts=parts,
        engine=stage.engine,
        accelerated=context.retriever is not None or context.reranker is not None,
        on_progress=lambda done: stage.progress.advance(done, total, "queries"),
    )


def load_chain(
    miners: str,
    inputs: tuple[tuple[str, Path], ...],
    reading: TextReading | None,
    seed: int,
    index: Path,
    weights: tuple[tuple[str, str], ...],
) -> Chain:
    """Open a stage's chain of miners in a worker; miners, index, weights: see `open_chain`."""
    from drkit.data.corpus import collection_of
    from drkit.miners.blocks import open_chain

    context = _mining_context(dict(inputs), reading, seed)
    return open_chain(miners, context, collection_of(dict(inputs)).corpus, index, dict(weights))


NEGATIVES = StageSpec(
    name="negatives",
    version=2,
    settings=NegativeSettings,
    run=mine_negatives,
    inputs={
        "passages": "the passages to mine",
        "train": "training queries, judgements and given negatives",
        "encoder": "the previous retriever",
        "index": "its index",
        "reranker": "a cross-encoder, for filters",
    },
    resumable=True,
)


def load_text_encoder(folder: Path, reading: TextReading, *, device: str | None = None) -> AnyEncoder:
    """Load the encoder (or both encoders) of a stage's folder; an exported folder's own settings replace `reading`."""
    from drkit.core.processes import local_device
    from drkit.encoders.folder import MODULES, PASSAGES
    from drkit.search import DualEncoder
    from drkit.search.text_encoder import read_encoder
    from drkit.train.checkpoints import load_encoder, load_tokenizer

    device = device or local_device()
    if (folder / MODULES).exists():
        return read_encoder(folder, device)
    tokenizer = load_tokenizer(str(folder))
    encoder = encoder_of(load_encoder(folder, pooling=reading.pooling).to(device), tokenizer, reading)
    if not (folder / PASSAGES).is_dir():
        return encoder
    passages = load_encoder(folder / PASSAGES, pooling=reading.pooling).to(device)
    return DualEncoder(encoder, encoder_of(passages, tokenizer, reading))


def load_retriever(encoder: Path, index: Path, reading: TextReading) -> Retriever:
    """Load the encoder and the index of two stages' folders."""
    from drkit.search import Retriever, open_index

    return Retriever(load_text_encoder(encoder, reading), open_index(index))


def check_retriever(retriever: Retriever, identity: str) -> Retriever:
    """Return the retriever that a worker has loaded. Raises DrkitError if it has another encoder."""
    from drkit.search.encode import check_identity

    check_identity(retriever.encoder, identity)
    return retriever


def loaded_retriever(encoder: Path, index: Path, reading: TextReading) -> Loaded[Retriever]:
    """Return the retriever of two stages' folders, loaded here, for the tasks of an engine, which load it once each."""
    from drkit.core.engine import Loaded
    from drkit.search.encode import identity_text

    loaded = Loaded(load_retriever, encoder, index, reading)
    return loaded.checked(check_retriever, identity_text(loaded.value.encoder.identity()))


def encoders_of(module: BiEncoder, tokenizer: Any, reading: TextReading) -> AnyEncoder:
    """Return the text encoder(s) of a bi-encoder, which may be in training."""
    from drkit.search import DualEncoder

    encoder = encoder_of(module.encoder, tokenizer, reading)
    if module.passage_encoder is None:
        return encoder
    return DualEncoder(encoder, encoder_of(module.passage_encoder, tokenizer, reading))


def encoder_of(encoder: MaskedLmEncoder, tokenizer: Any, reading: TextReading) -> TextEncoder:
    """Return the text encoder of a masked LM, which may be in training."""
    from drkit.search import TextEncoder

    return TextEncoder(encoder.backbone, tokenizer, **asdict(reading), token_weights=encoder.token_weights)


def write_encoder(encoder: AnyEncoder, folder: Path, provenance: Mapping[str, Any]) -> int:
    """Write the folder that users load, with one encoder or two; returns the number of parameters."""
    from drkit.encoders.export import export_dual, export_encoder
    from drkit.search import DualEncoder, TextEncoder

    sides = [encoder.queries, encoder.passages] if isinstance(encoder, DualEncoder) else [encoder]
    declared = {field.name: getattr(sides[-1], field.name) for field in fields(TextEncoder)}
    for name in ("model", "tokenizer", "token_weights", "token_budget", "precision"):
        del declared[name]
    declared["query_length"] = sides[0].query_length
    parts = [(side.model, side.tokenizer) for side in sides]
    weights = [side.token_weights for side in sides]
    if isinstance(encoder, DualEncoder):
        both = (weights[0], weights[1])
        export_dual(parts[0], parts[1], folder, token_weights=both, provenance=provenance, **declared)
    else:
        export_encoder(*parts[0], folder, token_weights=weights[0], provenance=provenance, **declared)
    modules = [module for module in (*(model for model, _ in parts), *weights) if module is not None]
    return sum(p.numel() for module in modules for p in module.parameters())
