"""Which parts go together: the matrix says what composing says."""

import attrs
import pytest

from drkit.core.registry import Installed, Registry, installed
from drkit.core.spec import ComponentSpec, NoSettings
from drkit.errors import DrkitError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.matrix import matrix
from tests.refusals import says


@attrs.frozen
class OneWithoutDefault:
    path: str


def with_parts(*specs):
    here = installed()
    return attrs.evolve(here, registry=Registry([*here.registry, *specs]))


def a_part(kind, name, config=NoSettings, **rest):
    return ComponentSpec(kind=kind, name=name, target="nowhere:Part", config=config, summary="a part", **rest)


def test_every_pair_of_the_matrix_is_what_compose_and_check_say():
    parts = with_parts(a_part("masker", "views-only", provides=("view",)))
    made = matrix(parts)
    assert len(made.pairs) == len(made.maskers) * len(made.decoders)
    assert "views-only" in made.maskers
    for pair in made.pairs:
        try:
            check(compose(ComposeRequest(masker=pair.masker, decoder=pair.decoder), parts), parts.registry)
            refused = ""
        except DrkitError as error:
            refused = str(error)
        assert bool(pair.problems) == bool(refused), (pair, refused)
        assert all(problem in refused for problem in pair.problems)


def test_a_refused_pair_says_what_is_missing_and_what_would_fit():
    made = matrix(with_parts(a_part("masker", "views-only", provides=("view",))))
    (pair,) = [pair for pair in made.pairs if (pair.masker, pair.decoder) == ("views-only", "enhanced")]
    (problem,) = pair.problems
    assert "'enhanced' needs rows" in problem
    assert says(problem, "fit:", "uniform")
    assert " @ " not in problem
    assert pair in made.reasons()[problem]


@pytest.mark.parametrize("kind", ["masker", "decoder"])
def test_a_strangers_part_without_defaults_is_refused_and_takes_nobody_down(kind):
    parts = with_parts(a_part(kind, "stranger", OneWithoutDefault, receives=(), provides=("view", "token_states")))
    made = matrix(parts)
    of_the_stranger = [pair for pair in made.pairs if getattr(pair, kind) == "stranger"]
    assert of_the_stranger
    assert all("path" in " ".join(pair.problems) for pair in of_the_stranger)
    assert any(not pair.problems for pair in made.pairs)


def test_a_name_claimed_twice_is_drkits_own():
    made = matrix(with_parts(a_part("masker", "pmi", provides=("view",), provider="greedy 1.0")))
    assert made.maskers == matrix(installed()).maskers
    assert {pair.masker for pair in made.pairs if not pair.problems and pair.decoder == "enhanced"} >= {"pmi"}


def test_losses_stand_where_their_needs_are_met():
    places = {loss.name: loss for loss in matrix(installed()).losses}
    assert places["mlm"].encoder
    assert "mlm" in places["mlm"].decoders
    assert places["contrastive"].finetuning
    assert places["kl-distillation"].finetuning
    assert places["kl-distillation"].columns == ("teacher",)
    assert not places["contrastive"].columns
    assert places["listwise"].reranking
    assert not places["contrastive"].reranking
    assert not places["contrastive"].encoder
    assert not places["contrastive"].decoders


def test_what_stages_make_is_named():
    assert matrix(installed()).made["masker pmi"] == ("importance",)


def test_nothing_installed_is_an_empty_matrix():
    made = matrix(Installed(Registry([])))
    assert not made.pairs
    assert not made.losses
