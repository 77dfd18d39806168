"""A run on two hosts, each a network namespace of this machine: one is lost, and the resumed run ends as it would have.

Linux, root and `ip` are needed. The hosts share the file system, as those of a cluster do.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

from drkit.runs.manifest import read_manifest
from tests.runs.test_processes import SETTINGS, judged  # noqa: F401  (a fixture)
from tests.warm import ROOT, warm_process

HOSTS, CARDS, PORT, STEPS = ("drkit-a", "drkit-b"), ("eth-a", "eth-b"), 29411, 150


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


def remove_hosts():
    for host in HOSTS:
        lose(host)
        ip("netns", "del", host)


@pytest.fixture(scope="module")
def hosts():
    """Two namespaces with a network between them: 10.77.0.1 and 10.77.0.2."""
    if shutil.which("ip") is None or os.geteuid():
        pytest.skip("network namespaces need Linux's `ip` and root")
    remove_hosts()
    made = [ip("netns", "add", host) for host in HOSTS]
    (first, second), (one, two) = HOSTS, CARDS
    made.append(ip("link", "add", one, "netns", first, "type", "veth", "peer", "name", two, "netns", second))
    for number, (host, card) in enumerate(zip(HOSTS, CARDS, strict=True), start=1):
        made += [
            ip("-n", host, "addr", "add", f"10.77.0.{number}/24", "dev", card),
            ip("-n", host, "link", "set", card, "up"),
            ip("-n", host, "link", "set", "lo", "up"),
        ]
    if failed := [one.stderr for one in made if one.returncode]:
        remove_hosts()
        pytest.skip(f"no network namespaces here: {failed[0]}")
    yield HOSTS
    remove_hosts()


def started(host, number, run, settings, log):
    """Start a host's share of a run: torchrun with one process."""
    torchrun = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", f"--node-rank={number}"]
    torchrun += ["--master-addr=10.77.0.1", f"--master-port={PORT}", "-m", "drkit_cli.main", "compose"]
    variables = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": CARDS[number]}
    return subprocess.Popen(
        ["ip", "netns", "exec", host, sys.executable, *torchrun, f"--run-dir={run}", *settings],
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env={**os.environ, **variables},
        start_new_session=True,
    )


def start_both(run, settings, folder):
    logs = [folder / f"{run.name}-{host}.log" for host in HOSTS]
    return [started(host, n, run, settings, logs[n]) for n, host in enumerate(HOSTS)], logs


def lose(host):
    """Kill every process of a host at once."""
    for pid in ip("netns", "pids", host).stdout.split():
        os.kill(int(pid), signal.SIGKILL)


def finish(processes, logs):
    for one in processes:
        one.wait(timeout=400)
    assert [one.returncode for one in processes] == [0, 0], "\n".join(log.read_text()[-2000:] for log in logs)


@pytest.mark.slow
def test_a_run_that_loses_a_host_is_resumed_and_ends_with_the_same_weights(hosts, judged, tmp_path):  # noqa: F811
    settings = [one for one in SETTINGS if "max_steps" not in one and "save_steps" not in one]
    settings += [f"--collection=beir:{judged}", "--masker=pmi", "--decoder=enhanced", "--miner=bm25"]
    settings += [f"--set=pretrain.max_steps={STEPS}", "--set=pretrain.save_steps=10"]
    settings += ["--set=finetune.max_steps=6", "--set=finetune.per_device_train_batch_size=4"]
    whole, lost = tmp_path / "whole", tmp_path / "lost"
    undisturbed = warm_process().drkit("compose", f"--run-dir={whole}", *settings, processes=2)  # of one host
    assert undisturbed["code"] == 0, undisturbed["err"]

    processes, logs = start_both(lost, settings, tmp_path)
    checkpoints = lost / ".unfinished" / "pretrained" / "checkpoints"
    deadline = time.monotonic() + 300
    while not [*checkpoints.glob("checkpoint-*")]:
        assert time.monotonic() < deadline, logs[0].read_text()[-2000:]
        assert processes[0].poll() is None, logs[0].read_text()[-2000:]
        time.sleep(0.02)
    lose(HOSTS[1])
    processes[0].wait(timeout=120)
    assert processes[0].returncode
    assert not (lost / "pretrained").exists()
    kept = [path.name for path in checkpoints.glob("checkpoint-*")]
    assert kept

    finish(*start_both(lost, settings, tmp_path))
    for stage in ("pretrained", "retriever-1", "encoder"):
        one, two = (load_file(run / stage / "model.safetensors") for run in (whole, lost))
        assert all((two[name] == weight).all() for name, weight in one.items()), stage
    assert read_manifest(lost / "retriever-1").metrics["processes"] == 2
    negatives = [(run / "negatives-retriever-1" / "negatives.arrow").read_bytes() for run in (whole, lost)]
    assert negatives[0] == negatives[1]
