"""The benchmarks of the parts run for everything that is installed, here at toy sizes."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from drkit.errors import DrkitError

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def loaded(name, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    found = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, name, module)
    found.loader.exec_module(module)
    return module


@pytest.fixture
def small(monkeypatch):
    step = loaded("pretrain_step", monkeypatch)
    sizes = {"hidden": 16, "layers": 2, "heads": 2, "intermediate": 16, "dropout": 0.0}
    for name, value in (("TEXTS", 3), ("LENGTH", 24), ("VOCAB", 1100), ("SIZES", sizes), ("GENERATOR", sizes)):
        monkeypatch.setattr(step, name, value)
    return step


def test_a_step_of_every_pair_has_a_loss(small):
    from drkit.core.registry import installed

    pairs = small.names(every_masker=True)
    decoders = {pair.rpartition(" + ")[2] for pair in pairs[1:]}
    assert decoders == {*installed().registry.names("decoder")}, "a decoder that goes with no masker"
    small.step_of(small.PLAIN)()
    for pair in pairs[1:]:
        loss, _ = small.step_of(pair)()
        assert torch.isfinite(loss), pair
        assert loss > 0, pair


def test_one_pair_a_decoder_uniform_where_it_fits(small):
    found = small.names()
    decoders = [name.rpartition(" + ")[2] for name in found[1:]]
    assert len(decoders) == len({*decoders})
    assert "uniform + mlm" in found
    assert "uniform + enhanced" in found


def test_every_masker_is_timed(monkeypatch):
    from drkit.core.registry import installed

    masking = loaded("masking", monkeypatch)
    monkeypatch.setattr(masking, "TEXTS", 4)
    monkeypatch.setattr(masking, "LENGTH", 20)
    threads = torch.get_num_threads()
    rows = masking.measure(repeats=1)
    assert {row["masker"] for row in rows} == {*installed().registry.names("masker")}
    assert all(row["ms"] > 0 for row in rows)
    assert torch.get_num_threads() == threads


@pytest.fixture
def gpu(small, monkeypatch):
    """The benchmark of GPUs, at the sizes of `small`."""
    module = loaded("gpu", monkeypatch)
    monkeypatch.setattr(module, "set_sizes", lambda options: None)
    monkeypatch.setattr(module, "measured_apart", lambda name, mode, options: measured_here(module, name, mode))
    return module


def measured_here(module, name, mode):
    return module.measure_encoding(mode, 1) if name == "encoding" else module.measure(name, mode, 1)


def printed(module, monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments])
    code = module.main()
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_the_benchmark_says_so_in_a_line(gpu, monkeypatch, capsys):
    code, out, err = printed(gpu, monkeypatch, capsys)
    assert code == 2
    assert out.startswith("Nothing is claimed")
    assert "|" not in out
    assert err.count("\n") == 1
    assert "torch sees no GPU" in err


def test_the_benchmark_of_gpus_runs_on_a_processor(gpu, monkeypatch, capsys, tmp_path):
    """Hugging Face's masked LM, a decoder that rebuilds all tokens, one behind a generator, and encoding."""
    chosen = [gpu.PLAIN, "uniform + enhanced", "generator + replaced-token-detection", "encoding"]
    options = ["--device", "cpu", "--tiny", "--modes", "fp32", "bf16", "--json", str(tmp_path / "rows.json")]
    code, out, _ = printed(gpu, monkeypatch, capsys, *options, "--only", *chosen)
    assert code == 0
    assert out.startswith("Nothing is claimed")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["step"] for row in rows] == [name for name in chosen for _ in range(2)]
    assert all(row["tokens_per_second"] > 0 for row in rows)
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[::2] == pytest.approx(losses[1::2], rel=0.02), "bfloat16 does the same work"


def test_a_row_that_fails_is_named_and_the_others_are_measured(gpu, monkeypatch, capsys):
    def fails(name, mode, options):
        if mode == "bf16":
            raise RuntimeError("out of memory")
        return {"step": name, "mode": mode, "tokens_per_second": 1.0, "peak_gib": 1.0}

    monkeypatch.setattr(gpu, "measured_apart", fails)
    code, out, _ = printed(gpu, monkeypatch, capsys, "--device", "cpu", "--only", "encoding")
    assert code == 1
    assert "| encoding | fp32 | 1 | 1.00 |  |" in out
    assert "| encoding | bf16 | failed: out of memory |" in out


@pytest.mark.slow
def test_every_step_of_the_benchmark_of_gpus_can_be_compiled(gpu, small, monkeypatch):
    """Traced and split by torch, which is where compiling fails, and run by its own kernels."""
    split = {"fp32": {}, "traced": {"arguments": {"torch_compile_backend": "eager"}}}
    monkeypatch.setattr(gpu, "MODES", split)
    for name in small.names():
        losses = [gpu.measure(name, mode, 1)["loss"] for mode in split]
        assert losses[0] == pytest.approx(losses[1], abs=1e-4), name
    torch.compiler.reset()


def test_bags_of_counted_tokens_are_static_encoders(monkeypatch, tmp_path):
    """Where a token counts as often as it occurs, benchmarks/term_frequency.py has the vectors that runs train."""
    from drkit.encoders import BertSizes, MaskedLmEncoder
    from drkit.testing.toys import toy_tokenizer
    from drkit.train.checkpoints import save_masked_lm

    frequency = loaded("term_frequency", monkeypatch)
    tokenizer = toy_tokenizer()
    encoder = MaskedLmEncoder.from_scratch(BertSizes(hidden=16, layers=0), tokenizer, pooling="weighted").eval()
    encoder.set_token_weights(torch.linspace(0.1, 1, len(tokenizer)))
    save_masked_lm(encoder, tokenizer, tmp_path)
    read = frequency.Bags(tmp_path)
    one, two, three = tokenizer.convert_ids_to_tokens([5, 6, 7])
    batch = tokenizer([f"{one} {two} {two} {two}", f"{three} {two}"], padding=True, return_tensors="pt")
    texts = [[i for i in row if i not in tokenizer.all_special_ids] for row in batch["input_ids"].tolist()]
    bags = {name: read.encode([frequency.bag(ids, count) for ids in texts]) for name, count in frequency.COUNTS.items()}
    expected = encoder.vectors(batch["input_ids"], batch["attention_mask"].bool()).detach()
    torch.testing.assert_close(bags["n"], torch.nn.functional.normalize(expected, dim=1))
    torch.testing.assert_close(bags["1"][1], bags["n"][1], msg="no token is repeated")
    assert not torch.allclose(bags["1"][0], bags["n"][0], atol=1e-3)


@pytest.mark.parametrize("pipeline", ["dpr", "three-stage"])
def test_every_row_of_the_comparisons_composes_from_one_start(pipeline, monkeypatch):
    import drkit

    comparisons = loaded("comparisons", monkeypatch)
    options = comparisons.arguments().parse_args(["--work", "w", "--pipeline", pipeline, "--pretraining", "7,5"])
    made = {name: drkit.compose(**comparisons.choices(("random", name, 3), options)) for name in comparisons.recipes()}
    assert {"retromae", "simlm", "cpdae", "cdmae", "cotmae-qac", comparisons.MLM_ONLY} < made.keys()
    first = made.pop(comparisons.NONE)
    assert first.pretrain is None
    for recipe in made.values():
        assert recipe.encoder == first.encoder, "the same vocabulary, sizes and word embeddings"
        assert recipe.finetune == first.finetune
        assert recipe.evaluation == first.evaluation
        assert (recipe.pretrain.max_steps, recipe.pretrain.per_device_train_batch_size) == (7, 5)
    assert [one.name for one in first.finetune.rounds] == [s for s in comparisons.STAGES[pipeline] if s != "reranker"]


def test_a_comparison_is_put_between_the_marks_of_its_page(tmp_path, monkeypatch):
    comparisons, page = loaded("comparisons", monkeypatch), tmp_path / "page.md"
    page.write_text(
        "a\n<!-- comparisons dpr pydocs -->\nold\n<!-- end -->\nb\n<!-- comparisons dpr x -->\n<!-- end -->\n"
    )
    comparisons.put_into(page, "dpr pydocs", "new\n")
    assert page.read_text().startswith(
        "a\n<!-- comparisons dpr pydocs -->\nnew\n<!-- end -->\nb\n<!-- comparisons dpr x"
    )
    with pytest.raises(DrkitError, match="has no marks <!-- comparisons dpr tldr -->"):
        comparisons.put_into(page, "dpr tldr", "new\n")
