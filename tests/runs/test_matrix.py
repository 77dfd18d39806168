"""Every decoder, every masker and every recipe: whole runs on texts, a few steps long, exported and read back.

That every masker goes with every decoder is tested on single steps (`tests/parts/test_matrix.py`).
"""

import json

import numpy as np
import pytest

from drkit.builtin import drkit_recipes
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.matrix import matrix
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from drkit.search import TextEncoder

PARTS = installed()
MATRIX = matrix(PARTS)
NAMES = ["ada", "grace", "alan", "edsger", "barbara", "donald", "john", "frances", "ken", "dennis"]
DEEDS = ["wrote a compiler", "proved a theorem", "broke a cipher", "drew the first machine", "named the bug"]
POOLINGS = ("cls", "mean", "weighted")
SETTINGS = (
    "encoder.vocab_size=100",
    "encoder.layers=2",
    "encoder.hidden=16",
    "encoder.heads=2",
    "encoder.intermediate=32",
    "encoder.passage_length=32",
    "pretrain.max_steps=3",
    "pretrain.logging_steps=1",
    "pretrain.per_device_train_batch_size=4",
)


def some_pairs():
    """Each decoder with one masker that it goes with, each masker at least once; another pooling for each masker."""
    fitting = {d: [p.masker for p in MATRIX.pairs if p.decoder == d and not p.problems] for d in MATRIX.decoders}
    return [
        (maskers[turn % len(maskers)], decoder, POOLINGS[(turn + turn // 3) % 3])
        for turn, (decoder, maskers) in enumerate(fitting.items())
    ]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    path.write_text(
        "\n".join(
            json.dumps({"text": f"{name} {deed} and {more}"}) for name in NAMES for deed in DEEDS for more in DEEDS
        )
    )
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder for each run, and the runs whose stages it may take over."""
    made = []

    def run_folder():
        made.append(tmp_path_factory.mktemp("run") / "run")
        return made[-1], made[:-1]

    return run_folder


def trained(runs, texts, pooling, **wanted):
    """The folder of a whole run; its log has been looked through."""
    settings = (*SETTINGS, f"encoder.pooling={pooling}", "finetune=none")
    recipe = compose(ComposeRequest(collection=f"jsonl:{texts}", settings=settings, **wanted), PARTS)
    check(recipe, PARTS.registry)
    folder, others = runs()
    stages = plan(recipe, PARTS.registry).stages
    done = execute(stages, folder, recipe, registry=PARTS.registry, progress=Silent(), reuse=others)
    assert done["pretrained"].metrics["steps"] == 3
    log = [json.loads(line) for line in (folder / "pretrained/log.jsonl").read_text().splitlines()]
    steps = [entry for entry in log if "loss" in entry]
    assert len(steps) == 3
    for entry in steps:
        total = sum(term.weight * entry[f"{name}_loss"] for name, (_, term) in recipe.pretrain.losses().items())
        assert entry["loss"] == pytest.approx(total, rel=1e-3)
        assert np.isfinite(entry["grad_norm"])
    return folder


def check_encoder(folder, pooling):
    encoder = TextEncoder.load(folder / "encoder")
    assert encoder.card.pooling == pooling
    assert np.isfinite(encoder.encode_passages(["ada proved a theorem"])).all()


@pytest.mark.parametrize(("masker", "decoder", "pooling"), some_pairs())
def test_parts_of_different_papers_make_a_run(masker, decoder, pooling, texts, runs):
    check_encoder(trained(runs, texts, pooling, masker=masker, decoder=decoder), pooling)


@pytest.mark.parametrize("paper", sorted({*PARTS.recipes} - {*drkit_recipes()}))
def test_every_recipe_makes_a_run(paper, texts, runs):
    check_encoder(trained(runs, texts, "cls", paper=paper), "cls")


def test_all_maskers_and_decoders_are_among_them():
    maskers, decoders, poolings = ({*names} for names in zip(*some_pairs(), strict=True))
    assert maskers == {*MATRIX.maskers}
    assert decoders == {*MATRIX.decoders}
    assert poolings == {*POOLINGS}
