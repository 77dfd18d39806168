"""Options that several commands have, each declared once."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Any

import click
from click.core import ParameterSource

from drkit.core.files import local_path
from drkit.encoders.folder import PRECISIONS, TORCH
from drkit.encoders.pooling import POOLINGS
from drkit_cli.names import (
    LARGEST_SEED,
    Assignment,
    CollectionName,
    InputPath,
    InstalledName,
    LocalPath,
    PathOrId,
    count,
)

collection_option = click.option(
    "--collection",
    required=True,
    metavar="RUN|NAME:VALUE",
    type=CollectionName(),
    help="A run's folder, beir:FOLDER, irds:ID ...",
)
open_collection_option = click.option(
    "--collection",
    metavar="NAME[:VALUE]",
    type=CollectionName(),
    help="Texts: a folder or file, beir:FOLDER, irds:ID ...",
)


def collections_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--collection`, once for one collection, or as NAME=COLLECTION for each of several labelled data sets.

    The command gets them as `collection` and `collections`.
    """

    @wraps(command)
    def gathered(*arguments: Any, collection: tuple[str, ...], **given: Any) -> Any:
        several = collection if len(collection) > 1 else ()
        one = None if several else next(iter(collection), None)
        if one is not None and _DATA_SET.match(one) and not local_path(one).exists():
            one, several = None, collection
        return command(*arguments, collection=one, collections=several, **given)

    return _with_options(
        gathered,
        click.option(
            "--collection",
            metavar="[NAME=]NAME[:VALUE]",
            type=CollectionName(),
            multiple=True,
            help="Texts: a folder or file, beir:FOLDER, irds:ID ... For several labelled data sets, each with its "
            "name: --collection nq=FOLDER --collection fiqa=irds:ID.",
        ),
    )


# The beginning of a data set with a name.
_DATA_SET = re.compile(r"[a-z0-9][a-z0-9_.-]*=")
pooling_option = click.option(
    "--pooling", type=click.Choice(list(POOLINGS)), help="For a checkpoint that does not declare it."
)


def encoder_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of an encoder's pooling and prompts; the command gets the given ones as `encoder_settings`."""

    @wraps(command)
    def gathered(*arguments: Any, **given: Any) -> Any:
        chosen = {name: value for name in OF_ENCODER if (value := given.pop(name)) is not None}
        return command(*arguments, encoder_settings=chosen, **given)

    return _with_options(
        gathered,
        pooling_option,
        click.option("--query-prompt", metavar="TEXT", help="Prompt of queries, instead of the encoder's own."),
        click.option("--passage-prompt", metavar="TEXT", help="Prompt of passages, instead of the encoder's own."),
    )


# The names of these options.
OF_ENCODER = ("pooling", "query_prompt", "passage_prompt")
precision_option = click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default=PRECISIONS[0],
    show_default=True,
    help="Numbers that the transformer computes with.",
)
backend_option = click.option(
    "--backend",
    type=InstalledName("backend"),
    default=TORCH,
    show_default=True,
    help="Runs the transformer (`drkit list backend`); other backends need an encoder written by `drkit export "
    "--backend`.",
)
device_option = click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda ..")
engine_option = click.option(
    "--engine",
    default="local",
    show_default=True,
    metavar="NAME[:ADDRESS]",
    help="Where the work is done: local, processes:N, or by an engine of a plugin: ray (ray:auto, ray:HOST:PORT).",
)
seed_option = click.option("--seed", default=42, show_default=True, type=count(0, LARGEST_SEED), help="Random seed.")
token_budget_option = click.option(
    "--token-budget", default=16_384, show_default=True, type=count(1), help="Tokens read at once."
)


def settings_option(help: str = "A setting: collection.limit=1000") -> Callable[..., Any]:
    """Return the options `--set` and `--columns`, both repeatable, which give `settings`; help: an example of one."""
    chosen = click.option("--set", "settings", metavar="PATH=VALUE", type=Assignment(), multiple=True, help=help)
    columns = click.option(
        "--columns",
        multiple=True,
        callback=column_settings,
        metavar="ROLE=COLUMN,..",
        help="Columns of your files, by name or number: query=Question,text=Answer,id=1 ..",
    )

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def added(*arguments: Any, settings: tuple[str, ...], columns: tuple[str, ...], **given: Any) -> Any:
            return command(*arguments, settings=(*settings, *columns), **given)

        return chosen(columns(added))

    return add


def column_settings(_context: Any, _option: Any, given: Sequence[str]) -> tuple[str, ...]:
    """Return `query=Question,text=Answer` as settings of the collection; a comma within quotes belongs to its name.

    >>> column_settings(None, None, ["query=Question,text=2"])
    ('collection.columns.query="Question"', 'collection.columns.text=2')
    """
    settings = []
    for one in (one for text in given for one in next(csv.reader([text]), [])):
        role, equals, column = (part.strip() for part in one.partition("="))
        if not (role and equals and column):
            raise click.BadParameter(f"expected ROLE=COLUMN, as in query=Question,text=Answer, got {one!r}")
        value = column if column.isdecimal() else json.dumps(column, ensure_ascii=False)
        settings.append(f"collection.columns.{role}={value}")
    return tuple(settings)


def cross_encoder_option(name: str) -> Callable[..., Any]:
    """Return a required option for a cross-encoder: its folder, a run's, or a hub id."""
    text = "A cross-encoder: its folder, a run's, or a hub id."
    return click.option(name, required=True, metavar="PATH_OR_ID", type=PathOrId(), help=text)


def split_names(_context: Any, _option: Any, given: Sequence[str]) -> tuple[str, ...]:
    """Split `RR@10 nDCG@10` or `RR@10,AP` into names; a comma within brackets belongs to its name.

    >>> split_names(None, None, ["RR@10 P(rel=2)@5,AP", "R@100"])
    ('RR@10', 'P(rel=2)@5', 'AP', 'R@100')
    """
    return tuple(name for text in given for name in re.split(r"[\s,]+(?![^()]*\))", text.strip()) if name)


def judgement_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for judgements and measures: from `--qrels` to `--exclude-self`."""
    return _with_options(
        command,
        click.option(
            "--qrels",
            type=InputPath(dir_okay=False),
            help="Judgements: TREC's four columns, BEIR's three, or a JSON dictionary.",
        ),
        click.option(
            "--collection",
            metavar="NAME[:VALUE]",
            type=CollectionName(),
            help="Judgements of a collection: beir:FOLDER, or a run's folder.",
        ),
        settings_option("A setting: collection.train_share=0.5"),
        click.option(
            "--split",
            type=click.Choice(["train", "dev", "test"]),
            help="Split of the judgements (default: test, or the run's).",
        ),
        click.option(
            "--measures",
            "-m",
            multiple=True,
            callback=split_names,
            metavar="NAMES",
            help='By their ir_measures names: "RR@10 nDCG@10 R@1000"; repeatable.',
        ),
        click.option("--exclude-self", is_flag=True, help="Ignore hits whose id equals the query's."),
    )


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that every command with a run has: `--dry-run`, `--reuse`, `--redo`, .."""
    return _with_options(
        command,
        click.option("--dry-run", is_flag=True, help="Print the plan and stop."),
        click.option(
            "--reuse",
            metavar="RUN",
            type=LocalPath(),
            multiple=True,
            help="Reuse identical stages of another run.",
        ),
        click.option(
            "--redo",
            is_flag=True,
            help="Reuse the folder of another recipe, and rebuild the stages that the change affects.",
        ),
        click.option(
            "--keep-stale",
            metavar="STAGE",
            multiple=True,
            help="Keep a finished stage, or resume an interrupted one, although a plugin's code or a library changed.",
        ),
        click.option(
            "--trial/--no-trial",
            default=None,
            help="Try every part on a toy batch first (default: yes for a run, no for --dry-run).",
        ),
        engine_option,
    )


def _with_options(command: Callable[..., Any], *options: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command


def refuse_options(names: Collection[str], where: str) -> None:
    """Raise UsageError for an option of the running command that is given, but has no effect.

    names: of its parameters. where: what makes them useless, as in `with --kind flat`.
    """
    context = click.get_current_context()
    names = {*names, *(("columns",) if "settings" in names else ())}
    for option in context.command.params:
        if option.name in names and context.get_parameter_source(option.name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"{option.get_error_hint(context)} has no effect {where}; leave it out")


def refuse_repeated(command: click.Command, arguments: Sequence[str], parent: click.Context | None) -> None:
    """Raise UsageError for an option of one value that is given twice, of which click would keep the last."""
    context = click.Context(command, parent, command.name, **command.context_settings)
    try:
        _, _, given = command.make_parser(context).parse_args([*arguments])
    except click.UsageError:
        return  # which the command itself reports
    for option in given:
        takes_one = isinstance(option, click.Option) and not (option.multiple or option.is_flag or option.count)
        if takes_one and given.count(option) > 1:
            raise click.UsageError(f"{max(option.opts, key=len)} is given twice, but takes one value", context)
