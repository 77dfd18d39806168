"""Stages around a retriever: choose and export one, and index its vectors.

`choice` is the retriever that is best on the dev queries; `export` writes the encoder folder that users load, and
`chosen-index` takes its index. `index` encodes all passages; `bm25` indexes their words. The functions at the end load
and write the encoders of a run: from a checkpoint, from the exported folder, or from a model in training.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import asdict, fields, frozen

from drkit.core.files import filling_folder, write_text
from drkit.recipe.toml import json_text
from drkit.runs.stage import WEIGHTS, Stage, StageRun, StageSpec, TextReading, from_recipe
from drkit.runs.work import FORWARD, Sizes, Work, reading_work

if TYPE_CHECKING:
    from drkit.core.engine import Loaded
    from drkit.encoders import MaskedLmEncoder
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
    """Return the input `KIND/NAME` of the chosen retriever, or the only one without a choice."""
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
    folders=("choice",),
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
    with filling_folder(stage.folder) as folder:
        parameters = write_encoder(encoder, folder, {"stage": source.name, **versions()})
    return {"from": source.name, "parameters": parameters}


# The folder of the encoder that a run starts from, as it reads texts itself.
AS_IT_IS = "as-it-is"

EXPORT = StageSpec(
    name="export",
    version=2,
    settings=ExportSettings,
    run=export_chosen,
    inputs={"checkpoint/*": "a retriever's checkpoint", "choice": "which one is exported, if there are several"},
    folders=("encoder", AS_IT_IS),
    prunable=WEIGHTS,
)


_VECTORS = "vectors"


@frozen
class IndexSettings:
    """How passages are encoded, and the kind of index: flat, hnsw, ivf-pq."""

    kind: str
    reading: TextReading


@frozen
class Bm25Settings:
    """Values of k1 and b. measure: decides between several of them on the dev queries, to this depth; None for one."""

    k1: tuple[float, ...]
    b: tuple[float, ...]
    measure: str | None
    depth: int
    exclude_self: bool
    language: str = from_recipe("evaluation.bm25_language")


def index_vectors(stage: StageRun[IndexSettings]) -> Mapping[str, Any]:
    """Write the index; returns its size and kind, and the measured recall of an approximate one.

    All processes, or the machines of the engine, encode shards of the vectors, which are kept until the index is
    written, so that an interrupted stage can resume.
    """
    from drkit.core import processes
    from drkit.core.engine import Loaded
    from drkit.core.files import CHECKPOINTS
    from drkit.core.processes import Shard
    from drkit.data.corpus import StoredCorpus
    from drkit.data.store import TokenStore
    from drkit.search import Vectors, build_index, encode_corpus
    from drkit.search.index import LOW_RECALL

    joint = processes.count() > 1
    # Resolved: in other processes the folder is a link to the first one's folder, which may not exist yet.
    vectors = (stage.folder / CHECKPOINTS).resolve() / _VECTORS
    encoder = Loaded(load_text_encoder, stage.inputs["encoder"], stage.settings.reading)
    shard = Shard.from_environment() if joint else Shard()
    corpus, store = StoredCorpus(stage.inputs["passages"]), TokenStore.open(stage.inputs["tokens"])
    rows = ((doc_id, store.tokens(number)) for number, doc_id in enumerate(corpus.ids()))
    encode_corpus(
        encoder,
        rows,
        vectors,
        shard=shard,
        engine=stage.engine,
        on_progress=lambda done: stage.progress.advance(done, len(store), "passages"),
    )
    if joint:
        processes.barrier()
        if processes.rank():
            return {}
    with filling_folder(stage.folder) as folder:
        index = build_index(Vectors.open(vectors), folder, kind=stage.settings.kind)
    if index.facts.get("recall@10", 1.0) < LOW_RECALL:
        stage.progress.note(
            f"the {stage.settings.kind} index finds {index.facts['recall@10']:.1%} of the 10 nearest passages; "
            f"--set evaluation.index=flat finds all"
        )
    return {"vectors": len(index), "dimensions": index.dimension, "kind": stage.settings.kind, **index.facts}


def index_words(stage: StageRun[Bm25Settings]) -> Mapping[str, Any]:
    """Write BM25's index of all passages; returns its size, k1 and b, and the dev mean of each pair that was tried."""
    from drkit.data.corpus import StoredCorpus, collection_of
    from drkit.evaluate.tuning import choose_bm25, describe_bm25

    settings, passages = stage.settings, StoredCorpus(stage.inputs["passages"])
    tried = [(k1, b) for k1 in settings.k1 for b in settings.b]
    dev = collection_of({"dev": stage.inputs["dev"]}) if settings.measure else None
    retriever, facts = choose_bm25(
        passages,
        tried,
        (dev.queries("dev"), dev.judgements("dev")) if dev else None,
        settings.measure or "",
        depth=settings.depth,
        exclude_self=settings.exclude_self,
        language=settings.language,
        on_progress=lambda done: stage.progress.advance(done, len(tried), "variants"),
    )
    if dev:
        stage.progress.note(describe_bm25(facts))
    for note in retriever.notes():
        stage.progress.note(note)
    retriever.save(stage.folder)
    return {"passages": len(retriever), **facts}


def chosen_on_dev(facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what a run has chosen on its dev queries, a line each: the exported retriever, and BM25's k1 and b.

    facts: what each finished stage has recorded.
    """
    from drkit.evaluate.tuning import describe_bm25

    lines = [describe_choice(facts["choice"])] if "choice" in facts else []
    return [*lines, *([describe_bm25(facts["bm25"])] if "means" in facts.get("bm25", {}) else [])]


@frozen
class ChosenIndexSettings:
    """No settings: the index is copied unchanged."""


def copy_index(stage: StageRun[ChosenIndexSettings]) -> Mapping[str, Any]:
    """Link or copy the index of the exported retriever; returns which one, and what its manifest says."""
    from drkit.core.files import MANIFEST, link_or_copy
    from drkit.runs.manifest import read_manifest

    source = chosen_input(stage.inputs, "index")
    shutil.copytree(
        source, stage.folder, ignore=shutil.ignore_patterns(MANIFEST), copy_function=link_or_copy, dirs_exist_ok=True
    )
    manifest = read_manifest(source)
    return {"from": source.name, **(manifest.metrics if manifest else {})}


# Bytes of an id. Of vectors: up to _FAISS_BYTES they are also kept for faiss, up to _FLAT_BYTES read into memory.
_ID_BYTES, _FAISS_BYTES, _FLAT_BYTES = 16, 2**30, 4 * 2**30
# Seconds for each token that BM25 indexes, and for each of its other pairs of k1 and b; bytes of each token.
_INDEXED, _WEIGHED, _WORD_BYTES = 1.2e-6, 1e-7, 4.7
# Seconds for each passage that BM25 scores for a query, for each query of BM25, for each query
# of a retriever, and for each of its scores that the best are selected from.
_SCORED, _LOOKED_UP, _SEARCHED, _SELECTED = 1.1e-8, 3e-4, 1e-4, 1e-8


def _index_work(stage: Stage[IndexSettings], sizes: Sizes) -> Work:
    length, vectors = stage.settings.reading.passage_length, _vector_bytes(sizes)
    copy, ids = vectors if vectors <= _FAISS_BYTES else 0.0, float(_ID_BYTES * sizes.passages)
    work = reading_work(sizes.encoder, sizes.passage_tokens(length), sizes.collection.passage_tokens(length))
    return work + Work(memory=copy + ids, disk=vectors + copy + ids)


def _bm25_work(stage: Stage[Bm25Settings], sizes: Sizes) -> Work:
    settings, kept = stage.settings, _WORD_BYTES * sizes.tokens
    pairs = len(settings.k1) * len(settings.b)
    searched = pairs * sizes.count(str(stage.inputs["dev"])) if settings.measure else 0.0
    seconds = (_INDEXED + _WEIGHED * (pairs - 1)) * sizes.tokens
    return Work(seconds=seconds + bm25_seconds(searched, sizes), memory=3 * kept, disk=kept)


def bm25_seconds(queries: float, sizes: Sizes) -> float:
    """Return the seconds in which BM25 searches for so many queries."""
    return queries * (_LOOKED_UP + _SCORED * sizes.passages)


def dense_work(queries: float, sizes: Sizes) -> Work:
    """Return the work of an exact search for so many queries: each with each vector."""
    encoder = sizes.encoder
    read = reading_work(encoder, queries * sizes.collection.query_tokens(), sizes.collection.query_tokens())
    compared = FORWARD * queries * sizes.passages * encoder.hidden
    memory = min(_vector_bytes(sizes), _FLAT_BYTES) + _ID_BYTES * sizes.passages
    selected = _SELECTED * queries * sizes.passages
    return read + Work(flops=compared, seconds=_SEARCHED * queries, parallel=selected, memory=memory)


def _vector_bytes(sizes: Sizes) -> float:
    return 4.0 * sizes.passages * sizes.encoder.hidden


INDEX = StageSpec(
    name="index",
    version=2,
    settings=IndexSettings,
    run=index_vectors,
    inputs={"encoder": "an encoder's folder", "tokens": "the passages' tokens", "passages": "for their ids"},
    resumable=True,
    joint=True,
    folders=("index-*",),
    prunable="*",
    work=_index_work,
)
BM25 = StageSpec(
    name="bm25",
    version=3,
    settings=Bm25Settings,
    run=index_words,
    inputs={"passages": "the passages to index", "dev": "dev queries and judgements, to choose k1 and b by"},
    folders=("bm25",),
    work=_bm25_work,
)
CHOSEN_INDEX = StageSpec(
    name="chosen-index",
    version=1,
    settings=ChosenIndexSettings,
    run=copy_index,
    inputs={"index/*": "a retriever's index", "choice": "which retriever is exported, if there are several"},
    folders=("index",),
)


def load_text_encoder(folder: Path, reading: TextReading, *, device: str | None = None) -> AnyEncoder:
    """Load the encoder (or both encoders) of a stage's folder.

    An exported folder's own settings replace those of `reading`, except its precision.
    """
    from drkit.core.processes import local_device
    from drkit.encoders.folder import MODULES, PASSAGES
    from drkit.search import DualEncoder
    from drkit.search.text_encoder import read_encoder
    from drkit.train.checkpoints import load_encoder, load_tokenizer

    device = device or local_device()
    if (folder / MODULES).exists():
        return read_encoder(folder, device).evolve(precision=reading.precision)
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
