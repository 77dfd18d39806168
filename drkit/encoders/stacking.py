"""More or fewer layers than a checkpoint has: its own, in order, again and again.

A tower grown by copies of trained layers learns faster than one with new layers on top (progressive stacking: Gong et
al., ICML 2019).
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from drkit.encoders.architectures import architecture
from drkit.errors import DrkitError


def stack_layers(model: Any, layers: int) -> None:
    """In place: give a Hugging Face model so many layers, layer i a copy of its i-th, counted round and round.

    model: of an architecture whose layers are all alike; layers: at least 1. The configuration says the new number.
    Raises DrkitError for other architectures and numbers.
    """
    if layers < 1:
        raise DrkitError(f"an encoder of {layers} layers; at least 1 is wanted")
    known = architecture(model.config.model_type)
    if known.layer is None:
        raise DrkitError(
            f"the layers of a {known.model_type} encoder are not all alike, so none is a copy of another: "
            f"leave their number as it is (layers = 0), or start from a bert, electra or roberta"
        )
    backbone = model.base_model
    tower: nn.ModuleList = backbone.get_submodule(known.layers)
    own = list(tower)
    kept = own[:layers] + [copy.deepcopy(own[place % len(own)]) for place in range(len(own), layers)]
    del tower[:]  # the model holds on to the list itself
    tower.extend(kept)
    model.config.num_hidden_layers = backbone.config.num_hidden_layers = layers
