"""The page on several vectors: its plugin keeps the contracts, its losses equal formulas by hand, its recipes run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from drkit.core import plugin_code
from drkit.core.draws import Draws
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.core.spec import Choice, NoSettings
from drkit.core.types import DecoderInput
from drkit.encoders.pooling import LexicalConfig
from drkit.losses import MlmLoss
from drkit.maskers import UniformConfig, UniformMasker
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from drkit.search import Retriever, TextEncoder
from drkit.testing import check_decoder, check_pooling
from drkit.testing.toys import pooled_toy_encoder, toy_context, toy_tokens
from tests.encoders.test_learned_pooling import beir as beir
from tests.plugins.packages import forget, path_with, write_package
from tests.runs.test_kept import Interrupts

PAGE = Path(__file__).parents[2] / "docs" / "examples" / "several-vectors.md"
IMPORTANCE, BOTH = Choice("importance", NoSettings()), Choice("lexical", LexicalConfig(dense="cls"))
TINY = (
    *("encoder.vocab_size=100", "encoder.layers=1", "encoder.hidden=16", "encoder.heads=2", "encoder.intermediate=32"),
    *("encoder.passage_length=16", "encoder.query_length=16", "encoder.init_embeddings=random"),
    *("pretrain.max_steps=4", "pretrain.save_steps=2", "pretrain.probe.every=2", "finetune.max_steps=2"),
    *("pretrain.decoders.encoding.context=self", "pretrain.decoders.regressive.context=self"),
)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The page's package is installed."""
    site = tmp_path_factory.mktemp("site")
    text = PAGE.read_text(encoding="utf-8")
    files = dict(re.findall(r"`views/([\w.-]+)`[^\n]*:\n```\w+\n(.*?)```", text, re.DOTALL))
    assert sorted(files) == ["__init__.py", "cotmae-v2.toml", "lexmae.toml", "parts.py"]
    assert sum(len(files[name].splitlines()) for name in ("__init__.py", "parts.py")) < 150
    write_package(site, "views", "", head="")
    (site / "views.py").unlink()
    (site / "views").mkdir()
    for name, content in files.items():
        (site / "views" / name).write_text(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        patch.setenv("PYTHONPATH", path_with(site))
        installed.cache_clear()
        yield installed()
    installed.cache_clear()
    forget(site)
    for name in [name for name in sys.modules if name.partition(".")[0] == "views"]:
        del sys.modules[name]
    for key in [key for key in plugin_code._read if key[0].startswith("views")]:
        del plugin_code._read[key]


def settings_of(parts, **settings):
    return parts.registry.get("decoder", "views").config(**settings)


def test_the_parts_keep_their_contracts(parts):
    check_pooling("importance")
    check_pooling("lexical", LexicalConfig(dense="cls"))
    check_decoder("views", settings_of(parts, vectors=("importance",), layers=2), pooling=IMPORTANCE)
    for causal in (False, True):
        check_decoder("views", settings_of(parts, causal=causal), pooling=BOTH)


def layer_by_hand(layer, states, visible):
    """One post-LN layer of BERT with its weights, one text at a time."""
    size = states.shape[1] // layer.heads

    def heads(linear):
        made = F.linear(states, linear.weight.double(), linear.bias.double())
        return made.view(len(states), layer.heads, size).transpose(0, 1)

    scores = heads(layer.query) @ heads(layer.key).transpose(1, 2) / size**0.5
    mixed = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ heads(layer.value)
    mixed = mixed.transpose(0, 1).flatten(1)

    def linear(module, given):
        return F.linear(given, module.weight.double(), module.bias.double())

    def norm(module, given):
        return F.layer_norm(given, module.normalized_shape, module.weight.double(), module.bias.double(), module.eps)

    states = norm(layer.attention_norm, states + linear(layer.attention_output, mixed))
    return norm(layer.output_norm, states + linear(layer.output, F.gelu(linear(layer.intermediate, states))))


def by_hand(encoder, decoder, inputs, vectors_of, *, causal):
    """The mean cross-entropy over all targets, in float64, text by text."""
    model, total, count = encoder.model.double(), 0.0, 0
    words = model.get_input_embeddings().weight.detach()
    for row, attention in enumerate(inputs.encoder_view.attention):
        length = int(attention.sum())
        out = model(input_ids=inputs.encoder_view.ids[row : row + 1, :length], output_hidden_states=True)
        vectors = vectors_of(out.hidden_states[-1][0], out.logits[0], words)
        clean, view = inputs.tokens.ids[row, :length], inputs.view.ids[row, :length]
        embedded = model.bert.embeddings(input_ids=(clean if causal else view)[None])[0, 1:]
        states = torch.cat([torch.stack(vectors), embedded])
        extra = len(vectors) - 1
        visible = torch.ones(len(states), len(states), dtype=torch.bool)
        if causal:
            visible = visible.tril()
            visible[:, : extra + 1] = True
        for layer in decoder.layers:
            states = layer_by_hand(layer, states, visible)
        logits = model.cls(states)
        for position in range(1, length):
            is_target = inputs.tokens.maskable[row, position] if causal else inputs.view.labels[row, position] != -100
            if is_target:
                at = extra + position - (1 if causal else 0)
                total -= logits[at].log_softmax(-1)[clean[position]]
                count += 1
    encoder.model.float()
    return float((total / count).detach())


def lexmae(_hidden, logits, words):
    return [logits.max(0).values.softmax(-1) @ words]


def cotmae_v2(hidden, logits, words):
    return [hidden[0], logits.max(0).values.relu().log1p() @ words]


@pytest.mark.parametrize(
    ("pooling", "formula", "settings"),
    [
        (IMPORTANCE, lexmae, {"vectors": ("importance",), "layers": 2}),
        (BOTH, cotmae_v2, {}),
        (BOTH, cotmae_v2, {"causal": True}),
    ],
    ids=["lexmae", "cotmae-v2", "cotmae-v2, next tokens"],
)
def test_the_loss_is_that_of_the_formula(parts, pooling, formula, settings):
    encoder, tokens = pooled_toy_encoder(pooling).eval(), toy_tokens()
    context = toy_context()
    object.__setattr__(context, "vector_sizes", encoder.vector_sizes)
    decoder = parts.registry.build("decoder", "views", settings_of(parts, **settings), context).eval()
    draws = Draws(1, 0, tokens.keys.numpy())
    read, view = (UniformMasker(UniformConfig(ratio=ratio), context)(tokens, draws) for ratio in (0.3, 0.5))
    inputs = DecoderInput(encoder.encode(read.ids, read.attention), tokens, view, read)
    found = MlmLoss()(**decoder(inputs, encoder.heads())).loss
    expected = by_hand(encoder, decoder, inputs, formula, causal=settings.get("causal", False))
    assert float(found) == pytest.approx(expected, abs=1e-5)


def go(parts, beir, name, folder, progress=None):
    recipe = composed(parts, beir, name)
    stages = plan(recipe, parts.registry).stages
    execute(stages, folder, recipe, registry=parts.registry, progress=progress or Silent())
    return folder


def composed(parts, beir, name):
    settings = [one for one in TINY if name == "cotmae-v2" or "decoders" not in one]
    return compose(ComposeRequest(paper=name, collection=f"beir:{beir}", settings=tuple(settings)), parts)


@pytest.fixture(scope="module")
def run(parts, beir, tmp_path_factory):
    return go(parts, beir, "cotmae-v2", tmp_path_factory.mktemp("cotmae") / "run")


def test_cotmae_v2_trains_exports_and_searches_both_vectors(run):
    retriever = Retriever.load(run)
    encoder = retriever.encoder
    assert [*encoder.sections] == ["dense", "lexical"]
    queries, passages = encoder.encode_queries(["ada wrote"]), encoder.encode_passages(["ada wrote", "alan drew"])
    for name, section in encoder.sections.items():
        part = slice(section.start, section.stop)
        (found,) = Retriever(encoder, retriever.index, part=name).score(["ada wrote"], [["c1", "c8"]])
        np.testing.assert_allclose(found, (queries[:, part] @ passages[:, part].T)[0], rtol=1e-4)
    systems = {file.stem for file in (run / "runs").glob("*.arrow")}
    assert {"retriever-1", "retriever-1-dense", "retriever-1-lexical"} <= systems


def test_lexmae_pre_trains_by_its_own_pooling_and_exports_a_sparse_encoder(parts, beir, tmp_path):
    folder = go(parts, beir, "lexmae", tmp_path / "run")
    assert TextEncoder.load(folder / "encoder").card.lexical.top_k == 128


@pytest.mark.parametrize("step", [1, 3])
def test_a_resumed_training_has_the_same_weights(parts, beir, run, tmp_path, step):
    with pytest.raises(KeyboardInterrupt):
        go(parts, beir, "cotmae-v2", tmp_path / "run", Interrupts(step))
    go(parts, beir, "cotmae-v2", tmp_path / "run")
    for stage in ("pretrained", "retriever-1"):
        one, two = (load_file(folder / stage / "model.safetensors") for folder in (run, tmp_path / "run"))
        assert all(torch.equal(weight, two[name]) for name, weight in one.items())
