"""Models and tokenizers are loaded through one door: no code from a folder is run, no pickle is read."""

import ast
import contextlib
import json
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

import drkit
from drkit.core import loading
from drkit.core.loading import load_pretrained
from drkit.encoders.masked_lm import load_masked_lm, read_config
from drkit.errors import DrkitError
from drkit.search.text_encoder import load_backbone
from drkit.train.checkpoints import load_tokenizer
from drkit_cli import main
from tests.parts.toys import toy_tokenizer

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
    assert found == ["loading.py: getattr(transformers, loader)"]


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


def test_the_command_line_neither_asks_nor_runs(malicious):
    command = [sys.executable, "-m", "drkit_cli.main", "encode", "--encoder", str(malicious), "--pooling", "cls"]
    texts = malicious / "texts.jsonl"
    texts.write_text('{"_id": "1", "text": "a b"}\n')
    done = subprocess.run(
        [*command, "--collection", f"jsonl:{texts}", "-o", str(malicious / "vectors")],
        input="y\ny\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Do you wish to run" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_pickled_weights_are_refused(folder):
    weights = load_masked_lm(str(folder)).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(DrkitError, match=r"only pickled weights \(pytorch_model.bin\)"):
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
    with pytest.raises(DrkitError, match=r"cannot load the tokenizer of .*\(check the files in this folder\)"):
        load_tokenizer(str(folder))


def test_a_panic_at_a_later_text_ends_a_command_in_one_error(monkeypatch, capsys):
    from tokenizers import Tokenizer

    panicking = json.loads(toy_tokenizer().backend_tokenizer.to_str()) | PANICS["pre-tokenizer"]
    monkeypatch.setattr(main.cli, "main", lambda **_: Tokenizer.from_str(json.dumps(panicking)).encode("a"))
    assert main._status() == 2
    said = capsys.readouterr().err
    assert said.startswith("error: a library failed: chunk size must be non-zero; check the model's files")


@pytest.fixture
def online(monkeypatch, tmp_path):
    """The hub is to be asked, nothing is in its cache, and no answer is remembered."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(loading, "_PATIENCE", 0.2)
    loading._answers.cache_clear()
    yield monkeypatch
    loading._answers.cache_clear()


def test_a_hub_that_does_not_answer_is_said_at_once_and_soon_an_error(online, caplog):
    import huggingface_hub

    for ask in (lambda *_, **__: Event().wait(), lambda *_, **__: (_ for _ in ()).throw(OSError("no network"))):
        online.setattr(huggingface_hub.HfApi, "repo_info", ask)
        loading._answers.cache_clear()
        caplog.clear()
        with pytest.raises(DrkitError, match=r"no folder 'owner/mistyped' exists, and \S+ does not answer"):
            load_pretrained("AutoConfig", "owner/mistyped", "read the configuration of")
        assert "looking up the model 'owner/mistyped'" in caplog.text


def test_offline_nobody_is_asked(online, caplog):
    import huggingface_hub
    from huggingface_hub import constants

    online.setattr(constants, "HF_HUB_OFFLINE", True)
    online.setattr(huggingface_hub.HfApi, "repo_info", lambda *_, **__: pytest.fail("asked"))
    assert not loading.reaches_hub("owner/mistyped")
    assert caplog.text == ""
