"""Write a commented recipe for a collection: what was found in it, a scale, and settings that fit its texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import wrap

from attrs import field, frozen

from drkit.commands.collection_facts import CollectionFacts, describe_facts
from drkit.core.escaping import escape_controls, escape_line
from drkit.core.files import write_text
from drkit.core.registry import Installed, Registry
from drkit.errors import DrkitError
from drkit.recipe.compose import PAPER, QUICK, SMALL, ComposeRequest, compose
from drkit.recipe.lengths import suggest_lengths
from drkit.recipe.paths import setting_paths
from drkit.recipe.schema import PSEUDO, Recipe
from drkit.recipe.toml import recipe_toml

# Passages below which training from scratch has too little text to learn from.
_FEW_PASSAGES = 300
_COMMENT_COLUMN, _WIDTH = 48, 100


@frozen
class Suggestion:
    """A recipe for a collection: its scale, why, the reasons for settings by path, and advice that it leaves to you."""

    recipe: Recipe
    scale: str
    why: str
    reasons: Mapping[str, str] = field(factory=dict)
    advice: tuple[str, ...] = ()


def suggest_recipe(
    facts: CollectionFacts, parts: Installed, *, encoder: str | None = None, scale: str | None = None, has_gpu: bool
) -> Suggestion:
    """Return a recipe for a collection, which runs as it is.

    encoder: an existing encoder to start from; its own lengths are kept. scale: instead of the suggested one. has_gpu:
    whether a GPU trains. Raises DrkitError as `compose` does.
    """
    chosen, why = (scale, "as you asked") if scale else _suggest_scale(facts, encoder, has_gpu)
    queries = max((split.lengths for split in facts.splits.values()), key=lambda lengths: lengths.most, default=None)
    settings = {} if encoder else suggest_lengths(facts.lengths, queries)
    if facts.copies:
        note = f"{facts.copies:,} queries are passages themselves, under the same id: they must not find themselves"
        settings["evaluation.exclude_self"] = ("true", note)
    request = ComposeRequest(
        collection=facts.name,
        encoder=encoder,
        scale=chosen,
        settings=tuple(f"{path}={value}" for path, (value, _) in settings.items()),
    )
    reasons = {path: reason for path, (_, reason) in settings.items()}
    recipe = compose(request, parts)
    return Suggestion(recipe, chosen, why, reasons, tuple(_advice(facts, recipe, has_gpu=has_gpu)))


def write_starter(suggestion: Suggestion, facts: CollectionFacts, path: Path, registry: Registry) -> None:
    """Write the recipe with its comments. Raises DrkitError if the file exists."""
    if path.exists():
        raise DrkitError(f"{path} exists and is not overwritten; remove it, or choose another file with -o")
    write_text(path, commented(suggestion, facts, path, registry))


def commented(suggestion: Suggestion, facts: CollectionFacts, path: Path, registry: Registry) -> str:
    """Return the recipe as TOML: facts and advice at the top, the meaning beside every setting, reasons above some."""
    head = [
        f"A recipe for {facts.name}. Run it:  drkit run {path}",
        f"What it would do, and how long that takes:  drkit run {path} --dry-run",
        "",
        *describe_facts(facts),
        "",
        f"Scale {suggestion.scale}: {suggestion.why}.",
        *suggestion.advice,
    ]
    # A path is not broken in two: the commands are there to be copied.
    broken = (wrap(_one_line(line), _WIDTH, break_long_words=False, break_on_hyphens=False) for line in head)
    lines = (wrapped for pieces in broken for wrapped in pieces or [""])
    comments = "\n".join(f"# {line}".rstrip() for line in lines)
    meanings = {one.path: one.meaning for one in setting_paths(suggestion.recipe, registry)}
    body = _annotated(recipe_toml(suggestion.recipe), meanings, suggestion.reasons)
    # Both forms of a control character mean the same in TOML; only one of them reaches a terminal through `cat`.
    return escape_controls(f"{comments}\n\n" + "\n".join(body) + "\n")


def _suggest_scale(facts: CollectionFacts, encoder: str | None, has_gpu: bool) -> tuple[str, str]:
    if facts.passages < _FEW_PASSAGES and not encoder:
        return QUICK, f"{facts.passages:,} passages are too few to train on; a smoke run shows that every stage works"
    if encoder and has_gpu:
        return PAPER, "an existing encoder and a GPU, so the numbers of the papers apply"
    if encoder:
        return SMALL, "an existing encoder but no GPU: the papers' schedules would take days; `--scale paper` has them"
    more = "; with an existing encoder, `drkit init --encoder PATH_OR_ID` takes the papers' numbers" if has_gpu else ""
    return SMALL, f"from scratch, in minutes on a CPU{more}"


def _advice(facts: CollectionFacts, recipe: Recipe, *, has_gpu: bool) -> Iterator[str]:
    name = facts.name
    learns_from_crops = recipe.finetune and any(current.pairs == PSEUDO for current in recipe.finetune.rounds)
    what = "learns from crops of the passages" if learns_from_crops else "is not fine-tuned"
    if not facts.splits:
        yield (
            f"Without queries, the encoder {what}, and nothing evaluates it; `drkit compose --collection {name} "
            f"--pipeline texts` makes queries from the passages, and mines negatives for them."
        )
    elif not facts.training_queries:
        yield (
            f"Without training queries, the retriever {what}. train_share = 0.5 in [collection], where the format has "
            f"it, trains on half of the test queries."
        )
    if facts.splits and "dev" not in facts.splits:
        yield "Without dev queries, the last retriever is exported and the fusion with BM25 has its default weight."
    if facts.duplicates > facts.passages / 20:
        yield (
            f"{facts.duplicates / facts.passages:.0%} of the passages are duplicates: remove them, or add the filter "
            f"same-text to the miners, so that copies of a positive are never negatives."
        )
    if facts.passages > 1_000_000 and not has_gpu:
        yield "More than a million passages take hours to encode on a CPU: try a sample first."


def _annotated(toml: str, meanings: Mapping[str, str], reasons: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a recipe, with the meaning behind each setting and the reason for it above."""
    table, seen = "", dict[str, int]()
    for line in toml.splitlines():
        if header := re.fullmatch(r"\[\[(.+)\]\]|\[(.+)\]", line):
            name = header[1] or header[2]
            if header[1]:
                seen[name] = seen.get(name, -1) + 1
            table = _indexed(name, seen)
        setting = re.match(r"(\w+) = ", line)
        path = f"{table}.{setting[1]}" if setting and table else setting[1] if setting else ""
        if path in reasons:
            yield f"# {_one_line(reasons[path])}"
        meaning = meanings.get(path)
        yield f"{line:{_COMMENT_COLUMN}}  # {_one_line(meaning)}" if meaning else line


def _indexed(name: str, seen: Mapping[str, int]) -> str:
    """Return a table's path with the position of each list on the way: `finetune.rounds.0.loss`."""
    path = ""
    for key in name.split("."):
        path = f"{path}.{key}" if path else key
        bare = re.sub(r"\.\d+(?=\.|$)", "", path)
        if bare in seen:
            path = f"{path}.{seen[bare]}"
    return path


def _one_line(text: str) -> str:
    """Return a text as the content of a TOML comment, which ends with its line and holds no control characters."""
    return escape_line(text)
