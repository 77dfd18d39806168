"""Token weights: a learned weight for each token type, for the pooling `weighted`.

The weights start from the inverse document frequencies of a corpus, and are trained with the encoder.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from drkit.core.loading import explain_load_errors
from drkit.encoders.folder import find_modules, read_word_weights

TOKEN_WEIGHTS_FILE = "token_weights.safetensors"
# Of the largest idf: a token that occurs in every text would get the weight 0, and a very noisy gradient.
_SMALLEST = 0.01


class TokenWeights(nn.Module):
    """The weight of each token type: the absolute value of a parameter, so that no weighted mean divides by zero.

    start: f[V], the weights at first. Only ratios of weights matter.
    """

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(start.detach().clone().float())

    def forward(self, ids: Tensor, attention: Tensor) -> Tensor:
        """Return the weight of each token, f[B,L], of ids i64[B,L]; 0 where attention [B,L] is 0."""
        return attention * F.embedding(ids, self.values()[:, None]).squeeze(-1)

    def values(self) -> Tensor:
        """Return the weights f[V]."""
        return self.weight.abs()


def weights_from_idf(idf: Tensor, special_ids: Iterable[int]) -> Tensor:
    """Return initial weights f32[V] from inverse document frequencies f32[V], which are divided by the largest one.

    Special tokens count as tokens that occur in every text. No weight is below 0.01.

    >>> weights_from_idf(torch.tensor([4.0, 2.0, 0.0, 1.0]), special_ids=[0])
    tensor([0.0100, 1.0000, 0.0100, 0.5000])
    """
    weights = idf.clone()
    weights[list(special_ids)] = 0
    return (weights / weights.max().clamp(min=1e-9)).clamp(min=_SMALLEST)


def save_token_weights(weights: TokenWeights, folder: Path) -> None:
    """Write the weights beside a checkpoint, as the tensor `weights` f32[V]."""
    save_file({"weights": weights.values().detach().cpu().contiguous()}, str(folder / TOKEN_WEIGHTS_FILE))


def read_token_weights(folder: Path) -> Tensor | None:
    """Read the weights f32[V] of a checkpoint or an exported encoder; None if the folder has none.

    Raises DrkitError if one of its files is invalid.
    """
    if (folder / TOKEN_WEIGHTS_FILE).is_file():
        with explain_load_errors(str(folder / TOKEN_WEIGHTS_FILE), "read the token weights in"):
            return load_file(str(folder / TOKEN_WEIGHTS_FILE))["weights"]
    modules = find_modules(folder)
    return torch.tensor(read_word_weights(folder / modules["WordWeights"])) if "WordWeights" in modules else None
