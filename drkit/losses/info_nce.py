"""Pull the vectors of two views of a text together, and push those of other texts away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from drkit.losses.config import InfoNceConfig
from drkit.losses.partners import check_rows, find_partner, products

if TYPE_CHECKING:
    from torch import Tensor

    from drkit.core.types import BuildContext, StepOutput


class InfoNceLoss:
    """`- mean over rows i of log( exp(s(h_i, h_j) / t) / sum over k != i of exp(s(h_i, h_k) / t) )`, j i's partner.

    | input | shape | what |
    |---|---|---|
    | bottleneck | f[R,D] | h, two rows a text; under data parallelism those of all processes |
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
        """The loss of a whole batch. Raises DrkitError where the shapes do not fit."""
        check_rows(bottleneck, partners, "info-nce")
        rows = bottleneck.to(torch.promote_types(bottleneck.dtype, torch.float32))
        if self.config.similarity == "cosine":
            rows = F.normalize(rows, dim=1)
        return find_partner(products(rows) / self.config.temperature, partners, self.config.reduction)
