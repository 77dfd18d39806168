"""Mining again while a retriever is trained: an epoch's negatives are mined with the model at the start of the epoch.

The schedule alone decides before which step an epoch is mined, and mined negatives are kept beside the checkpoints and
in them, so that a resumed run reads the same negatives. Xiong et al. 2021; every k epochs as in CPDAE.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import asdict, evolve, field, frozen
from numpy.typing import NDArray
from transformers import TrainerCallback

from drkit.core import processes
from drkit.core.files import FileEntry, digest, find_damages, link_or_copy, make_folder, remove_folder, write_text
from drkit.core.processes import Shard
from drkit.core.protocols import Corpus
from drkit.core.registry import Registry
from drkit.core.spec import Choice
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.data.corpus import StoredCorpus
from drkit.data.data_set_names import data_set_of
from drkit.data.data_sets import PassageRange
from drkit.data.store import TokenStore
from drkit.errors import DrkitError
from drkit.miners.chain import build_chain, read_negatives, write_negatives
from drkit.search import AnyEncoder, Retriever, Vectors, encode_corpus
from drkit.search.data_sets import one_data_set
from drkit.search.encode import stored_texts
from drkit.search.index import exact_index
from drkit.train.resuming import CALLBACKS

# Negatives as corpus indices, one array per query.
Negatives = Sequence["NDArray[np.int64]"]


@frozen(eq=False)
class ChainMiner:
    """A chain of miners that searches with the current weights of a model.

    encoder: the model in training, with its tokenizer, pooling and lengths. passages: the tokens of the corpus, in its
    order. context: the context that the chain is built with, except for the retriever. scratch: a folder for temporary
    vectors. data_sets: the names of several, each of which is mined by itself. All processes encode their shards; only
    the first one mines.
    """

    encoder: AnyEncoder
    passages: TokenStore
    corpus: StoredCorpus
    requests: Sequence[MiningRequest]
    choices: Sequence[Choice]
    registry: Registry
    scratch: Path
    context: BuildContext = field(factory=BuildContext)
    data_sets: Sequence[str] = ()

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
        whole = Retriever(self.encoder, exact_index(Vectors.open(vectors)))
        if self.data_sets:
            for name, own in groupby(self.requests, lambda request: data_set_of(request.query_id)):
                passages = PassageRange.of(self.corpus, name, self.data_sets)
                yield from self._mined(one_data_set(whole, name, self.data_sets), passages, own)
        else:
            yield from self._mined(whole, self.corpus, self.requests)
        for old in self.scratch.glob("vectors-*"):  # also those that a killed attempt left
            remove_folder(old)

    def _mined(self, retriever: Retriever, corpus: Corpus, requests: Iterable[MiningRequest]) -> Iterator[Mined]:
        chain = build_chain(self.choices, self.registry, evolve(self.context, retriever=retriever))
        chain.index(corpus)
        yield from chain.mine(requests, chain.depth)


class Refresher(TrainerCallback):  # type: ignore[misc]
    """Mines negatives before the first step of every `every`-th epoch, and keeps them in `folder`.

    It is both the `refreshed` of a `PairCollator` and a callback of the training. miner: mines with the current model;
    all processes call it, and the first streams the result. initial: negatives for the epochs before the second
    mining; None: epoch 0 is mined too. query_ids: the queries in the order of the negatives. per_epoch: batches per
    epoch.
    """

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
        self._miner, self._corpus, self._folder = miner, corpus, folder
        self._query_ids, self._initial, self._every, self._per_epoch = query_ids, initial, every, per_epoch
        self._loaded: tuple[int, Negatives] | None = None

    def __call__(self, epoch: int) -> Negatives:
        """Return the negatives of an epoch, one array per query. Raises DrkitError if they are not mined yet."""
        mined = epoch // self._every * self._every
        if not mined and self._initial is not None:
            return self._initial
        if self._loaded is None or self._loaded[0] != mined:
            if not self._is_mined(mined):
                raise DrkitError(
                    f"the negatives of epoch {mined} are not in {self._folder}. Either batches are prepared ahead of "
                    f"the steps (set dataloader_num_workers to 0), or a file was deleted (delete "
                    f"{self._folder.parent} and run the stage again)."
                )
            found = read_negatives(self._folder, _file(mined))
            self._loaded = mined, [found[query_id] for query_id in self._query_ids]
        return self._loaded[1]

    def on_train_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Mine if the first step, or the first step after resuming, begins an epoch."""
        if args.dataloader_num_workers:
            raise DrkitError(
                "the miner refresh mines with the model in training, but data loader workers prepare batches before "
                "that. Set dataloader_num_workers to 0, or use the miner dense."
            )
        if state.is_world_process_zero:
            _link_negatives(Path(args.output_dir, CALLBACKS), self._folder)
        processes.barrier()  # the other processes read them there
        if state.global_step < state.max_steps:
            self._mine_before(state.global_step, args.gradient_accumulation_steps)

    def on_step_end(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Mine if the next step begins an epoch."""
        if state.global_step < state.max_steps:
            self._mine_before(state.global_step, args.gradient_accumulation_steps)

    def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Add the negatives to the checkpoint: damaged ones cannot be mined again in the middle of an epoch."""
        if state.is_world_process_zero:
            _link_negatives(self._folder, Path(args.output_dir, CALLBACKS))

    def metrics(self) -> dict[str, Any]:
        """Return the counts of each mining, by epoch."""
        paths = sorted(self._folder.glob("negatives-*.json"), key=lambda path: int(path.stem.partition("-")[2]))
        return {path.stem.partition("-")[2]: _read_record(path)["counts"] for path in paths}

    def _mine_before(self, step: int, accumulation: int) -> None:
        """Mine the epochs whose first batch belongs to this step."""
        for epoch in self.epochs_at(step, accumulation):
            has_initial = not epoch and self._initial is not None
            if not has_initial and not processes.broadcast(self._is_mined(epoch)):
                self._mine(epoch)

    def epochs_at(self, step: int, accumulation: int) -> list[int]:
        """Return the epochs to mine before a step (counted from 0) of `accumulation` batches."""
        batches = range(step * accumulation, (step + 1) * accumulation)
        begun = [batch // self._per_epoch for batch in batches if batch % self._per_epoch == 0]
        return [epoch for epoch in begun if epoch % self._every == 0]

    def _mine(self, epoch: int) -> None:
        devices = range(torch.cuda.device_count())
        with torch.random.fork_rng(devices=devices):  # dropout continues as if there had been no mining
            mined = self._miner.mine()
            if processes.rank():
                deque(mined, maxlen=0)
            else:
                counts = write_negatives(mined, self._corpus, self._folder, _file(epoch))
                counts["models"] = self._miner.models()
                record = {"counts": counts, "file": asdict(FileEntry.of(self._folder / _file(epoch)))}
                write_text(self._folder / f"negatives-{epoch}.json", json.dumps(record))
        processes.barrier()

    def _is_mined(self, epoch: int) -> bool:
        record = _read_record(self._folder / f"negatives-{epoch}.json")
        files = {_file(epoch): FileEntry(**record["file"])} if record else {}
        return bool(files) and not any(find_damages(files, self._folder, verify=True))


def _link_negatives(source: Path, target: Path) -> None:
    for path in source.glob("negatives-*"):
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


def _file(epoch: int) -> str:
    return f"negatives-{epoch}.arrow"
