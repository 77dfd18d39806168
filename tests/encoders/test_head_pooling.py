"""A pooling of a plugin that applies the LM head: exported with it, read and saved by sentence-transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from drkit.core.registry import installed
from drkit.encoders import MaskedLmEncoder
from drkit.encoders.heads import tie_lm_head
from drkit.encoders.learned_pooling import LearnedPooling
from drkit.errors import DrkitError
from drkit.search import DualEncoder, TextEncoder
from drkit.testing import check_pooling
from tests.encoders.test_learned_pooling import beir as beir
from tests.encoders.test_learned_pooling import composed, executed
from tests.plugins.packages import forget, write_package
from tests.search.made import export_made, export_two, reader_of
from tests.search.toys import TEXTS, masked_lm, tokenizer

PLUGIN = '''
from torch import nn

from drkit.plugin import ComponentSpec, Kind, NoSettings, hookimpl


class Expected(nn.Module):
    """The mean embedding of the words that the LM head expects, and a learned scale."""

    def __init__(self, config, context):
        super().__init__()
        self.scale = nn.Linear(context.backbone.hidden, context.backbone.hidden)

    def forward(self, hidden, attention, heads):
        words = heads.logits(hidden).masked_fill(~attention.bool()[..., None], -1e4).amax(1).softmax(-1)
        return self.scale(words @ heads.weight)


@hookimpl
def drkit_components():
    spec = {"kind": Kind.POOLING, "target": "expected:Expected", "config": NoSettings, "receives": ("heads",)}
    return [ComponentSpec(name="expected", summary="The words that the LM head expects", **spec)]
'''
HOW = {"pooling": "expected", "similarity": "dot", "query_length": 48, "passage_length": 48}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    site = tmp_path_factory.mktemp("site")
    write_package(site, "expected", PLUGIN, head="")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        installed.cache_clear()
        yield installed()
    installed.cache_clear()
    forget(site)


def pooling(parts, model, seed=1):
    return LearnedPooling("expected", {}, MaskedLmEncoder(model).info(tokenizer()), seed=seed, registry=parts.registry)


def by_hand(model, learned, texts=TEXTS):
    rows = []
    for ids in tokenizer()(texts, truncation=True, max_length=48)["input_ids"]:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0]
            rows.append(learned.part.scale(logits.amax(0).softmax(-1) @ model.get_input_embeddings().weight))
    return torch.stack(rows).numpy()


def test_it_keeps_the_contract(parts):
    check_pooling("expected")


@pytest.mark.parametrize("tied", [False, True])
def test_an_exported_encoder_has_its_head_in_drkit_and_in_sentence_transformers(parts, tmp_path, tied):
    from sentence_transformers import SentenceTransformer

    model = masked_lm().eval()
    if tied:
        tie_lm_head(model)
    learned = pooling(parts, model)
    expected = by_hand(model, learned)
    folder = export_made(model, tokenizer(), tmp_path / "e", learned_pooling=learned, **HOW)
    loaded = TextEncoder.load(folder)
    np.testing.assert_allclose(loaded.encode_passages(TEXTS), expected, atol=1e-5)
    assert loaded.identity() == reader_of(model, tokenizer(), learned_pooling=learned, **HOW).identity()
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True, trust_remote_code=True)
    np.testing.assert_allclose(theirs.encode(TEXTS), expected, atol=1e-5)
    theirs.save(str(tmp_path / "again"))
    again = SentenceTransformer(str(tmp_path / "again"), device="cpu", local_files_only=True, trust_remote_code=True)
    np.testing.assert_allclose(again.encode(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(TextEncoder.load(tmp_path / "again").encode_passages(TEXTS), expected, atol=1e-5)
    with pytest.raises(DrkitError, match="LM head, which only torch does"):
        TextEncoder.load(folder, backend="openvino")


def test_two_encoders_each_have_their_own_head(parts, tmp_path):
    from sentence_transformers import SentenceTransformer

    sides = [(masked_lm(seed).eval(), tokenizer()) for seed in (1, 2)]
    learned = pooling(parts, sides[0][0])
    expected = [by_hand(model, learned) for model, _ in sides]
    export_two(*sides, tmp_path / "e", learned_pooling=learned, **HOW)
    dual = DualEncoder.load(tmp_path / "e")
    theirs = SentenceTransformer(str(tmp_path / "e"), device="cpu", local_files_only=True, trust_remote_code=True)
    np.testing.assert_allclose(dual.encode_queries(TEXTS), expected[0], atol=1e-5)
    np.testing.assert_allclose(dual.encode_passages(TEXTS), expected[1], atol=1e-5)
    np.testing.assert_allclose(theirs.encode_query(TEXTS), expected[0], atol=1e-5)
    np.testing.assert_allclose(theirs.encode_document(TEXTS), expected[1], atol=1e-5)


def test_a_run_with_it_reaches_its_end(parts, beir, tmp_path):
    recipe = composed(parts, beir, "encoder.pooling=expected", "encoder.pooling_settings={}")
    run = executed(parts, recipe, tmp_path / "run")
    assert TextEncoder.load(run / "encoder").encode_queries(["ada wrote"]).shape == (1, 16)
