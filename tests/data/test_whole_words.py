"""Whole words mean the same for every family of tokenizers, in every script."""

from __future__ import annotations

import json
import unicodedata
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import regex
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from drkit.core.types import Passage
from drkit.data.documents import pieces
from drkit.data.queries import Crops
from drkit.data.spelling import is_byte_level, looks_byte_level, token_bytes, token_text
from drkit.data.store import StoredTexts, TokenStore, tokenise
from drkit.data.whole_words import WholeWords
from drkit.data.words import word_spans
from drkit.encoders import token_batch
from tests.encoders.test_words import masked

SPECIALS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
BYTES = [f"<0x{number:02X}>" for number in range(256)]
# The pattern of Llama 3 and Qwen, shortened.
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"

# Words are what spaces separate; no punctuation, so that every family agrees.
SPACED = {
    "English": "Return the value of the attribute",
    "accents of their own": unicodedata.normalize("NFD", "un café très élégant à Besançon où Noël naquit"),
    "Vietnamese": unicodedata.normalize("NFD", "Tiếng Việt được viết bằng chữ Quốc ngữ"),
    "Russian with stress": "за\u0301мок стал замко\u0301м",  # noqa: RUF001
    "Hindi": "हिन्दी भाषा में लिखी हुई पुस्तकें क्\u200dष त्र",
    "Tamil": "தமிழ் மொழி உலகில் உள்ள முதன்மையான மொழிகளில்",
    "Bengali": "বাংলা ভাষা একটি ইন্দো আর্য ভাষা",
    "Arabic with marks": "ٱلْحَمْدُ لِلَّهِ رَبِّ ٱلْعَالَمِينَ",
    "Persian with joiners": "می\u200cخواهم کتاب\u200cها را",  # noqa: RUF001
    "Hebrew with points": "בְּרֵאשִׁית בָּרָא אֱלֹהִים",
    "Korean": "한국어는 교착어이다 대한민국의 공용어",
    "Korean, conjoining": unicodedata.normalize("NFD", "한국어는 교착어이다"),
    "soft hyphens": "co\u00adoperate with un\u00adusual words",
    "emoji": "👩\u200d💻 👍🏽 ❤\ufe0f\u200d🔥 🏳\ufe0f\u200d🌈",
}
UNSPACED = {
    "Chinese": "机器学习是人工智能的一个分支它研究计算机如何从数据中学习",
    "Chinese beyond the basic plane": "𠮷野家𡈽𠀋机器学习𪚥",
    "Japanese": "これは日本語の文章でカタカナも漢字もあります",
    "Japanese, marks of their own": unicodedata.normalize("NFD", "がぎぐげごパピプペポ"),
    "Thai": "ภาษาไทยเป็นภาษาที่มีระดับเสียง",
    "Lao": "ພາສາລາວເປັນພາສາທາງການ",
    "Khmer": "ភាសាខ្មែរជាភាសាផ្លូវការ",
    "Burmese": "မြန်မာဘာသာစကားသည်တရားဝင်ဘာသာ",
    "Tibetan": "བོད་སྐད་ནི་བོད་ལྗོངས",
}
TEXTS = {**SPACED, **UNSPACED}
# A letter with its marks, and the letters below it that a virama ties to it.
_LETTER = r"[^\p{M}\p{GCB=SpacingMark}][\p{M}\p{GCB=SpacingMark}]*"
CHARACTERS = regex.compile(rf"{_LETTER}(?:(?<=\p{{CCC=9}}){_LETTER})*")
MIXED = ["Use 机器学习 in Python, हिन्दी भाषा। Καλημέρα 日本語のcafe\u0301!", "a  b\u2019s don't 12\u03013 x\u0308!", ""]


def finished(backend, trainer=None):
    if trainer is not None:
        # Pieces, so that no token is a whole clause.
        pieces = [text[at : at + 3] for text in (*TEXTS.values(), *MIXED) for at in range(len(text))]
        backend.train_from_iterator(pieces, trainer)
    around = [(name, backend.token_to_id(name)) for name in ("<s>", "</s>")]
    template = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=around)
    own = backend.post_processor
    backend.post_processor = processors.Sequence([own, template]) if own is not None else template
    return with_roles(backend)


def with_roles(backend):
    roles = {f"{role}_token": name for role, name in SPECIALS.items()}
    return hf.PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=512, **roles)


def byte_level(size, split=None, prefix=False, trim=None):
    backend = Tokenizer(models.BPE())
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=split is None)
    first = [] if split is None else [pre_tokenizers.Split(Regex(split), "isolated")]
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Sequence([*first, bytes_only]), decoders.ByteLevel()
    if trim is not None:
        backend.post_processor = processors.ByteLevel(trim_offsets=trim)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = list(SPECIALS.values())
    return finished(
        backend,
        trainers.BpeTrainer(
            vocab_size=size, special_tokens=special, initial_alphabet=sorted(alphabet), show_progress=False
        ),
    )


def wordpiece():
    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer(strip_accents=False, lowercase=False)
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    special = list(SPECIALS.values())
    return finished(backend, trainers.WordPieceTrainer(vocab_size=900, special_tokens=special, show_progress=False))


def unigram(size):
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = list(SPECIALS.values())
    trainer = trainers.UnigramTrainer(vocab_size=size, special_tokens=special, unk_token="<unk>", show_progress=False)
    return finished(backend, trainer)


def byte_fallback_bpe():
    """As Gemma's and Llama 2's: nothing splits, spaces are marks, unknown characters are bytes."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")  # training alone needs words
    special = list(SPECIALS.values())
    made = finished(backend, trainers.BpeTrainer(vocab_size=500, special_tokens=special, limit_alphabet=40))
    described = json.loads(made.backend_tokenizer.to_str())
    vocabulary = described["model"]["vocab"]
    vocabulary |= {name: len(vocabulary) + number for number, name in enumerate(BYTES)}
    described["pre_tokenizer"] = None
    return with_roles(Tokenizer.from_str(json.dumps(described)))


def byte_fallback_unigram():
    """Every byte token of an unknown run has the offsets of the whole run."""
    scores = [(name, 0.0) for name in SPECIALS.values()] + [(name, -9.0) for name in BYTES]
    scores += [("▁", -2.0), *((letter, -4.0) for letter in "abcdefghijklmnopqrstuvwxyz"), ("▁the", -3.0)]
    backend = Tokenizer(models.Unigram(scores, unk_id=3, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.add_special_tokens([*SPECIALS.values()])
    return finished(backend)


FAMILIES = {
    "WordPiece": wordpiece,
    "Unigram": lambda: unigram(700),
    "BPE with byte fallback": byte_fallback_bpe,
    "Unigram with byte fallback": byte_fallback_unigram,
    "GPT-2's bytes": lambda: byte_level(261),
    "GPT-2's bytes and their pairs": lambda: byte_level(900),
    "RoBERTa's": lambda: byte_level(700, prefix=True, trim=True),
    "ModernBERT's": lambda: byte_level(700, trim=False),
    "Qwen's": lambda: byte_level(700, split=SPLIT),
}
BYTE_LEVEL = list(FAMILIES)[4:]


@cache
def family(name):
    return FAMILIES[name]()


def words_of(tokenizer, text, folder, max_length=512):
    """The words of a text, each as the bytes of its tokens without spaces."""
    tokenise([("1", text)], tokenizer, folder, max_length=max_length)
    store = TokenStore.open(folder)
    names = tokenizer.convert_ids_to_tokens(store.flat_ids.tolist())
    pieces = [token_bytes(name, byte_level=is_byte_level(tokenizer)) for name in names]
    numbers = store.flat_words.tolist()
    assert numbers == sorted(numbers)
    found = [b"".join(p for p, n in zip(pieces, numbers, strict=True) if n == word) for word in dict.fromkeys(numbers)]
    return [word.decode().strip() for word in found if word.strip()]


@pytest.mark.parametrize("script", SPACED)
@pytest.mark.parametrize("name", FAMILIES)
def test_words_are_what_spaces_separate(name, script, tmp_path):
    tokenizer, text = family(name), SPACED[script]
    normalizer = tokenizer.backend_tokenizer.normalizer
    # BERT's normaliser drops joiners and soft hyphens.
    kept = normalizer.normalize_str(text) if name == "WordPiece" else text
    assert words_of(tokenizer, text, tmp_path) == kept.split()


@pytest.mark.parametrize("script", UNSPACED)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_clause_without_spaces_is_many_words(name, script, tmp_path):
    text = UNSPACED[script]
    words = words_of(family(name), text, tmp_path)
    assert "".join(words) == text
    if name in ("GPT-2's bytes", "Unigram with byte fallback"):  # whose tokens are single bytes
        assert words == CHARACTERS.findall(text)
    assert len(words) >= len(text) / 6


@pytest.mark.parametrize("script", UNSPACED)
@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_a_mask_hides_its_share_of_a_clause(name, script, tmp_path):
    tokenizer = family(name)
    tokenise([(str(n), UNSPACED[script]) for n in range(40)], tokenizer, tmp_path, max_length=512)
    tokens = TokenStore.open(tmp_path).batch(range(40))
    hidden = masked(tokenizer, tokens, ratio=0.3)
    shares = hidden.sum(1) / tokens.maskable.sum(1).numpy()
    assert 0.22 < shares.mean() < 0.36
    assert shares.max() < 0.5


letters = st.sampled_from(
    [
        "a",
        "b",
        " ",
        ".",
        "!",
        "1",
        "é",
        "x̣̂",
        "й",
        "क्षि",
        "मा",
        "ழ்",
        "漢",
        "。",
        "が",
        "𠮷",
        "ษ้",
        "ខ្ម",
        "한",
        "שָׁ",
        "كَ",
        "👩\u200d💻",
        "👍🏽",
        "❤️",
    ]
)


@given(st.lists(st.lists(letters, max_size=14), min_size=1, max_size=4))
@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_no_word_begins_within_a_letter(name, texts):
    whole, backend = WholeWords.of(family(name)), family(name).backend_tokenizer
    encodings = backend.encode_batch(["".join(text) for text in texts], add_special_tokens=False)
    for text, encoding, words in zip(texts, encodings, whole.of_encodings(encodings), strict=True):
        ends = np.cumsum([0, *map(len, text)]).tolist()
        for (_, before), (start, end), (one, two) in zip(
            encoding.offsets, encoding.offsets[1:], pairwise(words.tolist()), strict=False
        ):
            # A token of a mark and the next letter is a word where no spaces separate words.
            goes_on = end > min(stop for stop in [*ends, end] if stop > start or stop == end)
            assert one == two or start in ends or goes_on, (text, before, start)
        (alone,) = whole.of_encodings(backend.encode_batch(["".join(text)], add_special_tokens=False))
        assert words.tolist() == alone.tolist(), "the other texts of a batch matter"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_batch_has_the_words_of_the_store(name, tmp_path):
    tokenizer, some = family(name), [*TEXTS.values(), *MIXED, "a <mask> b</s>c"]
    tokenise(enumerate(some), tokenizer, tmp_path, max_length=512)
    stored = TokenStore.open(tmp_path).batch(range(len(some)))
    encoding = tokenizer(some, padding=True, truncation=True, max_length=512)
    for batch in (token_batch(encoding), token_batch(encoding, tokenizer=tokenizer)):
        assert batch.ids.tolist() == stored.ids.tolist()
        assert batch.words.tolist() == stored.words.tolist()
        assert batch.maskable.tolist() == stored.maskable.tolist()


@pytest.mark.parametrize("name", FAMILIES)
def test_special_tokens_in_a_text_are_never_maskable(name, tmp_path):
    tokenizer = with_roles(Tokenizer.from_str(family(name).backend_tokenizer.to_str()))
    tokenizer.add_tokens([hf.AddedToken("<|query|>", special=True)], special_tokens=True)
    text = "the <mask> cat</s> sat <|query|> on<pad> a mat"
    special = {tokenizer.convert_tokens_to_ids(one) for one in ("<mask>", "</s>", "<pad>", "<|query|>", "<s>")}
    tokenise([("1", text)], tokenizer, tmp_path, max_length=64)
    batches = [TokenStore.open(tmp_path).batch([0]), token_batch(tokenizer([text]), tokenizer=tokenizer)]
    for batch in batches:
        assert sum(token in special for token in batch.ids[0].tolist()) == 6
        assert not batch.maskable[0][[token in special for token in batch.ids[0].tolist()]].any()
        assert batch.maskable.sum() > 5
    named = token_batch(tokenizer([text]))
    known = special - {tokenizer.convert_tokens_to_ids("<|query|>")}
    assert not named.maskable[0][[token in known for token in named.ids[0].tolist()]].any()


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_spell_the_text(name, tmp_path):
    tokenizer, some = family(name), [*SPACED.values()]
    if name == "WordPiece":
        some = [SPACED["Tamil"], SPACED["English"]]
    tokenise(enumerate(some), tokenizer, tmp_path, max_length=512)
    found = list(StoredTexts(TokenStore.open(tmp_path), tokenizer, len(tokenizer)).read())
    for text, (spelled, spans) in zip(some, found, strict=True):
        assert spelled.split() == text.split()
        assert (spans[:, 0] <= spans[:, 1]).all()
        covered = {position for a, b in spans.tolist() for position in range(a, b)}
        assert all(spelled[position] == " " for position in set(range(len(spelled))) - covered)


def test_words_survive_truncation_within_a_character(tmp_path):
    tokenizer = family("GPT-2's bytes")
    text = "漢字" * 10
    full = words_of(tokenizer, text, tmp_path / "a")
    assert full == list(text)
    tokenise([("1", text)], tokenizer, tmp_path / "b", max_length=2 + 4)  # a character and a byte
    store = TokenStore.open(tmp_path / "b")
    assert store.flat_words.tolist() == [0, 0, 0, 1]
    assert token_batch(tokenizer([text], truncation=True, max_length=6)).words[0].tolist() == [-1, 0, 0, 0, 1, -1]
    ((spelled, spans),) = StoredTexts(store, tokenizer, len(tokenizer)).read()
    assert spelled.strip() == "漢"
    assert spans.max() <= len(spelled)


def test_bytes_are_recognised():
    for name in FAMILIES:
        tokenizer = family(name)
        assert is_byte_level(tokenizer) == (name in BYTE_LEVEL), name
        tokens = [
            tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in MIXED
        ]
        assert looks_byte_level(tokens) == (name in BYTE_LEVEL), name
    assert not looks_byte_level([["caf\u00e9", "tr\u00e8s"]]), "accents are symbols of bytes, too"


def test_a_token_within_a_character_is_shown_by_its_bytes():
    tokenizer = family("GPT-2's bytes")
    ids = tokenizer("a \u6f22", add_special_tokens=False)["input_ids"]
    assert [token_text(tokenizer, token) for token in ids] == ["a", "", "<E6>", "<BC>", "<A2>"]
    assert token_text(tokenizer, tokenizer.mask_token_id) == "<mask>"


@given(st.text(alphabet="ab1.! \n\t\u00e9\u0915\u093f\ud55c\u0645", max_size=30))
def test_written_words_are_what_spaces_separate(text):
    assert [text[a:b] for a, b in word_spans(text)] == text.split()


def test_written_words_of_scripts_without_spaces():
    text = "机器学习。Python 很好。"
    assert [text[a:b] for a, b in word_spans(text)] == ["机器", "学习。", "Python", "很好。"]
    long = UNSPACED["Chinese"] * 3
    crops = Crops(4, 1)([Passage("1", long)], np.array([0]))[0]
    assert len(crops) == 4
    assert all(2 * 4 - 1 <= len(crop) <= 2 * 16 and crop in long for crop in crops)
    paragraphs = [UNSPACED["Chinese"]] * 6
    assert len(list(pieces("\n\n".join(paragraphs), words=30))) == 3
