"""What every masker really hides, on real texts: docstrings of the standard library, and a sample collection."""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch

from drkit.core.draws import Draws
from drkit.data.arrays import SignalValues
from drkit.data.store import TokenStore
from drkit.maskers import PmiConfig, PmiMasker, UniformConfig, UniformMasker
from drkit.maskers.views import find_units
from drkit.recipe.compose import ComposeRequest
from drkit_report.inspect.masks import common_tokens, is_common, torn_words, view_statistics
from drkit_report.inspect.source import TextSource
from drkit_simlm import GeneratorConfig
from drkit_simlm.masker import GeneratorMasker
from tests.cli.test_inspect import counted_texts

SHARED = Path(os.environ.get("DRKIT_SHARED", Path(__file__).resolve().parents[2].parent / "shared")) / "collections"
PYDOCS = ("pydocs", "collection.packages=['asyncio', 'email', 'logging', 'multiprocessing', 'unittest', 'xml']")
TEXTS, BATCH = 600, 100


@attrs.frozen(eq=False)
class Texts:
    """A collection's counted texts, in batches."""

    source: TextSource
    store: TokenStore
    importance: SignalValues
    known: dict[str, tuple] = attrs.field(factory=dict)

    @property
    def keys(self):
        """Every text, or some hundreds spread over the collection."""
        return np.unique(np.linspace(0, len(self.store) - 1, TEXTS).astype(np.int64))

    def batches(self):
        for at in range(0, len(self.keys), BATCH):
            keys = self.keys[at : at + BATCH]
            yield keys, self.store.batch(keys, signals={"importance": self.importance})

    def views(self, masker, rows=0):
        """(clean tokens, view) of every batch."""
        for keys, tokens in self.batches():
            yield tokens, masker(tokens, Draws(7, 0, keys), rows=rows)

    def both(self, outer, inner, nested=False):
        """(clean tokens, two views) of every batch: the encoder's and a decoder's."""
        for keys, tokens in self.batches():
            rng = Draws(7, 0, keys)
            first = outer(tokens, rng)
            yield tokens, first, inner(tokens, rng, nested=first if nested else None)

    def statistics(self, masker):
        """Statistics of a masker's views."""
        if repr(masker.config) not in self.known:
            self.known[repr(masker.config)] = self._count(masker)
        return self.known[repr(masker.config)]

    def _count(self, masker):
        tokenizer = self.source.tokenizer
        counts = [
            view_statistics(view, tokens, tokenizer, mask_id=tokenizer.mask_token_id)
            for tokens, view in self.views(masker)
        ]
        return sum(counts[1:], counts[0])

    def uniform(self, **settings):
        return UniformMasker(UniformConfig(**settings), self.source.context())

    def pmi(self, ratio=0.5, **settings):
        return PmiMasker(PmiConfig(ratio=ratio, **settings), self.source.context())


@pytest.fixture(scope="module", params=["pydocs", "tldr"])
def corpus(request, tmp_path_factory):
    name, setting = PYDOCS if request.param == "pydocs" else (f"beir:{SHARED / request.param}", "seed=1")
    if request.param != "pydocs" and not (SHARED / request.param).is_dir():
        pytest.skip(f"no sample collection: {SHARED / request.param} is not there")
    wanted = ComposeRequest(masker="pmi", collection=name, settings=(setting, "encoder.vocab_size=4000"))
    source = counted_texts(wanted, tmp_path_factory.mktemp("counted"))
    statistics = source.folder / "signal-importance" / "values"
    return Texts(source, TokenStore.open(source.folder / "tokens"), SignalValues.open(statistics))


# ------------------------------------------------------------------ how much is hidden
def test_uniform_hides_its_ratios(corpus):
    # A text takes no word that would overshoot, so the ratio is never above, and falls short by part of a word.
    assert 0.29 < corpus.statistics(corpus.uniform(ratio=0.3)).ratio < 0.303
    assert 0.49 < corpus.statistics(corpus.uniform(ratio=0.5)).ratio < 0.503


def test_the_count_is_rounded_on_maskable_tokens_alone(corpus):
    """The authors round on a length with [CLS] and [SEP] in it: .316 of their texts' content at a ratio of .3.

    Their surplus is 2 * 0.3 tokens a text, whatever its length: a lot of a short one.
    """
    lengths = np.diff(corpus.store.offsets)[corpus.keys]
    theirs = np.rint(0.3 * (lengths + 2)).sum() / lengths.sum()
    encoder = corpus.statistics(corpus.uniform(ratio=0.3))
    ours = np.rint(0.3 * lengths).sum() / lengths.sum()
    assert abs(theirs - 0.3 - 0.6 / lengths.mean()) < 0.003
    assert ours - 0.003 < encoder.ratio <= ours <= theirs, "less only where a word would overshoot"


def test_pmi_hides_the_floor_of_its_ratio_in_every_text(corpus):
    for tokens, view in corpus.views(corpus.pmi(ratio=0.45)):
        counts = tokens.maskable.sum(1)
        wanted = torch.clamp((counts * 0.45 + 1e-9).floor().long(), min=1).minimum(counts)
        assert torch.equal((view.labels != -100).sum(1), wanted)


def test_corruption_is_80_10_10(corpus):
    for masker in (corpus.uniform(ratio=0.3), corpus.uniform(ratio=0.5), corpus.pmi()):
        view = corpus.statistics(masker)
        # Five standard deviations of the share of 10%; a random token may be the token itself.
        allowed = 5 * (0.8 * 0.2 / view.hidden) ** 0.5 + 0.002
        assert np.allclose(view.shares, (0.8, 0.1, 0.1), atol=allowed)


def test_all_masked_is_all_masked(corpus):
    for masker in (corpus.uniform, corpus.pmi):
        assert corpus.statistics(masker(mask_token_share=(1.0, 0.0, 0.0))).shares == (1.0, 0.0, 0.0)


# ------------------------------------------------------------------ which are hidden
def test_whole_words_are_whole(corpus):
    for masker in (corpus.uniform, corpus.pmi):
        assert corpus.statistics(masker(unit="word")).torn == 0
        assert corpus.statistics(masker(unit="token")).torn > 0, "by token, words are torn: CDMAE's own way"


def test_long_words_are_hidden_less_often(corpus):
    """Goldens of the authors' collators: .32 of words of one piece, .22 of five; a word that overshoots is skipped."""
    lengths = np.diff(corpus.store.offsets)
    short = np.argsort(np.where(lengths < 10, 10**6, lengths), kind="stable")[:200]  # what overshoots shows there
    tokens, masker = corpus.store.batch(short), corpus.uniform(ratio=0.3)
    sizes = sizes_of_words(tokens)
    hidden = [masker(tokens, Draws(7, epoch, short)).labels != -100 for epoch in range(5)]
    rate = {size: float(np.mean([view.numpy()[sizes == size].mean() for view in hidden])) for size in (1, 3)}
    assert abs(rate[1] - 0.3) < 0.02
    assert rate[3] < rate[1] - 0.01


def sizes_of_words(tokens):
    """How many tokens the word of each token has, 3 for more; 0 outside words."""
    sizes = np.zeros(tokens.ids.shape, dtype=int)
    for row, words in enumerate(tokens.words.numpy()):
        for number in np.unique(words[words >= 0]):
            sizes[row, words == number] = min(int((words == number).sum()), 3)
    return sizes


def test_views_are_independent_or_nested(corpus):
    both, encoder, total, nested = 0, 0, 0, 0
    outer, inner = corpus.uniform(ratio=0.3), corpus.uniform(ratio=0.5)
    for _, read, view in corpus.both(outer, inner, nested=True):
        of_encoder, of_decoder = (one.labels != -100 for one in (read, view))
        assert bool((of_decoder | ~of_encoder).all()), "the decoder's hides all of the encoder's"
        nested += int(of_decoder.sum())
    for tokens, read, view in corpus.both(outer, inner):
        of_encoder, of_decoder = (one.labels != -100 for one in (read, view))
        both += int((of_encoder & of_decoder).sum())
        encoder += int(of_encoder.sum())
        total += int(tokens.maskable.sum())
    assert abs(both / encoder - 0.5) < 0.02, "half of what the encoder misses, as of anything"
    assert 0.48 < nested / total < 0.51


def test_nested_hides_the_rest_as_the_authors_do(corpus):
    """SimLM: P(hidden from the decoder | seen by the encoder) = (.5 - .3) / (1 - .3), .30 in the authors' code."""
    extra = seen = 0
    for tokens, read, view in corpus.both(corpus.uniform(ratio=0.3), corpus.uniform(ratio=0.5), nested=True):
        free = tokens.maskable & (read.labels == -100)
        extra += int((free & (view.labels != -100)).sum())
        seen += int(free.sum())
    assert abs(extra / seen - 0.2 / 0.7) < 0.02


def test_a_generators_views_wait_for_its_samples(corpus):
    """SimLM: 0 of the encoder's masked tokens are not masked for the decoder; all [MASK], every token a target."""
    outer, inner = (GeneratorMasker(GeneratorConfig(ratio=ratio), corpus.source.context()) for ratio in (0.3, 0.5))
    encoder, decoder = corpus.statistics(outer), corpus.statistics(inner)
    assert encoder.shares == decoder.shares == (1.0, 0.0, 0.0)
    assert encoder.torn == decoder.torn == 0
    assert 0.29 < encoder.ratio < 0.303
    assert 0.49 < decoder.ratio < 0.503
    mask_id, extra, seen = corpus.source.tokenizer.mask_token_id, 0, 0
    for tokens, read, view in corpus.both(outer, inner, nested=True):
        of_encoder, of_decoder = (one.ids == mask_id for one in (read, view))
        assert bool((of_decoder | ~of_encoder).all())
        for one in (read, view):
            assert torch.equal(one.labels != -100, tokens.maskable)
            assert bool((one.ids == mask_id).logical_or(one.ids == tokens.ids).all())
        extra += int((of_decoder & ~of_encoder).sum())
        seen += int((tokens.maskable & ~of_encoder).sum())
    assert abs(extra / seen - 0.2 / 0.7) < 0.02


# ------------------------------------------------------------------ rows
def test_rows_see_their_share_and_every_special_token(corpus):
    for masker in (corpus.uniform(ratio=0.5), corpus.pmi(ratio=0.5)):
        seen = total = 0
        for tokens, view in corpus.views(masker, rows=8):
            visible = view.visible
            assert visible.shape == (len(tokens.ids), 8, tokens.ids.shape[1])
            special = tokens.attention & ~tokens.maskable
            assert bool(visible.transpose(1, 2)[special].all()), "[CLS] and [SEP] are seen by every row"
            assert not bool(visible.transpose(1, 2)[~tokens.attention].any()), "padding by none"
            seen += int((visible & tokens.maskable[:, None]).sum())
            total += 8 * int(tokens.maskable.sum())
        # The authors' rows see .487 of the columns at .5: their count is rounded with the special tokens.
        assert 0.49 < seen / total < 0.52


def hidden_shares_by_hand(sizes, rows, rng):
    """The share that each row hides of words of these sizes, by the collator's rules: a word that overshoots waits."""
    count, shares = round(0.5 * sizes.sum()), []
    for _ in range(rows):
        taken = 0
        for size in rng.permutation(sizes):
            taken += size if taken + size <= count else 0
        shares.append(taken / sizes.sum())
    return shares


def test_each_row_hides_the_same_number_as_in_the_authors_code(corpus):
    """The authors' rows differ by a standard deviation of .0076 on tldr, independent coins by ten times as much."""
    rng, rows = np.random.default_rng(0), 12
    shares = {"fixed": [], "random": [], "by hand": []}
    for keys, tokens in corpus.batches():
        counts, sizes = tokens.maskable.sum(1), find_units(tokens).sizes
        long = np.flatnonzero(counts >= 20)
        for name in ("fixed", "random"):
            view = corpus.uniform(ratio=0.5, row_share=name)(tokens, Draws(7, 0, keys), rows=rows)
            hidden = (tokens.maskable[:, None] & ~view.visible).sum(2)
            shares[name].append((hidden / counts[:, None])[long].numpy())
        shares["by hand"].append([hidden_shares_by_hand(sizes[at][sizes[at] > 0], rows, rng) for at in long])
    of = {name: np.concatenate(parts) for name, parts in shares.items()}
    assert of["fixed"].std() == pytest.approx(of["by hand"].std(), rel=0.05)
    assert of["fixed"].mean() == pytest.approx(of["by hand"].mean(), abs=1e-3)
    within = {name: (one - one.mean(1, keepdims=True)).std() for name, one in of.items()}
    assert within["fixed"] < 0.005 < 0.05 < within["random"], "rows of one text"


def test_rows_of_a_text_differ(corpus):
    """In the authors' code 64% of a text's rows are distinct; here each row is a draw of its own."""
    distinct = rows = 0
    for tokens, view in corpus.views(corpus.uniform(ratio=0.5), rows=16):
        long = tokens.maskable.sum(1) >= 20
        for text in view.visible[long]:
            distinct += len(torch.unique(text, dim=0))
            rows += 16
    assert distinct / rows > 0.98


def test_pmi_rows_hide_exactly_their_count_and_the_important_more_often(corpus):
    lower = higher = 0.0
    for tokens, view in corpus.views(corpus.pmi(), rows=8):
        hidden = tokens.maskable[:, None] & ~view.visible
        wanted = (tokens.maskable.sum(1) * 0.5 + 1e-9).floor()
        enough = wanted >= 1
        assert bool((hidden.sum(2)[enough] == wanted[enough, None]).all())
        often = hidden.float().mean(1)
        median = torch.where(tokens.maskable, tokens.signals["importance"], torch.nan).nanmedian(1, keepdim=True).values
        higher += float(often[tokens.maskable & (tokens.signals["importance"] > median)].sum())
        lower += float(often[tokens.maskable & (tokens.signals["importance"] <= median)].sum())
    assert higher > 4 * lower


# ------------------------------------------------------------------ stop-words and punctuation
def test_uniform_hides_as_many_stop_words_as_there_are(corpus):
    """CDMAE: about 40% of what uniform masking hides of BERT's texts; of these texts, as many as they have."""
    have = total = 0
    for _, tokens in corpus.batches():
        have += int(common_tokens(tokens, corpus.source.tokenizer).sum())
        total += int(tokens.maskable.sum())
    encoder, decoder = (corpus.statistics(corpus.uniform(ratio=ratio)) for ratio in (0.3, 0.5))
    assert 0.35 < have / total < 0.65
    # Short words fit where long ones overshoot, and stop-words are short.
    assert -0.01 < encoder.common_share - have / total < 0.02
    assert abs(decoder.common_share - have / total) < 0.015


def test_pmi_hides_far_fewer(corpus):
    uniform = corpus.statistics(corpus.uniform(ratio=0.5))
    shares = [corpus.statistics(corpus.pmi(sigma=sigma)).common_share for sigma in (0.0, 1.0, 8.0)]
    assert shares[1] < 0.65 * uniform.common_share
    assert shares[0] < shares[1] < shares[2] < uniform.common_share, "more noise, more like uniform"
    few = corpus.statistics(corpus.pmi(ratio=0.15))
    assert few.common_share < 0.25 * uniform.common_share, "at BERT's ratio hardly any are left"


# ------------------------------------------------------------------ the counting itself
def test_counts_equal_the_naive_ones(corpus):
    keys, tokens = next(corpus.batches())
    tokenizer = corpus.source.tokenizer
    view = corpus.pmi()(tokens, Draws(3, 1, keys))
    found = view_statistics(view, tokens, tokenizer, mask_id=tokenizer.mask_token_id)
    made, common, torn, maskable = {"mask": 0, "random": 0, "kept": 0}, 0, 0, 0
    for row in range(len(keys)):
        words = {}
        for position in range(tokens.ids.shape[1]):
            if bool(tokens.maskable[row, position]):
                words.setdefault(int(tokens.words[row, position]), []).append(position)
        for positions in words.values():
            word = tokenizer.decode(tokens.ids[row, positions])
            hidden = [position for position in positions if int(view.labels[row, position]) != -100]
            maskable += len(positions)
            torn += 0 < len(hidden) < len(positions)
            common += len(hidden) * is_common(word)
            for position in hidden:
                now, was = int(view.ids[row, position]), int(tokens.ids[row, position])
                made["mask" if now == tokenizer.mask_token_id else "kept" if now == was else "random"] += 1
    assert (found.tokens, found.hidden, found.common, found.torn) == (maskable, sum(made.values()), common, torn)
    assert (found.made_mask, found.made_random, found.kept) == tuple(made.values())


def test_nothing_hidden_is_no_division_by_zero(corpus):
    _, tokens = next(corpus.batches())
    hidden = torch.zeros_like(tokens.maskable)
    assert torn_words(hidden, tokens) == 0
    empty = corpus.store.batch(np.empty(0, dtype=np.int64), signals={"importance": corpus.importance})
    assert not common_tokens(empty, corpus.source.tokenizer).any()


@pytest.mark.parametrize(
    ("word", "common"), [("the", True), ("Don", True), ("'", True), ("...", True), ("wing", False)]
)
def test_common_words(word, common):
    assert is_common(word) is common
