"""Every masker with every decoder: what composing allows trains, built as the pre-training stage builds it."""

from __future__ import annotations

import json

import pytest
import torch

from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.core.types import BuildContext
from drkit.data.contexts import PretrainingTexts, open_signals
from drkit.decoders.layers import visibility_rows
from drkit.errors import ProblemsError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.matrix import matrix
from drkit.runs.execute import execute
from drkit.runs.making.pretrain import auto_encoder, build_maskers, masking_collator, vocabulary_signals
from drkit.runs.plan import plan
from drkit.train.checkpoints import load_encoder, load_tokenizer
from drkit.train.gradients import GradientStrategy, backward
from tests.parts.toys import texts

PARTS = installed()
MATRIX = matrix(PARTS)
ALLOWED = [(pair.masker, pair.decoder) for pair in MATRIX.pairs if not pair.problems]
REFUSED = [pair for pair in MATRIX.pairs if pair.problems]
SETTINGS = (
    "encoder.vocab_size=300",
    "encoder.hidden=16",
    "encoder.heads=2",
    "encoder.intermediate=24",
    "encoder.passage_length=24",
    "encoder.query_length=12",
    "encoder.init_embeddings=random",
    "pretrain.max_steps=2",
)
SMALL_GENERATOR = tuple(
    f"pretrain.decoders.main.masker.generator_{size}" for size in ("hidden=8", "heads=2", "intermediate=12", "steps=1")
)
CONTRAST = ("pretrain.encoder.losses.contrast={use='span-contrastive'}",)
SPANS = ("pretrain.encoder.context=span", "pretrain.decoders.main.context=span")


@pytest.fixture(scope="module")
def stages_of(tmp_path_factory):
    """settings -> (recipe, the folders its pre-training reads); a stage that another recipe's run has is taken over."""
    path = tmp_path_factory.mktemp("collection") / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts()[:24]))
    runs = []

    def prepare(masker, decoder, *settings):
        small = SMALL_GENERATOR if masker == "generator" else ()
        wanted = ComposeRequest(
            masker=masker, decoder=decoder, collection=f"jsonl:{path}", settings=(*SETTINGS, *small, *settings)
        )
        recipe = compose(wanted, PARTS)
        check(recipe, PARTS.registry)
        stages = plan(recipe, PARTS.registry).stages
        last = next(index for index, stage in enumerate(stages) if stage.name == "pretrained")
        run = tmp_path_factory.mktemp("run")
        execute(stages[:last], run, recipe, registry=PARTS.registry, progress=Silent(), reuse=runs)
        runs.append(run)
        return recipe, {name: run / part.stage / part.path for name, part in stages[last].inputs.items()}

    return prepare


def built(recipe, inputs):
    """The module of the pre-training stage, and its collator."""
    settings = recipe.pretrain
    tokenizer = load_tokenizer(str(inputs["start"]))
    encoder = load_encoder(inputs["start"], pooling=recipe.encoder.pooling.use)
    context = BuildContext(
        backbone=encoder.info(tokenizer),
        tokenizer=tokenizer,
        generator=load_encoder(inputs["generator"], pooling="cls") if "generator" in inputs else None,
        signals=vocabulary_signals(open_signals(inputs)),
        seed=recipe.seed,
    )
    maskers = build_maskers(settings, PARTS.registry, context)
    module = auto_encoder(settings, PARTS.registry, encoder, context, maskers).train()
    texts = PretrainingTexts.open(inputs)
    return module, masking_collator(settings, PARTS.registry, module, context, maskers, texts)


def train_two_steps(recipe, inputs):
    """Two steps on two batches; returns the tensors of the last one. Encoder and decoder move."""
    module, collate = built(recipe, inputs)
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(2):
        tensors = collate([(step, example) for example in range(6 * step, 6 * step + 6)])
        optimizer.zero_grad()
        loss, figures = backward(module, tensors, GradientStrategy(module, torch.Tensor.backward))
        assert loss.isfinite()
        assert {f"{name}_loss" for name in module.terms} <= figures.keys()
        optimizer.step()
    moved = {name.split(".")[0] for name, value in module.named_parameters() if not torch.equal(before[name], value)}
    assert moved == {name.split(".")[0] for name, value in module.named_parameters() if value.requires_grad}
    assert {"encoder"} <= moved <= {"encoder", "decoders"}  # a generator is frozen
    assert all(value.isfinite().all() for value in module.parameters())
    return tensors


@pytest.mark.parametrize("decoder", MATRIX.decoders)
def test_a_masker_without_effect_is_marked(decoder, stages_of):
    """What pmi and uniform give to the encoder and to this decoder is the same exactly where the matrix says so."""
    if ("pmi", decoder) not in ALLOWED:
        pytest.skip("pmi does not go with this decoder")
    (pair,) = [pair for pair in MATRIX.pairs if (pair.masker, pair.decoder) == ("pmi", decoder)]
    batches = []
    for masker in ("pmi", "uniform"):
        recipe, inputs = stages_of(masker, decoder)
        module, collate = built(recipe, inputs)
        batch = collate([(0, example) for example in range(6)])
        reads_view = visibility_rows(module.decoders["main"], 8) or not pair.unread
        read = ("encoder.", *(("main.",) if reads_view else ()))
        batches.append({name: value for name, value in batch.items() if name.startswith(read)})
    same = all(torch.equal(value, batches[1][name]) for name, value in batches[0].items() if "signal" not in name)
    assert same == bool(pair.unread)
    assert all(not other.unread for other in MATRIX.pairs if other.masker != "pmi")


@pytest.mark.parametrize(("masker", "decoder"), ALLOWED)
def test_what_goes_together_trains(masker, decoder, stages_of):
    train_two_steps(*stages_of(masker, decoder))


@pytest.mark.parametrize("decoder", [decoder for masker, decoder in ALLOWED if masker == "uniform"])
def test_spans_of_documents_and_contrast_go_with_every_decoder(decoder, stages_of):
    """As coCondenser has it: both texts of a pair are read, and each is the other's context."""
    tensors = train_two_steps(*stages_of("uniform", decoder, *SPANS, *CONTRAST))
    assert tensors["partners"].tolist() == [*range(6, 12), *range(6)]
    read, rebuilt = tensors["encoder.tokens.ids"], tensors["main.tokens.ids"]
    width = min(read.shape[1], rebuilt.shape[1])
    assert torch.equal(read[:, :width], rebuilt[tensors["partners"], :width])


@pytest.mark.parametrize("masker", sorted({masker for masker, _ in ALLOWED}))
def test_contrast_goes_with_every_masker(masker, stages_of):
    decoder = "condenser" if (masker, "condenser") in ALLOWED else next(d for m, d in ALLOWED if m == masker)
    tensors = train_two_steps(*stages_of(masker, decoder, *CONTRAST))
    assert len(tensors["encoder.ids"]) == 12


@pytest.mark.parametrize("pair", REFUSED or [None], ids=lambda pair: pair and f"{pair.masker}-{pair.decoder}")
def test_what_does_not_is_refused_with_a_reason(pair):
    if pair is None:
        pytest.skip("every masker goes with every decoder")
    recipe = compose(ComposeRequest(masker=pair.masker, decoder=pair.decoder), PARTS)
    with pytest.raises(ProblemsError, match=r"needs .*; masker .* provides .*that fit: \w|no stage"):
        check(recipe, PARTS.registry)


def test_each_part_goes_with_some_other():
    maskers, decoders = ({*names} for names in zip(*ALLOWED, strict=True))
    assert maskers == {*MATRIX.maskers}
    assert decoders == {*MATRIX.decoders}
