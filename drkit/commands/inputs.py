"""Inputs as commands name them: a collection, an index, a file of queries, a model."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from drkit.commands.collections import NamedCollection, missing_result
from drkit.core.checksums import check_unchanged
from drkit.core.files import input_path, local_path, read_json, replacing_folder
from drkit.core.loading import explain_load_errors, find_encoder_folder, load_sentence_transformer
from drkit.core.registry import installed
from drkit.core.types import Query
from drkit.data.column_sources import RERANKER
from drkit.data.topics import read_topic_file
from drkit.encoders.card import EncoderCard, check_truncation
from drkit.encoders.declarations import (
    CONFIG,
    MODULES,
    UnsupportedEncoderError,
    check_model_type,
    model_type,
    prompt_notes,
)
from drkit.encoders.folder import (
    PASSAGE_ENCODER,
    PRECISIONS,
    QUERY_ENCODER,
    TORCH,
    is_cross_encoder,
)
from drkit.encoders.static import StaticModel
from drkit.errors import DrkitError, UnknownNameError
from drkit.recipe.start import RECIPE, is_stage_of_run
from drkit.recipe.toml import read_recipe
from drkit.runs.making.retriever import load_text_encoder, write_encoder
from drkit.runs.manifest import load_manifest, read_manifest, versions
from drkit.runs.stage import settings_from
from drkit.runs.survey import last_checkpoint
from drkit.search import AnyEncoder, DualEncoder, Reranker, Retriever, TextEncoder, open_index
from drkit.search.averaging import average_encoders
from drkit.search.backends import add_backend, check_conversion, find_backend
from drkit.search.dual_encoder import read_encoder
from drkit.search.flat import INDEX_FILE
from drkit.search.sentence_encoder import SentenceTransformerEncoder
from drkit.search.text_encoder import choose_device


def find_index(folder: str | Path) -> Path:
    """Return the index folder of a run, or the folder itself if it is not a run.

    Raises DrkitError if the folder does not exist, or is neither a run nor an index, or the run has no finished
    index.
    """
    path = local_path(folder)
    if not path.is_dir():
        raise DrkitError(
            f"folder not found: {path}; give a run (made by `drkit compose`) or an index (made by `drkit index`)"
        )
    if not (path / RECIPE).is_file():
        if not (path / INDEX_FILE).is_file():
            raise DrkitError(
                f"{path} is neither a run (missing {RECIPE}) nor an index (missing {INDEX_FILE}); give a run (made "
                f"by `drkit compose`) or an index (made by `drkit index`)"
            )
        return path
    if read_manifest(path / "index") is None:
        made = f"`drkit encode --encoder {path} --collection {path} -o VECTORS`, then `drkit index VECTORS -o INDEX`"
        raise missing_result(path, "index", f"make one: {made}")
    return path / "index"


def find_queries(text: str | Path) -> Iterable[Query]:
    """Return the queries in a file (.tsv, .jsonl, .csv, TREC topics ..).

    Raises DrkitError if it does not exist, or, naming `file:line`, for an invalid line or an id that occurs twice.
    """
    path = input_path(text)
    if not path.exists() or path.is_dir():
        raise DrkitError(f"queries not found: {path}; give a file of queries")
    return read_topic_file(path)


def open_retriever(index: Path, encoder: str, **how: Any) -> Retriever:
    """Open an index and the encoder of its queries; how: settings of `open_encoder`.

    Raises DrkitError as `open_encoder`, `open_index` and `Retriever` do.
    """
    return Retriever(open_encoder(encoder, **how), open_index(index))


# The sample of passages for backends that need one.
CALIBRATION_TEXTS = 128


def open_encoder(
    path_or_id: str | Path,
    *,
    pooling: str | None = None,
    query_prompt: str | None = None,
    passage_prompt: str | None = None,
    device: str = "auto",
    precision: str = "float32",
    backend: str = TORCH,
) -> OpenedEncoder:
    """Open the encoder at a path or hub id; a `DualEncoder` if queries and passages have separate encoders.

    path_or_id: a folder written by drkit or sentence-transformers; a run (its `encoder`); a checkpoint of a run
    (`RUN/retriever-1`, with the run's settings); or a transformers checkpoint, which needs `pooling`, a name of
    `drkit.encoders.pooling.POOLINGS`. query_prompt, passage_prompt: put before every text instead of what the folder
    declares. device: auto, cpu, cuda ..; precision: float32, or bfloat16 for matrix products
    only. backend: what runs the transformer (`drkit list backend`); other than torch, for an encoder
    folder that `export_checkpoint` wrote with that backend. A folder with modules that drkit does not compute itself is
    opened by sentence-transformers, if that is installed.

    Raises DrkitError if the encoder is missing or cannot be loaded, or its pooling is unknown.
    """
    given = {"query_prompt": query_prompt, "passage_prompt": passage_prompt}
    prompts = {name: prompt for name, prompt in given.items() if prompt is not None}
    if backend != TORCH:
        find_backend(backend)
        return _open_backend(find_encoder_folder(path_or_id), pooling, device, precision, backend).evolve(**prompts)
    target = str(choose_device(device))
    if precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, PRECISIONS)
    folder = find_encoder_folder(path_or_id)
    encoder: OpenedEncoder
    try:
        encoder = _open_folder(folder, pooling, target)
    except UnsupportedEncoderError as reason:
        encoder = _open_with_sentence_transformers(folder, pooling, target, reason)
    for note in prompt_notes(folder) if passage_prompt is None else []:
        _LOGGER.warning(note)
    if not prompts:
        _warn_of_prompts(encoder, folder, str(path_or_id))
    return encoder.evolve(precision=precision, **prompts)


_LOGGER = logging.getLogger("drkit")
OpenedEncoder: TypeAlias = "AnyEncoder | SentenceTransformerEncoder"
# Families of encoders that are published with prompts, which old folders of theirs do not declare.
_PUBLISHED_PROMPTS = {
    "e5": ("query: ", "passage: "),
    "bge": ("Represent this sentence for searching relevant passages: ", ""),
}


def _warn_of_prompts(encoder: OpenedEncoder, folder: Path, name: str) -> None:
    """Warn if an encoder's name is that of a family with prompts, and its folder declares none."""
    declared = encoder.queries if isinstance(encoder, DualEncoder) else encoder
    if isinstance(declared, TextEncoder) and not (declared.card.query_prompt or declared.card.passage_prompt):
        config = read_json(folder / CONFIG, "") if (folder / CONFIG).is_file() else {}
        words = set(re.split(r"[^a-z0-9]+", f"{name} {config.get('_name_or_path', '')}".lower()))
        for family in words & _PUBLISHED_PROMPTS.keys():
            options = zip(("--query-prompt", "--passage-prompt"), _PUBLISHED_PROMPTS[family], strict=True)
            advice = " ".join(f"{option} {prompt!r}" for option, prompt in options if prompt)
            _LOGGER.warning(
                "%s looks like an encoder of the family %s, which is published with prompts, but its folder declares "
                "none; without them it finds less: %s",
                *(name, family, advice),
            )


def _open_with_sentence_transformers(
    folder: Path, pooling: str | None, device: str, reason: DrkitError
) -> SentenceTransformerEncoder:
    """Open a folder with modules that only sentence-transformers computes; reason: why drkit does not read it itself.

    Raises DrkitError with the reason if sentence-transformers is not installed or cannot load the folder, or for a
    pooling, which is declared.
    """
    if pooling:
        raise DrkitError(f"{reason}; --pooling does not change that")
    _LOGGER.info("sentence-transformers computes the vectors: %s", reason)
    try:
        kind = model_type(check_model_type(folder))
        encoder = SentenceTransformerEncoder(load_sentence_transformer(folder, device, kind))
        with explain_load_errors(str(folder), "encode with"):
            encoder.encode_passages(["a word"])  # modules that need what another gives fail here
        return encoder
    except DrkitError as error:
        raise DrkitError(f"{reason}. {error}") from None


def _open_backend(folder: Path, pooling: str | None, device: str, precision: str, backend: str) -> AnyEncoder:
    """Open an encoder folder with another backend than torch."""
    if precision != "float32":
        raise DrkitError(f"--precision {precision} is torch's; leave it out with --backend {backend}")
    if not (folder / MODULES).is_file():
        raise DrkitError(
            f"{folder} has no files of the backend {backend}; write an encoder folder that has them, and give that: "
            f"drkit export {folder} --backend {backend} -o ENCODER"
        )
    return _check_pooling(read_encoder(folder, device, backend=backend), folder, pooling)


def open_reranker(
    path_or_id: str | Path, device: str = "auto", *, token_budget: int = 16_384, precision: str = "float32"
) -> Reranker:
    """Open the cross-encoder at a path or hub id, or the re-ranker of a run.

    token_budget: tokens per batch. Raises DrkitError if the run has no re-ranker, or as `Reranker.load` does.
    """
    run = local_path(path_or_id)
    if not (run / RECIPE).is_file():
        return Reranker.load(path_or_id, device, token_budget=token_budget, precision=precision)
    if read_manifest(run / RERANKER) is None:
        raise DrkitError(
            f"{run} has no finished re-ranker: resume it with `drkit run {run}` if its pipeline trains one (such as "
            f"three-stage), or give the folder or hub id of a cross-encoder"
        )
    check_unchanged(run / RERANKER)
    return Reranker.load(run / RERANKER, device, token_budget=token_budget, precision=precision)


def export_checkpoint(
    path_or_id: str | Path,
    folder: str | Path,
    *,
    pooling: str | None = None,
    dimension: int | None = None,
    backends: Sequence[str] = (),
    calibrate: NamedCollection | None = None,
    finish: Callable[[Path], object] | None = None,
    average: Sequence[str | Path] = (),
) -> Path:
    """Export an encoder, as `open_encoder` opens it, as a folder for sentence-transformers and AutoModel.

    dimension: keep only the first numbers of every vector; None: all. backends: which backends to
    convert the transformer to. calibrate: whose first passages are the sample that a backend may need; None: those of
    the run. Of a run, the last finished training is exported,
    even if later stages are not finished. finish: called with the folder before it gets its name, to add files to it.
    average: further encoders, with whose weights those of the first are averaged. Returns the folder.

    Raises DrkitError as `open_encoder` and `average_encoders` do, if `folder` is the encoder's own folder, if its
    vectors are shorter than `dimension`, or as `drkit.search.backends.add_backend` does.
    """
    sources = [_trained_folder(one) for one in (path_or_id, *average)]
    source = sources[0]
    if backends and calibrate is None and (source.parent / RECIPE).is_file():
        calibrate = NamedCollection(str(source.parent))
    if any(Path(folder).resolve() in (one.resolve(), *one.resolve().parents) for one in sources):
        raise DrkitError(f"{folder} holds the encoder itself; export to another folder")
    passages = list(islice(calibrate.passages(), CALIBRATION_TEXTS)) if backends and calibrate else []
    for backend in backends:
        check_conversion(backend, [passage.content for passage in passages])
    encoders = [_open_folder(one, pooling, "cpu") for one in sources]
    encoder = average_encoders(encoders) if average else encoders[0]
    if backends:
        _check_convertible(encoder, source)
    if dimension is not None:
        check_truncation(dimension, encoder.dimension)
        encoder = encoder.evolve(truncate_dim=dimension)
    with replacing_folder(Path(folder)) as made:
        named = " + ".join(f"{one.parent.name}/{one.name}" for one in sources)
        write_encoder(encoder, made, {"from": named, **versions()})
        for one, folder_of_one in _encoders_in(encoder, made):
            sample = [one.card.passage_prompt + one.read(passage) for passage in passages]
            for backend in backends:
                add_backend(folder_of_one, backend, texts=sample, length=one.card.passage_length)
        if finish:
            finish(made)
    return Path(folder)


def _trained_folder(path_or_id: str | Path) -> Path:
    """Return the folder of an encoder; of a run, that of its last finished training."""
    folder = find_encoder_folder(path_or_id)
    return last_checkpoint(folder) if (folder / RECIPE).is_file() else folder


def _check_convertible(encoder: AnyEncoder, source: Path) -> None:
    """Raise DrkitError for an encoder whose computation a backend does not convert."""
    if any(one.learned_pooling and one.learned_pooling.receives_heads for one, _ in _encoders_in(encoder, source)):
        raise DrkitError(f"{source}: the pooling applies the LM head, which only torch does; omit --backend")
    if any(one.titles.types_after is not None for one, _ in _encoders_in(encoder, source)):
        raise DrkitError(
            f"{source} reads titles as segments of their own, whose token types only torch is given; omit --backend"
        )
    if any(isinstance(one.model, StaticModel) for one, _ in _encoders_in(encoder, source)):
        raise DrkitError(f"{source} is a static encoder, whose word vectors no backend makes faster; omit --backend")


def _encoders_in(encoder: AnyEncoder, folder: Path) -> list[tuple[TextEncoder, Path]]:
    """Return an encoder and its folder, or those of queries and of passages if they are separate."""
    if isinstance(encoder, DualEncoder):
        return [(encoder.queries, folder / QUERY_ENCODER), (encoder.passages, folder / PASSAGE_ENCODER)]
    return [(encoder, folder)]


def _open_folder(folder: Path, pooling: str | None, device: str) -> AnyEncoder:
    if (folder / RECIPE).is_file():
        if read_manifest(folder / "encoder") is None:
            raise DrkitError(
                f"{folder} has no finished encoder; resume it with `drkit run {folder}`, or give one of its "
                f"checkpoints, such as {folder / 'retriever-1'}"
            )
        folder = folder / "encoder"
    is_of_run = is_stage_of_run(folder)
    if is_of_run and (manifest := load_manifest(folder)) and manifest.pruned:
        raise DrkitError(
            f"the weights of {folder} were removed by `drkit prune`; use the exported encoder, {folder.parent}, or "
            f"remove {folder} and train it again: drkit run {folder.parent}"
        )
    if is_of_run:
        check_unchanged(folder)
    if (folder / MODULES).is_file():
        return _check_pooling(read_encoder(folder, device), folder, pooling)
    if is_cross_encoder(folder):
        raise DrkitError(
            f"{folder} is a cross-encoder, which scores pairs and cannot encode texts; give a retriever or a run "
            f"(cross-encoders are used by drkit rerank)"
        )
    if is_of_run and (folder / CONFIG).is_file():
        recipe = read_recipe(folder.parent / RECIPE, installed().registry)
        return load_text_encoder(folder, settings_from(EncoderCard, recipe), device=device)
    return TextEncoder.bare(folder, pooling=pooling, device=device) if pooling else TextEncoder.load(folder, device)


def _check_pooling(encoder: AnyEncoder, folder: Path, pooling: str | None) -> AnyEncoder:
    if pooling and pooling != encoder.card.pooling:
        raise DrkitError(f"{folder} declares {encoder.card.pooling} pooling, not {pooling}; omit --pooling")
    return encoder
