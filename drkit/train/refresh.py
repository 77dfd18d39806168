"""Mining again while a retriever is trained: the negatives of an epoch are found by the model as it is when it begins.

The step after which an epoch is mined is decided by the schedule alone, and what is mined is kept beside the
checkpoints: a run that is cut off and goes on reads the same negatives. Xiong et al. 2021; every k epochs as in CPDAE.
"""

from __future__ import annotations

import json
import shutil
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from attrs import evolve, field, frozen
from transformers import TrainerCallback

from drkit.core import processes
from drkit.core.files import write_text
from drkit.core.processes import Shard
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.data.corpus import StoredCorpus
from drkit.data.store import TokenStore
from drkit.errors import DrkitError
from drkit.miners.chain import build_chain
from drkit.search import AnyEncoder, FlatIndex, Retriever, Vectors, encode_corpus
from drkit.train.negatives import read_negatives, write_negatives

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from drkit.core.registry import Registry
    from drkit.recipe.schema import Choice

Lists = Sequence["NDArray[np.int64]"]


@frozen(eq=False)
class ChainMiner:
    """A chain of miners that searches with a model as it is at the moment.

    encoder: the model in training, with its tokenizer, pooling and lengths. passages: the tokens of the corpus, in its
    order. context: what the chain is built with, beside the retriever. scratch: where vectors go for the time being.
    All processes encode, each its shards; what `mine` gives is the first one's business.
    """

    encoder: AnyEncoder
    passages: TokenStore
    corpus: StoredCorpus
    requests: Sequence[MiningRequest]
    choices: Sequence[Choice]
    registry: Registry
    scratch: Path
    context: BuildContext = field(factory=BuildContext)

    def weights(self) -> dict[str, str]:
        """The hash of the model as it is."""
        return {"retriever": self.encoder.identity()["weights"]}

    def mine(self) -> Iterable[Mined]:
        """The negatives of every request, by the model as it is."""
        vectors = self.scratch / f"vectors-{self.weights()['retriever'][:16]}"
        rows = ((doc_id, self.passages.tokens(place)) for place, doc_id in enumerate(self.corpus.doc_ids))
        encode_corpus(self.encoder, rows, vectors, shard=Shard.from_environment())
        processes.barrier()
        if processes.rank():
            return
        index = FlatIndex.over(Vectors.open(vectors))
        chain = build_chain(self.choices, self.registry, evolve(self.context, retriever=Retriever(self.encoder, index)))
        chain.index(self.corpus)
        yield from chain.mine(self.requests, chain.depth)
        for old in self.scratch.glob("vectors-*"):  # also what a killed attempt left
            shutil.rmtree(old)


class CurrentMiner(Protocol):
    """What mines with the model in training."""

    def mine(self) -> Iterable[Mined]:
        """Negatives of every query, by the model as it is."""

    def weights(self) -> dict[str, str]:
        """Hashes of what finds them."""


class Refresher(TrainerCallback):  # type: ignore[misc]
    """Negatives by epoch; mined before the first step of every `every`-th epoch, and kept in `folder`.

    miner: finds negatives by the model as it is, all processes at once, streamed by the first. first: negatives, a
    list a query, for the epochs before the second mining; None: epoch 0 is mined too. query_ids: the queries in the
    order of the lists. per_epoch: batches of an epoch. A `PairCollator` takes it as `refreshed`, the training as a
    callback.
    """

    def __init__(
        self,
        miner: CurrentMiner,
        corpus: StoredCorpus,
        *,
        folder: Path,
        query_ids: Sequence[str],
        first: Lists | None,
        every: int,
        per_epoch: int,
    ) -> None:
        self._miner, self._corpus, self._folder = miner, corpus, folder
        self._query_ids, self._first, self._every, self._per_epoch = query_ids, first, every, per_epoch
        self._held: tuple[int, Lists] | None = None

    def __call__(self, epoch: int) -> Lists:
        """The negatives of an epoch, a list a query. Raises DrkitError where they are not mined yet."""
        mined = epoch // self._every * self._every
        if not mined and self._first is not None:
            return self._first
        if self._held is None or self._held[0] != mined:
            if not self._stands(mined):
                raise DrkitError(
                    f"the negatives of epoch {mined} are not in {self._folder}: batches are made ahead of the steps "
                    f"(set dataloader_num_workers to 0), or a file is gone (run the stage again from its start)"
                )
            found = read_negatives(self._folder, _file(mined))
            self._held = mined, [found[query_id] for query_id in self._query_ids]
        return self._held[1]

    def on_train_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Mine where the first step, or the first after going on, begins an epoch."""
        if args.dataloader_num_workers:
            raise DrkitError(
                "negatives are mined by the model in training, and workers would make batches before that: "
                "set dataloader_num_workers to 0, or take the miner dense"
            )
        self._before(state.global_step, args.gradient_accumulation_steps)

    def on_step_end(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Mine where the next step begins an epoch."""
        if state.global_step < state.max_steps:
            self._before(state.global_step, args.gradient_accumulation_steps)

    def metrics(self) -> dict[str, Any]:
        """What each mining found and dropped, by epoch."""
        paths = sorted(self._folder.glob("negatives-*.json"), key=lambda path: int(path.stem.partition("-")[2]))
        return {path.stem.partition("-")[2]: json.loads(path.read_text(encoding="utf-8")) for path in paths}

    def _before(self, step: int, accumulated: int) -> None:
        """Mine for the epochs whose first batch belongs to this step."""
        for epoch in self.epochs_at(step, accumulated):
            given = not epoch and self._first is not None
            if not given and not processes.broadcast(self._stands(epoch)):
                self._make(epoch)

    def epochs_at(self, step: int, accumulated: int) -> list[int]:
        """The epochs to be mined before a step, counted from 0, of so many batches."""
        batches = range(step * accumulated, (step + 1) * accumulated)
        begun = [batch // self._per_epoch for batch in batches if batch % self._per_epoch == 0]
        return [epoch for epoch in begun if epoch % self._every == 0]

    def _make(self, epoch: int) -> None:
        devices = range(torch.cuda.device_count())
        with torch.random.fork_rng(devices=devices):  # dropout goes on as if nothing had been mined
            mined = self._miner.mine()
            if processes.rank():
                deque(mined, maxlen=0)
            else:
                figures = write_negatives(mined, self._corpus, self._folder, _file(epoch))
                figures["weights"] = self._miner.weights()
                write_text(self._folder / f"negatives-{epoch}.json", json.dumps(figures))
        processes.barrier()

    def _stands(self, epoch: int) -> bool:
        return all((self._folder / f"negatives-{epoch}.{suffix}").is_file() for suffix in ("arrow", "json"))


def _file(epoch: int) -> str:
    return f"negatives-{epoch}.arrow"
