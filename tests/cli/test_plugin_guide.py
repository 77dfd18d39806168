"""The guide's own package, installed as a stranger's would be."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.cli.test_light_commands import drkit

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "plugins.md"


def beside(site):
    """The folder before whatever is on the path."""
    return os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))


@pytest.fixture
def site(tmp_path):
    """A folder on the path with the guide's files and the metadata that an installer writes."""
    text = GUIDE.read_text(encoding="utf-8")
    files = dict(re.findall(r"`(my_masker/\w+\.py|pyproject\.toml)`:.*?```\w+\n(.*?)```", text, flags=re.DOTALL))
    modules = [f"my_masker/{name}.py" for name in ("__init__", "masker", "decoder", "loss")]
    assert set(files) == {"pyproject.toml", *modules}
    (tmp_path / "my_masker").mkdir()
    for name in modules:
        (tmp_path / name).write_text(files[name])
    metadata = tmp_path / "my_masker-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-masker\nVersion: 1.0\n")
    entry = re.search(r'\[project\.entry-points\.drkit\]\n(\S+) = "(\S+)"', files["pyproject.toml"])
    (metadata / "entry_points.txt").write_text(f"[drkit]\n{entry[1]} = {entry[2]}\n")
    check = re.search(r"```python\n(from drkit\.testing.*?)```", text, flags=re.DOTALL)[1]
    (tmp_path / "test_guide.py").write_text(check + "\ntest_my_parts()\nprint('checked')\n")
    return tmp_path


def test_the_guides_plugin_is_listed_shown_and_composed(site):
    code, out, _ = drkit("list", "masker", PYTHONPATH=beside(site))
    assert code == 0
    assert "every-other" in out
    assert "my-masker 1.0" in out
    code, out, _ = drkit("show", "masker", "every-other", PYTHONPATH=beside(site))
    assert "hide every step-th token" in out
    assert "masker.py:" in out
    spread = 'pretrain.losses.spread={use="spread", on="encoder", weight=0.1}'
    for parts in (
        ["--masker", "every-other", "--decoder", "enhanced"],
        ["--masker", "every-other", "--decoder", "from-place"],
        ["--paper", "simlm", "--decoder", "from-place", "--set", spread],
    ):
        code, _, err = drkit("compose", *parts, "--dry-run", PYTHONPATH=beside(site))
        assert code == 0, err
    code, out, _ = drkit("list", "--matrix", PYTHONPATH=beside(site))
    assert "from-place" in out


def test_the_guides_plugin_passes_the_contract(site):
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, str(site / "test_guide.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": beside(site)},
        check=False,
    )
    assert "checked" in done.stdout, done.stderr


def test_a_broken_plugin_takes_nobody_down(site):
    (site / "my_masker/__init__.py").write_text("import no_such_module\n")
    code, out, _ = drkit("plugins", PYTHONPATH=beside(site))
    assert code == 0
    assert "no_such_module" in out
    code, out, _ = drkit("list", "masker", PYTHONPATH=beside(site))
    assert code == 0
    assert "pmi" in out


def test_the_guides_parts_train(site, tmp_path):
    texts = tmp_path / "texts.jsonl"
    lines = [
        {"text": f"{who} {did} in {year}"}
        for who in ("ada", "alan")
        for did in ("proved", "wrote")
        for year in range(20)
    ]
    texts.write_text("\n".join(json.dumps(line) for line in lines))
    settings = ["encoder.vocab_size=110", "encoder.hidden=16", "encoder.heads=2", "encoder.init_embeddings=random"]
    settings += [
        "finetune=none",
        "pretrain.max_steps=3",
        'pretrain.losses.spread={use="spread", on="encoder", weight=0.1}',
    ]
    code, out, err = drkit(
        *("compose", "--masker", "every-other", "--decoder", "from-place", "--collection", f"jsonl:{texts}"),
        *(f"--set={setting}" for setting in settings),
        *("--run-dir", str(tmp_path / "run")),
        PYTHONPATH=beside(site),
    )
    assert code == 0, err + out
    assert (tmp_path / "run/pretrained/decoder.safetensors").is_file()
