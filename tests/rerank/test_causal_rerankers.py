"""Re-rankers whose scores sentence-transformers computes: causal language models, prompts, other modules."""

import json
import shutil
import sys
from importlib.metadata import version

import numpy as np
import pytest
import torch
import transformers as hf
from torch.nn import Identity

from drkit.core.registry import installed
from drkit.core.spec import Choice
from drkit.data.column_sources import ModelConfig
from drkit.data.corpus import open_collection
from drkit.encoders import CrossEncoder
from drkit.encoders.cross_encoder import join_pairs
from drkit.encoders.cross_encoder_folder import unsupported_layout
from drkit.encoders.modular_cross_encoder import ModularCrossEncoder
from drkit.errors import DrkitError, MissingExtraError, ProblemsError
from drkit.miners.filters import CrossEncoderFilter
from drkit.miners.specs import CrossEncoderFilterConfig
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.schema import Training
from drkit.runs.making.reranker import load_teacher
from drkit.runs.stage import Stage
from drkit.runs.stages.columns import COLUMN, ColumnSettings
from drkit.search import Reranker, read_run, write_run
from drkit.train.columns import read_column
from tests.encoders.toys import SHARED_KEYS, SIZES, tiny, tokenizer_of
from tests.python.test_pages import blocks
from tests.rerank.test_teacher_scores import taught
from tests.rerank.toys import TOPICS, checkpoint, mined, parts_of, stored
from tests.runs.conftest import drkit
from tests.runs.test_columns import composed

PAIRS = [
    ("how to open a file", "open a file with open and read what is in it"),
    ("a query", ""),
    ("", "a passage without a query"),
    ("", ""),
    ("überall größer", "naïve 北京 text"),
    ("short", "a long passage that goes on " * 40),
    ("a query that goes on and on " * 30, "short"),
]
ROLE = "{%% for m in messages %%}{%% if m.role == '%s' %%}%s {{ m.content }}\n{%% endif %%}{%% endfor %%}"
TEMPLATE = (
    "".join(ROLE % pair for pair in (("system", "task:"), ("query", "query:"), ("document", "text:"))) + "yes or no?"
)


def bare(folder, dtype=torch.float32, words=()):
    """Save a tiny causal language model with a template for pairs, without modules."""
    tokenizer = tokenizer_of("qwen3")
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.add_tokens(list(words))
    sizes = {**SIZES, **SHARED_KEYS, "max_position_embeddings": 512, "initializer_range": 0.3}
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = hf.Qwen3ForCausalLM(hf.Qwen3Config(vocab_size=len(tokenizer), pad_token_id=0, **sizes))
    model.to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def causal(folder, *, template=TEMPLATE, length=80, false=7, dtype=torch.float32, **settings):
    """Save a causal re-ranker as sentence-transformers does."""
    from sentence_transformers import CrossEncoder as Theirs
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    start = bare(folder.with_name(f"{folder.name}-bare"), dtype)
    options = {"processor_kwargs": {"chat_template": template}} if template else {}
    transformer = Transformer(str(start), transformer_task="text-generation", **options)
    transformer.max_seq_length = length
    score = LogitScore(true_token_id=5, false_token_id=false)
    Theirs(modules=[transformer, score], device="cpu", **settings).save_pretrained(str(folder))
    return folder


def classifier(folder, **settings):
    """Save a sequence classifier in the layout with modules."""
    from sentence_transformers import CrossEncoder as Theirs

    start = folder.with_name(f"{folder.name}-bare")
    model, tokenizer = tiny("bert")
    join_pairs(tokenizer, types=False)
    model.config.num_labels, model.config.initializer_range = 1, 0.3
    with torch.random.fork_rng():
        torch.manual_seed(3)
        hf.BertForSequenceClassification(model.config).save_pretrained(start)
    tokenizer.save_pretrained(start)
    Theirs(str(start), device="cpu", max_length=40, **settings).save_pretrained(str(folder))
    return folder


def pooled(folder):
    """Save a cross-encoder of three modules: a transformer, its pooled vector, and a layer on top."""
    from sentence_transformers import CrossEncoder as Theirs
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    start = folder.with_name(f"{folder.name}-bare")
    model, tokenizer = tiny("bert", initializer_range=0.3)
    join_pairs(tokenizer, types=True)
    model.save_pretrained(start)
    tokenizer.save_pretrained(start)
    transformer = Transformer(str(start))
    transformer.max_seq_length = 40
    with torch.random.fork_rng():
        torch.manual_seed(3)
        head = Dense(16, 1, activation_function=Identity(), module_output_name="scores")
    Theirs(modules=[transformer, Pooling(16), head], device="cpu").save_pretrained(str(folder))
    return folder


def theirs(folder, pairs=PAIRS):
    from sentence_transformers import CrossEncoder as Theirs

    return Theirs(str(folder), device="cpu").predict(pairs, activation_fn=Identity(), show_progress_bar=False)


def declaring(folder, **settings):
    """Save a sequence classifier whose Transformer module has these settings."""
    path = classifier(folder) / "sentence_bert_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    return folder


PROMPTED = {"prompts": {"web": "Given a web query, find passages"}, "default_prompt_name": "web"}
LAYOUTS = {
    "template": causal,
    "instruction": lambda folder: causal(folder, **PROMPTED),
    "unused prompt": lambda folder: causal(folder, prompts=PROMPTED["prompts"]),
    "no template": lambda folder: causal(folder, template=None),
    "one token": lambda folder: causal(folder, false=None),
    "bfloat16": lambda folder: causal(folder, dtype=torch.bfloat16),
    "classifier with a prompt": lambda folder: classifier(folder, **PROMPTED),
    "classifier with its own length": lambda folder: declaring(folder, processing_kwargs={"text": {"max_length": 30}}),
    "pooling and dense": pooled,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scores_are_those_of_sentence_transformers(tmp_path, layout):
    folder = LAYOUTS[layout](tmp_path / "model")
    assert unsupported_layout(folder)
    pairs = [pair for pair in PAIRS if layout != "no template" or any(pair)]
    scores = Reranker.load(folder).score(pairs)
    tolerance = 0.05 if layout == "bfloat16" else 1e-5
    np.testing.assert_allclose(scores, theirs(folder, pairs), atol=tolerance)
    assert scores.dtype == np.float32
    assert len(set(scores.tolist())) >= len(pairs) - 1, "the scores tell the pairs apart"
    one_by_one = Reranker.load(folder, token_budget=1).score(pairs)
    np.testing.assert_allclose(one_by_one, scores, atol=tolerance)


def test_a_pair_without_any_token_is_refused(tmp_path):
    folder = causal(tmp_path / "model", template=None)
    with pytest.raises(DrkitError, match=r"both empty.*reads nothing"):
        Reranker.load(folder).score([("a", "b"), ("", "")])


def test_a_folder_that_pins_its_length_cannot_be_cut(tmp_path):
    folder = causal(tmp_path / "model", template=None)
    path = folder / "sentence_bert_config.json"
    pinned = {"processing_kwargs": {"text": {"max_length": 70}}}
    path.write_text(json.dumps({**json.loads(path.read_text()), **pinned}))
    np.testing.assert_allclose(Reranker.load(folder).score(PAIRS[:2]), theirs(folder, PAIRS[:2]), atol=1e-5)
    with pytest.raises(DrkitError, match=r"pairs of 70 tokens in spite of max_length 40.*processing_kwargs"):
        load_teacher(folder, 40)


def test_predict_puts_a_sigmoid_on_the_same_scores(tmp_path):
    from sentence_transformers import CrossEncoder as Theirs

    folder = causal(tmp_path / "model")
    shown = Theirs(str(folder), device="cpu").predict(PAIRS, show_progress_bar=False)
    np.testing.assert_allclose(1 / (1 + np.exp(-Reranker.load(folder).score(PAIRS))), shown, atol=1e-5)


def test_a_classifier_with_modules_is_still_drkits_own(tmp_path):
    folder = classifier(tmp_path / "model")
    assert unsupported_layout(folder) == ""
    loaded = Reranker.load(folder)
    assert isinstance(loaded.model, CrossEncoder)
    np.testing.assert_allclose(loaded.score(PAIRS[:-1]), theirs(folder, PAIRS[:-1]), atol=1e-5)


def test_as_a_teacher_it_is_cut_at_the_length_of_the_recipe(tmp_path):
    folder = causal(tmp_path / "model", length=80)
    assert load_teacher(folder, None).model.max_length == load_teacher(folder, 200).model.max_length == 80
    shorter = load_teacher(folder, 60)
    assert shorter.model.max_length == 60
    again = causal(tmp_path / "again", length=60)
    np.testing.assert_allclose(shorter.score(PAIRS), theirs(again), atol=1e-5)
    assert shorter.identity() == Reranker.load(again).identity()
    with pytest.raises(DrkitError, match=r"max_length 8 leaves no room for a passage"):
        load_teacher(folder, 8)


def test_it_filters_candidates(tmp_path):
    folder = causal(tmp_path / "model")
    part = CrossEncoderFilter(CrossEncoderFilterConfig(model=str(folder)))
    np.testing.assert_allclose(part._reranker.score(PAIRS), theirs(folder), atol=1e-5)


CHANGES = {
    "prompt": ("config_sentence_transformers.json", PROMPTED),
    "true token": ("1_LogitScore/config.json", {"true_token_id": 6}),
    "length": ("tokenizer_config.json", {"model_max_length": 70}),
    "model": ("config.json", {"rms_norm_eps": 0.01}),
}


@pytest.mark.parametrize("change", [*CHANGES, "template", "weights"])
def test_the_identity_covers_every_file_that_scores_depend_on(tmp_path, change):
    from safetensors.torch import load_file, save_file

    folder = causal(tmp_path / "model")
    before = Reranker.load(folder)
    if change == "template":
        path = folder / "chat_template.jinja"
        path.write_text(path.read_text().replace("query:", "asked:"))
    elif change == "weights":
        path = folder / "model.safetensors"
        weights = {name: weight * 1.1 for name, weight in load_file(path).items()}
        save_file(weights, path, metadata={"format": "pt"})
    else:
        name, values = CHANGES[change]
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    after = Reranker.load(folder)
    assert not np.allclose(after.score(PAIRS), before.score(PAIRS), atol=1e-4)
    assert after.identity() != before.identity()


def test_a_bare_causal_model_says_what_is_missing(tmp_path):
    folder = bare(tmp_path / "model")
    expected = r"/model' is a causal language model \(Qwen3ForCausalLM\) without modules\.json.*LogitScore"
    for load in (Reranker.load, CrossEncoder.load):
        with pytest.raises(DrkitError, match=expected):
            load(str(folder))


def test_it_is_not_trained(tmp_path):
    folder = causal(tmp_path / "model")
    with pytest.raises(DrkitError, match=r"cannot train .*/model'.*Transformer, LogitScore"):
        CrossEncoder.start_from(str(folder), max_length=32)
    with pytest.raises(DrkitError, match=r"cannot train .*default_prompt_name = 'web'"):
        CrossEncoder.start_from(str(classifier(tmp_path / "other", **PROMPTED)), max_length=32)
    with pytest.raises(DrkitError, match=r"LogitScore.*Reranker\.load"):
        CrossEncoder.load(str(folder))


def foreign(folder):
    path = folder / "modules.json"
    path.write_text(path.read_text().replace("sentence_transformers.cross_encoder", "somebody_else.cross_encoder"))


def incomplete(folder):
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    weights = load_file(path)
    save_file({n: w for n, w in weights.items() if "layers.1." not in n}, path, metadata={"format": "pt"})


def pickled(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def adapted(folder):
    (folder / "adapter_config.json").write_text("{}")


def without_score(folder):
    path = folder / "modules.json"
    path.write_text(json.dumps(json.loads(path.read_text())[:1]))


def short(folder):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": 6}))


REFUSED = {
    "foreign": (foreign, r"modules\.json names the module 'somebody_else\."),
    "incomplete": (incomplete, r"missing \(model\.layers\.1\."),
    "pickled": (pickled, "pickled weights"),
    "adapted": (adapted, "adapter"),
    "without score": (without_score, r"one score per pair, got none from its modules \(Transformer\)"),
    "short": (short, "leaves no room for a passage"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return causal(tmp_path_factory.mktemp("saved") / "model")


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(saved, tmp_path, case):
    damage, expected = REFUSED[case]
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    damage(folder)
    with pytest.raises(DrkitError, match=expected):
        Reranker.load(folder)


def test_an_old_sentence_transformers_is_refused(saved, monkeypatch):
    import sentence_transformers

    monkeypatch.setattr(sentence_transformers, "__version__", "5.4.1")
    with pytest.raises(DrkitError, match=r"needs sentence-transformers 6.*5\.4\.1 is installed"):
        ModularCrossEncoder.load(saved)


def test_the_page_makes_a_re_ranker_of_a_plain_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bare(tmp_path / "Qwen3-Reranker-0.6B", words=("yes", "no"))
    (block,) = [block for block in blocks("guide/reranking.md") if "LogitScore" in block]
    names = {}
    exec(block, names)
    loaded = Reranker.load("qwen3-reranker")
    np.testing.assert_allclose(loaded.score(PAIRS), theirs("qwen3-reranker"), atol=1e-5)
    read = names["reader"].tokenizer.decode(loaded.model.pairs.ids("who?", "me"))
    expected = f"<|im_start|>user\n<Instruct>: {names['web']}\n<Query>: who?\n<Document>: me<|im_end|>\n"
    assert expected in read
    assert read.startswith("<|im_start|>system\nJudge")
    assert read.endswith("</think>\n\n")


def test_the_stage_scores_with_it(saved, tmp_path):
    inputs = parts_of(stored(tmp_path / "collection"), "train")
    inputs["negatives"] = mined(tmp_path / "collection", tmp_path / "negatives")
    metrics = taught(tmp_path, inputs, source=Choice("model", ModelConfig(str(saved))))
    assert metrics["max_length"] == 80
    collection = open_collection(tmp_path / "collection")
    query = next(iter(collection.queries("train")))
    passages = collection.corpus.positions(["d path ü", "d list ü"])
    pairs = [(query.text, passage.content) for passage in collection.corpus.at(passages)]
    found = read_column(tmp_path / "teacher").lookup(0, passages)
    np.testing.assert_allclose(found, theirs(saved, pairs), atol=1e-5)


def test_drkit_rerank_reads_it(saved, tmp_path):
    beir = tmp_path / "beir"
    (beir / "qrels").mkdir(parents=True)
    texts = {f"d{i}": f"the {topic} is returned" for i, topic in enumerate(TOPICS)}
    rows = [json.dumps({"_id": name, "title": "", "text": text}) + "\n" for name, text in texts.items()]
    (beir / "corpus.jsonl").write_text("".join(rows))
    (beir / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "return a file"}) + "\n")
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td0\t1\n")
    write_run(tmp_path / "first.trec", [("q", [(name, -float(i)) for i, name in enumerate(texts)])], "first")
    out, source = tmp_path / "out.trec", f"--collection=beir:{beir}"
    drkit("rerank", tmp_path / "first.trec", "--model", saved, source, "--depth=5", "-o", out)
    ((_, hits),) = read_run(out)
    scores = theirs(saved, [("return a file", text) for text in list(texts.values())[:5]])
    assert [name for name, _ in hits[:5]] == [f"d{i}" for i in np.argsort(-scores)]
    np.testing.assert_allclose([score for _, score in hits[:5]], np.sort(scores)[::-1], atol=1e-4)
    bare(tmp_path / "plain")
    refused = drkit("rerank", tmp_path / "first.trec", "--model", tmp_path / "plain", source, "-o", out, check=False)
    assert refused.returncode == 2
    assert "without modules.json" in " ".join(refused.stderr.split())
    assert "Traceback" not in refused.stderr


def test_the_plan_refuses_what_a_stage_would(saved, tmp_path):
    plain = bare(tmp_path / "plain")
    loss = "finetune.loss=margin-mse"
    for source in ("finetune.columns.teacher", "finetune.rounds.0.teacher"):
        check(composed(f"{source}={saved}", loss), installed().registry)
        with pytest.raises(ProblemsError, match=r"/plain' is a causal language model .*LogitScore.* @ finetune\."):
            check(composed(f"{source}={plain}", loss), installed().registry)
    request = ComposeRequest(pipeline="three-stage", settings=("pretrain=none", f"reranker.pretrained={saved}"))
    with pytest.raises(ProblemsError, match=r"cannot train .*Transformer, LogitScore.* @ reranker\.pretrained"):
        check(compose(request, installed()), installed().registry)


def test_the_stage_depends_on_the_library_that_computes_its_scores(saved, tmp_path, monkeypatch):
    own = CrossEncoder.start_from(str(checkpoint(tmp_path / "lm")), max_length=32).save(tmp_path / "own")
    settings = {"column": "teacher", "default": None, "max_length": None, "queries": 0, "draws": 1, "negatives": 1}

    def packages(source):
        made = ColumnSettings(**settings, source=Choice("model", ModelConfig(str(source))), training=Training(), seed=1)
        return Stage("teacher-one", COLUMN, made, "", {}, {}).packages

    assert packages(saved) == {"sentence-transformers": version("sentence-transformers")}
    assert packages(own) == {}
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match="sentence-transformers"):
        Reranker.load(saved)
