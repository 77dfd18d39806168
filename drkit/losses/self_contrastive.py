"""Pull two views of a text together, and push other texts away."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from drkit.core.types import BuildContext, StepOutput
from drkit.errors import DrkitError
from drkit.losses.candidates import products
from drkit.losses.specs import InfoNceConfig


def find_partner(scores: Tensor, partners: Tensor, reduction: str = "mean") -> StepOutput:
    """Return `- log( exp(s_ij) / sum over k != i of exp(s_ik) )`, j the partner of i: the mean or sum over all rows i.

    scores f[R,R], the similarity of two rows (the diagonal is ignored); partners i64[R]. Metrics: `accuracy`, the share
    of rows whose partner has the best score.

    >>> scores = torch.zeros(4, 4)
    >>> round(find_partner(scores, torch.tensor([2, 3, 0, 1])).loss.item(), 4)  # log 3
    1.0986
    """
    alone = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    others = scores.masked_fill(alone, float("-inf"))
    accuracy = (others.detach().argmax(1) == partners).float().mean()
    return StepOutput(loss=F.cross_entropy(others, partners, reduction=reduction), metrics={"accuracy": accuracy})


def check_rows(rows: Tensor, partners: Tensor, what: str) -> None:
    """Raise DrkitError unless rows are f[R,.] and partners i64[R], R at least 2."""
    if rows.ndim != 2 or len(rows) < 2 or tuple(partners.shape) != (len(rows),):
        raise DrkitError(
            f"{what} expects rows f[R,.] and partners i64[R] with R at least 2 (two rows per text), got "
            f"{tuple(rows.shape)} and {tuple(partners.shape)}"
        )


class InfoNceLoss:
    """`- mean over rows i of log( exp(s(h_i, h_j) / t) / sum over k != i of exp(s(h_i, h_k) / t) )`, j i's partner.

    | input | shape | what |
    |---|---|---|
    | bottleneck | f[R,D] | h, two rows per text; under data parallelism those of all processes |
    | partners | i64[R] | the row number of each row's partner |

    s is cosine or dot product, t the temperature; the candidates of a row are all other rows, of both views. With
    `reduction = "sum"` the sum over rows. Memory: the scores f[R,R]. Metrics: `accuracy`, the share of rows whose
    partner has the best score.

    Source: SimCSE (Gao et al. 2021), equation 1, with the candidates of CPDAE's equation 5: its variant CPDAE_R.

    >>> import torch
    >>> h = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    >>> out = InfoNceLoss(InfoNceConfig(temperature=1.0))(bottleneck=h, partners=torch.tensor([2, 3, 0, 1]))
    >>> round(out.loss.item(), 4), out.metrics["accuracy"].item()  # log(1 + 2 / e)
    (0.5514, 1.0)
    """

    def __init__(self, config: InfoNceConfig | None = None, _context: BuildContext | None = None) -> None:
        self.config = InfoNceConfig() if config is None else config

    def __call__(self, *, bottleneck: Tensor, partners: Tensor) -> StepOutput:
        """Return the loss of a whole batch. Raises DrkitError if the shapes do not fit."""
        check_rows(bottleneck, partners, "info-nce")
        rows = bottleneck.to(torch.promote_types(bottleneck.dtype, torch.float32))
        if self.config.similarity == "cosine":
            rows = F.normalize(rows, dim=1)
        return find_partner(products(rows, rows) / self.config.temperature, partners, self.config.reduction)
