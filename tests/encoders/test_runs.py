"""Whole runs that start from a folder of another architecture: pre-trained, fine-tuned, searched, exported."""

from __future__ import annotations

import json
import re
import unicodedata

import numpy as np
import pytest
import transformers as hf

from drkit.commands import open_encoder
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.data.store import TokenStore
from drkit.encoders import MaskedLmEncoder
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import recipe_from_table, recipe_table
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from drkit.runs.trial import try_parts
from drkit.search import TextEncoder
from tests.encoders.toys import tiny, unigram
from tests.search.made import export_made

PARTS = installed()
NAMES = ["ada", "grace", "alan", "edsger", "barbara", "donald", "john", "frances"]
DEEDS = ["wrote a compiler", "proved a theorem", "broke a cipher", "drew the first machine", "named the bug"]
SETTINGS = (
    "encoder.passage_length=24",
    "encoder.query_length=12",
    "pretrain.max_steps=2",
    "pretrain.batch_size=4",
    "finetune.max_steps=2",
    "finetune.batch_size=4",
    "evaluation.depth=10",
)


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """A collection in BEIR's layout: who did what."""
    folder = tmp_path_factory.mktemp("beir")
    (folder / "qrels").mkdir()
    passages = [(f"{n}-{d}", f"{NAMES[n]} {DEEDS[d]}") for n in range(len(NAMES)) for d in range(len(DEEDS))]
    rows = [json.dumps({"_id": key, "title": "", "text": f"long ago {text}, they say"}) for key, text in passages]
    (folder / "corpus.jsonl").write_text("\n".join(rows))
    queries = [json.dumps({"_id": f"q{key}", "text": f"who {text}"}) for key, text in passages]
    (folder / "queries.jsonl").write_text("\n".join(queries))
    for start, split in enumerate(("train", "dev", "test")):
        lines = [f"q{key}\t{key}\t1" for key, _ in passages[start::3]]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]))
    return folder


def checkpoint(name, folder, **changes):
    model, tokenizer = tiny(name, **changes)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(folder, collection, run, *settings, **parts):
    wanted = ComposeRequest(
        collection=f"beir:{collection}", encoder=str(folder), settings=(*SETTINGS, *settings), **parts
    )
    recipe = compose(wanted, PARTS)
    return execute(plan(recipe, PARTS.registry).stages, run, recipe, registry=PARTS.registry, progress=Silent())


def test_the_plan_says_which_sizes_an_existing_encoder_ignores(collection, tmp_path):
    folder = checkpoint("roberta", tmp_path / "roberta")

    def notes(*settings):
        wanted = ComposeRequest(collection=f"beir:{collection}", encoder=str(folder), settings=(*SETTINGS, *settings))
        found = plan(compose(wanted, PARTS), PARTS.registry).notes
        return [note for note in found if note.startswith("only an encoder made from scratch")]

    assert notes() == []
    (note,) = notes("encoder.vocab_size=300", "encoder.dropout=0.1")
    assert "encoder.vocab_size, encoder.dropout" in note
    assert str(folder) in note


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("roberta", {"masker": "pmi", "decoder": "enhanced"}),
        ("modernbert", {"paper": "dupmae"}),
        ("deberta", {"paper": "retromae"}),
        ("deberta-v2", {"paper": "retromae"}),
        ("xlm-roberta", {"masker": "uniform", "decoder": "mlm"}),
    ],
)
def test_a_run_from_a_folder(name, parts, collection, tmp_path):
    from sentence_transformers import SentenceTransformer

    start, folder = checkpoint(name, tmp_path / "start"), tmp_path / "run"
    done = run(start, collection, folder, **parts)
    assert done["pretrained"].metrics["steps"] == 2
    assert {row["system"] for row in done["evaluation"].metrics["rows"]} >= {"bm25"}
    encoder = TextEncoder.load(folder / "encoder")
    assert encoder.model.config.model_type == name
    texts = ["ada wrote a compiler", "grace", ""]
    vectors = encoder.encode_passages(texts)
    theirs = SentenceTransformer(str(folder / "encoder"), device="cpu", local_files_only=True)
    np.testing.assert_allclose(theirs.encode(texts), vectors, atol=1e-5)
    moved = MaskedLmEncoder.from_pretrained(str(folder / "pretrained"))
    before = MaskedLmEncoder.from_pretrained(str(start))
    assert not np.allclose(moved.heads().weight.detach(), before.heads().weight.detach())


def test_what_cannot_start_a_run_is_told_before_anything_is_made(collection, tmp_path):
    short = checkpoint("roberta", tmp_path / "short", max_position_embeddings=22)
    with pytest.raises(DrkitError, match=r"24 tokens .*/short', .* 20: .*query_length .*passage_length"):
        run(short, collection, tmp_path / "a")
    model, _ = tiny("roberta")
    _, foreign = tiny("bert")
    foreign.add_tokens([f"word{n}" for n in range(20)])
    model.save_pretrained(tmp_path / "mixed")
    foreign.save_pretrained(tmp_path / "mixed")
    with pytest.raises(DrkitError, match=r"520 tokens, .* 500;"):
        run(tmp_path / "mixed", collection, tmp_path / "b")
    config = hf.GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=500)
    hf.GPT2Model(config).save_pretrained(tmp_path / "causal")
    foreign.save_pretrained(tmp_path / "causal")
    with pytest.raises(DrkitError, match=r"'gpt2' .*supported: bert"):
        run(tmp_path / "causal", collection, tmp_path / "c")
    nested = tmp_path / "nested"
    checkpoint("bert", nested / "0_Transformer")
    with pytest.raises(DrkitError, match=r"no config.json; give .*0_Transformer"):
        run(nested, collection, tmp_path / "d")


def test_texts_are_cut_where_the_position_table_ends(tmp_path):

    model, tokenizer = tiny("roberta")
    how = {"pooling": "mean", "similarity": "cosine", "query_length": 32, "passage_length": 32}
    folder = export_made(model, tokenizer, tmp_path / "e", **how)
    (folder / "drkit.json").unlink()
    (folder / "sentence_bert_config.json").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["model_max_length"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    encoder = TextEncoder.load(folder)
    assert encoder.card.passage_length == 78
    assert encoder.encode_passages(["word " * 200]).shape == (1, 16)


# Who did what, in Chinese, Arabic and Thai: the parts of a passage, and the question about it.
WHO = {
    "zh": ("玛丽", "李明", "王芳", "陈强"),
    "ar": ("مريم", "أحمد", "ليلى", "يوسف"),
    "th": ("มาลี", "สมชาย", "วิภา", "อนันต์"),
}
WHAT = {
    "zh": ("编写了第一个编译器", "证明了一个定理", "破译了一个密码", "设计了第一台机器"),
    "ar": ("كتب أول مترجم للبرامج", "أثبت نظرية صعبة", "فك شفرة العدو", "رسم أول آلة حاسبة"),
    "th": ("เขียนคอมไพเลอร์ตัวแรก", "พิสูจน์ทฤษฎีบทหนึ่ง", "ถอดรหัสลับของศัตรู", "ออกแบบเครื่องจักรเครื่องแรก"),
}
SENTENCE = {"zh": "很久以前{}{}。", "ar": "قديما {} {}.", "th": "นานมาแล้ว{}{}"}
QUESTION = {"zh": "谁{}。", "ar": "من {}؟", "th": "ใคร{}"}


@pytest.fixture(scope="module")
def languages(tmp_path_factory):
    """A collection of three languages in BEIR's layout; its texts."""
    folder = tmp_path_factory.mktemp("languages")
    (folder / "qrels").mkdir()
    texts, queries = {}, {}
    for language, names in WHO.items():
        for row, name in enumerate(names):
            for column, deed in enumerate(WHAT[language]):
                key = f"{language}-{row}-{column}"
                texts[key] = SENTENCE[language].format(name, deed)
                queries[f"q-{key}"] = QUESTION[language].format(deed)
    for file, rows in (("corpus", texts), ("queries", queries)):
        lines = [json.dumps({"_id": key, "text": text}) for key, text in rows.items()]
        (folder / f"{file}.jsonl").write_text("\n".join(lines))
    for start, split in enumerate(("train", "dev", "test")):
        lines = [f"q-{key}\t{key}\t1" for key in list(texts)[start::3]]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]))
    return folder, list(texts.values())


@pytest.mark.slow
def test_xlm_roberta_goes_through_every_stage_in_scripts_with_and_without_spaces(languages, tmp_path):
    from sentence_transformers import SentenceTransformer

    collection, texts = languages
    tokenizer = unigram(texts)
    model, _ = tiny("xlm-roberta")
    model.save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    small = ("encoder.passage_length=48", "reranker.max_steps=2", "reranker.batch_size=4")
    parts = {"masker": "pmi", "decoder": "enhanced", "pipeline": "three-stage"}
    done = run(tmp_path / "start", collection, tmp_path / "run", *small, **parts)
    assert done["tokens"].metrics["unknown_rate"] == 0
    assert {"pretrained", "reranker", "retriever-1", "index", "evaluation", "hybrid"} <= set(done)
    store = TokenStore.open(tmp_path / "run" / "tokens")
    words = np.split(store.flat_words, store.offsets[1:-1])
    for row, text in enumerate(texts):
        is_spaced = any(name in text for name in WHO["ar"])
        # Without spaces every token is a word, but for marks alone and for the space before a text.
        tokens = tokenizer.convert_ids_to_tokens(store.flat_ids[store.offsets[row] : store.offsets[row + 1]].tolist())
        letters = sum(
            token != "\u2581" and not all(unicodedata.category(c)[0] == "M" for c in token) for token in tokens
        )
        expected = {len(text.split())} if is_spaced else {letters}
        assert len(set(words[row].tolist())) in expected, text
    encoder = TextEncoder.load(tmp_path / "run" / "encoder")
    theirs = SentenceTransformer(str(tmp_path / "run" / "encoder"), device="cpu", local_files_only=True)
    np.testing.assert_allclose(theirs.encode(texts), encoder.encode_passages(texts), atol=1e-5)


RELATIVE = "{relative_attention=true, pos_att_type=['p2c', 'c2p'], position_biased_input=false}"
SMALL = ("encoder.vocab_size=200", "encoder.hidden=16", "encoder.heads=2", "encoder.intermediate=32")


def from_scratch(collection, *settings, pipeline="two-stage"):
    request = ComposeRequest(
        masker="uniform",
        decoder="mlm",
        collection=f"beir:{collection}",
        pipeline=pipeline,
        settings=(*SETTINGS, *SMALL, *settings),
    )
    recipe = compose(request, PARTS)
    assert recipe_from_table(recipe_table(recipe), PARTS.registry) == recipe
    check(recipe, PARTS.registry)
    return recipe


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("deberta-v2", (f"encoder.architecture_settings={RELATIVE}", "encoder.layers=2")),
        ("modernbert", ("encoder.init_embeddings=random",)),
        ("roberta", ("encoder.lm_head=transform",)),
        ("electra", ("encoder.architecture_settings.embedding_size=16",)),
    ],
)
def test_an_encoder_of_another_architecture_is_made_from_scratch(name, settings, collection, tmp_path):
    from sentence_transformers import SentenceTransformer

    recipe = from_scratch(collection, f"encoder.architecture={name}", *settings)
    try_parts(recipe, PARTS.registry)
    execute(plan(recipe, PARTS.registry).stages, tmp_path, recipe, registry=PARTS.registry, progress=Silent())
    config = json.loads((tmp_path / "retriever-2" / "config.json").read_text())
    assert config["model_type"] == name
    assert config.get("relative_attention", False) == (name == "deberta-v2")
    texts = ["ada wrote a compiler", "alan proved a theorem"]
    vectors = open_encoder(tmp_path, device="cpu").encode_passages(texts)
    theirs = SentenceTransformer(str(tmp_path / "encoder"), device="cpu", local_files_only=True)
    np.testing.assert_allclose(theirs.encode(texts), vectors, atol=1e-5)
    assert not np.allclose(*vectors)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("encoder.architecture=bart",), "'bart'"),
        (("encoder.architecture=berd",), "'bert'"),
        (("encoder.architecture=qwen3",), "left to right"),
        (("encoder.architecture=roberta",), "'roberta'"),
        (
            ("encoder.architecture=electra",),
            "--set encoder.architecture_settings.embedding_size=16 @ encoder.architecture",
        ),
        (("encoder.architecture=bert", "encoder.layers=0"), "word vectors"),
        (("encoder.architecture_settings={a=1}",), "needs encoder.architecture"),
        (
            ("encoder.architecture=deberta-v2", "encoder.architecture_settings={hidden_size=1}"),
            "'hidden_size'",
        ),
        (
            ("encoder.architecture=modernbert", "pretrain.decoders.main.decoder.init=encoder-tail"),
            "--set pretrain.decoders.main.decoder.init=random",
        ),
    ],
)
def test_what_cannot_be_made_or_used_from_scratch_is_refused(settings, message, collection):
    with pytest.raises(ProblemsError, match=re.escape(message)):
        from_scratch(collection, *settings)


def test_layers_unlike_berts_are_not_repeated_for_a_reranker(collection):
    settings = ("encoder.architecture=modernbert", "reranker.layers=3")
    with pytest.raises(ProblemsError, match=r"--set reranker\.layers=0 @ reranker\.layers"):
        from_scratch(collection, *settings, pipeline="three-stage")


def test_settings_that_transformers_refuses_end_the_trial(collection):
    recipe = from_scratch(
        collection,
        "encoder.architecture=deberta-v2",
        "encoder.architecture_settings={relative_attention=true, pos_att_type=1}",
    )
    with pytest.raises(DrkitError, match=r"'pos_att_type': .*@ encoder$"):
        try_parts(recipe, PARTS.registry)


def test_bert_from_scratch_has_the_fingerprint_it_had(collection):
    stages = {stage.name: stage for stage in plan(from_scratch(collection), PARTS.registry).stages}
    settings = stages["initial"].identity(dict.fromkeys(stages["initial"].inputs, ""))["settings"]
    assert not [name for name in settings if "architecture" in name]
    changed = from_scratch(collection, "encoder.architecture=deberta-v2")
    stages = {stage.name: stage for stage in plan(changed, PARTS.registry).stages}
    assert stages["initial"].identity(dict.fromkeys(stages["initial"].inputs, ""))["settings"] == {
        **settings,
        "encoder.architecture": "deberta-v2",
    }
