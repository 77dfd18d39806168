"""Training checkpoints: a whole masked LM with its tokenizer, which training can start from or continue.

A checkpoint folder holds what `save_pretrained` writes (with the LM head), the tokenizer, and, after pre-training,
`decoder.safetensors`, and `generator/` if a generator was trained beside the encoder. If queries and passages have
separate encoders, the folder is the query encoder and contains the passage encoder as `passage_encoder/`. The encoder
that users load is exported separately, without any of this.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile, copytree
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from drkit.core.loading import explain_load_errors, load_pretrained, without_progress_bars
from drkit.encoders import MaskedLmEncoder
from drkit.encoders.folder import PASSAGES
from drkit.encoders.token_weights import save_token_weights
from drkit.errors import DrkitError
from drkit.recipe.schema import Choice, Pretrain
from drkit.recipe.toml import plain
from drkit.train.pretrain import AutoEncoder, trains_generator

if TYPE_CHECKING:
    from drkit.train.biencoder import BiEncoder

DECODER = "decoder.safetensors"
GENERATOR = "generator"
# transformers writes into a saved tokenizer how it was loaded; a run's files must not depend on that.
_LOADING_OPTIONS = ("is_local", "local_files_only")


def save_masked_lm(encoder: MaskedLmEncoder, tokenizer: Any, folder: Path) -> None:
    """Write encoder, LM head, the weights of the pooling if it has any, and tokenizer."""
    model: Any = encoder.model
    with without_progress_bars():
        model.save_pretrained(folder)
    if encoder.token_weights is not None:
        save_token_weights(encoder.token_weights, folder)
    if encoder.learned_pooling is not None:
        encoder.learned_pooling.save(folder)
    save_tokenizer(tokenizer, folder)


def save_encoders(module: BiEncoder, tokenizer: Any, folder: Path) -> None:
    """Write the encoder of a bi-encoder, or both of its encoders."""
    save_masked_lm(module.encoder, tokenizer, folder)
    if module.passage_encoder is not None:
        save_masked_lm(module.passage_encoder, tokenizer, folder / PASSAGES)


def save_parts(module: AutoEncoder, settings: Pretrain, tokenizer: Any, folder: Path) -> None:
    """Write all that pre-training continues from: encoder, LM head, decoder, and the generator if it was trained."""
    save_masked_lm(module.encoder, tokenizer, folder)
    save_decoder(module.decoder, settings.decoder, folder)
    if trains_generator(module.replacer):
        save_masked_lm(module.replacer.generator, tokenizer, folder / GENERATOR)


def load_encoder(folder: Path, *, pooling: str) -> MaskedLmEncoder:
    """Load the masked LM of a checkpoint folder."""
    return MaskedLmEncoder.from_pretrained(str(folder), pooling=pooling)


def load_passage_encoder(folder: Path, *, pooling: str) -> MaskedLmEncoder:
    """Load the passage encoder of a checkpoint folder; a second copy of its shared encoder if it has only one."""
    separate = folder / PASSAGES
    return load_encoder(separate if separate.is_dir() else folder, pooling=pooling)


def load_generator(folder: Path | None) -> MaskedLmEncoder | None:
    """Load the generator of a folder; None without a folder."""
    return load_encoder(folder, pooling="cls") if folder else None


def restore(module: AutoEncoder, settings: Pretrain, folder: Path) -> Iterator[str]:
    """Load a checkpoint's decoder and generator into a module if they fit; yields notes for the user.

    Raises DrkitError if the decoder has the settings of this one, but other weights, or the generator does not fit.
    """
    found = saved_decoder(folder)
    wrong = _misfits(module.decoder, folder) if found and found.get("use") == settings.decoder.use else []
    if wrong and found == json.loads(json.dumps(plain(settings.decoder))):
        raise DrkitError(
            f"the weights in {folder / DECODER} do not fit the decoder {settings.decoder.use!r} of these settings "
            f"({', '.join(wrong[:3])}{', ..' if len(wrong) > 3 else ''}); restore the file, or remove it to start the "
            f"decoder from scratch"
        )
    if found and found.get("use") == settings.decoder.use and not wrong:
        load_decoder(module.decoder, folder)
        yield f"continuing with the decoder {found['use']!r} of the checkpoint"
    elif found:
        yield (
            f"the checkpoint's decoder is {_describe_part(found)}, but this recipe's is "
            f"{_describe_part(plain(settings.decoder))}: the decoder starts from scratch"
        )
    if trains_generator(module.replacer) and (folder / GENERATOR).is_dir():
        saved = load_encoder(folder / GENERATOR, pooling="cls")
        with explain_load_errors(str(folder / GENERATOR), "continue with the generator in"):
            module.replacer.generator.load_state_dict(saved.state_dict())
        yield "continuing with the generator of the checkpoint"


def copy_parts(source: Path, folder: Path) -> None:
    """Copy a checkpoint's decoder and generator, if it has them."""
    if (source / DECODER).is_file():
        copyfile(source / DECODER, folder / DECODER)
    if (source / GENERATOR).is_dir():
        copytree(source / GENERATOR, folder / GENERATOR)


def save_decoder(decoder: nn.Module, choice: Choice, folder: Path) -> None:
    """Write a decoder's own weights, if it has any, beside the checkpoint; their metadata names the part."""
    from safetensors.torch import save_file

    if any(True for _ in decoder.parameters()):
        # Copies: weights may be views of one buffer (DeepSpeed), which safetensors refuses.
        weights = {
            name: weight.clone(memory_format=torch.contiguous_format) for name, weight in decoder.state_dict().items()
        }
        save_file(weights, str(folder / DECODER), metadata={"decoder": json.dumps(plain(choice))})


def saved_decoder(folder: Path) -> dict[str, Any] | None:
    """Return the part, as a recipe's table, of a checkpoint's decoder; None if the checkpoint has no decoder.

    Raises DrkitError if the file is damaged, or does not say which decoder it holds.
    """
    from safetensors import safe_open

    if not (folder / DECODER).is_file():
        return None
    path = str(folder / DECODER)
    with explain_load_errors(path, "read the decoder in"), safe_open(path, framework="pt") as file:
        return dict(json.loads((file.metadata() or {})["decoder"]))


def load_decoder(decoder: nn.Module, folder: Path) -> None:
    """Load a decoder's weights from a checkpoint folder into a decoder built with the same settings."""
    from safetensors.torch import load_model

    load_model(decoder, str(folder / DECODER))


def _misfits(decoder: nn.Module, folder: Path) -> list[str]:
    """Return the names of weights that either only a decoder or only its file has, or in different shapes."""
    from safetensors import safe_open

    with safe_open(str(folder / DECODER), framework="pt") as file:
        saved = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    shapes = {name: tuple(weight.shape) for name, weight in decoder.state_dict().items()}
    return sorted(name for name in {**saved, **shapes} if saved.get(name) != shapes.get(name))


def _describe_part(table: dict[str, Any]) -> str:
    settings = ", ".join(f"{key} = {value!r}" for key, value in table.items() if key != "use")
    return f"{table.get('use')!r} ({settings})" if settings else f"{table.get('use')!r}"


def load_tokenizer(path_or_id: str) -> Any:
    """Load a fast tokenizer from a folder or hub id.

    Raises DrkitError if it is missing, is not a fast tokenizer (without word ids), or lacks a mask token.
    """
    tokenizer = load_pretrained("AutoTokenizer", path_or_id, "load the tokenizer of")
    if not tokenizer.is_fast:
        raise DrkitError(
            f"the tokenizer of {path_or_id!r} is not a fast tokenizer, which masking needs to know words; choose an "
            f"encoder with a fast one"
        )
    if tokenizer.mask_token_id is None:
        raise DrkitError(
            f"the tokenizer of {path_or_id!r} has no mask token, which masking needs; choose an encoder that was "
            f"trained as a masked language model"
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
