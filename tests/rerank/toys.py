"""A toy collection whose queries are answered by the one passage that shares their topic, and tiny models for it."""

from __future__ import annotations

import json
from pathlib import Path

from drkit.core.types import Judgement, Mined, Passage, Query
from drkit.data.corpus import open_collection
from drkit.data.writing import write_collection
from drkit.miners.chain import write_negatives
from drkit.runs.stage import StageRun
from tests.encoders.toys import tiny

TOPICS = ["file", "list", "string", "module", "thread", "socket", "error", "number", "class", "object", "time", "path"]


class ToyCollection:
    """Passage `d x` is about topic x; queries ask for it. Ids have spaces and unicode, one passage is empty."""

    name = "toy"

    def __init__(self, repeats: int = 1) -> None:
        self.repeats = repeats

    def passages(self):
        for topic in TOPICS:
            yield Passage(f"d {topic} ü", f"the {topic} is returned", title=topic)
        yield Passage("d empty", "")

    def splits(self):
        return ("train", "test")

    def queries(self, split):
        if split == "test":
            yield from (Query(f"t {topic} 北", f"the {topic}") for topic in TOPICS[:4])
            return
        for number in range(self.repeats):
            yield from (Query(f"q {topic} {number}", f"return a {topic} {'if ' * number}") for topic in TOPICS)
        yield Query("q unjudged", "nobody knows")
        yield Query("q é", "")

    def judgements(self, split):
        if split == "test":
            yield from (Judgement(f"t {topic} 北", f"d {topic} ü", 1) for topic in TOPICS[:4])
            return
        for number in range(self.repeats):
            for topic in TOPICS:
                yield Judgement(f"q {topic} {number}", f"d {topic} ü", 1)
        yield Judgement("q file 0", "d path ü", 2)
        yield Judgement("q é", "d empty", 1)


def stored(folder: Path, repeats: int = 1) -> Path:
    """The collection on disk."""
    write_collection(ToyCollection(repeats), folder)
    return folder


def mined(collection: Path, folder: Path) -> Path:
    """Negatives of every judged query: all passages that do not answer it, `q file 0` with two of them only."""
    opened = open_collection(collection)
    rows = []
    for query, judged in opened.positives("train").items():
        ids = [passage.doc_id for passage in opened.corpus if passage.doc_id not in judged]
        ids = ids[:2] if query == "q file 0" else ids
        rows.append(Mined(query, tuple(ids), tuple(float(-i) for i in range(len(ids)))))
    folder.mkdir(parents=True, exist_ok=True)
    write_negatives(rows, opened.corpus, folder)
    return folder


def query_tokens(collection: Path, folder: Path) -> Path:
    """The training queries of a stored collection as tokens, by a vocabulary of their own."""
    from drkit.data.store import tokenise

    queries = [(query.query_id, query.text) for query in open_collection(collection).queries("train")]
    tokenise(iter(queries), tiny("bert")[1], folder, max_length=16)
    return folder


def checkpoint(folder: Path, name: str = "bert", **changes) -> Path:
    """A masked LM with random weights, and its tokenizer."""
    model, tokenizer = tiny(name, **changes)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def parts_of(collection: Path, *splits: str) -> dict[str, Path]:
    """The inputs of a stage that reads a collection's passages and these splits."""
    return {"passages": collection / "passages", **{split: collection / split for split in splits}}


def stage_run(spec, folder: Path, inputs, settings, progress=None) -> StageRun:
    """What a stage's function gets; it may be given no input that its spec does not declare."""
    from drkit.core.progress import Silent
    from drkit.core.registry import installed
    from drkit.runs.stage import Stage, StageOutput

    Stage(spec.name, spec, settings, "test", {name: StageOutput(name) for name in inputs})
    folder.mkdir(parents=True, exist_ok=True)
    return StageRun(spec.name, settings, inputs, folder, registry=installed().registry, progress=progress or Silent())


def lines(path: Path) -> list[dict]:
    """The objects of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
