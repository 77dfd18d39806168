"""Which words are hidden: stop-words or important ones, by masker; CDMAE's figures 2 and 3a on a collection.

    python benchmarks/masked_words.py --work FOLDER [--collection NAME[:VALUE] ..] [--plot FILE.png] [--json FILE]

Prints a table a collection (pydocs where none is named) and plots the first. Vocabulary and n-gram counts are made
once, in the work folder; then it takes about half a minute a collection.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen

from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.maskers import PmiConfig, PmiMasker, UniformConfig, UniformMasker
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from drkit_report.inspect.hidden import TENTHS, HiddenTokens, TextSample, hiding_rates, measure_hidden, typical_text
from drkit_report.inspect.source import COUNTS_STAGE, TextSource

TEXTS, DRAWS = 4000, 400
SIGMAS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
PAPER = 0.40  # CDMAE: of what BERT's masking hides of its texts
TOP = 10


@frozen(eq=False)
class Texts:
    """A sample of a collection's texts, with the collection's name."""

    name: str
    sample: TextSample


def opened(collection: str, work: Path) -> Texts:
    """Open a collection's texts, after the stages of a run up to its n-gram counts."""
    parts, name = installed(), collection.rpartition("/")[2]
    recipe = compose(ComposeRequest(masker="pmi", collection=collection), parts)
    stages = plan(recipe, parts.registry).stages
    last = [stage.name for stage in stages].index(COUNTS_STAGE)
    execute(stages[: last + 1], work / name, recipe, registry=parts.registry, progress=Silent())
    return Texts(name, TextSample.of(TextSource(work / name, recipe), TEXTS))


def maskers(texts: Texts) -> dict[str, Any]:
    context = texts.sample.source.context()
    made: dict[str, Any] = {
        f"uniform, {ratio}": UniformMasker(UniformConfig(ratio=ratio), context) for ratio in (0.15, 0.5)
    }
    made["pmi, 0.15, sigma 1"] = PmiMasker(PmiConfig(ratio=0.15), context)
    for sigma in SIGMAS:
        made[f"pmi, 0.5, sigma {sigma:g}"] = PmiMasker(PmiConfig(ratio=0.5, sigma=sigma), context)
    made["pmi, 0.5, sigma 1, whole words"] = PmiMasker(PmiConfig(ratio=0.5, unit="word"), context)
    return made


def example(texts: Texts) -> tuple[list[str], dict[str, np.ndarray]]:
    """A short text's words, and how often each is hidden over many draws."""
    place, context = typical_text(texts.sample), texts.sample.source.context()
    assert place is not None
    chosen = {
        "uniform": UniformMasker(UniformConfig(ratio=0.5), context),
        "pmi, sigma 1": PmiMasker(PmiConfig(ratio=0.5), context),
    }
    return hiding_rates(texts.sample, place, chosen, draws=DRAWS)


def look(texts: Texts) -> dict[str, HiddenTokens]:
    return {label: measure_hidden(texts.sample, masker) for label, masker in maskers(texts).items()}


def print_table(texts: Texts, found: dict[str, HiddenTokens], own: float) -> None:
    print(f"\n{texts.name}: stop-words and punctuation are {own:.1%} of all tokens\n")
    print("| masker, ratio | hidden | stop-words and punctuation among them | words torn, per 100 hidden tokens |")
    print("|---|---|---|---|")
    for label, hidden in found.items():
        counts = hidden.counts
        torn = 100 * counts.torn / counts.hidden
        print(f"| {label} | {counts.ratio:.1%} | {counts.common_share:.1%} | {torn:.1f} |")


def plot(texts: Texts, found: dict[str, HiddenTokens], own: float, path: Path) -> None:
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


def plot_shares(axes: Any, found: dict[str, HiddenTokens], own: float) -> None:
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


def plot_tenths(axes: Any, found: dict[str, HiddenTokens]) -> None:
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


def plot_words(axes: Any, texts: Texts, found: dict[str, HiddenTokens]) -> None:
    """As the paper's figure 2, with the other masker beside it."""
    best = [token for token, _ in found["uniform, 0.5"].tokens.most_common(TOP)]
    for shift, label, shade in ((-0.2, "uniform, 0.5", "tab:gray"), (0.2, "pmi, 0.5, sigma 1", "#2171b5")):
        shares = [found[label].share(token) for token in best]
        axes.bar(np.arange(TOP) + shift, shares, 0.4, label=label, color=shade)
    axes.set_xticks(range(TOP), [f"{texts.sample.source.tokenizer.decode([token])}" for token in best])
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
    parser.add_argument("--work", type=Path, required=True, help="folder for vocabularies and counts")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = {}
    for place, collection in enumerate(options.collection or ["pydocs"]):
        texts = opened(collection, options.work)
        found, own = look(texts), texts.sample.common_share
        print_table(texts, found, own)
        if options.plot and place == 0:
            plot(texts, found, own, options.plot)
        kept[texts.name] = {"all tokens": own} | {k: v.counts.common_share for k, v in found.items()}
    if options.json:
        options.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
