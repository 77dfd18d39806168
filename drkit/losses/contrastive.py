"""InfoNCE: find each query's passage among all passages of the batch or, in SimLM's form, among all its vectors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from drkit.core.types import BuildContext, EmbeddedPairs, StepOutput
from drkit.losses.candidates import answers, check_pairs, copies, first_copies, products, vectors
from drkit.losses.specs import ContrastiveConfig


class ContrastiveLoss:
    """- mean over queries i of log( exp(s(q_i, p_i) / t) / sum over candidates c of exp(s_c / t) ).

    | input | shape | what |
    |---|---|---|
    | pairs.queries | f[Q,D] | query vectors |
    | pairs.passages | f[P,D] | positives and negatives, of this batch and of every rank |
    | pairs.positives | i64[Q] | each query's passage |
    | pairs.candidates | bool[Q,P] or None | False: not a negative of this query (its positive is always kept) |
    | pairs.numbers | i64[P] or None | equal: copies of one passage |
    | pairs.sharing | bool[Q,Q] or None | True: two queries that share a judged positive |

    s is cosine or dot product, t the temperature. The candidates of query i are, in one softmax with its own passage
    p_i and by the `directions` that are set:

    | direction | scores | left out |
    |---|---|---|
    | query-passage | s(q_i, p), every passage p | other passages that answer q_i; second copies |
    | passage-query | s(p_i, q_j), every other query | queries that p_i answers |
    | query-query | s(q_i, q_j), every other query | queries that share a judged positive with q_i |
    | passage-passage | s(p_i, p_j), every other query's passage | pairs judged relevant to the same query; copies |
    | passage-negative | s(p_i, p), every negative p of q_i, hard ones, too | the same |

    Memory: the scores, f[Q, P + 3Q] with the first four directions, and another f[Q,P] with the last.
    Metrics: `accuracy`, the share of queries whose passage has the best score of all passages.

    Source: van den Oord et al. 2018, equation 4; DPR (Karpukhin et al. 2020) for in-batch negatives; SimLM (Wang et
    al. 2023), whose public code has the first four directions in one softmax, and whose equation 3 is `query-passage`
    with `passage-negative`.

    >>> import torch
    >>> from drkit.core.types import EmbeddedPairs
    >>> from drkit.losses import ContrastiveConfig, ContrastiveLoss
    >>> queries, passages = torch.eye(2), torch.eye(3)[:, :2]
    >>> pairs = EmbeddedPairs(queries=queries, passages=passages, positives=torch.tensor([0, 1]))
    >>> out = ContrastiveLoss(ContrastiveConfig(temperature=1.0, similarity="dot"))(pairs=pairs)
    >>> round(out.loss.item(), 4), out.metrics["accuracy"].item()  # log(1 + 2 / e)
    (0.5514, 1.0)
    >>> out = ContrastiveLoss(ContrastiveConfig(temperature=1.0, similarity="dot", directions="all"))(pairs=pairs)
    >>> round(out.loss.item(), 4)  # log(1 + 5 / e)
    1.0436
    """

    def __init__(self, config: ContrastiveConfig, context: BuildContext | None = None) -> None:
        self.config, self.context = config, context

    def __call__(self, *, pairs: EmbeddedPairs) -> StepOutput:
        """Return the loss of one batch.

        Raises DrkitError if the shapes do not fit each other.
        """
        check_pairs(pairs)
        loss, accuracy = contrast(pairs, self.config)
        return StepOutput(loss=loss, metrics={"accuracy": accuracy})


class Contrasts(Protocol):
    """The settings of a loss that contrasts scores in some directions."""

    @property
    def temperature(self) -> float:
        """What scores are divided by."""

    @property
    def similarity(self) -> str:
        """`cosine` or `dot`."""

    @property
    def directions(self) -> tuple[str, ...]:
        """Which scores a query's score of its passage is contrasted with."""


def contrast(
    pairs: EmbeddedPairs,
    config: Contrasts,
    without: Mapping[str, Tensor] = MappingProxyType({}),
    added: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the contrastive loss f[] and its accuracy f[].

    without: by direction, what else to leave out, bool[Q,P] or bool[Q,Q]; added: a constant f[Q,P] to the scores of
    queries and passages, after they are divided by the temperature.
    """
    queries, passages = vectors(pairs, config.similarity)
    scores = products(queries, passages)
    kept = candidates(pairs)
    if "query-passage" in without:
        kept = kept & ~without["query-passage"]
    negatives = kept
    kept = kept.scatter(1, pairs.positives[:, None], True)
    accuracy = (scores.detach().masked_fill(~kept, float("-inf")).argmax(1) == pairs.positives).float().mean()
    if "query-passage" not in config.directions:
        kept = torch.zeros_like(kept).scatter_(1, pairs.positives[:, None], True)
    blocks, masks = [scores if added is None else scores + config.temperature * added], [kept]
    others = _others(pairs) if set(config.directions) - {"query-passage", "passage-negative"} else {}
    own = passages[pairs.positives]
    sides = {
        "passage-query": (own, queries),
        "query-query": (queries, queries),
        "passage-passage": (own, own),
    }
    for direction, (left, right) in sides.items():
        if direction in config.directions:
            blocks.append(products(left, right))
            masks.append(others[direction] & ~without[direction] if direction in without else others[direction])
    if "passage-negative" in config.directions:
        blocks.append(products(own, passages))
        masks.append(_unrelated(pairs, negatives))
    every = torch.cat(blocks, 1).masked_fill(~torch.cat(masks, 1), float("-inf"))
    return F.cross_entropy(every / config.temperature, pairs.positives), accuracy


def candidates(pairs: EmbeddedPairs) -> Tensor:
    """Return each query's candidates, bool[Q,P]: those given in the pairs, or every passage once."""
    if pairs.candidates is not None:
        return pairs.candidates.clone()
    numbers = copies(pairs)
    return ~answers(pairs) & (first_copies(numbers) == torch.arange(len(numbers), device=numbers.device))


def _others(pairs: EmbeddedPairs) -> dict[str, Tensor]:
    """Return by direction which other queries, or their passages, each query is contrasted with, bool[Q,Q]."""
    answered = answers(pairs)[:, pairs.positives]  # [i, j]: the passage of query j answers query i
    either = answered | answered.T
    sharing = either if pairs.sharing is None else either | pairs.sharing
    numbers = copies(pairs)[pairs.positives]
    again = (numbers[:, None] == numbers).tril(-1).any(1)
    # [i, j]: any query of the batch has both passages judged relevant. Copies are already among its answers.
    related = answered.T.float() @ answered.float() > 0
    return {"passage-query": ~answered.T, "query-query": ~sharing, "passage-passage": ~(related | again)}


def _unrelated(pairs: EmbeddedPairs, negatives: Tensor) -> Tensor:
    """Return the negatives bool[Q,P] of each query without those that answer any query as its own passage does."""
    answered = answers(pairs)
    related = answered[:, pairs.positives].T.float() @ answered.float() > 0
    return negatives & ~related
