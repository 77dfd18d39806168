"""Vector distillation of texts beside sentence-transformers' trainer: tokens a second and peak memory.

    python benchmarks/distillation.py [--texts 50000] [--steps 100] [--at-a-time 16] [--student FOLDER] [--json FILE]

A student learns a teacher's vectors of texts, by 1 - cosine: the same student (by default 2 layers x 128 with random
weights), texts (passages of tldr, over and over, at most 256 tokens), vectors (random, 384 float32), batch of 64,
learning rate and schedule; without a mask, and with a projection from 128 to 384. drkit sorts a batch by length and
reads 16 texts at a time, which is the same gradient; sentence-transformers reads all 64. drkit reads mapped vectors by
`text-vector-cosine`; sentence-transformers a dataset with a column `label`, an Arrow file on disk, by
`EmbedDistillLoss`. Each measures itself in a fresh process, on one thread unless OMP_NUM_THREADS says otherwise.
Tokens are those of the texts with special ones, padding left out; the rate is of the steps alone, after the first ten.
Peak memory is the process's, with libraries, minus what it had before the data were opened.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WIDTH, BATCH, LENGTH, WARM = 384, 64, 256, 10
SYSTEMS = ("drkit", "sentence-transformers")
TEXTS = Path(__file__).parents[2] / "shared" / "collections" / "tldr" / "corpus.jsonl"


def prepare(folder: Path, texts: int, student: Path | None, corpus: Path) -> None:
    """Write the texts, their vectors and the student, as both systems read them."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from sentence_transformers import SentenceTransformer, models
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    with corpus.open(encoding="utf-8") as lines:
        found = [row["text"] for row in map(json.loads, lines) if row["text"].strip()]
    kept = [f"{found[n % len(found)]} {n}" for n in range(texts)]
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as out:
        out.writelines(f"{json.dumps({'_id': str(n), 'text': text})}\n" for n, text in enumerate(kept))
    draw = np.random.default_rng(0)
    with pq.ParquetWriter(
        folder / "vectors.parquet",
        pa.schema([("id", pa.string()), ("text", pa.string()), ("label", pa.list_(pa.float32()))]),
    ) as writer:
        for start in range(0, texts, 4096):
            some = range(start, min(start + 4096, texts))
            values = draw.normal(size=(len(some), WIDTH)).astype(np.float32)
            flat, ends = pa.array(values.ravel()), np.arange(0, values.size + 1, WIDTH, dtype=np.int32)
            column = pa.ListArray.from_arrays(pa.array(ends), flat)
            rows = {"id": [str(n) for n in some], "text": [kept[n] for n in some], "label": column}
            writer.write_table(pa.table(rows, schema=writer.schema))
    if student is None:
        from tokenizers import BertWordPieceTokenizer
        from transformers import BertTokenizerFast

        wordpiece = BertWordPieceTokenizer()
        wordpiece.train_from_iterator(kept[:20_000], vocab_size=30_000)
        tokenizer = BertTokenizerFast(tokenizer_object=wordpiece._tokenizer)
        sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
        no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        model = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **sizes, **no_dropout))
        model.save_pretrained(folder / "masked-lm")
        tokenizer.save_pretrained(folder / "masked-lm")
        student = folder / "masked-lm"
    tokenizer = AutoTokenizer.from_pretrained(student)
    word = models.Transformer(str(student), max_seq_length=LENGTH)
    SentenceTransformer(modules=[word, models.Pooling(word.get_word_embedding_dimension(), "mean")]).save(
        str(folder / "student")
    )
    (folder / "start").symlink_to(Path(student).resolve())
    lengths = [min(len(ids), LENGTH) for ids in tokenizer(kept)["input_ids"]]
    (folder / "tokens.json").write_text(json.dumps(sum(lengths) / len(lengths)))


def memory() -> float:
    """The largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def clock() -> tuple[type, list[float]]:
    """A callback that notes the time of each step, and its notes."""
    from transformers import TrainerCallback

    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_arguments, **_more):
            times.append(time.perf_counter())

    return Clock, times


def with_drkit(folder: Path, steps: int, at_a_time: int) -> dict[str, float]:
    """Distil with drkit, in a run as from the command line."""
    from drkit.runs.making import pretrain
    from drkit.train import trainer
    from drkit_cli.main import main

    before, (clock_class, times) = memory(), clock()
    train = trainer.train_in

    def timed(*given, callbacks=(), **more):
        return train(*given, callbacks=[*callbacks, clock_class()], **more)

    trainer.train_in = pretrain.train_in = timed
    loss = f"{{use='text-vector-cosine', path='{folder / 'vectors.parquet'}', by='id'}}"
    settings = {
        "pretrain.encoder.masker.ratio": 0,
        "pretrain.decoders": "{}",
        "pretrain.encoder.losses": f"{{distil={loss}}}",
        "pretrain.max_steps": steps,
        "pretrain.batch_size": BATCH,
        "pretrain.per_device_train_batch_size": at_a_time,
        "pretrain.learning_rate": 1e-4,
        "pretrain.save_steps": steps,
        "pretrain.logging_steps": steps,
        "pretrain.probe.every": 0,
        "encoder.passage_length": LENGTH,
        "encoder.pooling": "mean",
        "finetune": "none",
        "evaluation.bm25": "false",
        "evaluation.start": "false",
    }
    arguments = ["compose", "--masker", "uniform", "--collection", f"jsonl:{folder / 'corpus.jsonl'}"]
    arguments += ["--encoder", str(folder / "start"), "--run-dir", str(folder / "run"), "--no-trial"]
    arguments += [f"--set={name}={value}" for name, value in settings.items()]
    sys.argv = ["drkit", *arguments]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    return {"seconds": times[-1] - times[WARM - 1], "steps": len(times) - WARM, "memory": memory() - before}


def with_sentence_transformers(folder: Path, steps: int, _at_a_time: int) -> dict[str, float]:
    """Distil with sentence-transformers' trainer."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import EmbedDistillLoss

    before, (clock_class, times) = memory(), clock()
    data = Dataset.from_parquet(str(folder / "vectors.parquet"), cache_dir=str(folder / "cache"))
    student = SentenceTransformer(str(folder / "student"), device="cpu")
    trainer = SentenceTransformerTrainer(
        model=student,
        args=SentenceTransformerTrainingArguments(
            output_dir=str(folder / "theirs"),
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            learning_rate=1e-4,
            save_strategy="no",
            logging_steps=steps,
            report_to="none",
            use_cpu=True,
        ),
        train_dataset=data.select_columns(["text", "label"]),
        loss=EmbedDistillLoss(student, "cosine", projection_dim=WIDTH),
        callbacks=[clock_class()],
    )
    trainer.train()
    return {"seconds": times[-1] - times[WARM - 1], "steps": len(times) - WARM, "memory": memory() - before}


def measured(system: str, folder: Path, steps: int, at_a_time: int) -> dict[str, float]:
    """Measure a system in a fresh process."""
    command = [sys.executable, __file__, "--one", system, "--folder", str(folder), "--steps", str(steps)]
    command += ["--at-a-time", str(at_a_time)]
    environment = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **os.environ}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    tokens = json.loads((folder / "tokens.json").read_text()) * BATCH * found["steps"]
    return {"tokens_per_second": tokens / found["seconds"], "memory_mb": found["memory"]}


def report(found: dict[str, dict[str, float]]) -> None:
    """Print a row for each system, and the ratios."""
    for system, row in found.items():
        print(f"{system:<24}{row['tokens_per_second']:>10,.0f} tokens/s{row['memory_mb']:>10,.0f} MB")
    ours, theirs = (found[system] for system in SYSTEMS)
    rate = ours["tokens_per_second"] / theirs["tokens_per_second"]
    print(f"drkit: {rate:.2f} x the rate, {ours['memory_mb'] / theirs['memory_mb']:.2f} x the memory")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=50_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--at-a-time", type=int, default=16, help="texts that drkit reads at a time")
    parser.add_argument("--student", type=Path, help="folder of a masked LM")
    parser.add_argument("--corpus", type=Path, default=TEXTS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        measure = with_drkit if given.one == SYSTEMS[0] else with_sentence_transformers
        print(json.dumps(measure(given.folder, given.steps, given.at_a_time)))
        raise SystemExit
    with tempfile.TemporaryDirectory(prefix="drkit-distillation-") as name:
        prepare(Path(name), given.texts, given.student, given.corpus)
        rows = {system: measured(system, Path(name), given.steps, given.at_a_time) for system in SYSTEMS}
    report(rows)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2))
