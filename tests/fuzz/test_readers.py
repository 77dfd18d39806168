"""Any bytes give a value or a `DrkitError`, within 200 MB: random bytes, and valid files that were changed.

`HYPOTHESIS_PROFILE=nightly pytest tests/fuzz` tries a hundred times as many examples.
"""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drkit.core.checksums import check_unchanged
from drkit.core.files import MANIFEST as FILE
from drkit.core.files import digest
from drkit.core.registry import installed
from drkit.data.collection import read_passages
from drkit.data.pairs import PairsCollection
from drkit.data.qrels import read_judgements
from drkit.data.rows import LONGEST_LINE, read_lines
from drkit.data.specs import PairsConfig
from drkit.data.topics import read_topics
from drkit.encoders.card import EncoderCard, declared_settings
from drkit.encoders.folder import (
    is_dual,
    read_routes,
    read_word_weights,
)
from drkit.errors import DrkitError
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.start import declared_settings_of
from drkit.recipe.toml import read_recipe, recipe_toml
from drkit.runs.manifest import damages, load_manifest
from drkit.search import read_qrels, read_run
from drkit.search.flat import INDEX_FILE
from drkit.search.index import open_index
from drkit.search.vectors import Vectors
from drkit.train.checkpoints import load_tokenizer
from tests.parts.toys import toy_tokenizer

PARTS = installed()
RECIPE = recipe_toml(compose(ComposeRequest(), PARTS)).encode()
LIMIT = 200 << 20

JSONL = b'{"_id": "d1", "title": "t", "text": "some words"}\n{"_id": "d2", "text": "more", "score": 1.5}\n'
TABLE = b"id\ttext\td\n1\ttext one\tx\n2\ttext two\ty\n"
CSV = b'query,passage,score\nq,"a, ""b"" c",1\nr,d,0.5\n'
QRELS = b"q1 0 d1 1\nq1 0 d2 0\nq2 0 d1 2\n"
RUN = b"q1 Q0 d1 1 9.5 tag\nq1 Q0 d2 2 1e-3 tag\nq2 Q0 d%20x 1 1 tag\n"
TOPICS = b"<top>\n<num> Number: 301\n<title> some words\n<desc> Description: x\n</top>\n"
RANKS = b"q1\td1\t1\nq1\td2\t2\nq2\td1\t1\n"
MANIFEST = json.dumps(
    {
        "layout": 2,
        "stage": "s",
        "stage_version": 1,
        "fingerprint": "f",
        "settings": {"a": 1},
        "inputs": {"x": "y"},
        "sources": {},
        "origins": {},
        "files": {"a/b.txt": {"bytes": 3, "blake2b": "00"}},
        "metrics": {"m": 0.5},
        "seconds": 1.0,
        "finished": "now",
        "versions": {"python": "3"},
        "records": ["log"],
    }
).encode()


# Values that are valid somewhere else: other types, sizes, depths, characters.
PIECES = [
    *(b"", b"\0", b"\xff", b"\xef\xbb\xbf", b"\r", b"\n\n", b'"', b"'", b",", b"\t", b" ", b"%", b"<top>", b"\\ud800"),
    *(b"null", b"true", b"[]", b"{}", b'""', b"-1", b"0", b"1e999", b"NaN", b"1_0", b"9" * 40, b"9" * 5000),
    *(b"[" * 2000, b'{"a":' * 2000, b"x" * 300, b"../" * 3, b"/", "١٢".encode(), b"[[a]]\n", b"a=1\n", b"\x1b[2J"),
]


@st.composite
def changed(draw, valid: bytes) -> bytes:
    """The bytes of a valid file after a few insertions, deletions and replacements."""
    found = valid
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(found)))
        stop = draw(st.integers(start, min(len(found), start + 20)))
        found = found[:start] + draw(st.sampled_from(PIECES) | st.binary(max_size=8)) + found[stop:]
    return found


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("x" * 300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def reshaped(draw, valid: bytes) -> bytes:
    """A valid JSON file in which one value, anywhere, is another."""
    root = {"": json.loads(valid)}
    node: Any = root
    key: Any = ""
    while isinstance(node[key], (dict, list)) and node[key] and draw(st.integers(0, 3)):
        node = node[key]
        key = draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
    node[key] = draw(VALUES)
    return json.dumps(root[""]).encode()


def of(valid: bytes) -> st.SearchStrategy[bytes]:
    return st.binary(max_size=300) | changed(valid)


def json_of(valid: bytes) -> st.SearchStrategy[bytes]:
    return of(valid) | reshaped(valid)


def gives_a_value_or_an_error(read: Callable[[Path], Any], name: str, content: bytes) -> None:
    """Write the content to a file of this name in a new folder, and read it."""
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        try:
            found = read(path)
            if hasattr(found, "__next__"):
                list(found)
        except DrkitError:
            return


def zstd(content: bytes) -> bytes:
    return bytes(pa.compress(content, "zstd", asbytes=True))


def passages(path: Path) -> Any:
    return read_passages([path])


fuzzed = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
# Passages, topics and pairs share their formats; each is read by its own code.
FILES = [
    ("p.jsonl", JSONL, passages),
    ("p.tsv", TABLE, passages),
    ("q.tsv", b"q1\tsome words\nq2\tmore\n", read_topics),
    ("q.trec", TOPICS, read_topics),
    ("q.jsonl", JSONL, read_topics),
    ("p.csv", CSV, lambda path: PairsCollection(PairsConfig(path=str(path))).judgements("train")),
    ("r.qrels", QRELS, read_judgements),
    ("r.tsv", b"query-id\tcorpus-id\tscore\nq\td\t1\n", lambda path: read_judgements(path, beir=True)),
    ("r.txt", QRELS, read_qrels),
    ("r.run", RUN, read_run),
    ("r.tsv", RANKS, read_run),
]


@pytest.mark.parametrize(("name", "valid", "read"), FILES, ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(FILES)])
def test_data_files(name, valid, read):
    list(read_valid(read, name, valid))

    @fuzzed
    @given(of(valid))
    def check(content):
        gives_a_value_or_an_error(read, name, content)

    check()


def read_valid(read, name, valid):
    """What a reader finds in the unchanged file: if it could not be read, changing it would test nothing."""
    with TemporaryDirectory() as folder:
        Path(folder, name).write_bytes(valid)
        yield from read(Path(folder, name))


@fuzzed
@given(st.binary(max_size=200) | changed(gzip.compress(JSONL, mtime=0)))
def test_gzipped_files(content):
    gives_a_value_or_an_error(passages, "p.jsonl.gz", content)


@fuzzed
@given(st.binary(max_size=200) | changed(zstd(JSONL)))
def test_files_compressed_by_zstandard(content):
    gives_a_value_or_an_error(passages, "p.jsonl.zst", content)


@fuzzed
@given(of(RECIPE))
def test_recipes(content):
    gives_a_value_or_an_error(lambda path: read_recipe(path, PARTS.registry), "recipe.toml", content)


PATHS = (
    *("seed", "name", "encoder.layers", "finetune.rounds.0.miners", "finetune.rounds.0", "use"),
    *("pretrain.encoder", "pretrain.encoder.losses", "pretrain.decoders", "pretrain.decoders.main"),
)


@fuzzed
@given(
    st.tuples(st.sampled_from(PATHS), st.sampled_from(["", ".0", ".use", ".x", ".0.use.x", ".²", "..", ".-1"])),
    st.sampled_from(PIECES).map(lambda piece: piece.decode(errors="ignore")) | st.text(max_size=20),
)
def test_assignments(path, value):
    try:
        compose(ComposeRequest(settings=(f"{''.join(path)}={value}",)), PARTS)
    except DrkitError:
        return


SEALED = json.dumps({**json.loads(MANIFEST), "checksum": digest(json.loads(MANIFEST))}).encode()


@fuzzed
@given(json_of(MANIFEST) | json_of(SEALED))
def test_manifests(content):
    def read(path):
        manifest = load_manifest(path.parent)
        if manifest is not None:
            list(damages(manifest, path.parent, verify=True))
            manifest.content()
        check_unchanged(path.parent)

    gives_a_value_or_an_error(read, FILE, content)


MODULES = json.dumps(
    [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
).encode()
ROUTER = json.dumps(
    {
        "types": {
            "query_0": "sentence_transformers.models.Transformer",
            "document_0": "sentence_transformers.models.Transformer",
        },
        "structure": {"query": ["query_0"], "document": ["document_0"]},
    }
).encode()
FOLDER = {
    "modules.json": MODULES,
    "config.json": b'{"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 0, "architectures": ["X"]}',
    "1_Pooling/config.json": b'{"pooling_mode_cls_token": true, "include_prompt": true, "pooling_mode": "cls"}',
    "config_sentence_transformers.json": b'{"prompts": {"query": "q: ", "document": ""}, "similarity_fn_name": "dot"}',
    "sentence_bert_config.json": b'{"max_seq_length": 128}',
    "tokenizer_config.json": b'{"model_max_length": 512}',
    "drkit.json": b'{"query_length": 32, "passage_length": 128, "query_prompt": "q: ", "pooling": "cls"}',
}


@pytest.mark.parametrize("name", FOLDER)
def test_model_folders(name):
    @fuzzed
    @given(json_of(FOLDER[name]))
    def check(content):
        with TemporaryDirectory() as folder:
            (Path(folder) / "1_Pooling").mkdir()
            for other, valid in FOLDER.items():
                (Path(folder) / other).write_bytes(content if other == name else valid)
            for read in (EncoderCard.read, declared_settings, declared_settings_of, is_dual):
                try:
                    read(Path(folder))
                except DrkitError:
                    continue

    check()


@fuzzed
@given(json_of(ROUTER))
def test_routers(content):
    def read(path):
        modules = [{"path": "r", "type": "sentence_transformers.models.Router"}]
        (path.parent.parent / "modules.json").write_text(json.dumps(modules))
        return read_routes(path.parent.parent)

    gives_a_value_or_an_error(read, "r/router_config.json", content)


@fuzzed
@given(json_of(b'{"vocab": ["a", "b"], "word_weights": {"a": 0.5}, "unknown_word_weight": 1}'))
def test_word_weights(content):
    gives_a_value_or_an_error(lambda path: read_word_weights(path.parent), "config.json", content)


@fuzzed
@given(json_of(b'{"kind": "flat", "count": 2, "dimension": 4, "encoder": {"similarity": "dot"}, "similarity": "dot"}'))
def test_descriptions_of_indexes_and_vectors(content):
    gives_a_value_or_an_error(lambda path: open_index(path.parent), INDEX_FILE, content)
    gives_a_value_or_an_error(lambda path: Vectors.open(path.parent), "vectors.json", content)


# Parts that tokenizer.json may have instead of its own; the library panics at some of their values.
PARTS_OF_TOKENIZERS: dict[str, list[Any]] = {
    "normalizer": [
        {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8AAAAA"},
        {"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""},
    ],
    "pre_tokenizer": [
        {"type": "FixedLength", "length": 2},
        {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False},
    ],
    "post_processor": [
        {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}},
        }
    ],
    "model": [
        {"type": "BPE", "continuing_subword_prefix": "#", "vocab": {"a": 0, "#b": 1, "ab": 2}, "merges": [["a", "#b"]]},
        {"type": "Unigram", "unk_id": 0, "vocab": [["[UNK]", 0.0], ["a", -1.0], ["b", -2.5]]},
    ],
}


@st.composite
def tokenizer_files(draw) -> bytes:
    """A tokenizer.json with other parts, one of them changed, or with any change."""
    names = draw(st.lists(st.sampled_from(sorted(PARTS_OF_TOKENIZERS)), min_size=1, unique=True))
    parts = {name: draw(st.sampled_from(PARTS_OF_TOKENIZERS[name])) for name in names}
    parts[names[0]] = json.loads(draw(reshaped(json.dumps(parts[names[0]]).encode())))
    whole = json.dumps(json.loads(toy_tokenizer(200).backend_tokenizer.to_str()) | parts).encode()
    return draw(st.just(whole) | json_of(whole))


@fuzzed
@given(tokenizer_files())
def test_tokenizers(content):
    def read(path):
        (path.parent / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        load_tokenizer(str(path.parent))

    gives_a_value_or_an_error(read, "tokenizer.json", content)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_line_without_an_end_takes_little_memory(tmp_path, suffix):
    path = tmp_path / f"p.jsonl{suffix}"
    with gzip.open(path, "wb", compresslevel=1) if suffix else path.open("wb") as file:
        for _ in range(300):
            file.write(b"x" * (1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(DrkitError, match=rf"p\.jsonl{suffix}:1: the line has more than {LONGEST_LINE >> 20} MB"):
            list(read_lines(path))
        assert tracemalloc.get_traced_memory()[1] < LIMIT
    finally:
        tracemalloc.stop()
