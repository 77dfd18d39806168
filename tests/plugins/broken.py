"""Parts of strangers, each broken in one way; the sound ones they come from are drkit's own, or here."""

import attrs
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from drkit.core.types import CollectionSize, Judgement, MaskedView, Mined, Passage, Query, StepOutput, TokenStates
from drkit.decoders import MlmDecoder
from drkit.decoders.specs import MlmDecoderConfig
from drkit.encoders.heads import seeded, token_states
from drkit.errors import DrkitError
from drkit.maskers import UniformConfig, UniformMasker
from drkit.maskers.views import make_view

# Maskers


class NotCallable:
    def __init__(self, config, context):
        self.inner = UniformMasker(UniformConfig(), context)


class TwoViews(NotCallable):
    def __call__(self, tokens, rng, rows=0, nested=None):
        return self.inner(tokens, rng), self.inner(tokens, rng, rows, nested)


class HidesSpecials(NotCallable):
    def __call__(self, tokens, rng, rows=0, nested=None):
        view = self.inner(tokens, rng, rows, nested)
        labels = view.labels.clone()
        labels[:, 0] = tokens.ids[:, 0]
        return attrs.evolve(view, labels=labels)


class ShortInts(NotCallable):
    def __call__(self, tokens, rng, rows=0, nested=None):
        view = self.inner(tokens, rng, rows, nested)
        return attrs.evolve(view, labels=view.labels.int())


class IgnoresTheEarlierView(NotCallable):
    def __call__(self, tokens, rng, rows=0, nested=None):
        return self.inner(tokens, rng, rows)


class WrongKeywords(NotCallable):
    def __call__(self, batch, seed):
        raise AssertionError("never reached")


class RaisesWhenBuilt:
    def __init__(self, config, context):
        raise KeyError("width")


class Spoilt(UniformMasker):
    def __init__(self, config, context):
        super().__init__(UniformConfig(), context)

    def __call__(self, tokens, rng, rows=0, nested=None):
        return self.spoil(super().__call__(tokens, rng, rows, nested), tokens)


class HidesNothing(Spoilt):
    def spoil(self, view, tokens):
        return attrs.evolve(view, ids=tokens.ids, labels=torch.full_like(tokens.ids, -100))


class DrawsByItself(Spoilt):
    def spoil(self, view, tokens):
        return attrs.evolve(view, ids=torch.where(hidden(view), torch.randint_like(tokens.ids, 5, 90), tokens.ids))


class LooksAtItsNeighbours(Spoilt):
    def spoil(self, view, tokens):
        return attrs.evolve(view, ids=torch.where(hidden(view), 5 + tokens.ids.sum() % 80, tokens.ids))


def hidden(view):
    return (view.labels != -100) & (view.visible is None)


class ShowsPadding(Spoilt):
    def spoil(self, view, tokens):
        return view if view.visible is None else attrs.evolve(view, visible=torch.ones_like(view.visible))


class CountsItsRows(Spoilt):
    def spoil(self, view, tokens):
        if view.visible is None:
            return view
        special = ~tokens.maskable[:, None] & tokens.attention[:, None]
        rows = view.visible.shape[1]
        shown = (tokens.keys[:, None, None] + torch.arange(tokens.ids.shape[1]) + rows) % 2 == 0
        return attrs.evolve(view, visible=special | (view.visible & shown))


class GoodMasker:
    def __init__(self, config, context):
        self.context = context

    def __call__(self, tokens, rng, rows=0, nested=None):
        hidden = self.hidden(tokens, rng) & tokens.maskable
        return make_view(tokens, hidden, rng, self.context, rows=rows, nested=nested)

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


class EveryOtherWord(GoodMasker):
    """Hides every other word, with a draw of its own for each row."""

    def __call__(self, tokens, rng, rows=0, nested=None):
        hidden = tokens.words % 2 == 0
        each = hidden[:, None] & torch.from_numpy(rng.coins(0.5, rows, hidden.shape[1])) if rows else hidden
        return make_view(tokens, each, rng, self.context, rows=rows, nested=nested)


class UndeclaredSignal(GoodMasker):
    def hidden(self, tokens, rng):
        return super().hidden(tokens, rng) | (tokens.signal("importance") > 1)


class GlobalDraws(GoodMasker):
    def hidden(self, tokens, rng):
        return (torch.rand(tokens.ids.shape) < 0.5) | (tokens.maskable.cumsum(1) == 1)


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


class ChangesItsInput(GoodMasker):
    def __call__(self, tokens, rng, rows=0, nested=None):
        view = super().__call__(tokens, rng, rows=rows, nested=nested)
        tokens.ids[tokens.maskable] = 7
        return view


class NeedsAnotherSetting(GoodMasker):
    def __init__(self, config, context):
        super().__init__(config, context)
        self.ratio = config.ratio


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


# Contexts


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


# Decoders


class Sound(nn.Module):
    """As drkit's `mlm`, with a hook for what goes wrong."""

    def __init__(self, config, context):
        super().__init__()
        self.inner = MlmDecoder(MlmDecoderConfig(), context)

    def forward(self, inputs, heads):
        return self.changed(self.inner(inputs, heads))

    def changed(self, out):
        return out


class NotContiguous(Sound):
    """Has a weight that is a transposed view."""

    def __init__(self, config, context):
        super().__init__(config, context)
        self.turned = nn.Parameter(torch.ones(3, 5).T)

    def changed(self, out):
        states = out["token_states"]
        return {"token_states": attrs.evolve(states, states=states.states * (1 + self.turned.sum()))}


class SharesATensor(NotContiguous):
    """Has a weight under two names."""

    def __init__(self, config, context):
        super().__init__(config, context)
        self.again = self.turned


class SavesANumber(Sound):
    """Puts something into its state that is not a tensor."""

    def get_extra_state(self):
        return 3

    def set_extra_state(self, state):
        pass


class SavesSparsely(Sound):
    def __init__(self, config, context):
        super().__init__(config, context)
        self.register_buffer("table", torch.eye(4).to_sparse())


class RegistersLate(Sound):
    """Has a buffer only after its first call."""

    def changed(self, out):
        self.register_buffer("seen", torch.ones(1))
        return out


class RenamesItsWeights(Sound):
    def __init__(self, config, context):
        super().__init__(config, context)
        self.scale = nn.Parameter(torch.ones(()))

    def changed(self, out):
        states = out["token_states"]
        return {"token_states": attrs.evolve(states, states=states.states * self.scale)}

    def state_dict(self, *args, **kwargs):
        return {f"mine/{name}": value for name, value in super().state_dict(*args, **kwargs).items()}


class LoadsNothing(RenamesItsWeights):
    def __init__(self, config, context):
        super().__init__(config, context)
        nn.init.normal_(self.scale, generator=torch.Generator().manual_seed(context.seed))

    def state_dict(self, *args, **kwargs):
        return nn.Module.state_dict(self, *args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        return None


class ChangesTorch(Sound):
    """Sets something of torch for the whole process when it is called; subclasses say what."""

    def changed(self, out):
        self.set()
        return out


class DefaultDtype(ChangesTorch):
    def set(self):
        torch.set_default_dtype(torch.float64)


class GradMode(ChangesTorch):
    def set(self):
        torch.set_grad_enabled(False)


class DefaultDevice(ChangesTorch):
    def set(self):
        torch.set_default_device("meta")


class Deterministic(ChangesTorch):
    def set(self):
        torch.use_deterministic_algorithms(True)


class Threads(ChangesTorch):
    def set(self):
        torch.set_num_threads(torch.get_num_threads() + 1)


class Seed(ChangesTorch):
    def set(self):
        torch.manual_seed(0)


class Precision(ChangesTorch):
    def set(self):
        torch.set_float32_matmul_precision("medium")


class DtypeWhenBuilt(Sound):
    def __init__(self, config, context):
        super().__init__(config, context)
        torch.set_default_dtype(torch.float64)


class MaskerThatChangesDtype(NotCallable):
    def __call__(self, tokens, rng, rows=0, nested=None):
        torch.set_default_dtype(torch.bfloat16)
        return self.inner(tokens, rng, rows, nested)


class AnotherName(Sound):
    def changed(self, out):
        return {"states": out["token_states"]}


class NoMapping(Sound):
    def changed(self, out):
        return out["token_states"].states


class WrongStates(Sound):
    def changed(self, out):
        own = out["token_states"]
        return {"token_states": TokenStates(states=own.states[1:], labels=own.labels, heads=own.heads)}


class WrongLabels(Sound):
    def changed(self, out):
        own = out["token_states"]
        return {"token_states": TokenStates(states=own.states, labels=own.labels - 1000, heads=own.heads)}


class FloatLabels(Sound):
    def changed(self, out):
        own = out["token_states"]
        return {"token_states": TokenStates(states=own.states, labels=own.labels.float(), heads=own.heads)}


class NanStates(Sound):
    def changed(self, out):
        own = out["token_states"]
        return {"token_states": TokenStates(states=own.states / 0, labels=own.labels, heads=own.heads)}


class IdleWeights(Sound):
    def __init__(self, config, context):
        super().__init__(config, context)
        with seeded(context.seed, "never used"):
            self.never_used = nn.Linear(4, 4)


class SaysMore(Sound):
    """Returns more than its spec provides: a tuple of tensors, and a number for each text in half precision."""

    def forward(self, inputs, heads):
        vectors = inputs.encoded.bottleneck
        more = {"spread": (vectors, [vectors[:, 0].bfloat16()]), "rows": vectors.detach().argmax(1)}
        return {**super().forward(inputs, heads), **more}


class NoSuchLayer(Sound):
    needs_layers = (40,)


class RaisesLongMessage(Sound):
    def changed(self, out):
        raise RuntimeError("the first of many words " * 100 + "\nand a second line")


class GoodDecoder(nn.Module):
    def __init__(self, config, context):
        super().__init__()
        with seeded(context.seed, "decoder"):
            self.mix = nn.Linear(context.backbone.hidden, context.backbone.hidden)

    def forward(self, inputs, heads):
        tokens = inputs.tokens
        states = self.states(inputs.encoded.bottleneck[:, None] + heads.positions(tokens.ids.shape[1]), tokens)
        return {
            "token_states": TokenStates(states=states[tokens.maskable], labels=tokens.ids[tokens.maskable], heads=heads)
        }

    def states(self, states, tokens):
        return self.mix(states)


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


class TooManyRows(GoodDecoder):
    def rows(self, length):
        return length + 1


class NoLayers(GoodDecoder):
    needs_layers = None


class WithABag(GoodDecoder):
    """Has an output of its own: a vector for each text."""

    def forward(self, inputs, heads):
        return {**super().forward(inputs, heads), "bag": self.mix(inputs.encoded.bottleneck)}


class KeepsTheEmbeddings(nn.Module):
    def __init__(self, config, context):
        super().__init__()

    def forward(self, inputs, heads):
        return {"token_states": token_states(heads.embed(inputs.view.ids), inputs.view.labels, heads)}


class StartsClosed(KeepsTheEmbeddings):
    """Its vector passes a gate that starts from zero, so no gradient is there before the first step."""

    def __init__(self, config, context):
        super().__init__(config, context)
        self.gate = nn.Parameter(torch.zeros(()))
        with seeded(context.seed, "behind the gate"):
            self.behind = nn.Linear(context.backbone.hidden, context.backbone.hidden)

    def forward(self, inputs, heads):
        vectors = self.gate * self.behind(inputs.encoded.bottleneck)
        states = heads.embed(inputs.view.ids) + vectors[:, None]
        return {"token_states": token_states(states, inputs.view.labels, heads)}


class EveryToken(KeepsTheEmbeddings):
    """Reads a view, and predicts all tokens of the text, as SimLM's decoder does."""

    def forward(self, inputs, heads):
        tokens = inputs.tokens
        states = heads.embed(inputs.view.ids) + inputs.encoded.bottleneck[:, None]
        labels = torch.where(tokens.maskable, tokens.ids, -100)
        return {"token_states": token_states(states, labels, heads)}


class EveryTokenBackwards(EveryToken):
    def forward(self, inputs, heads):
        states = super().forward(inputs, heads)["token_states"]
        return {"token_states": attrs.evolve(states, labels=states.labels.flip(0))}


# Losses


def gives_a_float(config, context):
    return lambda bottleneck: 0.5


def gives_a_tensor(config, context):
    return lambda bottleneck: bottleneck.sum()


def gives_rows(config, context):
    return lambda bottleneck: StepOutput(loss=bottleneck.sum(1))


def detaches(config, context):
    return lambda bottleneck: StepOutput(loss=bottleneck.detach().sum())


def gives_nan(config, context):
    return lambda bottleneck: StepOutput(loss=(bottleneck * float("nan")).sum())


def has_nan_gradient(config, context):
    return lambda bottleneck: StepOutput(loss=torch.sqrt((bottleneck * 0).pow(2)).sum())


def wants_other_words(config, context):
    return lambda vectors: StepOutput(loss=vectors.sum())


def wants_pairs_of_its_own(config, context):
    return lambda pairs: StepOutput(loss=pairs.no_such_field.sum())


def detaches_pairs(config, context):
    return lambda pairs: StepOutput(loss=pairs.queries.detach().sum())


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


class Noisy(GoodLoss):
    def of(self, vectors):
        return (vectors + torch.randn_like(vectors)).pow(2).mean()


class KeepsTheGraph(GoodLoss):
    def __call__(self, *, bottleneck):
        return StepOutput(loss=self.of(bottleneck), metrics={"norm": bottleneck.norm()})


class OfTheBag(GoodLoss):
    def __call__(self, *, bag):
        return StepOutput(loss=self.of(bag))


class LearnsAnAngle(nn.Module):
    """Rotates states by a weight of its own, before the LM head's cross-entropy, which allows one backward pass."""

    def __init__(self, config, context):
        super().__init__()
        self.angle = nn.Parameter(torch.zeros(context.backbone.hidden))

    def forward(self, *, token_states):
        states = token_states.states * (1 + self.angle)
        return StepOutput(loss=token_states.heads.lm_loss(states, token_states.labels))

    def items(self, *, token_states):
        return torch.tensor(len(token_states.labels))


class NoGradient:
    def __init__(self, config, context):
        pass

    def __call__(self, *, token_states):
        return StepOutput(loss=token_states.states.detach().sum().requires_grad_())


# Miners and filters


class Miner:
    """Finds the first passages that are not judged."""

    ids = ()

    def __init__(self, config=None, context=None):
        pass

    def index(self, corpus):
        self.ids = tuple(passage.doc_id for passage in corpus)

    def mine(self, requests, depth):
        if not self.ids:
            raise DrkitError("call index(corpus) first")
        for request in requests:
            found = self.found(request)[:depth]
            mined = Mined(request.query_id, tuple(found), tuple(-float(n) for n in range(len(found))))
            yield self.changed(request, mined)

    def found(self, request):
        return [doc_id for doc_id in self.ids if doc_id not in request.positives]

    def changed(self, request, mined):
        return mined


class FindsPositives(Miner):
    def changed(self, request, mined):
        return attrs.evolve(mined, doc_ids=(min(request.positives), *mined.doc_ids[1:]))


class Unsorted(Miner):
    def changed(self, request, mined):
        return attrs.evolve(mined, scores=mined.scores[::-1])


class TooMany(Miner):
    def mine(self, requests, depth):
        return super().mine(requests, depth + 3)


class LeavesOneOut(Miner):
    def mine(self, requests, depth):
        return super().mine((request for request in requests if request.query_id != "q0"), depth)


class HoldsTheStream(Miner):
    def mine(self, requests, depth):
        if not self.ids:
            raise DrkitError("call index(corpus) first")
        return super().mine(list(requests), depth)


class NoIndex:
    def __init__(self, config, context):
        pass


class AsksTheCorpus(Miner):
    def index(self, corpus):
        super().index(corpus)
        corpus.get_many(["nowhere"])


class YieldsIds(Miner):
    def mine(self, requests, depth):
        yield from (mined.doc_ids for mined in super().mine(requests, depth))


class Guesses(Miner):
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


class HoldsThePairs(GoodFilter):
    def keep(self, mined, corpus):
        yield from [found for _, found in mined]


class Adds(GoodFilter):
    def keep(self, mined, corpus):
        for found in super().keep(mined, corpus):
            yield attrs.evolve(found, doc_ids=(*found.doc_ids, "d39"), scores=(*found.scores, 0.0))


# Signals and collections


class NoValues:
    def __init__(self, config, context):
        pass


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


class NoSplits:
    name = "broken"

    def __init__(self, config, context):
        pass

    def passages(self):
        return iter(())


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


class KnowsItsSize(GoodCollection):
    def size(self):
        return CollectionSize(5, {"test": 3}, (5,))


class ForgetsASplit(GoodCollection):
    def size(self):
        return CollectionSize(5, {}, (5,))
