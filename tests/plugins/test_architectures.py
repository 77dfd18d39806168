"""Architectures of plugins: their models are trained, encoded and listed; broken ones leave the others alone."""

import pytest

from drkit.core.registry import installed
from drkit.encoders import BertSizes, MaskedLmEncoder
from drkit.encoders.architectures import architecture
from drkit.errors import DrkitError
from drkit.testing import check_architecture
from drkit.testing.specs import ContractError
from drkit.testing.toys import toy_tokenizer
from tests.plugins.packages import write_package

SOURCE = """
from drkit.plugin import BERT_LAYER, Architecture, Extension

BUILT_LIKE_BERT = Architecture(transform=("cls.predictions.transform",), layer=BERT_LAYER)
WITHOUT_LAYERS = Architecture(transform=("cls.predictions.transform",), layers="encoder.nothing", attention="eager")
WITHOUT_TRANSFORM = Architecture(transform=(), position_offset=None)

@hookimpl
def drkit_architectures():
    return [
        Extension("ernie", "stranger:BUILT_LIKE_BERT", "ERNIE"),
        Extension("megatron-bert", "stranger:WITHOUT_LAYERS", "A record that does not fit"),
        Extension("data2vec-text", "stranger:WITHOUT_TRANSFORM", "A record that leaves the head's first step out"),
        Extension("lost", "stranger.no_such_module:RECORD", "Is not there"),
        Extension("text", "stranger:HEAD", "Is a text"),
        Extension("bert", "stranger:WITHOUT_LAYERS", "A name of drkit's"),
    ]

HEAD = "text"
"""


@pytest.fixture
def stranger(site):
    write_package(site, "stranger", SOURCE)
    installed.cache_clear()
    yield site
    installed.cache_clear()


def test_a_strangers_model_is_an_encoder_once_its_package_is_installed(site):
    sizes = BertSizes(hidden=16, layers=2, heads=2, intermediate=24)
    with pytest.raises(DrkitError, match=r"'ernie' .*drkit new-plugin NAME --kind architecture"):
        MaskedLmEncoder.from_scratch(sizes, toy_tokenizer(), model_type="ernie")
    write_package(site, "stranger", SOURCE)
    installed.cache_clear()
    try:
        check_architecture("ernie")
        encoder = MaskedLmEncoder.from_scratch(sizes, toy_tokenizer(), model_type="ernie")
        assert type(encoder.model).__name__ == "ErnieForMaskedLM"
        assert encoder.architecture.layer == architecture("bert").layer
        assert architecture("bert").layers == "encoder.layer", "drkit's own name means drkit's own record"
    finally:
        installed.cache_clear()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("megatron-bert", r"missing: encoder\.nothing "),
        ("data2vec-text", "logits .*transformers"),
        ("lost", r"stranger\.no_such_module:RECORD .*stranger 1\.0 .*ModuleNotFoundError"),
        ("text", r"stranger:HEAD .*stranger 1\.0 .*drkit\.encoders\.Architecture, got 'text'"),
    ],
)
def test_a_record_that_does_not_fit_is_named(name, said, stranger):
    with pytest.raises(ContractError, match=f"{name}: .*{said}"):
        check_architecture(name)


def test_a_broken_package_is_named_where_an_architecture_is_missing(stranger):
    write_package(stranger, "broken", "import no_such_module")
    installed.cache_clear()
    with pytest.raises(DrkitError, match=r"'albert' .*not loaded: broken \(ModuleNotFoundError"):
        architecture("albert")
    assert architecture("ernie").layers == "encoder.layer"


def test_two_packages_that_declare_one_architecture_are_named(stranger):
    write_package(stranger, "second", SOURCE)
    installed.cache_clear()
    with pytest.raises(DrkitError, match=r"'ernie' is declared 2 times, by second 1\.0 and stranger 1\.0; none"):
        architecture("ernie")


def test_they_are_listed_and_shown(stranger, command):
    code, listed, _ = command("list", "architecture")
    assert code == 0
    assert "ernie" in listed
    assert "stranger 1.0" in listed
    code, shown, _ = command("show", "architecture", "ernie")
    assert code == 0
    assert str(stranger / "stranger.py") in shown.replace("\n", "")
