"""Convert a transformer to OpenVINO, and run it.

The files have the names that sentence-transformers looks for.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from drkit.search import Backend


def _traced(model: nn.Module, example: Mapping[str, Tensor]) -> Any:
    with warnings.catch_warnings(), _quiet(), torch.no_grad():
        warnings.simplefilter("ignore")  # traced branches, which drkit tries with other shapes
        found = openvino.convert_model(
            model,
            example_input=dict(example),
            input=[(name, openvino.PartialShape([-1, -1]), openvino.Type.i64) for name in example],
        )
    found.outputs[0].tensor.set_names({"last_hidden_state"})
    return found


def _convert(model: nn.Module, example: Mapping[str, Tensor], path: Path, _sample: Sequence[Any]) -> None:
    openvino.save_model(_traced(model, example), path, compress_to_fp16=False)


def _convert_to_int8(model: nn.Module, example: Mapping[str, Tensor], path: Path, sample: Sequence[Any]) -> None:
    """Quantise weights and activations to 8 bits; the range of activations is that of the sample."""
    import nncf  # slow, and only needed to convert

    with _quiet():
        how = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": len(sample)}
        found = nncf.quantize(_traced(model, example), nncf.Dataset(sample), **how)
    openvino.save_model(found, path, compress_to_fp16=False)


def _load(path: Path) -> Any:
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


FLOAT32 = Backend("openvino/openvino_model.xml", _convert, _load)
INT8 = Backend(
    "openvino/openvino_model_qint8_quantized.xml", _convert_to_int8, _load, needs_texts=True, least_cosine=0.9
)
