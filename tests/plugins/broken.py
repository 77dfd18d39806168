"""Parts of strangers, each broken in one way; the sound ones they come from are drkit's own."""

import torch
from attrs import define, evolve
from torch import nn

from drkit.core.types import Mined, StepOutput, TokenStates
from drkit.decoders import MlmDecoder
from drkit.decoders.specs import MlmDecoderConfig
from drkit.maskers import UniformConfig, UniformMasker


@define
class Loose:
    """Settings that can be changed."""

    ratio: float = 0.1


class NotCallable:
    def __init__(self, config, context):
        self.inner = UniformMasker(UniformConfig(), context)


class OneView(NotCallable):
    def __call__(self, tokens, rng, rows=0):
        return self.inner(tokens, rng, rows).encoder


class HidesSpecials(NotCallable):
    def __call__(self, tokens, rng, rows=0):
        views = self.inner(tokens, rng, rows)
        labels = views.encoder.labels.clone()
        labels[:, 0] = tokens.ids[:, 0]
        return evolve(views, encoder=evolve(views.encoder, labels=labels))


class ShortInts(NotCallable):
    def __call__(self, tokens, rng, rows=0):
        views = self.inner(tokens, rng, rows)
        return evolve(views, encoder=evolve(views.encoder, labels=views.encoder.labels.int()))


class WrongKeywords(NotCallable):
    def __call__(self, batch, seed):
        raise AssertionError("never reached")


class NoRows(nn.Module):
    needs_layers = ()

    def __init__(self, config, context):
        super().__init__()

    def forward(self, inputs, heads):
        return {}


class Sound(nn.Module):
    """As drkit's `mlm`, with a hook for what goes wrong."""

    needs_layers = ()

    def __init__(self, config, context):
        super().__init__()
        self.inner = MlmDecoder(MlmDecoderConfig(), context)

    def rows(self, length):
        return self.inner.rows(length)

    def forward(self, inputs, heads):
        return self.changed(self.inner(inputs, heads))

    def changed(self, out):
        return out


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
        self.never_used = nn.Linear(4, 4)


class NoSuchLayer(Sound):
    needs_layers = (40,)


class RaisesLongMessage(Sound):
    def changed(self, out):
        raise RuntimeError("the first of many words " * 100 + "\nand a second line")


class RaisesWhenBuilt:
    def __init__(self, config, context):
        raise KeyError("width")


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


class Miner:
    def __init__(self, config, context):
        pass

    def index(self, corpus):
        self.ids = [passage.doc_id for passage in corpus]

    def mine(self, requests, depth):
        for request in requests:
            found = [doc_id for doc_id in self.ids if doc_id not in request.positives][:depth]
            yield self.changed(
                request, Mined(request.query_id, tuple(found), tuple(-float(n) for n in range(len(found))))
            )

    def changed(self, request, mined):
        return mined


class FindsPositives(Miner):
    def changed(self, request, mined):
        return evolve(mined, doc_ids=(min(request.positives), *mined.doc_ids[1:]))


class Unsorted(Miner):
    def changed(self, request, mined):
        return evolve(mined, scores=mined.scores[::-1])


class TooMany(Miner):
    def mine(self, requests, depth):
        return super().mine(requests, depth + 3)


class LeavesOneOut(Miner):
    def mine(self, requests, depth):
        return super().mine(list(requests)[1:], depth)


class NoIndex:
    def __init__(self, config, context):
        pass


class Adds:
    def __init__(self, config, context):
        pass

    def keep(self, mined, corpus):
        for _, found in mined:
            yield evolve(found, doc_ids=(*found.doc_ids, "d39"), scores=(*found.scores, 0.0))


class NoSplits:
    name = "broken"

    def __init__(self, config, context):
        pass

    def passages(self):
        return iter(())


class NoValues:
    def __init__(self, config, context):
        pass


class TooFewValues:
    def __init__(self, config, context):
        pass

    def values(self, texts, folder):
        yield torch.zeros(3).numpy()


class FitsWithoutFacts(TooFewValues):
    def fit(self, texts, folder):
        (folder / "counts.txt").write_text("3")


class NanValues:
    def __init__(self, config, context):
        pass

    def values(self, texts, folder):
        yield torch.full((len(texts.store.flat_ids),), float("nan")).numpy()
