"""Distil a teacher's vectors: cosine, squared error, and the similarities of texts among each other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drkit.core.protocols import Loss
from drkit.core.registry import registry_of
from drkit.core.spec import Kind
from drkit.core.types import BuildContext, EmbeddedPairs, StepOutput
from drkit.encoders.heads import seeded
from drkit.errors import DrkitError
from drkit.losses.candidates import check_pairs, products
from drkit.losses.specs import TextVectorLossConfig, VectorLossConfig

BOTTLENECK, TEXT_VECTORS = "bottleneck", "text-vectors"


def projection_to(names: tuple[str, ...], context: BuildContext | None) -> nn.Linear | None:
    """Return a linear layer from the encoder's vectors to a teacher's; None if they are of one length.

    names: the columns or the signal that hold the teacher's vectors. Its weights depend on the context's seed alone.
    Raises DrkitError if the columns differ in length.
    """
    sizes = context.vector_sizes if context else {}
    found = sorted({sizes[name] for name in names if name in sizes})
    if len(found) > 1:
        shown = ", ".join(f"{name}: {sizes[name]}" for name in names if name in sizes)
        raise DrkitError(f"the teacher's vectors must be of one length, got {shown}; make both with one encoder")
    if context is None or BOTTLENECK not in sizes or not found or found[0] == sizes[BOTTLENECK]:
        return None
    with seeded(context.seed, "projection"):
        return nn.Linear(sizes[BOTTLENECK], found[0])


def cosine_distances(student: Tensor, teacher: Tensor) -> Tensor:
    """Return 1 - cos of each row of f[N,K] and f[N,K], f[N]."""
    return 1 - F.cosine_similarity(student, teacher, dim=1)


def squared_errors(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean squared difference of each row of f[N,K] and f[N,K], f[N]."""
    return (student - teacher).square().mean(1)


def relation_error(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean over pairs of rows i != j of (cos(s_i, s_j) - cos(t_i, t_j))^2; f[N,D] and f[N,K] may differ.

    Memory: two matrices f[N,N]. With one row, 0.
    """
    ours, theirs = (products(rows, rows) for rows in (F.normalize(student, dim=1), F.normalize(teacher, dim=1)))
    others = len(student) * (len(student) - 1)
    errors = (ours - theirs).square().fill_diagonal_(0)
    return errors.sum() / max(others, 1)


class _PairVectors(nn.Module):
    """Reads the vectors of both sides and the teacher's, and adds the other loss."""

    projects = True

    def __init__(
        self, config: VectorLossConfig | None = None, context: BuildContext | None = None, *, loss: Loss | None = None
    ) -> None:
        super().__init__()
        self.config = VectorLossConfig() if config is None else config
        chosen = self.config.loss
        if loss is None and chosen is not None:
            loss = registry_of(context).build(Kind.LOSS, chosen.use, chosen.config, context)
        self.loss: Loss | None = loss
        self.projection = projection_to(self.config.receives, context) if self.projects else None

    def forward(self, *, pairs: EmbeddedPairs) -> StepOutput:
        """Return the loss of one batch. Raises DrkitError if shapes do not fit, or a vector of the teacher is NaN."""
        check_pairs(pairs)
        sides = {"query": pairs.queries, "passage": pairs.passages}
        rows, targets = [], []
        for name, per in self.config.vector_columns.items():
            rows.append(_exact(sides[per]))
            targets.append(_targets(pairs.column(name), len(sides[per]), f"the column {name!r}"))
        student, teacher = torch.cat(rows), torch.cat(targets)
        value = self.distance(_projected(self.projection, student, teacher, self.projects), teacher)
        if self.loss is None:
            return StepOutput(loss=value, metrics={"distance": value.detach()})
        other = self.loss(pairs=pairs)
        metrics = {**other.metrics, "distance": value.detach(), "other": other.loss.detach()}
        return StepOutput(loss=value + self.config.loss_weight * other.loss, metrics=metrics)

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the loss f[] of vectors f[N,D] against a teacher's f[N,K]."""
        raise NotImplementedError


class VectorCosineLoss(_PairVectors):
    """The mean over all queries and passages x of the batch of 1 - cos(W x, t), t the teacher's vector of the text.

    | input | shape | what |
    |---|---|---|
    | pairs.queries, passages | f[Q,D], f[P,D] | x, vectors |
    | column `query-vectors` | f[Q,K] | t of queries; another name, or none: `queries` |
    | column `passage-vectors` | f[P,K] | t of passages; `passages` |

    W is a linear layer with bias if D and K differ (`BuildContext.vector_sizes`), else nothing. It is trained and saved
    in checkpoints, and no part of the encoder that is exported. Another loss over pairs is added, times `loss_weight`.
    Metrics: `distance`, the loss without the other one, and the metrics and value (`other`) of that.

    Source: EmbedDistill (Kim et al. 2023), equation 7, with cosine distance; as `EmbedDistillLoss` of
    sentence-transformers, where all its columns have equally many texts.

    >>> pairs = EmbeddedPairs(
    ...     queries=torch.tensor([[1.0, 0.0]]),
    ...     passages=torch.tensor([[0.0, 2.0]]),
    ...     positives=torch.tensor([0]),
    ...     columns={"query-vectors": torch.tensor([[3.0, 0.0]]), "passage-vectors": torch.tensor([[1.0, 0.0]])},
    ... )
    >>> VectorCosineLoss()(pairs=pairs).loss.item()  # (0 + 1) / 2
    0.5
    """

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the mean of 1 - cos over rows."""
        return cosine_distances(student, teacher).mean()


class VectorMseLoss(_PairVectors):
    """The mean over all queries and passages x of the batch of |W x - t|^2 / K, t the teacher's vector of the text.

    Inputs, W and metrics: as `VectorCosineLoss`.

    Source: Reimers and Gurevych 2020, section 2; as `MSELoss` of sentence-transformers.

    >>> pairs = EmbeddedPairs(
    ...     queries=torch.tensor([[1.0, 0.0]]),
    ...     passages=torch.tensor([[0.0, 2.0]]),
    ...     positives=torch.tensor([0]),
    ...     columns={"query-vectors": torch.tensor([[3.0, 0.0]]), "passage-vectors": torch.tensor([[0.0, 2.0]])},
    ... )
    >>> VectorMseLoss()(pairs=pairs).loss.item()  # (4 / 2 + 0) / 2
    1.0
    """

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the mean squared difference over rows and numbers."""
        return squared_errors(student, teacher).mean()


class VectorRelationLoss(_PairVectors):
    """The mean over texts i != j of the batch, queries and passages, of (cos(x_i, x_j) - cos(t_i, t_j))^2.

    Inputs and metrics: as `VectorCosineLoss`. The teacher's vectors may be of any length: nothing is projected.
    Memory: two matrices f[N,N], N = Q + P.

    Source: Park et al. 2019, section 3.2, with cosines; the similarity loss of Stella (Zhang et al. 2024).

    >>> pairs = EmbeddedPairs(
    ...     queries=torch.tensor([[1.0, 0.0]]),
    ...     passages=torch.tensor([[0.0, 2.0]]),
    ...     positives=torch.tensor([0]),
    ...     columns={"query-vectors": torch.ones(1, 3), "passage-vectors": torch.ones(1, 3)},
    ... )
    >>> round(VectorRelationLoss()(pairs=pairs).loss.item(), 4)  # (0 - 1)^2
    1.0
    """

    projects = False

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the mean squared difference of similarities."""
        return relation_error(student, teacher)


class _TextVectors(nn.Module):
    """Reads the vector of each text and the teacher's, the signal `text-vectors`."""

    projects = True

    def __init__(self, config: TextVectorLossConfig | None = None, context: BuildContext | None = None) -> None:
        super().__init__()
        self.config = TextVectorLossConfig() if config is None else config
        self.projection = projection_to((TEXT_VECTORS,), context) if self.projects else None

    def forward(self, *, bottleneck: Tensor, text_vectors: Tensor) -> StepOutput:
        """Return the loss of a batch. Raises DrkitError if the shapes do not fit."""
        teacher = _targets(text_vectors, len(bottleneck), f"the signal {TEXT_VECTORS!r}")
        student = _projected(self.projection, _exact(bottleneck), teacher, self.projects)
        return StepOutput(loss=self.distance(student, teacher), metrics={})

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the loss f[] of vectors f[B,D] against a teacher's f[B,K]."""
        raise NotImplementedError


class TextVectorCosineLoss(_TextVectors):
    """The mean over the texts of the batch of 1 - cos(W h, t), t the teacher's vector of the text.

    | input | shape | what |
    |---|---|---|
    | bottleneck | f[B,D] | h, the vector of each text |
    | text_vectors | f[B,K] | t, the signal `text-vectors` |

    W: see `VectorCosineLoss`. The encoder reads its view of the text: whole with the masker `uniform` of `ratio` 0.

    Source: EmbedDistill (Kim et al. 2023), equation 7, with cosine distance.

    >>> loss = TextVectorCosineLoss()
    >>> loss(bottleneck=torch.eye(2), text_vectors=torch.tensor([[2.0, 0.0], [1.0, 0.0]])).loss.item()  # (0 + 1) / 2
    0.5
    """

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the mean of 1 - cos over texts."""
        return cosine_distances(student, teacher).mean()


class TextVectorMseLoss(_TextVectors):
    """The mean over the texts of the batch of |W h - t|^2 / K, t the teacher's vector of the text.

    Inputs and W: as `TextVectorCosineLoss`. Source: Reimers and Gurevych 2020, section 2.

    >>> loss = TextVectorMseLoss()
    >>> loss(bottleneck=torch.eye(2), text_vectors=torch.tensor([[2.0, 0.0], [0.0, 1.0]])).loss.item()  # 1 / 2 / 2
    0.25
    """

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the mean squared difference over texts and numbers."""
        return squared_errors(student, teacher).mean()


class TextVectorRelationLoss(_TextVectors):
    """The mean over texts i != j of the batch, of all processes, of (cos(h_i, h_j) - cos(t_i, t_j))^2.

    Inputs: as `TextVectorCosineLoss`. Source: Park et al. 2019, section 3.2, with cosines.

    >>> loss = TextVectorRelationLoss()
    >>> round(loss(bottleneck=torch.eye(2), text_vectors=torch.ones(2, 3)).loss.item(), 4)  # (0 - 1)^2
    1.0
    """

    projects = False

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the mean squared difference of similarities."""
        return relation_error(student, teacher)


def _exact(rows: Tensor) -> Tensor:
    return rows.to(torch.promote_types(rows.dtype, torch.float32))


def _targets(vectors: Tensor, rows: int, what: str) -> Tensor:
    """Return a teacher's vectors as constants, at least in float32. Raises DrkitError unless they are [rows,K]."""
    if vectors.ndim != 2 or len(vectors) != rows:
        raise DrkitError(f"{what} must hold vectors f[{rows},K], one for each text, got {tuple(vectors.shape)}")
    return _exact(vectors.detach())


def _projected(projection: nn.Linear | None, student: Tensor, teacher: Tensor, projects: bool) -> Tensor:
    """Return vectors f[N,D] in the teacher's space. Raises DrkitError if their lengths differ and nothing projects."""
    if projection is not None:
        with torch.autocast(student.device.type, enabled=False):
            student = projection(student.to(projection.weight.dtype))
    if projects and student.shape[1] != teacher.shape[1]:
        raise DrkitError(
            f"the vectors have {student.shape[1]} numbers and the teacher's {teacher.shape[1]}: pass "
            f"BuildContext(vector_sizes=...) with both, for a projection"
        )
    return student
