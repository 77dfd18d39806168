"""Mine in blocks of queries, as tasks of an engine: each writes what it mined, and the files are read in order.

What is read equals what the chain yields in one process, since blocks hold whole batches of queries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attrs import astuple

from drkit.core.engine import Engine, Loaded, Uses
from drkit.core.file_chunks import FileChunk, FileChunks, items_of
from drkit.core.files import replacing
from drkit.core.protocols import Corpus
from drkit.core.registry import installed
from drkit.core.spec import Choice
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.data.corpus import StoredCorpus, collection_of
from drkit.data.rows import batched
from drkit.errors import DrkitError
from drkit.miners.chain import Chain, build_chain, model_hashes
from drkit.recipe.schema import MinerChoice
from drkit.recipe.toml import plain, recipe_converter


def write_mined(mined: Iterable[Mined], path: Path) -> None:
    """Write mined negatives as JSON Lines, atomically."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(astuple(one), default=float)}\n" for one in mined)


def read_mined(path: Path) -> Iterator[Mined]:
    """Yield the mined negatives of a file that `write_mined` wrote."""
    with path.open(encoding="utf-8") as file:
        for query_id, doc_ids, scores, positive_scores, dropped in map(json.loads, file):
            yield Mined(query_id, tuple(doc_ids), tuple(scores), positive_scores, dropped)


def chain_text(choices: Sequence[Choice]) -> str:
    """Return the chosen miners with their settings as text."""
    return json.dumps(plain(list(choices)), sort_keys=True)


def open_collected(given: tuple[tuple[str, Path], ...], seed: int) -> tuple[BuildContext, StoredCorpus]:
    """Return what miners without a model of the run are built with, and the corpus; without importing torch.

    given: the folders of the collection: of its passages, and of the split `train`.
    """
    collection = collection_of(dict(given))
    return BuildContext(negatives=collection.negatives("train"), seed=seed), collection.corpus


def open_chain(
    text: str,
    open_with: Callable[..., tuple[BuildContext, Corpus]],
    arguments: tuple[Any, ...],
    index: Path,
    hashes: tuple[tuple[str, str], ...],
) -> Chain:
    """Build a chain in a worker, and load or make its index.

    text: of `chain_text`. open_with: called with `arguments`, returns what the miners are built with, and the corpus.
    index: the folder of `Chain.save_index`. hashes: the models that the context must have.

    Raises DrkitError if they differ.
    """
    context, corpus = open_with(*arguments)
    if model_hashes(context) != dict(hashes):
        raise DrkitError(
            "a worker loaded another model for mining than the first process; mount the same file system on all "
            "machines"
        )
    registry = installed().registry
    choices: tuple[Choice, ...] = recipe_converter(registry).structure(json.loads(text), tuple[MinerChoice, ...])
    chain = build_chain(choices, registry, context)
    chain.load_index(index, corpus)
    return chain


def mine_on(
    engine: Engine | None,
    chain: Chain,
    corpus: Corpus,
    requests: Iterable[MiningRequest],
    depth: int,
    *,
    choices: Sequence[Choice],
    context: BuildContext,
    open_with: partial[Any],
    index: Path,
    chunks: FileChunks,
    state: Any = None,
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[Mined]:
    """Mine negatives of a corpus with a chain, in this process or, on another engine, in blocks of queries.

    choices, context: what the chain was built from. open_with: opens the context and the corpus in a worker. index: the
    folder of the chain's index. chunks: where the blocks are kept. state: plain data that identifies the chain and the
    corpus. on_progress: called with the number of queries done.

    Raises DrkitError for tasks that fail.
    """
    if not chunks.are_needed(engine):
        chain.index(corpus)
        whole = FileChunk("negatives", 0, None, chain.mine, (requests, depth))
        return items_of([whole], write=write_mined, read=read_mined, kept=None, engine=None, on_progress=on_progress)
    models = model_hashes(context)
    chain.save_index(index, corpus)
    loaded = Loaded(open_chain, chain_text(choices), open_with.func, open_with.args, index, tuple(models.items()))
    uses: Uses = "gpu" if models else "core"
    blocks = mined_blocks(loaded, requests, depth, chain.queries_per_block(depth), [state, models], uses)
    return items_of(blocks, write=write_mined, read=read_mined, kept=chunks, engine=engine, on_progress=on_progress)


def mined_blocks(
    chain: Loaded[Chain], requests: Iterable[MiningRequest], depth: int, size: int, state: Any, uses: Uses = "core"
) -> Iterator[FileChunk[Mined]]:
    """Yield blocks of `size` requests, of `Chain.queries_per_block`, with what mines each.

    state: plain data that identifies the chain, its models and the corpus. uses: what mining computes with, see `Task`.
    """
    last = 0
    for block in batched(requests, size):
        first, last = last + 1, last + len(block)
        asked = [[one.query_id, one.text, sorted(one.positives), sorted(one.excluded)] for one in block]
        name, content = f"negatives of queries {first} to {last}", [state, depth, asked]
        yield FileChunk(name, len(block), content, mine_block, (chain, block, depth), uses)


def mine_block(chain: Loaded[Chain], requests: Sequence[MiningRequest], depth: int) -> Iterator[Mined]:
    """Mine negatives for a block of queries."""
    return chain.value.mine(requests, depth)
