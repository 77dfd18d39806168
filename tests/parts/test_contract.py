"""Every registered part against the contract of its kind."""

from __future__ import annotations

import attrs
import pytest

from drkit.core.registry import Registry, installed
from drkit.core.spec import ComponentSpec, Kind
from drkit.core.types import MaskedView
from drkit.errors import ProblemsError
from drkit.maskers import PmiConfig, UniformConfig, UniformMasker
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.trial import try_parts
from drkit.testing import (
    check_batches,
    check_context,
    check_decoder,
    check_filter,
    check_loss,
    check_masker,
    check_miner,
    check_pooling,
    check_spec,
)
from drkit.testing.toys import ToyCorpus
from drkit_simlm import GeneratorConfig
from tests.refusals import unknown

REGISTRY = installed().registry
CHECKS = {
    Kind.MASKER: check_masker,
    Kind.CONTEXT: check_context,
    Kind.DECODER: check_decoder,
    Kind.LOSS: check_loss,
    Kind.MINER: check_miner,
    Kind.POOLING: check_pooling,
    Kind.BATCHES: check_batches,
}
# They do not read toys: tests/miners runs their contract on a file, and on a collection's own negatives.
FROM_FILES = ("run-file", "given", "refresh")


@pytest.mark.parametrize("spec", list(REGISTRY), ids=lambda spec: f"{spec.kind}-{spec.name}")
def test_every_part_keeps_its_contract(spec):
    if spec.name in FROM_FILES:
        check_spec(spec)
    elif spec.kind is Kind.MINER and "candidates" in spec.receives:
        check_filter(spec)
    else:
        CHECKS.get(spec.kind, check_spec)(spec)


VARIANTS = [
    ("masker", "uniform", UniformConfig(unit="token")),
    ("masker", "uniform", UniformConfig(ratio=0.1, mask_token_share=(1.0, 0.0, 0.0))),
    ("masker", "uniform", UniformConfig(ratio=0.9, mask_token_share=(1.0, 0.0, 0.0))),
    ("masker", "uniform", UniformConfig(ratio=0.0)),
    ("masker", "generator", GeneratorConfig(ratio=0.5, unit="token")),
    ("masker", "generator", GeneratorConfig(ratio=0.0)),
    ("masker", "pmi", PmiConfig(unit="word")),
    ("masker", "pmi", PmiConfig(sigma=3.0, ratio=0.9)),
    ("masker", "pmi", PmiConfig(ratio=0.0)),
]


@pytest.mark.parametrize(("kind", "name", "config"), VARIANTS, ids=lambda value: str(value)[:60])
def test_other_settings_keep_it_too(kind, name, config):
    CHECKS[Kind(kind)](REGISTRY.get(kind, name), config)


def test_settings_of_decoders_keep_it_too():
    mlm, enhanced = REGISTRY.get("decoder", "mlm"), REGISTRY.get("decoder", "enhanced")
    check_decoder(mlm, mlm.config(layers=1, projection=True))
    check_decoder(enhanced, enhanced.config(projection=True))
    for name in ("autoencoder", "replaced-token-detection"):
        spec = REGISTRY.get("decoder", name)
        check_decoder(spec, spec.config(layers=1, projection=True))


def test_the_registry_has_what_it_should():
    assert {"pmi", "uniform", "generator"} <= {*REGISTRY.names("masker")}
    assert {"enhanced", "mlm", "autoencoder", "replaced-token-detection"} <= {*REGISTRY.names("decoder")}
    assert {"contrastive", "mlm", "replaced-lm", "rtd", "encoder-rtd"} <= {*REGISTRY.names("loss")}
    assert {"bm25", "dense", "random", "refresh", "margin", "cross-encoder-filter"} <= {*REGISTRY.names("miner")}


def _deletion():
    return ComponentSpec(
        kind=Kind.MASKER,
        name="deletion",
        target="tests.plugins.broken:Deletion",
        config=UniformConfig,
        summary="Deletes tokens",
        provides=("corrupted",),
    )


def test_another_text_composes_where_nothing_needs_targets():
    here = attrs.evolve(installed(), registry=Registry([*REGISTRY, _deletion()]))

    def composed(*settings, **chosen):
        recipe = compose(ComposeRequest(settings=settings, scale="small", **chosen), here)
        check(recipe, here.registry)
        return recipe

    chosen, without = {"encoder_masker": "deletion", "decoder": "autoregressive"}, "pretrain.encoder.losses={}"
    try_parts(composed(without, **chosen), here.registry)
    for settings, wrong, said in (
        ((), chosen, "'mlm' .*token_states; .*bottleneck"),
        ((without,), {"masker": "deletion", "decoder": "mlm"}, "decoder 'mlm' needs view; masker 'deletion' provides"),
        (
            (without, "pretrain.decoders.main.nested=true"),
            {**chosen, "decoder": "mlm"},
            "nested .*'deletion'",
        ),
    ):
        with pytest.raises(ProblemsError, match=said):
            composed(*settings, **wrong)


def test_installed_parts_are_found_by_name():
    check_masker("uniform")
    check_decoder("enhanced")
    check_loss("contrastive")
    check_miner("random")
    with unknown("masker", "unifrom", "uniform"):
        check_masker("unifrom")


def test_the_toys_are_what_they_say():
    assert len(list(ToyCorpus())) == 40
    assert isinstance(UniformMasker(UniformConfig(), _context())(*_toy_call()), MaskedView)


def _context():
    from drkit.testing.toys import toy_context

    return toy_context()


def _toy_call():
    from drkit.core.draws import Draws
    from drkit.testing.toys import toy_tokens

    tokens = toy_tokens()
    return tokens, Draws(1, 0, tokens.keys.numpy())
