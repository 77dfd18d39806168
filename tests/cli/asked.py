"""What `drkit compose` asks for with some arguments, without running it."""

import attrs

from drkit.recipe.compose import ComposeRequest
from drkit_cli.commands.compose import compose as command


def request_of(arguments):
    """The request of a command line with at most one collection."""
    given = command.make_context("compose", list(arguments)).params
    given["collection"] = next(iter(given["collection"]), None)  # an option that may be repeated
    return ComposeRequest(**{one.name: given[one.name] for one in attrs.fields(ComposeRequest) if one.name in given})
