"""More layers than a checkpoint has: its own, in order, again and again.

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
    """In place: give a Hugging Face model at least so many layers: layer i a copy of its i-th, counted round and round.

    model: of an architecture whose layers are all alike; one with as many or more stays as it is. The configuration
    says the new number. Raises DrkitError for other architectures.
    """
    if layers <= model.config.num_hidden_layers:
        return
    known = architecture(model.config.model_type)
    if known.layer is None:
        raise DrkitError(
            f"the layers of a {known.model_type} encoder are not all alike, so none is a copy of another: "
            f"leave their number as it is (layers = 0), or start from a bert, electra or roberta"
        )
    tower: nn.ModuleList = model.base_model.get_submodule(known.layers)
    own = list(tower)
    tower.extend(copy.deepcopy(own[place % len(own)]) for place in range(len(own), layers))
    model.config.num_hidden_layers = model.base_model.config.num_hidden_layers = layers
