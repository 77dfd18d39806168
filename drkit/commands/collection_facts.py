"""Look at a collection: its format, sizes, lengths, scripts, duplicates, and what is judged."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import field, frozen

from drkit.commands.inputs import NamedCollection
from drkit.core.files import local_path
from drkit.core.registry import Installed
from drkit.core.spec import Kind
from drkit.data.corpus import StoredCollection
from drkit.errors import DrkitError, UnknownNameError
from drkit.recipe.lengths import Lengths, estimate_tokens, script_of

# Formats of files, tried in this order; the last one reads any file of texts.
FORMATS = ("beir", "trec", "tevatron", "pairs", "hf", "jsonl")
# Passages whose letters are counted; scripts are a matter of shares.
_SAMPLE = 5000
# Scripts that are shown, with at least this share of the letters.
_SHOWN, _LEAST_SHARE = 4, 0.001


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
    copies: queries whose own text is the passage of the same id.
    """

    name: str
    passages: int = 0
    empty: int = 0
    duplicates: int = 0
    lengths: Lengths = field(factory=Lengths)
    scripts: Mapping[str, float] = field(factory=dict)
    splits: Mapping[str, SplitFacts] = field(factory=dict)
    judged: int = 0
    copies: int = 0

    @property
    def training_queries(self) -> int:
        """Number of training queries with a relevant passage."""
        return self.splits["train"].answered if "train" in self.splits else 0


def find_collection(text: str, parts: Installed) -> str:
    """Return the name of a collection, as `--collection` takes it, for such a name or for a path of unknown format.

    Raises DrkitError for a path that no format can read, or a name that is neither.
    """
    known = parts.registry.names(Kind.COLLECTION)
    path = local_path(text)
    if text.partition(":")[0] in known:
        return text
    if not path.exists():
        try:
            parts.registry.split(Kind.COLLECTION, text)
        except UnknownNameError:
            raise DrkitError(
                f"{text} is neither a file or folder nor a collection; give a path, or NAME:VALUE with one of: "
                f"{', '.join(known)}"
            ) from None
        return text
    problems = []
    for name in (name for name in FORMATS if name in known):
        try:
            source = NamedCollection(f"{name}:{text}", parts=parts).source
            assert not isinstance(source, StoredCollection)
            if next(iter(source.passages()), None) is not None:
                return f"{name}:{text}"
            problems.append(f"{name}: no passages")
        except DrkitError as error:
            problems.append(f"{name}: {str(error).splitlines()[0].removeprefix(f'collection {name}: ')}")
    raise DrkitError(
        f"{text} has none of the known formats; name the format, as in beir:{text} (see `drkit list collection`)\n"
        + "\n".join(f"  - {problem}" for problem in problems)
    )


def look_at(name: str, parts: Installed) -> CollectionFacts:
    """Read a whole collection once, and return what it contains. Raises DrkitError as its reader does."""
    collection = NamedCollection(name, parts=parts)
    source = collection.source
    own_texts: dict[str, bytes] = {}
    splits = {split: _split(source, split, own_texts) for split in source.splits()}
    judged = {j.doc_id for split in splits for j in source.judgements(split)}
    lengths, seen, letters = array("L"), set[bytes](), Counter[str]()
    empty = duplicates = copies = 0
    for passage in collection.passages():
        text = passage.content
        if len(lengths) < _SAMPLE:
            letters.update(map(script_of, filter(str.isalpha, text[:2000])))
        digest = _digest(text)
        empty += not text.strip()
        duplicates += digest in seen and bool(text.strip())
        seen.add(digest)
        copies += own_texts.get(passage.doc_id) in (digest, _digest(passage.text))
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
        judged=len(judged),
        copies=copies,
    )


def _split(source: Any, split: str, own_texts: dict[str, bytes]) -> SplitFacts:
    """Describe the queries of a split, and remember hashes of their texts by id."""
    lengths = array("L")
    for query in source.queries(split):
        own_texts[query.query_id] = _digest(query.text)
        lengths.append(estimate_tokens(query.text))
    answered, judgements, relevant = set(), 0, 0
    for judgement in source.judgements(split):
        judgements += 1
        if judgement.relevance > 0:
            relevant += 1
            answered.add(judgement.query_id)
    return SplitFacts(len(lengths), len(answered), judgements, relevant, Lengths.of(lengths))


def _digest(text: str) -> bytes:
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
        yield f"duplicates: {facts.duplicates:,} passages ({share:.1%}) have the text of another one"
    if facts.empty:
        yield f"empty: {facts.empty:,} passages have no text"
    scripts = [(script, share) for script, share in facts.scripts.items() if share >= _LEAST_SHARE]
    shares = ", ".join(f"{script.capitalize()} {share:.1%}" for script, share in scripts[:_SHOWN])
    yield f"letters: {shares or 'none'}"
    if not facts.splits:
        yield "queries: none, texts alone"
        return
    for split, one in facts.splits.items():
        yield (
            f"{split}: {one.queries:,} queries of about {one.lengths.median:,} tokens, {one.answered:,} with a "
            f"relevant passage; {one.judgements:,} judgements, {one.relevant:,} of them relevant"
        )
    yield f"judged: {facts.judged:,} of {count:,} passages ({facts.judged / max(count, 1):.1%})"
