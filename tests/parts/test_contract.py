"""Every registered part against the contract of its kind."""

from __future__ import annotations

import attrs
import pytest
import torch

from drkit.core.registry import installed
from drkit.core.spec import Kind
from drkit.core.types import Views
from drkit.errors import UnknownNameError
from drkit.maskers import PmiConfig, UniformConfig, UniformMasker
from drkit.maskers.views import make_views
from drkit.testing import check_decoder, check_filter, check_loss, check_masker, check_miner, check_spec
from drkit.testing.toys import ToyCorpus
from drkit_simlm import GeneratorConfig

REGISTRY = installed().registry
CHECKS = {Kind.MASKER: check_masker, Kind.DECODER: check_decoder, Kind.LOSS: check_loss, Kind.MINER: check_miner}
# They do not read toys: tests/miners runs their contract on a file, and on a collection's own negatives.
FROM_FILES = ("run-file", "given", "refresh")


@pytest.mark.parametrize("spec", list(REGISTRY), ids=lambda spec: f"{spec.kind}-{spec.name}")
def test_every_part_keeps_its_contract(spec):
    if spec.kind is Kind.MINER and "candidates" in spec.receives:
        check_filter(spec)
    elif spec.name in FROM_FILES:
        check_spec(spec)
    else:
        CHECKS.get(spec.kind, check_spec)(spec)


VARIANTS = [
    ("masker", "uniform", UniformConfig(nested=True)),
    ("masker", "uniform", UniformConfig(encoder_ratio=0.01, decoder_ratio=0.99, mask_token_share=(1.0, 0.0, 0.0))),
    ("masker", "uniform", UniformConfig(encoder_ratio=0.0)),
    ("masker", "generator", GeneratorConfig(encoder_ratio=0.5, decoder_ratio=0.51)),
    ("masker", "pmi", PmiConfig(unit="word")),
    ("masker", "pmi", PmiConfig(sigma=3.0, decoder_ratio=0.9)),
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
    assert {"enhanced", "mlm", "none", "autoencoder", "replaced-token-detection"} <= {*REGISTRY.names("decoder")}
    assert {"contrastive", "mlm", "replaced-lm", "rtd", "encoder-rtd"} <= {*REGISTRY.names("loss")}
    assert {"bm25", "dense", "random", "refresh", "margin", "cross-encoder-filter"} <= {*REGISTRY.names("miner")}


class EveryOther:
    """As a plugin's author writes it: positions alone, the rest by `make_views`."""

    def __init__(self, config, context):
        self.context = context

    def __call__(self, tokens, rng, rows=0):
        hidden = (tokens.maskable.cumsum(1) % 2 == 0) & tokens.maskable
        return make_views(tokens, hidden, hidden, rng, self.context, rows=rows)


class EveryOtherWord(EveryOther):
    def __call__(self, tokens, rng, rows=0):
        hidden = tokens.words % 2 == 0
        if not rows:
            return make_views(tokens, hidden, hidden, rng, self.context)
        each = hidden[:, None] & torch.from_numpy(rng.coins(0.5, rows, hidden.shape[1]))
        return make_views(tokens, hidden, each, rng, self.context, rows=rows)


@pytest.mark.parametrize("part", [EveryOther, EveryOtherWord])
def test_a_masker_by_someone_else(part):
    check_masker(attrs.evolve(REGISTRY.get("masker", "uniform"), target=f"{__name__}:{part.__name__}"))


def test_installed_parts_are_found_by_name():
    check_masker("uniform")
    check_decoder("enhanced")
    check_loss("contrastive")
    check_miner("random")
    with pytest.raises(UnknownNameError, match="no masker named 'unifrom'"):
        check_masker("unifrom")


def test_the_toys_are_what_they_say():
    assert len(list(ToyCorpus())) == 40
    assert isinstance(UniformMasker(UniformConfig(), _context())(*_toy_call()), Views)


def _context():
    from drkit.testing.toys import toy_context

    return toy_context()


def _toy_call():
    from drkit.core.draws import Draws
    from drkit.testing.toys import toy_tokens

    tokens = toy_tokens()
    return tokens, Draws(1, 0, tokens.keys.numpy())
