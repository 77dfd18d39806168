"""Mining again, and composing batches again, while a retriever is trained, with the model at the start of an epoch.

The schedule alone decides before which step this is done, and the results are kept beside the checkpoints and in them,
so that a resumed run reads the same negatives and batches. Mining: Xiong et al. 2021; every k epochs as in CPDAE.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import asdict, evolve, field, frozen
from numpy.typing import NDArray
from torch import nn
from transformers import TrainerCallback

from drkit.core import processes
from drkit.core.files import (
    FileEntry,
    digest,
    find_damages,
    link_or_copy,
    make_folder,
    remove_folder,
    replacing,
    write_text,
)
from drkit.core.processes import Shard
from drkit.core.registry import Registry
from drkit.core.spec import Choice
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.data.corpus import StoredCorpus
from drkit.data.store import TokenStore
from drkit.errors import DrkitError
from drkit.miners.chain import build_chain, read_negatives, write_negatives
from drkit.search import AnyEncoder, Retriever, Vectors, encode_corpus
from drkit.search.encode import stored_texts
from drkit.search.index import exact_index
from drkit.train.batches import PartBatches
from drkit.train.probes import evaluating
from drkit.train.resuming import CALLBACKS

# Negatives as corpus indices, one array per query.
Negatives = Sequence["NDArray[np.int64]"]


@frozen(eq=False)
class ChainMiner:
    """A chain of miners that searches with the current weights of a model.

    encoder: the model in training, with its tokenizer, pooling and lengths. passages: the tokens of the corpus, in its
    order. context: the context that the chain is built with, except for the retriever. scratch: a folder for temporary
    vectors. All processes encode their shards; only the first one mines.
    """

    encoder: AnyEncoder
    passages: TokenStore
    corpus: StoredCorpus
    requests: Sequence[MiningRequest]
    choices: Sequence[Choice]
    registry: Registry
    scratch: Path
    context: BuildContext = field(factory=BuildContext)

    def models(self) -> dict[str, str]:
        """Return the hash of the current model."""
        return {"retriever": digest(self.encoder.identity())}

    def mine(self) -> Iterable[Mined]:
        """Mine negatives for every request with the current model."""
        vectors = self.scratch / f"vectors-{self.models()['retriever'][:16]}"
        store = None if self.encoder.card.passages_per_document else self.passages
        encode_corpus(
            self.encoder, stored_texts(self.corpus, store, self.encoder), vectors, shard=Shard.from_environment()
        )
        processes.barrier()
        if processes.rank():
            return
        index = exact_index(Vectors.open(vectors))
        chain = build_chain(self.choices, self.registry, evolve(self.context, retriever=Retriever(self.encoder, index)))
        chain.index(self.corpus)
        yield from chain.mine(self.requests, chain.depth)
        for old in self.scratch.glob("vectors-*"):  # also those that a killed attempt left
            remove_folder(old)


class AtEpochs(TrainerCallback):  # type: ignore[misc]
    """Makes files with the model in training before the first step of every `every`-th epoch, and keeps them.

    folder: of the files, which are also in every checkpoint: what is damaged cannot be made again in the middle of an
    epoch. per_epoch: batches per epoch. A subclass has `what`, which file names begin with, `ending`, and `make`.
    """

    what: str
    ending: str

    def __init__(self, folder: Path, *, every: int, per_epoch: int) -> None:
        self.folder, self._every, self._per_epoch = folder, every, per_epoch

    def make(self, epoch: int) -> Mapping[str, Any]:
        """Write the files from an epoch on with the current model, in all processes; returns facts for a record."""
        raise NotImplementedError

    def is_given(self, epoch: int) -> bool:  # noqa: ARG002
        """Return whether nothing has to be made for an epoch."""
        return False

    def on_train_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Make files if the first step, or the first step after resuming, begins an epoch."""
        if args.dataloader_num_workers:
            raise DrkitError(
                f"the {self.what} of an epoch are made with the model in training, but data loader workers prepare "
                f"batches before that: set dataloader_num_workers to 0"
            )
        if state.is_world_process_zero:
            _link(Path(args.output_dir, CALLBACKS), self.folder, self.what)
        processes.barrier()  # the other processes read them there
        if state.global_step < state.max_steps:
            self.make_before(state.global_step, args.gradient_accumulation_steps)

    def on_step_end(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Make files if the next step begins an epoch."""
        if state.global_step < state.max_steps:
            self.make_before(state.global_step, args.gradient_accumulation_steps)

    def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Add the files to the checkpoint."""
        if state.is_world_process_zero:
            _link(self.folder, Path(args.output_dir, CALLBACKS), self.what)

    def metrics(self) -> dict[str, Any]:
        """Return the facts of each record, by epoch."""
        paths = sorted(self.folder.glob(f"{self.what}-*.json"), key=lambda path: int(path.stem.partition("-")[2]))
        return {path.stem.partition("-")[2]: _read_record(path)["counts"] for path in paths}

    def epochs_at(self, step: int, accumulation: int) -> list[int]:
        """Return the epochs to make files for before a step (counted from 0) of `accumulation` batches."""
        batches = range(step * accumulation, (step + 1) * accumulation)
        begun = [batch // self._per_epoch for batch in batches if batch % self._per_epoch == 0]
        return [epoch for epoch in begun if epoch % self._every == 0]

    def is_made(self, epoch: int) -> bool:
        """Return whether there is an undamaged file of an epoch whose files are made."""
        record = _read_record(self.folder / f"{self.what}-{epoch}.json")
        files = {self.file(epoch): FileEntry(**record["file"])} if record else {}
        return bool(files) and not any(find_damages(files, self.folder, verify=True))

    def file(self, epoch: int) -> str:
        """Return the name of the file of an epoch."""
        return f"{self.what}-{epoch}{self.ending}"

    def make_before(self, step: int, accumulation: int) -> None:
        """Make files for the epochs whose first batch belongs to this step."""
        for epoch in self.epochs_at(step, accumulation):
            if not self.is_given(epoch) and not processes.broadcast(self.is_made(epoch)):
                devices = range(torch.cuda.device_count())
                with torch.random.fork_rng(devices=devices):  # dropout continues as if nothing had been made
                    facts = self.make(epoch)
                if not processes.rank():
                    record = {"counts": facts, "file": asdict(FileEntry.of(self.folder / self.file(epoch)))}
                    write_text(self.folder / f"{self.what}-{epoch}.json", json.dumps(record))
                processes.barrier()


class Refresher(AtEpochs):
    """Mines negatives before the first step of every `every`-th epoch, and keeps them in `folder`.

    It is both the `refreshed` of a `PairCollator` and a callback of the training. miner: mines with the current model;
    all processes call it, and the first streams the result. initial: negatives for the epochs before the second
    mining; None: epoch 0 is mined too. query_ids: the queries in the order of the negatives. per_epoch: batches per
    epoch.
    """

    what, ending = "negatives", ".arrow"

    def __init__(
        self,
        miner: ChainMiner,
        corpus: StoredCorpus,
        *,
        folder: Path,
        query_ids: Sequence[str],
        initial: Negatives | None,
        every: int,
        per_epoch: int,
    ) -> None:
        super().__init__(folder, every=every, per_epoch=per_epoch)
        self._miner, self._corpus = miner, corpus
        self._query_ids, self._initial = query_ids, initial
        self._loaded: tuple[int, Negatives] | None = None

    def __call__(self, epoch: int) -> Negatives:
        """Return the negatives of an epoch, one array per query. Raises DrkitError if they are not mined yet."""
        mined = epoch // self._every * self._every
        if not mined and self._initial is not None:
            return self._initial
        if self._loaded is None or self._loaded[0] != mined:
            if not self.is_made(mined):
                raise _not_made(self, mined)
            found = read_negatives(self.folder, self.file(mined))
            self._loaded = mined, [found[query_id] for query_id in self._query_ids]
        return self._loaded[1]

    def is_given(self, epoch: int) -> bool:
        """Return whether the negatives of an epoch were mined before the training."""
        return not epoch and self._initial is not None

    def make(self, epoch: int) -> dict[str, Any]:
        """Mine the negatives of an epoch; returns counts."""
        mined = self._miner.mine()
        if processes.rank():
            deque(mined, maxlen=0)
            return {}
        counts = write_negatives(mined, self._corpus, self.folder, self.file(epoch))
        return {**counts, "models": self._miner.models()}


class BatchRefresher(AtEpochs):
    """Composes batches of the queries' vectors by the model in training, every few epochs, and keeps them in `folder`.

    It is both the source of a `Schedule` and a callback of the training. batches: of the part, whose rows have no
    vectors yet. module: in training; encoder: of queries, with its weights. texts: of the queries, in the order of the
    rows. size, per_epoch: of the schedule. The first process encodes and composes, so that the batches do not depend on
    the number of processes; a file has the batches of all epochs until the next encoding.
    """

    what, ending = "batches", ".npy"

    def __init__(
        self,
        batches: PartBatches,
        module: nn.Module,
        encoder: AnyEncoder,
        *,
        folder: Path,
        texts: Sequence[str],
        every: int,
        size: int,
        per_epoch: int,
    ) -> None:
        super().__init__(folder, every=every, per_epoch=per_epoch)
        self._batches, self._module, self._encoder, self._texts, self._size = batches, module, encoder, texts, size
        self._loaded: tuple[int, list[list[NDArray[np.int64]]]] | None = None

    def __call__(self, epoch: int, *, size: int, count: int) -> list[NDArray[np.int64]]:
        """Return the batches of an epoch. Raises DrkitError if they are not made yet, or for other numbers."""
        first = epoch // self._every * self._every
        if self._loaded is None or self._loaded[0] != first:
            if not self.is_made(first):
                raise _not_made(self, first)
            self._loaded = first, _unpacked(np.load(self.folder / self.file(first)), count)
        batches = self._loaded[1][epoch - first]
        if max(map(len, batches)) > size:
            raise DrkitError(f"{self.folder / self.file(first)} has other batches; delete {self.folder.parent}")
        return batches

    def make(self, epoch: int) -> dict[str, Any]:
        """Encode all queries, and write the batches of the epochs until the next encoding; returns counts."""
        if processes.rank():
            return {}
        with evaluating(self._module):
            vectors = self._encoder.encode_queries(self._texts)
        composed = evolve(self._batches, rows=evolve(self._batches.rows, query_vectors=vectors))
        found = [composed(later, size=self._size, count=self._per_epoch) for later in range(epoch, epoch + self._every)]
        make_folder(self.folder)
        with replacing(self.folder / self.file(epoch)) as path, path.open("wb") as file:
            np.save(file, _packed(found))
        sizes = [len(batch) for batches in found for batch in batches]
        return {"batches": len(sizes), "queries_per_batch": round(float(np.mean(sizes)), 1)}


def _packed(epochs: Sequence[Sequence[NDArray[np.int64]]]) -> NDArray[np.int64]:
    """Return the batches of epochs as one array i64[..]: the number of batches, their sizes, then all rows."""
    batches = [batch for epoch in epochs for batch in epoch]
    return np.concatenate([[len(batches)], [len(batch) for batch in batches], *batches]).astype(np.int64)


def _unpacked(packed: NDArray[np.int64], per_epoch: int) -> list[list[NDArray[np.int64]]]:
    """Return the batches of each epoch, from what `_packed` returns."""
    count = int(packed[0])
    batches = np.split(packed[count + 1 :], np.cumsum(packed[1 : count + 1])[:-1])
    return [batches[start : start + per_epoch] for start in range(0, count, per_epoch)]


def _not_made(callback: AtEpochs, epoch: int) -> DrkitError:
    folder = callback.folder
    return DrkitError(
        f"the {callback.what} of epoch {epoch} are not in {folder}. Either batches are prepared ahead of the steps "
        f"(set dataloader_num_workers to 0), or a file was deleted (delete {folder.parent} and run the stage again)."
    )


def _link(source: Path, target: Path, what: str) -> None:
    for path in source.glob(f"{what}-*"):
        make_folder(target)
        (target / path.name).unlink(missing_ok=True)
        link_or_copy(path, target / path.name)


def _read_record(path: Path) -> dict[str, Any]:
    """Return the counts of a mining and the hash of its file; empty if the record is missing or damaged."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return record
