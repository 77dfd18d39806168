"""Encoding backends: another runtime than torch for the transformer of an encoder folder, on the CPU.

A plugin adds a `Backend` through the hook `drkit_backends`. `add_backend` converts the transformer with it, compares
the result with torch, and writes it into the encoder folder. `load_backend` loads it, if the weights beside it are
those that were converted. A backend turns token ids into hidden states; everything else of encoding stays in
`TextEncoder`.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import torch
from attrs import field, frozen
from attrs.validators import matches_re
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import MODEL_FOR_TEXT_ENCODING_MAPPING

from drkit.core.files import adapter_base, file_hash, link_or_copy, read_json, replacing, write_json
from drkit.core.loading import explain_load_errors, load_pretrained
from drkit.core.registry import installed
from drkit.core.spec import Extension
from drkit.encoders.architectures import Architecture, find_architecture, longest_text
from drkit.encoders.declarations import CONFIG
from drkit.encoders.folder import TORCH
from drkit.encoders.identity import weights_hash
from drkit.encoders.static import load_static
from drkit.errors import DrkitError

# (ids i64[B,L], attention i64[B,L]) -> hidden states f32[B,L,D]
_Run: TypeAlias = "Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float32]]"
# The model's input of one text: `input_ids` and `attention_mask`, each i64[1,L].
Sample: TypeAlias = "Mapping[str, NDArray[np.int64]]"

# In the folder of the transformer: for each backend, hashes of its files and of the files that it was converted from.
_RECORD = "backends.json"
_OTHER = "Use another backend, or torch."


@frozen
class Backend:
    """How another runtime than torch converts and runs a transformer; an extension of the hook `drkit_backends`.

    file: where the converted transformer is kept, `FOLDER/FILE` in the transformer's folder. convert: called as
    `convert(model, example, path, sample)` to write the file `path`, with any further files beside it. `model` maps
    `input_ids` i64[B,L] and `attention_mask` i64[B,L] to hidden states f32[B,L,D]; `example` has these two tensors;
    `sample` has texts to encode if `needs_texts`, and is empty otherwise. load: called with that path; returns the
    function that computes hidden states. least_cosine: between its mean hidden states and torch's, below which a
    conversion is refused (another graph, such as one without the attention mask, is far below 0.9).

    Raises ValueError if `file` is not `FOLDER/FILE`.
    """

    file: str = field(validator=matches_re(r"[^/]+/[^/]+"))
    convert: Callable[[nn.Module, Mapping[str, Tensor], Path, Sequence[Sample]], None]
    load: Callable[[Path], _Run]
    needs_texts: bool = False
    least_cosine: float = 0.9999


class BackendModel(nn.Module):
    """A transformer that another runtime than torch runs, with what encoding uses of a Hugging Face model.

    config: the transformer's. origin: hashes of the converted weights and of the sample that calibrated them; with the
    backend's name they stand for weights wherever those are hashed, so vectors of two backends are never compared.
    """

    def __init__(self, backend: str, config: Any, run: _Run, origin: str) -> None:
        super().__init__()
        self.backend, self.config, self._run = backend, config, run
        self.register_buffer("origin", torch.tensor(list(f"{origin} {backend}".encode()), dtype=torch.uint8))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        """Return the hidden states f[B,L,D] of ids i64[B,L] and attention i64[B,L], as `last_hidden_state`."""
        return SimpleNamespace(last_hidden_state=torch.from_numpy(self._run(input_ids.numpy(), attention_mask.numpy())))


def find_backend(name: str) -> Extension:
    """Return the extension of a backend. Raises as `NameTable.get` does, and DrkitError for torch, which needs none."""
    found = installed().extensions["backend"].get(name)
    if found.name == TORCH:
        raise DrkitError(f"{TORCH} runs every encoder folder without conversion; omit the backend {name}")
    return found


def _code_of(backend: Extension) -> Backend:
    return backend.load_as(Backend, "drkit.search.Backend")


def load_torch(folder: Path) -> Any:
    """Load the transformer in `folder` with torch, in float32; of a T5, its encoder.

    Raises DrkitError as `load_pretrained` does, and for another model with a decoder.
    """
    config = _load_config(folder)
    where = find_architecture(config.model_type) or Architecture(transform=())
    encoders = {kind.__name__: found.__name__ for kind, found in MODEL_FOR_TEXT_ENCODING_MAPPING.items()}
    of_decoders = [name for name in encoders.values() if name.endswith("EncoderModel")]
    is_alone = encoders.get(type(config).__name__) in of_decoders
    if getattr(config, "is_encoder_decoder", False) and not is_alone:
        raise DrkitError(
            f"{folder} is a {config.model_type!r}, which has a decoder, and transformers has no class for its encoder "
            f"alone. Give an encoder; of models with a decoder: {', '.join(sorted(of_decoders))}"
        )
    return load_pretrained(
        "AutoModelForTextEncoding" if is_alone else "AutoModel",
        str(folder),
        "load the encoder in",
        "Export it again.",
        unused=where.unused,
        dtype="float32",
        local_files_only=True,
        **where.config,
    )


def _load_config(folder: Path) -> Any:
    return load_pretrained("AutoConfig", str(folder), "load the encoder in", local_files_only=True)


def load_backend(folder: Path, name: str) -> BackendModel:
    """Load the transformer in `folder` with a backend; no code of the folder is run.

    Raises DrkitError if the name is unknown, the backend's packages are not installed, or the folder's files of that
    backend are missing, changed, or were converted from other weights.
    """
    extension = find_backend(name)
    backend = _code_of(extension)
    record = _read_record(folder).get(name)
    command = f"drkit export {folder} --backend {name} -o OTHER_FOLDER"
    if record is None:
        raise DrkitError(f"{folder} has no files of the backend {name}; write them into a new folder: {command}")
    again = f"convert it again: {command}"
    try:
        inside = (Path(), Path(backend.file).parent)
        differ = [file for file in (*record["from"], *record["files"]) if Path(file).parent not in inside]
        differ = differ or [file for files in ("from", "files") for file in _changed(folder, record[files])]
        origin = f"{record['weights']} {record['sample']}"
        record["files"][backend.file]
    except (AttributeError, KeyError, TypeError):
        raise DrkitError(f"{folder / _RECORD} does not describe the backend {name}; {again}") from None
    if differ:
        raise DrkitError(f"{differ[0]} in {folder} has changed since the backend {name} was converted; {again}")
    config = _load_config(folder)
    with explain_load_errors(str(folder), f"load the backend {name} of", _OTHER):
        return BackendModel(name, config, backend.load(folder / backend.file), origin)


def load_backbone(folder: Path, backend: str = TORCH) -> tuple[Any, Any]:
    """Load the transformer (float32, evaluation mode) or static model, and its tokenizer.

    Downloads nothing, runs no remote code.

    Raises DrkitError if either cannot be read, or a static model is to be run by another backend than torch.
    """
    if not (folder / CONFIG).is_file() and not adapter_base(folder):
        if backend != TORCH:
            raise DrkitError(
                f"{folder} is a static encoder, whose word vectors no backend makes faster; use --backend {TORCH}"
            )
        return load_static(folder)
    model = load_torch(folder) if backend == TORCH else load_backend(folder, backend)
    return model.eval(), load_encoder_tokenizer(folder)


def load_encoder_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of an encoder folder. Raises DrkitError if it cannot be read."""
    return load_pretrained(
        "AutoTokenizer", str(folder), "load the encoder in", "Export it again.", local_files_only=True
    )


def add_backend(folder: Path, name: str, *, texts: Sequence[str] = (), length: int = 128) -> None:
    """Convert the transformer in `folder` and write the result, and a record of what it was converted from, beside it.

    texts: a sample of the texts to encode, for a backend with `needs_texts`. length: tokens per text of the sample.

    Raises DrkitError as `check_conversion` does, or if the conversion fails or computes other hidden states than torch.
    """
    extension = check_conversion(name, texts)
    backend = _code_of(extension)
    target = folder / backend.file
    model = load_torch(folder).eval()
    sample = _tokenised(folder, texts, length) if backend.needs_texts else []
    write = explain_load_errors(str(folder), f"write the backend {name} of", _OTHER)
    with tempfile.TemporaryDirectory() as scratch, write:
        converted = Path(scratch) / target.name
        backend.convert(_HiddenStates(model), _example(model.config, 2, 24), converted, sample)
        _check_result(backend.load(converted), model, backend.least_cosine)
        written = sorted(Path(scratch).iterdir())
        for file in written:
            with replacing(target.parent / file.name) as temporary:
                link_or_copy(file, temporary)
    files = [f"{target.parent.name}/{file.name}" for file in written]
    entry = {
        "weights": weights_hash(model),
        "sample": hashlib.blake2b(b"".join(row["input_ids"].tobytes() for row in sample), digest_size=16).hexdigest(),
        "from": {path.name: file_hash(path) for path in _origin_files(folder)},
        "files": {file: file_hash(folder / file) for file in files},
        "made_with": {package: version(package) for package in ("torch", *extension.packages)},
    }
    write_json(folder / _RECORD, {**_read_record(folder), extension.name: entry})


def check_conversion(name: str, texts: Sequence[str]) -> Extension:
    """Return the extension of a backend that can convert an encoder, given a sample of texts.

    Raises DrkitError if the name is unknown, its packages are not installed, or it needs a sample that is empty.
    """
    extension = find_backend(name)
    extension.require_packages()
    if _code_of(extension).needs_texts and not texts:
        raise DrkitError(
            f"the backend {name} needs a sample of the texts to encode, to measure the range of activations; give a "
            f"collection: --calibrate RUN or --calibrate beir:FOLDER"
        )
    return extension


def _read_record(folder: Path) -> dict[str, Any]:
    if not (folder / _RECORD).is_file():
        return {}
    found = read_json(folder / _RECORD, "remove it, and export the encoder again")
    if not isinstance(found, dict):
        raise DrkitError(f"{folder / _RECORD} must be a JSON object; remove it, and export the encoder again")
    return found


def _origin_files(folder: Path) -> list[Path]:
    return [folder / CONFIG, *sorted(folder.glob("*.safetensors"))]


def _changed(folder: Path, hashes: Mapping[str, str]) -> list[str]:
    """Return the files that do not have these hashes, or are missing."""
    paths = {name: folder / name for name in hashes}
    if CONFIG in hashes:  # of the origin, all weights
        paths |= {path.name: path for path in _origin_files(folder)}
    return [name for name, path in paths.items() if not path.is_file() or file_hash(path) != hashes.get(name)]


class _HiddenStates(nn.Module):
    """The graph that is converted: ids i64[B,L] and attention i64[B,L] to hidden states f32[B,L,D]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return states


def _example(config: Any, rows: int, width: int) -> dict[str, Tensor]:
    """Return random ids of texts of different lengths, padded; the same for the same shape."""
    width = min(width, longest_text(config))
    generator = torch.Generator().manual_seed(rows * width)
    ids = torch.randint(0, int(config.vocab_size), (rows, width), generator=generator)
    attention = (torch.arange(width) < torch.linspace(width // 2, width, rows).long()[:, None]).long()
    pad = int(getattr(config, "pad_token_id", None) or 0)
    return {"input_ids": torch.where(attention.bool(), ids, pad), "attention_mask": attention}


def _check_result(run: _Run, model: Any, least_cosine: float) -> None:
    """Raise ValueError if a converted model does not compute the model's hidden states, for batches of any shape."""
    for rows, width in ((2, 16), (5, 48), (1, 32)):
        given = _example(model.config, rows, width)
        with torch.inference_mode():
            expected = model(**given).last_hidden_state
        found = torch.from_numpy(run(*(value.numpy() for value in given.values())))
        weights = given["attention_mask"][..., None]
        ours, theirs = ((states * weights).sum(1) / weights.sum(1) for states in (found, expected))
        cosine = float(nn.functional.cosine_similarity(ours, theirs).min())
        if not cosine >= least_cosine:
            raise ValueError(f"its hidden states differ from torch's, with a cosine of {cosine:.3f}")


def _tokenised(folder: Path, texts: Sequence[str], length: int) -> list[Sample]:
    """Return the model's input for each text, one text at a time."""
    tokenizer = load_pretrained("AutoTokenizer", str(folder), "load the encoder in", local_files_only=True)
    kept = [tokenizer(text, truncation=True, max_length=length)["input_ids"] for text in texts]
    rows = [np.array([ids], dtype=np.int64) for ids in kept]
    return [{"input_ids": row, "attention_mask": np.ones_like(row)} for row in rows]
