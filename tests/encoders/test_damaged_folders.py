"""Every file of an encoder's folder, changed, emptied or dropped.

Each time a folder gives the vectors of before, has another identity, or is refused in words: never vectors that
another loading of it would not give, and never a traceback. DRKIT_FAULTS is the number of changed keys of each kind,
drawn by DRKIT_FAULTS_SEED.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil

import numpy as np
import pytest
import torch

from drkit.encoders import CrossEncoder
from drkit.encoders.token_weights import TokenWeights
from drkit.errors import DrkitError
from drkit.search import Reranker
from drkit.search.dual_encoder import read_encoder
from tests.encoders.test_static import static_lm
from tests.runs.damages import DAMAGES
from tests.search.made import export_made, export_two
from tests.search.toys import VOCABULARY, masked_lm, tokenizer

FAULTS = int(os.environ.get("DRKIT_FAULTS", "40"))
SEED = int(os.environ.get("DRKIT_FAULTS_SEED", "0"))
DROPPED = object()
pytestmark = pytest.mark.filterwarnings("ignore")
PROBES = ["Remove a suffix", "string from each NUMBER file " * 9, "café abba [MASK]", ""]
HOW = {"similarity": "cosine", "query_length": 24, "passage_length": 32, "passage_prompt": "number "}


def transformer(folder):
    weights = TokenWeights(torch.linspace(0.1, 1, len(VOCABULARY)))
    export_made(masked_lm(), tokenizer(), folder, pooling="weighted", token_weights=weights, truncate_dim=24, **HOW)


def static(folder):
    export_made(static_lm("mean").model, tokenizer(), folder, pooling="mean", **HOW)


def dual(folder):
    export_two((masked_lm(1), tokenizer()), (masked_lm(2), tokenizer()), folder, pooling="mean", **HOW)


def cross_encoder(folder):
    masked_lm().save_pretrained(folder / "start")
    tokenizer().save_pretrained(folder / "start")
    CrossEncoder.start_from(str(folder / "start"), max_length=48).save(folder / "made")
    shutil.rmtree(folder / "start")
    for path in (folder / "made").iterdir():
        path.rename(folder / path.name)
    (folder / "made").rmdir()


KINDS = {"transformer": transformer, "static": static, "dual": dual, "cross-encoder": cross_encoder}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder of each kind, and what it computes."""
    root = tmp_path_factory.mktemp("whole")
    for kind, make in KINDS.items():
        make(root / kind)
    return {kind: (root / kind, computed(root / kind, kind)) for kind in KINDS}


def computed(folder, kind):
    """The identity and the vectors of a folder."""
    if kind == "cross-encoder":
        scorer = Reranker.load(folder)
        return scorer.identity(), scorer.score([(one, two) for one in PROBES for two in PROBES])
    encoder = read_encoder(folder)
    return encoder.identity(), np.concatenate([encoder.encode_queries(PROBES), encoder.encode_passages(PROBES)])


def check(folder, kind, expected):
    """Nothing changes, or the identity, or a message says why not; returns which."""
    try:
        identity, vectors = computed(folder, kind)
    except DrkitError:
        return "refused"
    if identity != expected[0]:
        again = computed(folder, kind)
        assert again[0] == identity
        np.testing.assert_array_equal(again[1], vectors)
        return "another identity"
    assert vectors.shape == expected[1].shape
    np.testing.assert_allclose(vectors, expected[1], atol=2e-6)
    return "same"


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_emptied_and_dropped_files(kind, whole, tmp_path):
    folder, expected = whole[kind]
    for path in sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file()):
        for damage in (*DAMAGES, lambda path: path.unlink()):
            changed = tmp_path / "changed"
            shutil.copytree(folder, changed)
            damage(changed / path)
            said = check(changed, kind, expected)
            if path.name == "model.safetensors":
                assert said != "same" or "WordWeights" in str(path)
            shutil.rmtree(changed)


def alternates(value):
    """Other values of a key: of its kind, of another kind, and absurd ones."""
    numbers = [0, -1, 3, 10**9, 10**30, 0.5]
    if isinstance(value, bool):
        return [not value, None, "x"]
    if isinstance(value, (int, float)):
        return [other for other in (*numbers, value * 2, "x", None) if other != value]
    if isinstance(value, str):
        return ["", "x", f"{value}x", 5, None]
    if value is None:
        return [True, 1, "x", {}, []]
    return [type(value)(), [] if isinstance(value, dict) else {}, None, "x", 7]


def changes(table, depth=3):
    """Yield a function for each change of a JSON value: a key dropped or changed, a few entries of long tables."""
    keys = list(table) if isinstance(table, dict) else list(range(len(table)))
    for key in keys if depth == 3 or len(keys) < 8 else (keys[1], keys[-1]):
        yield (key,), DROPPED
        for other in alternates(table[key]):
            yield (key,), other
        if depth > 1 and isinstance(table[key], (dict, list)):
            for path, other in changes(table[key], depth - 1):
                yield (key, *path), other


def applied(table, path, other):
    """The table with one change."""
    made = copy.deepcopy(table)
    *above, last = path
    inner = made
    for key in above:
        inner = inner[key]
    if other is DROPPED:
        del inner[last]
    else:
        inner[last] = other
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_changed_keys(kind, whole, tmp_path):
    folder, expected = whole[kind]
    tables = {path: json.loads(path.read_text()) for path in sorted(folder.rglob("*.json"))}
    tried = [(path, *change) for path, table in tables.items() for change in changes(table)]
    shutil.copytree(folder, tmp_path / "changed")
    for path, keys, other in random.Random(SEED).sample(tried, min(FAULTS, len(tried))):
        target = tmp_path / "changed" / path.relative_to(folder)
        target.write_text(json.dumps(applied(tables[path], keys, other)))
        try:
            check(tmp_path / "changed", kind, expected)
        except BaseException:
            print(f"{path.relative_to(folder)}: {keys} {'dropped' if other is DROPPED else other}")
            raise
        shutil.copy(path, target)
