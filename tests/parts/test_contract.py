"""Every registered part against the contract of its kind, and the contract against parts that break it."""

from __future__ import annotations

import attrs
import pytest
import torch

from drkit.core.registry import installed
from drkit.core.spec import ComponentSpec, Kind
from drkit.core.types import StepOutput, Views
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


# ----------------------------------------------------------------------- the checks find what is broken
class Broken(UniformMasker):
    def __call__(self, tokens, rng, rows=0):
        return self.spoil(super().__call__(tokens, rng, rows), tokens)


class TargetsSpecials(Broken):
    def spoil(self, views, tokens):
        labels = views.encoder.labels.clone()
        labels[:, 0] = tokens.ids[:, 0]
        return attrs.evolve(views, encoder=attrs.evolve(views.encoder, labels=labels))


class HidesNothing(Broken):
    def spoil(self, views, tokens):
        none = torch.full_like(tokens.ids, -100)
        return attrs.evolve(views, decoder=attrs.evolve(views.decoder, ids=tokens.ids, labels=none))


class DrawsByItself(Broken):
    def spoil(self, views, tokens):
        ids = torch.where(views.encoder.labels != -100, torch.randint_like(tokens.ids, 5, 90), tokens.ids)
        return attrs.evolve(views, encoder=attrs.evolve(views.encoder, ids=ids))


class LooksAtItsNeighbours(Broken):
    def spoil(self, views, tokens):
        ids = torch.where(views.encoder.labels != -100, 5 + tokens.ids.sum() % 80, tokens.ids)
        return attrs.evolve(views, encoder=attrs.evolve(views.encoder, ids=ids))


class ShowsPadding(Broken):
    def spoil(self, views, tokens):
        if views.decoder.visible is None:
            return views
        return attrs.evolve(views, decoder=attrs.evolve(views.decoder, visible=torch.ones_like(views.decoder.visible)))


class ReturnsAPair(Broken):
    def spoil(self, views, tokens):
        return (views.encoder, views.decoder)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (TargetsSpecials, "special token or padding is a target"),
        (HidesNothing, "has maskable tokens, but no targets"),
        (DrawsByItself, "same seed gives a different mask"),
        (LooksAtItsNeighbours, "depends on the other texts of the batch"),
        (ShowsPadding, "padding is visible"),
        (ReturnsAPair, "must return Views"),
    ],
)
def test_a_broken_masker_is_found(part, says):
    spec = attrs.evolve(REGISTRY.get("masker", "uniform"), target=f"{__name__}:{part.__name__}")
    with pytest.raises(AssertionError, match=says):
        check_masker(spec)


class KeepsTheEmbeddings(torch.nn.Module):
    needs_layers = ()

    def __init__(self, config, context):
        super().__init__()

    def rows(self, length):
        return 0

    def forward(self, inputs, heads):
        from drkit.encoders.heads import token_states

        return {"token_states": token_states(heads.embed(inputs.view.ids), inputs.view.labels, heads)}


class NoGradient:
    def __init__(self, config, context):
        pass

    def __call__(self, *, token_states):
        return StepOutput(loss=token_states.states.detach().sum().requires_grad_())


def test_a_broken_decoder_or_loss_is_found():
    spec = attrs.evolve(REGISTRY.get("decoder", "mlm"), target=f"{__name__}:KeepsTheEmbeddings")
    with pytest.raises(AssertionError, match="no gradient reaches the bottleneck"):
        check_decoder(spec)
    spec = attrs.evolve(REGISTRY.get("loss", "mlm"), target=f"{__name__}:NoGradient")
    with pytest.raises(AssertionError, match="no gradient reaches its inputs"):
        check_loss(spec)
    with pytest.raises(AssertionError, match="pass check_loss inputs for magic"):
        check_loss(attrs.evolve(REGISTRY.get("loss", "mlm"), receives=("magic",)))


class ReturnsPositives:
    """A miner that takes the first passages of the corpus, judged or not."""

    def index(self, corpus):
        self.ids = [passage.doc_id for passage in corpus]

    def mine(self, requests, depth):
        from drkit.core.types import Mined
        from drkit.errors import DrkitError

        if not hasattr(self, "ids"):
            raise DrkitError("no corpus")
        for request in list(requests):
            yield Mined(request.query_id, tuple(self.ids[:depth]), (0.0,) * len(self.ids[:depth]))


def test_a_broken_miner_is_found():
    with pytest.raises(AssertionError, match="judged positive among its negatives"):
        check_miner(ReturnsPositives)


def test_a_miner_that_holds_the_stream_is_found():
    from drkit.core.types import Mined
    from drkit.errors import DrkitError

    class Holds:
        ids = None

        def index(self, corpus):
            self.ids = [passage.doc_id for passage in corpus]

        def mine(self, requests, depth):
            if self.ids is None:
                raise DrkitError("no corpus")
            for request in list(requests):
                found = tuple(i for i in self.ids if i not in request.positives)[:depth]
                yield Mined(request.query_id, found, (0.0,) * len(found))

    with pytest.raises(AssertionError, match="queries before its first answer; it must stream them"):
        check_miner(Holds)


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


def test_a_declaration_that_is_not_frozen_or_lies_is_found():
    @attrs.define
    class Loose:
        """Not frozen."""

    with pytest.raises(AssertionError, match="not frozen"):
        check_spec(ComponentSpec("masker", "m", "drkit.maskers.uniform:UniformMasker", Loose, "m"))
    with pytest.raises(AssertionError, match="uniform:Nothing' cannot be imported"):
        check_spec(attrs.evolve(REGISTRY.get("masker", "uniform"), target="drkit.maskers.uniform:Nothing"))
