"""Parts with one defect each: the contract names it, and the part, in one line."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from drkit.core.spec import ComponentSpec, Kind
from drkit.core.types import CollectionSize, Judgement, Mined, Passage, Query, StepOutput, TokenStates
from drkit.encoders.heads import seeded
from drkit.errors import DrkitError
from drkit.maskers.views import make_views
from drkit.testing import (
    check_collection,
    check_decoder,
    check_filter,
    check_loss,
    check_masker,
    check_miner,
    check_signal,
)
from tests.parts.no_settings import ImportsTorch, NoSettings


def spec(kind, part, **fields):
    return ComponentSpec(kind, "mine", f"{__name__}:{part.__name__}", NoSettings, "A part with a defect", **fields)


def refused(check, part, *arguments):
    """The one line that the contract says of a part."""
    with pytest.raises(AssertionError) as caught:
        check(part, *arguments)
    message = str(caught.value)
    assert message.startswith("mine")
    assert "\n" not in message
    return message


# ------------------------------------------------------------------------------------------------------- maskers
class GoodMasker:
    def __init__(self, config, context):
        self.context = context

    def __call__(self, tokens, rng, rows=0):
        hidden = self.hidden(tokens, rng) & tokens.maskable
        return make_views(tokens, hidden, hidden, rng, self.context, rows=rows)

    def hidden(self, tokens, rng):
        return tokens.maskable.cumsum(1) % 2 == torch.from_numpy(rng.integers(2))[:, None]


class ReadsWords(GoodMasker):
    """Hides stop words first: it looks the tokens up in the tokenizer's vocabulary."""

    STOP = ("the", "of", "and", "in", "to", "is")

    def hidden(self, tokens, rng):
        vocabulary = self.context.tokenizer.get_vocab()
        stop = torch.isin(tokens.ids, torch.tensor([vocabulary[word] for word in self.STOP]))
        assert stop.any() or len(tokens.ids) < 3
        return stop | super().hidden(tokens, rng)


class FailsOnOneText(GoodMasker):
    def hidden(self, tokens, rng):
        return super().hidden(tokens, rng) & (tokens.keys[1] > 0)


class FailsOnEmptyTexts(GoodMasker):
    def hidden(self, tokens, rng):
        return super().hidden(tokens, rng) & (tokens.words.max(1).values // tokens.maskable.sum(1) >= 0)[:, None]


class UndeclaredSignal(GoodMasker):
    def hidden(self, tokens, rng):
        return super().hidden(tokens, rng) | (tokens.signal("importance") > 1)


class GlobalDraws(GoodMasker):
    def hidden(self, tokens, rng):
        return torch.rand(tokens.ids.shape) < 0.5


class Counts(GoodMasker):
    calls = 0

    def hidden(self, tokens, rng):
        self.calls += 1
        return tokens.maskable.cumsum(1) % 2 == self.calls % 2


class CannotBePickled(GoodMasker):
    def __init__(self, config, context):
        super().__init__(config, context)
        self.keep = lambda hidden: hidden


class HidesShortestFirst(GoodMasker):
    """Its choice depends on how long the longest text of the batch is."""

    def hidden(self, tokens, rng):
        return tokens.maskable.flip(1).cumsum(1).flip(1) % (2 + tokens.ids.shape[1] % 2) == 0


class ShortLabels(GoodMasker):
    def __call__(self, tokens, rng, rows=0):
        views = super().__call__(tokens, rng, rows=rows)
        return attrs.evolve(views, encoder=attrs.evolve(views.encoder, labels=views.encoder.labels.int()))


class ChangesItsInput(GoodMasker):
    def __call__(self, tokens, rng, rows=0):
        views = super().__call__(tokens, rng, rows=rows)
        tokens.ids[tokens.maskable] = 7
        return views


class NeedsAnotherSetting(GoodMasker):
    def __init__(self, config, context):
        super().__init__(config, context)
        self.ratio = config.ratio


def test_settings_that_import_torch_are_named():
    part = attrs.evolve(spec("masker", GoodMasker), config=ImportsTorch)
    assert "mine: importing tests.parts.toys imports torch" in refused(check_masker, part)


def test_maskers_without_a_defect_pass():
    check_masker(spec("masker", GoodMasker, provides=("view", "rows")))
    check_masker(spec("masker", ReadsWords, provides=("view",)))


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (FailsOnOneText, "masking 1 text.s. with rows=0 raises IndexError"),
        (FailsOnEmptyTexts, "raises RuntimeError: ZeroDivisionError"),
        (UndeclaredSignal, "the batch does not have the signal 'importance'"),
        (GlobalDraws, "the same seed gives a different mask"),
        (Counts, "the same seed gives a different mask"),
        (CannotBePickled, "pickling it, as worker processes need, raises"),
        (HidesShortestFirst, "a text's mask depends on its padding"),
        (ShortLabels, "encoder: labels is torch.int32, expected int64"),
        (ChangesItsInput, "the masker changed its input"),
        (NeedsAnotherSetting, "building it by .* raises AttributeError: 'NoSettings' object has no attribute 'ratio'"),
    ],
)
def test_defects_of_maskers_are_named(part, says):
    assert_says(refused(check_masker, spec("masker", part, provides=("view",))), says)


def assert_says(message, pattern):
    import re

    assert re.search(pattern, message), message


# ------------------------------------------------------------------------------------------------------- decoders
class GoodDecoder(nn.Module):
    needs_layers = ()

    def __init__(self, config, context):
        super().__init__()
        with seeded(context.seed, "decoder"):
            self.mix = nn.Linear(context.backbone.hidden, context.backbone.hidden)

    def rows(self, length):
        return 0

    def forward(self, inputs, heads):
        tokens = inputs.tokens
        states = self.states(inputs.encoded.bottleneck[:, None] + heads.positions(tokens.ids.shape[1]), tokens)
        return {
            "token_states": TokenStates(states=states[tokens.maskable], labels=tokens.ids[tokens.maskable], heads=heads)
        }

    def states(self, states, tokens):
        return self.mix(states)


class UnusedLayer(GoodDecoder):
    def __init__(self, config, context):
        super().__init__(config, context)
        with seeded(context.seed, "unused"):
            self.unused = nn.Linear(4, 4)


class DropsOutAlways(GoodDecoder):
    def states(self, states, tokens):
        return F.dropout(super().states(states, tokens), 0.1)


class ForgetsATensor(GoodDecoder):
    def __init__(self, config, context):
        super().__init__(config, context)
        self.shift = torch.full((context.backbone.hidden,), float(context.seed))

    def states(self, states, tokens):
        return super().states(states, tokens) + self.shift


class NormalisesOverTheBatch(GoodDecoder):
    def states(self, states, tokens):
        mixed = super().states(states, tokens)
        return mixed - mixed[tokens.maskable].mean(0)


class AverageOverPadding(GoodDecoder):
    def states(self, states, tokens):
        mixed = super().states(states, tokens)
        return mixed - mixed.mean(1, keepdim=True)


class DetachesTheVector(GoodDecoder):
    def states(self, states, tokens):
        return super().states(states.detach(), tokens)


class StartsAtRandom(GoodDecoder):
    def __init__(self, config, context):
        nn.Module.__init__(self)
        self.mix = nn.Linear(context.backbone.hidden, context.backbone.hidden)


class AnotherName(GoodDecoder):
    def forward(self, inputs, heads):
        return {"states": super().forward(inputs, heads)["token_states"]}


class TooManyRows(GoodDecoder):
    def rows(self, length):
        return length + 1


class NoLayers(GoodDecoder):
    needs_layers = None


class NotAModule:
    needs_layers = ()

    def __init__(self, config, context):
        pass


def test_a_decoder_without_a_defect_passes():
    check_decoder(spec("decoder", GoodDecoder, provides=("token_states",)))


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (UnusedLayer, "no gradient reaches its own weights unused.weight, unused.bias"),
        (DropsOutAlways, "a second call in eval mode gives another result"),
        (ForgetsATensor, "saving and loading its weights changes the result; register every tensor"),
        (NormalisesOverTheBatch, "the result of a text depends on the other texts of the batch"),
        (AverageOverPadding, "padding changes the result"),
        (DetachesTheVector, "no gradient reaches the bottleneck"),
        (StartsAtRandom, "building it draws from the global generator"),
        (AnotherName, "provides token_states, but returned states"),
        (TooManyRows, r"rows\(33\) must be a number of rows from 0 to 33, got 34"),
        (NoLayers, "needs_layers must be a tuple of layer numbers, got None"),
        (NotAModule, "a decoder must be an nn.Module"),
    ],
)
def test_defects_of_decoders_are_named(part, says):
    assert_says(refused(check_decoder, spec("decoder", part, provides=("token_states",))), says)


# --------------------------------------------------------------------------------------------------------- losses
class GoodLoss:
    def __init__(self, config, context=None):
        pass

    def __call__(self, *, bottleneck):
        return StepOutput(loss=self.of(bottleneck))

    def of(self, vectors):
        return vectors.pow(2).mean()


class ComparesRows(GoodLoss):
    def of(self, vectors):
        return (vectors - vectors.mean(0)).pow(2).mean()


class SumsRows(GoodLoss):
    def of(self, vectors):
        return vectors.pow(2).sum()


class SpreadOfOne(GoodLoss):
    def of(self, vectors):
        return vectors.std(0).mean()


class PlainNumber(GoodLoss):
    def of(self, vectors):
        return float(vectors.sum())


class PerRow(GoodLoss):
    def of(self, vectors):
        return vectors.pow(2).mean(1)


class Detached(GoodLoss):
    def of(self, vectors):
        return vectors.detach().pow(2).mean()


class Noisy(GoodLoss):
    def of(self, vectors):
        return (vectors + torch.randn_like(vectors)).pow(2).mean()


class KeepsTheGraph(GoodLoss):
    def __call__(self, *, bottleneck):
        return StepOutput(loss=self.of(bottleneck), metrics={"norm": bottleneck.norm()})


class Pair(GoodLoss):
    def __call__(self, *, bottleneck):
        return self.of(bottleneck), {}


class AnotherArgument(GoodLoss):
    def __call__(self, *, vectors):
        return StepOutput(loss=self.of(vectors))


def test_losses_without_a_defect_pass():
    check_loss(spec("loss", GoodLoss, receives=("bottleneck",)))
    check_loss(spec("loss", ComparesRows, receives=("bottleneck",), scope="batch"))


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (ComparesRows, "its scope is 'rows', but the loss of a batch is .* set scope='batch' if it compares rows"),
        (SumsRows, "its scope is 'rows', but the loss of a batch is"),
        (SpreadOfOne, "the loss of a batch of one is nan, expected a finite number"),
        (PlainNumber, "the loss of a batch must be a tensor, got float"),
        (PerRow, r"the loss of a batch has shape \(8,\), expected a scalar"),
        (Detached, "no gradient reaches its inputs"),
        (Noisy, "a second call gives a different loss"),
        (KeepsTheGraph, "the metric 'norm' is not a detached scalar tensor"),
        (Pair, r"expected StepOutput\(loss=..\), got tuple"),
        (AnotherArgument, "calling it with bottleneck raises TypeError"),
    ],
)
@pytest.mark.filterwarnings("ignore:std")
def test_defects_of_losses_are_named(part, says):
    assert_says(refused(check_loss, spec("loss", part, receives=("bottleneck",))), says)


class WithABag(GoodDecoder):
    """Has an output of its own: a vector for each text."""

    def forward(self, inputs, heads):
        return {**super().forward(inputs, heads), "bag": self.mix(inputs.encoded.bottleneck)}


class OfTheBag(GoodLoss):
    def __call__(self, *, bag):
        return StepOutput(loss=self.of(bag))


def test_a_loss_is_checked_on_what_its_decoder_returns():
    decoder = spec("decoder", WithABag, provides=("token_states", "bag"))
    check_decoder(decoder)
    check_loss(spec("loss", OfTheBag, receives=("bag",)), decoder=decoder)
    says = refused(check_loss, spec("loss", OfTheBag, receives=("bag",)))
    assert says == "mine: pass check_loss inputs for bag"
    says = refused(check_loss, spec("loss", OfTheBag, receives=("sack",)), None, None, decoder)
    assert "does not provide sack" in says


# ------------------------------------------------------------------------------------------- miners and filters
class GoodMiner:
    ids = ()

    def __init__(self, config, context=None):
        pass

    def index(self, corpus):
        self.ids = tuple(passage.doc_id for passage in corpus)

    def mine(self, requests, depth):
        if not self.ids:
            raise DrkitError("call index(corpus) first")
        for request in requests:
            found = self.found(request)[:depth]
            yield Mined(request.query_id, tuple(found), tuple(-float(n) for n in range(len(found))))

    def found(self, request):
        return [doc_id for doc_id in self.ids if doc_id not in request.positives]


class Forgets(GoodMiner):
    def mine(self, requests, depth):
        yield from super().mine((request for request in requests if len(request.positives) > 1), depth)


class AsksTheCorpus(GoodMiner):
    def index(self, corpus):
        super().index(corpus)
        corpus.get_many(["nowhere"])


class YieldsIds(GoodMiner):
    def mine(self, requests, depth):
        yield from (mined.doc_ids for mined in super().mine(requests, depth))


class Guesses(GoodMiner):
    def found(self, request):
        return list(np.random.permutation(super().found(request)).tolist())


class GoodFilter:
    def __init__(self, config, context=None):
        pass

    def keep(self, mined, corpus):
        for _, found in mined:
            yield found


class DropsSilently(GoodFilter):
    def keep(self, mined, corpus):
        for found in super().keep(mined, corpus):
            yield attrs.evolve(found, doc_ids=found.doc_ids[1:], scores=found.scores[1:])


class AsksForPositives(GoodFilter):
    def keep(self, mined, corpus):
        for request, found in mined:
            corpus.get_many(sorted(request.positives))
            yield found


def test_a_miner_and_a_filter_without_a_defect_pass():
    check_miner(spec("miner", GoodMiner))
    check_filter(spec("miner", GoodFilter, receives=("candidates",)))


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (Forgets, "answers are not in order"),
        (AsksTheCorpus, r"unknown passage 'nowhere'; corpus.find\(doc_ids\) is -1"),
        (YieldsIds, "an answer must be Mined, got tuple"),
        (Guesses, "a second run gives different negatives"),
    ],
)
def test_defects_of_miners_are_named(part, says):
    assert_says(refused(check_miner, spec("miner", part)), says)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (DropsSilently, "lost 1 candidates, but 0 are counted as dropped"),
        (AsksForPositives, "unknown passage 'nowhere 3'"),
    ],
)
def test_defects_of_filters_are_named(part, says):
    assert_says(refused(check_filter, spec("miner", part, receives=("candidates",))), says)


# ------------------------------------------------------------------------------------- signals and collections
class GoodSignal:
    def __init__(self, config, context=None):
        pass

    def values(self, texts, folder):
        for _, spans in texts.read():
            yield np.ones(len(spans), np.float32)


class OnePerText(GoodSignal):
    def values(self, texts, folder):
        yield np.ones(len(texts.store), np.float32)


class Undefined(GoodSignal):
    def values(self, texts, folder):
        for values in super().values(texts, folder):
            yield values / (len(values) - len(values))


class RelativeToAll(GoodSignal):
    def values(self, texts, folder):
        for values in super().values(texts, folder):
            yield values * len(texts.store)


class RandomSignal(GoodSignal):
    def values(self, texts, folder):
        for values in super().values(texts, folder):
            yield np.random.random(len(values)).astype(np.float32)


class Fitted(GoodSignal):
    def fit(self, texts, folder):
        return {"texts": 3}


class FitsWithoutFacts(GoodSignal):
    def fit(self, texts, folder):
        (folder / "counts.txt").write_text("3")


class FitsTensors(GoodSignal):
    def fit(self, texts, folder):
        return {"counts": torch.zeros(2)}


@pytest.mark.parametrize("part", [GoodSignal, Fitted])
def test_a_signal_without_a_defect_passes(part):
    check_signal(spec("signal", part, requires=("characters",)))


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (OnePerText, "gave 10 values for .* of scope 'token'"),
        (Undefined, "is not finite at token 0"),
        (RelativeToAll, "the values of a text depend on the other texts, but it has no method `fit`"),
        (RandomSignal, "a second run gives other values"),
        (FitsWithoutFacts, r"fit\(texts, folder\) must return a mapping of facts, got NoneType"),
        (FitsTensors, r"fit\(texts, folder\) cannot be written as JSON"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_defects_of_signals_are_named(part, says):
    assert_says(refused(check_signal, spec("signal", part, requires=("characters",))), says)


class GoodCollection:
    name = "mine"

    def __init__(self, config, context=None):
        pass

    def passages(self):
        return (Passage(f"d{n}", f"the text of {n}") for n in range(5))

    def splits(self):
        return ("test",)

    def queries(self, split):
        if split != "test":
            raise DrkitError(f"unknown split {split!r}")
        return (Query(f"q{n}", f"about {n}") for n in range(3))

    def judgements(self, split):
        return (Judgement(f"q{n}", f"d{n}", 1) for n in range(3))

    def describe(self):
        return {"passages": 5}


class ReadsOnce(GoodCollection):
    def __init__(self, config, context=None):
        self._stream = super().passages()

    def passages(self):
        return self._stream


class SameIds(GoodCollection):
    def passages(self):
        return (Passage("d0", f"the text of {n}") for n in range(5))


class UnknownPassages(GoodCollection):
    def judgements(self, split):
        return (Judgement(f"q{n}", f"doc{n}", 1) for n in range(3))


class AnySplit(GoodCollection):
    def queries(self, split):
        return (Query(f"q{n}", f"about {n}") for n in range(3))


class FlagsAsGrades(GoodCollection):
    def judgements(self, split):
        return (Judgement(f"q{n}", f"d{n}", True) for n in range(3))


class Tuples(GoodCollection):
    def passages(self):
        return ((f"d{n}", f"the text of {n}") for n in range(5))


class InParts(GoodCollection):
    def passage_parts(self):
        return (range(0, 2), range(2, 5))

    def passages_in(self, part):
        return (Passage(f"d{n}", f"the text of {n}") for n in part)


class LosesAPart(InParts):
    def passage_parts(self):
        return (range(0, 2), range(3, 5))


class StaysHere(InParts):
    def __init__(self, config, context=None):
        self.open = lambda: None


class KnowsItsSize(GoodCollection):
    def size(self):
        return CollectionSize(5, {"test": 3}, (5,))


class ForgetsASplit(GoodCollection):
    def size(self):
        return CollectionSize(5, {}, (5,))


@pytest.mark.parametrize("part", [GoodCollection, InParts, KnowsItsSize])
def test_a_collection_without_a_defect_passes(part):
    check_collection(spec("collection", part, provides=("texts", "queries")), NoSettings())


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (ReadsOnce, "passages: reading again gives something else; return a new iterator in each call"),
        (SameIds, "passages: an id occurs twice"),
        (UnknownPassages, "refers to a passage that the collection does not have"),
        (AnySplit, r"queries\('nosuch'\) must raise DrkitError"),
        (FlagsAsGrades, "has the grade True, expected a whole number"),
        (Tuples, "passages: expected Passage, got tuple"),
        (LosesAPart, "its parts have other passages than it has"),
        (StaysHere, "pickling it and its parts"),
        (ForgetsASplit, r"size\(\) must have passages, some of their lengths, and queries of every split"),
    ],
)
def test_defects_of_collections_are_named(part, says):
    part = spec(Kind.COLLECTION, part, provides=("texts", "queries"))
    assert_says(refused(check_collection, part, NoSettings()), says)
