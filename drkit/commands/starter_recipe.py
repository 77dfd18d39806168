"""Look at a collection, and write a commented recipe for it: a scale, and settings that fit its texts."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from textwrap import wrap
from typing import Any

from attrs import field, frozen

from drkit.commands.collections import NamedCollection
from drkit.core.escaping import escape_controls, escape_line
from drkit.core.files import write_text
from drkit.core.quantities import counted
from drkit.core.registry import Installed, Registry
from drkit.data.preview import reading_notes
from drkit.data.words import estimate_tokens
from drkit.errors import DrkitError
from drkit.recipe.compose import PAPER, QUICK, SMALL, ComposeRequest, compose
from drkit.recipe.lengths import Lengths, script_of, suggest_lengths
from drkit.recipe.paths import setting_paths
from drkit.recipe.schema import Recipe
from drkit.recipe.start import starting_point
from drkit.recipe.toml import recipe_from_table, recipe_table, toml_value
from drkit.runs.budget import fit_memory
from drkit.runs.costs import machine_memory
from drkit.search.languages import likely_language

# Passages whose letters are counted; scripts are a matter of shares.
_SAMPLE = 5000
# Passages, and queries of each split, whose stop words are counted.
_SAMPLE_OF_LANGUAGE = 1000
# Scripts that are shown, with at least this share of the letters.
_SHOWN, _LEAST_SHARE = 4, 0.001
# Passages below which training from scratch has too little text to learn from.
_FEW_PASSAGES = 300
# As many labels as the default recipe reads, to show what pre-training is worth where they are few.
_FEW_LABELS = 2000
# Tables of at most this many letters are on one line.
_INLINE = 72
_COMMENT_COLUMN, _WIDTH = 40, 100


@frozen
class SplitFacts:
    """The queries of a split: their number, those with a relevant passage, judgements, and lengths."""

    queries: int
    answered: int
    judgements: int
    relevant: int
    lengths: Lengths


@frozen
class CollectionFacts:
    """What a collection contains.

    name: as `--collection` takes it. passages, empty, duplicates: numbers; a duplicate has the text of an earlier
    passage. scripts: shares of letters by script, largest first. judged: passages that any query has a judgement of.
    languages: of the passages and of the queries, empty if that is open.
    copies: queries whose own text is the passage of the same id. settings: those of the collection. notes: how its
    files are read, where that is open.
    """

    name: str
    passages: int = 0
    empty: int = 0
    duplicates: int = 0
    lengths: Lengths = field(factory=Lengths)
    scripts: Mapping[str, float] = field(factory=dict)
    splits: Mapping[str, SplitFacts] = field(factory=dict)
    judged: int = 0
    unknown: int = 0
    copies: int = 0
    languages: tuple[str, str] = ("", "")
    settings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def training_queries(self) -> int:
        """Number of training queries with a relevant passage."""
        return self.splits["train"].answered if "train" in self.splits else 0


def collect_facts(name: str, settings: Sequence[str] = ()) -> CollectionFacts:
    """Read a whole collection once, and return what it contains; settings: see `NamedCollection`.

    Raises DrkitError as its reader does.
    """
    collection = NamedCollection(name, tuple(settings))
    source = collection.source
    own_texts: dict[str, bytes] = {}
    splits = {split: _collect_split(source, split, own_texts) for split in source.splits()}
    judged = {j.doc_id for split in splits for j in source.judgements(split)}
    asked = [query.text for split in splits for query in islice(source.queries(split), _SAMPLE_OF_LANGUAGE)]
    lengths, seen, letters, first = array("L"), set[bytes](), Counter[str](), list[str]()
    empty = duplicates = copies = 0
    missing = set(judged)
    for passage in collection.passages():
        missing.discard(passage.doc_id)
        text = passage.content
        if len(lengths) < _SAMPLE:
            letters.update(map(script_of, filter(str.isalpha, text[:2000])))
        if len(first) < _SAMPLE_OF_LANGUAGE:
            first.append(text[:2000])
        digest = _hash(text)
        empty += not text.strip()
        duplicates += digest in seen and bool(text.strip())
        seen.add(digest)
        copies += own_texts.get(passage.doc_id) in (digest, _hash(passage.text))
        lengths.append(estimate_tokens(text))
    total = letters.total()
    return CollectionFacts(
        name=name,
        passages=len(lengths),
        empty=empty,
        duplicates=duplicates,
        lengths=Lengths.of(lengths),
        scripts={script: count / total for script, count in letters.most_common()},
        splits=splits,
        judged=len(judged) - len(missing),
        unknown=len(missing),
        copies=copies,
        languages=(likely_language(first) or "", likely_language(asked) or ""),
        settings=tuple(settings),
        notes=tuple(reading_notes(source)),
    )


def _collect_split(source: Any, split: str, own_texts: dict[str, bytes]) -> SplitFacts:
    """Describe the queries of a split, and remember hashes of their texts by id."""
    lengths = array("L")
    for query in source.queries(split):
        own_texts[query.query_id] = _hash(query.text)
        lengths.append(estimate_tokens(query.text))
    answered, judgements, relevant = set(), 0, 0
    for judgement in source.judgements(split):
        judgements += 1
        if judgement.relevance > 0:
            relevant += 1
            answered.add(judgement.query_id)
    return SplitFacts(len(lengths), len(answered), judgements, relevant, Lengths.of(lengths))


def _hash(text: str) -> bytes:
    return hashlib.blake2b(" ".join(text.split()).encode(errors="replace"), digest_size=8).digest()


def describe_facts(facts: CollectionFacts) -> Iterator[str]:
    """Yield a line for each fact, as a user reads it."""
    count, lengths = facts.passages, facts.lengths
    yield f"collection: {facts.name}"
    yield (
        f"passages: {count:,}; about {lengths.median:,} tokens (median), {lengths.most:,} (95 %), "
        f"{lengths.longest:,} (longest)"
    )
    if facts.duplicates:
        share = facts.duplicates / max(count, 1)
        yield f"duplicates: {counted(facts.duplicates, 'passage')} ({share:.1%}) with the text of another one"
    if facts.empty:
        yield f"empty: {counted(facts.empty, 'passage')} without a text"
    scripts = [(script, share) for script, share in facts.scripts.items() if share >= _LEAST_SHARE]
    shares = ", ".join(f"{script.capitalize()} {share:.1%}" for script, share in scripts[:_SHOWN])
    yield f"letters: {shares or 'none'}"
    if not facts.splits:
        yield "queries: none, texts alone"
        return
    for split, one in facts.splits.items():
        yield (
            f"{split}: {counted(one.queries, 'query')} of about {one.lengths.median:,} tokens, {one.answered:,} with a "
            f"relevant passage; {counted(one.judgements, 'judgement')}, {one.relevant:,} of them relevant"
        )
    yield f"judged: {facts.judged:,} of {counted(count, 'passage')} ({facts.judged / max(count, 1):.1%})"
    if facts.unknown:
        yield f"missing: {counted(facts.unknown, 'judged passage is', 'judged passages are')} not in the collection"


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
    """Return a complete recipe for a collection.

    encoder: an existing encoder to start from; its own lengths are kept. scale: instead of the suggested one. has_gpu:
    whether a GPU trains. Raises DrkitError as `compose` does.
    """
    embeds = encoder is not None and starting_point(encoder).embeds
    chosen, why = (scale, "as you asked") if scale else _suggest_scale(facts, encoder, embeds=embeds, has_gpu=has_gpu)
    queries = max((split.lengths for split in facts.splits.values()), key=lambda lengths: lengths.most, default=None)
    settings: dict[str, tuple[object, str]] = {} if encoder else {**suggest_lengths(facts.lengths, queries)}
    if chosen == SMALL and facts.training_queries > _FEW_LABELS:
        settings["finetune.rounds.0.queries"] = ("0", f"all labels, not {_FEW_LABELS:,} of them as the default run")
        settings["finetune.max_steps"] = ("-1", "three passes over all labels")
    if facts.copies:
        note = (
            f"{counted(facts.copies, 'query is a passage itself', 'queries are passages themselves')}, under "
            f"the same id: a query's own id among its hits is ignored"
        )
        settings["evaluation.exclude_self"] = ("true", note)
    if facts.unknown:
        note = (
            f"{counted(facts.unknown, 'judged passage is', 'judged passages are')} not in the collection: "
            f"their judgements are dropped"
        )
        settings["collection.unknown_judgements"] = ("drop", note)
    request = ComposeRequest(
        collection=facts.name,
        encoder=encoder,
        scale=chosen,
        settings=(*facts.settings, *(f"{path}={value}" for path, (value, _) in settings.items())),
    )
    reasons = {path: reason for path, (_, reason) in settings.items()}
    recipe = compose(request, parts)
    if not has_gpu:
        recipe, fitted = fit_memory(recipe, parts.registry, machine_memory())
        reasons |= fitted
    return Suggestion(recipe, chosen, why, reasons, tuple(_advice(facts, recipe, has_gpu=has_gpu)))


def write_starter(suggestion: Suggestion, facts: CollectionFacts, path: Path, registry: Registry) -> None:
    """Write the recipe with its comments. Raises DrkitError if the file exists."""
    if path.exists():
        raise DrkitError(f"{path} exists and is not overwritten; remove it, or choose another file with -o")
    write_text(path, commented(suggestion, facts, path, registry))


def commented(suggestion: Suggestion, facts: CollectionFacts, path: Path, registry: Registry) -> str:
    """Return the recipe as TOML: facts and advice at the top, the meaning beside every setting, reasons above some.

    Settings that have their defaults are left out.
    """
    head = [
        f"A recipe for {facts.name}. Run it:  drkit run {path}",
        f"What it would do, and how long that takes:  drkit run {path} --dry-run",
        "",
        *describe_facts(facts),
        *(f"note: {note}" for note in facts.notes),
        "",
        f"Scale {suggestion.scale}: {suggestion.why}.",
        *suggestion.advice,
        "",
        "Settings that are left out have their defaults; docs/reference/parts.md lists all, `drkit show pmi` a part's.",
    ]
    # A path is not broken in two: the commands are there to be copied.
    broken = (wrap(escape_line(line), _WIDTH, break_long_words=False, break_on_hyphens=False) for line in head)
    lines = (wrapped for pieces in broken for wrapped in pieces or [""])
    comments = "\n".join(f"# {line}".rstrip() for line in lines)
    # Both forms of a control character mean the same in TOML; only one of them reaches a terminal through `cat`.
    return escape_controls(f"{comments}\n\n" + "\n".join(_recipe_lines(suggestion, registry)) + "\n")


def _suggest_scale(facts: CollectionFacts, encoder: str | None, *, embeds: bool, has_gpu: bool) -> tuple[str, str]:
    if embeds:
        return PAPER, (
            f"{encoder} has vectors to search by: it is tuned on labels, without pre-training. `drkit improve` does "
            f"the same in a number of minutes, and says what it gained"
        )
    if facts.passages < _FEW_PASSAGES and not encoder:
        return (
            QUICK,
            f"{counted(facts.passages, 'passage is', 'passages are')} too few to train on; a smoke run shows "
            f"that every stage works",
        )
    if encoder and has_gpu:
        return PAPER, "an existing encoder and a GPU, so the numbers of the papers apply"
    if encoder:
        return SMALL, "because there is no GPU (the papers' schedules would take days; use --scale paper for them)"
    more = "; with an existing encoder, `drkit init --encoder PATH_OR_ID` takes the papers' numbers" if has_gpu else ""
    return SMALL, f"from scratch, in minutes on a CPU{more}"


def _advice(facts: CollectionFacts, recipe: Recipe, *, has_gpu: bool) -> Iterator[str]:
    name = facts.name
    if not facts.splits:
        yield (
            f"Without queries, the encoder is not fine-tuned, and nothing evaluates it; `drkit compose --collection "
            f"{name} --pipeline texts` makes queries from the passages, and mines negatives for them."
        )
    elif not facts.training_queries:
        yield (
            "Without training queries, the encoder is not fine-tuned. train_share = 0.5 in [collection], where the "
            "format has it, trains on half of the test queries."
        )
    if facts.splits and "dev" not in facts.splits:
        yield "Without dev queries, the last retriever is exported and the fusion with BM25 has its default weight."
    if facts.duplicates > facts.passages / 20:
        yield (
            f"{facts.duplicates / facts.passages:.0%} of the passages are duplicates: remove them, or add the filter "
            f"same-text to the miners, so that copies of a positive are never negatives."
        )
    script = next(iter(facts.scripts), "LATIN")
    if script != "LATIN" and recipe.evaluation.bm25:
        yield (
            f"BM25 stems English words, but most letters are {script.capitalize()}: bm25_language in [evaluation] "
            f"names another language, or none."
        )
    passages, queries = facts.languages
    language = recipe.evaluation.bm25_language
    if recipe.evaluation.bm25 and passages not in ("", language):
        yield (
            f"The passages look like {passages.capitalize()}, and BM25 stems {language} words: "
            f'bm25_language = "{passages}" in [evaluation].'
        )
    if recipe.evaluation.bm25 and passages and queries not in ("", passages):
        yield (
            f"The queries look like {queries.capitalize()}, the passages like {passages.capitalize()}: "
            f'bm25_query_language = "{queries}" in [evaluation].'
        )
    if facts.passages > 1_000_000 and not has_gpu:
        yield "More than a million passages take hours to encode on a CPU: try a sample first."


def _recipe_lines(suggestion: Suggestion, registry: Registry) -> Iterator[str]:
    """Yield the lines of a recipe without settings that have their defaults; short tables are on one line."""
    meanings = {one.path.removesuffix(".use"): one.meaning for one in setting_paths(suggestion.recipe, registry)}
    reasons = suggestion.reasons

    def lines(table: Mapping[str, Any], path: str, header: str) -> Iterator[str]:
        """Yield a table's settings, then the tables in it; path: of the table, with the indices of lists."""
        written = {key: f"{key} = {toml_value(value)}" for key, value in table.items()}
        is_inner = {key: bool(_inner_tables(table[key])) and (not path or len(written[key]) > _INLINE) for key in table}
        if path and not all(is_inner.values()):
            yield from ("", header)
        for key in [key for key in table if not is_inner[key]]:
            yield from (f"# {escape_line(why)}" for of, why in reasons.items() if of.startswith(f"{path}{key}"))
            meaning = meanings.get(f"{path}{key}")
            yield f"{written[key]:{_COMMENT_COLUMN}}  # {escape_line(meaning)}" if meaning else written[key]
        for key in [key for key in table if is_inner[key]]:
            name = f"{header.strip('[]')}.{key}".strip(".")
            for index, row in _inner_tables(table[key]).items():
                yield from lines(row, f"{path}{key}.{index}", f"[[{name}]]" if index else f"[{name}]")

    yield from lines(_without_defaults(suggestion.recipe, registry), "", "")


def _without_defaults(recipe: Recipe, registry: Registry) -> dict[str, Any]:
    """Return the smallest table that reads back equal to a recipe; parts without settings are their names."""
    whole = recipe_table(recipe)

    def reads_equal() -> bool:
        try:
            return recipe_from_table(whole, registry) == recipe
        except DrkitError:  # what was left out has no default
            return False

    def shorten(table: Any, keys: Iterable[Any]) -> None:
        for key in keys:
            value = table[key]
            if isinstance(table, dict):
                del table[key]
                if reads_equal():
                    continue
                table[key] = value
            if isinstance(value, (dict, list)):
                shorten(value, [*value] if isinstance(value, dict) else range(len(value)))
            if isinstance(value, dict) and [*value] == ["use"]:
                table[key] = value["use"]

    shorten(whole, [*whole])
    return whole


def _inner_tables(value: Any) -> dict[str, dict[str, Any]]:
    """Return the tables of a list by the beginnings of their paths, a table by an empty one; none for a setting."""
    if isinstance(value, list) and all(isinstance(row, dict) for row in value):
        return {f"{index}.": row for index, row in enumerate(value)}
    return {"": value} if isinstance(value, dict) else {}
