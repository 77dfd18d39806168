"""Leave out false negatives: those that a guide, another encoder, scores above a query's own passage (GISTEmbed)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from drkit.core.types import BuildContext, EmbeddedPairs, StepOutput
from drkit.errors import DrkitError
from drkit.losses.candidates import check_pairs, products
from drkit.losses.contrastive import contrast
from drkit.losses.specs import GUIDE_PASSAGES, GUIDE_QUERIES, GistConfig


class GistLoss:
    """`ContrastiveLoss` without the candidates that a guide takes for answers.

    | input | shape | what |
    |---|---|---|
    | pairs.queries, passages, positives | f[Q,D], f[P,D], i64[Q] | as `ContrastiveLoss` takes them |
    | column `guide-queries` | f[Q,G] | the guide's vectors of the queries |
    | column `guide-passages` | f[P,G] | and of the passages |
    | pairs.candidates, numbers, sharing | or None | as `ContrastiveLoss` takes them |

    g is the cosine of the guide's vectors. For query i, t_i = g(q_i, p_i) - margin or, with a `relative` margin,
    t_i = g(q_i, p_i) - margin |g(q_i, p_i)|. In each of the `directions`, whatever g scores above t_i is left out of
    the softmax of query i, but never its own passage. Metrics: `accuracy`, as in `ContrastiveLoss`; `guided`, the mean
    number of passages that the guide leaves out.

    Source: GISTEmbed (Solatorio 2024); margins: NV-Retriever (Moreira et al. 2024).

    >>> import torch
    >>> from drkit.core.types import EmbeddedPairs
    >>> same = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> guide = {"guide-queries": same, "guide-passages": torch.tensor([[0.6, 0.8], [1.0, 0.0]])}
    >>> pairs = EmbeddedPairs(queries=same, passages=same, positives=torch.tensor([0, 1]), columns=guide)
    >>> GistLoss(GistConfig(temperature=1.0, directions="query-passage"))(pairs=pairs).metrics["guided"].item()
    0.5
    """

    def __init__(self, config: GistConfig | None = None, _context: BuildContext | None = None) -> None:
        self.config = GistConfig() if config is None else config

    def __call__(self, *, pairs: EmbeddedPairs) -> StepOutput:
        """Return the loss of one batch. Raises DrkitError if the shapes do not fit, or without the guide's vectors."""
        check_pairs(pairs)
        without = self._above(pairs)
        loss, accuracy = contrast(pairs, self.config, without)
        guided = without["query-passage"].sum(1).float().mean()
        return StepOutput(loss=loss, metrics={"accuracy": accuracy, "guided": guided})

    def _above(self, pairs: EmbeddedPairs) -> dict[str, Tensor]:
        """Return by direction what the guide scores above the threshold of each query, bool[Q,P] or bool[Q,Q]."""
        queries, passages = _guide(pairs, GUIDE_QUERIES, pairs.queries), _guide(pairs, GUIDE_PASSAGES, pairs.passages)
        if queries.shape[1] != passages.shape[1]:
            raise DrkitError(
                f"the columns {GUIDE_QUERIES!r} and {GUIDE_PASSAGES!r} have vectors of {queries.shape[1]} and "
                f"{passages.shape[1]} numbers; they must be of one encoder"
            )
        own = passages[pairs.positives]
        scores = products(queries, passages)
        answer = scores.gather(1, pairs.positives[:, None])
        margin = self.config.margin * (answer.abs() if self.config.relative else 1.0)
        threshold = answer - margin
        sides = {"passage-query": (own, queries), "query-query": (queries, queries), "passage-passage": (own, own)}
        above = {name: products(*sides[name]) > threshold for name in self.config.directions if name in sides}
        return {"query-passage": (scores > threshold).scatter(1, pairs.positives[:, None], False), **above}


def _guide(pairs: EmbeddedPairs, name: str, rows: Tensor) -> Tensor:
    """Return the guide's vectors f[N,G] of queries or passages f[N,D], of unit length."""
    vectors = pairs.column(name)
    if vectors.ndim != 2 or len(vectors) != len(rows):
        raise DrkitError(f"the column {name!r} must be f[{len(rows)},G], a vector for each; got {tuple(vectors.shape)}")
    return F.normalize(vectors.detach().float(), dim=1)
