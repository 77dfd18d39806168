"""Word ids come from the tokenizer, whatever its family: words are hidden whole, and a text is never one word."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from drkit.core.draws import Draws
from drkit.core.types import BackboneInfo, BuildContext
from drkit.data.store import TokenStore, tokenise
from drkit.encoders import token_batch
from drkit.errors import DrkitError
from drkit.maskers import UniformConfig, UniformMasker
from tests.encoders.toys import ROBERTA_SPECIALS, _trained, byte_level, metaspace, wordpiece
from tests.parts.toys import texts

FAMILIES = {
    "wordpiece": wordpiece,
    "wordpiece, <s>": lambda: wordpiece(roberta=True),
    "byte-level": byte_level,
    "byte-level, [CLS]": lambda: byte_level(roberta=False),
    "metaspace": metaspace,
}
CHINESE = "机器学习是人工智能的一个分支。它研究计算机如何从数据中学习、而不需要明确的编程。"


def unsplit():
    """As Gemma's: spaces become a mark, and nothing splits before the vocabulary does."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")  # training alone needs words
    tokenizer = _trained(backend, trainers.UnigramTrainer, ROBERTA_SPECIALS, unk_token="<unk>")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([])
    return tokenizer


def stored(tokenizer, some, folder, max_length=64):
    tokenise([(str(n), text) for n, text in enumerate(some)], tokenizer, folder, max_length=max_length)
    return TokenStore.open(folder).batch(range(len(some)))


def masked(tokenizer, tokens, ratio=0.3):
    info = BackboneInfo(
        *(16, 2, 24, 2, len(tokenizer), 512, tokenizer.mask_token_id, tokenizer.pad_token_id),
        special_ids=tokenizer.all_special_ids,
    )
    masker = UniformMasker(UniformConfig(ratio=ratio), BuildContext(backbone=info, tokenizer=tokenizer))
    return (masker(tokens, Draws(1, 0, tokens.keys.numpy())).labels != -100).numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_words_of_several_pieces_are_hidden_whole(family, tmp_path):
    tokenizer = FAMILIES[family]()
    tokens = stored(tokenizer, texts()[:24], tmp_path)
    hidden, words = masked(tokenizer, tokens), tokens.words.numpy()
    several = 0
    for row in range(len(words)):
        for word in range(words[row].max() + 1):
            at = words[row] == word
            assert hidden[row][at].all() or not hidden[row][at].any()
            several += at.sum() > 1 and hidden[row][at].all()
    assert several > 50
    assert 0.2 < hidden.sum() / (words >= 0).sum() < 0.35
    assert not hidden[words < 0].any()


@pytest.mark.parametrize("family", FAMILIES)
def test_words_are_the_tokenizers_own_and_the_store_has_them(family, tmp_path):
    tokenizer = FAMILIES[family]()
    some = [*texts()[:8], "", "one"]
    encoding = tokenizer(some, padding=True, truncation=True, max_length=64)
    batch, tokens = token_batch(encoding), stored(tokenizer, some, tmp_path)
    torch.testing.assert_close(batch.ids, tokens.ids)
    torch.testing.assert_close(batch.words, tokens.words)
    torch.testing.assert_close(batch.maskable, tokens.maskable)
    for row in range(len(some)):
        ids = encoding.word_ids(row)
        ours = batch.words[row].tolist()
        assert [word is None for word in ids] == [word == -1 for word in ours]
        assert [a == b for a, b in pairwise(ids)] == [a == b for a, b in pairwise(ours)]


def test_spelled_in_words(tmp_path):
    tokenizer = byte_level()
    tokens = stored(tokenizer, ["Return uncommonly long identifiers"], tmp_path)
    pieces = [
        "".join(tokenizer.convert_ids_to_tokens(tokens.ids[0][tokens.words[0] == word].tolist()))
        for word in range(int(tokens.words.max()) + 1)
    ]
    assert pieces == ["Return", "Ġuncommonly", "Ġlong", "Ġidentifiers"]


def test_a_tokenizer_that_splits_nothing_has_words_by_its_marks(tmp_path):
    tokenizer = unsplit()
    text = "Return the value of the named attribute"
    assert len(set(tokenizer(text, add_special_tokens=False).word_ids())) == 1
    tokens = stored(tokenizer, [text], tmp_path)
    assert int(tokens.words.max()) + 1 == len(text.split())
    torch.testing.assert_close(token_batch(tokenizer([text])).words, tokens.words)


def test_a_script_without_spaces_is_no_single_word(tmp_path):
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=60, special_tokens=list(ROBERTA_SPECIALS.values()), unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator([CHINESE] * 3, trainer)
    backend.post_processor = metaspace().backend_tokenizer.post_processor
    tokenizer = type(metaspace())(
        tokenizer_object=backend, **{f"{role}_token": name for role, name in ROBERTA_SPECIALS.items()}
    )
    assert len(set(tokenizer(CHINESE, add_special_tokens=False).word_ids())) == 1
    tokens = stored(tokenizer, [CHINESE], tmp_path)
    words = tokens.words[0]
    assert int(words.max()) + 1 > 20
    hidden = masked(tokenizer, tokens)
    assert 0.2 < hidden.sum() / (words >= 0).sum().item() < 0.4


def test_a_tokenizer_that_cannot_tell_words_is_refused(tmp_path):
    tokenizer = FAMILIES["byte-level"]()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    try:
        with pytest.raises(DrkitError, match=r"TokenizersBackend .*single word: .*tokenizer\.json.*pre_tokenizer"):
            tokenise([("1", "two words")], tokenizer, tmp_path, max_length=16)
    finally:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
