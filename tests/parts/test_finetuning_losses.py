"""Losses of fine-tuning: each equals its formula written out by id, and no answer of a query ever counts against it."""

from __future__ import annotations

import math
import time

import attrs
import numpy as np
import pytest
import torch
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from drkit.core.registry import installed
from drkit.core.spec import Choice
from drkit.core.types import EmbeddedPairs, ScoredGroups
from drkit.errors import DrkitError
from drkit.losses import (
    ContrastiveConfig,
    ContrastiveLoss,
    FlopsConfig,
    FlopsLoss,
    KlDistillationConfig,
    KlDistillationLoss,
    ListwiseLoss,
    MarginMseConfig,
    MarginMseLoss,
    MatryoshkaConfig,
    PairwiseConfig,
    PairwiseLoss,
)
from drkit.losses.specs import ALL_DIRECTIONS, DIRECTIONS
from drkit.recipe.toml import recipe_converter
from drkit.testing import check_loss
from drkit.testing.toys import toy_context, toy_groups, toy_pairs
from drkit.train.biencoder import candidate_mask, pad_lists, share_positive

WIDTH = 6


@frozen(eq=False)
class Drawn:
    """A batch by ids: judged positives of each query, the ids of its own passages (positive first), and vectors."""

    judged: list[set[int]]
    groups: list[list[int]]
    teacher: list[list[float]]
    pairs: EmbeddedPairs

    def query(self, i: int) -> torch.Tensor:
        return self.pairs.queries[i].double()

    def passage(self, number: int) -> torch.Tensor:
        """The vector of the first copy of a passage."""
        return self.pairs.passages[self.pairs.numbers.tolist().index(number)].double()

    def negatives(self, i: int) -> list[int]:
        """Indices in a query's group that may count against it: the first of each passage that does not answer it."""
        own = self.groups[i]
        return [g for g in range(1, len(own)) if own[g] not in self.judged[i] and own[g] not in own[:g]]


@st.composite
def batches(draw):
    """Few passages and many judgements: shared positives, copies, judged negatives, groups of unlike size."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    queries, passages = draw(st.integers(1, 5)), draw(st.integers(2, 9))
    judged = [{*rng.choice(passages, rng.integers(1, 3), replace=False).tolist()} for _ in range(queries)]
    groups = [[int(rng.choice([*own])), *rng.integers(0, passages, rng.integers(0, 4)).tolist()] for own in judged]
    teacher = [[math.nan if rng.random() < 0.3 else float(rng.normal()) for _ in own] for own in groups]
    return drawn(judged, groups, teacher)


def drawn(judged, groups, teacher):
    numbers = torch.tensor([own[0] for own in groups] + [p for own in groups for p in own[1:]])
    vectors = torch.randn(10, WIDTH, generator=torch.Generator().manual_seed(1))
    rows, start = [], len(groups)
    for i, own in enumerate(groups):
        rows.append(np.array([i, *range(start, start + len(own) - 1)]))
        start += len(own) - 1
    lists, positives = pad_lists([np.array([*own]) for own in judged]), torch.arange(len(groups))
    placed = pad_lists(rows)
    scores = torch.full(placed.shape, math.nan)
    for row, own in zip(scores, teacher, strict=True):
        row[: len(own)] = torch.tensor(own)
    pairs = EmbeddedPairs(
        queries=torch.randn(len(groups), WIDTH, generator=torch.Generator().manual_seed(2)),
        passages=vectors[numbers],
        positives=positives,
        candidates=candidate_mask(numbers, lists, positives),
        groups=placed,
        columns={"teacher": scores},
        numbers=numbers,
        sharing=share_positive(lists),
    )
    return Drawn(judged, groups, teacher, pairs)


def score(one, two, config):
    found = one @ two
    if config.similarity == "cosine":
        found = found / one.norm() / two.norm()
    return (found / config.temperature).item()


def log_share(first: float, others: list[float]) -> float:
    top = max([first, *others])
    return first - top - math.log(sum(math.exp(s - top) for s in [first, *others]))


def contrast_written_out(batch: Drawn, config, without=lambda _i: frozenset()) -> float:
    everything = {number for own in batch.groups for number in own}
    first = [own[0] for own in batch.groups]
    total = 0.0
    for i, own in enumerate(batch.judged):
        q, p = batch.query(i), batch.passage(first[i])
        others = range(len(first))
        beside = {
            "query-passage": [(q, batch.passage(x)) for x in everything - own - without(i)],
            "passage-query": [(p, batch.query(j)) for j in others if first[i] not in batch.judged[j]],
            "query-query": [(q, batch.query(j)) for j in others if not own & batch.judged[j]],
            "passage-passage": [
                (p, batch.passage(x)) for x in {*first} if not any({x, first[i]} <= judged for judged in batch.judged)
            ],
            "passage-negative": [
                (p, batch.passage(x))
                for x in everything - own - without(i)
                if not any({x, first[i]} <= judged for judged in batch.judged)
            ],
        }
        scores = [score(*two, config) for name in config.directions for two in beside[name]]
        total -= log_share(score(q, p, config), scores)
    return total / len(first)


PRINTED = ("query-passage", "passage-negative")
SOME = [*((name,) for name in DIRECTIONS), ALL_DIRECTIONS, DIRECTIONS[:2], DIRECTIONS[2:4], PRINTED]
SOME = st.sampled_from([*SOME, (*DIRECTIONS[:3], DIRECTIONS[4])])
LIKE = st.sampled_from(["cosine", "dot"])
HEAT = st.sampled_from([0.1, 0.7, 1.0])

often = settings(max_examples=max(150, settings().max_examples))


@often
@given(batches(), SOME, LIKE, HEAT)
def test_contrast_in_every_direction_equals_its_formula_by_id(batch, directions, similarity, temperature):
    config = ContrastiveConfig(temperature=temperature, similarity=similarity, directions=directions)
    out = ContrastiveLoss(config)(pairs=batch.pairs)
    assert out.loss.item() == pytest.approx(contrast_written_out(batch, config), rel=1e-4, abs=1e-5)


def test_equation_3_of_simlm_as_it_is_printed():
    """Every query has one positive; all other passages are its negatives, and its positive's."""
    batch = drawn([{0}, {1}], [[0, 2, 3], [1, 4]], [[0.0] * 3, [0.0] * 2])
    config = ContrastiveConfig(temperature=0.5, directions=PRINTED)
    total = 0.0
    for i, positive in enumerate((0, 1)):
        q, p = batch.query(i), batch.passage(positive)
        phi = [(math.exp(score(q, n, config)), math.exp(score(p, n, config))) for n in map(batch.passage, range(5))]
        own = phi.pop(positive)[0]
        total -= math.log(own / (own + sum(map(sum, phi)))) / 2
    assert ContrastiveLoss(config)(pairs=batch.pairs).loss.item() == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("third", [{0, 1}, {0, 1, 2}])
def test_passages_that_a_third_query_has_both_judged_relevant_do_not_stand_against_each_other(third):
    """Queries 0 and 1 know nothing of each other's passage; query 2 was judged to be answered by both."""
    config = ContrastiveConfig(temperature=1.0, similarity="dot", directions="passage-passage")
    own = [max(third)]
    apart = drawn([{0}, {1}, {*own}], [[0], [1], own], [[0.0]] * 3)
    related = drawn([{0}, {1}, third], [[0], [1], own], [[0.0]] * 3)
    found = [ContrastiveLoss(config)(pairs=batch.pairs).loss.item() for batch in (apart, related)]
    assert found == pytest.approx([contrast_written_out(batch, config) for batch in (apart, related)], rel=1e-5)
    if third == {0, 1, 2}:
        assert found[1] == pytest.approx(0, abs=1e-6), "no passage is left to stand against another"
    assert found[1] < found[0]


@often
@given(batches(), LIKE, HEAT)
def test_pairwise_equals_its_formula_by_id(batch, similarity, temperature):
    config = PairwiseConfig(temperature=temperature, similarity=similarity)
    losses = []
    for i, own in enumerate(batch.groups):
        best = score(batch.query(i), batch.passage(own[0]), config)
        worse = [score(batch.query(i), batch.passage(own[g]), config) for g in batch.negatives(i)]
        losses += [math.log1p(math.exp(s - best)) for s in worse]
    out = PairwiseLoss(config)(pairs=batch.pairs)
    assert out.loss.item() == pytest.approx(sum(losses) / max(len(losses), 1), rel=1e-4, abs=1e-5)


@often
@given(batches(), LIKE, HEAT)
def test_margin_mse_equals_its_formula_by_id(batch, similarity, temperature):
    config = MarginMseConfig(temperature=temperature, similarity=similarity)
    errors, unscored = [], 0
    for i, (own, teacher) in enumerate(zip(batch.groups, batch.teacher, strict=True)):
        best = score(batch.query(i), batch.passage(own[0]), config)
        both = [g for g in batch.negatives(i) if not math.isnan(teacher[g] + teacher[0])]
        unscored += not both
        for g in both:
            margin = best - score(batch.query(i), batch.passage(own[g]), config)
            errors.append((margin - (teacher[0] - teacher[g])) ** 2)
    out = MarginMseLoss(config)(pairs=batch.pairs)
    assert out.loss.item() == pytest.approx(sum(errors) / max(len(errors), 1), rel=1e-4, abs=1e-5)
    assert out.metrics["unscored"].item() == unscored


@often
@given(batches(), LIKE, HEAT, st.sampled_from([0.5, 1.0, 3.0]), st.booleans(), st.sampled_from([0.0, 0.2, 1.0]))
def test_distillation_equals_its_formula_by_id(batch, similarity, temperature, teacher_temperature, hidden, alpha):
    config = KlDistillationConfig(
        temperature=temperature,
        teacher_temperature=teacher_temperature,
        similarity=similarity,
        alpha=alpha,
        directions="all",
        mask_hard_negatives=hidden,
    )
    found, unscored = [], 0
    for i, (own, teacher) in enumerate(zip(batch.groups, batch.teacher, strict=True)):
        indices = [g for g in (0, *batch.negatives(i)) if not math.isnan(teacher[g])]
        if len(indices) < 2:
            unscored += 1
            continue
        student = [score(batch.query(i), batch.passage(own[g]), config) for g in indices]
        wanted = [teacher[g] / teacher_temperature for g in indices]
        terms = [(log_share(w, wanted[:n] + wanted[n + 1 :]), n) for n, w in enumerate(wanted)]
        found.append(sum(math.exp(w) * (w - log_share(student[n], student[:n] + student[n + 1 :])) for w, n in terms))
    kl = sum(found) / max(len(found), 1)
    beside = contrast_written_out(batch, config, lambda i: {*batch.groups[i][1:]} if hidden else frozenset())
    out = KlDistillationLoss(config)(pairs=batch.pairs)
    assert out.metrics["kl"].item() == pytest.approx(kl, rel=1e-4, abs=1e-5)
    assert out.loss.item() == pytest.approx(kl + alpha * beside, rel=1e-4, abs=1e-5)
    assert out.metrics["unscored"].item() == unscored


LOSSES = {
    "contrastive": ContrastiveLoss(ContrastiveConfig()),
    "all directions": ContrastiveLoss(ContrastiveConfig(directions="all")),
    "pairwise": PairwiseLoss(),
    "kl-distillation": KlDistillationLoss(),
    "margin-mse": MarginMseLoss(),
}


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "all directions"])
@given(batches())
def test_no_answer_of_a_query_and_no_second_copy_counts_against_it(name, batch):
    """One query alone: a row that answers it, or repeats another, gets no gradient unless it is its positive."""
    leaf = batch.pairs.passages.clone().requires_grad_()
    for i in range(len(batch.groups)):
        kept = attrs.evolve(
            batch.pairs,
            queries=batch.pairs.queries[i : i + 1],
            passages=leaf,
            positives=batch.pairs.positives[i : i + 1],
            candidates=batch.pairs.candidates[i : i + 1],
            groups=batch.pairs.groups[i : i + 1],
            columns={"teacher": batch.pairs.column("teacher")[i : i + 1]},
            sharing=batch.pairs.sharing[i : i + 1, i : i + 1],
        )
        loss = LOSSES[name](pairs=kept).loss
        (gradient,) = torch.autograd.grad(loss, leaf)
        reached = [row for row, g in enumerate(gradient) if g.abs().max() > 0 and row != i]
        numbers = [int(batch.pairs.numbers[row]) for row in reached]
        assert not {*numbers} & batch.judged[i]
        if name in ("contrastive", "pairwise", "margin-mse"):
            assert len({*numbers}) == len(numbers), "a passage counts once"


@pytest.mark.parametrize("name", LOSSES)
def test_unscored_and_padding_reach_no_gradient_as_nan(name):
    pairs = toy_pairs()
    LOSSES[name](pairs=pairs).loss.backward()
    assert pairs.queries.grad.isfinite().all()
    assert pairs.passages.grad.isfinite().all()


@pytest.mark.parametrize("name", ["kl-distillation", "margin-mse"])
def test_without_any_score_a_teacher_teaches_nothing(name):
    pairs = toy_pairs()
    pairs = attrs.evolve(pairs, columns={"teacher": torch.full_like(pairs.column("teacher"), math.nan)})
    out = LOSSES[name](pairs=pairs)
    out.loss.backward()
    assert out.metrics["unscored"].item() == 5
    assert pairs.queries.grad.isfinite().all()
    expected = 0.2 * ContrastiveLoss(ContrastiveConfig())(pairs=pairs).loss.item() if name == "kl-distillation" else 0
    assert out.loss.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["kl-distillation", "margin-mse"])
def test_a_score_that_is_no_number_is_none(name):
    pairs = toy_pairs()
    endless = pairs.column("teacher").clone()
    endless[0, 1], endless[4] = -math.inf, math.inf
    torch.testing.assert_close(
        LOSSES[name](pairs=attrs.evolve(pairs, columns={"teacher": endless})).loss, LOSSES[name](pairs=pairs).loss
    )


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("contrastive", ContrastiveConfig(directions="all")),
        ("contrastive", ContrastiveConfig(directions="passage-query", similarity="dot")),
        ("pairwise", PairwiseConfig(similarity="cosine", temperature=0.05)),
        ("kl-distillation", KlDistillationConfig(alpha=0)),
        ("kl-distillation", KlDistillationConfig(directions="all", mask_hard_negatives=True)),
        ("margin-mse", MarginMseConfig(similarity="cosine")),
        ("matryoshka", MatryoshkaConfig(dimensions=(2, 4))),
        ("matryoshka", MatryoshkaConfig(Choice("kl-distillation", KlDistillationConfig()), dimensions=(3,))),
        ("flops", FlopsConfig(Choice("margin-mse", MarginMseConfig()), queries=1.0, passages=0.5)),
        ("listwise", None),
    ],
)
def test_the_contract_holds_with_other_settings_too(name, config):
    check_loss(name, config)


def test_flops_is_the_squared_mean_of_each_word_and_grows_over_the_batches():
    pairs = toy_pairs()
    inner = ContrastiveLoss(ContrastiveConfig(temperature=1.0, similarity="dot"))
    loss = FlopsLoss(FlopsConfig(queries=0.3, passages=0.7, warmup=4), loss=inner).train()
    plain = inner(pairs=pairs).loss
    penalty = 0.3 * pairs.queries.abs().mean(0).square().sum() + 0.7 * pairs.passages.abs().mean(0).square().sum()
    found = [loss(pairs=pairs) for _ in range(6)]
    for batch, step in enumerate(found, start=1):
        torch.testing.assert_close(step.loss, plain + min(1, batch / 4) ** 2 * penalty)
    torch.testing.assert_close(found[0].metrics["flops_queries"], pairs.queries.abs().mean(0).square().sum())
    again = FlopsLoss(loss.config, loss=inner).train()
    again.load_state_dict(loss.state_dict())
    torch.testing.assert_close(again(pairs=pairs).loss, found[-1].loss)
    assert int(again.batches) == 7
    assert int(again.eval().batches) == 7 == int((again(pairs=pairs), again.batches)[1]), "validation counts nothing"
    assert loss.config.search_similarity == "dot"


def test_flops_leaves_out_the_vector_before_the_scores_of_words():
    pairs, context = toy_pairs(100), toy_context()  # 97 words, and a vector of 3
    inner = ContrastiveLoss(ContrastiveConfig(temperature=1.0, similarity="dot"))
    config = FlopsConfig(queries=0.3, passages=0.7, warmup=0)
    found = FlopsLoss(config, context, loss=inner)(pairs=pairs)
    flops = [vectors[:, 3:].abs().mean(0).square().sum() for vectors in (pairs.queries, pairs.passages)]
    torch.testing.assert_close(found.loss, inner(pairs=pairs).loss + 0.3 * flops[0] + 0.7 * flops[1])
    assert found.metrics["words_queries"] == 97


def test_the_teachers_scores_are_not_divided_by_the_students_temperature():
    pairs = toy_pairs()
    found = [
        KlDistillationLoss(KlDistillationConfig(temperature=t, similarity="dot", alpha=0))(
            pairs=attrs.evolve(pairs, queries=pairs.queries.detach() * t)
        ).loss.item()
        for t in (0.02, 1.0)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-4)


@pytest.mark.parametrize("name", ["contrastive", "pairwise", "kl-distillation", "margin-mse"])
def test_autocast_does_not_round_what_a_temperature_multiplies(name):
    loss, pairs = type(LOSSES[name])(attrs.evolve(LOSSES[name].config, temperature=0.01)), toy_pairs()
    with torch.autocast("cpu", torch.bfloat16):
        found = loss(pairs=pairs).loss
    assert found.item() == loss(pairs=pairs).loss.item()


def test_a_student_that_agrees_with_its_teacher_has_nothing_to_learn():
    pairs = toy_pairs()
    plain = attrs.evolve(pairs, candidates=None, numbers=None)
    scores = torch.einsum("qd,qgd->qg", pairs.queries, pairs.passages[pairs.groups.clamp(min=0)]).detach()
    agreed = attrs.evolve(plain, columns={"teacher": scores.masked_fill(pairs.groups < 0, math.nan)})
    kl = KlDistillationLoss(KlDistillationConfig(temperature=1.0, similarity="dot", alpha=0))(pairs=agreed)
    assert kl.loss.item() == pytest.approx(0, abs=1e-6)
    assert MarginMseLoss()(pairs=agreed).loss.item() == pytest.approx(0, abs=1e-10)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 10**6))
def test_listwise_equals_its_formula(sizes, seed):
    scores = torch.randn(len(sizes), max(sizes), generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]
    expected = -sum(log_share(row[0], row[1:n]) for row, n in zip(scores.tolist(), sizes, strict=True)) / len(sizes)
    out = ListwiseLoss()(groups=ScoredGroups(scores=scores, mask=mask))
    assert out.loss.item() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    first = [max(row[:n]) == row[0] for row, n in zip(scores.tolist(), sizes, strict=True)]
    assert out.metrics["accuracy"].item() == pytest.approx(sum(first) / len(sizes))


@pytest.mark.parametrize(
    ("loss", "change", "says"),
    [
        ("pairwise", {"groups": None}, r"groups .*i64\[Q,G\]"),
        ("pairwise", {"groups": torch.zeros(4, 3, dtype=torch.long)}, r"groups .*i64\[Q,G\] .*Q = 5"),
        ("margin-mse", {"columns": {}}, "column 'teacher'"),
        ("kl-distillation", {"columns": {}}, "column 'teacher'"),
        ("kl-distillation", {"columns": {"teacher": torch.zeros(5, 11)}}, r"'teacher' .*f\[Q,G\] = \(5, 4\)"),
        ("all directions", {"numbers": torch.zeros(5)}, r"numbers .*i64\[P\]"),
        ("all directions", {"sharing": torch.zeros(5, 11, dtype=torch.bool)}, r"sharing .*\[Q,Q\]"),
    ],
)
def test_bundles_that_do_not_fit_are_refused(loss, change, says):
    with pytest.raises(DrkitError, match=says):
        LOSSES[loss](pairs=attrs.evolve(toy_pairs(), **change))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scores": torch.zeros(4)}, r"scores .*f\[Q,G\]"),
        ({"scores": torch.zeros(0, 5)}, r"got \(0, 5\)"),
        ({"mask": torch.ones(4, 2, dtype=torch.bool)}, r"mask .*\[Q,G\] = \(4, 5\)"),
    ],
)
def test_groups_that_do_not_fit_are_refused(change, says):
    with pytest.raises(DrkitError, match=says):
        ListwiseLoss()(groups=attrs.evolve(toy_groups(), **change))


@pytest.mark.parametrize("given", ["all", ["all"], ["passage-query", "query-passage"], "query-query"])
def test_directions_read_from_a_recipe_in_one_order(given):
    made = recipe_converter(installed().registry).structure({"directions": given}, ContrastiveConfig)
    wanted = {"all": ALL_DIRECTIONS, "query-query": ("query-query",)}.get(given if isinstance(given, str) else given[0])
    assert made.directions == (wanted or DIRECTIONS[:2])
    assert made == ContrastiveConfig(directions=given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((), "is empty"),
        ("query-pasage", "has 'query-pasage'; allowed"),
        (
            ("passage-passage", "passage-negative"),
            "passage-passage.*passage-negative|passage-negative.*passage-passage",
        ),
    ],
)
def test_directions_that_are_none_are_refused(given, says):
    with pytest.raises(ValueError, match=says):
        ContrastiveConfig(directions=given)


@settings(deadline=None)
@given(
    lists=st.lists(st.lists(st.integers(0, 12), max_size=6), min_size=1, max_size=20),
    wide=st.booleans(),
)
def test_queries_share_a_positive_as_their_sets_intersect(lists, wide):
    # wide: more shared passages than are compared at once
    many = [5000 + 2 * i for i in range(2500)] if wide else []
    judged = [np.array([*own, *(many if i < 2 else [])], dtype=np.int64) for i, own in enumerate(lists)]
    expected = [[bool({*one} & {*two}) for two in judged] for one in judged]
    assert share_positive(pad_lists(judged)).tolist() == expected


def test_many_positives_of_one_query_take_little_time():
    # One query of 100,000 positives: a loop over them takes minutes.
    judged = pad_lists([np.arange(100_000), *(np.array([i, 100_000]) for i in range(31))])
    started = time.perf_counter()
    shared = share_positive(judged)
    assert time.perf_counter() - started < 5
    assert shared.all()
