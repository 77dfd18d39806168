"""The systems of a run that can search: their names, which one is the best, and the searcher of each.

Their names are those of the run's table: `bm25`, `hybrid`, its retrievers, and a re-ranker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from drkit.commands.collections import NamedCollection
from drkit.commands.inputs import find_index, open_encoder, open_reranker
from drkit.core.quantities import counted
from drkit.data.corpus import open_collection
from drkit.errors import DrkitError, UnknownNameError
from drkit.evaluate.names import BM25_NAME, HYBRID_NAME, HYBRIDS, fused_with_bm25, system_in_words, system_name
from drkit.recipe.start import RECIPE
from drkit.recipe.toml import read_table
from drkit.runs.manifest import Manifest, read_manifest
from drkit.search import Bm25Retriever, HybridRetriever, Retriever, open_index
from drkit.search.data_sets import SeparateBm25, SeparateRetriever, one_data_set
from drkit.search.fusion import Fusion, Searcher, read_fusion
from drkit.search.reranking import RerankedRetriever

# The stage that ranks the evaluated queries.
_SEARCH = "runs"


@frozen
class SearchSystem:
    """A system of a run that can search.

    name: in the run's table. encoder, index: the folders of its retriever in the run; "" for BM25. part: the part of
    the retriever's vectors that it searches by (see `Retriever`). retriever: that of a hybrid or a re-ranker. fusion:
    how a hybrid weighs it. depth: how many of its hits a re-ranker scores.
    """

    name: str
    encoder: str = ""
    index: str = ""
    part: str = ""
    retriever: str = ""
    fusion: Fusion | None = None
    depth: int = 0

    @property
    def description(self) -> str:
        """The name in a sentence, with what the system is made of.

        >>> fusion = Fusion("retriever-1", weight=0.4, depth=1000)
        >>> SearchSystem("hybrid", "encoder", "index", retriever="retriever-1", fusion=fusion).description
        'hybrid: BM25 + retriever-1'
        >>> SearchSystem("reranker", "encoder", "index", retriever="retriever-1", depth=50).description
        'reranker: the first 50 of retriever-1'
        """
        if self.fusion:
            return f"{HYBRID_NAME}: BM25 + {system_name(self.retriever)}"
        if self.depth:
            return f"{self.name}: the first {self.depth} of {system_name(self.retriever)}"
        return system_in_words(self.name)


def search_systems(run: str | Path) -> dict[str, SearchSystem]:
    """Return the systems of a run that can search, by name: those whose files the run still has.

    Raises DrkitError if the folder is not a run, or its encoder or index is not finished.
    """
    folder = Path(run)
    if not (folder / RECIPE).is_file():
        raise DrkitError(f"{folder} is not a run (no {RECIPE}); give the folder of one, as `drkit compose` makes it")
    exported = _exported(folder)
    found = {BM25_NAME: SearchSystem(BM25_NAME)} if read_manifest(folder / BM25_NAME) else {}
    found |= {name: one for name, one in _planned_retrievers(folder).items() if _can_search(folder, one)}
    found[exported.name] = exported
    found |= {**_planned_rerankers(folder, found), **_planned_hybrids(folder, found)}
    if BM25_NAME in found and read_manifest(folder / HYBRID_NAME):
        fusion = read_fusion(folder)
        found[HYBRID_NAME] = evolve(exported, name=HYBRID_NAME, retriever=fusion.retriever, fusion=fusion)
    return found


def best_system(run: str | Path) -> str:
    """Return the name of the system that a run is best searched with, as its dev queries chose it.

    That is the system that the run recommends, if it does; else the hybrid, or, where its weight leaves out one of its
    two, the other one; else the exported retriever. Test queries never decide.

    Raises DrkitError as `search_systems` does.
    """
    folder, systems = Path(run), search_systems(run)
    evaluation = read_manifest(folder / "evaluation")
    recommended = evaluation.metrics.get("gains", {}).get("recommended") if evaluation else None
    if recommended in systems:
        return str(recommended)
    fusion = systems[HYBRID_NAME].fusion if HYBRID_NAME in systems else None
    if fusion:
        return {0.0: BM25_NAME, 1.0: fusion.retriever}.get(fusion.weight, HYBRID_NAME)
    return _exported(folder).name


def find_system(run: str | Path, name: str | None = None) -> SearchSystem:
    """Return a system of a run by its name; None: the best one (`best_system`).

    Raises DrkitError if no system has that name, and as `search_systems` does.
    """
    systems = search_systems(run)
    chosen = best_system(run) if name is None else name
    if chosen not in systems:
        raise UnknownNameError("system", chosen, systems, where=run)
    return systems[chosen]


def note_other_passages(run: str | Path, collection: NamedCollection, split: str) -> str:
    """Say how many passages that a collection judges for a split are not among those of a run; nothing if none.

    So the rankings of a run's index can be measured by the judgements of another collection with the same passages.

    Raises DrkitError if the run has none of them.
    """
    folder = Path(run) / "collection"
    if collection.stored_folder == folder or read_manifest(folder) is None or split not in collection.source.splits():
        return ""
    judged = [*dict.fromkeys(one.doc_id for one in collection.judgements(split))]
    missing = int((open_collection(folder).corpus.find(judged) < 0).sum()) if judged else 0
    if missing and missing == len(judged):
        raise DrkitError(
            f"{run} has none of the {counted(len(judged), 'passage')} that {collection.name} judges ({split}): its "
            f"index is of other texts. Evaluate its encoder on these: "
            f"drkit evaluate --encoder {run} --collection {collection.name}"
        )
    of = f"of the {counted(len(judged), 'passage')} that {collection.name} judges ({split})"
    return f"{run} lacks {missing:,} {of}: they are not found" if missing else ""


def data_sets_of(run: str | Path) -> tuple[str, ...]:
    """Return the names of a run's data sets, in their order; none if it has a single collection."""
    return tuple(read_table(Path(run) / RECIPE).get("collections") or ())


def open_system(
    run: str | Path, name: str | None = None, *, data_set: str | None = None, encoder: str | None = None, **how: Any
) -> Searcher:
    """Open the searcher of a run's system; None: of the best one (`best_system`).

    data_set: whose passages are searched, in a run with several; None: those of the data set that the id of a query
    belongs to (`SeparateSearcher`). encoder: a path or hub id, instead of the run's own; how: settings of
    `open_encoder`.

    Raises DrkitError as `find_system`, `open_encoder` and `open_index` do, and UnknownNameError for a data set that the
    run does not have.
    """
    folder, system, names = Path(run), find_system(run, name), data_sets_of(run)
    if data_set is not None and data_set not in names:
        if not names:
            raise DrkitError(f"{folder} has a single collection: leave out the data set {data_set!r}")
        raise UnknownNameError("data set", data_set, names, where=folder)
    if system.name == BM25_NAME:
        return _words(folder, names, data_set)
    path, index = encoder or str(folder / system.encoder), folder / system.index
    whole = Retriever(open_encoder(path, **how), open_index(index), part=system.part)
    dense: Searcher = _dense(whole, names, data_set)
    if system.fusion:
        words = _words(folder, names, data_set)
        return HybridRetriever(words, dense, system.fusion.weight, system.fusion.depth)
    if system.depth:
        corpus = open_collection(folder / "collection").corpus
        return RerankedRetriever(dense, open_reranker(folder), corpus, system.depth)
    return dense


def _words(run: Path, names: Sequence[str], data_set: str | None) -> Searcher:
    """Return BM25 over the passages of a run, or of one of its data sets, or of each by itself."""
    if names and data_set is None:
        return SeparateBm25.load(run / BM25_NAME, names)
    return Bm25Retriever.load(run / BM25_NAME / (data_set or ""))


def _dense(whole: Retriever, names: Sequence[str], data_set: str | None) -> Any:
    """Return a retriever of all passages, or of one of the data sets, or of each by itself."""
    if not names:
        return whole
    return SeparateRetriever.of(whole, names) if data_set is None else one_data_set(whole, data_set, names)


def _planned_retrievers(run: Path) -> dict[str, SearchSystem]:
    """Return the retrievers that the run evaluated, and the parts of their vectors, in the order of its table."""
    searched = read_manifest(run / _SEARCH)
    if searched is None:
        return {}
    parts = _settings_below(searched, "parts")
    names = {name: (name, "") for name in searched.settings["retrievers"]} | parts
    return {
        name: SearchSystem(name, encoder, searched.origins[f"index/{encoder}"], part)
        for name, (encoder, part) in names.items()
    }


def _planned_rerankers(run: Path, found: Mapping[str, SearchSystem]) -> dict[str, SearchSystem]:
    """Return the re-ranker that the run evaluated, by its name, unless its retriever or the passages are missing."""
    searched = read_manifest(run / _SEARCH)
    if searched is None or read_manifest(run / "collection") is None:
        return {}
    depth = searched.settings["rerank_depth"]
    return {
        name: evolve(found[source], name=name, retriever=source, depth=depth)
        for name, source in _settings_below(searched, "reranked").items()
        if source in found and _keeps_files(run / name)
    }


def _planned_hybrids(run: Path, found: Mapping[str, SearchSystem]) -> dict[str, SearchSystem]:
    """Return BM25 with each of several retrievers, by the name `NAME+bm25`, if the run evaluated them."""
    fused = read_manifest(run / HYBRIDS)
    if fused is None or BM25_NAME not in found:
        return {}
    made = {}
    for name in (name for name in fused.settings["retrievers"] if name in found):
        fusion = Fusion(name, float(fused.metrics["weight"]), int(fused.metrics["depth"]))
        hybrid = fused_with_bm25(name)
        made[hybrid] = evolve(found[name], name=hybrid, retriever=name, fusion=fusion)
    return made


def _settings_below(stage: Manifest, path: str) -> dict[str, Any]:
    """Return the settings `PATH.NAME` of a stage by name."""
    prefix = f"{path}."
    return {name.removeprefix(prefix): value for name, value in stage.settings.items() if name.startswith(prefix)}


def _exported(run: Path) -> SearchSystem:
    """Return the exported retriever, by the name of the stage that trained it."""
    encoder = read_manifest(run / "encoder")
    if encoder is None:
        raise DrkitError(f"{run} has no finished encoder; resume it with `drkit run {run}`")
    find_index(run)
    return SearchSystem(encoder.metrics["from"], "encoder", "index")


def _can_search(run: Path, system: SearchSystem) -> bool:
    return _keeps_files(run / system.encoder) and _keeps_files(run / system.index)


def _keeps_files(stage: Path) -> bool:
    """Return whether a stage is finished, and nothing of it was removed to free space."""
    made = read_manifest(stage)
    return made is not None and not made.pruned
