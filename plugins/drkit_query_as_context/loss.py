"""Pull the vectors of two spans, or of a passage and its query, together, and push other texts away (coCondenser)."""

from __future__ import annotations

from torch import Tensor

from drkit.losses import check_rows, find_partner, products
from drkit.plugin import BuildContext, NoSettings, StepOutput


class SpanContrastiveLoss:
    """`- mean over rows i of log( exp(<h_i, h_j>) / sum over k != i of exp(<h_i, h_k>) )`, j the partner of i.

    | input | shape | what |
    |---|---|---|
    | bottleneck | f[R,D] | h, two rows per pair; under data parallelism those of all processes |
    | partners | i64[R] | the row number of each row's partner |

    Plain dot products without a temperature; every row of either side is an anchor, and all other rows are its
    candidates. Memory: the scores f[R,R]. Metrics: `accuracy`, the share of rows whose partner has the best score.
    `InfoNceLoss` adds a temperature and cosine similarity.

    Source: coCondenser (Gao and Callan 2022), its contrastive loss; Query-as-context (Wu et al. 2023), equation 5.

    >>> import torch
    >>> h = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [0.0, 2.0]])
    >>> out = SpanContrastiveLoss()(bottleneck=h, partners=torch.tensor([2, 3, 0, 1]))
    >>> round(out.loss.item(), 4), out.metrics["accuracy"].item()  # log(1 + 2 / e^4)
    (0.036, 1.0)
    """

    def __init__(self, _config: NoSettings | None = None, _context: BuildContext | None = None) -> None:
        """Ignore the settings and the context that every part is built with."""

    def __call__(self, *, bottleneck: Tensor, partners: Tensor) -> StepOutput:
        """Return the loss of a whole batch. Raises DrkitError if the shapes do not fit."""
        check_rows(bottleneck, partners, "span-contrastive")
        return find_partner(products(bottleneck, bottleneck), partners)
