"""The registry, specs, and their errors."""

import pytest
from attrs import evolve, frozen

from drkit.core.registry import Registry, installed, registry_of
from drkit.core.spec import ComponentSpec, Kind
from drkit.core.types import BuildContext
from drkit.errors import DrkitError, UnknownNameError
from tests.refusals import unknown


@frozen
class Settings:
    size: int = 1


def keep_context(_config, context):
    """A factory whose part is the context that it is built in."""
    return context


def spec(**changes):
    base = ComponentSpec(Kind.MASKER, "toy", "tests.core.test_registry:Settings", Settings, "A toy.")
    return evolve(base, **changes)


def test_every_builtin_target_resolves():
    for part in installed().registry:
        assert callable(part.load()), part


def test_the_set_of_parts_is_this_one():
    """A golden list: a part that goes missing, or appears unannounced, is seen here."""
    own = {"drkit"}
    names = sorted(f"{s.kind}/{s.name}" for s in installed().registry if s.provider.split()[0] in own)
    assert names == [
        "batches/by-length",
        "batches/clusters",
        "batches/documents",
        "batches/one-data-set",
        "batches/random",
        "collection/beir",
        "collection/data-sets",
        "collection/documents",
        "collection/dpr",
        "collection/hf",
        "collection/irds",
        "collection/jsonl",
        "collection/labelled",
        "collection/pairs",
        "collection/pydocs",
        "collection/tevatron",
        "collection/trec",
        "column/encoder",
        "column/file",
        "column/given",
        "column/model",
        "column/reranker",
        "column/vectors",
        "context/mixed",
        "context/next-span",
        "context/query",
        "context/self",
        "context/span",
        "decoder/autoencoder",
        "decoder/autoregressive",
        "decoder/autoregressive-block",
        "decoder/bow",
        "decoder/condenser",
        "decoder/enhanced",
        "decoder/lm-head",
        "decoder/mlm",
        "decoder/replaced-token-detection",
        "loss/bag-of-tokens",
        "loss/bag-of-words",
        "loss/bow-reconstruction",
        "loss/contrastive",
        "loss/encoder-rtd",
        "loss/flops",
        "loss/gist",
        "loss/hardness",
        "loss/info-nce",
        "loss/js-contrastive",
        "loss/kl-distillation",
        "loss/listwise",
        "loss/margin-mse",
        "loss/masked-diffusion",
        "loss/matryoshka",
        "loss/mlm",
        "loss/mntp",
        "loss/pairwise",
        "loss/per-vector",
        "loss/replaced-lm",
        "loss/rtd",
        "loss/span-contrastive",
        "loss/text-vector-cosine",
        "loss/text-vector-mse",
        "loss/text-vector-relation",
        "loss/vector-cosine",
        "loss/vector-mse",
        "loss/vector-relation",
        "masker/diffusion",
        "masker/generator",
        "masker/pmi",
        "masker/query-as-context",
        "masker/uniform",
        "miner/bm25",
        "miner/cross-encoder-filter",
        "miner/dense",
        "miner/given",
        "miner/has-answer",
        "miner/hybrid",
        "miner/margin",
        "miner/max-score",
        "miner/mixed",
        "miner/random",
        "miner/ranks",
        "miner/refresh",
        "miner/run-file",
        "miner/same-text",
        "pooling/cls",
        "pooling/last",
        "pooling/lexical",
        "pooling/max",
        "pooling/mean",
        "pooling/weighted",
        "queries/crops",
        "queries/extractive",
        "queries/file",
        "queries/model",
        "queries/sentences",
        "queries/titles",
        "signal/idf",
        "signal/importance",
        "signal/text-vectors",
    ]


def test_unknown_name_suggests():
    with unknown("masker", "toi", "toy") as caught:
        Registry([spec()]).get("masker", "toi")
    assert "drkit list masker" in str(caught.value)


def test_a_name_declared_twice_fails_only_when_asked_for():
    registry = Registry([spec(provider="a 1"), spec(provider="b 2"), spec(name="other")])
    assert registry.names("masker") == ("other",)
    with pytest.raises(UnknownNameError, match=r"'toy' .*2 times, by a 1 and b 2;"):
        registry.get("masker", "toy")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "Toy"}, "kebab-case"),
        ({"target": "nowhere"}, "module:attribute"),
        ({"summary": "x" * 71}, "70"),
        ({"config": int}, "attrs class"),
        ({"shorthand": "path"}, "'path' .*Settings"),
        ({"files": ("path",)}, "files 'path' .*Settings"),
        ({"requires": ("generater",)}, "'generater'.*'generator'"),
        ({"kind": "loss", "scope": "bach"}, "'bach'.*'batch'"),
        ({"scope": "batch"}, "masker .*scope"),
        ({"kind": "loss", "receives": ("partners",), "scope": "rows"}, "partners.*cannot be 'rows': leave scope out"),
        ({"receives": ("idf",), "signals": ("idf",)}, "'idf'.*once"),
    ],
)
def test_a_wrong_spec_says_what_is_wrong(changes, said):
    with pytest.raises(ValueError, match=said):
        spec(**changes)


@pytest.mark.parametrize("name", ["pairs", "partners"])
def test_a_loss_of_a_whole_batch_has_its_scope(name):
    named = spec(kind="loss", receives=("bottleneck", name))
    assert named.scope_of(named.config()) == named.scope_of(None) == "batch"
    assert spec(kind="loss", receives=("bottleneck",)).scope_of(None) == "rows"


def test_a_loss_that_receives_the_whole_batch_by_its_settings_has_its_scope():
    @frozen
    class MayCompare:
        compares: bool = False

        @property
        def receives(self):
            return ("partners",) if self.compares else ()

    named = spec(kind="loss", config=MayCompare, receives=("bottleneck",))
    assert [named.scope_of(MayCompare(compares)) for compares in (False, True)] == ["rows", "batch"]


def test_a_part_is_built_with_the_registry_that_builds_it():
    registry = Registry([spec(target="tests.core.test_registry:keep_context")])
    built = registry.build("masker", "toy", None, BuildContext(seed=3))
    assert (registry_of(built), built.seed) == (registry, 3)
    assert registry_of(None) is registry_of(BuildContext()) is installed().registry


def test_build_refuses_another_parts_config():
    with pytest.raises(DrkitError, match="takes Settings, got int"):
        Registry([spec()]).build("masker", "toy", 3)
