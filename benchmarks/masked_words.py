"""Which words are hidden: stop-words or important ones, by masker; CDMAE's figures 2 and 3a on a collection.

    python benchmarks/masked_words.py [--collection NAME[:VALUE] ..] [--plot docs/img/masked-words.png] [--json FILE]

Prints a table a collection (pydocs where none is named) and plots the first. Vocabulary and n-gram counts are made
once, in the cache of `drkit inspect`; then it takes about half a minute a collection.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import field, frozen

from drkit.core.draws import Draws
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.data.arrays import SignalValues
from drkit.data.store import TokenStore
from drkit.inspect.masks import ViewStatistics, common_tokens, hidden_tokens, view_statistics
from drkit.inspect.source import TextSource, collection_source
from drkit.maskers import PmiConfig, PmiMasker, UniformConfig, UniformMasker
from drkit.maskers.views import find_words
from drkit.recipe.compose import ComposeRequest

TEXTS, BATCH, DRAWS, TENTHS = 4000, 128, 400, 10
SIGMAS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
PAPER = 0.40  # CDMAE: of what BERT's masking hides of its texts
TOP = 10


@frozen(eq=False)
class Texts:
    """A sample of a collection's texts, spread over it, with their importance."""

    name: str
    source: TextSource
    store: TokenStore
    importance: SignalValues

    def batches(self):
        """The sample, batch by batch."""
        places = np.unique(np.linspace(0, len(self.store) - 1, TEXTS).astype(np.int64))
        for at in range(0, len(places), BATCH):
            yield self.store.batch(places[at : at + BATCH], signals={"importance": self.importance})


@frozen(eq=False)
class Hidden:
    """What one masker hides from the decoder: counts, words by how often, tokens by tenths of importance."""

    label: str
    counts: ViewStatistics
    words: Counter = field(repr=False)
    tenths: np.ndarray = field(repr=False)


def opened(collection: str) -> Texts:
    parts = installed()
    source = collection_source(ComposeRequest(masker="pmi", collection=collection), parts).finish(parts, Silent())
    statistics = SignalValues.open(source.folder / "signal-importance" / "values")
    name = collection.rpartition("/")[2]
    return Texts(name, source, TokenStore.open(source.folder / "tokens"), statistics)


def maskers(texts: Texts) -> dict[str, Any]:
    context = texts.source.context()
    made: dict[str, Any] = {
        f"uniform, {ratio}": UniformMasker(UniformConfig(decoder_ratio=ratio), context) for ratio in (0.15, 0.5)
    }
    made["pmi, 0.15, sigma 1"] = PmiMasker(PmiConfig(decoder_ratio=0.15), context)
    for sigma in SIGMAS:
        made[f"pmi, 0.5, sigma {sigma:g}"] = PmiMasker(PmiConfig(sigma=sigma), context)
    made["pmi, 0.5, sigma 1, whole words"] = PmiMasker(PmiConfig(unit="word"), context)
    return made


def measure(texts: Texts, label: str, masker: Any, borders: np.ndarray) -> Hidden:
    tokenizer, total, words, tenths = texts.source.tokenizer, None, Counter(), np.zeros((2, TENTHS))
    for tokens in texts.batches():
        view = masker(tokens, Draws(1, 0, tokens.keys.numpy())).decoder
        found = view_statistics(view, tokens, tokenizer, mask_id=tokenizer.mask_token_id)
        total = found if total is None else total + found
        hidden = hidden_tokens(view) & tokens.maskable
        words.update(tokens.ids[hidden].tolist())
        for row, chosen in enumerate((tokens.maskable, hidden)):
            places = np.searchsorted(borders, tokens.signals["importance"][chosen].numpy(), side="right")
            tenths[row] += np.bincount(places, minlength=TENTHS)
    assert total is not None
    return Hidden(label, total, words, tenths[1] / np.maximum(tenths[0], 1))


def own_share(texts: Texts) -> float:
    """The share of stop-words and punctuation among all tokens."""
    counts = np.zeros(2)
    for tokens in texts.batches():
        counts += common_tokens(tokens, texts.source.tokenizer).sum(), tokens.maskable.sum()
    return float(counts[0] / counts[1])


def example(texts: Texts) -> tuple[list[str], dict[str, np.ndarray]]:
    """A short text's words, and how often each is hidden (its tokens' mean) over many draws."""
    lengths = np.diff(texts.store.offsets)
    fitting = [int(place) for place in np.flatnonzero((lengths >= 18) & (lengths <= 22))]
    spread = {place: texts.importance.values[slice(*texts.store.offsets[place : place + 2])].std() for place in fitting}
    place = sorted(fitting, key=spread.__getitem__)[len(fitting) // 2]  # neither flat nor extreme
    tokens = texts.store.batch([place], signals={"importance": texts.importance})
    index = find_words(tokens).index[0]
    inside = np.flatnonzero(tokens.maskable[0].numpy())
    groups = np.split(inside, np.flatnonzero(np.diff(index[inside])) + 1)
    shown = [texts.source.tokenizer.decode(tokens.ids[0, group]) for group in groups]
    context, often = texts.source.context(), {}
    chosen = {"uniform": UniformMasker(UniformConfig(), context), "pmi, sigma 1": PmiMasker(PmiConfig(), context)}
    for label, masker in chosen.items():
        hits = torch.zeros(tokens.ids.shape[1])
        for epoch in range(DRAWS):
            view = masker(tokens, Draws(1, epoch, [place])).decoder
            hits += hidden_tokens(view)[0]
        often[label] = np.array([float(hits[group].mean()) / DRAWS for group in groups])
    return shown, often


def look(texts: Texts) -> dict[str, Hidden]:
    values = np.concatenate([tokens.signals["importance"][tokens.maskable].numpy() for tokens in texts.batches()])
    borders = np.quantile(values, np.arange(1, TENTHS) / TENTHS)
    return {label: measure(texts, label, masker, borders) for label, masker in maskers(texts).items()}


def print_table(texts: Texts, found: dict[str, Hidden], own: float) -> None:
    print(f"\n{texts.name}: stop-words and punctuation are {own:.1%} of all tokens\n")
    print("| masker, ratio | hidden | stop-words and punctuation among them | words torn, per 100 hidden tokens |")
    print("|---|---|---|---|")
    for label, hidden in found.items():
        counts = hidden.counts
        torn = 100 * counts.torn / counts.hidden
        print(f"| {label} | {counts.ratio:.1%} | {counts.common_share:.1%} | {torn:.1f} |")


def plot(texts: Texts, found: dict[str, Hidden], own: float, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, ((first, second), (third, fourth)) = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    plot_shares(first, found, own)
    plot_tenths(second, found)
    plot_words(third, texts, found)
    plot_example(fourth, texts)
    figure.suptitle(f"What is hidden from the decoder, {texts.name}", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def plot_shares(axes: Any, found: dict[str, Hidden], own: float) -> None:
    labels = list(found)[::-1]
    shares = [found[label].counts.common_share for label in labels]
    bars = axes.barh(labels, shares, color=[color(label) for label in labels])
    axes.bar_label(bars, [f"{share:.0%}" for share in shares], padding=2)
    axes.axvline(own, color="0.4", linestyle="--", label="of all tokens of these texts")
    axes.axvline(PAPER, color="0.7", linestyle=":", label="uniform on BERT's texts (CDMAE)")
    axes.set_xlim(0, max(0.7, own + 0.1))
    axes.set_title("Stop-words, punctuation among hidden tokens")
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.35, -0.08), ncol=2, fontsize=8, frameon=False)


def plot_tenths(axes: Any, found: dict[str, Hidden]) -> None:
    lines = ["uniform, 0.5", *(f"pmi, 0.5, sigma {sigma:g}" for sigma in (0.0, 1.0, 4.0, 8.0))]
    shades = ["tab:gray", "#08306b", "#2171b5", "#6baed6", "#9ecae1"]
    for label, shade in zip(lines, shades, strict=True):
        axes.plot(range(1, TENTHS + 1), found[label].tenths, marker="o", markersize=3, label=label, color=shade)
    axes.set_title("How often a token is hidden, by its importance")
    axes.set_xlabel("tenths of all tokens, least to most important")
    axes.set_xticks(range(1, TENTHS + 1))
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.legend(fontsize=8, frameon=False)


def plot_words(axes: Any, texts: Texts, found: dict[str, Hidden]) -> None:
    """As the paper's figure 2, with the other masker beside it."""
    uniform, pmi = found["uniform, 0.5"], found["pmi, 0.5, sigma 1"]
    best = [token for token, _ in uniform.words.most_common(TOP)]
    for shift, hidden, shade in ((-0.2, uniform, "tab:gray"), (0.2, pmi, "#2171b5")):
        shares = [hidden.words[token] / hidden.counts.hidden for token in best]
        axes.bar(np.arange(TOP) + shift, shares, 0.4, label=hidden.label, color=shade)
    axes.set_xticks(range(TOP), [f"{texts.source.tokenizer.decode([token])}" for token in best])
    axes.set_title(f"The {TOP} tokens uniform hides most: share of hidden")
    axes.yaxis.set_major_formatter("{x:.1%}")
    axes.legend(fontsize=8, frameon=False)


def plot_example(axes: Any, texts: Texts) -> None:
    """As the paper's figure 3a: how often each word of one text is hidden."""
    words, often = example(texts)
    for (label, rates), shade in zip(often.items(), ("tab:gray", "#2171b5"), strict=True):
        axes.plot(rates, marker="o", markersize=3, label=label, color=shade)
    axes.set_xticks(range(len(words)), [word.replace("$", r"\$") for word in words], rotation=60, ha="right")
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_title("How often each word of one text is hidden")
    axes.legend(fontsize=8, frameon=False)


def color(label: str) -> str:
    return "tab:gray" if label.startswith("uniform") else "#2171b5"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collection", action="append", help="pydocs, beir:FOLDER ..; several are allowed")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = {}
    for place, collection in enumerate(options.collection or ["pydocs"]):
        texts = opened(collection)
        found, own = look(texts), own_share(texts)
        print_table(texts, found, own)
        if options.plot and place == 0:
            plot(texts, found, own, options.plot)
        kept[texts.name] = {"all tokens": own} | {k: v.counts.common_share for k, v in found.items()}
    if options.json:
        options.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
