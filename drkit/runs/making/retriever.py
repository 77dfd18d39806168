"""Choose, export and index a retriever; load and write the encoders of a run.

These come from a checkpoint, from the exported folder, or from a model in training.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve

from drkit.core import processes
from drkit.core.engine import Loaded
from drkit.core.files import CHECKPOINTS, MANIFEST, link_or_copy, write_json, write_text
from drkit.core.processes import Shard, local_device
from drkit.core.spec import NoSettings
from drkit.data.corpus import StoredCorpus, collection_of
from drkit.data.data_sets import PassageRange
from drkit.data.store import TokenStore
from drkit.encoders import MaskedLmEncoder
from drkit.encoders.card import EncoderCard
from drkit.encoders.declarations import MODULES
from drkit.encoders.export import export_dual, export_encoder
from drkit.encoders.folder import PASSAGE_ENCODER
from drkit.encoders.learned_pooling import saved_pooling
from drkit.encoders.pooling import POOLINGS
from drkit.evaluate import balanced, evaluate
from drkit.evaluate.names import AS_IT_IS
from drkit.evaluate.systems import describe_bm25
from drkit.evaluate.tuning import choose_plainly, tune_bm25
from drkit.runs.manifest import read_manifest, versions
from drkit.runs.stage import StageRun
from drkit.runs.stages.retriever import (
    CHOICE,
    CHOSEN,
    Bm25Settings,
    ChoiceSettings,
    ExportSettings,
    IndexSettings,
    describe_choice,
)
from drkit.search import (
    AnyEncoder,
    DualEncoder,
    Retriever,
    TextEncoder,
    Vectors,
    build_index,
    encode_corpus,
    open_index,
    read_run,
)
from drkit.search.blocks import same_retriever
from drkit.search.data_sets import SeparateRetriever
from drkit.search.dual_encoder import read_encoder
from drkit.search.encode import stored_texts
from drkit.search.index import LOW_RECALL
from drkit.search.languages import note_stemmer
from drkit.search.run_files import ARROW
from drkit.train.biencoder import BiEncoder
from drkit.train.checkpoints import load_encoder, load_tokenizer


def choose(stage: StageRun[ChoiceSettings]) -> Mapping[str, Any]:
    """Write `choice.json`: the chosen retriever, and the value of each; returns the same.

    The first candidate, from which the others were trained, stays, unless the best one gains more than one standard
    error over it (`choose_plainly`). `chosen.txt` has only the name, so that other values repeat the export only if the
    choice changes.
    """
    settings, runs = stage.settings, stage.inputs["runs"]
    judgements = list(collection_of({"dev": stage.inputs["judged"]}).judgements("dev"))
    rankings = {name: read_run(runs / f"{name}{ARROW}") for name in settings.candidates}
    scores = {
        name: evaluate(found, judgements, [settings.measure], exclude_self=settings.exclude_self)
        for name, found in rankings.items()
    }
    scores = {name: balanced(one, settings.data_sets) for name, one in scores.items()}
    found = choose_plainly({name: one.per_query[settings.measure] for name, one in scores.items()})
    choice = {
        "chosen": found.chosen,
        "best": found.best,
        "last": settings.candidates[-1],
        "measure": settings.measure,
        "queries": found.queries,
        "values": {name: one.mean(settings.measure) for name, one in scores.items()},
        **found.facts(),
    }
    write_json(stage.folder / CHOICE, choice)
    write_text(stage.folder / CHOSEN, str(choice["chosen"]))
    stage.progress.note(describe_choice(choice))
    return choice


def chosen_input(inputs: Mapping[str, Path], kind: str) -> Path:
    """Return the input `KIND/NAME` of the chosen retriever, or the only one without a choice."""
    named = {name.partition("/")[2]: path for name, path in inputs.items() if name.startswith(f"{kind}/")}
    if "choice" not in inputs:
        (only,) = named.values()
        return only
    return named[inputs["choice"].read_text(encoding="utf-8")]


def export_chosen(stage: StageRun[ExportSettings]) -> Mapping[str, Any]:
    """Write the folder for SentenceTransformer and AutoModel; returns its origin and number of parameters."""
    source = chosen_input(stage.inputs, "checkpoint")
    encoder = load_text_encoder(source, stage.settings.reading, device="cpu")
    parameters = write_encoder(encoder, stage.folder, {"stage": source.name, **versions()})
    return {"from": source.name, "parameters": parameters}


_VECTORS = "vectors"
# Vectors whose lengths are looked at, and the standard deviation, as a share of the mean, from which lengths vary.
_MEASURED, _VARIES = 10_000, 0.02


def index_vectors(stage: StageRun[IndexSettings]) -> Mapping[str, Any]:
    """Write the index; returns its size and kind, and the measured recall of an approximate one.

    All processes, or the machines of the engine, encode shards of the vectors, which are kept until the index is
    written, so that an interrupted stage can resume.
    """
    joint = processes.process_count() > 1
    # Resolved: in other processes the folder is a link to the first one's folder, which may not exist yet.
    vectors = (stage.folder / CHECKPOINTS).resolve() / _VECTORS
    encoder = Loaded(load_text_encoder, stage.inputs["encoder"], stage.settings.reading)
    shard = Shard.from_environment() if joint else Shard()
    corpus = StoredCorpus(stage.inputs["passages"])
    store = TokenStore.open(stage.inputs["tokens"]) if "tokens" in stage.inputs else None
    encode_corpus(
        encoder,
        stored_texts(corpus, store, encoder),
        vectors,
        shard=shard,
        engine=stage.engine,
        on_progress=lambda done: stage.progress.advance(done, len(corpus) if store else None, "passages"),
    )
    if joint:
        processes.barrier()
        if processes.rank():
            return {}
    made = Vectors.open(vectors)
    is_compared = stage.inputs["encoder"].name == AS_IT_IS and stage.settings.reading.similarity == "dot"
    if is_compared and not made.is_sparse and (warned := note_lengths(made.shards)):
        stage.progress.note(warned)
    index = build_index(made, stage.folder, kind=stage.settings.kind)
    if index.facts.get("recall@10", 1.0) < LOW_RECALL:
        stage.progress.note(
            f"the {stage.settings.kind} index finds {index.facts['recall@10']:.1%} of the 10 nearest passages; "
            f"--set evaluation.index=flat finds all"
        )
    return {"vectors": len(index), "dimensions": index.dimension, "kind": index.kind, **index.facts}


def note_lengths(vectors: Any) -> str:
    """Say that the lengths of an existing encoder's vectors [N,D] vary under dot product; empty if they do not.

    Reads the first vectors, as many as `_MEASURED`.

    >>> note_lengths(np.eye(3))
    ''
    """
    lengths = np.linalg.norm(np.asarray(vectors[:_MEASURED], dtype=np.float32), axis=1)
    if lengths.std() <= _VARIES * lengths.mean():
        return ""
    return (
        f"the vectors of the encoder as it is have lengths from {lengths.min():.3g} to {lengths.max():.3g} (standard "
        f"deviation {lengths.std() / lengths.mean():.1%} of their mean), and dot product prefers long ones. An encoder "
        f"that was trained for cosine finds less so: --set finetune.loss.similarity=cosine"
    )


def index_words(stage: StageRun[Bm25Settings]) -> Mapping[str, Any]:
    """Write BM25's index of all passages; returns its size, what was chosen, and the dev mean of all that was tried."""
    settings, passages = stage.settings, StoredCorpus(stage.inputs["passages"])
    tried = [(k1, b) for k1 in settings.k1 for b in settings.b]
    dev = collection_of({"dev": stage.inputs["dev"]}) if settings.measure else None
    tune = partial(
        tune_bm25,
        measure=settings.measure or "",
        depth=settings.depth,
        exclude_self=settings.exclude_self,
        language=settings.language,
        query_language=settings.query_language,
        split_queries=settings.split_queries,
        on_progress=lambda done: stage.progress.advance(done, len(tried), "variants"),
    )
    judged = (dev.queries("dev"), dev.judgements("dev")) if dev else None
    sets = {name: PassageRange.of(passages, name, settings.data_sets) for name in settings.data_sets}
    retriever, facts = tune(sets or passages, tried, judged)
    retriever.save(stage.folder)
    if dev:
        stage.progress.note(describe_bm25(facts))
    for name, one in retriever.sets.items() if sets else [("", retriever)]:
        if warned := note_stemmer(one):
            stage.progress.note(f"{name}: {warned}" if name else warned)
    return {"passages": len(retriever), **facts}


def copy_index(stage: StageRun[NoSettings]) -> Mapping[str, Any]:
    """Link or copy the index of the exported retriever; returns which one, and what its manifest says."""
    source = chosen_input(stage.inputs, "index")
    shutil.copytree(
        source, stage.folder, ignore=shutil.ignore_patterns(MANIFEST), copy_function=link_or_copy, dirs_exist_ok=True
    )
    manifest = read_manifest(source)
    return {"from": source.name, **(manifest.metrics if manifest else {})}


def load_text_encoder(folder: Path, card: EncoderCard, *, device: str | None = None) -> AnyEncoder:
    """Load the encoder (or both encoders) of a stage's folder.

    An exported folder's own settings replace those of `card`, except its precision; so does the pooling of a checkpoint
    that was trained with its own.
    """
    device = device or local_device()
    if (folder / MODULES).exists():
        return read_encoder(folder, device).evolve(precision=card.precision)
    tokenizer, card = load_tokenizer(str(folder)), evolve(card, pooling=saved_pooling(folder) or card.pooling)
    encoder = encoder_of(load_encoder(folder, pooling=card.pooling).to(device), tokenizer, card)
    if not (folder / PASSAGE_ENCODER).is_dir():
        return encoder
    passages = load_encoder(folder / PASSAGE_ENCODER, pooling=card.pooling).to(device)
    return DualEncoder(encoder, encoder_of(passages, tokenizer, card))


def load_retriever(encoder: Path, index: Path, card: EncoderCard, part: str = "") -> Retriever:
    """Load the encoder and the index of two stages' folders; part: see `Retriever`."""
    return Retriever(load_text_encoder(encoder, card), open_index(index), part=part)


def load_separate(
    encoder: Path, index: Path, card: EncoderCard, part: str, data_sets: tuple[str, ...]
) -> SeparateRetriever:
    """Load what `load_retriever` does, to search each data set by itself."""
    return SeparateRetriever.of(load_retriever(encoder, index, card, part), data_sets)


def loaded_retriever(
    encoder: Path, index: Path, card: EncoderCard, part: str = "", data_sets: tuple[str, ...] = ()
) -> Loaded[Any]:
    """Return the retriever of two stages' folders, loaded here, for the tasks of an engine, which load it once each.

    data_sets: the names of several, each of which is searched by itself.
    """
    if data_sets:
        separate: Any = Loaded(load_separate, encoder, index, card, part, data_sets)
        return same_retriever(separate)
    return same_retriever(Loaded(load_retriever, encoder, index, card, part))


def encoders_of(module: BiEncoder, tokenizer: Any, card: EncoderCard) -> AnyEncoder:
    """Return the text encoder(s) of a bi-encoder, which may be in training."""
    encoder = encoder_of(module.encoder, tokenizer, card)
    if module.passage_encoder is None:
        return encoder
    return DualEncoder(encoder, encoder_of(module.passage_encoder, tokenizer, card))


def encoder_of(encoder: MaskedLmEncoder, tokenizer: Any, card: EncoderCard) -> TextEncoder:
    """Return the text encoder of a masked LM, which may be in training."""
    return TextEncoder(
        card,
        encoder.text_model,
        tokenizer,
        token_weights=encoder.token_weights,
        learned_pooling=None if encoder.pooling in POOLINGS else encoder.learned_pooling,
    )


def write_encoder(encoder: AnyEncoder, folder: Path, provenance: Mapping[str, Any]) -> int:
    """Write the folder that users load, with one encoder or two; returns the number of parameters."""
    if isinstance(encoder, DualEncoder):
        export_dual(encoder.queries, encoder.passages, folder, provenance=provenance)
    else:
        export_encoder(encoder, folder, provenance=provenance)
    sides = [encoder.queries, encoder.passages] if isinstance(encoder, DualEncoder) else [encoder]
    modules = [module for side in sides for module in (side.model, side.token_weights, side.learned_pooling)]
    return sum(p.numel() for module in modules if module is not None for p in module.parameters())
