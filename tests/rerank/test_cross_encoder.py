"""Cross-encoders: every architecture, made, saved, loaded again, by sentence-transformers too; and what is refused."""

import copy
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drkit.encoders import CrossEncoder
from drkit.encoders.architectures import architecture
from drkit.encoders.cross_encoder import PairTokenizer, join_pairs
from drkit.errors import DrkitError
from tests.encoders.toys import NAMES, tiny
from tests.search.made import export_made

PAIRS = [
    ("how to open a file", "open a file with open and read what is in it"),
    ("a query", ""),
    ("", "a passage without a query"),
    ("überall größer", "naïve 北京 text"),
    ("short", "a long passage that goes on " * 40),
]


@pytest.fixture
def checkpoint(tmp_path):
    def saved(name="bert", folder="lm", **changes):
        model, tokenizer = tiny(name, **changes)
        model.save_pretrained(tmp_path / folder)
        tokenizer.save_pretrained(tmp_path / folder)
        return str(tmp_path / folder)

    return saved


def scores(encoder, pairs=PAIRS):
    queries, passages = (encoder.pairs.encode(texts) for texts in zip(*pairs, strict=True))
    with torch.no_grad():
        return encoder.eval()(**encoder.pairs.batch(queries, passages)).numpy()


@pytest.mark.parametrize("name", NAMES)
def test_sentence_transformers_loads_it_and_scores_alike(checkpoint, tmp_path, name):
    from sentence_transformers import CrossEncoder as Theirs

    made = CrossEncoder.start_from(checkpoint(name), max_length=48, seed=3)
    folder = made.save(tmp_path / "re-ranker")
    loaded, theirs = CrossEncoder.load(str(folder)), Theirs(str(folder), device="cpu")
    assert loaded.max_length == theirs.max_seq_length == 48
    mine = scores(made)
    assert len(set(mine.tolist())) == len(PAIRS), "the scores tell the pairs apart"
    np.testing.assert_array_equal(scores(loaded), mine)
    np.testing.assert_allclose(theirs.predict(PAIRS, show_progress_bar=False), mine, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "modernbert"])
def test_layers_are_copied_in_order_and_saved(checkpoint, tmp_path, name):
    from sentence_transformers import CrossEncoder as Theirs

    start = checkpoint(name)
    whole = CrossEncoder.start_from(start, max_length=48, seed=3)
    made = CrossEncoder.start_from(start, max_length=48, seed=3, layers=5)
    tower = architecture(whole.config.model_type).layers
    before, after = (list(one.model.base_model.get_submodule(tower)) for one in (whole, made))
    assert (len(after), made.config.num_hidden_layers) == (5, 5)
    for index, layer in enumerate(after):
        for key, weight in before[index % len(before)].state_dict().items():
            torch.testing.assert_close(layer.state_dict()[key], weight, rtol=0, atol=0)
    assert after[0] is not after[len(before)], "copies learn apart"
    folder = made.save(tmp_path / "re-ranker")
    mine = scores(made)
    assert not np.allclose(mine, scores(whole))
    np.testing.assert_array_equal(scores(CrossEncoder.load(str(folder))), mine)
    theirs = Theirs(str(folder), device="cpu").predict(PAIRS, show_progress_bar=False)
    np.testing.assert_allclose(theirs, mine, atol=1e-6)


def test_no_layer_is_cut_off(checkpoint):
    start = checkpoint()
    whole, asked = (CrossEncoder.start_from(start, max_length=48, seed=3, layers=layers) for layers in (0, 1))
    assert asked.config.num_hidden_layers == whole.config.num_hidden_layers > 1
    np.testing.assert_array_equal(scores(asked), scores(whole))


def test_layers_that_are_not_alike_are_no_copies_of_one_another(checkpoint):
    with pytest.raises(DrkitError, match=r"modernbert .*layers = 0"):
        CrossEncoder.start_from(checkpoint("modernbert"), max_length=48, layers=9)


def test_a_folder_of_theirs_is_read(checkpoint, tmp_path):
    from sentence_transformers import CrossEncoder as Theirs

    CrossEncoder.start_from(checkpoint(), max_length=40).save(tmp_path / "first")
    theirs = Theirs(str(tmp_path / "first"), device="cpu")
    theirs.save_pretrained(str(tmp_path / "theirs"))
    read = CrossEncoder.load(str(tmp_path / "theirs"))
    assert read.max_length == 40
    np.testing.assert_allclose(scores(read), theirs.predict(PAIRS, show_progress_bar=False), atol=1e-6)


def test_the_new_head_follows_the_seed_and_leaves_the_global_one_alone(checkpoint):
    start = checkpoint()
    before = torch.get_rng_state()
    first, again, other = (CrossEncoder.start_from(start, max_length=32, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    weights = [encoder.model.classifier.weight for encoder in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_encoder_is_the_checkpoints_own(checkpoint):
    model, _ = tiny("bert")
    made = CrossEncoder.start_from(checkpoint(), max_length=32)
    for name, weight in model.bert.named_parameters():
        assert torch.equal(made.model.bert.get_parameter(name), weight), name


def test_an_exported_encoder_may_be_started_from(checkpoint, tmp_path):

    model, tokenizer = tiny("bert")
    lengths = {"query_length": 8, "passage_length": 16}
    export_made(model, tokenizer, tmp_path / "encoder", pooling="cls", similarity="dot", **lengths)
    made = CrossEncoder.start_from(str(tmp_path / "encoder"), max_length=32)
    embedded = made.model.bert.embeddings.word_embeddings.weight
    assert torch.equal(embedded, model.bert.embeddings.word_embeddings.weight)
    assert made.max_length == 32


def test_a_re_ranker_may_be_gone_on_with(checkpoint, tmp_path):
    made = CrossEncoder.start_from(checkpoint(), max_length=32, seed=5)
    made.save(tmp_path / "first")
    again = CrossEncoder.start_from(str(tmp_path / "first"), max_length=40, seed=6)
    assert torch.equal(again.model.classifier.weight, made.model.classifier.weight)


def test_a_query_is_whole_up_to_half_of_the_length(checkpoint):
    encoder = CrossEncoder.start_from(checkpoint(), max_length=24)
    query, passage = "file " * 9, "open " * 50
    (q,), (p,) = encoder.pairs.encode([query]), encoder.pairs.encode([passage])
    assert len(q) <= 10 < len(p)
    batch = encoder.pairs.batch([q], [p])
    ids = batch["ids"][0, : int(batch["attention"].sum())].tolist()
    assert len(ids) == 24
    assert ids[1 : 1 + len(q)] == q.tolist()
    assert ids[2 + len(q) : -1] == p[: 24 - 3 - len(q)].tolist()


WORDS = st.lists(st.sampled_from(["file", "open", "a", "list", "überall", "read"]), max_size=60).map(" ".join)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4), max_length=st.integers(6, 40))
@pytest.mark.parametrize("side", ["left", "right"])
def test_long_pairs_are_cut_as_the_tokenizer_cuts_them(side, pairs, max_length):
    tokenizer = copy.deepcopy(tiny("bert")[1])
    tokenizer.truncation_side = side
    join_pairs(tokenizer, types=True)
    mine = PairTokenizer.of(tokenizer, max_length=max_length, longest=80, types=True)
    queries, passages = (mine.encode(texts) for texts in zip(*pairs, strict=True))
    batch = mine.batch(queries, passages)
    theirs = tokenizer(pairs, truncation="longest_first", max_length=max_length, return_token_type_ids=True)
    lengths = batch["attention"].sum(1).tolist()
    assert mine.lengths(queries, passages).tolist() == lengths
    for name, key in (("ids", "input_ids"), ("types", "token_type_ids")):
        assert [row[:n].tolist() for row, n in zip(batch[name], lengths, strict=True)] == theirs[key]


LONG = [
    ("how to open a file " * 3, "a long passage that goes on " * 40),
    ("a long query that goes on and on " * 30, "read what is in the list"),
    ("a long query that goes on and on " * 30, "then a long passage too, with other words " * 20),
    ("one list of all " * 20, "one list of all " * 20),
]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("max_length", [48, 49])
def test_long_pairs_score_as_in_sentence_transformers(checkpoint, tmp_path, side, max_length):
    from sentence_transformers import CrossEncoder as Theirs

    start = checkpoint("bert", initializer_range=0.3)
    edit(f"{start}/tokenizer_config.json", truncation_side=side)
    made = CrossEncoder.start_from(start, max_length=max_length, seed=3)
    theirs = Theirs(str(made.save(tmp_path / "re-ranker")), device="cpu")
    expected = theirs.predict(LONG, show_progress_bar=False)
    assert theirs.tokenizer.truncation_side == side
    np.testing.assert_allclose(scores(made, LONG), expected, atol=1e-5)
    np.testing.assert_allclose(scores(CrossEncoder.load(str(tmp_path / "re-ranker")), LONG), expected, atol=1e-5)
    theirs.save_pretrained(str(tmp_path / "theirs"))
    np.testing.assert_allclose(scores(CrossEncoder.load(str(tmp_path / "theirs")), LONG), expected, atol=1e-5)


def test_the_side_that_is_cut_changes_the_scores(checkpoint):
    start = checkpoint("bert", initializer_range=0.3)
    right = scores(CrossEncoder.start_from(start, max_length=48, seed=3), LONG[:3])
    edit(f"{start}/tokenizer_config.json", truncation_side="left")
    assert np.abs(scores(CrossEncoder.start_from(start, max_length=48, seed=3), LONG[:3]) - right).min() > 1e-4


def edit(path, **changes):
    """Change keys of a JSON file, which need not exist."""
    path = Path(path)
    found = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**found, **changes}))


def test_a_declared_length_and_truncation_are_read(checkpoint, tmp_path):
    from sentence_transformers import CrossEncoder as Theirs

    CrossEncoder.start_from(checkpoint(initializer_range=0.3), max_length=60).save(tmp_path / "a")
    first = Theirs(str(tmp_path / "a"), device="cpu")
    first[0].processing_kwargs = {"text": {"truncation": "longest_first"}}
    first.save_pretrained(str(tmp_path / "b"))
    edit(tmp_path / "b" / "sentence_bert_config.json", max_seq_length=30)
    read, theirs = CrossEncoder.load(str(tmp_path / "b")), Theirs(str(tmp_path / "b"), device="cpu")
    assert read.max_length == theirs.max_seq_length == 30
    np.testing.assert_allclose(scores(read, LONG), theirs.predict(LONG, show_progress_bar=False), atol=1e-5)


def test_settings_of_a_module_count_only_in_a_list_of_modules(checkpoint, tmp_path):
    from sentence_transformers import CrossEncoder as Theirs

    folder = CrossEncoder.start_from(checkpoint(), max_length=60).save(tmp_path / "a")
    edit(folder / "sentence_bert_config.json", max_seq_length=30, do_lower_case=True)
    read, theirs = CrossEncoder.load(str(folder)), Theirs(str(folder), device="cpu")
    assert read.max_length == theirs.max_seq_length == 60
    np.testing.assert_allclose(scores(read, LONG), theirs.predict(LONG, show_progress_bar=False), atol=1e-5)


@pytest.mark.parametrize(
    ("file", "changes", "named"),
    [
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"truncation": "only_second"}}}, "only_second"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"max_length": 9}}}, "processing_kwargs"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case"),
        ("sentence_bert_config.json", {"transformer_task": "text-generation"}, "transformer_task"),
        ("sentence_roberta_config.json", {"do_lower_case": True}, "do_lower_case"),
        ("config_sentence_transformers.json", {"prompts": {"q": "a file "}, "default_prompt_name": "q"}, "'q'"),
        ("config_sentence_transformers.json", {"something": 1}, "something"),
    ],
)
def test_what_a_folder_declares_besides_is_refused_by_name(checkpoint, tmp_path, file, changes, named):
    folder = CrossEncoder.start_from(checkpoint(), max_length=40).save(tmp_path / "re-ranker")
    (folder / "modules.json").write_text(
        json.dumps([{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}])
    )
    edit(folder / file, **changes)
    with pytest.raises(DrkitError, match=f"{file}.*{named}"):
        CrossEncoder.load(str(folder))


def test_prompts_that_no_pair_gets_are_no_obstacle(checkpoint, tmp_path):
    folder = CrossEncoder.start_from(checkpoint(), max_length=40).save(tmp_path / "re-ranker")
    before = scores(CrossEncoder.load(str(folder)))
    edit(folder / "config_sentence_transformers.json", prompts={"query": "q: "}, default_prompt_name=None)
    np.testing.assert_array_equal(scores(CrossEncoder.load(str(folder))), before)


def test_pairs_are_what_the_tokenizer_makes_of_two_texts(checkpoint):
    encoder = CrossEncoder.start_from(checkpoint(), max_length=48)
    for query, passage in PAIRS:
        batch = encoder.pairs.batch(encoder.pairs.encode([query]), encoder.pairs.encode([passage]))
        real = int(batch["attention"].sum())
        theirs = encoder.tokenizer([(query, passage)], truncation="longest_first", max_length=48)
        assert batch["ids"][0, :real].tolist() == theirs["input_ids"][0]
        assert batch["types"][0, :real].tolist() == theirs["token_type_ids"][0]


def test_too_few_positions(checkpoint):
    with pytest.raises(DrkitError, match=r"/lm' .*80 tokens, .*192: .*max_length"):
        CrossEncoder.start_from(checkpoint(), max_length=192)


def test_no_room(checkpoint):
    with pytest.raises(DrkitError, match=r"max_length 4 .* 5$"):
        CrossEncoder.start_from(checkpoint(), max_length=4)


@pytest.mark.parametrize("load", [CrossEncoder.load, CrossEncoder.start_from])
def test_a_folder_that_is_no_model(tmp_path, load):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DrkitError, match=r"no config\.json"):
        load(str(tmp_path / "empty"))
    with pytest.raises(DrkitError, match=r"/nowhere' .*OWNER/NAME"):
        load(str(tmp_path / "nowhere"))


def test_a_masked_lm_is_no_trained_re_ranker(checkpoint):
    with pytest.raises(DrkitError, match=r"/lm' .*cross-encoder: .*BertForMaskedLM"):
        CrossEncoder.load(checkpoint())


@pytest.mark.parametrize("load", [CrossEncoder.load, partial(CrossEncoder.start_from, max_length=32)])
def test_more_than_one_label(checkpoint, tmp_path, load):
    model, tokenizer = tiny("bert")
    model.config.num_labels = 3
    hf.BertForSequenceClassification(model.config).save_pretrained(tmp_path / "nli")
    tokenizer.save_pretrained(tmp_path / "nli")
    with pytest.raises(DrkitError, match=r"/nli' .*3 labels; .*num_labels = 1"):
        load(str(tmp_path / "nli"))


def test_a_folder_cut_off(checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = CrossEncoder.start_from(checkpoint(), max_length=32).save(tmp_path / "re-ranker")
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if "layer.1" not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DrkitError, match=r"16 missing \(bert\.encoder\.layer\.1\."):
        CrossEncoder.load(str(folder))
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(DrkitError, match=r"cross-encoder '.*/re-ranker': .*header"):
        CrossEncoder.load(str(folder))


def test_a_tokenizer_that_cannot_join_is_refused_when_loading(checkpoint, tmp_path):
    folder = CrossEncoder.start_from(checkpoint(), max_length=32).save(tmp_path / "re-ranker")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "post_processor": None}))
    with pytest.raises(DrkitError, match=r"TokenizersBackend .*tokenizer\.json .*post_processor"):
        CrossEncoder.load(str(folder))
