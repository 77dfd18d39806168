"""Decoder-only encoders that read in both directions: pre-trained, fine-tuned, searched and exported."""

from __future__ import annotations

import copy
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

from drkit.core import loading
from drkit.core.progress import Silent
from drkit.core.types import BuildContext
from drkit.data.special_tokens import choose_mask_token, mask_token_in
from drkit.data.vocabulary import with_last_token, with_mask_token
from drkit.encoders import MaskedLmEncoder, context_from
from drkit.encoders.architectures import attention_keys, reads_both_ways
from drkit.errors import DrkitError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from drkit.search import TextEncoder
from drkit.testing import check_architecture
from drkit.train.checkpoints import load_tokenizer
from drkit_cli.main import _status
from tests.encoders.test_runs import PARTS, SETTINGS, collection, run  # noqa: F401
from tests.encoders.toys import SIZES, left_to_right
from tests.refusals import says
from tests.warm import measure_nothing

BOTH = ("encoder.attention=bidirectional", "encoder.pooling=mean")
TEXTS = ["ada wrote a compiler", "grace", "", "a text that is so long that it is cut where its last token goes " * 3]
WINDOW, LENGTH = 2, 9
NEARBY = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
MODELS = {
    "llama": (hf.LlamaForCausalLM, {}),
    "qwen3": (hf.Qwen3ForCausalLM, {"use_sliding_window": True, **NEARBY}),
    "gemma3": (hf.Gemma3ForCausalLM, {"query_pre_attn_scalar": 8, **NEARBY}),
}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def made(name, folder, *, spare=("<|spare|>",), **more):
    """Write a tiny causal LM with random weights, and a tokenizer like Qwen's with special tokens without a role."""
    tokenizer = copy.deepcopy(left_to_right(""))
    tokenizer.add_special_tokens({"additional_special_tokens": list(spare)})
    model_class, own = MODELS[name]
    keys = {"num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": True}
    config = model_class.config_class(vocab_size=len(tokenizer), **{**SIZES, **keys, **own, **more})
    state = torch.get_rng_state()
    torch.manual_seed(1)
    model = model_class(config)
    torch.set_rng_state(state)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def some_ids(seed=0):
    return torch.randint(5, 400, (1, LENGTH), generator=torch.Generator().manual_seed(seed))


def reach(encoder, at):
    """For each layer, the positions whose states another token at `at` changes."""
    ids = some_ids()
    other = ids.clone()
    other[0, at] = 5 + (ids[0, at] + 1) % 390
    every, attention = tuple(range(len(encoder.layers) + 1)), torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        pair = [encoder.eval().encode(one, attention, every).layers for one in (ids, other)]
    return [
        [n for n in range(LENGTH) if (one[0, n] - two[0, n]).abs().max() > 1e-6] for one, two in zip(*pair, strict=True)
    ]


@pytest.mark.parametrize("name", MODELS)
def test_a_later_token_changes_the_states_before_it_in_every_layer(name, tmp_path):
    folder = str(made(name, tmp_path))
    causal = MaskedLmEncoder.from_pretrained(folder, pooling="mean")
    both = MaskedLmEncoder.from_pretrained(folder, pooling="mean", attention="bidirectional")
    last, at = list(range(LENGTH)), LENGTH - 1
    assert reach(causal, at) == [[at]] * 3
    window = [n for n in last if at - n <= WINDOW]
    first = last if name == "llama" else window
    assert reach(both, at) == [[at], first, last]
    middle = [n for n in last if abs(n - 4) <= WINDOW]
    assert reach(both, 4)[1] == (last if name == "llama" else middle), "the window reaches both sides"


@pytest.mark.parametrize("name", MODELS)
def test_padding_and_the_other_texts_change_nothing(name, tmp_path):
    folder = str(made(name, tmp_path))
    encoder = MaskedLmEncoder.from_pretrained(folder, pooling="mean", attention="bidirectional").eval()
    ids = some_ids()
    wide, other = torch.cat([ids, torch.zeros(1, 5, dtype=torch.long)], 1), some_ids(1)
    batch = torch.cat([wide, torch.cat([other, other[:, :5]], 1)])
    attention = torch.ones_like(batch, dtype=torch.bool)
    attention[0, LENGTH:] = False
    with torch.no_grad():
        alone = encoder(ids, torch.ones_like(ids).bool())
        padded = encoder(batch, attention)
    torch.testing.assert_close(padded["hidden"][:1, :LENGTH], alone["hidden"], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(padded["bottleneck"][:1], alone["bottleneck"], atol=1e-5, rtol=1e-4)


def rotated(x, position, base=10_000.0):
    """The rotary embedding of one head's vector f64[8] at a position."""
    half = len(x) // 2
    angle = position / base ** (torch.arange(half, dtype=torch.float64) / half)
    first, second = x[:half], x[half:]
    return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()])


def by_hand(model, ids):
    """Llama's states f64[L,D], one position at a time, each of which sees all positions."""

    def norm(x, weight):
        return x / (x.square().mean(-1, keepdim=True) + model.config.rms_norm_eps).sqrt() * weight

    base = model.model
    states = base.embed_tokens.weight[ids]
    heads, width = model.config.num_attention_heads, model.config.head_dim
    for layer in base.layers:
        inputs, attention = norm(states, layer.input_layernorm.weight), layer.self_attn
        queries = (inputs @ attention.q_proj.weight.T).view(len(ids), heads, width)
        keys, values = (inputs @ proj.weight.T for proj in (attention.k_proj, attention.v_proj))
        mixed = torch.zeros(len(ids), heads, width, dtype=torch.float64)
        for position in range(len(ids)):
            for head in range(heads):
                query = rotated(queries[position, head], position)
                scores = torch.stack([query @ rotated(keys[n], n) for n in range(len(ids))]) / width**0.5
                mixed[position, head] = scores.softmax(0) @ values
        states = states + mixed.flatten(1) @ attention.o_proj.weight.T
        inputs, mlp = norm(states, layer.post_attention_layernorm.weight), layer.mlp
        gate = torch.nn.functional.silu(inputs @ mlp.gate_proj.weight.T)
        states = states + (gate * (inputs @ mlp.up_proj.weight.T)) @ mlp.down_proj.weight.T
    return norm(states, base.norm.weight)


def test_its_states_are_those_computed_by_hand(tmp_path):
    folder = str(made("llama", tmp_path))
    encoder = MaskedLmEncoder.from_pretrained(folder, pooling="mean", attention="bidirectional").eval().double()
    ids = some_ids()
    with torch.no_grad():
        found = encoder(ids, torch.ones_like(ids).bool())["hidden"][0]
        torch.testing.assert_close(found, by_hand(encoder.model, ids[0]), atol=1e-6, rtol=1e-6)


def test_what_a_decoder_borrows(tmp_path):
    folder = str(made("llama", tmp_path))
    encoder = MaskedLmEncoder.from_pretrained(folder, pooling="mean", attention="bidirectional").eval()
    heads, ids = encoder.heads(), some_ids()
    positions, words = heads.positions(LENGTH), encoder.model.get_input_embeddings().weight[ids]
    unit = words / words.square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(heads.embed(ids), unit + positions, atol=1e-4, rtol=1e-4)
    assert positions.square().mean(-1).sqrt().numpy() == pytest.approx(1, abs=1e-4)
    torch.testing.assert_close(heads.embed_vectors(words), heads.embed(ids))
    states = encoder(ids, torch.ones_like(ids).bool())["hidden"]
    torch.testing.assert_close(heads.logits(states), encoder.model(input_ids=ids).logits)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3-text", "mistral"])
def test_the_contract_of_architectures_holds(name):
    check_architecture(name, is_causal=False, **({} if name == "llama" else {"sliding_window": 4}))


def test_a_model_that_is_bidirectional_by_its_configuration_is_never_read_causally(tmp_path):
    folder = made("gemma3", tmp_path, use_bidirectional_attention=True, sliding_window=6)
    config = json.loads((folder / "config.json").read_text())
    assert reads_both_ways(config)
    assert attention_keys(config, "bidirectional") == {}, "its window would be another one"
    encoder = MaskedLmEncoder.from_pretrained(str(folder), pooling="mean")
    assert reach(encoder, LENGTH - 1)[2] == list(range(LENGTH))
    again = MaskedLmEncoder.from_pretrained(str(folder), pooling="mean", attention="bidirectional")
    ids = some_ids()
    torch.testing.assert_close(*(one.eval()(ids, torch.ones_like(ids).bool())["hidden"] for one in (encoder, again)))
    with pytest.raises(DrkitError, match=r"'gemma3_text' .*both directions.*@ encoder.attention"):
        MaskedLmEncoder.from_pretrained(str(folder), pooling="mean", attention="causal")


def test_an_old_transformers_is_refused(tmp_path, monkeypatch):
    folder = made("llama", tmp_path, is_causal=False)
    monkeypatch.setattr(loading.transformers, "__version__", "5.1.3")
    with pytest.raises(DrkitError, match=r"transformers 5\.1\.3 ignores.*transformers>=5\.2"):
        MaskedLmEncoder.from_pretrained(str(folder), pooling="mean")


# Whole runs

LLARA = "pretrain.decoders.lm-head.context=next-span"


@pytest.mark.parametrize(
    ("name", "parts", "settings"),
    [
        ("llama", {"masker": "pmi", "decoder": "enhanced"}, ()),
        ("qwen3", {"paper": "dupmae"}, ()),
        ("gemma3", {"masker": "generator", "decoder": "mlm"}, ()),
        ("llama", {"encoder_masker": "diffusion", "decoder": "none"}, ("losses={diffusion={use='masked-diffusion'}}",)),
        ("llama", {"decoder": ("lm-head", "lm-head")}, ("losses={mntp={use='mntp'}}", LLARA)),
    ],
    ids=["enhanced", "dupmae", "generator", "diffusion", "llara"],
)
def test_a_run_pre_trains_fine_tunes_searches_and_exports_it(name, parts, settings, collection, tmp_path):  # noqa: F811
    from sentence_transformers import SentenceTransformer

    start, folder = made(name, tmp_path / "start"), tmp_path / "run"
    small = [f"pretrain.decoders.main.masker.generator_{one}" for one in ("hidden=8", "heads=2", "intermediate=12")]
    own = [one if one.startswith("pretrain") else f"pretrain.encoder.{one}" for one in settings]
    own += small if parts.get("masker") == "generator" else []
    done = run(start, collection, folder, *BOTH, *own, **parts)
    assert done["pretrained"].metrics["steps"] == 2
    assert done["retriever-1"].metrics["steps"] == 2
    before, after = (hf.AutoModel.from_pretrained(path) for path in (start, folder / "pretrained"))
    assert not torch.equal(before.layers[0].mlp.up_proj.weight, after.layers[0].mlp.up_proj.weight)
    exported = json.loads((folder / "encoder" / "config.json").read_text())
    assert exported["is_causal"] is False
    assert "transformers before 5.2" in (folder / "encoder" / "README.md").read_text()
    encoder = TextEncoder.load(folder / "encoder")
    vectors = encoder.encode_passages(TEXTS)
    theirs = SentenceTransformer(str(folder / "encoder"), device="cpu", local_files_only=True)
    np.testing.assert_allclose(theirs.encode(TEXTS), vectors, atol=1e-5)
    assert reach(MaskedLmEncoder.from_pretrained(str(folder / "retriever-1"), pooling="mean"), LENGTH - 1)[2] == [
        *range(LENGTH)
    ]
    assert load_tokenizer(str(folder / "encoder")).mask_token == "<|spare|>"


def test_a_run_goes_on_from_an_exported_one(collection, tmp_path):  # noqa: F811
    start, first = made("llama", tmp_path / "start"), tmp_path / "first"
    run(start, collection, first, *BOTH, "finetune=none", masker="uniform", decoder="mlm")
    shutil.rmtree(start)
    done = run(first / "encoder", collection, tmp_path / "second", masker="uniform", decoder="mlm")
    assert done["pretrained"].metrics["steps"] == 2, "it reads in both directions by its configuration"


def test_an_encoder_is_made_from_scratch(collection, tmp_path):  # noqa: F811
    wanted = ComposeRequest(
        collection=f"beir:{collection}",
        masker="uniform",
        decoder="enhanced",
        settings=(
            *SETTINGS,
            "encoder.architecture=llama",
            "encoder.attention=bidirectional",
            "encoder.vocab_size=300",
            "encoder.hidden=16",
            "encoder.intermediate=24",
        ),
    )
    recipe = compose(wanted, PARTS)
    check(recipe, PARTS.registry)
    stages = plan(recipe, PARTS.registry).stages
    done = execute(stages, tmp_path / "run", recipe, registry=PARTS.registry, progress=Silent())
    assert done["pretrained"].metrics["steps"] == 2
    assert TextEncoder.load(tmp_path / "run" / "encoder").model.config.is_causal is False


# The token for what is hidden


def test_a_spare_special_token_is_the_mask():
    roles = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    assert choose_mask_token(["<s>", "</s>", "<a>", "<unused0>"], roles) == "<unused0>"
    assert choose_mask_token(["<s>", "</s>", "<a>"], {**roles, "mask_token": "[M]"}) == "[M]"
    assert choose_mask_token(["<s>", "</s>", "<a>"], roles, "</s>") == "</s>"
    with pytest.raises(DrkitError, match=r"--set encoder.mask_token=new"):
        choose_mask_token(["<s>", "</s>"], roles)
    with pytest.raises(DrkitError, match=r"'<b>' is not a special token .*<s>, </s>, <a>.*'new'"):
        choose_mask_token(["<s>", "</s>", "<a>"], roles, "<b>")


def test_the_mask_token_changes_no_other_token(tmp_path):
    folder = made("llama", tmp_path)
    before = with_last_token(load_tokenizer(str(folder)))
    after = with_mask_token(before)
    assert after.mask_token == mask_token_in(folder) == "<|spare|>"
    assert before.mask_token is None
    assert after(TEXTS)["input_ids"] == before(TEXTS)["input_ids"]
    assert len(after) == len(before)
    assert len(with_mask_token(before, "new")) == len(before) + 1
    model = MaskedLmEncoder.from_pretrained(str(folder), pooling="mean", attention="bidirectional")
    info = context_from(model, after).backbone
    assert info.mask_id == after.convert_tokens_to_ids("<|spare|>")
    assert isinstance(BuildContext(backbone=info).backbone.require_mask_id(), int)


def test_a_new_token_is_a_row_that_is_trained(collection, tmp_path):  # noqa: F811
    start, folder = made("llama", tmp_path / "start", spare=()), tmp_path / "run"
    words = json.loads((start / "config.json").read_text())["vocab_size"]
    run(start, collection, folder, *BOTH, "encoder.mask_token=new", "finetune=none", decoder="enhanced")
    first, trained = (
        MaskedLmEncoder.from_pretrained(str(folder / name), pooling="mean").model.get_input_embeddings().weight
        for name in ("initial", "pretrained")
    )
    assert len(first) == len(trained) == words + 1
    torch.testing.assert_close(first[-1], first[:-1].mean(0))
    assert not torch.equal(first[-1], trained[-1])
    assert load_tokenizer(str(folder / "encoder")).mask_token_id == words
    assert TextEncoder.load(folder / "encoder").encode_passages(["ada"]).shape == (1, 16)


def test_what_cannot_work_is_refused_in_the_plan(collection, tmp_path):  # noqa: F811
    folder = made("llama", tmp_path / "start", spare=())

    def problems(*settings, **parts):
        wanted = ComposeRequest(collection=f"beir:{collection}", encoder=str(folder), settings=settings, **parts)
        with pytest.raises(DrkitError) as caught:
            check(compose(wanted, PARTS), PARTS.registry)
        return str(caught.value)

    assert says(problems(), "'llama'", "(--set pretrain=none)", "--set encoder.attention=bidirectional")
    assert says(problems(*BOTH), "neither a mask token", "encoder.mask_token=new", "@ encoder.mask_token")
    assert says(problems(*BOTH, "encoder.mask_token=nonsense"), "'nonsense'", "<|end|>", "@ encoder.mask_token")
    assert says(problems(*BOTH, "pretrain=none", "encoder.pooling=lexical"), "lexical pooling", "masked LM")
    tail = problems(*BOTH, "encoder.mask_token=new", "pretrain.decoders.main.decoder.init=encoder-tail", decoder="mlm")
    assert says(tail, "not built like BERT's", "--set pretrain.decoders.main.decoder.init=random")
    assert says(problems("encoder.attention=sideways"), "attention", "bidirectional")
    reranked = problems(*BOTH, "encoder.mask_token=new", pipeline="three-stage")
    assert says(reranked, "re-ranker", "decoder-only", "@ reranker.pretrained")


def test_the_plan_says_which_token_it_is(collection, tmp_path):  # noqa: F811
    folder = made("llama", tmp_path / "start")
    wanted = ComposeRequest(collection=f"beir:{collection}", encoder=str(folder), settings=(*SETTINGS, *BOTH))
    notes = plan(compose(wanted, PARTS), PARTS.registry).notes
    assert any("hidden tokens are read as <|spare|>" in note for note in notes)


# The page, interruptions


def page_commands():
    """The commands of the section on models that read in both directions."""
    page = (Path(__file__).parents[2] / "docs/guide/encoders.md").read_text(encoding="utf-8")
    section = page.partition("### Models that read in both directions")[2].partition("\n## ")[0]
    blocks = re.findall(r"```\n(.*?)```", section, flags=re.DOTALL)
    lines = re.sub(r" \\\n\s*", " ", "\n".join(blocks)).splitlines()
    return [shlex.split(line) for line in lines if line]


def test_the_page_has_commands():
    assert len(page_commands()) == 3


@pytest.mark.parametrize("words", page_commands(), ids=lambda words: " ".join(words[6:10]))
def test_a_command_of_the_page_runs(words, collection, tmp_path, monkeypatch, capsys):  # noqa: F811
    start = made("qwen3", tmp_path / "start")
    passages = [json.loads(line) for line in (collection / "corpus.jsonl").read_text().splitlines()]
    (tmp_path / "documents").mkdir()
    for number in range(12):
        text = ". ".join(one["text"].capitalize() for one in passages[number : number + 4])
        (tmp_path / "documents" / f"{number}.txt").write_text(f"{text}.\n")
    places = {
        "Qwen/Qwen3-0.6B-Base": str(start),
        "beir:FOLDER": f"beir:{collection}",
        "documents:FOLDER": f"documents:{tmp_path / 'documents'}",
    }
    tiny = [f"--set={setting}" for setting in SETTINGS if "documents:FOLDER" not in words or "finetune" not in setting]
    argv = [*(places.get(word, word) for word in words), *tiny, "--set=pretrain.probe.every=0"]
    monkeypatch.setattr(sys, "argv", [*argv, f"--run-dir={tmp_path / 'run'}"])
    monkeypatch.chdir(tmp_path)
    measure_nothing(monkeypatch.setattr)
    code = _status()
    assert code == 0, capsys.readouterr().err
    assert TextEncoder.load(tmp_path / "run" / "encoder").model.config.is_causal is False


class Interrupts(Silent):
    def advance(self, done, total, unit, **_):
        if unit == "steps" and done == 2:
            raise KeyboardInterrupt


def test_an_interrupted_run_ends_with_the_same_bits(collection, tmp_path):  # noqa: F811
    start = made("gemma3", tmp_path / "start", spare=(), attention_dropout=0.1)
    wanted = ComposeRequest(
        collection=f"beir:{collection}",
        encoder=str(start),
        encoder_masker="diffusion",
        decoder="lm-head",
        settings=(
            *SETTINGS,
            *BOTH,
            "pretrain.max_steps=4",
            "pretrain.save_steps=1",
            "finetune=none",
            "encoder.mask_token=new",
            "pretrain.encoder.losses={diffusion={use='masked-diffusion'},mntp={use='mntp'}}",
        ),
    )
    recipe = compose(wanted, PARTS)

    def weights(name, progress):
        stages = plan(recipe, PARTS.registry).stages
        execute(stages, tmp_path / name, recipe, registry=PARTS.registry, progress=progress)
        return load_file(tmp_path / name / "pretrained" / "model.safetensors")

    whole = weights("whole", Silent())
    with pytest.raises(KeyboardInterrupt):
        weights("interrupted", Interrupts())
    assert (tmp_path / "interrupted" / ".unfinished" / "pretrained").is_dir()
    resumed = weights("interrupted", Silent())
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())
