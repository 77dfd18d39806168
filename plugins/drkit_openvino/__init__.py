"""OpenVINO as an encoding backend on the CPU, with float32 or 8-bit weights: `pip install openvino nncf`."""

from __future__ import annotations

from collections.abc import Sequence

from drkit.plugin import Extension, hookimpl


@hookimpl
def drkit_backends() -> Sequence[Extension]:
    """Return the backends of OpenVINO, which share a runtime."""
    return [
        Extension(
            name="openvino",
            target="drkit_openvino.backend:FLOAT32",
            summary="OpenVINO on the CPU, float32",
            packages=("openvino",),
        ),
        Extension(
            name="openvino-int8",
            target="drkit_openvino.backend:INT8",
            summary="OpenVINO on the CPU, weights and activations in 8 bits",
            packages=("openvino", "nncf"),
        ),
    ]
