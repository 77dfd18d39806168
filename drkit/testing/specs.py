"""The contract of every part: its target resolves, its settings are plain data, its citation is complete."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import attrs

from drkit.core.registry import installed
from drkit.core.settings import config_problems
from drkit.core.spec import ComponentSpec, Kind
from drkit.errors import DrkitError
from drkit.recipe.toml import plain, recipe_converter

HEAVY = ("torch", "transformers", "datasets", "faiss", "pyarrow")


class ContractError(AssertionError):
    """A part broke its contract; the message names the part, what was expected and what came."""


def require(condition: Any, message: str) -> None:
    """Raise ContractError with `message` if the condition does not hold (also under `python -O`)."""
    if not condition:
        raise ContractError(message)


@contextmanager
def running(name: str, what: str) -> Iterator[None]:
    """Turn an exception of a part's code into a ContractError that names the part and what was done with it."""
    try:
        yield
    except ContractError:
        raise
    except DrkitError as error:
        raise ContractError(f"{name}: {what}: {error}") from error
    except Exception as error:
        raise ContractError(f"{name}: {what} raises {type(error).__name__}: {' '.join(str(error).split())}") from error


def check_facts(facts: Any, source: str) -> None:
    """Raise ContractError unless facts for the manifest are a mapping that JSON can hold; source: the call."""
    require(isinstance(facts, Mapping), f"{source} must return a mapping of facts, got {type(facts).__name__}")
    try:
        json.dumps(dict(facts))
    except (TypeError, ValueError) as error:
        raise ContractError(f"{source} cannot be written as JSON: {error}") from None


def build(spec: ComponentSpec, config: Any, context: Any) -> Any:
    """Return the part that a spec declares, built as a run builds it. Raises ContractError if its code fails."""
    with running(spec.name, f"building it by {spec.target}(config, context)"):
        return spec.load()(config, context)


def spec_of(kind: Kind, part: ComponentSpec | str) -> ComponentSpec:
    """Return the spec itself, or that of the installed part with this name (drkit's own, or a plugin's)."""
    return installed().registry.get(kind, part) if isinstance(part, str) else part


def checked_spec(kind: Kind, part: ComponentSpec | str, config: Any = None) -> tuple[ComponentSpec, Any]:
    """Return the spec of a part and its settings, `config` or the defaults. Raises ContractError as `check_spec`."""
    spec = spec_of(kind, part)
    check_spec(spec)
    return spec, spec.config() if config is None else config


def pickled(name: str, part: Any) -> Any:
    """Return a copy of a part by way of pickle, which worker processes need. Raises ContractError if that fails."""
    with running(name, "pickling it, as worker processes need,"):
        return pickle.loads(pickle.dumps(part))


def check_spec(spec: ComponentSpec) -> None:
    """Check the declaration of any part: target, settings, citation, and that its settings do not import torch."""
    try:
        target = spec.load()
    except (ImportError, AttributeError) as error:
        raise ContractError(f"{spec.name}: the target {spec.target!r} cannot be imported: {error}") from error
    require(callable(target), f"{spec.name}: the target {spec.target!r} is not callable")
    with running(spec.name, f"{spec.config.__name__}(), the default settings,"):
        settings = spec.config()
    problems = config_problems(spec.config)
    require(not problems, f"{spec.name}: {'; '.join(problems)}")
    for setting in attrs.fields(spec.config):
        require(setting.metadata.get("help"), f"{spec.name}: setting {setting.name!r} has no help")
    read: Any = recipe_converter(installed().registry).structure(plain(settings), spec.config)
    require(read == settings, f"{spec.name}: settings do not survive a round trip through a recipe")
    if spec.cite is not None:
        cite = spec.cite
        require(cite.key and cite.title and cite.year > 1900, f"{spec.name}: the citation lacks key, title or year")
    loaded = loaded_by(spec.config.__module__)
    require(not loaded, f"{spec.name}: importing {spec.config.__module__} imports {', '.join(loaded)}")


@cache
def loaded_by(module: str) -> list[str]:
    """Return the heavy packages that a fresh interpreter imports with `module`."""
    code = f"import sys, {module}; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    require(done.returncode == 0, f"importing {module} fails: {done.stderr.strip()}")
    return done.stdout.split()
