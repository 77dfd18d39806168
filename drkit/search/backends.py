"""Encoding backends: the transformer of an encoder folder, run on the CPU by ONNX Runtime or OpenVINO instead of torch.

`add_backend` converts the transformer, compares the result with torch, and writes it into the encoder folder, under the
names that sentence-transformers looks for. `load_backend` loads it, if the weights beside it are those that were
converted. A backend turns token ids into hidden states; everything else of encoding stays in `TextEncoder`.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from torch import Tensor, nn

from drkit.core.files import file_hash, link_or_copy, read_json, replacing, write_text
from drkit.core.loading import load_pretrained
from drkit.encoders.architectures import longest_text
from drkit.encoders.folder import BACKEND_FILES, CONFIG, check_backend
from drkit.encoders.identity import weights_hash
from drkit.errors import DrkitError, MissingExtraError

# (ids i64[B,L], attention i64[B,L]) -> hidden states f32[B,L,D]
Run: TypeAlias = "Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float32]]"

# In the folder of the transformer: for each backend, hashes of its files and of the files that it was converted from.
RECORD = "backends.json"
# The lowest cosine between a backend's mean hidden states and torch's: of float32, and of int8. Another graph, such as
# one without the attention mask, is far below either.
_LEAST_COSINE = {False: 0.9999, True: 0.9}


class BackendModel(nn.Module):
    """A transformer that another runtime than torch runs, with what encoding uses of a Hugging Face model.

    config: the transformer's. origin: hashes of the converted weights and of the sample that calibrated them; with the
    backend's name they stand for weights wherever those are hashed, so vectors of two backends are never compared.
    """

    def __init__(self, backend: str, config: Any, run: Run, origin: str) -> None:
        super().__init__()
        self.backend, self.config, self._run = backend, config, run
        self.register_buffer("origin", torch.tensor(list(f"{origin} {backend}".encode()), dtype=torch.uint8))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        """Return the hidden states f[B,L,D] of ids i64[B,L] and attention i64[B,L], as `last_hidden_state`."""
        return SimpleNamespace(last_hidden_state=torch.from_numpy(self._run(input_ids.numpy(), attention_mask.numpy())))


def load_backend(folder: Path, name: str) -> BackendModel:
    """Load a backend of the transformer in `folder`; no code of the folder is run.

    Raises DrkitError if the name is unknown, or the folder's files of that backend are missing, changed, or were
    converted from other weights; MissingExtraError without the backend's packages.
    """
    check_backend(name)
    _require(name, "encoding with")
    record = _read_record(folder).get(name)
    command = f"drkit export {folder} --backend {name} -o OTHER_FOLDER"
    if record is None:
        raise DrkitError(f"{folder} has no files of the backend {name}; write them into a new folder: {command}")
    again = f"convert it again: {command}"
    try:
        inside = (Path(), Path(BACKEND_FILES[name]).parent)
        differ = [file for file in (*record["from"], *record["files"]) if Path(file).parent not in inside]
        differ = differ or [file for files in ("from", "files") for file in _changed(folder, record[files])]
        origin = f"{record['weights']} {record['sample']}"
        record["files"][BACKEND_FILES[name]]
    except (AttributeError, KeyError, TypeError):
        raise DrkitError(f"{folder / RECORD} does not describe the backend {name}; {again}") from None
    if differ:
        raise DrkitError(f"{differ[0]} in {folder} has changed since the backend {name} was converted; {again}")
    config = load_pretrained("AutoConfig", str(folder), "load the encoder in", local_files_only=True)
    with _explained(f"load the backend {name}", folder):
        return BackendModel(name, config, _RUNTIMES[name].load(folder / BACKEND_FILES[name]), origin)


def add_backend(folder: Path, name: str, *, texts: Sequence[str] = (), length: int = 128) -> None:
    """Convert the transformer in `folder` and write the result, and a record of what it was converted from, beside it.

    texts: a sample of the texts to encode, from which `openvino-int8` measures the range of every activation; the other
    backends need none. length: tokens per text of the sample.

    Raises DrkitError if the name is unknown, the sample is empty but needed, or the conversion fails or computes other
    hidden states than torch; MissingExtraError without the packages that convert.
    """
    check_conversion(name, texts)
    runtime, target = _RUNTIMES[name], folder / BACKEND_FILES[name]
    model = load_pretrained("AutoModel", str(folder), "load the encoder in", dtype="float32", local_files_only=True)
    model = model.eval()
    sample = _calibration(folder, texts, length) if runtime.needs_texts else []
    with tempfile.TemporaryDirectory() as scratch, _explained(f"write the backend {name}", folder):
        converted = Path(scratch) / target.name
        runtime.convert(_HiddenStates(model), converted, sample)
        _check_result(runtime.load(converted), model, is_int8=name.endswith("-int8"))
        written = [file for file in sorted(Path(scratch).iterdir()) if file.stem == target.stem]
        for file in written:
            with replacing(target.parent / file.name) as temporary:
                link_or_copy(file, temporary)
    files = [f"{target.parent.name}/{file.name}" for file in written]
    entry = {
        "weights": weights_hash(model),
        "sample": hashlib.blake2b(b"".join(row["input_ids"].tobytes() for row in sample), digest_size=16).hexdigest(),
        "from": {path.name: file_hash(path) for path in _origin_files(folder)},
        "files": {file: file_hash(folder / file) for file in files},
        "made_with": {package: version(package) for package in ("torch", *runtime.packages.values())},
    }
    write_text(folder / RECORD, json.dumps({**_read_record(folder), name: entry}, indent=2) + "\n")


def check_conversion(name: str, texts: Sequence[str]) -> None:
    """Raise what `add_backend` raises before it converts an encoder, for a sample of texts."""
    check_backend(name)
    _require(name, "converting to")
    if _RUNTIMES[name].needs_texts and not texts:
        raise DrkitError(
            f"the backend {name} needs a sample of the texts to encode, to calibrate its 8-bit activations; give a "
            f"collection: --calibrate RUN or --calibrate beir:FOLDER"
        )


def _read_record(folder: Path) -> dict[str, Any]:
    if not (folder / RECORD).is_file():
        return {}
    found = read_json(folder / RECORD, "remove it, and export the encoder again")
    if not isinstance(found, dict):
        raise DrkitError(f"{folder / RECORD} must be a JSON object; remove it, and export the encoder again")
    return found


def _origin_files(folder: Path) -> list[Path]:
    return [folder / CONFIG, *sorted(folder.glob("*.safetensors"))]


def _changed(folder: Path, hashes: Mapping[str, str]) -> list[str]:
    """Return the files that do not have these hashes, or are missing."""
    paths = {name: folder / name for name in hashes}
    if CONFIG in hashes:  # of the origin, all weights
        paths |= {path.name: path for path in _origin_files(folder)}
    return [name for name, path in paths.items() if not path.is_file() or file_hash(path) != hashes.get(name)]


def _require(name: str, action: str) -> None:
    """Raise MissingExtraError if a package of the backend is not installed."""
    runtime = _RUNTIMES[name]
    needed = runtime.packages if action.startswith("converting") else dict(list(runtime.packages.items())[:1])
    for module, package in needed.items():
        if find_spec(module) is None:
            raise MissingExtraError(f"{action} the backend {name}", package, name.partition("-")[0])


@contextmanager
def _explained(action: str, folder: Path) -> Iterator[None]:
    """Turn what the libraries raise, at an architecture or a file that they do not support, into a DrkitError."""
    try:
        yield
    except (DrkitError, MemoryError):
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise DrkitError(f"cannot {action} of {folder}: {reason:.300}; use another backend, or torch") from error


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


def _check_result(run: Run, model: Any, *, is_int8: bool) -> None:
    """Raise ValueError if a converted model does not compute the model's hidden states, for batches of any shape."""
    for rows, width in ((2, 16), (5, 48), (1, 32)):
        given = _example(model.config, rows, width)
        with torch.inference_mode():
            expected = model(**given).last_hidden_state
        found = torch.from_numpy(run(*(value.numpy() for value in given.values())))
        weights = given["attention_mask"][..., None]
        ours, theirs = ((states * weights).sum(1) / weights.sum(1) for states in (found, expected))
        cosine = float(nn.functional.cosine_similarity(ours, theirs).min())
        if not cosine >= _LEAST_COSINE[is_int8]:
            raise ValueError(f"its hidden states differ from torch's, with a cosine of {cosine:.3f}")


def _calibration(folder: Path, texts: Sequence[str], length: int) -> list[dict[str, NDArray[np.int64]]]:
    """Return the model's input for each text of the sample, one text at a time."""
    tokenizer = load_pretrained("AutoTokenizer", str(folder), "load the encoder in", local_files_only=True)
    kept = [tokenizer(text, truncation=True, max_length=length)["input_ids"] for text in texts]
    rows = [np.array([ids], dtype=np.int64) for ids in kept]
    return [{"input_ids": row, "attention_mask": np.ones_like(row)} for row in rows]


def _to_onnx(module: _HiddenStates, path: Path, _sample: Sequence[Any]) -> None:
    example = _example(module.model.config, 2, 24)
    shape = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")  # of how torch works inside
        program = torch.onnx.export(
            module,
            kwargs=example,
            dynamo=True,
            dynamic_shapes=dict.fromkeys(example, shape),
            input_names=list(example),
            output_names=["last_hidden_state"],
            verbose=False,
        )
    assert program is not None
    program.save(str(path), external_data=False)


def _to_onnx_int8(module: _HiddenStates, path: Path, sample: Sequence[Any]) -> None:
    """Quantise weights to 8 bits, with a scale for each column; activations are quantised by their own range."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    whole = path.with_name("float32.onnx")
    _to_onnx(module, whole, sample)
    with _quiet():
        quantize_dynamic(whole, path, weight_type=QuantType.QInt8, per_channel=True)


def _load_onnx(path: Path) -> Run:
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(ids: NDArray[np.int64], attention: NDArray[np.int64]) -> NDArray[np.float32]:
        (states,) = session.run(None, {"input_ids": ids, "attention_mask": attention})
        return np.asarray(states, dtype=np.float32)

    return run


def _openvino_model(module: _HiddenStates) -> Any:
    import openvino

    example = _example(module.model.config, 2, 24)
    with warnings.catch_warnings(), _quiet(), torch.no_grad():
        warnings.simplefilter("ignore")  # traced branches, which `_check_result` tries
        model = openvino.convert_model(
            module,
            example_input=example,
            input=[(name, openvino.PartialShape([-1, -1]), openvino.Type.i64) for name in example],
        )
    model.outputs[0].tensor.set_names({"last_hidden_state"})
    return model


def _to_openvino(module: _HiddenStates, path: Path, _sample: Sequence[Any]) -> None:
    import openvino

    openvino.save_model(_openvino_model(module), path, compress_to_fp16=False)


def _to_openvino_int8(module: _HiddenStates, path: Path, sample: Sequence[Any]) -> None:
    """Quantise weights and activations to 8 bits; the range of activations is that of the sample."""
    import nncf
    import openvino

    with _quiet():
        how = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": len(sample)}
        model = nncf.quantize(_openvino_model(module), nncf.Dataset(sample), **how)
    openvino.save_model(model, path, compress_to_fp16=False)


def _load_openvino(path: Path) -> Run:
    import openvino

    # Its own choice of precision would be bfloat16 where the processor has it.
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads(), "NUM_STREAMS": 1}
    request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()

    def run(ids: NDArray[np.int64], attention: NDArray[np.int64]) -> NDArray[np.float32]:
        found = request.infer({"input_ids": ids, "attention_mask": attention}, share_inputs=True)
        return np.array(found[0], dtype=np.float32)

    return run


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the progress bars and advice that converters print."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


@frozen
class _Runtime:
    """How a backend is converted and loaded; packages: names to install by module, that of loading first."""

    convert: Callable[[_HiddenStates, Path, Sequence[Any]], None]
    load: Callable[[Path], Run]
    packages: Mapping[str, str]
    needs_texts: bool = False


_ONNX = {"onnxruntime": "onnxruntime", "onnx": "onnx", "onnxscript": "onnxscript"}
_OPENVINO = {"openvino": "openvino"}
_RUNTIMES: Mapping[str, _Runtime] = {
    "onnx": _Runtime(_to_onnx, _load_onnx, _ONNX),
    "onnx-int8": _Runtime(_to_onnx_int8, _load_onnx, _ONNX),
    "openvino": _Runtime(_to_openvino, _load_openvino, _OPENVINO),
    "openvino-int8": _Runtime(_to_openvino_int8, _load_openvino, {**_OPENVINO, "nncf": "nncf"}, True),
}
