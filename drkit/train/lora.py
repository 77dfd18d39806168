"""LoRA: train low-rank adapters beside an encoder's linear layers, and merge them into its weights.

`adapted` adds adapters to the encoders of a module, for the time of a training. The weights of their backbones are
frozen; what is outside of them (the LM head where it is used, a classifier, decoders, poolings, losses) is trained
whole. Checkpoints of the training have no frozen weights: these come from the checkpoint that it started from. After
the training, the adapters are merged, so that the next stage reads a plain encoder.

Price: of gradients and of AdamW's two moments, the share that is trained; of a checkpoint, too. A forward pass has two
thin products more for each adapted layer.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn

from drkit.core.files import replacing
from drkit.core.loading import weights_to_save
from drkit.encoders.architectures import architecture
from drkit.encoders.heads import seeded
from drkit.errors import import_extra
from drkit.recipe.lora import choose_targets
from drkit.recipe.training import Lora
from drkit.train.biencoder import BiEncoder

# What modules in training call their encoders.
_ENCODERS = ("encoder", "passage_encoder")


@contextmanager
def adapted(module: nn.Module, lora: Lora | None, *, seed: int) -> Iterator[None]:
    """Add adapters to the encoders of a module for a block, then merge them; without `lora`, do nothing.

    The matrices start from `seed`, and their product from 0. Raises MissingExtraError without peft, and DrkitError for
    targets that an encoder does not have.
    """
    if lora is None:
        yield
        return
    encoders = [(name, encoder) for name, encoder in module.named_children() if name in _ENCODERS]
    learned = [weight for _, encoder in encoders for weight in encoder.parameters() if weight.requires_grad]
    for name, encoder in encoders:
        with seeded(seed, f"lora of {name}"):
            _add(encoder, lora, trains_head=not isinstance(module, BiEncoder) or encoder.text_model is encoder.model)
    hook = cast("Any", module).register_load_state_dict_pre_hook(_keep_frozen)
    try:
        yield
    finally:
        hook.remove()
        merge_lora(module)
        for weight in learned:
            weight.requires_grad_(True)


def _add(encoder: Any, lora: Lora, *, trains_head: bool) -> None:
    """Add adapters to the backbone of an encoder, and freeze its other weights."""
    peft = import_extra("peft", "LoRA")
    model, backbone = encoder.model, encoder.model.base_model
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=choose_targets(linear_names(backbone), lora),
    )
    head = {weight for weight in model.parameters() if trains_head and weight.requires_grad}
    head -= set(backbone.parameters())  # a projection that is tied to the word embeddings, too
    # A classifier's pooler may be new; a masked LM has none.
    head |= set(backbone.pooler.parameters()) if getattr(backbone, "pooler", None) is not None else set()
    if (projection := getattr(model, "get_output_embeddings", lambda: None)()) is not None:
        head -= {projection.weight}
    model.requires_grad_(False)
    peft.inject_adapter_in_model(config, backbone)
    backbone.train(backbone.training)  # the dropout of the adapters, too
    for weight in head:
        weight.requires_grad_(True)


def linear_names(backbone: Any) -> list[str]:
    """Return the names of the linear layers within the transformer layers of a backbone, in their order."""
    layers = architecture(backbone.config.model_type).layers
    inside = backbone.get_submodule(layers).named_modules()
    return [f"{layers}.{name}" for name, module in inside if isinstance(module, nn.Linear)]


def _adapters(module: nn.Module) -> list[tuple[str, Any]]:
    """Return the adapted layers in a module, by name."""
    peft = sys.modules.get("peft")  # without it, there are none
    if peft is None:
        return []
    return [(name, one) for name, one in module.named_modules() if isinstance(one, peft.tuners.lora.LoraLayer)]


def merge_lora(module: nn.Module) -> None:
    """Merge the adapters of a module into the weights of the layers beside them, in place."""
    for name, layer in _adapters(module):
        layer.merge()
        module.set_submodule(name, layer.get_base_layer())


def merged_copy(model: Any) -> Any:
    """Return a copy of a model in training with its adapters merged; the model itself if it has none."""
    if not _adapters(model):
        return model
    plain = copy.deepcopy(model)
    merge_lora(plain)
    return plain


def count_trained(module: nn.Module) -> tuple[int, int]:
    """Return the number of weights that are trained, and of all weights."""
    sizes = [(weight.numel(), weight.requires_grad) for weight in module.parameters()]
    return sum(size for size, is_trained in sizes if is_trained), sum(size for size, _ in sizes)


def _frozen(module: nn.Module) -> dict[str, Tensor]:
    found = module.named_parameters(remove_duplicate=False)
    return {name: weight for name, weight in found if not weight.requires_grad}


def _keep_frozen(module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Add the module's own frozen weights to those that it loads."""
    for name, weight in _frozen(module).items():
        state.setdefault(prefix + name, weight)


def trained_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a module in training that its checkpoints need: with adapters, without the frozen ones."""
    frozen = _frozen(module) if _adapters(module) else {}
    return {name: weight for name, weight in weights_to_save(module).items() if name not in frozen}


def save_trained(module: nn.Module, path: Path, *, metadata: Mapping[str, str]) -> None:
    """Write the weights of a module in training, as `load_trained` reads them, atomically."""
    with replacing(path) as temporary:
        if _adapters(module):
            save_file(trained_weights(module), str(temporary), metadata=dict(metadata))
        else:
            save_model(module, str(temporary), metadata=dict(metadata))


def load_trained(module: nn.Module, path: Path) -> None:
    """Load what `save_trained` has written into a module."""
    if _adapters(module):
        module.load_state_dict(load_file(str(path)))
    else:
        load_model(module, str(path))
