"""LoRA: equal to matrices by hand, merged at the end, small checkpoints, resumed, on one process and two."""

from __future__ import annotations

import copy
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.func import functional_call

from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.encoders import CrossEncoder
from drkit.errors import DrkitError, MissingExtraError, ProblemsError
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.lora import choose_targets, linear_layers, plan_lora
from drkit.recipe.training import Lora, Training
from drkit.train.batches import Schedule
from drkit.train.biencoder import pair_loss
from drkit.train.checkpoints import load_encoder
from drkit.train.gradients import ROWS
from drkit.train.lora import adapted, count_trained, linear_names, merged_copy
from drkit.train.reranker import GroupRanker
from drkit.train.trainer import train
from tests.encoders.toys import CAUSAL, tiny
from tests.runs.conftest import drkit
from tests.runs.every_loss import GROUPS, LOSSES, batch_of, module_of
from tests.runs.test_processes import assert_same_weights, killed, launched, resumed

PARTS = installed()
needs_peft = pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")
RANK, ALPHA, STEPS, RATE = 2, 6.0, 3, 0.5
LORA = Lora(rank=RANK, alpha=ALPHA)


def trained(name, folder, *, dropout=0.0, **settings):
    module = module_of(name, dropout)
    training = Training(
        **{"max_steps": STEPS, "learning_rate": RATE, "warmup_steps": 0, "lr_scheduler_type": "constant"},
        **{"weight_decay": 0.0, "max_grad_norm": 0.0, "per_device_train_batch_size": len(GROUPS), "lora": LORA},
        **{"arguments": {"optim": "sgd"}, **settings},
    )
    train(
        module,
        Schedule(lengths=np.full(len(GROUPS), 9, np.int32), batch_size=len(GROUPS), batches=STEPS, seed=5),
        lambda examples: batch_of(name, [query for _, query in examples]),
        training=training,
        folder=folder,
        progress=Silent(),
        seed=1,
    )
    return module


@needs_peft
def test_training_is_that_of_two_matrices_by_hand(tmp_path):
    """W + alpha / rank x B A, for every linear layer of the layers, by plain gradient descent."""
    found = trained("all", tmp_path).state_dict()
    module, matrices = module_of("all"), {}
    start = copy.deepcopy(module)
    with adapted(start, Lora(rank=RANK, alpha=ALPHA), seed=1):
        for name, value in start.named_parameters():
            if ".lora_" in name:
                plain = name.replace(".default.weight", "").rpartition(".lora_")[0] + ".weight"
                matrices.setdefault(plain, {})[name.split(".lora_")[1][0]] = value.detach().clone().requires_grad_()
    assert len(matrices) == 12
    for batch in Schedule(
        lengths=np.full(len(GROUPS), 9, np.int32), batch_size=len(GROUPS), batches=STEPS, seed=5
    ).share(0, 1):
        weights = {
            name: module.get_parameter(name).detach() + ALPHA / RANK * one["B"] @ one["A"]
            for name, one in matrices.items()
        }
        out = functional_call(module, weights, kwargs=batch_of("all", [query for _, query in batch]))
        loss, _ = pair_loss(module.loss, {name.removeprefix(ROWS): rows for name, rows in out.items()})
        leaves = [one[side] for one in matrices.values() for side in "AB"]
        with torch.no_grad():
            for leaf, gradient in zip(leaves, torch.autograd.grad(loss, leaves), strict=True):
                leaf -= RATE * gradient
    moved = 0.0
    for name, weight in module.state_dict().items():
        expected = weight
        if name in matrices:
            expected = weight + ALPHA / RANK * (matrices[name]["B"] @ matrices[name]["A"]).detach()
            moved = max(moved, float((expected - weight).abs().max()))
        torch.testing.assert_close(found[name], expected, atol=2e-5, rtol=1e-4, msg=lambda text, n=name: f"{n}: {text}")
    assert moved > 1e-2


@needs_peft
@pytest.mark.parametrize(
    "settings",
    [{"gradient_cache_chunk": 2}, {"arguments": {"optim": "sgd", "gradient_checkpointing": True}}],
    ids=["cached", "checkpointed"],
)
@pytest.mark.parametrize("name", ["all", "separate encoders"])
def test_less_memory_trains_the_same_weights(name, settings, tmp_path):
    whole = trained(name, tmp_path / "whole").state_dict()
    other = trained(name, tmp_path / "other", **settings).state_dict()
    assert whole.keys() == other.keys()
    for key, weight in whole.items():
        torch.testing.assert_close(other[key], weight, atol=2e-5, rtol=1e-4)


@needs_peft
@pytest.mark.parametrize("name", ["bert", "distilbert", "modernbert", "deberta-v2", "llama", "qwen3"])
def test_merged_weights_give_the_vectors_of_the_adapters(name):
    from drkit.encoders import MaskedLmEncoder
    from drkit.train.biencoder import BiEncoder

    model, _ = tiny(name)
    encoder = MaskedLmEncoder(model.base_model if name in CAUSAL else model, pooling="mean").eval()
    before = copy.deepcopy(encoder.state_dict())
    ids = torch.randint(5, model.config.vocab_size, (3, 9), generator=torch.Generator().manual_seed(0))
    attention = torch.ones_like(ids, dtype=torch.bool)
    module = BiEncoder(encoder, LOSSES["all"])
    with adapted(module, Lora(rank=3, dropout=0.5), seed=1):
        assert torch.equal(encoder.vectors(ids, attention), _vectors(model, before, encoder, ids, attention))
        trained_now, total = count_trained(module)
        assert 0 < trained_now < total
        for key, weight in module.named_parameters():
            if "lora_B" in key:
                torch.nn.init.normal_(weight, std=0.2, generator=torch.Generator().manual_seed(1))
        expected = encoder.vectors(ids, attention)
        copied = merged_copy(encoder.model)
        assert not [key for key in copied.state_dict() if "lora" in key or "base_layer" in key]
    torch.testing.assert_close(encoder.vectors(ids, attention), expected, atol=1e-5, rtol=1e-5)
    assert encoder.state_dict().keys() == before.keys()
    assert all(weight.requires_grad for weight in encoder.parameters())
    for key, value in copied.state_dict().items():
        assert torch.equal(value, encoder.model.state_dict()[key])


def _vectors(model, before, encoder, ids, attention):
    """The vectors of the weights that an encoder had."""
    from drkit.encoders import MaskedLmEncoder

    plain = MaskedLmEncoder(type(encoder.model)(model.config), pooling="mean").eval()
    plain.load_state_dict(before)
    return plain.vectors(ids, attention)


@needs_peft
def test_a_cross_encoder_trains_its_head_and_pooler_whole(tmp_path):
    model, tokenizer = tiny("bert")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    module = GroupRanker(CrossEncoder.start_from(str(tmp_path), max_length=32), LOSSES["listwise"])
    with adapted(module, Lora(rank=2, targets=("query", "attention.output.dense")), seed=1):
        learned = {name for name, weight in module.named_parameters() if weight.requires_grad}
        kinds = {name.split(".lora_")[0].rpartition("self.")[2].rpartition("output.")[2] for name in learned}
    assert kinds == {
        "query",
        "dense",
        "encoder.model.bert.pooler.dense.weight",
        "encoder.model.bert.pooler.dense.bias",
    } | {f"encoder.model.classifier.{one}" for one in ("weight", "bias")}


def test_wrong_targets_are_refused_with_the_names_that_exist(tmp_path):
    model, tokenizer = tiny("bert")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    layers = linear_layers(str(tmp_path))
    backbone = model.base_model
    assert {name.removeprefix("bert.") for name in layers.shapes} == {*linear_names(backbone)}
    assert layers.weights == sum(weight.numel() for weight in {*model.parameters()})
    expected = sum(4 * sum(backbone.get_submodule(name).weight.shape) for name in linear_names(backbone))
    assert layers.trained(Lora(rank=4)) == expected
    with pytest.raises(DrkitError, match=r"called 'querry'; did you mean 'query'\? known: .*attention.self.query, "):
        choose_targets(layers.shapes, Lora(targets=("key", "querry")))
    with pytest.raises(DrkitError, match="has none: leave out lora"):
        choose_targets([], Lora())

    def recipe(*settings, **more):
        return compose(ComposeRequest(scale="small", settings=settings, **more), PARTS)

    wrong = recipe("finetune.lora={targets=['querry']}", "reranker=none", encoder=str(tmp_path), pipeline="dpr")
    with pytest.raises(ProblemsError, match=r"'querry'.* @ finetune.lora"):
        plan_lora(wrong)
    with pytest.raises(ProblemsError, match=r"random weights.* @ pretrain.lora"):
        plan_lora(recipe("pretrain.lora={}", masker="uniform"))
    with pytest.raises(ProblemsError, match=r"allowed: >= 1.* @ finetune.lora.rank"):
        recipe("finetune.lora.rank=0")
    with pytest.raises(ProblemsError, match="each layer once"):
        recipe("finetune.lora.targets=['query', 'query']")
    # From scratch: by the sizes in the recipe.
    scratch = recipe("finetune.lora={rank=4}", "encoder.hidden=32", "encoder.heads=2", "encoder.intermediate=48")
    assert "finetune.lora trains" in plan_lora(scratch)[0]


def test_without_lora_a_plan_is_what_it_was():
    assert Training().extras == ()
    assert Training(lora=Lora()).extras == ("peft",)
    from drkit.runs.stage import lasting_settings

    assert not [name for name in lasting_settings(Training()) if "lora" in name]
    assert lasting_settings(Training(lora=Lora(rank=4)))["lora.rank"] == 4


@pytest.mark.skipif(find_spec("peft") is not None, reason="peft is installed")
def test_without_peft_one_message_says_how_to_install_it():
    with (
        pytest.raises(MissingExtraError, match=r"pip install 'drkit\[peft\]'"),
        adapted(module_of("all"), Lora(), seed=1),
    ):
        pass


# Whole runs


SIZES = [
    *("--set=encoder.hidden=16", "--set=encoder.heads=2", "--set=encoder.intermediate=32", "--set=encoder.layers=2"),
    *("--set=encoder.vocab_size=150", "--set=encoder.passage_length=24", "--set=encoder.query_length=16"),
]
ADAPTED = [
    *("--set=pretrain.max_steps=4", "--set=pretrain.save_steps=2", "--set=pretrain.probe.every=2"),
    *("--set=pretrain.batch_size=8", "--set=pretrain.lora={rank=2}", "--set=pretrain.keep_steps=[2]"),
    *("--set=finetune.max_steps=4", "--set=finetune.save_steps=1", "--set=finetune.batch_size=4"),
    *("--set=finetune.lora={rank=2, dropout=0.1}", "--set=finetune.keep_steps=[2]", "--set=finetune.encoders=separate"),
    *("--set=finetune.validation.every=1", "--set=finetune.learning_rate=0.01"),
    *("--set=reranker.max_steps=2", "--set=reranker.save_steps=1", "--set=reranker.batch_size=4"),
    *("--set=reranker.lora={rank=2, targets=['query', 'value']}", "--set=reranker.negatives=2"),
    *("--pipeline=three-stage", "--masker=uniform", "--decoder=enhanced", "--set=evaluation.depth=20"),
]


@pytest.fixture(scope="module")
def start(beir, tmp_path_factory):
    """The folder of an encoder with weights."""
    run = tmp_path_factory.mktemp("start") / "run"
    collection = f"--collection=beir:{beir}"
    drkit(
        "compose",
        "--run-dir",
        run,
        collection,
        *SIZES,
        "--masker=uniform",
        "--set=pretrain.max_steps=2",
        "--set=finetune=none",
    )
    return run / "pretrained"


@pytest.fixture(scope="module")
def whole(beir, start, tmp_path_factory):
    """A run whose every training is LoRA."""
    run = tmp_path_factory.mktemp("lora") / "run"
    launched(run, f"--collection=beir:{beir}", f"--encoder={start}", *SIZES[5:], *ADAPTED)
    return run


TRAINED = ("pretrained", "pretrained@2", "retriever-1", "retriever-1@2", "reranker", "retriever-distilled")


@needs_peft
@pytest.mark.slow
def test_every_stage_reads_and_writes_plain_encoders(whole, start):
    for stage in TRAINED:
        for file in (whole / stage).rglob("model.safetensors"):
            with safe_open(str(file), framework="pt") as weights:
                assert not [name for name in weights.keys() if "lora" in name or "base_layer" in name]  # noqa: SIM118
    first, last = (load_file(whole / of / "model.safetensors") for of in ("pretrained", "retriever-1"))
    moved = {name for name, weight in last.items() if not torch.equal(weight, first[name])}
    assert moved
    assert all(name.endswith("weight") and ".layer." in name for name in moved)
    load_encoder(whole / "retriever-1@2", pooling="mean")


@needs_peft
@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "step"), [("pretrained", 2), ("retriever-1", 2), ("retriever-2", 1), ("reranker", 1)]
)
def test_killed_and_resumed_is_uninterrupted(stage, step, beir, start, whole, tmp_path):
    run = tmp_path / "run"
    killed(run, stage, step, f"--collection=beir:{beir}", f"--encoder={start}", *SIZES[5:], *ADAPTED, processes=1)
    (file,) = (run / ".unfinished" / stage).glob(f"checkpoints/checkpoint-{step}/model.safetensors")
    with safe_open(str(file), framework="pt") as weights:
        names = set(weights.keys())
        assert [name for name in names if "lora_A" in name]
        assert not [name for name in names if "embeddings" in name or "base_layer" in name], "frozen weights"
    resumed(run, 1)
    for file in sorted((whole / stage).rglob("*.safetensors")):
        expected, found = load_file(file), load_file(run / file.relative_to(whole))
        assert expected.keys() == found.keys()
        assert all(torch.equal(found[name], weight) for name, weight in expected.items())


@needs_peft
@pytest.mark.slow
def test_two_processes_train_what_one_trains(beir, start, whole, tmp_path):
    more = [f"--collection=beir:{beir}", f"--encoder={start}", *SIZES[5:], *ADAPTED]
    more = [one.replace("dropout=0.1", "dropout=0.0") for one in more]
    for run, processes in (("one", 1), ("two", 2)):
        launched(tmp_path / run, *more, processes=processes)
    for stage in ("pretrained", "retriever-1", "reranker"):
        assert_same_weights(f"{stage}/model.safetensors", tmp_path / "one", tmp_path / "two", atol=2e-4)
