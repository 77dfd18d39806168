"""Model folders that try to run code, to read or write elsewhere, or to reach a network: none of them gets to.

Each folder of `FOLDERS` is an encoder that works, with one attack added. Every way to load a model reads it, and an
audit hook watches what Python does meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import sys
from pathlib import Path

import pytest

from drkit.core.loading import load_pretrained
from drkit.encoders import MaskedLmEncoder
from drkit.encoders.card import declared_settings
from drkit.errors import DrkitError
from drkit.search import TextEncoder
from drkit.search.backends import load_backbone
from drkit.train.checkpoints import load_tokenizer
from tests.search.made import export_made
from tests.search.toys import masked_lm, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:.*language-model head")
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect", "socket.getaddrinfo")
LOADERS = {
    "masked-lm": lambda folder: MaskedLmEncoder.from_pretrained(str(folder), pooling="mean"),
    "backbone": load_backbone,
    "tokenizer": lambda folder: load_tokenizer(str(folder)).encode("number file"),
    "declared": declared_settings,
    "text-encoder": lambda folder: TextEncoder.load(folder).encode_passages(["number", "file"]),
    "cross-encoder": lambda folder: load_pretrained("AutoModelForSequenceClassification", str(folder), "load"),
    "seq2seq": lambda folder: load_pretrained("AutoModelForSeq2SeqLM", str(folder), "load"),
}
_watched: dict[str, object] = {}


def _audit(event, arguments):
    """Record what a model folder must never cause; active only while `_watched` names a folder."""
    if not _watched:
        return
    folder, seen = _watched["folder"], _watched["seen"]
    if event in FORBIDDEN or (event == "pickle.find_class" and "evil" in repr(arguments)):
        seen.append((event, repr(arguments)[:200]))
    if event == "import" and arguments[0].split(".")[0].startswith("evil"):
        seen.append((event, arguments[0]))
    if event == "open" and isinstance(arguments[0], str) and isinstance(arguments[2], int):
        path, writes = os.path.realpath(arguments[0]), arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes and not path.startswith(("/dev/", "/proc/")) and "__pycache__" not in path:
            seen.append(("write", path))
        elif "secret" in path and not path.startswith(str(folder)):
            seen.append(("read", path))


sys.addaudithook(_audit)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An encoder folder that works."""
    folder = tmp_path_factory.mktemp("whole") / "encoder"
    export_made(
        masked_lm(), tokenizer(), folder, pooling="mean", similarity="cosine", query_length=32, passage_length=32
    )
    return folder


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def change(folder, name, **values):
    path = folder / name
    table = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**table, **values}))


def modules(folder, **last):
    """Add a module to those of sentence-transformers."""
    path = folder / "modules.json"
    rows = json.loads(path.read_text())
    path.write_text(json.dumps([*rows, {"idx": len(rows), "name": str(len(rows)), "path": "9_Evil", **last}]))


def code(folder):
    (folder / "evil.py").write_text(
        f"import os\nos.system('touch {folder}/../touched')\n"
        "from transformers import BertConfig as Config, BertModel as Model, BertTokenizerFast as Words\n"
        "class Module: pass\n"
    )
    classes = ("Model", "ModelForMaskedLM", "ModelForSeq2SeqLM", "ModelForSequenceClassification")
    return {"AutoConfig": "evil.Config", "AutoTokenizer": [None, "evil.Words"]} | {
        f"Auto{kind}": "evil.Model" for kind in classes
    }


def pickled(folder, name):
    (folder / name).write_bytes(pickle.dumps(Touch(folder.parent / "touched")))


def without_weights(folder):
    for path in folder.rglob("*.safetensors"):
        path.unlink()


def elsewhere(folder):
    """A file next to the folder, which nothing in the folder may name."""
    secret = folder.parent / "secret"
    secret.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.is_file():
            (secret / path.name).write_bytes(path.read_bytes())
    return "../secret"


def only_pickle(folder, name):
    without_weights(folder)
    pickled(folder, name)


def sharded(folder, shard):
    """Weights whose index names a file elsewhere."""
    outside = elsewhere(folder)
    without_weights(folder)
    index = {"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": f"{outside}/{shard}"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def damaged_header(folder, size):
    without_weights(folder)
    (folder / "model.safetensors").write_bytes(size.to_bytes(8, "little") + b"{}")


FOLDERS = {
    "auto-map": lambda f: change(f, "config.json", auto_map=code(f)),
    "auto-map-new-type": lambda f: change(f, "config.json", auto_map=code(f), model_type="evil"),
    "auto-map-on-the-hub": lambda f: change(f, "config.json", auto_map={"AutoModel": "evil/evil--evil.Model"}),
    "tokenizer-auto-map": lambda f: change(f, "tokenizer_config.json", auto_map=code(f), tokenizer_class="Words"),
    "tokenizer-class-path": lambda f: change(f, "tokenizer_config.json", tokenizer_class="os.system"),
    "tokenizer-files-elsewhere": lambda f: change(
        f, "tokenizer_config.json", vocab_file=elsewhere(f), tokenizer_file=f"{elsewhere(f)}/tokenizer.json"
    ),
    "custom-pipelines": lambda f: change(
        f, "config.json", custom_pipelines={"evil": {"impl": "evil.Module", "pt": ["AutoModel"]}}, **{"_": code(f)}
    ),
    "attention-kernel-of-the-hub": lambda f: change(f, "config.json", _attn_implementation="evil/kernel"),
    "attention-kernel-in-public": lambda f: change(f, "config.json", attn_implementation="evil/kernel"),
    "experts-kernel": lambda f: change(f, "config.json", _experts_implementation="evil/kernel", use_kernels=True),
    "quantization": lambda f: change(f, "config.json", quantization_config={"quant_method": "evil", "path": "evil"}),
    "quantization-known": lambda f: change(f, "config.json", quantization_config={"quant_method": "gptq", "bits": 4}),
    "dtype-is-code": lambda f: change(f, "config.json", dtype="__import__('os').system('touch touched')"),
    "activation-is-code": lambda f: change(f, "config.json", hidden_act="os.system"),
    "model-type-path": lambda f: change(f, "config.json", model_type="../../secret"),
    "name-or-path": lambda f: change(f, "config.json", _name_or_path=elsewhere(f)),
    "module-of-the-folder": lambda f: (code(f), modules(f, type="evil.Module"))[0],
    "module-of-python": lambda f: modules(f, type="subprocess.Popen"),
    "module-path-up": lambda f: modules(f, type="sentence_transformers.models.Dense", path=elsewhere(f)),
    "module-path-absolute": lambda f: modules(f, type="sentence_transformers.models.Dense", path="/etc"),
    "adapter": lambda f: change(f, "adapter_config.json", base_model_name_or_path=elsewhere(f), peft_type="LORA"),
    "adapter-pickled": lambda f: (change(f, "adapter_config.json", peft_type="LORA"), pickled(f, "adapter_model.bin")),
    "pickle-beside": lambda f: pickled(f, "pytorch_model.bin"),
    "pickle-alone": lambda f: only_pickle(f, "pytorch_model.bin"),
    "pickle-named-safetensors": lambda f: only_pickle(f, "model.safetensors"),
    "pickle-by-index": lambda f: (
        only_pickle(f, "evil.bin"),
        change(f, "pytorch_model.bin.index.json", metadata={}, weight_map={"x": "evil.bin"}),
    ),
    "shards-elsewhere": lambda f: sharded(f, "model.safetensors"),
    "header-of-terabytes": lambda f: damaged_header(f, 1 << 40),
    "header-of-nothing": lambda f: damaged_header(f, 2),
    "chat-template": lambda f: (f / "chat_template.jinja").write_text(
        "{{ cycler.__init__.__globals__.os.system('x') }}"
    ),
    "generation-config": lambda f: change(f, "generation_config.json", custom_generate="evil/evil", **code(f)),
    "custom-generate": lambda f: (
        (f / "custom_generate").mkdir(),
        (f / "custom_generate" / "generate.py").write_text("x"),
    ),
    "drkit-settings-elsewhere": lambda f: change(f, "drkit.json", pooling="../../secret", weights=elsewhere(f)),
    "python-named-like-a-library": lambda f: (f / "torch.py").write_text(
        f"import os; os.system('touch {f}/../touched')"
    ),
}


@pytest.mark.parametrize("attack", FOLDERS)
def test_a_folder_cannot_run_code_or_leave_itself(attack, whole, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "models" / "encoder"
    shutil.copytree(whole, folder)
    FOLDERS[attack](folder)
    monkeypatch.chdir(folder)  # Python finds modules in the working directory
    seen: list[tuple[str, str]] = []
    for load in LOADERS.values():
        _watched.update(folder=folder.resolve(), seen=seen)
        try:
            with contextlib.suppress(DrkitError):
                load(folder)
        finally:
            _watched.clear()
    assert seen == []
    assert not list(tmp_path.rglob("touched*"))


def test_the_hook_sees_what_an_attack_would_do(whole, tmp_path):
    """Without drkit's door, a folder does run its code: the test above can fail."""
    folder = tmp_path / "models" / "encoder"
    folder.parent.mkdir()
    folder.mkdir()
    pickled(folder, "pytorch_model.bin")
    seen: list[tuple[str, str]] = []
    _watched.update(folder=folder.resolve(), seen=seen)
    try:
        pickle.loads((folder / "pytorch_model.bin").read_bytes())
        Path(tmp_path / "outside").write_text("x")
    finally:
        _watched.clear()
    assert [event for event, _ in seen] == ["os.system", "write"]
    assert (tmp_path / "models" / "touched").exists()
