"""A whole run on two processes: every stage made once, trainings shared, and the same encoder as of one big batch."""

import json
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from drkit.runs.manifest import read_manifest
from tests.torchrun import run_processes, torchrun
from tests.warm import ROOT, warm_process

SETTINGS = [
    "--set=encoder.vocab_size=110",
    "--set=encoder.hidden=16",
    "--set=encoder.heads=2",
    "--set=encoder.intermediate=32",
    "--set=encoder.passage_length=24",
    "--set=encoder.init_embeddings=random",
    "--set=pretrain.max_steps=4",
    "--set=pretrain.save_steps=2",
    "--set=pretrain.logging_steps=1",
    "--set=pretrain.probe.every=2",
]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    names, deeds = (
        ["ada", "grace", "alan", "edsger", "frances"],
        ["wrote a compiler", "proved a theorem", "broke a cipher"],
    )
    lines = [
        json.dumps({"text": f"{n} {d} and {m} for {o}"}) for n in names for d in deeds for m in deeds for o in names
    ]
    path.write_text("\n".join(lines))
    return path


def compose(texts, run, batch, *settings, processes=1):
    arguments = [f"--collection=jsonl:{texts}", *SETTINGS, f"--set=pretrain.per_device_train_batch_size={batch}"]
    arguments.append("--set=finetune=none")
    return launched(run, *arguments, *settings, processes=processes)


def launched(run, *settings, processes=1):
    job = {"folder": ROOT, "processes": processes}
    done = warm_process().drkit("compose", f"--run-dir={run}", *settings, **job)
    assert done["code"] == 0, done["err"][-3000:]
    return done


# Examples of a step, however many processes there are.
EIGHT = "--set=pretrain.batch_size=8"


@pytest.mark.parametrize(
    "settings",
    [
        ["--masker=pmi", "--decoder=enhanced"],
        ["--masker=pmi", "--decoder=enhanced", EIGHT],
        ["--masker=pmi", "--decoder=enhanced", "--set=pretrain.arguments.gradient_checkpointing=true"],
        # (A share of the targets is evenly spread over a forward's own, so it would be another one in other chunks.)
        ["--paper=cpdae", "--set=pretrain.gradient_cache_chunk=3", "--set=pretrain.encoder.losses.mlm.targets=1.0"],
        ["--paper=cpdae", "--set=pretrain.encoder.losses.mlm.targets=1.0", EIGHT],
        [
            "--paper=simlm",
            EIGHT,
            *(f"--set=pretrain.{side}.losses.replaced-lm.targets=1.0" for side in ("encoder", "decoders.main")),
        ],
    ],
    ids=[
        "local losses",
        "micro-batches",
        "gradient checkpointing",
        "contrast in chunks",
        "contrast of a step",
        "a generator",
    ],
)
def test_two_processes_make_the_encoder_that_one_makes_with_twice_the_batch(texts, tmp_path, settings):
    """One process reads 8 texts at once, or 2 at a time of a step of 8; two processes read 4 each."""
    compose(texts, tmp_path / "one", 2 if EIGHT in settings else 8, *settings)
    done = compose(texts, tmp_path / "two", 4, *settings, processes=2)
    assert done["out"].count("report:") <= 1, "one process speaks for all"
    assert "FutureWarning" not in done["err"]
    one, two = (load_file(tmp_path / run / "pretrained/model.safetensors") for run in ("one", "two"))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=2e-4, rtol=1e-3, msg=lambda text, n=name: f"{n}: {text}")
    start = load_file(tmp_path / "one/initial/model.safetensors")
    assert any((one[name] - weight).abs().max() > 1e-3 for name, weight in start.items()), "it has learnt something"
    assert read_manifest(tmp_path / "two/pretrained").metrics["steps"] == 4
    logs = [(tmp_path / run / "pretrained/log.jsonl").read_text().splitlines() for run in ("one", "two")]
    for line, other in zip(*logs, strict=True):
        assert json.loads(line)["loss"] == pytest.approx(json.loads(other)["loss"], rel=2e-3)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A folder in BEIR's layout: who wrote what for whom; a query has two answers."""
    folder = tmp_path_factory.mktemp("judged")
    (folder / "qrels").mkdir()
    names, deeds = (
        ["ada", "grace", "alan", "edsger", "frances"],
        ["wrote a compiler", "proved a theorem", "broke a code"],
    )
    pairs = [(n, o) for n in names for o in names if n != o]
    with (folder / "corpus.jsonl").open("w") as corpus, (folder / "queries.jsonl").open("w") as queries:
        for i, (n, o) in enumerate(pairs):
            queries.write(json.dumps({"_id": f"q {i}", "text": f"what did {n} do for {o}"}) + "\n")
            for j, deed in enumerate(deeds):
                corpus.write(json.dumps({"_id": f"d {i} {j}", "text": f"{n} {deed} and gave it to {o}"}) + "\n")
    for split, indices in {"train": range(14), "test": range(14, len(pairs))}.items():
        lines = [f"q {i}\td {i} {j}\t1\n" for i in indices for j in (0, 1)]
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return folder


def test_three_stages_on_two_processes_are_those_of_one_with_twice_the_batch(judged, tmp_path):
    settings = [one for one in SETTINGS if "pretrain" not in one]
    settings += [
        f"--collection=beir:{judged}",
        "--pipeline=three-stage",
        "--set=pretrain=none",
        "--set=reranker.depth=20",
    ]
    settings += ["--set=finetune.max_steps=4", "--set=finetune.gradient_cache_chunk=3", "--set=reranker.max_steps=3"]
    sizes = "--set={}.per_device_train_batch_size={}".format
    launched(tmp_path / "one", *settings, sizes("finetune", 8), sizes("reranker", 4))
    launched(tmp_path / "two", *settings, sizes("finetune", 4), sizes("reranker", 2), processes=2)
    for stage in ("retriever-1", "retriever-2", "retriever-distilled", "encoder"):
        one, two = (load_file(tmp_path / run / stage / "model.safetensors") for run in ("one", "two"))
        for name, weight in one.items():
            torch.testing.assert_close(two[name], weight, atol=1e-5, rtol=0, msg=lambda text, n=name: f"{n}: {text}")
    start, end = (load_file(tmp_path / "one" / of / "model.safetensors") for of in ("initial", "retriever-distilled"))
    assert any((end[name] - weight).abs().max() > 1e-3 for name, weight in start.items()), "it has learnt something"
    read = [read_manifest(tmp_path / run / "retriever-distilled").metrics for run in ("one", "two")]
    assert [metrics["processes"] for metrics in read] == [1, 2]
    assert read[0]["negatives_per_query"] == read[1]["negatives_per_query"]
    # Every query has two answers, of which one is its positive here; some of the others' passages are copies.
    assert 0 < read[0]["negatives_counted"] == read[1]["negatives_counted"] < read[0]["negatives_per_query"]
    # What shifts all scores alike, as the head's bias does, does not change a listwise loss, and is not determined.
    taught = [
        _teachers_differences(tmp_path / run / "teacher-retriever-distilled/values.arrow") for run in ("one", "two")
    ]
    assert np.abs(np.concatenate(taught[0]) - np.concatenate(taught[1])).max() < 1e-5


def _teachers_differences(path):
    with pa.memory_map(str(path)) as source:
        rows = pa.ipc.open_file(source).read_all()["values"].to_pylist()
    return [np.asarray(row) - row[0] for row in rows]


def killed(run, stage, step, *settings, processes):
    """Begin a run that is killed after a checkpoint."""
    arguments = (stage, step, "compose", f"--run-dir={run}", *settings)
    done = warm_process().drkit(*arguments, folder=ROOT, module="tests.runs.killed_training", processes=processes)
    assert done["code"] == 9, done["err"][-3000:]


def resumed(run, processes):
    done = warm_process().drkit("run", run, folder=ROOT, processes=processes)
    assert done["code"] == 0, done["err"][-3000:]
    return done["out"] + done["err"]


def assert_same_weights(file, one, two, atol):
    expected, found = (load_file(run / file) for run in (one, two))
    assert expected.keys() == found.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, atol=atol, rtol=1e-3, msg=lambda text, n=name: f"{n}: {text}")


# (processes at first, and when resumed; texts per process, so that all runs have batches of 6)
CHANGES = [(2, 1, 3), (2, 3, 3), (1, 2, 6), (3, 2, 2)]


@pytest.fixture(scope="module")
def uninterrupted(texts, tmp_path_factory):
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    compose(texts, run, 6, "--masker=pmi", "--decoder=enhanced")
    return run


@pytest.mark.parametrize(("before", "after", "batch"), CHANGES)
def test_pretraining_resumed_by_another_number_of_processes_keeps_its_batches(
    texts, uninterrupted, tmp_path, before, after, batch
):
    settings = [f"--collection=jsonl:{texts}", *SETTINGS, "--masker=pmi", "--decoder=enhanced", "--set=finetune=none"]
    settings.append(f"--set=pretrain.per_device_train_batch_size={batch}")
    killed(tmp_path / "run", "pretrained", 2, *settings, processes=before)
    said = resumed(tmp_path / "run", after)
    assert f"batches stay those of {before} process" in said
    assert_same_weights("pretrained/model.safetensors", uninterrupted, tmp_path / "run", 2e-4)
    recorded = json.loads((tmp_path / "run/pretrained/training.json").read_text())
    assert recorded["batch_size"] == 6
    assert recorded["processes"] == {"1": before, "3": after}


@pytest.mark.parametrize(("stage", "step"), [("retriever-1", 2), ("reranker", 2)])
def test_later_trainings_keep_the_batches_of_the_processes_that_began_the_run(judged, tmp_path, stage, step):
    settings = [one for one in SETTINGS if "pretrain" not in one]
    settings += [f"--collection=beir:{judged}", "--pipeline=three-stage", "--set=pretrain=none"]
    settings += ["--set=reranker.depth=20", "--set=finetune.max_steps=4", "--set=reranker.max_steps=4"]
    settings += ["--set=finetune.save_steps=2", "--set=reranker.save_steps=2"]
    sizes = "--set={}.per_device_train_batch_size={}".format
    launched(tmp_path / "one", *settings, sizes("finetune", 6), sizes("reranker", 6))
    each = (*settings, sizes("finetune", 3), sizes("reranker", 3))
    killed(tmp_path / "two", stage, step, *each, processes=2)
    resumed(tmp_path / "two", 1 if stage == "reranker" else 3)
    for name in ("retriever-1", "retriever-2", "retriever-distilled"):
        assert_same_weights(f"{name}/model.safetensors", tmp_path / "one", tmp_path / "two", 2e-5)
    read = [read_manifest(tmp_path / run / "retriever-distilled").metrics for run in ("one", "two")]
    assert [metrics["queries_per_batch"] for metrics in read] == [6, 6]
    assert [metrics["processes"] for metrics in read] == [1, 2]


def test_a_batch_of_fewer_texts_than_processes_is_refused(texts, tmp_path):
    settings = [f"--collection=jsonl:{texts}", *SETTINGS, "--set=finetune=none"]
    settings.append("--set=pretrain.per_device_train_batch_size=2")
    killed(tmp_path / "run", "pretrained", 2, *settings, processes=1)
    done = warm_process().drkit("run", tmp_path / "run", folder=ROOT, processes=3)
    assert done["code"] == 2, done["err"][-3000:]
    assert "batches of 2 examples for 3 processes" in done["err"]
    assert "Traceback" not in done["err"]


def test_a_training_on_batches_of_another_size_is_not_reused(texts, tmp_path):
    compose(texts, tmp_path / "two", 3, processes=2)
    compose(texts, tmp_path / "one", 3, f"--reuse={tmp_path / 'two'}")
    assert json.loads((tmp_path / "one/pretrained/training.json").read_text())["batch_size"] == 3


def test_the_steps_of_another_number_of_processes_are_reused(texts, tmp_path):
    compose(texts, tmp_path / "two", 4, EIGHT, processes=2)
    compose(texts, tmp_path / "one", 4, EIGHT, f"--reuse={tmp_path / 'two'}")
    recorded = json.loads((tmp_path / "one/pretrained/training.json").read_text())
    assert (recorded["batch_size"], recorded["processes"]) == (8, {"1": 2})


def test_more_processes_divide_the_micro_batches_of_a_step_anew(texts, tmp_path):
    settings = ["--masker=pmi", "--decoder=enhanced", EIGHT, "--set=pretrain.per_device_train_batch_size=2"]
    compose(texts, tmp_path / "one", 2, *settings)
    begin = [f"--collection=jsonl:{texts}", *SETTINGS, *settings, "--set=finetune=none"]
    killed(tmp_path / "four", "pretrained", 2, *begin, processes=1)
    resumed(tmp_path / "four", 4)
    assert_same_weights("pretrained/model.safetensors", tmp_path / "one", tmp_path / "four", 2e-4)
    recorded = json.loads((tmp_path / "four/pretrained/training.json").read_text())
    assert (recorded["batch_size"], recorded["processes"]) == (8, {"1": 1, "3": 4})


def test_a_step_of_more_texts_than_there_are_has_all_of_them(texts, tmp_path):
    settings = ("--set=pretrain.batch_size=400", "--set=pretrain.max_steps=2", "--set=pretrain.probe.every=0")
    done = compose(texts, tmp_path / "run", 64, *settings)
    recorded = json.loads((tmp_path / "run/pretrained/training.json").read_text())
    assert recorded["batch_size"] == recorded["examples"] < 400
    assert f"a step has all {recorded['examples']} examples, fewer than batch_size = 400" in done["out"] + done["err"]


def test_a_batch_that_the_processes_cannot_divide_is_refused_in_the_plan(texts, tmp_path):
    arguments = [f"--collection=jsonl:{texts}", *SETTINGS, "--set=finetune=none", EIGHT]
    done = warm_process().drkit("compose", f"--run-dir={tmp_path / 'run'}", *arguments, folder=ROOT, processes=3)
    assert done["code"] == 2, done["err"][-3000:]
    assert "batch_size = 8 cannot be divided over 3 processes: set it to 6 or 9, or start 2 processes" in done["err"]
    assert not (tmp_path / "run").exists()


def test_checkpoints_stay_until_every_process_has_read_them(tmp_path):
    run_processes("tests.runs.slow_process", tmp_path)
    assert read_manifest(tmp_path / "run/trained").metrics == {}
    assert not (tmp_path / "run/trained/checkpoints").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_no_thread_of_the_group_outlives_it(tmp_path):
    # One that lets go of a tensor while the interpreter ends aborts the process, and with it the run.
    torchrun("tests.runs.ending", tmp_path)
    for rank in (0, 1):
        during, after = (tmp_path / f"{rank}.txt").read_text().removeprefix("during\n").split("\nafter\n")
        assert any("gloo" in thread for thread in during.splitlines())
        assert not [thread for thread in after.splitlines() if "gloo" in thread]
