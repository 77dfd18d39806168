"""Probes: each figure against its meaning, no influence on what is trained, no text probed that was trained on."""

import json
from functools import cache, partial

import ir_measures
import numpy as np
import pytest
import torch
from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from drkit.core.files import read_log
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.core.types import BuildContext, Judgement, Passage, Query
from drkit.data.contexts import PretrainingTexts
from drkit.data.corpus import open_collection
from drkit.data.spans import Spans
from drkit.data.store import TokenStore, tokenise
from drkit.data.writing import write_collection
from drkit.decoders import MlmDecoder
from drkit.decoders.layers import visibility_rows
from drkit.decoders.specs import MlmDecoderConfig
from drkit.encoders import BertSizes, MaskedLmEncoder
from drkit.losses import MlmLoss
from drkit.maskers import UniformMasker
from drkit.maskers.specs import UniformConfig
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import parse_toml, recipe_from_table, recipe_toml
from drkit.recipe.training import Probe
from drkit.runs.execute import execute
from drkit.runs.manifest import read_manifest
from drkit.runs.plan import plan
from drkit.train.pretrain import AutoEncoder, DecoderText, MaskingCollator, Term
from drkit.train.probes import (
    EPOCH,
    ProbeLog,
    anisotropy,
    held_out,
    measure_branches,
    probe_line,
    top_direction,
)
from drkit.train.retrieval_probe import retrieval_probe
from tests.refusals import says
from tests.search.made import reader_of

PARTS = installed()
TOPICS = 20
WORDS = [f"w{topic}-{word}" for topic in range(TOPICS) for word in range(3)]


@cache
def tokenizer():
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, **{f"{n}_token": f"[{n.upper()}]" for n in ("pad", "unk", "cls", "sep", "mask")}
    )


def topical(count, rng):
    """Texts of twelve words of one topic each: who knows the topic knows two thirds of what there is to know."""
    topics = np.arange(count) % TOPICS
    return [" ".join(f"w{topic}-{word}" for word in rng.integers(0, 3, 12)) for topic in topics]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    texts = topical(160, np.random.default_rng(0))
    tokenise(((str(i), text) for i, text in enumerate(texts)), tokenizer(), folder, max_length=16)
    return TokenStore.open(folder)


class Deaf(MlmDecoder):
    """Rebuilds the text without listening to the encoder."""

    def forward(self, inputs, heads):
        silent = evolve(inputs.encoded, bottleneck=torch.zeros_like(inputs.encoded.bottleneck))
        return super().forward(evolve(inputs, encoded=silent), heads)


def make(decoder, store, *, dropout=0.0):
    """(module, its collator): the decoder sees a tenth of the words."""
    sizes = BertSizes(hidden=32, layers=1, heads=2, intermediate=64, max_positions=16, dropout=dropout)
    encoder = MaskedLmEncoder.from_scratch(sizes, tokenizer(), pooling="cls", seed=1)
    context = BuildContext(backbone=encoder.info(tokenizer()), tokenizer=tokenizer(), seed=1)
    masker, harder = (UniformMasker(UniformConfig(ratio=ratio), context) for ratio in (0.3, 0.9))
    built = decoder(MlmDecoderConfig(layers=1), context)
    terms = {side: Term(MlmLoss(), ("token_states",), side) for side in ("encoder", "decoder")}
    rebuilt = {"decoder": DecoderText(harder, partial(visibility_rows, built))}
    collate = MaskingCollator(PretrainingTexts(store), masker, seed=3, decoders=rebuilt)
    return AutoEncoder(encoder, {"decoder": built}, terms), collate


def trained(module, collate, indices, steps=150):
    optimizer = torch.optim.AdamW(module.parameters(), lr=5e-3)
    for step in range(steps):
        chosen = np.random.default_rng(step).choice(indices, 32, replace=False)
        out = module(**collate([(step, int(index)) for index in chosen]))
        optimizer.zero_grad()
        (out["loss.encoder"] + out["loss.decoder"]).backward()
        optimizer.step()
    return module


def probed(module, collate, indices, size=16):
    parts = np.array_split(indices, -(-len(indices) // size))
    return measure_branches(module, [collate([(EPOCH, int(index)) for index in part]) for part in parts])


def test_gain_is_what_the_decoder_gets_from_the_vector(store):
    indices, kept = held_out(len(store), 16, seed=0)
    hearing = probed(trained(*make(MlmDecoder, store), indices), make(MlmDecoder, store)[1], kept)
    deaf_module, collate = make(Deaf, store)
    untrained = probed(make(MlmDecoder, store)[0], collate, kept)
    deaf = probed(trained(deaf_module, collate, indices), collate, kept)
    assert abs(deaf["gain"]) < 1e-6
    assert abs(untrained["gain"]) < 0.05
    assert hearing["gain"] > 1.0, "the topic is worth log(20) at most, and little else tells it"
    assert hearing["decoder_loss"] < deaf["decoder_loss"] - 0.5
    assert hearing["decoder_accuracy"] > deaf["decoder_accuracy"]
    assert hearing["encoder_accuracy"] > untrained["encoder_accuracy"] + 0.1


def test_figures_are_means_over_targets_written_out(store):
    module, collate = make(MlmDecoder, store)
    batch = collate([(EPOCH, index) for index in range(10)])
    found = measure_branches(module, [batch])
    with torch.no_grad():
        views, _ = module.filled_views(batch)
        outputs = module.outputs(module.encode(views, batch), views, batch)
        for branch in ("encoder", "decoder"):
            states = outputs[branch]["token_states"]
            logits = states.heads.logits(states.states)
            loss = torch.nn.functional.cross_entropy(logits, states.labels)
            assert found[f"{branch}_loss"] == pytest.approx(loss.item(), rel=1e-5)
            assert found[f"{branch}_accuracy"] == pytest.approx(
                (logits.argmax(1) == states.labels).float().mean().item()
            )


def test_the_size_of_batches_does_not_matter_but_to_the_exchange(store):
    module, collate = make(MlmDecoder, store)
    few, many = (probed(module, collate, np.arange(32), size) for size in (32, 8))
    for name in ("encoder_loss", "decoder_loss", "encoder_accuracy", "decoder_accuracy"):
        assert few[name] == pytest.approx(many[name], rel=1e-4)


def test_measuring_leaves_no_trace(store):
    module, collate = make(MlmDecoder, store, dropout=0.2)
    module.train()
    module.decoders["decoder"].eval()  # a part whose mode is its own business
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert probed(module, collate, np.arange(16)) == probed(module, collate, np.arange(16)), "no dropout"
    assert torch.equal(torch.rand(3), expected)
    assert module.training
    assert module.encoder.training
    assert not module.decoders["decoder"].training
    assert all(torch.equal(tensor, weights[name]) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_anisotropy_of_known_vectors():
    assert anisotropy(np.eye(5)) == 0.0
    assert anisotropy(np.outer([1.0, 2.0, 7.0], [3.0, 4.0])) == pytest.approx(1.0)
    assert anisotropy(np.array([[1.0, 0.0], [-1.0, 0.0]])) == -1.0
    assert np.isnan(anisotropy(np.ones((1, 3))))
    assert top_direction(np.array([[0.0, 9.0], [1.0, 9.0]])) == 1.0
    square = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    assert top_direction(square + 100) == pytest.approx(0.5)


@given(st.integers(0, 1000))
def test_anisotropy_equals_the_mean_over_pairs(seed):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(rng.integers(2, 9), 4)) + rng.normal(size=4)
    cosines = [
        a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        for i, a in enumerate(vectors)
        for j, b in enumerate(vectors)
        if i != j
    ]
    assert anisotropy(vectors) == pytest.approx(np.mean(cosines), abs=1e-9)


@given(count=st.integers(1, 400), texts=st.integers(0, 60), seed=st.integers(0, 9))
def test_held_out_texts_are_a_tenth_at_most_and_the_same_each_time(count, texts, seed):
    indices, kept = held_out(count, texts, seed=seed)
    assert len(kept) == min(texts, count // 10)
    assert sorted([*indices, *kept]) == list(range(count))
    assert (held_out(count, texts, seed=seed)[1] == kept).all()


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=60), texts=st.integers(0, 30), seed=st.integers(0, 9))
def test_documents_are_kept_out_whole(sizes, texts, seed):
    documents = np.repeat(np.arange(len(sizes)) * 3, sizes)
    indices, kept = held_out(len(documents), texts, seed=seed, documents=documents)
    assert sorted([*indices, *kept]) == list(range(len(documents)))
    assert len(kept) <= min(texts, len(documents) // 10)
    assert not set(documents[indices]) & set(documents[kept])


@frozen
class Topics:
    """Sixty passages; queries of two words of a topic, each with one or two judged passages."""

    name: str = "topics"
    shown: tuple[str, ...] = ("train", "dev", "test")

    def passages(self):
        return (Passage(f"d{i}", text) for i, text in enumerate(topical(60, np.random.default_rng(1))))

    def splits(self):
        return self.shown

    def queries(self, split):
        return (Query(f"{split}{i}", f"w{i}-0 w{i}-1") for i in range(TOPICS))

    def judgements(self, split):
        for i in range(TOPICS):
            yield Judgement(f"{split}{i}", f"d{i}", 1)
            yield Judgement(f"{split}{i}", f"d{i + 20}", i % 2)

    def describe(self):
        return {}


@pytest.fixture(scope="module")
def topics(tmp_path_factory):
    def stored(*splits):
        folder = tmp_path_factory.mktemp("topics")
        write_collection(Topics(shown=splits), folder)
        return open_collection(folder)

    return stored


def test_the_retrieval_probe_equals_ir_measures_over_a_full_ranking(topics, tmp_path, store):
    collection = topics("train", "dev", "test")
    tokenise(((p.doc_id, p.content) for p in collection.corpus), tokenizer(), tmp_path, max_length=16)
    passages = TokenStore.open(tmp_path)
    probe = retrieval_probe(collection, Probe(queries=12, passages=40), seed=4)
    assert (probe.split, len(probe.queries), len(probe.indices)) == ("dev", 12, 40)
    encoder = reader_of(make(MlmDecoder, store)[0].encoder.backbone, tokenizer(), query_length=16, passage_length=16)
    found = probe.measure(encoder, passages)
    texts = [passage.content for passage in collection.corpus.at(probe.indices)]
    scores = encoder.encode_queries([q.text for q in probe.queries]) @ encoder.encode_passages(texts).T
    names = [passage.doc_id for passage in collection.corpus.at(probe.indices)]
    run = {
        q.query_id: dict(zip(names, map(float, row), strict=True)) for q, row in zip(probe.queries, scores, strict=True)
    }
    asked = {query.query_id for query in probe.queries}
    qrels = [
        ir_measures.Qrel(j.query_id, j.doc_id, j.relevance) for j in collection.judgements("dev") if j.query_id in asked
    ]
    expected = ir_measures.calc_aggregate([ir_measures.RR @ 10], qrels, run)[ir_measures.RR @ 10]
    assert 0 < expected < 1
    assert found == pytest.approx(expected, abs=1e-9)
    assert {j.doc_id for j in collection.judgements("dev") if j.query_id in asked and j.relevance > 0} <= set(names)


def test_the_queries_of_the_probe(topics):
    settings = Probe(queries=5, passages=30)
    assert retrieval_probe(topics("train", "test"), settings, seed=1).split == "train"
    assert retrieval_probe(topics("test"), settings, seed=1) is None, "never the queries that a run is evaluated on"
    assert retrieval_probe(topics("dev"), Probe(queries=0), seed=1) is None
    one, two = (retrieval_probe(topics("dev"), settings, seed=seed) for seed in (1, 2))
    assert one.queries != two.queries
    again = retrieval_probe(topics("dev"), settings, seed=1)
    assert again.queries == one.queries
    assert (again.indices == one.indices).all()
    narrow = retrieval_probe(topics("dev"), Probe(queries=20, passages=10), seed=1)
    assert len(narrow.indices) == 10
    assert 0 < len(narrow.queries) <= 5, "judged passages fill half of the index at most"


def test_the_log_keeps_what_came_before_the_step_resumed_from(tmp_path):
    log = ProbeLog(tmp_path)
    log.resume()
    for step in (0, 2, 4):
        log.add({"step": step, "gain": step / 10})
    (kept,) = (tmp_path / "checkpoints" / "callbacks").iterdir()
    at_five = kept.read_bytes()
    log.add({"step": 6, "gain": 0.6})
    kept.write_bytes(at_five)  # what resuming from the checkpoint of step 5 restores
    again = ProbeLog(tmp_path)
    again.resume()
    assert again.has(4)
    assert not again.has(6)
    again.add({"step": 6, "gain": 0.6})
    assert [record["step"] for record in read_log(again.path)] == [0, 2, 4, 6]
    assert [json.loads(line)["gain"] for line in again.path.read_text().splitlines()] == [0.0, 0.2, 0.4, 0.6]


def test_a_line_says_what_was_measured_and_no_more():
    assert probe_line({"step": 1500, "gain": -0.004}) == "probe @ 1,500: gain 0.00 nats"
    assert probe_line({"step": 0}).startswith("probe @ 0: ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The topics in the BEIR layout."""
    path = tmp_path_factory.mktemp("beir")
    (path / "qrels").mkdir()
    made = Topics()
    rows = [json.dumps({"_id": p.doc_id, "title": "", "text": p.text}) for p in made.passages()]
    (path / "corpus.jsonl").write_text("\n".join(rows))
    queries = [query for split in made.shown for query in made.queries(split)]
    (path / "queries.jsonl").write_text("\n".join(json.dumps({"_id": q.query_id, "text": q.text}) for q in queries))
    for split in made.shown:
        lines = [f"{j.query_id}\t{j.doc_id}\t{j.relevance}" for j in made.judgements(split)]
        (path / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]))
    return path


SETTINGS = (
    *("encoder.vocab_size=100", "encoder.hidden=16", "encoder.heads=2", "encoder.intermediate=32"),
    *("encoder.passage_length=32", "encoder.dropout=0.2", "encoder.init_embeddings=random"),
    *("pretrain.max_steps=9", "pretrain.per_device_train_batch_size=8", "pretrain.save_steps=2"),
    *("pretrain.probe.every=2", "pretrain.probe.queries=8", "pretrain.probe.passages=30"),
)


class Heard(Silent):
    """Keeps the notes; stops the run at a step of the training."""

    def __init__(self, stop=None):
        self.notes, self.stop = [], stop

    def note(self, text):
        self.notes.append(text)

    def advance(self, done, total, unit, **metrics):
        if unit == "steps" and done == self.stop:
            raise KeyboardInterrupt


def pretrained(folder, run, *settings, masker="uniform", decoder="enhanced", pipeline="two-stage", progress=None):
    """The folder of a finished pre-training."""
    wanted = ComposeRequest(
        masker=masker,
        decoder=decoder,
        pipeline=pipeline,
        collection=f"beir:{folder}",
        settings=(*SETTINGS, *settings),
    )
    recipe = compose(wanted, PARTS)
    stages = plan(recipe, PARTS.registry).stages
    names = [stage.name for stage in stages]
    upto = stages[: names.index("pretrained") + 1]
    execute(upto, run, recipe, registry=PARTS.registry, progress=progress or Silent())
    return run / "pretrained"


@pytest.fixture(scope="module")
def uninterrupted(folder, tmp_path_factory):
    """The folder of a whole pre-training with some settings, made once."""
    return cache(lambda *settings: pretrained(folder, tmp_path_factory.mktemp("whole"), *settings))


def weights_of(stage):
    return {path.name: path.read_bytes() for path in sorted(stage.glob("*.safetensors"))}


def test_a_training_with_probes_and_one_without_end_with_the_same_weights(folder, tmp_path):
    heard = Heard()
    with_probes = pretrained(folder, tmp_path / "with", progress=heard)
    without = pretrained(folder, tmp_path / "without", "pretrain.probe.every=0")
    assert weights_of(with_probes) == weights_of(without)
    assert not (without / "probes.jsonl").exists()
    records = read_log(with_probes / "probes.jsonl")
    assert [record["step"] for record in records] == [0, 2, 4, 6, 8, 9]
    for record in records:
        assert {"encoder_accuracy", "main_accuracy", "gain", "anisotropy", "RR@10"} <= record.keys()
        assert all(np.isfinite(value) for value in record.values())
    said = [note for note in heard.notes if note.startswith("probe @ ")]
    assert said == [probe_line(record) for record in records]
    assert any(says(note, "6 texts", "8 dev queries", "30 passages") for note in heard.notes)


@pytest.mark.parametrize("stop", [1, 5, 9])
def test_resumed_probes_equal_uninterrupted_ones(folder, uninterrupted, tmp_path, stop):
    whole = uninterrupted()
    with pytest.raises(KeyboardInterrupt):
        pretrained(folder, tmp_path / "cut", progress=Heard(stop))
    resumed = pretrained(folder, tmp_path / "cut")
    assert (resumed / "probes.jsonl").read_bytes() == (whole / "probes.jsonl").read_bytes()
    assert weights_of(resumed) == weights_of(whole)


def planned(folder, *settings):
    wanted = ComposeRequest(collection=f"beir:{folder}", settings=(*SETTINGS, *settings))
    return {stage.name: stage for stage in plan(compose(wanted, PARTS), PARTS.registry).stages}


def test_probes_search_for_queries_that_are_not_evaluated(folder):
    elsewhere = planned(folder, "evaluation.split=dev")["pretrained"]
    assert {"probe/train", "probe/dev"} & elsewhere.inputs.keys() == {"probe/train"}
    assert {"probe/train", "probe/dev"} & planned(folder)["pretrained"].inputs.keys() == {"probe/dev"}


def test_a_collection_without_other_queries_than_those_evaluated_on_is_probed_by_its_texts(folder, tmp_path):
    for name in ("corpus.jsonl", "queries.jsonl"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_bytes((folder / "qrels" / "test.tsv").read_bytes())
    stage = pretrained(tmp_path, tmp_path / "run", pipeline=None)
    assert not any("RR@10" in record for record in read_log(stage / "probes.jsonl"))
    assert read_manifest(stage).metrics["steps"] == 9


@pytest.mark.parametrize("context", ["self", "span"])
def test_texts_kept_out_are_never_trained_on(folder, tmp_path, monkeypatch, context):
    seen = set()
    batch = TokenStore.batch

    def watched(self, indices, **options):
        seen.update(np.asarray(indices).tolist())
        return batch(self, indices, **options)

    monkeypatch.setattr(TokenStore, "batch", watched)
    settings = ("pretrain.probe.every=0", "pretrain.max_steps=-1", "pretrain.num_train_epochs=6")
    stage = pretrained(folder, tmp_path / "run", *settings, f"pretrain.decoders.main.context={context}")
    documents = Spans.open(stage.parent / "spans").documents if context == "span" else np.arange(60)
    indices, kept = held_out(len(documents), 256, seed=42, documents=documents)
    assert 0 < len(kept) == read_manifest(stage).metrics["held_out"] <= len(documents) // 10
    assert seen == set(indices.tolist()), "as a text or as another text's context"


def test_how_often_is_probed_changes_no_training_and_how_many_texts_does(folder):
    def fingerprint(*settings):
        stage = planned(folder, *settings)["pretrained"]
        return stage.fingerprint(dict.fromkeys(stage.inputs, ""))

    assert fingerprint() == fingerprint("pretrain.probe.every=7", "pretrain.probe.queries=3")
    assert fingerprint() != fingerprint("pretrain.probe.texts=3")
    assert fingerprint() == fingerprint("encoder.query_prompt='ask: '")


@pytest.mark.parametrize("paper", [None, "retromae"])
def test_the_settings_are_part_of_every_recipe(paper):
    wanted = ComposeRequest(paper=paper, encoder="some/encoder", settings=("pretrain.probe.every=100",))
    recipe = compose(wanted, PARTS)
    assert recipe.pretrain.probe == Probe(every=100)
    assert recipe_from_table(parse_toml(recipe_toml(recipe), "text"), PARTS.registry) == recipe
