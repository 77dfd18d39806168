"""Training checkpoints: a whole masked LM with its tokenizer, which training can start from or continue.

A checkpoint folder holds what `save_pretrained` writes (with the LM head), the tokenizer, and, after pre-training,
`decoder-NAME.safetensors` for each decoder, `loss-NAME.safetensors` for each loss with weights of its own, and
`generator/` if a replacer was trained beside the encoder. If queries and passages have separate encoders, the folder is
the query encoder and contains the passage encoder as `passage_encoder/`. The encoder that users load is exported
separately, without any of this.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile, copytree
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_model, save_file
from torch import nn

from drkit.core.files import read_json, write_json
from drkit.core.loading import explain_load_errors, load_pretrained, weights_to_save, without_progress_bars
from drkit.core.registry import Registry
from drkit.core.spec import Choice
from drkit.encoders import MaskedLmEncoder
from drkit.encoders.architectures import TIED
from drkit.encoders.declarations import CONFIG
from drkit.encoders.folder import PASSAGE_ENCODER
from drkit.encoders.learned_pooling import LearnedPooling, read_learned_pooling
from drkit.encoders.token_weights import save_token_weights
from drkit.errors import DrkitError
from drkit.recipe.encoder_settings import MEAN
from drkit.recipe.schema import Pretrain
from drkit.recipe.toml import changed_settings, plain
from drkit.train.biencoder import BiEncoder
from drkit.train.lora import merged_copy
from drkit.train.pretrain import REPLACER, AutoEncoder, trains_replacer

DECODER, _LOSS = "decoder", "loss"
# transformers writes into a saved tokenizer how it was loaded; a run's files must not depend on that.
_LOADING_OPTIONS = ("is_local", "local_files_only")


def save_masked_lm(encoder: MaskedLmEncoder, tokenizer: Any, folder: Path) -> None:
    """Write a masked LM: encoder, head, the weights of the pooling if it has any, and tokenizer.

    `MaskedLmEncoder.from_pretrained` loads it. Adapters in training (LoRA) are merged in what is written. A head that
    is only the tied projection is declared as no class of transformers, which would add a transform with random
    weights.
    """
    model: Any = merged_copy(encoder.model)
    with without_progress_bars():
        model.save_pretrained(folder)
    if getattr(model.config, TIED, False) and (folder / CONFIG).is_file():  # the first of several processes writes it
        config = read_json(folder / CONFIG, "save the model again")
        write_json(folder / CONFIG, {name: value for name, value in config.items() if name != "architectures"})
    if encoder.token_weights is not None:
        save_token_weights(encoder.token_weights, folder)
    if encoder.learned_pooling is not None:
        encoder.learned_pooling.save(folder)
    save_tokenizer(tokenizer, folder)


def save_encoders(module: BiEncoder, tokenizer: Any, folder: Path) -> None:
    """Write the encoder of a bi-encoder, or both of its encoders."""
    save_masked_lm(module.encoder, tokenizer, folder)
    if module.passage_encoder is not None:
        save_masked_lm(module.passage_encoder, tokenizer, folder / PASSAGE_ENCODER)


def save_parts(module: AutoEncoder, settings: Pretrain, tokenizer: Any, folder: Path) -> None:
    """Write what pre-training continues from: encoder, LM head, decoders, losses, the replacer if it was trained."""
    save_masked_lm(module.encoder, tokenizer, folder)
    for kind, name, part, choice in _trained_parts(module, settings):
        save_part(part, choice, part_file(folder, kind, name))
    if trains_replacer(module.replacer):
        module.replacer.save(folder / REPLACER)


def load_encoder(folder: Path, *, pooling: str) -> MaskedLmEncoder:
    """Load the masked LM of a checkpoint folder."""
    return MaskedLmEncoder.from_pretrained(str(folder), pooling=pooling)


def load_encoder_with(
    folder: Path, pooling: Choice, *, tokenizer: Any, seed: int, registry: Registry
) -> MaskedLmEncoder:
    """Load the masked LM of a checkpoint folder with another pooling than the encoder's own, which it is saved with.

    The pooling is that of the checkpoint, if that was trained with the same, else a new one. An LM head that is to
    score words from now on gets a centered bias.
    """
    encoder, settings = load_encoder(folder, pooling=MEAN.use), changed_settings(pooling.config)
    part = read_learned_pooling(folder, registry)
    has_scored_words = part is not None and part.is_sparse
    if part is None or (part.name, part.settings) != (pooling.use, settings):
        part = LearnedPooling(pooling.use, settings, encoder.info(tokenizer), seed=seed, registry=registry)
    if part.is_sparse and not has_scored_words:
        encoder.center_lm_bias()
    return MaskedLmEncoder(encoder.model, pooling=part)


def load_passage_encoder(folder: Path, *, pooling: str) -> MaskedLmEncoder:
    """Load the passage encoder of a checkpoint folder; a second copy of its shared encoder if it has only one."""
    return load_encoder(passage_folder(folder), pooling=pooling)


def passage_folder(folder: Path) -> Path:
    """Return the folder of a checkpoint's passage encoder, or of its shared one."""
    separate = folder / PASSAGE_ENCODER
    return separate if separate.is_dir() else folder


def restore(module: AutoEncoder, settings: Pretrain, folder: Path) -> Iterator[str]:
    """Load a checkpoint's decoders, losses and replacer into a module if they fit; yields notes for the user.

    Raises DrkitError if a part has the settings of this one, but other weights, or the replacer does not fit.
    """
    for kind, name, part, choice in _trained_parts(module, settings):
        yield from _restore_part(part, choice, part_file(folder, kind, name), f"{kind} {name!r}")
    if trains_replacer(module.replacer) and (folder / REPLACER).is_dir():
        with explain_load_errors(str(folder / REPLACER), f"continue with the {REPLACER} in"):
            module.replacer.load(folder / REPLACER)
        yield f"continuing with the {REPLACER} of the checkpoint"


def _restore_part(part: nn.Module, choice: Choice, path: Path, title: str) -> Iterator[str]:
    found = saved_part(path)
    if not found:
        return
    is_same = found.get("use") == choice.use
    wrong = _misfits(part, path) if is_same else []
    if wrong and found == _table_of(choice):
        raise DrkitError(
            f"the weights in {path} do not fit the {title} of these settings "
            f"({', '.join(wrong[:3])}{', ..' if len(wrong) > 3 else ''}); restore the file, or remove it to start "
            f"from scratch"
        )
    if is_same and not wrong:
        load_part(part, path)
        yield f"continuing with the {title} ({choice.use}) of the checkpoint"
    else:
        yield (
            f"the checkpoint's {title} is {_describe_part(found)}, but this recipe's is "
            f"{_describe_part(_table_of(choice))}: it starts from scratch"
        )


def _trained_parts(module: AutoEncoder, settings: Pretrain) -> Iterator[tuple[str, str, nn.Module, Choice]]:
    """Yield kind, name, module and choice of each decoder, and of each loss, with weights of its own."""
    losses = settings.losses()
    parts: list[tuple[str, str, nn.Module, Choice]] = []
    parts += [(DECODER, name, decoder, settings.decoders[name].decoder) for name, decoder in module.decoders.items()]
    parts += [(_LOSS, name, loss, losses[name][1]) for name, loss in module.losses.items()]
    for kind, name, part, choice in parts:
        if any(True for _ in part.parameters()):
            yield kind, name, part, choice


def part_file(folder: Path, kind: str, name: str) -> Path:
    """Return the file of a decoder's or loss's weights in a checkpoint folder."""
    return folder / f"{kind}-{name}.safetensors"


def copy_parts(source: Path, folder: Path) -> None:
    """Copy a checkpoint's decoders, losses and replacer, if it has them."""
    for kind in (DECODER, _LOSS):
        for path in source.glob(f"{kind}-*.safetensors"):
            copyfile(path, folder / path.name)
    if (source / REPLACER).is_dir():
        copytree(source / REPLACER, folder / REPLACER)


def save_part(part: nn.Module, choice: Choice, path: Path) -> None:
    """Write the weights of a decoder or loss; their metadata names the part."""
    save_file(weights_to_save(part), str(path), metadata={"part": json.dumps(_table_of(choice))})


def saved_part(path: Path) -> dict[str, Any] | None:
    """Return the part, as a recipe's table, whose weights a file has; None without such a file.

    Raises DrkitError if the file is damaged, or does not say which part it holds.
    """
    if not path.is_file():
        return None
    with explain_load_errors(str(path), "read the weights in"), safe_open(str(path), framework="pt") as file:
        return dict(json.loads((file.metadata() or {})["part"]))


def load_part(part: nn.Module, path: Path) -> None:
    """Load the weights of a decoder or loss into one built with the same settings."""
    load_model(part, str(path))


def _table_of(choice: Choice) -> dict[str, Any]:
    """Return a part as a recipe's table; the weight of a loss is not a property of its weights."""
    table = json.loads(json.dumps(plain(choice)))
    return {name: value for name, value in table.items() if name != "weight"}


def _misfits(part: nn.Module, path: Path) -> list[str]:
    """Return the names of weights that either only a part or only its file has, or in different shapes."""
    with safe_open(str(path), framework="pt") as file:
        saved = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    shapes = {name: tuple(weight.shape) for name, weight in part.state_dict().items()}
    return sorted(name for name in {**saved, **shapes} if saved.get(name) != shapes.get(name))


def _describe_part(table: dict[str, Any]) -> str:
    settings = ", ".join(f"{key} = {value!r}" for key, value in table.items() if key != "use")
    return f"{table.get('use')!r} ({settings})" if settings else f"{table.get('use')!r}"


def load_tokenizer(path_or_id: str) -> Any:
    """Load a fast tokenizer from a folder or hub id.

    Raises DrkitError if it is missing, or is not a fast tokenizer (without word ids).
    """
    tokenizer = load_pretrained("AutoTokenizer", path_or_id, "load the tokenizer of")
    if not tokenizer.is_fast:
        raise DrkitError(
            f"the tokenizer of {path_or_id!r} is not a fast tokenizer, which masking needs to know words; choose an "
            f"encoder with a fast one"
        )
    for key in _LOADING_OPTIONS:
        tokenizer.init_kwargs.pop(key, None)
    return tokenizer


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer without the padding and truncation of its last use, on which its files must not depend."""
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    tokenizer.save_pretrained(folder)
