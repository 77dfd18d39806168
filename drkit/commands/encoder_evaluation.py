"""Evaluate an encoder, or any function that makes vectors, on a collection or on many BEIR data sets."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from attrs import field, frozen

from drkit.commands.collections import NamedCollection
from drkit.commands.evaluation import note_own_hits
from drkit.commands.inputs import OpenedEncoder, open_encoder
from drkit.core.files import SCRATCH, digest, file_hash, local_path, remove_folder, write_text
from drkit.core.progress import Progress, Silent
from drkit.core.protocols import Collection
from drkit.core.quantities import counted
from drkit.core.types import Judgement
from drkit.data.collection import drops_unknown_ids
from drkit.data.corpus import PASSAGES_FOLDER, QUERIES_FILE, TEXTS_FILE, StoredCollection, open_collection
from drkit.data.rows import COMPRESSED, batched
from drkit.errors import DrkitError
from drkit.evaluate import MEASURES, Scores, check_measures, evaluate
from drkit.evaluate.measures import check_judgements
from drkit.recipe.start import RECIPE
from drkit.search import FlatIndex, Retriever, build_index, encode_corpus, read_run
from drkit.search.blocks import rank_to_run
from drkit.search.encode import passage_texts
from drkit.search.rankings import Rankings

_DEPTH = 1000
_SPLITS = ("test", "dev")
AVERAGE = "average"


def evaluate_encoder(
    encode: Callable[[list[str]], Any],
    collection: str | Collection,
    *,
    encode_queries: Callable[[list[str]], Any] | None = None,
    split: str = _SPLITS[0],
    measures: Sequence[str] = MEASURES,
    exclude_self: bool = False,
    batch: int = 1024,
) -> Scores:
    """Search a collection with the vectors that any function makes, exactly, and return the scores of its queries.

    encode: a function of B texts that returns vectors [B,D], such as `SentenceTransformer.encode`; they are compared by
    inner product, and those of all passages are kept in memory. encode_queries: the same for queries, if it is another.
    collection: as `drkit compose --collection` names it, or an object such as `drkit.data.BeirCollection`.

    Raises DrkitError if there are no passages or no such queries, and as `FlatIndex.build` and `evaluate` do.
    """
    check_measures(measures)
    source: Any = NamedCollection(collection) if isinstance(collection, str) else collection
    queries, ids, vectors = list(source.queries(split)), [], []
    judgements = list(source.judgements(split))
    check_judgements(measures, judgements)
    for passages in batched(source.passages(), batch):
        ids += [passage.doc_id for passage in passages]
        vectors.append(np.asarray(encode([passage.content for passage in passages]), dtype=np.float32))
    if not ids or not queries:
        raise DrkitError(f"{source.name} has no {'passages' if not ids else f'{split!r} queries'} to evaluate on")
    index = FlatIndex.build(np.concatenate(vectors), ids)
    asked = np.asarray((encode_queries or encode)([query.text for query in queries]), dtype=np.float32)
    if len(asked) != len(queries):
        raise DrkitError(f"got {len(asked)} vectors for {len(queries)} queries; every query needs one")
    rankings = Rankings.at(index.doc_ids.array, [query.query_id for query in queries], index.rank(asked, _DEPTH + 1))
    return evaluate(rankings, judgements, measures, exclude_self=exclude_self)


@frozen
class BeirTable:
    """Means of every data set or group, in order: `means[data set][measure]`.

    sizes: passages and judged queries of each.
    """

    measures: tuple[str, ...]
    means: Mapping[str, Mapping[str, float]]
    sizes: Mapping[str, tuple[int, int]] = field(factory=dict)

    def averages(self) -> dict[str, float]:
        """Return the mean over data sets of each measure; every data set, and every group, counts once."""
        return {m: sum(found[m] for found in self.means.values()) / len(self.means) for m in self.measures}

    def rows(self) -> list[list[str]]:
        """Return rows of text (data set, one value per measure), with the average last."""
        rows = {**self.means, AVERAGE: self.averages()}
        return [[name, *(f"{found[m]:.3f}" for m in self.measures)] for name, found in rows.items()]

    def as_json(self) -> dict[str, Any]:
        """Return the table as plain data."""
        return {"data_sets": self.means, AVERAGE: self.averages()}


@frozen(slots=False)
class EncoderEvaluation:
    """How to evaluate an encoder; repeated evaluations resume.

    encoder: a folder, a run, or a hub id. output: where the rankings (1,000 passages per query) are kept. how:
    arguments of `open_encoder`, such as `pooling` and `backend`. exclude_self: a passage with the query's own id is not
    a hit (as in BEIR's own evaluation).

    Raises DrkitError for an unknown measure.
    """

    encoder: str
    output: Path
    measures: Sequence[str] = ("nDCG@10",)
    how: Mapping[str, Any] = field(factory=dict)
    exclude_self: bool = False
    progress: Progress = field(factory=Silent)

    def __attrs_post_init__(self) -> None:
        check_measures(self.measures)

    def on_beir(self, folder: Path) -> BeirTable:
        """Evaluate on the test queries of every data set of a folder, or dev queries if it has no others (MS MARCO).

        Raises DrkitError for no data set, or an unreadable one.
        """
        means, sizes = {}, {}
        for name, members in data_sets(folder).items():
            measured = [self._measured(NamedCollection(f"beir:{path}"), None) for path in members]
            scores = [one for one, _ in measured]
            means[name] = {m: sum(one.mean(m) for one in scores) / len(scores) for m in self.measures}
            sizes[name] = sum(passages for _, passages in measured), sum(one.queries for one in scores)
        return BeirTable(tuple(self.measures), means, sizes)

    def on_collection(self, collection: NamedCollection, split: str | None = None) -> Scores:
        """Return the scores of the queries of a split of a collection.

        All its judgements count, as for `drkit evaluate FILE`: a judged query without a text counts 0, and a judged
        passage that the collection lacks is not found. A note says how many there are. With
        `collection.unknown_judgements=drop`, these judgements are left out, as in a run.

        split: test if None, or dev without test queries. Raises DrkitError if the collection does not have it.
        """
        return self._measured(collection, split)[0]

    def _measured(self, collection: NamedCollection, split: str | None) -> tuple[Scores, int]:
        """Return the scores of a collection, and the number of its passages."""
        name, splits = Path(collection.name.rpartition(":")[2]).resolve().name, collection.source.splits()
        split = split or next((one for one in _SPLITS if one in splits), _SPLITS[0])
        collection.check_split(split)
        identity = self._opened.identity()  # the encoder may be missing, before the collection is read
        with tempfile.TemporaryDirectory(prefix=SCRATCH) as scratch:
            folder, counts = collection.store(Path(scratch), splits=(split,), drop_unknown=True)
            files = [file_hash(folder / PASSAGES_FOLDER / TEXTS_FILE), file_hash(folder / split / QUERIES_FILE)]
            key = digest({"system": identity, "files": files, "split": split, "depth": _DEPTH})
            stored, run = open_collection(folder), self.output / f"{name}-{key}.trec"
            judgements = self._judgements(name, collection, stored, split, counts.get("dropped_judgements", 0))
            check_judgements(self.measures, judgements)
            self._rank(name, stored, split, run)
            passages = len(stored.corpus)
        rankings = read_run(run)
        if note := note_own_hits(rankings, judgements, name, exclude_self=self.exclude_self):
            self.progress.note(note)
        return evaluate(rankings, judgements, self.measures, exclude_self=self.exclude_self), passages

    def _judgements(
        self, name: str, collection: NamedCollection, stored: StoredCollection, split: str, unknown: int
    ) -> list[Judgement]:
        """Return the judgements that count; unknown: the number of those that the stored collection lacks."""
        if unknown and drops_unknown_ids(collection.source):
            self.progress.note(
                f"{name}: {counted(unknown, 'judgement')} of queries or passages that it lacks not counted "
                f"(collection.unknown_judgements=drop)"
            )
            return list(stored.judgements(split))
        judgements, asked = list(collection.judgements(split)), {query.query_id for query in stored.queries(split)}
        lost = [one.query_id for one in judgements if one.query_id not in asked]
        if lost:
            self.progress.note(
                f"{name}: {counted(len(set(lost)), 'judged query')} without a text, such as {lost[0]!r}: counted as 0"
            )
        if unknown > len(lost):
            self.progress.note(
                f"{name}: {counted(unknown - len(lost), 'judgement')} of passages that it lacks, counted as not found; "
                f"--set collection.unknown_judgements=drop leaves them out"
            )
        return judgements

    @cached_property
    def _opened(self) -> OpenedEncoder:
        return open_encoder(self.encoder, **self.how)

    def _rank(self, name: str, collection: StoredCollection, split: str, run: Path) -> None:
        """Write the run of a split, unless it is there as it was written; until then its vectors are kept."""
        work, written = run.with_suffix(".work"), run.with_suffix(".hash")
        if run.is_file() and written.is_file() and written.read_text(encoding="utf-8") == file_hash(run):
            self.progress.skip(name, str(run))
        else:
            started = time.perf_counter()
            self.progress.begin(name, f"{short_name(self.encoder)}, {split} queries")
            vectors = encode_corpus(
                self._opened,
                passage_texts(collection.corpus, self._opened),
                work / "vectors",
                on_progress=lambda done: self.progress.advance(done, len(collection.corpus), "passages"),
            )
            if vectors is None:
                raise DrkitError("`drkit evaluate --encoder` runs in a single process; start it without torchrun")
            index = build_index(vectors, work / "index")
            rank_to_run(Retriever(self._opened, index), collection.queries(split), run, depth=_DEPTH + 1)
            write_text(written, file_hash(run))
            self.progress.end(name, time.perf_counter() - started)
        remove_folder(work)  # a kill may have left it beside the run


def short_name(encoder: str) -> str:
    """Return the name of an encoder's folder, or of the run that exported it; a hub id stays unchanged."""
    path = local_path(encoder).resolve()
    if not path.is_dir():
        return encoder
    if not (path.parent / RECIPE).is_file():
        return path.name
    return path.parent.name if path.name == "encoder" else f"{path.parent.name}:{path.name}"


def data_sets(folder: Path) -> dict[str, list[Path]]:
    """Return the data sets of a folder by name: one folder each, or the folders of a group.

    Raises DrkitError for a folder without data sets.
    """
    if not folder.is_dir():
        raise DrkitError(f"folder not found: {folder}; give a folder that contains data sets in BEIR's layout")
    if _is_data_set(folder):
        return {folder.resolve().name: [folder]}
    inner = {
        path.name: [path] if _is_data_set(path) else [*filter(_is_data_set, _folders(path))]
        for path in _folders(folder)
    }
    found = {name: members for name, members in inner.items() if members}
    if not found:
        raise DrkitError(
            f"{folder} contains no data set: expected folders with corpus.jsonl, queries.jsonl and qrels/test.tsv"
        )
    return found


def _folders(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith("."))


def _is_data_set(folder: Path) -> bool:
    return any((folder / f"corpus.jsonl{end}").is_file() for end in ("", *COMPRESSED))
