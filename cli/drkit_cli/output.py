"""What a command prints: its result, as text or with `--json` as one document; notes; and with `-v` details.

Results go to standard output. Notes, progress and details go to standard error; `-q` leaves them out.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any

import click

from drkit.core.files import json_text
from drkit.core.progress import Progress
from drkit.core.registry import DRKIT, installed, package_of
from drkit.errors import DrkitError, describe_exit
from drkit_cli.terminal import echo, only_results

_LOGGER = logging.getLogger("drkit.plugins")
_JSON, _QUIET, _VERBOSE = (f"drkit_cli.output.{name}" for name in ("json", "quiet", "verbose"))


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that every command has: `--json`, `-q` and `-v`.

    While the command runs, standard output gets only its result, and code of others does not end the program.
    """
    option = click.option(
        "--json", is_flag=True, expose_value=False, callback=_remember(_JSON), help="Print the result as JSON."
    )
    return option(verbosity_options(_guarded(command)))


def _guarded(command: Callable[..., Any]) -> Callable[..., Any]:
    """Keep parts and libraries from printing to standard output, and from ending the program without a word."""

    @wraps(command)
    def run(*arguments: Any, **given: Any) -> Any:
        with only_results():
            _report_loading()
            try:
                return command(*arguments, **given)
            except SystemExit as ended:
                raise DrkitError(describe_exit(ended)) from ended

    return run


def _report_loading() -> None:
    """Say which plugins take long to load; with `-v`, how long each one took that is not drkit's own."""
    for report in installed().plugins:
        if package_of(report.provider) != DRKIT:
            _LOGGER.info("plugin %s of %s: loaded in %.1f s", report.name, report.provider, report.seconds)
        if report.is_slow:
            print_note(
                f"the plugin {report.name!r} of {report.provider} takes {report.seconds:.1f} s to load, in every "
                f"command; import heavy libraries where they are used"
            )


def verbosity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `-q` and `-v`."""
    quiet = click.option(
        "-q", "--quiet", is_flag=True, expose_value=False, callback=_remember(_QUIET), help="Only results and errors."
    )
    verbose = click.option(
        "-v",
        "--verbose",
        is_flag=True,
        expose_value=False,
        callback=_remember(_VERBOSE),
        help="Also print versions, and the files that are read and written.",
    )
    return quiet(verbose(command))


def is_json() -> bool:
    """Return whether the running command prints its result as JSON."""
    return _is_given(_JSON)


def is_quiet() -> bool:
    """Return whether the running command prints only results and errors."""
    return _is_given(_QUIET)


def is_verbose() -> bool:
    """Return whether the running command prints details, too."""
    return _is_given(_VERBOSE)


def print_result(document: Mapping[str, Any], draw: Callable[[], None]) -> None:
    """Print the result of a command: the document with `--json`, otherwise what `draw` prints.

    document: plain data with stable keys; NaN and infinite numbers become null, other objects their text.
    """
    if not is_json():
        draw()
        return
    echo(json_text(document), nl=False)


def print_note(note: str) -> None:
    """Print a fact worth knowing to standard error, unless `-q` is given."""
    if not is_quiet():
        echo(f"note: {note}", err=True)


def print_next(command: str) -> None:
    """Print what to do next with a result, unless `-q` or `--json` is given."""
    if not is_quiet() and not is_json():
        echo(command)


def show_progress(stages: int) -> AbstractContextManager[Progress]:
    """Return the progress of a number of stages or steps, to be used in a `with`: silent with `-q`."""
    if is_quiet():
        from drkit.core.progress import Silent

        return nullcontext(Silent())
    from drkit_cli.progress import RichProgress

    return RichProgress(stages)


def _is_given(name: str) -> bool:
    context = click.get_current_context(silent=True)
    return bool(context and context.meta.get(name))


def _remember(name: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    """Return a callback that puts a flag into effect, for a command or for the group before it."""

    def callback(context: click.Context, _param: click.Parameter, given: bool) -> None:
        if not given or context.resilient_parsing or context.meta.get(name):
            return
        context.meta[name] = True
        if context.meta.get(_QUIET) and context.meta.get(_VERBOSE):
            raise click.UsageError("give -q or -v, not both")
        if name == _QUIET:
            context.with_resource(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            context.with_resource(_log_level(logging.ERROR))
        if name == _VERBOSE:
            context.with_resource(_log_level(logging.INFO, _Details()))
            _print_versions()

    return callback


@contextmanager
def _log_level(level: int, *handlers: logging.Handler) -> Iterator[None]:
    """Set the level of drkit's logger, and add handlers to it, while a command runs."""
    logger = logging.getLogger("drkit")
    before = logger.level
    logger.setLevel(level)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.setLevel(before)
        for handler in handlers:
            logger.removeHandler(handler)


def _print_versions() -> None:
    from drkit.runs.manifest import versions

    echo(", ".join(f"{name} {version}" for name, version in versions().items()), err=True)


class _Details(logging.Handler):
    """Prints what drkit logs to standard error, a line for each record."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        echo(f"{record.levelname.lower()}: {record.getMessage()}", err=True)
