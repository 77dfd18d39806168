"""The masker query-as-context: the base masker's two sides, each on its own text."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch

from drkit.core.draws import Draws
from drkit.core.registry import installed
from drkit.core.types import map_tensors
from drkit.errors import DrkitError, ProblemsError
from drkit.maskers import PmiConfig, PmiMasker, UniformConfig, UniformMasker
from drkit.testing import check_masker
from drkit.testing.toys import toy_context, toy_encoder, toy_pairs_of_texts, toy_tokens
from drkit_query_as_context import QueryAsContextConfig
from drkit_query_as_context.masker import QueryAsContextMasker

BASES = {"uniform": (UniformMasker, UniformConfig), "pmi": (PmiMasker, PmiConfig)}


def built(**settings):
    return QueryAsContextMasker(QueryAsContextConfig(**settings), toy_context())


def draws(tokens, **changes):
    return Draws(**{"seed": 1, "epoch": 0, "keys": tokens.keys.numpy(), **changes})


def equal(one, two):
    tensors = []
    for bundle in (one, two):
        found = []
        map_tensors(bundle, lambda t, found=found: found.append(t) or t)
        tensors.append(found)
    return len(tensors[0]) == len(tensors[1]) and all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))


@pytest.mark.parametrize("base", [*BASES, "generator"])
@pytest.mark.parametrize("context", ["self", "span", "query", "mixed"])
def test_it_keeps_the_contract_of_maskers(context, base):
    check_masker("query-as-context", QueryAsContextConfig(context=context, base=base))


@pytest.mark.parametrize("rows", [0, 33])
@pytest.mark.parametrize("base", BASES)
def test_with_itself_as_context_it_is_the_base_masker(base, rows):
    kind, config = BASES[base]
    ratios = {"encoder_ratio": 0.2, "decoder_ratio": 0.6, "mask_token_share": (1.0, 0.0, 0.0)}
    tokens = toy_tokens()
    expected = kind(config(**ratios), toy_context())(tokens, draws(tokens), rows)
    assert equal(built(context="self", base=base, **ratios)(tokens, draws(tokens), rows), expected)
    # A text that is given as its own context is masked by the same draws: nothing else is drawn or thrown away.
    given = attrs.evolve(tokens, context=tokens)
    made = built(context="query", base=base, **ratios)(given, draws(tokens), rows)
    assert equal(made.encoder, expected.encoder)
    assert equal(made.decoder, expected.decoder)


@pytest.mark.parametrize("rows", [0, 9])
@pytest.mark.parametrize("base", BASES)
def test_each_side_reads_its_own_text(base, rows):
    tokens = toy_pairs_of_texts()
    views = built(base=base)(tokens, draws(tokens), rows)
    assert views.context is tokens.context
    for view, text in ((views.encoder, tokens), (views.decoder, tokens.context)):
        targets = view.labels != -100
        assert torch.equal(view.labels[targets], text.ids[targets])
        assert torch.equal(view.attention, text.attention)
        assert not (targets & ~text.maskable).any()
    assert (views.decoder.visible is not None) == bool(rows)
    if rows:
        assert views.decoder.visible.shape == (8, 9, tokens.context.ids.shape[1])
        assert torch.equal(views.decoder.ids, tokens.context.ids)


@pytest.mark.parametrize("base", BASES)
def test_ratios_are_those_of_each_side(base):
    texts, contexts = (toy_tokens([42] * 300), toy_tokens([22] * 300))
    tokens = attrs.evolve(texts, context=contexts)
    views = built(base=base, encoder_ratio=0.3, decoder_ratio=0.5)(tokens, draws(tokens))
    encoder, decoder = ((view.labels != -100).sum(1).float() for view in (views.encoder, views.decoder))
    assert encoder.mean().item() == pytest.approx(0.3 * 40, abs=1)
    assert decoder.mean().item() == pytest.approx(0.5 * 20, abs=1)
    masked = (views.decoder.ids == 4).sum() / decoder.sum()
    assert masked.item() == pytest.approx(0.8, abs=0.03)


def test_the_pmi_base_hides_what_is_important_in_the_context():
    tokens = toy_pairs_of_texts()
    weights = torch.where(tokens.context.maskable, torch.arange(30.0), 0.0)
    tokens = attrs.evolve(tokens, context=attrs.evolve(tokens.context, signals={"importance": weights * 100}))
    views = built(base="pmi")(tokens, draws(tokens))
    hidden = views.decoder.labels != -100
    for row in np.flatnonzero(tokens.context.maskable.sum(1).numpy() > 1):
        positions = torch.nonzero(tokens.context.maskable[row])[:, 0]
        assert hidden[row].nonzero()[:, 0].tolist() == positions[-max(1, len(positions) // 2) :].tolist()


def test_the_generator_base_leaves_each_side_to_be_filled():
    tokens = toy_pairs_of_texts()
    masker = built(base="generator")
    views = masker(tokens, draws(tokens))
    for view, text in ((views.encoder, tokens), (views.decoder, tokens.context)):
        assert view.noise.shape == text.ids.shape
        assert torch.equal(view.labels != -100, text.maskable)
        assert ((view.ids == 4) & text.maskable).any()
    context = attrs.evolve(toy_context(), generator=toy_encoder(seed=3))
    filled, _ = masker.replacer(context)(views.decoder, tokens.context, learn=False)
    masks = views.decoder.ids == 4
    assert torch.equal(filled.ids[~masks], views.decoder.ids[~masks])
    assert (filled.ids[masks] != 4).float().mean() > 0.9
    assert not hasattr(built(base="pmi"), "replacer")


def test_a_missing_context_is_named():
    tokens = toy_tokens()
    with pytest.raises(DrkitError, match=r"context = 'span' needs a context for every text.*open_contexts"):
        built(context="span")(tokens, draws(tokens))
    with pytest.raises(DrkitError, match="expected one context per text, got 3 contexts for 8 texts"):
        built()(attrs.evolve(tokens, context=map_tensors(tokens, lambda t: t[:3])), draws(tokens))
    bare = attrs.evolve(toy_pairs_of_texts().context, signals={})
    with pytest.raises(DrkitError, match="needs the importance of every token"):
        built(base="pmi")(attrs.evolve(tokens, context=bare), draws(tokens))


@pytest.mark.parametrize(
    ("settings", "needed", "provides"),
    [
        ({}, {"generated-queries", "importance"}, {"view", "rows", "context"}),
        ({"context": "self"}, set(), {"view", "rows"}),
        ({"context": "self", "base": "pmi"}, {"importance"}, {"view", "rows"}),
        ({"context": "span"}, {"spans"}, {"view", "rows", "context"}),
        ({"context": "mixed"}, {"spans", "generated-queries", "importance"}, {"view", "rows", "context"}),
        ({"context": "span", "base": "generator"}, {"spans", "generator"}, {"view", "rows", "replaced", "context"}),
    ],
)
def test_signals_requirements_and_provides_follow_the_settings(settings, needed, provides):
    spec = installed().registry.get("masker", "query-as-context")
    config = QueryAsContextConfig(**settings)
    assert {*spec.signals_of(config), *spec.requires_of(config)} == needed
    assert spec.provides_of(config) == provides


@pytest.mark.parametrize("source", ["extractive", "file:q.jsonl", "model:doc2query/all-with-prefix-t5-base-v1"])
def test_sources_of_queries(source):
    assert QueryAsContextConfig(queries=source).queries == source


@pytest.mark.parametrize("source", ["", "generated", "file:", "model", "http:x"])
def test_other_sources_are_refused_in_a_recipe(source):
    from drkit.recipe.compose import ComposeRequest, compose

    wanted = ComposeRequest(masker="query-as-context", settings=(f"pretrain.masker.queries={source}",))
    with pytest.raises(ProblemsError, match="must be extractive, file:PATH or model:PATH_OR_ID"):
        compose(wanted, installed())
