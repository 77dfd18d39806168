"""The benchmarks of the parts run for everything that is installed, here at toy sizes."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from drkit.errors import DrkitError
from tests.refusals import says

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


def test_products_are_counted_with_and_without_a_fused_cross_entropy(small, monkeypatch):
    step = small.step_of("uniform + enhanced")
    counted = small.operations(step)
    monkeypatch.setattr("drkit.encoders.heads._FUSED", False)
    monkeypatch.delattr(torch.nn.functional, "linear_cross_entropy", raising=False)
    assert small.operations(step) == counted > 0
    assert not hasattr(torch.nn.functional, "linear_cross_entropy")


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
    filled = masking.measure_generator(repeats=1)
    assert filled["ms"] > 0
    assert filled["tflop"] > 0


@pytest.fixture
def gpu(monkeypatch):
    return loaded("gpu", monkeypatch)


def run_gpu(module, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gpu.py", *map(str, arguments)])
    return module.main()


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_the_benchmark_says_so_in_a_line(gpu, monkeypatch, capsys, tmp_path):
    assert run_gpu(gpu, monkeypatch, "--json", tmp_path / "rows.jsonl") == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert says(err, "torch", "GPU")
    assert not (tmp_path / "rows.jsonl").exists()


def test_rows_of_a_gpu_are_resumed_and_put_into_a_page(gpu, monkeypatch, tmp_path):
    file, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    page.write_text("before\n<!-- gpu -->\nold\n<!-- end -->\nafter\n")
    options = ["--json", file, "--device", "cpu", "--tiny", "--row-seconds", 600, "--only"]
    first, asked = ["equality: retromae bf16", "pre-training: simlm bf16"], []

    def here(todo, _options, _end):
        asked.extend(todo)
        for step, mode in todo:
            yield {"step": step, "mode": mode, **gpu.measure(step, mode, gpu.TINY)}

    monkeypatch.setattr(gpu, "worker_rows", here)
    assert run_gpu(gpu, monkeypatch, *options, *first) == 0
    before = file.read_text()
    machine, rows = gpu.read_rows(file)
    assert machine["machine"]["device"] == "cpu"
    assert [f"{row['step']} {row['mode']}" for row in rows] == first
    assert rows[1]["tokens_per_second"] > 0
    asked.clear()
    assert run_gpu(gpu, monkeypatch, *options, *first, "search") == 0
    assert asked == [("search", "fp32")], "rows of the file are not measured again"
    assert file.read_text().startswith(before)
    assert run_gpu(gpu, monkeypatch, "--json", file, "--page", page) == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- gpu -->\ncpu (torch ")
    assert text.endswith("\n<!-- end -->\nafter\n")
    assert "\n| pre-training: simlm | bf16 | " in text
    assert "\n| search, exact hits | fp32 | " in text
    compared = rows[0]
    errors = f"bf16: loss {compared['loss_error']:.0e} (allowed 0.02), gradients {compared['gradient_error']:.0e} (0.1)"
    assert (
        f"Loss and gradients of 1 steps, the largest relative difference from the CPU in float32: {errors}.\n" in text
    )
    assert "\nNot measured in fp32: matrix product; equality: " in text
    page_rows = file.read_text().replace('"equal": true', '"equal": false')
    (tmp_path / "unequal.jsonl").write_text(page_rows)
    assert run_gpu(gpu, monkeypatch, "--json", tmp_path / "unequal.jsonl", "--page", page) == 0
    assert f"{errors}, above it: **retromae**.\n" in page.read_text()


def test_rows_of_another_machine_are_refused(gpu, monkeypatch, capsys, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"machine": {"device": "H900"}, "sizes": {}}\n')
    assert run_gpu(gpu, monkeypatch, "--json", tmp_path / "rows.jsonl", "--device", "cpu", "--tiny") == 2
    assert "H900" in capsys.readouterr().err
    assert (tmp_path / "rows.jsonl").read_text().count("\n") == 1


def test_a_share_of_the_peak_is_of_the_precision_of_the_row(gpu):
    row = {"step": "pre-training: x", "mode": "bf16 compiled", "seconds": 0.5, "tokens_per_second": 9.0}
    row |= {"tflops": 494.5, "peak_gib": 1.0, "loss": 2.0}
    assert "| 494.5 | 50% | 1.0 |" in gpu.speed_line(row, "NVIDIA H100 80GB HBM3")
    assert "| 494.5 |  | 1.0 |" in gpu.speed_line(row, "another card")


@pytest.mark.slow
def test_a_row_that_fails_is_recorded_and_the_others_are_measured(gpu):
    options = gpu.arguments().parse_args(["--device", "cpu", "--tiny"])
    fails, search = gpu.measured([("nothing", "fp32"), ("search", "fp32")], options)
    assert fails == {"step": "nothing", "mode": "fp32", "error": "KeyError: 'nothing'"}
    assert search["equal"]
    options.row_seconds = 0.1
    (slow,) = gpu.measured([("search", "fp32")], options)
    assert (slow["step"], slow["mode"], slow["error"].endswith(" 0.1 s")) == ("search", "fp32", True)
    options.seconds = 0.2
    options.row_seconds = 100
    assert [*gpu.measured([("search", "fp32")], options)] == []


@pytest.mark.parametrize("name", ["masked LM of transformers", "retromae", "simlm"])
def test_steps_in_bfloat16_do_the_work_of_steps_in_float32(name, gpu):
    """Hugging Face's masked LM, a decoder that rebuilds all tokens, and one behind a generator."""
    losses = [gpu.measure(f"pre-training: {name}", mode, gpu.TINY)["loss"] for mode in ("fp32", "bf16")]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


@pytest.mark.slow
def test_steps_of_the_benchmark_of_gpus_equal_those_of_the_cpu(gpu):
    compared = [row for row in gpu.rows(gpu.TINY) if row[0].startswith("equality")]
    assert len(compared) > 40
    some = [row for row in compared if row[0].removeprefix("equality: ") in ("retromae", "simlm", "cached gradients")]
    assert len(some) >= 6
    assert [row for row in some if not gpu.measure(*row, gpu.TINY)["equal"]] == []


@pytest.mark.slow
def test_a_step_of_the_benchmark_of_gpus_can_be_compiled(gpu, monkeypatch):
    """Traced and split by torch, which is where compiling fails: all steps have layers of these kinds."""
    split = {"fp32": {}, "traced": {"arguments": {"torch_compile_backend": "eager"}}}
    monkeypatch.setattr(sys.modules["gpu_rows"], "MODES", split)
    losses = [gpu.measure("pre-training: simlm", mode, gpu.TINY)["loss"] for mode in split]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
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


def test_a_table_and_a_plot_have_every_start_recipe_and_stage(tmp_path, monkeypatch):
    from types import SimpleNamespace

    from matplotlib.axes import Axes

    from drkit.evaluate import Scores

    comparisons = loaded("comparisons", monkeypatch)

    def run(value):
        scores = {"bm25": 0.5, "retriever-1": value}
        per_query = {name: {f"q{n}": mean * (1 + n / 10) for n in range(4)} for name, mean in scores.items()}
        found = {name: Scores(dict.fromkeys(comparisons.MEASURES, values)) for name, values in per_query.items()}
        return SimpleNamespace(scores=found, log=lambda *_: [{"gain": 1.25}])

    none, drawn = comparisons.NONE, []
    values = {("random", "retromae", 1): 0.2, ("random", "retromae", 2): 0.4, ("random", none, 1): 0.1}
    values |= {("ppmi-svd", none, 1): 0.2, ("ppmi-svd", "retromae", 1): 0.04}
    done = {job: run(value) for job, value in values.items()}
    lines = comparisons.table(done, "dpr").splitlines()[2:]
    assert [line.split(" | ")[1:4] for line in lines] == [
        ["BM25", "", "0.575"],
        [f"{none} (1)", "retriever-1", "0.230"],
        ["retromae (1)", "retriever-1", "0.046"],
        ["retromae (2)", "retriever-1", "0.345 ± 0.163"],
        [f"{none} (1)", "retriever-1", "0.115"],
    ]
    assert "| 1.25 |" in lines[3]
    errorbar = Axes.errorbar

    def noted(axes, x, y, **style):
        drawn.append((style["label"], [*x]))
        return errorbar(axes, x, y, **style)

    monkeypatch.setattr(Axes, "errorbar", noted)
    image = comparisons.plot(done, "dpr", tmp_path / "plot.png")
    assert image.read_bytes().startswith(b"\x89PNG")
    assert drawn == [
        ("retriever-1, co-occurrences", pytest.approx([0.23, 0.046])),
        ("retriever-1, random", pytest.approx([0.345, 0.115])),
    ]


def test_a_comparison_is_put_between_the_marks_of_its_page(tmp_path, monkeypatch):
    comparisons, page = loaded("comparisons", monkeypatch), tmp_path / "page.md"
    page.write_text(
        "a\n<!-- comparisons dpr pydocs -->\nold\n<!-- end -->\nb\n<!-- comparisons dpr x -->\n<!-- end -->\n"
    )
    comparisons.put_into(page, "comparisons dpr pydocs", "new\n")
    assert page.read_text().startswith(
        "a\n<!-- comparisons dpr pydocs -->\nnew\n<!-- end -->\nb\n<!-- comparisons dpr x"
    )
    with pytest.raises(DrkitError, match=r"/page\.md .*<!-- comparisons .*-->"):
        comparisons.put_into(page, "comparisons dpr tldr", "new\n")


@pytest.fixture
def speed(monkeypatch):
    return loaded("speed", monkeypatch)


def test_rows_of_speed_are_resumed_and_the_slowest_comes_first(speed, monkeypatch, tmp_path):
    file, page, asked = tmp_path / "rows.jsonl", tmp_path / "page.md", []
    page.write_text("before\n<!-- speed -->\nold\n<!-- end -->\nafter\n")
    ratios = {"mining": (1.5, 2.0, 9.0), "bm25": (0.5, 0.25, 0.75), "search": (1.25, 1.5, 1.0)}

    def measured(name, _options):
        asked.append(name)
        base = {"wall": 2.0, "processor": 1.0, "peak_mb": 1024.0}
        turns = [{"drkit": base, "rival": {**base, "wall": 2 * ratio}} for ratio in ratios[name]]
        row = {"name": name, "what": f"what {name} does", "tiny": False, "machine": "a machine"}
        return {**row, "turns": turns, "differ": {"rival": "1e-07"}}

    def main(*arguments):
        monkeypatch.setattr(sys, "argv", ["speed.py", "--json", str(file), *arguments])
        return speed.main()

    monkeypatch.setattr(speed, "measured", measured)
    assert main("--only", "mining", "bm25") == main("--only", "mining", "search") == 0
    assert asked == ["mining", "bm25", "search"], "rows of the file are not measured again"
    assert main("--only", "search", "--page", str(page)) == 0
    begin, table, end = page.read_text().partition(speed.HEADER)
    assert begin.startswith("before\n<!-- speed -->\na machine; ")
    assert "; 3 turns." in begin
    rows = [line.split(" | ") for line in (table + end).splitlines()[2:5]]
    assert [row[-1] for row in rows] == ["`bm25` |", "`search` |", "`mining` |"]
    assert rows[0][2:6] == ["2", "1", "0.50 (0.25 to 0.75)", "1.00 (1.00 to 1.00)"]
    assert end.endswith("\n<!-- end -->\nafter\n")


@pytest.mark.parametrize("name", ["bm25", "evaluation", "search", "static"])
def test_both_sides_of_a_comparison_find_the_same(name, speed, monkeypatch, tmp_path):
    rows = sys.modules["speed_rows"]
    comparison, found = rows.COMPARISONS[name], {}
    comparison.prepare(tmp_path, rows.TINY)
    for side, work in comparison.sides().items():
        clock = rows.Clock()
        values = work(tmp_path, rows.TINY, clock)
        found[side] = getattr(values, "tolist", lambda values=values: values)()
        assert clock.result()["processor"] > 0
    assert len(found) > 1
    for values in found.values():
        different = speed.difference(found["drkit"], values, comparison.same)
        assert different == "0.00% of hits" if comparison.same == "ids" else float(different) < 1e-5


def test_results_that_differ_are_seen(speed):
    assert speed.difference([[1, 2], [3, 4]], [[2, 1], [3, 5]], "ids") == "25.00% of hits"
    assert speed.difference([[0.5], [1.0]], [[0.5], [1.25]], "numbers") == "2e-01"
    assert speed.difference([0.5], [0.75], "") == ""


def test_the_default_runs_of_two_builds_are_timed_stage_by_stage(monkeypatch, tmp_path, capfd):
    builds = loaded("builds", monkeypatch)
    for name, stage in (("old", "bm25"), ("new", "hybrid")):
        package = tmp_path / name / "cli" / "drkit_cli"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "main.py").write_text(
            "import pathlib, sys\n"
            "def main():\n"
            f"    folder = pathlib.Path(sys.argv[-1]) / {stage!r}\n"
            "    folder.mkdir(parents=True)\n"
            "    (folder / 'manifest.json').write_text('{\"seconds\": 2.5}')\n"
        )
    given = [str(tmp_path / "old"), str(tmp_path / "new"), f"--folder={tmp_path / 'runs'}"]
    monkeypatch.setattr(sys, "argv", ["builds", *given])
    builds.main()
    printed = capfd.readouterr().out
    assert says(printed, "| bm25 | 2.5 | |", "| in all |", "the new run takes")
    assert "| hybrid | | 2.5 |" in printed
