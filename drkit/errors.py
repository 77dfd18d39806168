"""Errors that a user can fix: `DrkitError` and its subclasses.

Every message says what is wrong, where, what is allowed, and what to do next. The command line prints a `DrkitError`
without a traceback and exits with code 2; any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from traceback import walk_tb
from typing import Any


class DrkitError(Exception):
    """An error that the user can fix: invalid input, parts that do not fit together, a missing file.

    >>> print(DrkitError("the query 'q1' is empty", where="queries.jsonl:2"))
    queries.jsonl:2: the query 'q1' is empty

    where: the file or folder that is wrong, with the line if it has lines; empty if the error is not about a file.
    """

    def __init__(self, message: str, *, where: object = "") -> None:
        self.where = str(where)
        super().__init__(f"{self.where}: {message}" if self.where else message)


class UnknownNameError(DrkitError):
    """An unknown name, with those that exist: of a part, a recipe, a split, a system.

    >>> print(UnknownNameError("masker", "pmii", ["pmi", "uniform"], advice="see `drkit list masker`"))
    no masker named 'pmii'; did you mean 'pmi'? known: pmi, uniform; see `drkit list masker`

    kind: what the name is of, such as "masker"; known: the names that exist; advice: what to do next.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], *, advice: str = "", where: object = "") -> None:
        self.kind, self.name, self.known = kind, name, tuple(known)
        names = ", ".join(self.known) or "none"
        message = f"no {kind} named {name!r:.100}{did_you_mean(name, self.known)} known: {names}"
        super().__init__(f"{message}; {advice}" if advice else message, where=where)


class ProblemsError(DrkitError):
    """All problems found in one pass, a single one on one line.

    >>> print(ProblemsError("recipe", ["expected int, got 'lots' @ pretrain.max_steps"]))
    recipe: expected int, got 'lots' @ pretrain.max_steps
    >>> print(ProblemsError("recipe", ["'a' is missing", "'b' is missing"]))
    recipe: 2 problems
      - 'a' is missing
      - 'b' is missing

    settings: the path of the setting that each problem ends with (`.. @ pretrain.max_steps`).
    """

    def __init__(self, subject: str, problems: Sequence[str]) -> None:
        self.subject, self.problems = subject, tuple(problems)
        self.settings = tuple(problem.rpartition(" @ ")[2] for problem in problems if " @ " in problem)
        lines = [f"{len(problems)} problems", *(f"  - {p}" for p in problems)] if len(problems) > 1 else problems
        super().__init__("\n".join([f"{subject}: {lines[0]}", *lines[1:]]))


# The optional packages by the extra of drkit that installs them: module -> name of the package.
EXTRAS: Mapping[str, Mapping[str, str]] = {
    "bm25": {"bm25s": "bm25s", "Stemmer": "PyStemmer"},
    "cpu": {"faiss": "faiss"},
    "data": {"datasets": "datasets", "ir_datasets": "ir-datasets"},
    "nltk": {"nltk": "nltk"},
    "peft": {"peft": "peft"},
    "plots": {"matplotlib": "matplotlib"},
    "ray": {"ray": "ray"},
    "sentence-transformers": {"sentence_transformers": "sentence-transformers"},
    "serve": {"starlette": "starlette", "uvicorn": "uvicorn"},
}


class MissingExtraError(DrkitError):
    """Optional packages that are not installed, with the extras of drkit that install them.

    >>> print(MissingExtraError("BM25", {"bm25s": "bm25"}))
    BM25 needs the package 'bm25s': pip install 'drkit[bm25]'

    what: that needs them; packages: the extra of each missing package.
    """

    def __init__(self, what: str, packages: Mapping[str, str]) -> None:
        self.what, self.packages = what, dict(packages)
        extras = ",".join(dict.fromkeys(packages.values()))
        needed = f"package{'s' * (len(packages) > 1)} {', '.join(map(repr, packages))}"
        super().__init__(f"{what} needs the {needed}: pip install 'drkit[{extras}]'")


def check_extras(what: str, extras: Iterable[str]) -> None:
    """Raise MissingExtraError if a package of these extras is not installed; nothing is imported."""
    found = {extra: EXTRAS[extra] for extra in extras}
    missing = {name: extra for extra, named in found.items() for module, name in named.items() if not find_spec(module)}
    if missing:
        raise MissingExtraError(what, missing)


def import_extra(module: str, what: str) -> Any:
    """Return a module of an optional package; what: that needs it.

    Raises MissingExtraError if it is not installed, and DrkitError with the reason if it is but cannot be imported, as
    for lack of memory.
    """
    try:
        return import_module(module)
    except Exception as error:
        top = module.partition(".")[0]
        extra, package = next((extra, named[top]) for extra, named in EXTRAS.items() if top in named)
        if isinstance(error, ModuleNotFoundError) and error.name == top:
            raise MissingExtraError(what, {package: extra}) from None
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise DrkitError(
            f"{what} needs the package {package!r}, which is installed but cannot be imported: {reason}. Free memory "
            f"or raise its limit if it is short; otherwise install the package again"
        ) from error


def describe_exit(ended: SystemExit) -> str:
    """Return where code of others ended the program by `sys.exit`, and what it should do instead."""
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in walk_tb(ended.__traceback__)
        if frame.f_globals.get("__name__") != "drkit.core.process_state"  # what stands for os._exit
    ]
    file, line = frames[-1] if frames else ("unknown", 0)
    return (
        f"{file}:{line} ends the program (SystemExit: {ended.code}); code that drkit calls must return, or raise an "
        f"exception"
    )


def is_panic(error: BaseException) -> bool:
    """Return whether an error is a panic of a library in Rust (tokenizers, safetensors).

    A `PanicException` is not an `Exception`, and can only be recognised by its name.
    """
    return type(error).__name__ == "PanicException" and not isinstance(error, Exception)


_NO_MEMORY = re.compile(
    r"failed to map segment|[Cc]annot allocate memory|can't allocate memory|not enough memory|[Oo]ut of memory"
    r"|bad_?alloc|static TLS block|can't start new thread|(alloc|malloc|realloc) of (size )?\d+ .*failed"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or what caused it, is a lack of memory, also of a GPU, or of a library being imported.

    >>> is_out_of_memory(ImportError("libtorch_cpu.so: failed to map segment from shared object"))
    True
    """
    found: BaseException | None = error
    while found is not None:
        is_short = isinstance(found, MemoryError) or getattr(found, "errno", None) == errno.ENOMEM
        if is_short or (isinstance(found, Exception) and _NO_MEMORY.search(str(found))):
            return True
        found = found.__cause__ or found.__context__
    return False


# What to do about it, after a message.
FREE_MEMORY = (
    "close other programs, raise the limit (ulimit -v, a container's), or need less: a smaller batch, "
    "gradient_cache_chunk, a smaller model"
)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What a disk or its permissions cause. A missing file is not among them: it may be a bug.
_STORAGE = (
    *_FULL,
    *(errno.EIO, errno.EACCES, errno.EPERM, errno.EROFS, errno.EINTR, errno.ENAMETOOLONG, errno.ENOTDIR),
    *(errno.ENXIO, errno.ELOOP, errno.EMFILE, errno.ENFILE, errno.ESTALE),
)
# numpy and torch do not say why they could not write.
_SHORT_WRITE = re.compile(
    r"\d+ requested and \d+ written|PytorchStreamWriter failed|iostream error|unexpected pos \d+ vs \d+"
)


def storage_failure(error: BaseException) -> tuple[str, str] | None:
    """Return what a full or failing disk, or its permissions, caused, and the remedy; None for any other error.

    Libraries that report it only in the message are understood too (safetensors, tokenizers, torch, numpy, faiss).

    >>> storage_failure(OSError(28, "No space left on device", "a.npy"))
    ('the disk is full (or a file size limit is reached): a.npy', 'free some space')
    >>> storage_failure(PermissionError(13, "Permission denied", "a.npy"))
    ('cannot access a.npy: Permission denied', 'check the disk and its permissions')
    """
    code, text = getattr(error, "errno", None), str(error)
    name = error.filename if isinstance(error, OSError) else None
    if code is None:
        code = next((code for code in _STORAGE if os.strerror(code) in text), None)
    if code is None and _SHORT_WRITE.search(text):
        return "the disk is full or fails: a file could not be written", "free some space, or check the disk"
    if code in _FULL:
        where = f": {name}" if name else ""
        return f"the disk is full (or a file size limit is reached){where}", "free some space"
    if code in _STORAGE:
        what = f"cannot access {name}: {os.strerror(code)}" if name else f"cannot access a file: {text}"
        return what, "check the disk and its permissions"
    context = error.__cause__ or error.__context__
    return storage_failure(context) if context else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the clause `; did you mean 'x'?` for the closest known name in any case, or `;` if none is close.

    >>> did_you_mean("batch_size", ["per_device_train_batch_size"])
    "; did you mean 'per_device_train_batch_size'?"
    """
    lowered = {one.lower(): one for one in known}
    close = get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    close += [one for one in lowered if one.endswith(f"_{name.lower()}")]
    return f"; did you mean {lowered[close[0]]!r}?" if close else ";"
