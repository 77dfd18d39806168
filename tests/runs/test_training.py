"""One training over the Trainer: resumed equals uninterrupted, broken checkpoints and losses are noticed."""

import os
import shutil
import signal

import numpy as np
import pytest
import torch
from torch import nn

from drkit.core.progress import Silent
from drkit.errors import DrkitError
from drkit.recipe.training import Training
from drkit.train.batches import Schedule
from drkit.train.resuming import COMPLETE, newest_checkpoint
from drkit.train.trainer import train
from tests.runs.damages import DAMAGES, flip_byte
from tests.runs.test_probes import Heard

STEPS = 12


class Toy(nn.Module):
    """A layer with dropout, so that the random state must be resumed too; its two weights are tied."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.5)
        self.second.weight = self.first.weight

        self.weights, self.row_indices = {"copy": 1.0}, {}

    def compares(self):
        return False

    def forward(self, x, local=True):
        out = self.second(self.drop(self.first(x)))
        loss = (out - x).pow(2).mean()
        return {"loss.copy": loss, "items.copy": torch.tensor(len(x)), "metric.copy.size": out.detach().abs().mean()}


def toy():
    torch.manual_seed(0)
    return Toy()


class Collate:
    """Vectors that depend on (epoch, example) alone; may cut the training off at its n-th batch."""

    def __init__(self, cut_off=None):
        self.cut_off, self.calls = cut_off, 0

    def __call__(self, examples):
        self.calls += 1
        if self.calls == self.cut_off:
            raise KeyboardInterrupt
        rows = [np.random.default_rng(example).normal(size=4) for example in examples]
        return {"x": torch.tensor(np.array(rows), dtype=torch.float32)}


def go(module, folder, collate=None, progress=None, **settings):
    chosen = {"max_steps": STEPS, "save_steps": 3, "logging_steps": 2, "per_device_train_batch_size": 4, **settings}
    schedule = Schedule(lengths=np.full(40, 5, np.int32), batch_size=4, batches=chosen["max_steps"], seed=3)
    return train(
        module,
        schedule,
        collate or Collate(),
        training=Training(**chosen),
        folder=folder,
        progress=progress or Silent(),
        seed=7,
    )


def same(one, two):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted training: its module and its result."""
    module = toy()
    return module, go(module, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def cut_at_11(tmp_path_factory):
    """The folder of a training that was cut off at its eleventh batch."""
    folder = tmp_path_factory.mktemp("cut")
    with pytest.raises(KeyboardInterrupt):
        go(toy(), folder, Collate(11))
    return folder


@pytest.mark.parametrize("cut_off", [2, 5, 9, 12])
def test_resumed_equals_uninterrupted(whole, tmp_path, cut_off):
    (module, expected), resumed = whole, toy()
    with pytest.raises(KeyboardInterrupt):
        go(toy(), tmp_path / "cut", Collate(cut_off))
    result = go(resumed, tmp_path / "cut")
    assert same(module, resumed)
    assert result.steps == expected.steps == STEPS
    assert result.log == expected.log  # steps since the last line, too: checkpoints stand between lines here
    assert "copy_size" in result.log[-1]


class Interrupting(Collate):
    """Presses Ctrl-C while batches are made."""

    def __init__(self, *calls):
        super().__init__()
        self.pressed = calls

    def __call__(self, examples):
        made = super().__call__(examples)
        for _ in range(self.pressed.count(self.calls)):
            signal.raise_signal(signal.SIGINT)
        return made


@pytest.fixture
def interruptible():
    """Python's own handler of Ctrl-C, which a test runner may have replaced."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("call", [1, 5, STEPS])
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_leaves_a_checkpoint_to_resume_from(whole, tmp_path, call):
    (module, expected), resumed, collate = whole, toy(), Collate()
    with pytest.raises(KeyboardInterrupt):
        go(toy(), tmp_path / "cut", Interrupting(call), save_steps=500)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    step = int(newest_checkpoint(tmp_path / "cut", Silent()).name.rpartition("-")[2])
    assert call - 1 <= step <= call
    result = go(resumed, tmp_path / "cut", collate, save_steps=500)
    assert same(module, resumed)
    assert result.steps == expected.steps
    assert result.log == expected.log
    assert result.loss == expected.loss
    assert collate.calls <= STEPS - step + 1


@pytest.mark.usefixtures("interruptible")
def test_a_second_ctrl_c_stops_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        go(toy(), tmp_path, Interrupting(5, 5), save_steps=500)
    assert newest_checkpoint(tmp_path, Silent()) is None


@pytest.mark.parametrize("logging_steps", [STEPS, 50])
def test_the_log_of_a_training_of_fewer_steps_than_a_line_is_a_curve_too(tmp_path, logging_steps):
    result = go(toy(), tmp_path, logging_steps=logging_steps, save_steps=500)
    assert [entry["step"] for entry in result.log] == list(range(1, STEPS + 1))
    assert np.isfinite(result.loss)


def test_how_often_is_logged_changes_no_weights(tmp_path):
    often, seldom = toy(), toy()
    go(often, tmp_path / "a", logging_steps=1)
    go(seldom, tmp_path / "b", logging_steps=STEPS - 1)
    assert same(often, seldom)


def test_a_training_that_was_done_does_no_step_again(tmp_path):
    first, again, collate = toy(), toy(), Collate()
    go(first, tmp_path)
    result = go(again, tmp_path, collate)
    assert same(first, again)
    assert result.steps == STEPS
    assert collate.calls == 0


def test_a_checkpoint_that_a_kill_cut_short_is_passed_over(tmp_path):
    whole, resumed = toy(), toy()
    go(whole, tmp_path)
    last = newest_checkpoint(tmp_path, Silent())
    (last / COMPLETE).unlink()
    (last / "model.safetensors").write_bytes(b"half")
    earlier = newest_checkpoint(tmp_path, Silent())
    assert earlier.name == "checkpoint-9"
    assert not last.exists()
    go(resumed, tmp_path)
    assert same(whole, resumed)


class SteppingBack(Collate):
    """Sets the clock back by an hour before every batch: what is there looks newer than what comes."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def __call__(self, examples):
        for path in self.folder.glob("checkpoint-*"):
            before = path.stat().st_mtime
            os.utime(path, (before + 3600, before + 3600))
        return super().__call__(examples)


def test_a_clock_that_steps_back_rotates_no_new_checkpoint_away(tmp_path):
    go(toy(), tmp_path, SteppingBack(tmp_path))
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-12", "checkpoint-9"]


FILES = ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", COMPLETE]
FILES.append("callbacks/processes.json")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_checkpoint_is_skipped_with_a_note_and_the_older_one_used(whole, cut_at_11, tmp_path, file, damage):
    resumed, collate, heard = toy(), Collate(), Heard()
    shutil.copytree(cut_at_11, tmp_path / "cut")
    checkpoint = tmp_path / "cut" / "checkpoint-9"
    written = {path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if path.is_file()}
    assert written == set(FILES)
    damage(tmp_path / "cut" / "checkpoint-9" / file)
    go(resumed, tmp_path / "cut", collate, progress=heard)
    assert same(whole[0], resumed)
    assert collate.calls == STEPS - 6
    (note,) = heard.notes
    named = FILES if file == COMPLETE else [file]  # a byte of a recorded hash makes its file look changed
    assert note.startswith(tuple(f"checkpoint-9 is damaged and will not be used: {name}" for name in named))


def test_a_training_without_a_whole_checkpoint_starts_again(whole, cut_at_11, tmp_path):
    resumed, collate, heard = toy(), Collate(), Heard()
    shutil.copytree(cut_at_11, tmp_path / "cut")
    for step in (6, 9):
        flip_byte(tmp_path / "cut" / f"checkpoint-{step}" / "optimizer.pt")
    go(resumed, tmp_path / "cut", collate, progress=heard)
    assert same(whole[0], resumed)
    assert collate.calls == STEPS
    assert len(heard.notes) == 2


def test_checkpoints_hold_no_pickled_arguments(tmp_path):
    go(toy(), tmp_path)
    assert not list(tmp_path.rglob("training_args.bin"))


def test_a_loss_that_is_not_finite_ends_the_training_in_words(tmp_path):
    class Diverging(Toy):
        def forward(self, x):
            out = super().forward(x)
            return {**out, "loss.copy": out["loss.copy"] * float("nan")}

    with pytest.raises(DrkitError, match=r"nan at step 2: .*learning_rate.*warmup_steps.*'copy'"):
        go(Diverging(), tmp_path / "soon", logging_steps=2, max_steps=40)
    with pytest.raises(DrkitError, match=r"nan at step 8: .*'copy'"):
        go(Diverging(), tmp_path / "late", logging_steps=8, save_steps=500, max_steps=80)
    with pytest.raises(DrkitError, match=r"nan at step 1: .*'copy'"):
        go(Diverging(), tmp_path / "short", logging_steps=50, save_steps=500)


def test_the_term_that_was_first_not_finite_is_named(tmp_path):
    class TwoTerms(Toy):
        def __init__(self):
            super().__init__()
            self.weights = {"copy": 1.0, "other": 1.0}

        def forward(self, x):
            out = super().forward(x)
            return {**out, "loss.other": out["loss.copy"] * float("nan"), "items.other": out["items.copy"]}

    with pytest.raises(DrkitError, match=r"not finite: 'other'$"):
        go(TwoTerms(), tmp_path, logging_steps=4)


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="of a processor alone")
def test_batches_prefetched_by_workers_train_the_same_weights(tmp_path):
    """Also after a resume: a worker's random state is not part of a checkpoint."""
    here, elsewhere, resumed = toy(), toy(), toy()
    ahead = {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 3}
    go(here, tmp_path / "here")
    go(elsewhere, tmp_path / "elsewhere", arguments=ahead)
    with pytest.raises(KeyboardInterrupt):
        go(toy(), tmp_path / "cut", Collate(cut_off=8))
    go(resumed, tmp_path / "cut", arguments=ahead)
    assert same(here, elsewhere)
    assert same(here, resumed)


def test_as_many_batches_are_prefetched_as_asked_for(tmp_path):
    from drkit.train.arguments import training_arguments
    from drkit.train.logs import Meter
    from drkit.train.trainer import ScheduledTrainer

    training = Training(arguments={"dataloader_num_workers": 2, "dataloader_prefetch_factor": 3})
    arguments = training_arguments(training, tmp_path, STEPS, 0)
    schedule, meter = Schedule(np.full(40, 5, np.int32), 4, STEPS, 3), Meter(())
    trainer = ScheduledTrainer(toy(), schedule, Collate(), args=arguments, training=training, meter=meter)
    loader = trainer.get_train_dataloader()
    assert (loader.num_workers, loader.prefetch_factor) == (2, 3)


def test_bfloat16_trains_on_a_processor(tmp_path):
    torch.manual_seed(0)
    whole, half = (go(toy(), tmp_path / str(bf16), bf16=bf16).loss for bf16 in (False, True))
    assert half == pytest.approx(whole, rel=0.05)
    assert half != whole


def test_tf32_of_one_training_is_not_that_of_the_next_stage(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.training_args.is_torch_tf32_available", lambda: True)
    seen = []

    class Notes(Collate):
        def __call__(self, examples):
            seen.append(torch.backends.fp32_precision)
            return super().__call__(examples)

    before = torch.backends.fp32_precision
    go(toy(), tmp_path, Notes(), arguments={"tf32": True})
    assert {*seen} == {"tf32"}
    assert torch.backends.fp32_precision == before != "tf32"


def test_arguments_that_do_not_fit_are_told(tmp_path):
    with pytest.raises(DrkitError, match="nosuch"):
        go(toy(), tmp_path, arguments={"optim": "nosuch"})


def turned():
    """A toy whose weights are a transposed view, and part of a larger tensor."""
    module = toy()
    module.first.weight = module.second.weight = nn.Parameter(module.first.weight.detach().T)
    module.first.bias = nn.Parameter(torch.randn(8)[::2])
    assert not module.first.weight.is_contiguous()
    return module


def test_weights_in_any_layout_are_saved_and_resumed(tmp_path):
    whole = turned()
    go(whole, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        go(turned(), tmp_path / "cut", Collate(cut_off=8))
    resumed = turned()
    go(resumed, tmp_path / "cut")
    assert same(whole, resumed)


def test_the_processes_of_a_training_are_recorded_once(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        go(toy(), tmp_path, Collate(cut_off=8))
    assert go(toy(), tmp_path).processes == {"1": 1}
