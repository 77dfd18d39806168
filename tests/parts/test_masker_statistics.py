"""What every masker really hides, on real texts: docstrings of the standard library, and sample collections."""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch

from drkit.core.draws import Draws
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.data.arrays import SignalValues
from drkit.data.repeats import MARK, mark_repeats
from drkit.data.store import TokenStore, tokenise
from drkit.maskers import PmiConfig, PmiMasker, UniformConfig, UniformMasker
from drkit.recipe.compose import ComposeRequest
from drkit.testing.toys import toy_tokenizer
from drkit_query_as_context import QueryAsContextConfig
from drkit_query_as_context.masker import QueryAsContextMasker
from drkit_report.inspect.masks import common_tokens, is_common, torn_words, view_statistics
from drkit_report.inspect.source import TextSource, collection_source
from drkit_simlm import GeneratorConfig
from drkit_simlm.masker import GeneratorMasker

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
        """(clean tokens, views) of every batch."""
        for keys, tokens in self.batches():
            yield tokens, masker(tokens, Draws(7, 0, keys), rows=rows)

    def statistics(self, masker):
        """Statistics of the encoder's view and of the decoder's."""
        if repr(masker.config) not in self.known:
            self.known[repr(masker.config)] = self._count(masker)
        return self.known[repr(masker.config)]

    def _count(self, masker):
        mask_id, sides = self.source.tokenizer.mask_token_id, {}
        for tokens, views in self.views(masker):
            for side in ("encoder", "decoder"):
                new = view_statistics(getattr(views, side), tokens, self.source.tokenizer, mask_id=mask_id)
                sides[side] = sides[side] + new if side in sides else new
        return sides["encoder"], sides["decoder"]

    def uniform(self, **settings):
        return UniformMasker(UniformConfig(**settings), self.source.context())

    def pmi(self, **settings):
        return PmiMasker(PmiConfig(**settings), self.source.context())


@pytest.fixture(scope="module", params=["pydocs", "cranfield", "tldr"])
def corpus(request, tmp_path_factory):
    name, setting = PYDOCS if request.param == "pydocs" else (f"beir:{SHARED / request.param}", "seed=1")
    if request.param != "pydocs" and not (SHARED / request.param).is_dir():
        pytest.skip(f"no sample collection: {SHARED / request.param} is not there")
    wanted = ComposeRequest(masker="pmi", collection=name, settings=(setting, "encoder.vocab_size=4000"))
    made = collection_source(wanted, installed(), cache=tmp_path_factory.mktemp("counted"))
    source = made.finish(installed(), Silent())
    statistics = source.folder / "signal-importance" / "values"
    return Texts(source, TokenStore.open(source.folder / "tokens"), SignalValues.open(statistics))


# ------------------------------------------------------------------ how much is hidden
def test_uniform_hides_its_ratios(corpus):
    encoder, decoder = corpus.statistics(corpus.uniform())
    # A text takes no word that would overshoot, so the ratio is never above, and falls short by part of a word.
    assert 0.29 < encoder.ratio < 0.303
    assert 0.49 < decoder.ratio < 0.503


def test_the_count_is_rounded_on_maskable_tokens_alone(corpus):
    """The authors round on a length with [CLS] and [SEP] in it: .316 of their texts' content at a ratio of .3.

    Their surplus is 2 * 0.3 tokens a text, whatever its length: a lot of a short one.
    """
    lengths = np.diff(corpus.store.offsets)[corpus.keys]
    theirs = np.rint(0.3 * (lengths + 2)).sum() / lengths.sum()
    encoder, _ = corpus.statistics(corpus.uniform())
    ours = np.rint(0.3 * lengths).sum() / lengths.sum()
    assert abs(theirs - 0.3 - 0.6 / lengths.mean()) < 0.003
    assert ours - 0.003 < encoder.ratio <= ours <= theirs, "less only where a word would overshoot"


def test_pmi_hides_the_floor_of_its_ratio_in_every_text(corpus):
    for tokens, views in corpus.views(corpus.pmi(decoder_ratio=0.45)):
        counts = tokens.maskable.sum(1)
        wanted = torch.clamp((counts * 0.45 + 1e-9).floor().long(), min=1).minimum(counts)
        assert torch.equal((views.decoder.labels != -100).sum(1), wanted)


def test_corruption_is_80_10_10(corpus):
    for masker in (corpus.uniform(), corpus.pmi()):
        for view in corpus.statistics(masker):
            # Five standard deviations of the share of 10%; a random token may be the token itself.
            allowed = 5 * (0.8 * 0.2 / view.hidden) ** 0.5 + 0.002
            assert np.allclose(view.shares, (0.8, 0.1, 0.1), atol=allowed)


def test_all_masked_is_all_masked(corpus):
    encoder, decoder = corpus.statistics(corpus.uniform(mask_token_share=(1.0, 0.0, 0.0)))
    assert encoder.shares == decoder.shares == (1.0, 0.0, 0.0)


# ------------------------------------------------------------------ which are hidden
def test_whole_words_are_whole(corpus):
    encoder, decoder = corpus.statistics(corpus.uniform())
    assert encoder.torn == decoder.torn == 0
    encoder, decoder = corpus.statistics(corpus.pmi(unit="word"))
    assert encoder.torn == decoder.torn == 0
    encoder, decoder = corpus.statistics(corpus.pmi(unit="token"))
    assert encoder.torn == 0
    assert decoder.torn > 0, "by token, words are torn: the paper's own way"


def test_long_words_are_hidden_less_often(corpus):
    """Goldens of the authors' collators: .32 of words of one piece, .22 of five; a word that overshoots is skipped."""
    lengths = np.diff(corpus.store.offsets)
    short = np.argsort(np.where(lengths < 10, 10**6, lengths), kind="stable")[:200]  # what overshoots shows there
    tokens, masker = corpus.store.batch(short), corpus.uniform()
    sizes = sizes_of_words(tokens)
    hidden = [masker(tokens, Draws(7, epoch, short)).encoder.labels != -100 for epoch in range(5)]
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
    both, encoder, total = 0, 0, 0
    for _, views in corpus.views(corpus.uniform(nested=True)):
        of_encoder, of_decoder = (view.labels != -100 for view in (views.encoder, views.decoder))
        assert bool((of_decoder | ~of_encoder).all()), "the decoder's hides all of the encoder's"
    for tokens, views in corpus.views(corpus.uniform()):
        of_encoder, of_decoder = (view.labels != -100 for view in (views.encoder, views.decoder))
        both += int((of_encoder & of_decoder).sum())
        encoder += int(of_encoder.sum())
        total += int(tokens.maskable.sum())
    assert abs(both / encoder - 0.5) < 0.02, "half of what the encoder misses, as of anything"
    _, nested = corpus.statistics(corpus.uniform(nested=True))
    assert 0.48 < nested.ratio < 0.51


def test_nested_hides_the_rest_as_the_authors_do(corpus):
    """SimLM: P(hidden from the decoder | seen by the encoder) = (.5 - .3) / (1 - .3), .30 in the authors' code."""
    extra = seen = 0
    for tokens, views in corpus.views(corpus.uniform(nested=True)):
        free = tokens.maskable & (views.encoder.labels == -100)
        extra += int((free & (views.decoder.labels != -100)).sum())
        seen += int(free.sum())
    assert abs(extra / seen - 0.2 / 0.7) < 0.02


def test_a_generators_views_wait_for_its_samples(corpus):
    """SimLM: 0 of the encoder's masked tokens are not masked for the decoder; all [MASK], every token a target."""
    masker = GeneratorMasker(GeneratorConfig(), corpus.source.context())
    encoder, decoder = corpus.statistics(masker)
    assert encoder.shares == decoder.shares == (1.0, 0.0, 0.0)
    assert encoder.torn == decoder.torn == 0
    assert 0.29 < encoder.ratio < 0.303
    assert 0.48 < decoder.ratio < 0.503
    mask_id, extra, seen = corpus.source.tokenizer.mask_token_id, 0, 0
    for tokens, views in corpus.views(masker):
        of_encoder, of_decoder = (view.ids == mask_id for view in (views.encoder, views.decoder))
        assert bool((of_decoder | ~of_encoder).all())
        for view in (views.encoder, views.decoder):
            assert torch.equal(view.labels != -100, tokens.maskable)
            assert bool((view.ids == mask_id).logical_or(view.ids == tokens.ids).all())
        extra += int((of_decoder & ~of_encoder).sum())
        seen += int((tokens.maskable & ~of_encoder).sum())
    assert abs(extra / seen - 0.2 / 0.7) < 0.02


def test_a_context_is_masked_as_its_base_masks(corpus):
    """The context's tokens are hidden at the decoder's ratio, whatever the encoder's text; rows are the context's."""
    masker = QueryAsContextMasker(QueryAsContextConfig(base="pmi", decoder_ratio=0.4), corpus.source.context())
    hidden = total = 0
    for keys, tokens in corpus.batches():
        context = corpus.store.batch(np.roll(keys, 1), signals={"importance": corpus.importance})
        views = masker(attrs.evolve(tokens, context=context), Draws(7, 0, keys))
        assert torch.equal(views.context.ids, context.ids)
        assert torch.equal(views.encoder.attention, tokens.attention)
        hidden += int((views.decoder.labels != -100).sum())
        total += int(context.maskable.sum())
    assert 0.38 < hidden / total <= 0.4


# ------------------------------------------------------------------ rows
def test_rows_see_their_share_and_every_special_token(corpus):
    for masker in (corpus.uniform(decoder_ratio=0.5), corpus.pmi(decoder_ratio=0.5)):
        seen = total = 0
        for tokens, views in corpus.views(masker, rows=8):
            visible = views.decoder.visible
            assert visible.shape == (len(tokens.ids), 8, tokens.ids.shape[1])
            special = tokens.attention & ~tokens.maskable
            assert bool(visible.transpose(1, 2)[special].all()), "[CLS] and [SEP] are seen by every row"
            assert not bool(visible.transpose(1, 2)[~tokens.attention].any()), "padding by none"
            seen += int((visible & tokens.maskable[:, None]).sum())
            total += 8 * int(tokens.maskable.sum())
        # The authors' rows see .487 of the columns at .5: their count is rounded with the special tokens.
        assert 0.49 < seen / total < 0.52


def test_rows_of_a_text_differ(corpus):
    """In the authors' code 64% of a text's rows are distinct; here each row is a draw of its own."""
    distinct = rows = 0
    for tokens, views in corpus.views(corpus.uniform(), rows=16):
        long = tokens.maskable.sum(1) >= 20
        for text in views.decoder.visible[long]:
            distinct += len(torch.unique(text, dim=0))
            rows += 16
    assert distinct / rows > 0.98


def test_pmi_rows_hide_exactly_their_count_and_the_important_more_often(corpus):
    lower = higher = 0.0
    for tokens, views in corpus.views(corpus.pmi(), rows=8):
        hidden = tokens.maskable[:, None] & ~views.decoder.visible
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
    encoder, decoder = corpus.statistics(corpus.uniform())
    assert 0.35 < have / total < 0.65
    # Short words fit where long ones overshoot, and stop-words are short.
    assert -0.01 < encoder.common_share - have / total < 0.02
    assert abs(decoder.common_share - have / total) < 0.015


def test_pmi_hides_far_fewer(corpus):
    _, uniform = corpus.statistics(corpus.uniform())
    shares = [corpus.statistics(corpus.pmi(sigma=sigma))[1].common_share for sigma in (0.0, 1.0, 8.0)]
    assert shares[1] < 0.65 * uniform.common_share
    assert shares[0] < shares[1] < shares[2] < uniform.common_share, "more noise, more like uniform"
    few = corpus.statistics(corpus.pmi(decoder_ratio=0.15))[1]
    assert few.common_share < 0.25 * uniform.common_share, "at BERT's ratio hardly any are left"


def test_pmi_leaves_the_encoders_view_alone(corpus):
    encoder, _ = corpus.statistics(corpus.pmi())
    uniform, _ = corpus.statistics(corpus.uniform())
    assert encoder == uniform


# ------------------------------------------------------------------ the counting itself
def test_counts_equal_the_naive_ones(corpus):
    keys, tokens = next(corpus.batches())
    tokenizer = corpus.source.tokenizer
    view = corpus.pmi()(tokens, Draws(3, 1, keys)).decoder
    found = view_statistics(view, tokens, tokenizer, mask_id=tokenizer.mask_token_id)
    made, common, torn, maskable = {"mask": 0, "random": 0, "kept": 0}, 0, 0, 0
    for row in range(len(keys)):
        words = {}
        for position in range(tokens.ids.shape[1]):
            if bool(tokens.maskable[row, position]):
                words.setdefault(int(tokens.words[row, position]), []).append(position)
        for positions in words.values():
            word = tokenizer.decode(tokens.ids[row, positions]).replace(MARK, "")
            hidden = [position for position in positions if int(view.labels[row, position]) != -100]
            maskable += len(positions)
            torn += 0 < len(hidden) < len(positions)
            common += len(hidden) * is_common(word)
            for position in hidden:
                now, was = int(view.ids[row, position]), int(tokens.ids[row, position])
                made["mask" if now == tokenizer.mask_token_id else "kept" if now == was else "random"] += 1
    assert (found.tokens, found.hidden, found.common, found.torn) == (maskable, sum(made.values()), common, torn)
    assert (found.made_mask, found.made_random, found.kept) == tuple(made.values())


def test_a_stop_word_that_occurs_again_is_a_stop_word(tmp_path):
    tokenizer = mark_repeats(toy_tokenizer())
    tokenise([("text", "the model of the index of the")], tokenizer, tmp_path, max_length=20)
    tokens = TokenStore.open(tmp_path).batch([0])
    assert tokenizer.convert_ids_to_tokens(tokens.ids[0])[1:4] == ["\u21bbthe", "model", "\u21bbof"]
    assert common_tokens(tokens, tokenizer)[0].tolist() == [False, True, False, True, True, False, True, True, False]


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
