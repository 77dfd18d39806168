"""Every registered part against the contract of its kind."""

from __future__ import annotations

import attrs
import pytest
import torch

from drkit.core.registry import Registry, installed
from drkit.core.spec import ComponentSpec, Kind
from drkit.core.types import MaskedView
from drkit.errors import ProblemsError
from drkit.maskers import PmiConfig, UniformConfig, UniformMasker
from drkit.maskers.views import make_view
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.trial import try_parts
from drkit.testing import (
    check_context,
    check_decoder,
    check_filter,
    check_loss,
    check_masker,
    check_miner,
    check_pooling,
    check_spec,
)
from drkit.testing.specs import ContractError
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


class EveryOther:
    """As a plugin's author writes it: positions alone, the rest by `make_view`."""

    def __init__(self, config, context):
        self.context = context

    def __call__(self, tokens, rng, rows=0, nested=None):
        hidden = (tokens.maskable.cumsum(1) % 2 == torch.from_numpy(rng.integers(2))[:, None]) & tokens.maskable
        return make_view(tokens, hidden, rng, self.context, rows=rows, nested=nested)


class EveryOtherWord(EveryOther):
    def __call__(self, tokens, rng, rows=0, nested=None):
        hidden = tokens.words % 2 == 0
        each = hidden[:, None] & torch.from_numpy(rng.coins(0.5, rows, hidden.shape[1])) if rows else hidden
        return make_view(tokens, each, rng, self.context, rows=rows, nested=nested)


class NextText:
    """As the guide has it."""

    def __init__(self, config, context):
        pass

    def __call__(self, tokens, texts, *, seed, epoch):
        indices = (tokens.keys.numpy() + 1) % len(texts.store)
        return attrs.evolve(texts.batch(indices), keys=tokens.keys)


class TextBelow(NextText):
    def __call__(self, tokens, texts, *, seed, epoch):
        return attrs.evolve(tokens, ids=tokens.ids.roll(1, 0), attention=tokens.attention.roll(1, 0))


class OneText(NextText):
    def __call__(self, tokens, texts, *, seed, epoch):
        return texts.batch(tokens.keys.numpy()[:1])


def test_a_context_by_someone_else():
    def spec(part):
        return attrs.evolve(REGISTRY.get("context", "self"), target=f"{__name__}:{part.__name__}")

    check_context(spec(NextText))
    with pytest.raises(ContractError, match=r"self: .*other texts"):
        check_context(spec(TextBelow))
    with pytest.raises(ContractError, match=r"self: .*8 texts, .*got 1"):
        check_context(spec(OneText))


@pytest.mark.parametrize("part", [EveryOther, EveryOtherWord])
def test_a_masker_by_someone_else(part):
    check_masker(attrs.evolve(REGISTRY.get("masker", "uniform"), target=f"{__name__}:{part.__name__}"))


class Deletion:
    """Deletes tokens of what the encoder reads; those that follow move up (TSDAE: Wang et al. 2021)."""

    def __init__(self, config, context):
        self.config, self.pad_id = config, context.backbone.pad_id

    def __call__(self, tokens, rng, rows=0, nested=None):
        draws = torch.from_numpy(rng.uniform(tokens.ids.shape[1]))
        gone = ((draws < self.config.ratio) & tokens.maskable) | ~tokens.attention
        order = gone.long().argsort(dim=1, stable=True)
        attention = (~gone).gather(1, order)
        ids = tokens.ids.gather(1, order).masked_fill(~attention, self.pad_id)
        return MaskedView(ids=ids, labels=torch.full_like(ids, -100), attention=attention)


class LeavesGaps(Deletion):
    def __call__(self, tokens, rng, rows=0, nested=None):
        view = super().__call__(tokens, rng)
        return attrs.evolve(view, ids=view.ids.flip(1), attention=view.attention.flip(1))


class HasTargets(Deletion):
    def __call__(self, tokens, rng, rows=0, nested=None):
        return attrs.evolve(super().__call__(tokens, rng), labels=tokens.ids)


class DeletesNothing(Deletion):
    def __call__(self, tokens, rng, rows=0, nested=None):
        labels = torch.full_like(tokens.ids, -100)
        return MaskedView(ids=tokens.ids, labels=labels, attention=tokens.attention)


def _deletion(part=Deletion):
    return ComponentSpec(
        kind=Kind.MASKER,
        name="deletion",
        target=f"{__name__}:{part.__name__}",
        config=UniformConfig,
        summary="Deletes tokens",
        provides=("corrupted",),
    )


def test_a_masker_may_give_the_encoder_another_text():
    check_masker(_deletion(), UniformConfig(ratio=0.6))
    for part, said in (
        (LeavesGaps, "tokens .*padding"),
        (HasTargets, "targets"),
        (DeletesNothing, "not corrupted"),
    ):
        with pytest.raises(ContractError, match=said):
            check_masker(_deletion(part), UniformConfig(ratio=0.6))


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
