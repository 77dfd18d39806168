"""Models and tokenizers are loaded through one door: no code from a folder is run, no pickle is read."""

import ast
import contextlib
import copy
import io
import json
import warnings
from pathlib import Path
from threading import Event

import pytest
import torch
import transformers
from transformers import BertConfig, BertForMaskedLM

import drkit
from drkit.core import hub
from drkit.core.loading import load_pretrained
from drkit.encoders import CrossEncoder
from drkit.encoders.masked_lm import load_masked_lm, read_config
from drkit.errors import DrkitError
from drkit.search.backends import load_backbone
from drkit.search.text_encoder import TextEncoder
from drkit.train.checkpoints import load_tokenizer
from drkit_cli import main
from tests.parts.toys import toy_tokenizer
from tests.refusals import says

ROOTS = [Path(drkit.__file__).parent, *(Path(drkit.__file__).parent.parent / name for name in ("cli", "plugins"))]
CODE = """
from pathlib import Path
from threading import Event
Path({path!r}).touch()
from transformers import BertConfig as Own, BertModel as OwnModel
"""


def calls_of(tree, name):
    return [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "attr", "") == name]


def test_nothing_else_calls_from_pretrained_of_transformers():
    found = []
    for path in (p for root in ROOTS if root.is_dir() for p in root.rglob("*.py")):
        for call in calls_of(ast.parse(path.read_text(encoding="utf-8")), "from_pretrained"):
            owner = ast.unparse(call.func.value)
            if owner != "MaskedLmEncoder":
                found.append(f"{path.name}: {owner}")
    assert sorted(found) == ["adapters.py: peft.PeftModel", "loading.py: getattr(transformers, loader)"]


@pytest.fixture
def folder(tmp_path):
    """A model folder that works, with a tokenizer."""
    model = BertForMaskedLM(
        BertConfig(vocab_size=700, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    )
    model.save_pretrained(tmp_path / "model")
    toy_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def malicious(folder, tmp_path):
    """The same folder, which now asks for code of its own."""
    touched = tmp_path / "touched"
    (folder / "own.py").write_text(CODE.format(path=str(touched)))
    for name, key in (("config.json", "model_type"), ("tokenizer_config.json", "tokenizer_class")):
        table = json.loads((folder / name).read_text())
        table |= {key: "Stranger" if key == "tokenizer_class" else "stranger"}
        classes = {f"Auto{kind}": "own.OwnModel" for kind in ("Model", "ModelForMaskedLM", "ModelForSeq2SeqLM")}
        table["auto_map"] = {"AutoConfig": "own.Own", "AutoTokenizer": ["own.Own", "own.Own"], **classes}
        (folder / name).write_text(json.dumps(table))
    yield folder
    assert not touched.exists()


@pytest.mark.parametrize(
    "load",
    [
        lambda folder: load_masked_lm(str(folder)),
        lambda folder: read_config(str(folder)),
        load_backbone,
        lambda folder: load_pretrained("AutoModelForSeq2SeqLM", str(folder), "load"),
        lambda folder: load_pretrained("AutoModelForSequenceClassification", str(folder), "load"),
    ],
)
def test_code_in_a_folder_is_refused(malicious, load):
    with pytest.raises(DrkitError):
        load(malicious)


def test_code_of_a_tokenizer_is_not_run(malicious):
    with contextlib.suppress(DrkitError):  # without its class, transformers may still read tokenizer.json
        load_tokenizer(str(malicious))


def test_the_command_line_neither_asks_nor_runs(malicious, run_drkit, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\ny\n"))
    texts = malicious / "texts.jsonl"
    texts.write_text('{"_id": "1", "text": "a b"}\n')
    command = ("encode", "--encoder", malicious, "--pooling", "cls", "--collection", f"jsonl:{texts}")
    code, out, err = run_drkit(*command, "-o", malicious / "vectors")
    assert code == 2
    assert "Do you wish to run" not in out + err
    assert "Traceback" not in err


def test_pickled_weights_are_refused(folder):
    weights = load_masked_lm(str(folder)).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(DrkitError, match=r"pickled .*\(pytorch_model\.bin\).*safetensors"):
        load_masked_lm(str(folder))
    with pytest.raises(DrkitError, match="pickled"):
        load_backbone(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize("text", ["[1, 2]", "null", '"text"', "[" * 100_000, '{"model_type": []}', "\x00", "{"])
def test_json_of_another_shape_is_one_error(folder, name, text):
    (folder / name).write_text(text)
    try:
        load_masked_lm(str(folder))
        load_tokenizer(str(folder))
    except DrkitError:
        return
    assert name == "tokenizer_config.json"  # transformers ignores some of these


# What the library `tokenizers` panics at, when the file is loaded or at the first text: not an `Exception`.
PANICS = {
    "normalizer at loading": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "normalizer at a text": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8AAAAA"}},
    "pre-tokenizer": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "template": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "Q", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {},
        }
    },
}


@pytest.mark.parametrize("change", PANICS.values(), ids=PANICS)
def test_a_panic_in_the_tokenizer_is_one_error(folder, change):
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    # The class of a tokenizer may replace parts of the file by its own.
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(DrkitError, match=r"tokenizer of '.*/model': "):
        load_tokenizer(str(folder))


def test_a_panic_at_a_later_text_ends_a_command_in_one_error(monkeypatch, capsys):
    from tokenizers import Tokenizer

    panicking = json.loads(toy_tokenizer().backend_tokenizer.to_str()) | PANICS["pre-tokenizer"]
    monkeypatch.setattr(main.cli, "main", lambda **_: Tokenizer.from_str(json.dumps(panicking)).encode("a"))
    assert main._status() == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert says(said, "chunk size must be non-zero", "tokenizer.json")  # the library's words, and the file to check


def rename(weights, _):
    return {f"x.{name}": weight for name, weight in weights.items()}


def without(part):
    return lambda weights, _: {name: weight for name, weight in weights.items() if part not in name}


def cut_short(weights, _):
    return {n: w[:-1].contiguous() if n.endswith("word_embeddings.weight") else w for n, w in weights.items()}


def with_more(weights, torch):
    return {**weights, "encoder.layer.7.output.dense.weight": torch.ones(2, 2)}


# What is done to the weights of a folder, and what is said of a model whose backbone is called `bert.`, or nothing.
WRONG_WEIGHTS = {
    "renamed": (rename, r"missing \((bert\.)?embeddings.*unexpected \(x\."),
    "embeddings dropped": (without("word_embeddings"), r"missing \((bert\.)?embeddings\.word_embeddings\.weight"),
    "a layer dropped": (without("layer.1."), r"16 missing \((bert\.)?encoder\.layer\.1\."),
    "of another shape": (
        cut_short,
        r"1 of another shape \(.*word_embeddings\.weight \(699, 8\), expected \(700, 8\)\)",
    ),
    "of another layer": (with_more, r"1 unexpected \((bert\.)?encoder\.layer\.7\.output\.dense\.weight\)"),
}
MODELS = {
    "encoder": (load_backbone, "BertModel"),
    "masked LM": (lambda folder: load_masked_lm(str(folder)), "BertForMaskedLM"),
    "cross-encoder": (lambda folder: CrossEncoder.load(str(folder)), "BertForSequenceClassification"),
    "new cross-encoder": (lambda folder: CrossEncoder.start_from(str(folder), max_length=32), "BertModel"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrong", WRONG_WEIGHTS)
@pytest.mark.parametrize("kind", MODELS)
def test_weights_that_do_not_fit_are_refused_by_name(kind, wrong, tmp_path):
    from safetensors.torch import load_file, save_file

    load, saved_as = MODELS[kind]
    config = BertConfig(
        vocab_size=700, hidden_size=8, num_hidden_layers=2, num_attention_heads=1, intermediate_size=8, num_labels=1
    )
    getattr(transformers, saved_as)(config).save_pretrained(tmp_path)
    toy_tokenizer().save_pretrained(tmp_path)
    load(tmp_path)
    change, said = WRONG_WEIGHTS[wrong]
    weights = load_file(tmp_path / "model.safetensors")
    save_file(change(weights, torch), tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(DrkitError, match=rf"Bert\w+: .*{said}"):
        load(tmp_path)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "saved_as", ["BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification"]
)
def test_what_people_have_is_loaded_as_an_encoder(saved_as, tmp_path):
    from safetensors.torch import load_file, save_file

    config = BertConfig(vocab_size=700, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    model = getattr(transformers, saved_as)(config).eval()
    model.save_pretrained(tmp_path)
    toy_tokenizer().save_pretrained(tmp_path)
    # As old versions saved them.
    file, prefix = tmp_path / "model.safetensors", "" if saved_as == "BertModel" else "bert."
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): weight for name, weight in load_file(file).items()}
    save_file({**old, f"{prefix}embeddings.position_ids": torch.arange(512)[None]}, file, {"format": "pt"})
    ids = torch.tensor([[5, 6, 7]])
    expected = model.base_model(ids).last_hidden_state
    torch.testing.assert_close(load_backbone(tmp_path)[0](ids).last_hidden_state, expected)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        again = load_masked_lm(str(tmp_path))
    torch.testing.assert_close(again.base_model(ids).last_hidden_state, expected)
    has_head = saved_as in ("BertForMaskedLM", "BertForPreTraining")
    assert ["no language-model head" in str(one.message) for one in said] == [True] * (not has_head)


def test_a_masked_lm_with_a_part_of_its_head_is_refused(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["cls.predictions.transform.dense.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(DrkitError, match=r"1 missing \(cls\.predictions\.transform\.dense\.weight\)"):
        load_masked_lm(str(folder))
    load_backbone(folder)  # which has no use for the head


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings"])
@pytest.mark.parametrize("load", [load_backbone, lambda folder: load_masked_lm(str(folder))])
def test_a_configuration_of_a_far_larger_model_is_refused_before_it_fills_the_memory(folder, key, load):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: 10**9}))
    with pytest.raises(DrkitError, match=r"config\.json .*\d+ tensors"):
        load(folder)


@pytest.mark.parametrize("names", [["tokenizer.json"], ["tokenizer.json", "tokenizer_config.json"]])
def test_a_folder_without_its_vocabulary_is_refused(folder, names):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": "BertTokenizer"}))
    for name in names:
        (folder / name).unlink()
    with pytest.raises(DrkitError, match=r"vocab\.txt or tokenizer\.json"):
        load_tokenizer(str(folder))


def test_an_empty_vocabulary_is_refused(folder):
    path = folder / "tokenizer.json"
    table = json.loads(path.read_text())
    table["model"]["vocab"] = {token["content"]: token["id"] for token in table["added_tokens"]}
    path.write_text(json.dumps(table))
    with pytest.raises(DrkitError, match=r"vocabulary of .*/model' .*empty"):
        load_tokenizer(str(folder))


def test_a_vocabulary_in_which_two_tokens_have_one_id_is_refused(folder):
    path = folder / "tokenizer.json"
    table = json.loads(path.read_text())
    table["model"]["vocab"]["[UNK]"] = table["model"]["vocab"]["[CLS]"]
    path.write_text(json.dumps(table))
    with pytest.raises(DrkitError, match=r"tokens of .*same id"):
        load_tokenizer(str(folder))


def add_words(tokenizer):
    tokenizer.add_tokens([f"new{number}" for number in range(800)])
    return tokenizer


def distant_end(tokenizer):
    """As a tokenizer of no named class, for BertTokenizer sets the ends of a text itself."""
    from tokenizers.processors import BertProcessing
    from transformers import PreTrainedTokenizerFast

    tokenizer.backend_tokenizer.post_processor = BertProcessing(("[SEP]", 99_999), ("[CLS]", 2))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, pad_token="[PAD]", mask_token="[MASK]")


@pytest.mark.parametrize("change", [add_words, distant_end])
def test_ids_beyond_the_embeddings_are_refused(folder, change):
    """When vectors and scores are asked for, and before anything is tokenised for a run."""
    tokenizer = change(copy.deepcopy(toy_tokenizer()))
    tokenizer.save_pretrained(folder)
    said = r"the tokenizer of .* has \d+ tokens, but the encoder has embeddings for only 700"
    with pytest.raises(DrkitError, match=said):
        TextEncoder.bare(folder, pooling="mean")
    with pytest.raises(DrkitError, match=said):
        CrossEncoder.start_from(str(folder), max_length=32)


@pytest.fixture
def online(monkeypatch, tmp_path):
    """The hub is to be asked, nothing is in its cache, and no answer is remembered."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "_PATIENCE", 0.2)
    hub._answers.cache_clear()
    yield monkeypatch
    hub._answers.cache_clear()


def test_a_hub_that_does_not_answer_is_said_at_once_and_soon_an_error(online, caplog):
    import huggingface_hub

    for ask in (lambda *_, **__: Event().wait(), lambda *_, **__: (_ for _ in ()).throw(OSError("no network"))):
        online.setattr(huggingface_hub.HfApi, "repo_info", ask)
        hub._answers.cache_clear()
        caplog.clear()
        with pytest.raises(DrkitError, match=r"'owner/mistyped' .*https?://\S+ "):
            load_pretrained("AutoConfig", "owner/mistyped", "read the configuration of")
        assert says(caplog.text, "model 'owner/mistyped'")


def test_offline_nobody_is_asked(online, caplog):
    import huggingface_hub
    from huggingface_hub import constants

    online.setattr(constants, "HF_HUB_OFFLINE", True)
    online.setattr(huggingface_hub.HfApi, "repo_info", lambda *_, **__: pytest.fail("asked"))
    assert not hub.reaches_hub("owner/mistyped")
    assert caplog.text == ""
