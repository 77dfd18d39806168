"""What a run's masker hides, beside uniform masking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from attrs import frozen

from drkit.charts import Bars, Line, Panel
from drkit.commands.records import RunRecord
from drkit.core.protocols import MaskingRatio
from drkit.core.registry import Installed
from drkit.core.spec import Choice, Kind
from drkit.data.spelling import token_text
from drkit.errors import DrkitError
from drkit.recipe.schema import ITSELF
from drkit_report.charts import Chart
from drkit_report.inspect.hidden import HiddenTokens, TextSample, hiding_rates, measure_hidden, typical_text
from drkit_report.inspect.source import COUNTS_STAGE, TextSource, run_source

_TEXTS = 1000
_TOP = 10
_WORDS = 24  # of the text in a chart
UNIFORM = "uniform"


@frozen
class HiddenShare:
    """One masker: the share of tokens that it hides, and the share of stop-words and punctuation among them."""

    masker: str
    hidden: str
    common: str


@frozen
class Masking:
    """The section on masking; notes: what could not be shown, and why."""

    shares: tuple[HiddenShare, ...] = ()
    charts: tuple[Chart, ...] = ()
    texts: int = 0
    notes: tuple[str, ...] = ()


def describe_masking(run: RunRecord, parts: Installed) -> Masking | None:
    """Measure what the masker of a run hides; None if the run has no pre-training or has no tokens yet."""
    if run.recipe.pretrain is None or "tokens" not in run.manifests or "vocabulary" not in run.manifests:
        return None
    source = run_source(run.folder, parts)
    sample = TextSample.of(source, _TEXTS)
    task = source.decoder()
    chosen = task.masker if task and task.masker else run.recipe.pretrain.encoder.masker
    if task and task.context != ITSELF:
        note = "The decoder rebuilds another text than the encoder reads, so its masker is not compared here."
        return Masking(texts=len(sample.indices), notes=(note,))
    maskers = {
        label: parts.registry.build(Kind.MASKER, choice.use, choice.config, source.context())
        for label, choice in _compared(chosen, parts, has_counts=COUNTS_STAGE in run.manifests).items()
    }
    found = {label: measure_hidden(sample, masker) for label, masker in maskers.items()}
    shares = [
        HiddenShare(label, f"{one.counts.ratio:.1%}", f"{one.counts.common_share:.1%}") for label, one in found.items()
    ]
    shares.append(HiddenShare("all tokens of these texts", "", f"{sample.common_share:.1%}"))
    charts = [_top_words(found, source), *_tenths(found), *_one_text(sample, maskers)]
    return Masking(tuple(shares), tuple(charts), len(sample.indices))


def _compared(chosen: Choice, parts: Installed, *, has_counts: bool) -> dict[str, Choice]:
    """Return the maskers to show: the run's own, and uniform masking at the same rate, or `pmi` beside uniform.

    has_counts: whether the run counted the n-grams that `pmi` needs.
    """
    other = "pmi" if chosen.use == UNIFORM else UNIFORM
    maskers = {chosen.use: chosen}
    if other == UNIFORM or has_counts:
        config = parts.registry.get(Kind.MASKER, other).config
        rate = {"ratio": chosen.config.ratio} if isinstance(chosen.config, MaskingRatio) else {}
        maskers[other] = Choice(other, config(**rate))
    return maskers


def _top_words(found: Mapping[str, HiddenTokens], source: TextSource) -> Chart:
    """Return CDMAE's figure 2: the share of all hidden tokens that the most hidden ones have, for each masker."""
    best = dict.fromkeys(token for one in found.values() for token, _ in one.tokens.most_common(_TOP))
    ordered = sorted(best, key=lambda token: -max(one.share(token) for one in found.values()))
    words = [token_text(source.tokenizer, token) or "\u2423" for token in ordered]
    shares = {label: [100 * one.share(token) for token in ordered] for label, one in found.items()}
    note = "The ten tokens that each masker hides most, by their share of all tokens that it hides."
    return Chart(Bars("Most hidden terms", "% of hidden tokens", words, shares), note)


def _tenths(found: Mapping[str, HiddenTokens]) -> Iterator[Chart]:
    lines = [
        Line(label, [(tenth, float(100 * share)) for tenth, share in enumerate(one.tenths, 1)])
        for label, one in found.items()
        if one.tenths is not None
    ]
    if lines:
        panel = Panel(
            "Hidden by importance", "% of tokens hidden", lines, floor=True, x="tenth of all tokens by importance"
        )
        yield Chart(panel, "Tenth 1 has the least important tokens, tenth 10 the most important ones.")


def _one_text(sample: TextSample, maskers: Mapping[str, Any]) -> Iterator[Chart]:
    """Yield CDMAE's figure 3a: how often each word of one text is hidden, by each masker."""
    index = typical_text(sample)
    if index is None or len(maskers) < 2:
        return
    words, rates = hiding_rates(sample, index, maskers)
    names = [word.strip() for word in words[:_WORDS]]
    lines = [
        Line(label, [(position, 100 * float(rate)) for position, rate in enumerate(found[:_WORDS])])
        for label, found in rates.items()
    ]
    panel = Panel("How often each word is hidden", "% of draws", lines, floor=True, x="", names=names)
    yield Chart(panel, "One short text of the collection, 200 draws.", is_wide=True)


def masking_or_note(run: RunRecord, parts: Installed) -> Masking | None:
    """Return the section on masking; if it cannot be measured (pruned or damaged files), a note that says why."""
    try:
        return describe_masking(run, parts)
    except DrkitError as error:
        return attrs.evolve(Masking(), notes=(f"What the masker hides cannot be shown: {error}",))
