"""What training starts from and leaves behind: a whole masked LM with its tokenizer, so that it can be continued.

A checkpoint folder is what `save_pretrained` writes (with the LM head), the tokenizer, and, after pre-training,
`decoder.safetensors` and, where a generator was trained beside the encoder, `generator/`. Where passages have an
encoder of their own, the folder is that of queries and holds the other as `passage_encoder/`. The encoder that users
load is exported separately, clean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile, copytree
from typing import TYPE_CHECKING, Any

from torch import nn

from drkit.core.loading import without_progress_bars
from drkit.encoders import MaskedLmEncoder
from drkit.encoders.folder import PASSAGES
from drkit.errors import DrkitError
from drkit.recipe.write import plain
from drkit.train.pretrain import learns

if TYPE_CHECKING:
    from drkit.recipe.schema import Choice, Pretrain
    from drkit.train.biencoder import BiEncoder
    from drkit.train.pretrain import AutoEncoder

# transformers writes into a saved tokenizer how it was loaded; a run's files must not depend on that.
_OF_THE_LOADING = ("is_local", "local_files_only")


def load_tokenizer(path_or_id: str) -> Any:
    """A fast tokenizer from a folder or hub id.

    Raises DrkitError where there is none, it is not a fast one (no word ids), or it lacks a mask token.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path_or_id)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DrkitError(f"cannot load the tokenizer of {path_or_id!r}: {reason}") from error
    if not tokenizer.is_fast:
        raise DrkitError(f"the tokenizer of {path_or_id!r} is no fast one: words cannot be told apart for masking")
    if tokenizer.mask_token_id is None:
        raise DrkitError(f"the tokenizer of {path_or_id!r} has no mask token, so nothing can be masked")
    for key in _OF_THE_LOADING:
        tokenizer.init_kwargs.pop(key, None)
    return tokenizer


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer without the padding and truncation of its last use, so that its files depend on no use."""
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    tokenizer.save_pretrained(folder)


DECODER = "decoder.safetensors"
GENERATOR = "generator"


def save_masked_lm(encoder: MaskedLmEncoder, tokenizer: Any, folder: Path) -> None:
    """Write encoder, LM head and tokenizer."""
    model: Any = encoder.model
    with without_progress_bars():
        model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)


def load_encoder(folder: Path, *, pooling: str) -> MaskedLmEncoder:
    """The masked LM of a checkpoint folder."""
    return MaskedLmEncoder.from_pretrained(str(folder), pooling=pooling)


def load_passage_encoder(folder: Path, *, pooling: str) -> MaskedLmEncoder:
    """The encoder of passages of a checkpoint folder; a second copy of its only one, where it has no other."""
    own = folder / PASSAGES
    return load_encoder(own if own.is_dir() else folder, pooling=pooling)


def load_generator(folder: Path | None) -> MaskedLmEncoder | None:
    """The generator of a folder, where there is one."""
    return load_encoder(folder, pooling="cls") if folder else None


def save_encoders(module: BiEncoder, tokenizer: Any, folder: Path) -> None:
    """Write the encoder of a bi-encoder, or both."""
    save_masked_lm(module.encoder, tokenizer, folder)
    if module.passage_encoder is not None:
        save_masked_lm(module.passage_encoder, tokenizer, folder / PASSAGES)


def save_parts(module: AutoEncoder, settings: Pretrain, tokenizer: Any, folder: Path) -> None:
    """Write all that pre-training goes on from: encoder, LM head, decoder, and a generator that was trained."""
    save_masked_lm(module.encoder, tokenizer, folder)
    save_decoder(module.decoder, settings.decoder, folder)
    if learns(module.replacer):
        save_masked_lm(module.replacer.generator, tokenizer, folder / GENERATOR)


def save_decoder(decoder: nn.Module, made_of: Choice, folder: Path) -> None:
    """Write a decoder's own weights beside the checkpoint, and in their metadata which part they belong to."""
    from safetensors.torch import save_model

    if any(True for _ in decoder.parameters()):
        save_model(decoder, str(folder / DECODER), metadata={"decoder": json.dumps(plain(made_of))})


def saved_decoder(folder: Path) -> dict[str, Any] | None:
    """The part, as a recipe's table, that the decoder of a checkpoint is; None where it has none."""
    from safetensors import safe_open

    if not (folder / DECODER).is_file():
        return None
    with safe_open(str(folder / DECODER), framework="pt") as file:
        table: dict[str, Any] = json.loads((file.metadata() or {}).get("decoder", "{}"))
    return table


def load_decoder(decoder: nn.Module, folder: Path) -> None:
    """Read a decoder's weights from a checkpoint folder into a decoder built with the same settings."""
    from safetensors.torch import load_model

    load_model(decoder, str(folder / DECODER))


def restore(module: AutoEncoder, settings: Pretrain, folder: Path) -> Iterator[str]:
    """Go on from a checkpoint's decoder and generator where they fit; yields what the user should know."""
    found = saved_decoder(folder)
    if found and found["use"] == settings.decoder.use and _fits(module.decoder, folder):
        load_decoder(module.decoder, folder)
        yield f"going on with the decoder {found['use']!r} of the checkpoint"
    elif found:
        yield (
            f"the checkpoint's decoder is {_named(found)}, this recipe's is {_named(plain(settings.decoder))}: "
            f"the decoder starts anew"
        )
    if learns(module.replacer) and (folder / GENERATOR).is_dir():
        saved = load_encoder(folder / GENERATOR, pooling="cls")
        module.replacer.generator.load_state_dict(saved.state_dict())
        yield "going on with the generator of the checkpoint"


def _fits(decoder: nn.Module, folder: Path) -> bool:
    from safetensors import safe_open

    with safe_open(str(folder / DECODER), framework="pt") as file:
        saved = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    own = {name: tuple(weight.shape) for name, weight in decoder.state_dict().items()}
    return all(own.get(name) == shape for name, shape in saved.items())


def copy_parts(source: Path, folder: Path) -> None:
    """Copy a checkpoint's decoder and generator, where it has them."""
    if (source / DECODER).is_file():
        copyfile(source / DECODER, folder / DECODER)
    if (source / GENERATOR).is_dir():
        copytree(source / GENERATOR, folder / GENERATOR)


def _named(table: dict[str, Any]) -> str:
    settings = ", ".join(f"{key} = {value!r}" for key, value in table.items() if key != "use")
    return f"{table.get('use')!r} ({settings})" if settings else f"{table.get('use')!r}"
