"""A pooling of a plugin: trained in pre-training and fine-tuning, saved, continued, exported and searched."""

import json

import numpy as np
import pytest
import torch

from drkit.core.plugin_code import PluginCode
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.encoders import MaskedLmEncoder
from drkit.encoders.folder import POOLING_FILE
from drkit.encoders.learned_pooling import LearnedPooling, read_learned_pooling
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import changed_settings, parse_toml, recipe_from_table, recipe_toml
from drkit.runs.execute import execute
from drkit.runs.manifest import read_manifest
from drkit.runs.plan import plan
from drkit.search import TextEncoder
from drkit.search.rankings import check_same_encoder
from tests.plugins.packages import forget, write_package
from tests.search.made import reader_of
from tests.search.toys import TEXTS, masked_lm, tokenizer

PLUGIN = '''
import torch
from attrs import frozen
from attrs.validators import ge
from torch import nn

from drkit.plugin import ComponentSpec, Kind, hookimpl, setting


@frozen
class AttentiveConfig:
    heads: int = setting(2, ge(1), "queries that attend to the tokens")
    size: int = setting(0, ge(0), "length of the vectors; 0: the hidden size")


class Attentive(nn.Module):
    """Means of the hidden states, weighted by learned queries, and projected."""

    def __init__(self, config, context):
        super().__init__()
        hidden = context.backbone.hidden
        self.dimension = config.size or hidden
        self.queries = nn.Parameter(torch.randn(config.heads, hidden))
        self.out = nn.Linear(config.heads * hidden, self.dimension)

    def forward(self, hidden, attention):
        scores = torch.einsum("bld,hd->bhl", hidden, self.queries)
        weights = scores.masked_fill(~attention.bool()[:, None], -torch.inf).softmax(-1)
        return self.out((weights @ hidden).flatten(1))


@hookimpl
def drkit_components():
    spec = {"kind": Kind.POOLING, "target": "attentive:Attentive", "config": AttentiveConfig}
    return [ComponentSpec(name="attentive", summary="Means weighted by learned queries", **spec)]
'''
SETTINGS = (
    *("encoder.vocab_size=100", "encoder.layers=1", "encoder.hidden=16", "encoder.heads=2", "encoder.intermediate=32"),
    *("encoder.passage_length=16", "encoder.query_length=16", "encoder.init_embeddings=random"),
    *("encoder.pooling=attentive", "encoder.pooling_settings.heads=3"),
    *("pretrain.max_steps=2", "pretrain.probe.every=0", "finetune.max_steps=2", "evaluation.depth=20"),
)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """What is installed, with a package that has the pooling `attentive`."""
    site = tmp_path_factory.mktemp("site")
    write_package(site, "attentive", PLUGIN, head="")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        installed.cache_clear()
        yield installed()
    installed.cache_clear()
    forget(site)


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("beir")
    (folder / "qrels").mkdir()
    texts = [f"{name} {deed}" for name in ("ada", "grace", "alan", "barbara") for deed in ("proved", "wrote", "drew")]
    for kind, lines in (("corpus", texts), ("queries", texts)):
        rows = [json.dumps({"_id": f"{kind[0]}{n}", "text": text}) for n, text in enumerate(lines)]
        (folder / f"{kind}.jsonl").write_text("\n".join(rows))
    for split in ("train", "test"):
        judged = "".join(f"q{n}\tc{n}\t1\n" for n in range(len(texts)) if (n % 3 == 0) == (split == "test"))
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return folder


def composed(parts, beir, *settings, **wanted):
    request = {"paper": "retromae", "pipeline": "dpr", **wanted}
    return compose(ComposeRequest(collection=f"beir:{beir}", settings=(*SETTINGS, *settings), **request), parts)


def executed(parts, recipe, folder):
    execute(plan(recipe, parts.registry).stages, folder, recipe, registry=parts.registry, progress=Silent())
    return folder


@pytest.fixture(scope="module")
def run(parts, beir, tmp_path_factory):
    return executed(parts, composed(parts, beir), tmp_path_factory.mktemp("run") / "run")


def test_it_is_trained_and_exported_and_reads_like_sentence_transformers(run, parts):
    from sentence_transformers import SentenceTransformer

    stages = ("initial", "pretrained", "retriever-1")
    initial, pretrained, retriever = (read_learned_pooling(run / name) for name in stages)
    for one, two in ((initial, pretrained), (pretrained, retriever)):
        changed = [(a - b).abs().max() > 0 for a, b in zip(one.parameters(), two.parameters(), strict=True)]
        assert all(changed), "every weight of the pooling is trained, by pre-training and by fine-tuning"
    assert retriever.settings == {"heads": 3}
    encoder = TextEncoder.load(run / "encoder")
    vectors = encoder.encode_passages(["ada proved", "grace wrote a compiler"])
    theirs = SentenceTransformer(str(run / "encoder"), device="cpu", local_files_only=True, trust_remote_code=True)
    assert "trust_remote_code=True" in (run / "encoder" / "README.md").read_text()
    assert theirs.get_embedding_dimension() == vectors.shape[1] == 16
    found = theirs.encode(["ada proved", "grace wrote a compiler"], normalize_embeddings=True)
    np.testing.assert_allclose(found, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), atol=1e-6)
    theirs.save(str(run.parent / "again"))
    np.testing.assert_array_equal(
        TextEncoder.load(run.parent / "again").encode_passages(TEXTS), encoder.encode_passages(TEXTS)
    )


def test_the_command_line_finds_passages_with_it(run, run_drkit):
    code, out, err = run_drkit("search", run, "grace wrote", "--system", "retriever-1")
    assert code == 0, err
    assert out.split()[:6] == ["retriever-1", "1", "1.0000", "c4", "grace", "wrote"]


def test_a_recipe_with_it_reads_back_equal_and_a_run_goes_on_from_it(run, parts, beir):
    recipe = composed(parts, beir)
    assert changed_settings(recipe.encoder.pooling.config) == {"heads": 3}
    assert recipe_from_table(parse_toml(recipe_toml(recipe), "text"), parts.registry) == recipe
    wanted = ComposeRequest(collection=f"beir:{beir}", paper="retromae", encoder=str(run), settings=("finetune=none",))
    continued = compose(wanted, parts)
    assert continued.encoder.pooling == recipe.encoder.pooling


def test_vectors_of_another_size_are_fine_tuned_but_no_decoder_reads_them(parts, beir, tmp_path):
    wide = "encoder.pooling_settings.size=24"
    alone = executed(parts, composed(parts, beir, wide, "pretrain=none"), tmp_path / "alone")
    assert TextEncoder.load(alone / "encoder").dimension == 24
    with pytest.raises(DrkitError, match=r"'attentive' .*24 numbers.*16: .*pretrain=none"):
        executed(parts, composed(parts, beir, wide), tmp_path / "run")


def test_what_cannot_be_is_refused_in_the_plan(parts, beir):
    for settings, message in (
        (("encoder.pooling=atentive",), "'atentive'; .*'attentive'"),
        (("encoder.pooling_settings.heads=0",), r"'heads' must be >= 1.*@ encoder\.pooling\.heads"),
        (("encoder.pooling_settings.width=3",), r"'width'; known: heads, .*@ encoder\.pooling"),
        (("encoder.pooling=mean",), r"'mean' has no settings: leave out 'heads' @ encoder\.pooling"),
    ):
        with pytest.raises(ProblemsError, match=message):
            check(composed(parts, beir, *settings), parts.registry)


def test_a_folder_without_it_or_with_a_damaged_one_is_refused(parts, tmp_path):
    encoder = MaskedLmEncoder(masked_lm())
    pooling = LearnedPooling("attentive", {}, encoder.info(tokenizer()), registry=parts.registry)
    masked_lm().save_pretrained(tmp_path)
    with pytest.raises(DrkitError, match=r"'attentive': .*: cls, mean, "):
        MaskedLmEncoder.from_pretrained(str(tmp_path), pooling="attentive")
    pooling.save(tmp_path)
    again = MaskedLmEncoder.from_pretrained(str(tmp_path), pooling="attentive")
    ids = torch.tensor([[2, 5, 6, 3]])
    expected = MaskedLmEncoder(masked_lm(), pooling=pooling).eval()(ids, ids != 0)["bottleneck"]
    torch.testing.assert_close(again.eval()(ids, ids != 0)["bottleneck"], expected)
    (tmp_path / POOLING_FILE).write_bytes((tmp_path / POOLING_FILE).read_bytes()[:40])
    with pytest.raises(DrkitError, match=r"/pooling.safetensors': .*"):
        MaskedLmEncoder.from_pretrained(str(tmp_path), pooling="attentive")


def test_an_index_knows_its_weights(parts):
    backbone = MaskedLmEncoder(masked_lm()).info(tokenizer())
    one, two = (LearnedPooling("attentive", {}, backbone, seed=seed, registry=parts.registry) for seed in (1, 2))
    how = {"query_length": 48, "passage_length": 48, "pooling": "attentive"}
    encoders = [reader_of(masked_lm().base_model, tokenizer(), learned_pooling=part, **how) for part in (one, one, two)]
    same, equal, other = (encoder.identity()["weights"] for encoder in encoders)
    assert same == equal != other


def test_an_index_knows_its_code_and_so_do_the_stages_that_run_it(run, parts, monkeypatch):
    folder = run
    made = {
        stage: read_manifest(folder / stage)
        for stage in ("tokens", "initial", "pretrained", "retriever-1", "index-retriever-1")
    }
    assert {stage for stage, one in made.items() if "attentive.py" in one.code} == {*made} - {"tokens"}
    encoder = TextEncoder.load(folder / "encoder")
    code = encoder.identity()["pooling_code"]
    monkeypatch.setattr("drkit.encoders.learned_pooling.part_code", lambda _: PluginCode({"attentive.py": "other"}))
    other = TextEncoder.load(folder / "encoder").identity()
    assert code != other["pooling_code"]
    with pytest.raises(DrkitError, match="pooling_code differ"):
        check_same_encoder(encoder.identity(), other, "the index")
