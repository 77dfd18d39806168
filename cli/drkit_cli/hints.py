"""What to type instead of a command, option or argument that drkit does not have, or that is missing.

The tables hold names that people know from other tools. Close spellings are found, too.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import click

from drkit.core.registry import installed
from drkit.recipe.compose import ComposeRequest
from drkit.recipe.compose import compose as compose_recipe
from drkit.recipe.familiar import meant_settings
from drkit.recipe.paths import setting_paths

# Lines to type instead of a command, the first one whose command is installed; a colon ends what is said before it.
_TRAIN = ("improve ENCODER --texts FOLDER --labels FILE",)
_EVALUATE = ("evaluate --encoder ENCODER --collection beir:FOLDER",)
_SEARCH = ('search RUN "a query"',)
_STUDY = ("study masker=uniform,pmi decoder=mlm,enhanced",)
_COMMANDS: dict[str, Sequence[str]] = {
    **dict.fromkeys(("train", "pretrain", "fit"), ("compose --collection FOLDER",)),
    **dict.fromkeys(("finetune", "fine-tune", "tune", "adapt", "optimize"), _TRAIN),
    **dict.fromkeys(("eval", "test", "benchmark", "bench", "score", "mteb", "beir"), _EVALUATE),
    **dict.fromkeys(("predict", "retrieve", "query", "ask", "rank"), _SEARCH),
    **dict.fromkeys(("embed", "vectorize", "encoder"), ("encode --encoder ENCODER --collection FOLDER -o vectors/",)),
    **dict.fromkeys(("ablate", "ablation", "grid", "experiment", "sweep", "search-space"), _STUDY),
    **dict.fromkeys(
        ("negatives", "hard-negatives"), ("mine --collection beir:FOLDER --miner bm25 -o negatives.jsonl",)
    ),
    **dict.fromkeys(("resume", "continue", "restart"), ("run RUN",)),
    **dict.fromkeys(("new", "create", "start", "quickstart"), ("init FOLDER_OR_FILE",)),
    **dict.fromkeys(("info", "describe", "config"), ("show NAME",)),
    **dict.fromkeys(("ls", "recipes", "parts", "papers"), ("list",)),
    **dict.fromkeys(("generate", "doc2query", "gpl"), ("queries --model MODEL --collection FOLDER -o q.jsonl",)),
    **dict.fromkeys(("convert", "onnx", "openvino", "save"), ("export RUN -o encoder/",)),
    **dict.fromkeys(("ui", "web", "app", "dashboard", "demo"), ("serve RUN",)),
    **dict.fromkeys(("significance", "ttest", "diff"), ("compare RUN:SYSTEM RUN:SYSTEM",)),
    **dict.fromkeys(("clean", "rm", "delete"), ("prune RUN",)),
    **dict.fromkeys(("merge", "ensemble", "hybrid"), ("fuse A.trec B.trec -o fused.trec",)),
    "mask": ('inspect mask "a text" --run RUN',),
    "version": ("--version",),
    "help": ("--help",),
}
# Options that may be meant, in this order; the command has one of them.
_OPTIONS: dict[str, Sequence[str]] = {
    **dict.fromkeys(("model", "model-name", "model-name-or-path", "checkpoint", "base-model"), ("encoder",)),
    **dict.fromkeys(("encoder", "cross-encoder", "reranker"), ("model",)),
    **dict.fromkeys(("data", "dataset", "corpus", "texts", "documents", "docs", "passages"), ("collection", "texts")),
    **dict.fromkeys(("input", "train-file", "train-data", "data-dir", "collection"), ("collection", "texts")),
    **dict.fromkeys(("output-dir", "out-dir", "outdir", "save-dir", "save-path"), ("run-dir", "output")),
    **dict.fromkeys(("out", "output-file", "save"), ("output",)),
    **dict.fromkeys(("metric", "metrics", "measure"), ("measures", "measure")),
    **dict.fromkeys(("top-k", "topk", "top", "num-results", "hits", "limit"), ("depth", "top")),
    **dict.fromkeys(("recipe", "method", "from-paper"), ("paper",)),
    **dict.fromkeys(("force", "overwrite", "overwrite-output-dir"), ("redo",)),
    **dict.fromkeys(("plan", "estimate", "print-plan"), ("dry-run",)),
    **dict.fromkeys(("hard-negatives", "negatives"), ("miner",)),
    **dict.fromkeys(("num-negatives", "n-negatives"), ("negatives",)),
    **dict.fromkeys(("judgements", "judgments", "gold", "labels", "qrels"), ("qrels", "labels")),
    **dict.fromkeys(("dim", "dimensions", "truncate-dim"), ("dimension",)),
    **dict.fromkeys(("format", "onnx", "openvino", "quantize"), ("backend",)),
    **dict.fromkeys(("fp16", "bf16", "half"), ("precision",)),
    **dict.fromkeys(("nprobe", "ef", "ef-search", "nlist"), ("parameters",)),
    **dict.fromkeys(("alpha", "lambda"), ("weight",)),
    **dict.fromkeys(("batch-size",), ("token-budget",)),
    **dict.fromkeys(("debug",), ("verbose",)),
    **dict.fromkeys(("silent",), ("quiet",)),
    **dict.fromkeys(("config", "conf"), ("paper",)),
    "v": ("version",),
    "seed": ("seeds",),
    "seeds": ("seed",),
}
_GPU = "a GPU is used if torch sees one; CUDA_VISIBLE_DEVICES= before the command hides it"
_TORCHRUN = "torchrun --nproc-per-node N -m drkit_cli.main COMMAND runs N processes"
# What is not an option of any command.
_SAID = {
    **dict.fromkeys(("device", "gpu", "cuda", "cpu", "no-cuda", "use-gpu", "gpus"), _GPU),
    **dict.fromkeys(("workers", "num-workers", "num-processes", "nproc", "num-gpus"), _TORCHRUN),
    **dict.fromkeys(("resume", "resume-from-checkpoint", "continue"), "`drkit run RUN` resumes a run"),
    "push-to-hub": "`hf upload NAME FOLDER` uploads the exported folder",
    "host": "the page is served on 127.0.0.1 only; `ssh -L 8000:127.0.0.1:8000 HOST` forwards it",
}
# Options of `drkit compose` that only a recipe has.
_OF_RECIPE = ("set", "masker", "decoder", "loss", "miner", "encoder", "collection", "paper", "scale")
# Commands whose arguments are choices, and those that they take.
_WITH_CHOICES = ("study",)
_CHOICES = ("masker", "decoder", "context", "loss", "miners", "pipeline", "encoder-masker")
# The least likeness of an option that is named.
_CLOSE = 0.7


def command_instead(name: str, known: Iterable[str]) -> str:
    """Return what to type for a command that does not exist, or an empty string."""
    installed_names = {*known}
    for line in _COMMANDS.get(name.lower().replace("_", "-"), ()):
        if line.startswith("--") or line.split()[0] in installed_names:
            return f"drkit {line}"
    return ""


def advice(error: click.ClickException, arguments: Sequence[str]) -> str:
    """Return what to type instead, as the end of an error's message, or an empty string; arguments: all those given."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return ""
    if isinstance(error, click.NoSuchOption):
        said = _option_instead(error.option_name, error.ctx.command, arguments)
        return f"; {said}" if said else ""
    if isinstance(error, click.MissingParameter):
        return _example(error.ctx.command, error.param)
    return _example(error.ctx.command) if error.message.startswith("Got unexpected extra") else ""


def _example(command: click.Command, param: click.Parameter | None = None) -> str:
    """Return the clause with an example of the command, one with this option if there is one."""
    lines = [line.partition("  #")[0].strip() for line in (command.help or "").splitlines()]
    examples = [line for line in lines if line.startswith("drkit ")]
    having = [line for line in examples if param and {*param.opts} & {*line.split()}]
    found = next(iter((*having, *examples)), "")
    return f", as in `{found}`" if found else ""


def _option_instead(option: str, command: click.Command, arguments: Sequence[str]) -> str:
    """Return what to write instead of an unknown option of a command."""
    name = option.lstrip("-").lower().replace("_", "-")
    known = {one.removeprefix("--"): param for param in command.params for one in param.opts if one.startswith("--")}
    value = _value(option, arguments)
    candidates = (name, *_OPTIONS.get(name, ()), *_starting(name, known))
    if meant := next((one for one in candidates if one in known), ""):
        return f"write --{meant}{_shown(known[meant], value)}"
    if said := _SAID.get(name):
        return said
    if command.name == "run" and (name in _OF_RECIPE or _settings(name, recipe=True)):
        of = next(iter(_settings(name, recipe=True)), "the setting")
        return f"`drkit run` takes a recipe as it is: change {of} in its file, or use `drkit compose`"
    if command.name in _WITH_CHOICES and name in _CHOICES:
        return f"write {name}={value or 'NAME,NAME'}"
    if "set" in known and (settings := _settings(name, recipe="dry-run" in known)):
        given = shlex.quote(value) if value else "true" if settings[0].endswith(".bf16") else ".."
        return f"write {' or '.join(f'--set {one}={given}' for one in settings)}"
    close = get_close_matches(name, known, n=1, cutoff=_CLOSE)
    return f"did you mean --{close[0]}?" if close else ""


def _starting(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that begin with a name of three letters or more."""
    return [one for one in known if len(name) > 2 and one.startswith(name)]


def _shown(param: click.Parameter, value: str) -> str:
    is_flag = isinstance(param, click.Option) and (param.is_flag or param.count)
    return "" if is_flag else f" {shlex.quote(value) if value else '..'}"


def _value(option: str, arguments: Sequence[str]) -> str:
    """Return the value that was given to an unknown option; empty if none was."""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if argument == option:
            return "" if following.startswith("-") else following
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return ""


def _settings(name: str, *, recipe: bool) -> Sequence[str]:
    """Return the settings that an option may mean, of a whole recipe or only of a collection."""
    parts = installed()
    paths: Any = (one.path for one in setting_paths(compose_recipe(ComposeRequest(), parts), parts.registry))
    return meant_settings(name, [one for one in paths if recipe or re.match(r"collection\.(?!use)", one)])
