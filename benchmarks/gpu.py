"""Measure drkit on this machine's GPU: training steps, encoding, search, and whether they equal those of the CPU.

    python benchmarks/gpu.py --json rows.jsonl               # start it again and it goes on
    python benchmarks/gpu.py --json rows.jsonl --page docs/guide/gpu.md     # measures nothing, writes the tables
    python benchmarks/gpu.py --json toy.jsonl --device cpu --tiny           # the same code at toy sizes

Rows (`gpu_rows.py`): products of matrices, the steps of every paper's recipe, padded batches, cached gradients,
encoding and search, in bfloat16, float32 (TF32 off), TF32, and compiled. Each is appended to the file when it is done,
after a first line about the machine. A row that fails, or takes too long, is recorded with its error, and its process
replaced. A file belongs to one machine and one set of sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import cattrs
import torch
from attrs import asdict, evolve
from comparisons import put_into
from gpu_rows import TINY, TOLERANCES, Row, Sizes, measure, rows

from drkit.core.files import write_text
from drkit.errors import DrkitError

MARK = "gpu"
# Dense TFLOP/s of data sheets: bfloat16, TF32, float32. The first name within the device's counts.
PEAKS = {
    "H100 PCIe": (756, 378, 51),
    "H100 NVL": (835, 417, 60),
    "H100": (989, 494, 67),
    "H200": (989, 494, 67),
    "A100": (312, 156, 19.5),
    "L40S": (362, 183, 91.6),
}
PRECISIONS = ("bf16", "tf32", "fp32")


def machine() -> dict[str, Any]:
    """Return the device, and the versions of what computes on it."""
    found = {"torch": torch.__version__, "python": platform.python_version(), "cuda": torch.version.cuda}
    if not torch.cuda.is_available():
        return {"device": "cpu", **found}
    properties = torch.cuda.get_device_properties(0)
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    has_driver_tool = shutil.which(command[0]) is not None
    driver = subprocess.run(command, check=False, capture_output=True, text=True).stdout if has_driver_tool else ""
    return {
        "device": properties.name,
        "gib": round(properties.total_memory / 2**30, 1),
        **found,
        "cudnn": torch.backends.cudnn.version(),
        "driver": (driver.split() or ["unknown"])[0],
    }


def read_rows(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the first line of a file, empty without a file, and its rows."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return (lines[0], lines[1:]) if lines else ({}, [])


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add a line: the file has all of it, or none."""
    write_text(path, (path.read_text() if path.is_file() else "") + json.dumps(record) + "\n")


def measured(todo: Sequence[Row], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure rows in a process of its own, which is replaced after a row that fails; yield each, or its error."""
    left, end = list(todo), monotonic() + options.seconds
    while left and monotonic() < end:
        for row in worker_rows(left, options, end):
            del left[0]
            yield row


def worker_rows(todo: Sequence[Row], options: argparse.Namespace, end: float) -> Iterator[dict[str, Any]]:
    """Yield the rows of one process, up to the first that fails; one that `end` interrupts is not among them."""
    command = [sys.executable, __file__, "--worker", json.dumps(todo), "--texts", str(options.texts)]
    command += ["--tiny"] if options.tiny else []
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if options.device == "cpu" else {}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, bufsize=0, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, **hidden}
        ) as worker,
    ):
        assert worker.stdout is not None
        try:
            for step, mode in todo:
                limit = max(min(options.row_seconds, end - monotonic()), 0)
                is_ready, _, _ = select.select([worker.stdout], [], [], limit)
                line = worker.stdout.readline() if is_ready else b""
                if line:
                    yield json.loads(line)
                    continue
                if monotonic() >= end:
                    return
                errors.seek(0)
                lines = errors.read().strip().splitlines() or ["no output"]
                # CUDA's errors end with advice; what went wrong is on the line of the exception.
                last = next((line for line in reversed(lines) if "Error: " in line), lines[-1])
                error = last if is_ready else f"took more than {options.row_seconds:g} s"
                yield {"step": step, "mode": mode, "error": error}
                return
        finally:
            worker.kill()


def work(todo: Sequence[Row], options: argparse.Namespace) -> None:
    """Print each row as a line of JSON; an error ends the process, because a GPU may not recover from it."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print
    for step, mode in todo:
        found = measure(step, mode, sizes_of(options))
        print(json.dumps({"step": step, "mode": mode, **found}), file=out, flush=True)


def sizes_of(options: argparse.Namespace) -> Sizes:
    return TINY if options.tiny else evolve(Sizes(), texts=options.texts)


def chosen_rows(options: argparse.Namespace) -> list[Row]:
    every = rows(sizes_of(options))
    only = options.only or [""]
    return [(step, mode) for step, mode in every if any(text in f"{step} {mode}" for text in only)]


def run(options: argparse.Namespace) -> int:
    """Measure the rows that the file lacks; return 1 if one of the file failed or is unequal.

    Raises DrkitError for a file of another machine or of other sizes.
    """
    first = json.loads(json.dumps({"machine": machine(), "sizes": asdict(sizes_of(options))}))
    if options.device == "cpu":
        first["machine"]["device"] = "cpu"
    before, done = read_rows(options.json)
    if before and before != first:
        raise DrkitError(f"{options.json} has rows of {before}, not of {first}; write to another file")
    if not before:
        append(options.json, first)
    known = {(row["step"], row["mode"]) for row in done}
    todo = [row for row in chosen_rows(options) if row not in known]
    for number, row in enumerate(measured(todo, options), 1):
        append(options.json, row)
        done.append(row)
        print(f"{number} of {len(todo)}: {json.dumps(row)}", flush=True)
    return 1 if any("error" in row or not row.get("equal", True) for row in done) else 0


# The page


def page(path: Path) -> str:
    """Return the tables of a file's rows."""
    first, done = read_rows(path)
    if not done:
        raise DrkitError(f"{path} has no rows; measure them first: python benchmarks/gpu.py --json {path}")
    about, sizes = first["machine"], first["sizes"]
    versions = ", ".join(f"{name} {about[name]}" for name in ("driver", "torch", "cuda", "cudnn") if about.get(name))
    speeds = [row for row in done if "seconds" in row]
    compared = [row for row in done if "gradient_error" in row]
    known = {(row["step"], row["mode"]) for row in done}
    missing: dict[str, list[str]] = {}
    for step, mode in rows(cattrs.structure(sizes, Sizes)):
        if (step, mode) not in known:
            missing.setdefault(mode, []).append(step.removeprefix("pre-training: "))
    return "\n".join(
        [
            f"{about['device']} ({versions}); {sizes['texts']} texts of {sizes['length']} tokens, width "
            f"{sizes['hidden']}; searched: {sizes['vectors']:,} vectors.",
            "",
            "| step | mode | tokens/s | median ms | TFLOP/s | MFU | peak GiB |",
            "|---|---|---|---|---|---|---|",
            *(speed_line(row, about["device"]) for row in speeds),
            *(f"| {row['step']} | {row['mode']} | {row['error']} | | | | |" for row in done if "error" in row),
            "",
            *(f"Not measured in {mode}: {'; '.join(steps)}." for mode, steps in missing.items()),
            "",
            f"Loss and gradients of {len({row['step'] for row in compared})} steps, the largest relative difference "
            f"from the CPU in float32: {equality(compared)}.",
            "",
        ]
    )


def equality(compared: Sequence[Mapping[str, Any]]) -> str:
    """Return the largest errors of each mode beside what is allowed; steps above that are named in bold."""
    parts = []
    for mode, (loss, gradients) in TOLERANCES.items():
        found = [row for row in compared if row["mode"] == mode]
        if not found:
            continue
        worst = {name: max(row[name] for row in found) for name in ("loss_error", "gradient_error")}
        failed = [f"**{row['step'].partition(': ')[2]}**" for row in found if not row["equal"]]
        parts.append(
            f"{mode}: loss {worst['loss_error']:.0e} (allowed {loss:g}), gradients {worst['gradient_error']:.0e} "
            f"({gradients:g}){', above it: ' * bool(failed)}{', '.join(failed)}"
        )
    return "; ".join(parts)


def speed_line(row: Mapping[str, Any], device: str) -> str:
    """Return a row of the first table; searching has queries a second, and whether its hits are exact."""
    step, rate = row["step"], f"{row['tokens_per_second']:,.0f}" if "tokens_per_second" in row else ""
    if "queries_per_second" in row:
        step += ", exact hits" if row["equal"] else ", **inexact hits**"
        rate = f"{row['queries_per_second']:,.0f} queries/s"
    peak = next((peaks for name, peaks in PEAKS.items() if name in device), None)
    tflops = row.get("tflops")
    share = tflops / peak[PRECISIONS.index(row["mode"].split()[0])] if tflops and peak else None
    cells = [step, row["mode"], rate, f"{row['seconds'] * 1000:,.1f}", "" if tflops is None else f"{tflops:,.1f}"]
    cells += ["" if share is None else f"{share:.0%}", f"{row['peak_gib']:.1f}" if "peak_gib" in row else ""]
    return f"| {' | '.join(cells)} |"


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("gpu.jsonl"), help="JSON Lines")
    parser.add_argument("--page", type=Path, help="put the tables of the file between the marks of this page, and end")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy sizes")
    parser.add_argument("--texts", type=int, default=Sizes().texts, help="texts of a batch of pre-training")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="rows whose step and mode contain one of these")
    parser.add_argument("--seconds", type=float, default=540, help="stop after this many; the same command goes on")
    parser.add_argument("--row-seconds", type=float, default=120, help="time limit of a row")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    return parser


def main() -> int:
    options = arguments().parse_args()
    if options.worker:
        work(options.worker, options)
        return 0
    if options.device == "cuda" and not torch.cuda.is_available() and not options.page:
        print("error: torch sees no GPU; `--device cpu --tiny` runs the same code at toy sizes", file=sys.stderr)
        return 2
    try:
        if options.page:
            put_into(options.page, MARK, page(options.json))
            return 0
        return run(options)
    except DrkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
