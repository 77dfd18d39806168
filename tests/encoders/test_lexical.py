"""The pooling `lexical`: scores of words as SPLADE has them, stored sparse, searched exactly, exported, trained."""

import json

import numpy as np
import pyarrow as pa
import pytest
import torch

from drkit.commands.vector_export import export_vectors
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.core.spec import Choice
from drkit.encoders import MaskedLmEncoder
from drkit.encoders.learned_pooling import LearnedPooling
from drkit.encoders.pooling import LexicalConfig
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from drkit.search import Retriever, Storage, TextEncoder, Vectors, build_index, encode_corpus, open_index, read_run
from drkit.search.encode import Shard
from drkit.search.vectors import VECTORS_HASH
from tests.search.made import export_made, reader_of
from tests.search.toys import TEXTS, masked_lm, tokenizer

HOW = {"pooling": "lexical", "similarity": "dot", "query_length": 48, "passage_length": 48}
SETTINGS = [{}, {"over_positions": "sum"}, {"top_k": 3}]
BOTH = {"top_k": 6, "dense": "cls"}
IDS = [f"d{number}" for number in range(len(TEXTS))]


def pooling(settings, model=None):
    return LearnedPooling("lexical", settings, MaskedLmEncoder(model or masked_lm()).info(tokenizer()))


def text_encoder(settings=None, seed=0):
    model = masked_lm(seed).eval()
    return reader_of(model, tokenizer(), learned_pooling=pooling(settings or {}, model), **HOW)


def by_hand(model, settings):
    """log(1 + relu(logits)) of each text alone, without padding."""
    rows = []
    for ids in tokenizer()(TEXTS, truncation=True, max_length=48)["input_ids"]:
        with torch.no_grad():
            scores = model(input_ids=torch.tensor([ids])).logits[0].relu().log1p()
        row = scores.sum(0) if settings.get("over_positions") == "sum" else scores.max(0).values
        if "top_k" in settings:
            row = torch.where(row >= row.topk(settings["top_k"]).values[-1], row, 0.0)
        rows.append(row)
    return torch.stack(rows).numpy()


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_scores_are_those_of_the_formula_and_of_a_sparse_encoder(tmp_path, settings):
    from sentence_transformers import SparseEncoder

    model = masked_lm().eval()
    expected = by_hand(model, settings)
    folder = export_made(
        model, tokenizer(), tmp_path / "e", learned_pooling=pooling(settings, model), query_prompt="remove ", **HOW
    )
    before, loaded = text_encoder(settings).evolve(query_prompt="remove "), TextEncoder.load(folder)
    theirs = SparseEncoder(str(folder), device="cpu", local_files_only=True)
    assert before.identity() == loaded.identity()
    assert (loaded.card.pooling, loaded.is_sparse, loaded.dimension) == ("lexical", True, expected.shape[1])
    assert theirs.similarity_fn_name == "dot"
    np.testing.assert_allclose(before.encode_passages(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(loaded.encode_passages(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(theirs.encode_document(TEXTS).to_dense(), expected, atol=1e-5)
    np.testing.assert_allclose(loaded.encode_queries(TEXTS), theirs.encode_query(TEXTS).to_dense(), atol=1e-5)
    assert not np.allclose(loaded.encode_queries(TEXTS), expected)
    theirs.save(str(tmp_path / "again"))
    again = TextEncoder.load(tmp_path / "again")
    np.testing.assert_array_equal(again.encode_passages(TEXTS), loaded.encode_passages(TEXTS))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_gradients_are_those_of_all_positions_at_once(monkeypatch, settings):
    encoder = MaskedLmEncoder(masked_lm(), pooling=pooling(settings)).eval()
    batch = tokenizer()(TEXTS, padding=True, truncation=True, max_length=48, return_tensors="pt")
    ids, attention = batch["input_ids"], batch["attention_mask"].bool()
    found = []
    for at_once in (1, 2**24):
        monkeypatch.setattr("drkit.encoders.heads.pool_logits.__kwdefaults__", {"at_once": at_once})
        encoder.zero_grad()
        vectors = encoder.vectors(ids, attention)
        (vectors * torch.linspace(-1, 1, vectors.shape[1])).sum().backward()
        found.append({name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None})
    assert any("predictions.transform" in name for name in found[0])
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_vectors_are_stored_sparse_and_an_interrupted_encoding_goes_on(tmp_path, dtype):
    encoder, storage = text_encoder({"top_k": 5}), Storage(dtype=dtype, shard_size=3)
    texts = list(zip(IDS, TEXTS, strict=True))
    assert encode_corpus(encoder, texts, tmp_path / "v", storage=storage, shard=Shard(1, 2)) is None
    first = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "v").glob("*.safetensors")}
    vectors = encode_corpus(encoder, texts, tmp_path / "v", storage=storage, shard=Shard(0, 1))
    assert {"00001.csr.safetensors"} == {*first} < {path.name for path in (tmp_path / "v").iterdir()}
    assert (tmp_path / "v" / "00001.csr.safetensors").stat().st_mtime_ns == first["00001.csr.safetensors"]
    expected = encoder.encode_passages(TEXTS).astype(dtype)
    assert len(vectors.sparse.values) == np.count_nonzero(expected) <= 5 * len(TEXTS)
    assert vectors.sparse.values.dtype == dtype
    stored = np.zeros_like(expected)
    stored[vectors.sparse.rows, vectors.sparse.columns] = vectors.sparse.values
    np.testing.assert_array_equal(stored, expected)
    with pytest.raises(DrkitError, match=r"\(pooling_settings differ\)"):
        encode_corpus(text_encoder({"top_k": 6}), texts, tmp_path / "v", storage=storage, shard=Shard(0, 1))
    with pytest.raises(DrkitError, match=r"/v .*sparse vectors.*`drkit index`"):
        export_vectors(tmp_path / "v", tmp_path / "vectors.parquet")


@pytest.mark.parametrize("name", ["values", "columns", "lengths"])
def test_a_damaged_file_of_them_is_refused(tmp_path, name):
    from safetensors.numpy import load_file, save_file

    encode_corpus(text_encoder(), zip(IDS, TEXTS, strict=True), tmp_path / "v", shard=Shard(0, 1))
    file = tmp_path / "v" / "00000.csr.safetensors"
    arrays = load_file(file)
    for damaged in ({**arrays, name: arrays[name] * 0 - 9}, {**arrays, name: arrays[name][:-1]}):
        save_file(damaged, file)
        with pytest.raises(DrkitError, match=r"/v/00000.csr.safetensors: .*changed since .*again"):
            Vectors.open(tmp_path / "v")


@pytest.mark.parametrize("name", ["values", "columns", "lengths"])
def test_a_damaged_file_without_a_hash_is_refused_where_it_cannot_be_read(tmp_path, name):
    from safetensors.numpy import load_file, save_file

    encode_corpus(text_encoder(), zip(IDS, TEXTS, strict=True), tmp_path / "v", shard=Shard(0, 1))
    file, ids = (tmp_path / "v" / f"00000.{kind}" for kind in ("csr.safetensors", "arrow"))
    table = pa.ipc.open_file(pa.BufferReader(ids.read_bytes())).read_all()
    metadata = {key: value for key, value in table.schema.metadata.items() if key != VECTORS_HASH.encode()}
    with pa.ipc.new_file(str(ids), table.schema.with_metadata(metadata)) as writer:
        writer.write_table(table.replace_schema_metadata(metadata))
    arrays = load_file(file)
    for damaged in ({**arrays, name: arrays[name] * 0 - 9}, {**arrays, name: arrays[name][:-1]}):
        save_file(damaged, file)
        if name != "values" or len(damaged["values"]) < len(arrays["values"]):
            with pytest.raises(DrkitError, match=r"/v/00000.csr.safetensors .*again"):
                Vectors.open(tmp_path / "v")
    file.write_bytes(b"no tensors")
    with pytest.raises(DrkitError, match=r"/v/00000.csr.safetensors: .*header"):
        Vectors.open(tmp_path / "v")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_inverted_index_is_exact(tmp_path, dtype):
    encoder = text_encoder({"top_k": 6})
    storage = Storage(dtype=dtype)
    vectors = encode_corpus(encoder, zip(IDS, TEXTS, strict=True), tmp_path / "v", storage=storage, shard=Shard(0, 1))
    index = build_index(vectors, tmp_path / "i")
    assert (index.kind, index.settings, len(index), index.dimension) == ("inverted", {}, len(TEXTS), 28)
    queries = encoder.encode_queries(["remove", "abba", "number file"])
    exact = queries.astype(np.float64) @ encoder.encode_passages(TEXTS).astype(dtype).astype(np.float64).T
    for hits, expected in zip(index.search(queries, 4), exact, strict=True):
        best = np.argsort(-expected, kind="stable")[:4]
        assert list(hits.doc_ids) == [IDS[position] for position in best if expected[position] > 0]
        np.testing.assert_allclose(hits.scores, expected[best][: len(hits.scores)], rtol=1e-5)
    asked = [["d3", "nowhere", "d1"], [], ["d0"]]
    scores = index.score(queries, asked)
    everything = index.search(queries, len(TEXTS))
    for row, names, hits in zip(scores, asked, everything, strict=True):
        known = dict(hits.pairs())
        assert [known.get(name, 0.0) if name in IDS else "none" for name in names] == [
            "none" if np.isnan(score) else score for score in row
        ], "bit for bit what a search returns"
    assert [hits.doc_ids for hits in index.search(np.zeros((1, 28), dtype=np.float32), 3)] == [()]
    retriever = Retriever(encoder, open_index(tmp_path / "i"))
    assert retriever.search(["remove"], 3) == index.search(queries[:1], 3)
    with pytest.raises(DrkitError, match=r"\[Q, 28\], got \(3, 9\)"):
        index.search(queries[:, :9], 3)
    with pytest.raises(DrkitError, match="encoder"):
        Retriever(text_encoder(seed=1), index)
    with pytest.raises(DrkitError, match=r"/v .*sparse .*'hnsw'; .*flat"):
        build_index(vectors, tmp_path / "h", kind="hnsw")
    (tmp_path / "i" / "passages.npy").write_bytes((tmp_path / "i" / "passages.npy").read_bytes()[:-4])
    with pytest.raises(DrkitError, match=r"/i/passages.npy: .*`drkit index`"):
        open_index(tmp_path / "i")


def test_a_dense_vector_and_scores_of_words_are_searched_by_their_sum_and_by_each_alone(tmp_path):
    from sentence_transformers import SparseEncoder

    both, words = text_encoder(BOTH), text_encoder({"top_k": 6})
    vectors, scores = both.encode_passages(TEXTS), words.encode_passages(TEXTS)
    dense = reader_of(masked_lm().base_model.eval(), tokenizer(), **{**HOW, "pooling": "cls"}).encode_passages(TEXTS)
    assert (both.dimension, both.dense_dimension, words.dense_dimension) == (32 + 28, 32, 0)
    np.testing.assert_allclose(vectors, np.concatenate([dense, scores], axis=1), atol=1e-5)
    folder = tmp_path / "e"
    export_made(both.model, tokenizer(), folder, learned_pooling=both.learned_pooling, **HOW)
    loaded = TextEncoder.load(folder)
    assert loaded.identity() == both.identity()
    np.testing.assert_allclose(loaded.encode_passages(TEXTS), vectors, atol=1e-5)
    theirs = SparseEncoder(str(folder), device="cpu", local_files_only=True)
    np.testing.assert_allclose(theirs.encode(TEXTS).to_dense(), scores, atol=1e-5, err_msg="the scores alone")
    encode_corpus(both, zip(IDS, TEXTS, strict=True), tmp_path / "v", shard=Shard(0, 1))
    index = build_index(tmp_path / "v", tmp_path / "i")
    queries = ["remove", "abba", "number file"]
    asked = both.encode_queries(queries)
    for part, kept in (("", slice(None)), ("dense", slice(32)), ("lexical", slice(32, None))):
        retriever = Retriever(loaded, open_index(tmp_path / "i"), part=part)
        exact = asked[:, kept].astype(np.float64) @ vectors[:, kept].astype(np.float64).T
        for text, hits, expected in zip(queries, retriever.search(queries, 7), exact, strict=True):
            found = [position for position in np.argsort(-expected) if part != "lexical" or expected[position] > 0]
            np.testing.assert_allclose(hits.scores, expected[found], rtol=1e-5, atol=1e-5)
            assert retriever.score([text], [hits.doc_ids]) == [list(hits.scores)]
            assert len(hits.doc_ids) == len({*hits.doc_ids}) == len(found)
    with pytest.raises(DrkitError, match=r"'inverted' .*'words'"):
        Retriever(loaded, index, part="words")


def test_what_cannot_be_exported_is_refused(tmp_path):
    for how, match in (
        ({"similarity": "cosine"}, "similarity = 'dot'"),
        ({"normalize": True}, "normalize"),
        ({"truncate_dim": 5}, "truncate_dim"),
    ):
        with pytest.raises(DrkitError, match=match):
            export_made(masked_lm(), tokenizer(), tmp_path / "e", learned_pooling=pooling({}), **{**HOW, **how})
    assert not (tmp_path / "e").exists()
    export_made(masked_lm(), tokenizer(), tmp_path / "e", learned_pooling=pooling({}), **HOW)
    with pytest.raises(DrkitError, match=r"/e .*LM head.*--backend torch"):
        TextEncoder.load(tmp_path / "e", backend="openvino")
    config = json.loads((tmp_path / "e" / "1_SpladePooling" / "config.json").read_text())
    changed = {**config, "activation_function": "log1p_relu"}
    (tmp_path / "e" / "1_SpladePooling" / "config.json").write_text(json.dumps(changed))
    with pytest.raises(DrkitError, match="activation"):
        TextEncoder.load(tmp_path / "e")


RUN = (
    *("encoder.vocab_size=100", "encoder.layers=1", "encoder.hidden=16", "encoder.heads=2", "encoder.intermediate=32"),
    *("encoder.passage_length=16", "encoder.query_length=16", "encoder.init_embeddings=random"),
    *("encoder.lm_head=transform", "encoder.pooling=lexical"),
    *("encoder.pooling_settings.top_k=20", "pretrain=none", "finetune.max_steps=3", "evaluation.depth=20"),
    "finetune.loss={use = 'flops', passages = 0.01}",
)


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("beir")
    (folder / "qrels").mkdir()
    texts = [f"{name} {deed}" for name in ("ada", "grace", "alan", "barbara") for deed in ("proved", "wrote", "drew")]
    for kind in ("corpus", "queries"):
        rows = [json.dumps({"_id": f"{kind[0]}{n}", "text": text}) for n, text in enumerate(texts)]
        (folder / f"{kind}.jsonl").write_text("\n".join(rows))
    for number, split in enumerate(("train", "dev", "test")):
        judged = "".join(f"q{n}\tc{n}\t1\n" for n in range(len(texts)) if n % 3 == number)
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return folder


def composed(beir, *settings, pipeline="dpr"):
    wanted = ComposeRequest(collection=f"beir:{beir}", pipeline=pipeline, settings=(*RUN, *settings))
    return compose(wanted, installed())


@pytest.fixture(scope="module")
def run(beir, tmp_path_factory):
    folder, recipe = tmp_path_factory.mktemp("run") / "run", composed(beir, "finetune.validation.every=2")
    execute(plan(recipe, installed().registry).stages, folder, recipe, progress=Silent(), registry=installed().registry)
    return folder


def test_a_run_trains_exports_and_evaluates_it(run, run_drkit):
    from sentence_transformers import SparseEncoder

    results = json.loads((run / "evaluation" / "results.json").read_text())
    assert {"bm25", "retriever-1", "hybrid"} <= {row["system"] for row in results["rows"]}
    encoder = TextEncoder.load(run / "encoder")
    vectors = encoder.encode_passages(["ada proved", "grace wrote"])
    assert vectors.min() == 0 < (vectors > 0).sum(1).max() <= 20
    theirs = SparseEncoder(str(run / "encoder"), device="cpu", local_files_only=True)
    np.testing.assert_allclose(theirs.encode(["ada proved", "grace wrote"]).to_dense(), vectors, atol=1e-5)
    assert open_index(run / "index").kind == "inverted"
    log = [json.loads(line) for line in (run / "retriever-1" / "log.jsonl").read_text().splitlines()]
    assert any("flops_passages" in line and line["words_passages"] <= 20 for line in log)
    code, out, err = run_drkit("search", run, "grace wrote")
    assert code == 0, err
    assert "c4" in out


def test_the_table_of_a_run_has_the_vector_the_scores_and_their_sum(beir, tmp_path):
    recipe, registry = composed(beir, "encoder.pooling_settings.dense=mean"), installed().registry
    check(recipe, registry)
    execute(plan(recipe, registry).stages, tmp_path / "run", recipe, progress=Silent(), registry=registry)
    results = json.loads((tmp_path / "run" / "evaluation" / "results.json").read_text())
    rows = [row["system"] for row in results["rows"]]
    assert rows[rows.index("retriever-1-dense") :][:3] == ["retriever-1-dense", "retriever-1-lexical", "retriever-1"]
    assert TextEncoder.load(tmp_path / "run" / "encoder").dense_dimension == 16
    log = (tmp_path / "run" / "retriever-1" / "log.jsonl").read_text().splitlines()
    words = [line["words_passages"] for line in map(json.loads, log) if "words_passages" in line]
    assert words
    assert max(words) <= 20, "without the 16 numbers of the vector"
    runs = [list(read_run(tmp_path / "run" / "runs" / f"{name}.arrow")) for name in rows[-4:-1]]
    assert runs[0] != runs[1] != runs[2]


def test_an_lm_head_that_is_to_score_words_gets_a_centered_bias_once(run, beir, tmp_path):
    def bias(folder):
        return MaskedLmEncoder.from_pretrained(str(folder), pooling="lexical").model.cls.predictions.bias

    assert bias(run / "initial").mean().item() == pytest.approx(0, abs=1e-6) != bias(run / "retriever-1").mean().item()
    ids = torch.tensor([[2, 5, 6, 3]])
    encoder = MaskedLmEncoder(masked_lm().eval())
    with torch.no_grad():
        encoder.set_lm_bias(torch.arange(28.0))
        before = encoder.model(ids).logits.softmax(-1)
        encoder.center_lm_bias()
        torch.testing.assert_close(encoder.model(ids).logits.softmax(-1), before)
    wanted = ComposeRequest(
        collection=f"beir:{beir}",
        pipeline="dpr",
        encoder=str(run / "encoder"),
        settings=("pretrain=none", "finetune.max_steps=1", RUN[-1], "evaluation.depth=20", "finetune.bf16=false"),
    )
    recipe, registry = compose(wanted, installed()), installed().registry
    assert recipe.encoder.pooling == Choice("lexical", LexicalConfig(top_k=20))
    execute(plan(recipe, registry).stages, tmp_path / "run", recipe, progress=Silent(), registry=registry)
    torch.testing.assert_close(bias(tmp_path / "run" / "initial"), bias(run / "retriever-1"), atol=0, rtol=0)


def test_commands_encode_index_search_and_evaluate_it(run, beir, run_drkit, tmp_path):
    collection = f"beir:{beir}"
    for arguments in (
        ("encode", "--encoder", run, "--collection", collection, "-o", tmp_path / "v"),
        ("index", tmp_path / "v", "-o", tmp_path / "i"),
        ("evaluate", "--encoder", run, "--collection", collection),
    ):
        code, out, err = run_drkit(*arguments)
        assert code == 0, err
    assert "nDCG@10" in out
    assert open_index(tmp_path / "i").kind == "inverted"


def test_recipes_that_cannot_work_are_refused(beir):
    for setting, message in (
        ("encoder.lm_head=tied", "'tied'"),
        ("encoder.layers=0", "static encoder .*'lexical'"),
        ("finetune.loss={use = 'contrastive'}", "dot product"),
        ("pretrain={encoder = {masker = {use = 'uniform'}, losses = {mlm = {use = 'mlm'}}}}", "decoder"),
        ("finetune.encoders=separate", "shared encoder"),
        ("evaluation.index=hnsw", "exact index"),
        ("encoder.pooling_settings.top_k=-1", "'top_k' must be >= 0"),
    ):
        with pytest.raises(ProblemsError, match=message):
            check(composed(beir, setting), installed().registry)
