"""A stranger's plugin brings data of its own: nothing in drkit is touched, and everything is carried."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.warm import drkit, warm_process

SOURCE = Path(__file__).parent / "strangers"
CAPITALS = ("Ada", "Alan", "Grace")


def beside(site):
    return os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The plugin, installed in a folder."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(SOURCE, folder / "strangers", ignore=shutil.ignore_patterns("__pycache__"))
    metadata = folder / "strangers-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[drkit]\nstrangers = strangers\n")
    return folder


@pytest.fixture
def texts(tmp_path):
    """Texts with and without capitals, of unlike lengths."""
    path = tmp_path / "texts.jsonl"
    lines = [
        {"text": " ".join([f"{who} wrote to {whom} in {year}", *["and again"] * (year % 7)])}
        for who in (*CAPITALS, "nobody")
        for whom in (*CAPITALS, "nobody")
        for year in range(10)
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


TINY = (
    "encoder.vocab_size=110",
    "encoder.hidden=16",
    "encoder.heads=2",
    "encoder.init_embeddings=random",
    "finetune=none",
)
APART = 'pretrain.encoder.losses.apart={use="apart", weight=0.1}'


def run_code(code, *arguments, site):
    """What Python code prints where the plugin is installed."""
    (site / "code.py").write_text(code)
    environment = {"PYTHONPATH": beside(site)}
    done = warm_process().drkit(*arguments, script=str(site / "code.py"), environment=environment)
    assert done["code"] == 0, done["err"]
    return done["out"]


def test_it_composes_and_trains(site, texts, tmp_path):
    settings = (*TINY, "pretrain.max_steps=3", APART)
    code, out, err = drkit(
        *("compose", "--masker", "uniform", "--decoder", "capitals", "--collection", f"jsonl:{texts}", "--quick"),
        *(f"--set={setting}" for setting in settings),
        *("--run-dir", str(tmp_path / "run")),
        PYTHONPATH=beside(site),
    )
    assert code == 0, err + out
    log = [json.loads(line) for line in (tmp_path / "run/pretrained/log.jsonl").read_text().splitlines()]
    assert all(np.isfinite([line["main_flag-count_loss"], line["encoder_apart_loss"]]).all() for line in log)
    from drkit.data.arrays import SignalValues
    from drkit.data.store import TokenStore

    store = TokenStore.open(tmp_path / "run/tokens")
    values = SignalValues.open(tmp_path / "run/signal-entity-flags/values").values
    assert len(values) == len(store.flat_ids)
    assert values[store.offsets[0]] == 1  # Ada
    last = store.offsets[-2]
    assert not values[last:].any()  # nobody wrote to nobody


def test_settings_of_such_names_are_not_read(site, texts):
    """`targets = 16` once made an estimate of hours, `similarity` another search."""
    chosen = ("--masker", "uniform", "--decoder", "capitals", "--collection", f"jsonl:{texts}")
    code, out, err = drkit("compose", *chosen, "--dry-run", "-v", PYTHONPATH=beside(site))
    assert code == 0, err
    assert "signal-entity-flags" in out
    counted = (
        "import sys\n"
        "from drkit.core.registry import installed\n"
        "from drkit.core.types import CollectionSize\n"
        "from drkit.recipe.compose import ComposeRequest, compose\n"
        "from drkit.runs.costs import planned_sizes\n"
        "from drkit.runs.plan import plan\n"
        "parts = installed()\n"
        "request = ComposeRequest(masker='uniform', decoder=sys.argv[1], collection=sys.argv[2])\n"
        "recipe = compose(request, parts)\n"
        "stages = {stage.name: stage for stage in plan(recipe, parts.registry).stages}\n"
        "sizes = planned_sizes(recipe, CollectionSize(1000, {}, (100,)))\n"
        "print(stages['pretrained'].spec.work(stages['pretrained'], sizes))\n"
    )
    work = [run_code(counted, decoder, f"jsonl:{texts}", site=site) for decoder in ("capitals", "bow")]
    assert work[0] == work[1] != ""


def test_its_parts_keep_the_contract(site):
    code = (
        "from drkit.testing import check_decoder, check_loss\n"
        "check_decoder('capitals')\n"
        "check_loss('apart')\n"
        "check_loss('flag-count')\n"  # its own input comes from the decoder that provides it
        "print('checked')\n"
    )
    assert "checked" in run_code(code, site=site)


def test_a_wrong_name_is_suggested(site, tmp_path):
    broken = tmp_path / "site"
    shutil.copytree(site, broken)
    specs = broken / "strangers/__init__.py"
    specs.write_text(specs.read_text().replace('signals=("entity-flags",)', 'signals=("entity-flag",)'))
    code, _, err = drkit("compose", "--decoder", "capitals", "--dry-run", PYTHONPATH=beside(broken))
    assert code == 2
    assert "'entity-flags'" in err
