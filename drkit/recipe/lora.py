"""LoRA in a plan: which linear layers of an encoder it adapts, and how many weights it trains.

Names and shapes come from the header of the checkpoint's safetensors, or from the sizes of an encoder made from
scratch, so no weights are loaded. Where neither is known (a model of the hub), training checks the targets
(`drkit.train.lora`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.core.files import adapter_base, local_path, read_json
from drkit.encoders.architectures import Architecture, find_architecture
from drkit.errors import DrkitError, ProblemsError, did_you_mean
from drkit.recipe.encoder_settings import EncoderSettings
from drkit.recipe.schema import Recipe
from drkit.recipe.training import Lora, Training

# The longest header of a safetensors file, as the library allows.
_LONGEST_HEADER = 100_000_000


@frozen
class LinearLayers:
    """The linear layers within the transformer layers of a model.

    shapes: (outputs, inputs) of each, by its name in the model; weights: the number of all weights of the model.
    """

    shapes: Mapping[str, tuple[int, int]]
    weights: int

    def trained(self, lora: Lora) -> int:
        """Return the number of weights that LoRA adds and trains. Raises DrkitError as `choose_targets` does."""
        return sum(lora.rank * sum(self.shapes[name]) for name in choose_targets(self.shapes, lora))


def choose_targets(names: Iterable[str], lora: Lora) -> list[str]:
    """Return the linear layers that LoRA adapts: all, or those whose names end with one of `targets`.

    names: of the linear layers within the transformer layers, in their order, such as
    `encoder.layer.0.attention.self.query`. Raises DrkitError, with the names that exist, for a target that none ends
    with, or if there are no linear layers.

    >>> layers = ["layer.0.attention.query", "layer.0.output.dense", "layer.1.attention.query", "layer.1.output.dense"]
    >>> choose_targets(layers, Lora(targets=("query",)))
    ['layer.0.attention.query', 'layer.1.attention.query']
    """
    found = list(names)
    if not found:
        raise DrkitError("LoRA adapts linear layers, but this encoder has none: leave out lora")
    within = [re.sub(r"^.*?\.\d+\.", "", name) for name in found]
    missing = [one for one in lora.targets if not any(_ends_with(name, one) for name in within)]
    if missing:
        known = list(dict.fromkeys(within))
        ends = dict.fromkeys(name.rpartition(".")[2] for name in known)
        raise DrkitError(
            f"no linear layer of this encoder is called {missing[0]!r}{did_you_mean(missing[0], [*ends, *known])} "
            f"known: {', '.join(known)}, or the end of one of these names"
        )
    pairs = zip(found, within, strict=True)
    return [name for name, inner in pairs if not lora.targets or any(_ends_with(inner, t) for t in lora.targets)]


def _ends_with(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def plan_lora(recipe: Recipe, *, is_tuned: bool = True) -> list[str]:
    """Return a note for each training that uses LoRA: how many weights it trains, of how many.

    is_tuned: whether the run has the queries to fine-tune.

    Raises ProblemsError for targets that an encoder does not have, and for pre-training from random weights.
    """
    notes, problems = dict[str, None](), dict[str, None]()
    for setting, training, origin in lora_trainings(recipe):
        if training.lora is None:
            continue
        try:
            if setting == "pretrain.lora" and origin is None:
                raise DrkitError(
                    "LoRA trains few weights beside those of an existing encoder, but this one starts from random "
                    "weights: name one (--encoder), or leave out lora"
                )
            layers = linear_layers(recipe.encoder if origin is None else origin)
            if layers is not None:
                note = _describe(setting, layers, training.lora)
                notes |= {note: None} if is_tuned or setting == "pretrain.lora" else {}
        except DrkitError as error:
            problems[f"{error} @ {setting}"] = None
    if problems:
        raise ProblemsError(f"recipe {recipe.name!r} cannot work", list(problems))
    return list(notes)


def _describe(setting: str, layers: LinearLayers, lora: Lora) -> str:
    trained, chosen = layers.trained(lora), choose_targets(layers.shapes, lora)
    share = f"{trained / layers.weights:.1%}"
    return (
        f"{setting} trains {trained:,} weights beside the encoder's {layers.weights:,} ({share}) in {len(chosen)} "
        f"linear layers"
    )


def lora_trainings(recipe: Recipe) -> Iterator[tuple[str, Training, str | None]]:
    """Yield each training with the path of its setting `lora`, and the model it starts from; None: from scratch."""
    origin = recipe.encoder.pretrained
    if recipe.pretrain:
        yield "pretrain.lora", recipe.pretrain, origin
    for index, current in enumerate(recipe.finetune.rounds if recipe.finetune else ()):
        assert recipe.finetune is not None
        training = recipe.finetune.for_round(current)
        is_own = training.lora != recipe.finetune.lora
        yield f"finetune.rounds.{index}.lora" if is_own else "finetune.lora", training, origin
    if recipe.reranker:
        yield "reranker.lora", recipe.reranker, recipe.reranker.pretrained or origin


def linear_layers(encoder: EncoderSettings | str) -> LinearLayers | None:
    """Return the linear layers of an encoder that is made from settings, or of a model by path or hub id.

    None if they are not known without loading it. Raises DrkitError for a damaged file of weights.
    """
    if isinstance(encoder, str):
        return _stored_layers(local_path(encoder))
    if encoder.pretrained is not None:
        return _stored_layers(local_path(encoder.pretrained))
    names = (find_architecture(encoder.architecture or "bert") or Architecture(())).layer if encoder.layers else None
    if names is None:
        return None if encoder.layers else LinearLayers({}, 1)
    hidden, inner = encoder.hidden, encoder.intermediate
    one = dict.fromkeys((names.query, names.key, names.value, names.attention_output), (hidden, hidden))
    one |= {names.intermediate: (inner, hidden), names.output: (hidden, inner)}
    shapes = {f"layer.{layer}.{name}": shape for layer in range(encoder.layers) for name, shape in one.items()}
    return LinearLayers(shapes, encoder.vocab_size * hidden + sum(map(math.prod, shapes.values())))


def _stored_layers(folder: Path) -> LinearLayers | None:
    folder = adapter_base(folder) or folder
    path = folder / "config.json"
    config = read_json(path, "give the folder of a model") if path.is_file() else {}
    where = find_architecture(str(config.get("model_type"))) if isinstance(config, dict) else None
    if where is None or not (files := sorted(folder.glob("model*.safetensors"))):
        return None
    shapes = {name: shape for file in files for name, shape in _header_shapes(file).items()}
    inside = re.compile(rf"(.+\.)?{re.escape(where.layers)}\.\d+\..+\.weight")
    found = {
        name.removesuffix(".weight"): (shape[0], shape[1])
        for name, shape in shapes.items()
        if inside.fullmatch(name) and len(shape) == 2
    }
    return LinearLayers(found, sum(map(math.prod, shapes.values())))


def _header_shapes(file: Path) -> dict[str, list[int]]:
    """Return the shape of each tensor of a safetensors file, from its header alone."""
    try:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if size > _LONGEST_HEADER:
                raise ValueError(f"a header of {size:,} bytes")
            header: dict[str, Any] = json.loads(stream.read(size))
        return {name: list(map(int, about["shape"])) for name, about in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DrkitError(f"cannot read the weights: {error}; restore the file", where=file) from None
