"""The inputs of speed.py's comparisons: each writes, once and for all sides, what they read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attrs import frozen

WORDS = 5000
LENGTH, SHORT = 256, 64  # tokens of a text at most


@frozen
class Sizes:
    """How much each side does; `TINY` runs the same code in seconds."""

    layers: int = 6
    hidden: int = 384
    steps: int = 3
    pairs: int = 32
    texts: int = 600
    short_texts: int = 50_000
    passages: int = 50_000
    queries: int = 2000
    bm25_passages: int = 200_000
    bm25_queries: int = 200
    vectors: int = 100_000
    searched: int = 512
    rankings: int = 1600


TINY = Sizes(2, 24, 1, 4, 20, 200, 300, 20, 500, 10, 500, 20, 20)


def write_encoder(folder: Path, texts: list[str], *, length: int = LENGTH, spread: float = 1, **sizes: int) -> None:
    """A BERT with random weights, as all-MiniLM-L6-v2 is built, without dropout: both sides then do the same work."""
    from drkit.data import train_wordpiece
    from drkit.encoders import BertSizes, EncoderCard, MaskedLmEncoder, export_encoder
    from drkit.search import TextEncoder

    tokenizer = train_wordpiece(iter(texts), folder.parent / "tokenizer", size=30_522)
    sizes = {"heads": sizes["hidden"] // 8, "intermediate": 4 * sizes["hidden"], **sizes}
    encoder = MaskedLmEncoder.from_scratch(BertSizes(dropout=0.0, **sizes), tokenizer)
    for parameter in encoder.parameters():
        parameter.data.mul_(spread)
    card = EncoderCard(pooling="mean", query_length=length, passage_length=length)
    export_encoder(TextEncoder(card, encoder.backbone, tokenizer), folder)


def docstrings(modules: int) -> list[str]:
    from drkit_pydocs import PydocsCollection, PydocsConfig

    return [passage.content for passage in PydocsCollection(PydocsConfig(limit=modules)).passages()]


def some(texts: list[Any], count: int) -> list[Any]:
    """Texts from all over a list, which has enough of them."""
    return [texts[number * len(texts) // count] for number in range(count)]


def zipf_texts(count: int, lengths: tuple[int, int], seed: int) -> list[str]:
    """Texts of words whose frequencies fall off as Zipf's do. No vowels: no stop words, nothing that a stemmer cuts."""
    import numpy as np

    rng, letters = np.random.default_rng(seed), str.maketrans("0123456789", "bcdfghjkmn")
    words = np.array([f"{number:05}".translate(letters) for number in range(WORDS)])
    share = 1 / (np.arange(WORDS) + 10)
    drawn = rng.choice(words, (count, lengths[1]), p=share / share.sum())
    return [
        " ".join(row[:length]) for row, length in zip(drawn, rng.integers(*lengths, count, endpoint=True), strict=True)
    ]


def write_json(file: Path, found: Any) -> None:
    file.write_text(json.dumps(found))


def read_json(file: Path) -> Any:
    return json.loads(file.read_text())


def prepare_nothing(_folder: Path, _sizes: Sizes) -> None:
    """Nothing to write."""


def prepare_pairs(folder: Path, sizes: Sizes) -> None:
    """A docstring's first sentence and the rest of it, and the encoder."""
    found = {}
    for content in docstrings(200):
        query, _, text = " ".join(content.split()).partition(". ")
        if 15 < len(query) < 200 and len(text) > 60:
            found[query] = text
    unique = list({text: query for query, text in found.items()}.items())
    pairs = some(unique, (sizes.steps + 1) * 2 * sizes.pairs)
    write_json(folder / "pairs.json", [(query, text) for text, query in pairs])
    write_encoder(
        folder / "encoder", [text for pair in pairs for text in pair], hidden=sizes.hidden, layers=sizes.layers
    )


def prepare_data_sets(folder: Path, sizes: Sizes) -> None:
    """Pairs of three data sets: docstrings, texts of a few words, and long ones; and the encoder."""
    prepare_pairs(folder, sizes)
    docs = read_json(folder / "pairs.json")
    third = len(docs) // 3
    made = [zipf_texts(2 * third, lengths, seed) for seed, lengths in enumerate(((6, 14), (60, 160)))]
    sets = {"docs": docs[:third]}
    for name, texts in zip(("short", "long"), made, strict=True):
        sets[name] = [*zip(texts[:third], texts[third:], strict=True)]
    write_json(folder / "pairs.json", [pair for pairs in sets.values() for pair in pairs])
    write_json(folder / "ids.json", [f"{name}/{row}" for name, pairs in sets.items() for row in range(len(pairs))])


def prepare_texts(folder: Path, sizes: Sizes) -> None:
    """Docstrings, whose lengths spread as lengths do, and the encoder."""
    texts = some(docstrings(1000), sizes.texts)
    write_json(folder / "texts.json", texts)
    write_encoder(folder / "encoder", texts, hidden=sizes.hidden, layers=sizes.layers)


def prepare_openvino(folder: Path, sizes: Sizes) -> None:
    """Write the same with an encoder for the backend openvino-int8."""
    from drkit.commands import NamedCollection, export_checkpoint

    prepare_texts(folder, sizes)
    (folder / "encoder").rename(folder / "torch")
    calibrate = NamedCollection("pydocs")
    export_checkpoint(folder / "torch", folder / "encoder", backends=["openvino-int8"], calibrate=calibrate)


def prepare_short_texts(folder: Path, sizes: Sizes) -> None:
    """Runs of six words of docstrings, and a static encoder."""
    words = " ".join(docstrings(1000)).split()
    texts = [" ".join(words[start : start + 6]) for start in some(range(len(words) - 6), sizes.short_texts)]
    write_json(folder / "texts.json", texts)
    write_encoder(folder / "encoder", texts[:20_000], hidden=256, layers=0)


def prepare_mining(folder: Path, sizes: Sizes) -> None:
    """Passages that begin with their number, queries of six of their words, and an encoder that takes little time."""
    passages = [f"{number} {text}" for number, text in enumerate(zipf_texts(sizes.passages, (15, 40), 0))]
    queries = [" ".join(text.split()[1:12:2]) + f" {number}" for number, text in enumerate(passages[: sizes.queries])]
    write_json(folder / "texts.json", {"passages": passages, "queries": queries})
    write_encoder(folder / "encoder", passages[:5000], length=SHORT, spread=4, hidden=64, layers=2)


def prepare_bm25(folder: Path, sizes: Sizes) -> None:
    from drkit.search import Bm25Retriever

    texts = zipf_texts(sizes.bm25_passages, (30, 30), 0)
    Bm25Retriever().index((str(number), text) for number, text in enumerate(texts)).save(folder / "bm25")
    write_json(folder / "queries.json", zipf_texts(sizes.bm25_queries, (4, 4), 1))


def prepare_vectors(folder: Path, sizes: Sizes) -> None:
    import numpy as np
    from search import FLAT, build, clustered

    np.save(folder / "vectors.npy", clustered(sizes.vectors, 384, 0))
    np.save(folder / "queries.npy", clustered(sizes.searched, 384, 1))
    for name in (FLAT, "faiss Flat"):
        build(name, folder / "vectors.npy", folder / name)


def prepare_run(folder: Path, sizes: Sizes) -> None:
    """A TREC run of 1000 documents for each query, and its judgements."""
    import numpy as np

    from drkit.core.types import Judgement
    from drkit.data.qrels import write_qrels
    from drkit.search import write_run

    rng, rows, judged = np.random.default_rng(0), [], []
    for query in range(sizes.rankings):
        found = rng.choice(50_000, 1000, replace=False).tolist()
        scores = (-np.sort(-rng.normal(size=1000).astype(np.float32))).tolist()
        rows.append((f"query{query}", [(f"document{d}", score) for d, score in zip(found, scores, strict=True)]))
        judged += [Judgement(f"query{query}", f"document{found[(7 * query + step) % 1000]}", 1) for step in (0, 30)]
    write_run(folder / "run.trec", rows, "run")
    write_qrels(folder / "qrels", judged)
