"""Is an encoder better after ten minutes? `drkit improve` and sentence-transformers' own trainer, on four tasks.

    taskset -c 0,1 python benchmarks/improve.py TASK --collections DIR --models DIR --out FILE [--rival] [--minutes 10]

TASK: cranfield (225 labelled queries), cacm (52), tldr (200 of its training queries) or debian-en (1,000 of its
training queries, and 15,000 of its passages with theirs among them). DIR of collections: folders in the BEIR layout
with these names; DIR of models: with the folder all-MiniLM-L6-v2 (--encoder names another). Makes the inputs, runs the
command as anyone would, and writes per-query nDCG@10, and every verdict with its p (paired t-tests, Holm over all of
the file).

--rival: the same with sentence-transformers, as its documentation trains on mined negatives: `mine_hard_negatives`,
then MultipleNegativesRankingLoss. It gets as many minutes and the same precision; learning rate and epochs are the
best of four trainings on the first fold, as many as a third of the minutes allows, on held-out labels.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from drkit.core.types import Judgement, Passage, Query
from drkit.data.folds import assign_folds
from drkit.data.pairs import text_id
from drkit.evaluate import evaluate, paired_t_test
from drkit.evaluate.names import AS_IT_IS, BM25_NAME
from drkit.evaluate.significance import holm
from drkit.search.bm25 import Bm25Retriever

MEASURE = "nDCG@10"
ARTICLES, LABELS = "articles.jsonl", "questions.csv"
# Labelled queries, passages (None: all), and the split of the labels.
TASKS: Mapping[str, tuple[int | None, int | None, str]] = {
    "cranfield": (None, None, "test"),
    "cacm": (None, None, "test"),
    "tldr": (200, None, "train"),
    "debian-en": (1000, 15_000, "train"),
}
RATES, EPOCHS = (2e-5, 5e-5), (1, 4)
FOLDS, BATCH, DEPTH, WEIGHT = 2, 32, 1000, 0.5


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def make_inputs(collection: Path, task: str, folder: Path, seed: int = 0) -> None:
    """Write the task's articles and its labels (query, article id), as people have them."""
    labels, passages, split = TASKS[task]
    with (collection / "qrels" / f"{split}.tsv").open(encoding="utf-8") as file:
        judged = [row for row in csv.DictReader(file, delimiter="\t") if int(float(row["score"])) > 0]
    draw, names = random.Random(seed), sorted({row["query-id"] for row in judged})
    chosen = {*(draw.sample(names, labels) if labels else names)}
    corpus = read_rows(collection / "corpus.jsonl")
    known = {row["_id"] for row in corpus}
    judged = [row for row in judged if row["query-id"] in chosen and row["corpus-id"] in known]  # cacm lacks a text
    needed = {row["corpus-id"] for row in judged}
    if passages:
        others = sorted(known - needed)
        kept = needed | {*draw.sample(others, passages - len(needed))}
        corpus = [row for row in corpus if row["_id"] in kept]
    texts = {row["_id"]: " ".join(row["text"].split()) for row in read_rows(collection / "queries.jsonl")}
    folder.mkdir(parents=True)
    articles = ({"id": row["_id"], "title": row.get("title", ""), "text": row["text"]} for row in corpus)
    (folder / ARTICLES).write_text("".join(json.dumps(row) + "\n" for row in articles), encoding="utf-8")
    with (folder / LABELS).open("w", newline="", encoding="utf-8") as file:
        rows = ((texts[row["query-id"]], row["corpus-id"]) for row in judged)
        csv.writer(file).writerows([("query", "article id"), *rows])


def run_drkit(encoder: Path, inputs: Path, run: Path, minutes: float) -> dict[str, Any]:
    """Run `drkit improve` and return per-query values of every system, its verdict, and the seconds it took."""
    given = ["--texts", str(inputs / ARTICLES), "--labels", str(inputs / LABELS), "--minutes", str(minutes)]
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "drkit_cli.main", "improve", str(encoder), *given, "--run-dir", str(run)], check=True
    )
    seconds = time.perf_counter() - started
    scores = json.loads((run / "evaluation" / "scores.json").read_text(encoding="utf-8"))
    gains = json.loads((run / "choice" / "choice.json").read_text(encoding="utf-8"))
    values = {system: by_measure[MEASURE] for system, by_measure in scores.items()}
    return {"scores": values, "recommended": gains["recommended"], "sentence": gains["sentence"], "seconds": seconds}


def run_rival(encoder: Path, inputs: Path, minutes: float, ranked: Collection[str]) -> dict[str, Any]:
    """Tune with sentence-transformers and return per-query values of `rival` and `rival+bm25`, and the seconds.

    ranked: ids of the queries to rank, by a retriever that has not learned from them: all of them in two folds, or
    those that are held out.
    """
    started = time.perf_counter()
    corpus = {row["id"]: f"{row['title']} {row['text']}".strip() for row in read_rows(inputs / ARTICLES)}
    queries, positives = dict[str, str](), dict[str, list[str]]()
    with (inputs / LABELS).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            query = text_id(row["query"])
            queries[query] = row["query"]
            positives.setdefault(query, []).append(row["article id"])
    asked = [*queries]
    assert {*ranked} <= queries.keys()
    folds = assign_folds([Query(query, queries[query]) for query in asked], FOLDS)
    if len(ranked) < len(asked):
        folds = {query: 0 if query in ranked else -1 for query in asked}
    texts = Texts(encoder, corpus, queries, positives)
    learned = [query for query in asked if folds[query] != 0]
    held = learned[::10]
    tried = [query for query in learned if query not in {*held}]
    chosen, best = (RATES[0], EPOCHS[0]), -1.0
    for rate in RATES:
        for epochs in EPOCHS:
            if time.perf_counter() - started > 60 * minutes / 3:
                continue
            # The held-out queries are ranked among the passages that any of them is judged for, and 500 others.
            value = texts.quick_value(texts.train(tried, rate, epochs), held)
            if value > best:
                best, chosen = value, (rate, epochs)
    rankings: dict[str, list[tuple[str, float]]] = {}
    for fold in sorted({*folds.values()} - {-1}):
        model = texts.train([query for query in asked if folds[query] != fold], *chosen)
        rankings |= texts.rank(model, [query for query in asked if folds[query] == fold])
    return {
        "scores": texts.values(rankings, [query for query in asked if query in ranked]),
        "learning_rate": chosen[0],
        "epochs": chosen[1],
        "seconds": time.perf_counter() - started,
    }


class Texts:
    """The texts of a task, and what sentence-transformers does with them."""

    def __init__(
        self, encoder: Path, corpus: Mapping[str, str], queries: Mapping[str, str], positives: Mapping[str, list[str]]
    ) -> None:
        self._encoder, self._corpus, self._queries, self._positives = encoder, corpus, queries, positives

    def train(self, labelled: Sequence[str], rate: float, epochs: int) -> Any:
        """Return a model that was trained on mined negatives, as the documentation does it."""
        from datasets import Dataset
        from sentence_transformers import (
            SentenceTransformer,
            SentenceTransformerTrainer,
            SentenceTransformerTrainingArguments,
        )
        from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
        from sentence_transformers.sentence_transformer.training_args import BatchSamplers
        from sentence_transformers.util import mine_hard_negatives

        model = SentenceTransformer(str(self._encoder), device="cpu")
        pairs = [(self._queries[query], self._corpus[one]) for query in labelled for one in self._positives[query]]
        data = Dataset.from_dict({"query": [one for one, _ in pairs], "answer": [other for _, other in pairs]})
        mined = mine_hard_negatives(
            data,
            model,
            corpus=list(self._corpus.values()) if len(self._corpus) < 8000 else None,
            range_max=50,
            relative_margin=0.05,
            num_negatives=1,
            sampling_strategy="top",
            verbose=False,
        )
        with tempfile.TemporaryDirectory() as folder:
            arguments = SentenceTransformerTrainingArguments(
                output_dir=folder,
                num_train_epochs=epochs,
                per_device_train_batch_size=BATCH,
                learning_rate=rate,
                warmup_steps=0.1,
                bf16=True,
                use_cpu=True,
                batch_sampler=BatchSamplers.NO_DUPLICATES,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            )
            trainer = SentenceTransformerTrainer(
                model=model, args=arguments, train_dataset=mined, loss=MultipleNegativesRankingLoss(model)
            )
            trainer.train()
        return model

    def rank(
        self, model: Any, asked: Sequence[str], passages: Sequence[str] | None = None
    ) -> dict[str, list[tuple[str, float]]]:
        """Return the best passages of each query, by cosine."""
        import torch
        from sentence_transformers.util import semantic_search

        names = list(passages or self._corpus)
        with torch.autocast("cpu", torch.bfloat16):
            vectors = model.encode([self._corpus[name] for name in names], convert_to_tensor=True)
            questions = model.encode([self._queries[query] for query in asked], convert_to_tensor=True)
        found = semantic_search(questions.float(), vectors.float(), top_k=min(DEPTH, len(names)))
        return {
            query: [(names[hit["corpus_id"]], hit["score"]) for hit in hits]
            for query, hits in zip(asked, found, strict=True)
        }

    def quick_value(self, model: Any, held: Sequence[str]) -> float:
        """Return the mean value of held-out queries among few passages."""
        judged = {one for query in held for one in self._positives[query]}
        others = random.Random(0).sample(sorted({*self._corpus} - judged), min(500, len(self._corpus) - len(judged)))
        ranked = self._rows(self.rank(model, held, [*judged, *others]))
        return float(evaluate(ranked, self._judgements(held), [MEASURE]).mean(MEASURE))

    def values(self, rankings: Mapping[str, list[tuple[str, float]]], asked: Sequence[str]) -> dict[str, Any]:
        """Return the per-query values of the rankings, alone and fused with BM25 as drkit fuses."""
        from drkit.search import align, convex

        bm25 = Bm25Retriever()
        bm25.index([Passage(name, text) for name, text in self._corpus.items()])
        words = bm25.rankings(list(asked), [self._queries[query] for query in asked], DEPTH)
        fused = convex(align(words, self._rows(rankings)), WEIGHT, DEPTH)
        judgements = self._judgements(asked)
        return {
            name: dict(evaluate(run, judgements, [MEASURE]).per_query[MEASURE])
            for name, run in (("rival", self._rows(rankings)), ("rival+bm25", fused))
        }

    def _rows(self, rankings: Mapping[str, list[tuple[str, float]]]) -> list[tuple[str, list[tuple[str, float]]]]:
        return list(rankings.items())

    def _judgements(self, asked: Sequence[str]) -> list[Judgement]:
        return [Judgement(query, one, 1) for query in asked for one in self._positives[query]]


def verdicts(scores: Mapping[str, Mapping[str, float]], recommended: str) -> list[dict[str, Any]]:
    """Return each test of a file: the recommended system and the tuned vector against the others."""
    pairs = list(_pairs(scores, recommended))
    tests = [paired_t_test(scores[one], scores[other]) for one, other in pairs]
    corrected = holm([test.p for test in tests])
    return [
        {"system": one, "against": other, "difference": test.difference, "p": test.p, "holm": p}
        for (one, other), test, p in zip(pairs, tests, corrected, strict=True)
    ]


def _pairs(scores: Mapping[str, Any], recommended: str) -> Iterator[tuple[str, str]]:
    others = [one for one in (AS_IT_IS, BM25_NAME, "rival", "rival+bm25") if one in scores]
    for system in dict.fromkeys((recommended, "tuned")):
        yield from ((system, other) for other in others if system in scores and system != other)


def main() -> None:
    """Run one task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    for name in ("collections", "models", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--encoder", default="all-MiniLM-L6-v2")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rival", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        inputs, encoder = Path(scratch) / given.task, given.models / given.encoder
        make_inputs(given.collections / given.task, given.task, inputs)
        if given.out.exists():
            found = json.loads(given.out.read_text(encoding="utf-8"))
        else:
            found = run_drkit(encoder, inputs, Path(scratch) / "run", given.minutes)
            given.out.write_text(json.dumps(found), encoding="utf-8")
        if given.rival:
            rival = run_rival(encoder, inputs, given.minutes, found["scores"][AS_IT_IS].keys())
            found["rival"] = {name: value for name, value in rival.items() if name != "scores"}
            found["scores"] |= rival["scores"]
    means = {system: sum(values.values()) / len(values) for system, values in found["scores"].items()}
    tests = verdicts(found["scores"], found["recommended"])
    record = {**found, "task": given.task, "measure": MEASURE, "means": means, "tests": tests}
    given.out.write_text(json.dumps(record, indent=1), encoding="utf-8")
    print(found["sentence"], *(f"{name:16} {mean:.4f}" for name, mean in means.items()), sep="\n")
    for one in tests:
        print(f"{one['system']} - {one['against']}: {one['difference']:+.4f}, p (Holm) {one['holm']:.4g}")


if __name__ == "__main__":
    main()
