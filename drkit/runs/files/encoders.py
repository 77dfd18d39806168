"""Any encoder by where it is: an encoder folder, a run, a checkpoint of a run, a bare checkpoint, or a hub id."""

from __future__ import annotations

import json
from pathlib import Path

import attrs

from drkit.core.discovery import installed
from drkit.core.loading import may_be_hub_id, told_from
from drkit.core.read import read_recipe
from drkit.errors import DrkitError
from drkit.runs.execute import RECIPE
from drkit.runs.manifest import read_manifest, versions
from drkit.runs.reading import TextReading
from drkit.runs.retriever import load_text_encoder, write_encoder
from drkit.runs.stage import settings_from
from drkit.search import AnyEncoder, DualEncoder, TextEncoder
from drkit.search.dual import read_encoder
from drkit.search.encode import choose_device

# Settings and tokenizers of every kind; weights as safetensors alone, which hold no code.
_OF_THE_HUB = ("*.json", "*.txt", "*.model", "*.safetensors")
_NOT_OF_THE_HUB = ("onnx/*", "openvino/*")


def open_encoder(
    path_or_id: str | Path, *, pooling: str | None = None, device: str = "auto", precision: str = "float32"
) -> AnyEncoder:
    """The encoder at a path, or under a hub id; a `DualEncoder` where queries and passages have one each.

    A folder that drkit or sentence-transformers wrote; a run (its `encoder`); a checkpoint of a run (`RUN/retriever-1`,
    with the run's settings); a transformers checkpoint, which does not say how it pools, with `pooling` cls or mean.
    device: auto, cpu, cuda ..; precision: float32, or bfloat16 for the matrix products alone.

    Raises DrkitError where there is none, it cannot be loaded, or its pooling is not known.
    """
    on = str(choose_device(device))
    encoder = _opened(_folder(path_or_id), pooling, on)
    if precision not in ("float32", "bfloat16"):
        raise DrkitError(f"precision {precision!r}; float32 or bfloat16")
    if isinstance(encoder, DualEncoder):
        return encoder.evolve(precision=precision)
    return attrs.evolve(encoder, precision=precision)


def export_checkpoint(path_or_id: str | Path, folder: str | Path, *, pooling: str | None = None) -> Path:
    """Write the clean encoder folder, for sentence-transformers and AutoModel, of whatever `open_encoder` opens.

    Of a run: its last finished training, also where later stages are not done. The folder is given back.

    Raises DrkitError as `open_encoder` does, or where `folder` is the encoder's own.
    """
    source = _folder(path_or_id)
    if (source / RECIPE).is_file():
        source = last_checkpoint(source)
    if Path(folder).resolve() in (source.resolve(), *source.resolve().parents):
        raise DrkitError(f"{folder} holds the encoder itself; export to another folder")
    encoder = _opened(source, pooling, "cpu")
    write_encoder(encoder, Path(folder), {"from": f"{source.parent.name}/{source.name}", **versions()})
    return Path(folder)


def last_checkpoint(run: Path) -> Path:
    """The folder of the training that a run exports, or, before that, of the one it finished last.

    Raises DrkitError where it has finished none.
    """
    if exported := read_manifest(run / "encoder"):
        return run / str(exported.metrics["from"])
    done = {folder: finished for folder in sorted(run.iterdir()) if (finished := _trained(folder))}
    if not done:
        raise DrkitError(f"{run} has no finished training yet; `drkit run {run}` goes on where it was cut off")
    return max(done, key=lambda folder: done[folder])


def _trained(folder: Path) -> str:
    """When a stage that made an encoder was finished; empty for another stage."""
    manifest = read_manifest(folder)
    if manifest is None or not (folder / "config.json").is_file() or _scores_pairs(folder):
        return ""
    return manifest.finished


def _scores_pairs(folder: Path) -> bool:
    """A cross-encoder's folder: its vectors were never trained to find anything."""
    if not (folder / "config.json").is_file():
        return False
    made = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures") or [""]
    return "SequenceClassification" in str(made[0])


def _opened(folder: Path, pooling: str | None, device: str) -> AnyEncoder:
    if (folder / RECIPE).is_file():
        if read_manifest(folder / "encoder") is None:
            raise DrkitError(
                f"{folder} has no finished encoder; `drkit run {folder}` goes on, or give one of its checkpoints, "
                f"as {folder / 'retriever-1'}"
            )
        folder = folder / "encoder"
    if (folder / "modules.json").is_file():
        found = read_encoder(folder, device)
        if pooling and pooling != found.pooling:
            raise DrkitError(f"{folder} declares {found.pooling} pooling, not {pooling}; leave --pooling out")
        return found
    if _scores_pairs(folder):
        raise DrkitError(
            f"{folder} is a cross-encoder, which scores pairs and makes no vectors; give a retriever or the run "
            f"(cross-encoders: drkit rerank, drkit distill)"
        )
    if (folder.parent / RECIPE).is_file() and (folder / "config.json").is_file():
        recipe = read_recipe(folder.parent / RECIPE, installed().registry)
        return load_text_encoder(folder, settings_from(TextReading, recipe), device=device)
    return TextEncoder.bare(folder, pooling=pooling, device=device) if pooling else TextEncoder.load(folder, device)


def _folder(path_or_id: str | Path) -> Path:
    """The folder itself, or the one that the hub's files are in."""
    path = Path(path_or_id).expanduser()
    name = str(path_or_id)
    if path.exists() or not may_be_hub_id(name):
        if not path.is_dir():
            raise DrkitError(f"no encoder folder {name!r}; give a folder, a run, or a hub id (OWNER/NAME)")
        return path
    from huggingface_hub import snapshot_download

    with told_from(name, "fetch the encoder"):
        allowed, ignored = list(_OF_THE_HUB), list(_NOT_OF_THE_HUB)
        return Path(snapshot_download(name, allow_patterns=allowed, ignore_patterns=ignored))
