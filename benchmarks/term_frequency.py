"""What a token that occurs n times in a text counts in a bag of word vectors: n, as in a mean, or less, as in BM25.

    python benchmarks/term_frequency.py RUN [--batch 2048 --learning-rate 1e-2 --epochs 4] [--seed 1]

RUN: a finished run of the pipeline `words`, whose initial word vectors, token weights, tokens and crops are used.
Each row trains the same bag: crops of passages, then labelled queries, InfoNCE with in-batch negatives, cosine,
temperature 0.05; no pre-training. RR@10 / R@100 of the dev and test queries.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from drkit.data.corpus import StoredCollection, collection_of, open_collection
from drkit.data.store import TokenStore
from drkit.encoders.token_weights import read_token_weights
from drkit.train.checkpoints import load_tokenizer

TEMPERATURE, CROP_EPOCHS = 0.05, 1.3
COUNTS: dict[str, Callable[[Any], Any]] = {
    "n": lambda n: n,
    "sqrt(n)": np.sqrt,
    "1 + log(n)": lambda n: 1 + np.log(n),
    "2.2 n / (n + 1.2)": lambda n: 2.2 * n / (n + 1.2),
    "1": np.ones_like,
}
Bag = tuple[Any, Any]  # the token ids i64[n] of a text, each once, and what each counts, f32[n]


class Bags(nn.Module):
    """Vectors of length 1: sums of word vectors times token weights times counts."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        weights = read_token_weights(folder)
        assert weights is not None, f"{folder} has no token weights; is RUN a run of the pipeline words?"
        tensors = load_file(folder / "model.safetensors")
        table = next(value for name, value in tensors.items() if name.endswith("word_embeddings.weight"))
        self.table, self.weights = nn.Parameter(table.clone()), nn.Parameter(weights.clone())

    def forward(self, bags: Sequence[Bag]) -> Tensor:
        """Return the vectors f[B,D] of B texts."""
        ids, counts = (torch.from_numpy(np.concatenate(column)) for column in zip(*bags, strict=True))
        ends = torch.tensor([len(one) for one, _ in bags]).cumsum(0)
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), ends[:-1]])
        scale = self.weights.abs()[ids] * counts
        return F.normalize(F.embedding_bag(ids, self.table, offsets, mode="sum", per_sample_weights=scale), dim=1)

    @torch.no_grad()
    def encode(self, bags: Sequence[Bag]) -> Tensor:
        """Return the vectors f[n,D] of n texts, without gradients."""
        return torch.cat([self(bags[start : start + 2048]) for start in range(0, len(bags), 2048)])


def bag(ids: Any, count: Callable[[Any], Any]) -> Bag:
    unique, n = np.unique(np.asarray(ids, dtype=np.int64), return_counts=True)
    return unique, count(n.astype(np.float32)).astype(np.float32)


def train(
    model: Bags, queries: Sequence[Bag], owners: Any, passages: Sequence[Bag], options: Any, epochs: float
) -> None:
    """Train on pairs: each query, and the index i64[n] of its passage."""
    draw, size = np.random.default_rng(options.seed), min(options.batch, len(queries))
    steps = max(round(epochs * (len(queries) // size)), 1)
    passes = [draw.permutation(len(queries))[: len(queries) // size * size] for _ in range(int(np.ceil(epochs)) + 1)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for rows in np.concatenate(passes)[: steps * size].reshape(steps, size):
        own = torch.from_numpy(owners[rows])
        scores = model([queries[r] for r in rows]) @ model([passages[p] for p in owners[rows]]).T / TEMPERATURE
        copies = (own[None] == own[:, None]).fill_diagonal_(False)
        loss = F.cross_entropy(scores.masked_fill(copies, -torch.inf), torch.arange(size))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def measures(queries: Tensor, passages: Tensor, answers: Any) -> str:
    ranks = []
    for some, own in zip(queries.split(512), torch.from_numpy(answers).split(512), strict=True):
        scores = some @ passages.T
        ranks.append(1 + (scores > scores.gather(1, own[:, None])).sum(1))
    rank = torch.cat(ranks).float()
    return f"{(rank.reciprocal() * (rank <= 10)).mean():.3f} / {(rank <= 100).float().mean():.3f}"


def split_tokens(collection: StoredCollection, split: str, tokenizer: Any, length: int) -> tuple[list[Any], Any]:
    """Return the token ids of a split's queries, and the index of a passage of each, its first."""
    positives = collection.positive_indices(split)
    queries = [query for query in collection.queries(split) if query.query_id in positives]
    ids = tokenizer([query.text for query in queries], add_special_tokens=False, truncation=True, max_length=length)
    return ids["input_ids"], np.array([positives[query.query_id][0] for query in queries])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    run, collection = options.run, open_collection(options.run / "collection")
    tokenizer = load_tokenizer(str(run / "initial"))
    texts, crops = TokenStore.open(run / "tokens"), TokenStore.open(run / "pseudo-query-tokens")
    made = collection_of({"passages": run / "collection" / "passages", "train": run / "pseudo-queries" / "train"})
    sources = made.positive_indices("train")
    owners = np.array([sources[query.query_id][0] for query in made.queries("train")])
    splits = {split: split_tokens(collection, split, tokenizer, 62) for split in ("train", "dev", "test")}
    print("| a token that occurs n times counts | dev | test |\n|---|---|---|")
    for name, count in COUNTS.items():
        torch.manual_seed(options.seed)
        model, bags = Bags(run / "initial"), partial(bag, count=count)
        passages = [bags(texts.tokens(i)) for i in range(len(texts))]
        train(model, [bags(crops.tokens(i)) for i in range(len(crops))], owners, passages, options, CROP_EPOCHS)
        queries = {split: [bags(ids) for ids in own] for split, (own, _) in splits.items()}
        train(model, queries["train"], splits["train"][1], passages, options, options.epochs)
        found = model.encode(passages)
        cells = [measures(model.encode(queries[split]), found, splits[split][1]) for split in ("dev", "test")]
        print(f"| {name} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
