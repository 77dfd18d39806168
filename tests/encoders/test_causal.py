"""Encoders that read from left to right: fine-tuned, indexed, searched and exported; what masks refuses them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf

from drkit.core.types import BuildContext
from drkit.data.store import TokenStore, tokenise
from drkit.data.vocabulary import special_ids_around, with_last_token
from drkit.encoders import CrossEncoder, MaskedLmEncoder, context_from
from drkit.errors import DrkitError
from drkit.maskers import UniformConfig, UniformMasker
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.search import Retriever, TextEncoder, open_index
from tests.encoders.test_runs import PARTS, checkpoint, collection, run  # noqa: F401
from tests.encoders.toys import CAUSAL, tiny, tokenizer_of
from tests.parts.toys import texts
from tests.refusals import says
from tests.search.made import reader_of

TEXTS = ["ada wrote a compiler", "grace", "", "a text that is so long that it is cut where its last token goes " * 3]
LAST = ("pretrain=none", "encoder.pooling=last")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("name", CAUSAL)
def test_a_run_fine_tunes_searches_and_exports_it(name, collection, tmp_path):  # noqa: F811
    from sentence_transformers import SentenceTransformer

    start, folder = checkpoint(name, tmp_path / "start"), tmp_path / "run"
    done = run(start, collection, folder, *LAST)
    assert "pretrained" not in done
    assert done["retriever-1"].metrics["steps"] == 2
    encoder = TextEncoder.load(folder / "encoder")
    assert (encoder.card.pooling, encoder.model.config.model_type) == ("last", name)
    moved, before = (hf.AutoModel.from_pretrained(path).layers[0] for path in (folder / "retriever-1", start))
    assert not torch.equal(moved.mlp.up_proj.weight, before.mlp.up_proj.weight)
    vectors = encoder.encode_passages(TEXTS)
    for side in ("left", "right"):
        theirs = SentenceTransformer(str(folder / "encoder"), device="cpu", local_files_only=True)
        theirs.tokenizer.padding_side = side
        np.testing.assert_allclose(theirs.encode(TEXTS), vectors, atol=1e-5)
    retriever = Retriever(encoder.evolve(query_length=24), open_index(folder / "index"))
    ((found, scores),) = retriever.search(["long ago ada wrote a compiler, they say"], 40)
    assert scores[found.index("0-0")] == pytest.approx(1, abs=1e-5), "the index has the vector of that text"


@pytest.mark.parametrize("name", CAUSAL)
def test_the_vector_is_the_state_of_the_token_after_the_text(name):
    model, _ = tiny(name)
    tokenizer = with_last_token(tokenizer_of(name))
    encoder = reader_of(model.eval(), tokenizer, pooling="last", similarity="dot", passage_length=24)
    for text, vector in zip(TEXTS, encoder.encode_passages(TEXTS), strict=True):
        ids = tokenizer(text, truncation=True, max_length=24, return_tensors="pt")["input_ids"]
        assert ids[0, -1] == tokenizer.eos_token_id
        with torch.no_grad():
            np.testing.assert_allclose(vector, model(input_ids=ids).last_hidden_state[0, -1].numpy(), atol=1e-5)


@pytest.mark.parametrize("name", CAUSAL)
def test_the_padding_may_be_on_either_side(name):
    model, _ = tiny(name)
    encoder = MaskedLmEncoder(model.eval(), pooling="last")
    lengths = torch.tensor([9, 3, 1, 14])
    right = torch.arange(16) < lengths[:, None]
    left = right.flip(1)
    ids = torch.randint(5, 400, right.shape, generator=torch.Generator().manual_seed(1))
    moved = torch.zeros_like(ids)
    moved[left] = ids[right]
    for read in (encoder.vectors, lambda *given: encoder(*given)["bottleneck"]):
        torch.testing.assert_close(read(moved, left), read(ids, right), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", CAUSAL)
def test_the_store_has_the_ids_of_its_tokenizer(name, tmp_path):
    raw = tokenizer_of(name)
    with pytest.raises(DrkitError, match=r"TokenizersBackend .*'\[CLS\] text \[SEP\]'.*padding token"):
        tokenise([("a", "text")], raw, tmp_path / "raw", max_length=16)
    tokenizer, some = with_last_token(raw), [*texts()[:6], ""]
    assert with_last_token(tokenizer) is tokenizer
    assert special_ids_around(tokenizer) == ([0] if name == "llama" else [], [tokenizer.eos_token_id])
    counts = tokenise([(str(n), text) for n, text in enumerate(some)], tokenizer, tmp_path, max_length=16)
    store = TokenStore.open(tmp_path)
    wanted = tokenizer(some, truncation=True, max_length=16)["input_ids"]
    assert [store.tokens(row).tolist() for row in range(len(some))] == wanted
    assert store.lengths.tolist() == [len(ids) for ids in wanted]
    assert counts["longest"] == max(map(len, tokenizer(some)["input_ids"]))
    batch = store.batch(range(len(some)))
    assert [ids[real].tolist() for ids, real in zip(batch.ids, batch.attention, strict=True)] == wanted
    assert (batch.words >= 0).sum(1).tolist() == [len(ids) - tokenizer.num_special_tokens_to_add() for ids in wanted]
    saved = tmp_path / "saved"
    tokenizer.save_pretrained(saved)
    assert hf.AutoTokenizer.from_pretrained(saved)(some)["input_ids"] == tokenizer(some)["input_ids"]


def test_a_tokenizer_keeps_its_own_padding_and_needs_an_end():
    tokenizer = tokenizer_of("qwen3")
    tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
    assert with_last_token(tokenizer).pad_token == "<|pad|>"
    tokenizer.eos_token = None
    with pytest.raises(DrkitError, match=r"TokenizersBackend .*eos_token"):
        with_last_token(tokenizer)


def test_a_checkpoint_with_its_language_model_head_is_read_without_it(tmp_path):
    model, tokenizer = tiny("llama")
    whole = hf.LlamaForCausalLM(model.config)
    whole.model.load_state_dict(model.state_dict())
    whole.save_pretrained(tmp_path)
    encoder = MaskedLmEncoder.from_pretrained(str(tmp_path), pooling="last").eval()
    ids = tokenizer(["ada wrote a compiler"], return_tensors="pt")["input_ids"]
    expected = whole.eval().model(input_ids=ids).last_hidden_state[:, -1]
    torch.testing.assert_close(encoder(ids, torch.ones_like(ids).bool())["bottleneck"], expected)
    assert not encoder.config.use_cache


def test_what_reads_in_both_directions_refuses_it_with_the_reason(collection, tmp_path):  # noqa: F811
    folder = checkpoint("llama", tmp_path / "start")

    def problems(*settings, **parts):
        wanted = ComposeRequest(collection=f"beir:{collection}", encoder=str(folder), settings=settings, **parts)
        with pytest.raises(DrkitError) as caught:
            check(compose(wanted, PARTS), PARTS.registry)
        return str(caught.value)

    assert says(problems(), "'llama'", "(--set pretrain=none)")
    assert says(problems("pretrain=none", "encoder.pooling=lexical"), "'llama'", "lexical pooling", "masked LM")
    assert "--set encoder.pooling=last @ encoder.pooling" in problems("pretrain=none", "encoder.pooling=cls")
    reranker = ("pretrain=none", "encoder.pooling=last", f"reranker.pretrained={folder}")
    assert says(problems(*reranker, pipeline="three-stage"), "'llama'", "re-rankers", "masked LM")
    from_encoder = problems("pretrain=none", "encoder.pooling=last", pipeline="three-stage")
    assert says(from_encoder, "re-ranker reads in both directions", "@ reranker.pretrained")
    with pytest.raises(DrkitError, match=r"'llama' .*--set pretrain=none.*re-rankers .*masked LM"):
        CrossEncoder.start_from(str(folder))
    with pytest.raises(DrkitError, match=r"'llama' .*--set pretrain=none.*re-rankers .*masked LM"):
        MaskedLmEncoder.from_pretrained(str(folder)).heads()


def test_a_tokenizer_without_a_mask_token_is_refused_where_something_masks():
    model, tokenizer = tiny("bert")
    tokenizer.mask_token = None
    context = context_from(model, tokenizer)
    assert context.backbone.hidden == 16
    with pytest.raises(DrkitError, match=r"mask token.*--set pretrain=none"):
        UniformMasker(UniformConfig(), BuildContext(backbone=context.backbone, tokenizer=tokenizer))
