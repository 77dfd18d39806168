"""Whatever changes a vector or a score changes the identity of its encoder, whose old vectors are then refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from drkit.encoders import CrossEncoder
from drkit.errors import DrkitError
from drkit.search import DualEncoder, FlatIndex, Retriever
from tests.encoders.toys import CAUSAL, NAMES, tiny
from tests.refusals import says
from tests.search.made import export_made, reader_of
from tests.search.toys import TEXTS, masked_lm, tokenizer

LENGTH = 24
PROBES = ["A list of file names, returned", "the error IS raised if a Thread ends " * 3, "naïve [MASK] module"]
# Keys that change vectors, of each architecture: the test below must have seen them.
KNOWN = {
    "distilbert": {"activation", "n_heads"},
    "modernbert": {"hidden_activation", "norm_eps", "num_attention_heads"},
    "mpnet": {"hidden_act", "layer_norm_eps"},
    "llama": {"hidden_act", "rms_norm_eps", "rope_parameters"},
    "qwen3": {"hidden_act", "rms_norm_eps", "rope_parameters"},
}
MOST = {"hidden_act", "layer_norm_eps", "num_attention_heads"}


def other_values(value):
    """Values of the same kind, and of those that a missing key may have."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [0, 1, value + 1, value * 2, value // 2]
    if isinstance(value, float):
        return [0.0, value * 2, value + 0.3]
    if isinstance(value, str):
        return ["relu", "silu", "absolute", "relative_key", f"{value}x"]
    return [value[1:], value[::-1]] if isinstance(value, list) else [1, True, 0.5, "relu"]


def variants(config):
    """Yield (key, configuration) with another value of one key, or of one key inside a table."""
    whole = config.to_dict()
    for key, value in whole.items():
        inner = value if isinstance(value, dict) and "label" not in key else {}
        others = [{**value, name: x} for name, one in inner.items() for x in other_values(one)] or other_values(value)
        for other in others:
            try:
                yield key, type(config).from_dict({**whole, key: other})
            except Exception:  # refused by transformers
                continue


def rebuilt(model, config):
    """The same weights under another configuration; None if that cannot be, which loading refuses."""
    try:
        made = type(model)(config)
        missing, unexpected = made.load_state_dict(model.state_dict(), strict=False)
    except Exception:
        return None
    return None if unexpected or any("pooler." not in name for name in missing) else made.eval()


@pytest.mark.parametrize("name", [*NAMES, *CAUSAL])
def test_every_key_that_changes_a_vector_changes_the_identity(name):
    model, words = tiny(name, seed=3)
    for weight in model.parameters():
        weight.data.mul_(4)  # away from the tiny initial weights, so that changes are visible
    backbone = model.base_model.eval()

    def encoder(one):
        return reader_of(one, words, pooling="mean", query_length=LENGTH, passage_length=LENGTH)

    identity, vectors, counted = encoder(backbone).identity(), encoder(backbone).encode_passages(PROBES), set()
    for key, config in variants(backbone.config):
        other = rebuilt(backbone, config)
        try:
            found = None if other is None else encoder(other).encode_passages(PROBES)
        except Exception:  # refused when it is loaded, which tests/encoders/test_damaged_folders.py tries
            continue
        if found is not None and not np.allclose(found, vectors, atol=1e-5, equal_nan=True):
            assert encoder(other).identity() != identity, f"{key} changes vectors, but not the identity"
            counted.add(key)
    assert counted >= KNOWN.get(name, MOST)


def changed_words(change):
    """The toy tokenizer after a change of its description."""
    from tokenizers import Tokenizer

    made = tokenizer()
    described = json.loads(made.backend_tokenizer.to_str())
    change(described)
    made._tokenizer = Tokenizer.from_str(json.dumps(described))
    return made


def left():
    made = tokenizer()
    made.truncation_side = "left"
    return made


def split():
    made = tokenizer()
    made.split_special_tokens = True
    return made


def swap(table, one, two):
    table[one], table[two] = table[two], table[one]


WORDS = {
    "cased": lambda: changed_words(lambda d: d["normalizer"].update(lowercase=False)),
    "accents": lambda: changed_words(lambda d: d["normalizer"].update(strip_accents=False)),
    "other special tokens": lambda: changed_words(lambda d: swap(d["post_processor"], "cls", "sep")),
    "other words": lambda: changed_words(lambda d: swap(d["model"]["vocab"], "remove", "number")),
    "truncated on the left": left,
    "special tokens split": split,
}
TRIED = [*TEXTS, "REMOVE a suffix", "café [MASK]", "file remove string suffix " * 20]


@pytest.mark.parametrize("change", WORDS)
def test_every_change_of_a_tokenizer_that_changes_a_vector_changes_the_identity(change):
    backbone = masked_lm().base_model.eval()
    how = {"pooling": "mean", "query_length": LENGTH, "passage_length": LENGTH}
    one, two = reader_of(backbone, tokenizer(), **how), reader_of(backbone, WORDS[change](), **how)
    assert not np.allclose(one.encode_passages(TRIED), two.encode_passages(TRIED), atol=1e-4)
    assert one.identity()["tokenizer"] != two.identity()["tokenizer"]
    with pytest.raises(DrkitError, match=r"index .*another encoder \(tokenizer differ\)"):
        Retriever(two, FlatIndex.build(one.encode_passages(["a"]), ["a"], encoder=one.identity()))


@pytest.mark.parametrize(
    "change",
    [{"query_length": 9}, {"query_prompt": "number "}, {"passage_length": 9}, {"passage_prompt": "file "}],
    ids=str,
)
def test_the_identity_of_two_encoders_covers_both(change):
    sides = [reader_of(masked_lm(seed).base_model.eval(), tokenizer(), pooling="mean") for seed in (1, 2)]
    whole = DualEncoder(*sides).identity()
    side = int("passage" in str(change))
    sides[side] = sides[side].evolve(**change)
    assert DualEncoder(*sides).identity() != whole
    assert DualEncoder(*sides[::-1]).identity()["weights"] != whole["weights"]


def test_a_cross_encoder_has_an_identity(tmp_path):
    masked_lm().save_pretrained(tmp_path / "start")
    tokenizer().save_pretrained(tmp_path / "start")
    folder = CrossEncoder.start_from(str(tmp_path / "start"), max_length=40).save(tmp_path / "made")
    whole = CrossEncoder.load(str(folder)).identity()
    shorter = CrossEncoder.load(str(folder))
    shorter.cut_at(20)
    assert shorter.identity() != whole
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_act": "relu"}))
    assert CrossEncoder.load(str(folder)).identity() != whole


def test_an_index_that_does_not_say_enough_is_refused():
    encoder = reader_of(masked_lm().base_model.eval(), tokenizer(), pooling="mean")
    old = {key: value for key, value in encoder.identity().items() if key != "config"}
    index = FlatIndex.build(encoder.encode_passages(["a"]), ["a"], encoder=old)
    with pytest.raises(DrkitError, match=r"index .*another encoder \(config differ\)"):
        Retriever(encoder, index)


@pytest.fixture
def folder(tmp_path):
    """An exported encoder and a collection."""
    how = {"pooling": "mean", "similarity": "cosine", "query_length": 16, "passage_length": 16}
    export_made(masked_lm(), tokenizer(), tmp_path / "e", **how)
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    rows = [{"_id": f"d{n}", "text": text} for n, text in enumerate(TRIED) if text]
    (data / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (data / "queries.jsonl").write_text('{"_id": "q", "text": "remove a file"}\n')
    (data / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td0\t1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("key", "value"), [("num_attention_heads", 4), ("hidden_act", "relu"), ("layer_norm_eps", 0.3)]
)
def test_vectors_and_rankings_of_another_configuration_are_not_accepted(folder, key, value, monkeypatch, run_drkit):
    monkeypatch.chdir(folder)
    encode = ["encode", "--encoder", "e", "--collection", "beir:data", "-o", "vectors"]
    evaluate = ["evaluate", "--encoder", "e", "--collection", "beir:data", "-o", "ev"]
    for command in (encode, ["index", "vectors", "-o", "index"], evaluate):
        assert run_drkit(*command)[0] == 0
    rankings = set(Path("ev").glob("*.trec"))
    path = folder / "e" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    code, said = run_drkit(*encode)[::2]
    assert code == 2
    assert "(config differ)" in said
    code, said = run_drkit("search", "index", "--encoder", "e", "remove a file")[::2]
    assert code == 2
    assert says(said, "index", "another encoder (config differ)")
    assert run_drkit(*evaluate)[0] == 0
    assert set(Path("ev").glob("*.trec")) > rankings
