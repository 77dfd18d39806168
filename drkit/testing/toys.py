"""Toy inputs: a tiny encoder, its tokens, a corpus; all from a seed, none from a file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from attrs import evolve, fields, frozen
from numpy.typing import NDArray
from transformers import BertTokenizerFast

from drkit.core.spec import TEACHER, Choice
from drkit.core.types import (
    BuildContext,
    EmbeddedPairs,
    MiningRequest,
    Passage,
    Query,
    ScoredGroups,
    TokenBatch,
    map_tensors,
)
from drkit.data.values import PAIR, PASSAGE, QUERY
from drkit.encoders import BertSizes, MaskedLmEncoder
from drkit.encoders.learned_pooling import LearnedPooling
from drkit.errors import DrkitError

VOCAB = 97
# Numbers of a toy teacher's vectors.
TEACHER_SIZE = 5
PAD, UNK, CLS, SEP, MASK = range(5)
# The letters of `tokenizer_for`: each is two entries, at the start of a word and within it.
_LETTERS = 32
_WORDS, _PIECES = (
    text.split()
    for text in (
        "the of and in to is for on with by search query passage index model token corpus rank score text word cat dog "
        "river stone music paper light fox moon ship glass wind bread chair turing lovelace berlin paris 1815 1936 "
        "1843 green small old new",
        "##s ##ed ##ing ##er ##ers ##ly ##al ##ful ##less ##ness ##ment ##able ##ish ##ism ##ist ##ity ##ive ##ize "
        "##ous ##like ##hood ##dom ##ology ##graphy ##ation ##or ##age ##ance ##ant ##ary ##ate ##ette ##ify ##ial "
        "##ible ##ic ##ian ##ster ##tude ##ure ##wise ##y ##est ##en ##fold ##ee",
    )
)


@lru_cache(maxsize=1)
def toy_tokenizer() -> Any:
    """Return a lower-casing BERT tokenizer of 5 special tokens, 46 English words and 46 endings (`##ing`)."""
    return _tokenizer([*_WORDS, *_PIECES])


def tokenizer_for(texts: Sequence[str]) -> Any:
    """Return a tokenizer like `toy_tokenizer`, of the same size, whose entries are frequent words and letters of texts.

    Most words are several tokens, a letter each; a letter that is none of the most frequent makes its word unknown.
    """
    plain = toy_tokenizer().backend_tokenizer
    words = [
        word for text in texts for word, _ in plain.pre_tokenizer.pre_tokenize_str(plain.normalizer.normalize_str(text))
    ]
    letters = [letter for letter, _ in Counter("".join(words)).most_common(_LETTERS)]
    entries = [*letters, *(f"##{letter}" for letter in letters)]
    frequent = (word for word, _ in Counter(word for word in words if len(word) > 1).most_common())
    unused = (f"[unused{number}]" for number in range(VOCAB))
    return _tokenizer([*entries, *islice(chain(frequent, unused), VOCAB - MASK - 1 - len(entries))])


def _tokenizer(entries: Sequence[str]) -> Any:
    """Return a BERT tokenizer with these entries after the special ones."""
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *entries]
    return BertTokenizerFast(vocab={entry: number for number, entry in enumerate(known)})


def toy_texts(lengths: Sequence[int] = (16, 12, 5, 7, 10, 14, 8, 16)) -> list[str]:
    """Return texts with these numbers of words for `toy_tokenizer`.

    Two of three words have two tokens; the first word of each text and every fifth begin with a capital.
    """
    return [" ".join(_toy_word(row, n) for n in range(length)) for row, length in enumerate(lengths)]


def _toy_word(row: int, position: int) -> str:
    ending = _PIECES[(5 * row + position) % len(_PIECES)][2:] if position % 3 else ""
    word = _WORDS[(7 * row + 3 * position) % len(_WORDS)] + ending
    return word.capitalize() if position % 5 == 0 else word


def toy_encoder(
    seed: int = 7,
    *,
    pooling: str = "cls",
    model_type: str = "bert",
    more: Mapping[str, Any] = MappingProxyType({}),
    **sizes: Any,
) -> MaskedLmEncoder:
    """Return a BERT of two layers and width 16, or of other `sizes` (of `BertSizes`), model type and configuration."""
    tiny = BertSizes(hidden=16, layers=2, heads=2, intermediate=24, max_positions=64, dropout=0.0)
    return MaskedLmEncoder.from_scratch(
        evolve(tiny, **sizes), toy_tokenizer(), model_type=model_type, pooling=pooling, seed=seed, **more
    )


def pooled_toy_encoder(pooling: Choice | None) -> MaskedLmEncoder:
    """Return a toy encoder with a pooling that is a part; None: the first token's state."""
    encoder = toy_encoder()
    if pooling is None:
        return encoder
    settings = {a.name: getattr(pooling.config, a.name) for a in fields(type(pooling.config))}
    return MaskedLmEncoder(encoder.model, pooling=LearnedPooling(pooling.use, settings, encoder.info(toy_tokenizer())))


def toy_context(seed: int = 7) -> BuildContext:
    """Return the context that parts are built with beside `toy_encoder`."""
    tokenizer = toy_tokenizer()
    return BuildContext(
        backbone=toy_encoder().info(tokenizer),
        tokenizer=tokenizer,
        retriever=ToyRetriever(),
        reranker=ToyReranker(),
        negatives={request.query_id: ["d20", "d21", "nowhere", "d22"] for request in toy_requests(3000)},
        signals={"idf": torch.linspace(0.1, 4.0, VOCAB)},
        seed=seed,
    )


def toy_tokens(lengths: Sequence[int] = (30, 22, 9, 4, 3, 2, 17, 30), padding: int = 0) -> TokenBatch:
    """Return texts of these lengths, special tokens included (2: an empty text), padded by `padding` more than needed.

    A text of a given length and index in `lengths` is the same under any padding; words have 1 to 5 tokens, of which
    the first is one of `toy_tokenizer`'s words and the others are endings.
    """
    longest = max(lengths) + padding
    shape = (len(lengths), longest)
    ids, words = torch.full(shape, PAD), torch.full(shape, -1)
    importance = torch.zeros(shape)
    for row, length in enumerate(lengths):
        draw = torch.Generator().manual_seed(row)
        body = slice(1, length - 1)
        ids[row, :length] = torch.randint(MASK + 1, VOCAB, (length,), generator=draw)
        ids[row, 0], ids[row, length - 1] = CLS, SEP
        pieces = torch.randint(1, 6, (length,), generator=draw)
        words[row, body] = torch.repeat_interleave(torch.arange(length), pieces)[: length - 2]
        within = words[row, 1:] == words[row, :-1]  # token n + 1 goes on with the word of token n
        kind = (ids[row, 1:] - MASK - 1) % len(_WORDS) + MASK + 1 + within * len(_WORDS)
        ids[row, 1:] = torch.where(words[row, 1:] >= 0, kind, ids[row, 1:])
        importance[row, body] = torch.randn(length - 2, generator=draw)
    attention = ids != PAD
    keys = torch.arange(len(lengths)) * 1000 + 17
    signals = {"importance": importance}
    return TokenBatch(ids=ids, attention=attention, maskable=words >= 0, words=words, keys=keys, signals=signals)


def with_signals(tokens: TokenBatch, signals: Mapping[str, tuple[str, tuple[int, ...]]]) -> TokenBatch:
    """Return the batch with exactly these toy signals, by name: f32[B,L] per `token`, f32[B] per `text`.

    signals: the scope of each, and the size of its vectors, such as (3,) for f32[B,3]; () for numbers. A text's values
    do not depend on padding or other texts.
    """
    made = {
        name: tokens.signals.get(name, _toy_signal(tokens, name, scope, size))
        for name, (scope, size) in signals.items()
        if scope != "vocabulary"
    }
    return evolve(tokens, signals=made)


def _toy_signal(tokens: TokenBatch, name: str, scope: str, size: tuple[int, ...]) -> torch.Tensor:
    turn = 1.0 + len(name) + torch.arange(size[0] if size else 1)
    if scope == "text":
        values = torch.sin(turn * tokens.ids.sum(1).float()[:, None])
    else:
        values = torch.sin(turn * tokens.ids.float()[..., None]) * tokens.maskable[..., None]
    return values if size else values[..., 0]


def rows_of(tokens: TokenBatch, rows: Sequence[int]) -> TokenBatch:
    """Return some texts of a batch, in the given order."""
    chosen = list(rows)
    return map_tensors(tokens, lambda tensor: tensor[chosen])


def toy_pairs(
    dimension: int = 6,
    columns: Mapping[str, str] = MappingProxyType({TEACHER: PAIR}),
    values: Mapping[str, Sequence[float]] = MappingProxyType({}),
    vectors: Mapping[str, int] = MappingProxyType({}),
) -> EmbeddedPairs:
    """Return five queries and eleven passages, with groups of 1 to 4 passages, a copy, and unscored passages.

    Passages 3 and 8 are copies; passage 6 is not a candidate of query 1; the teacher did not score the last query, nor
    passage 5 for the first. Scores are of the same size for vectors of any dimension. columns: what each has a value
    for, `query`, `passage` or `pair`. values: those of a column, repeated as often as needed, instead of random ones.
    vectors: the length of the vectors of each column that holds vectors.
    """
    draw = torch.Generator().manual_seed(3)
    scale = (6 / dimension) ** 0.5
    queries, passages = ((scale * torch.randn(count, dimension, generator=draw)).requires_grad_() for count in (5, 11))
    groups = torch.tensor([[0, 5, 6, 7], [1, 8, -1, -1], [2, -1, -1, -1], [3, 9, -1, -1], [4, 10, -1, -1]])
    numbers = torch.arange(11)
    numbers[8] = 3
    candidates = torch.ones(5, 11, dtype=torch.bool)
    candidates[1, 6] = candidates[:, 8] = False
    teacher = torch.randn(5, 4, generator=draw).masked_fill(groups < 0, float("nan"))
    others = {QUERY: torch.randn(5, generator=draw), PASSAGE: torch.randn(11, generator=draw), PAIR: teacher.clone()}
    teacher[4], teacher[0, 1] = float("nan"), float("nan")
    made = {name: teacher if name == TEACHER else others[per] for name, per in columns.items()}
    made |= {
        name: _repeated(given, others[columns[name]].shape, groups < 0 if columns[name] == PAIR else None)
        for name, given in values.items()
    }
    for name, size in sorted(vectors.items()):
        made[name] = torch.randn(len(others[columns[name]]), size, generator=draw)
    return EmbeddedPairs(
        queries=queries,
        passages=passages,
        positives=torch.arange(5),
        candidates=candidates,
        groups=groups,
        numbers=numbers,
        query_ids=torch.arange(5),
        passage_ids=numbers,
        columns=made,
    )


def _repeated(values: Sequence[float], shape: Sequence[int], padding: torch.Tensor | None) -> torch.Tensor:
    """Return values in a tensor of a shape, over and over, with NaN, -1 or False where a mask is True, as in a run."""
    repeated = torch.tensor(values).repeat(-(-math.prod(shape) // len(values)))[: math.prod(shape)].reshape(*shape)
    if padding is None:
        return repeated
    pad = math.nan if repeated.is_floating_point() else 0 if repeated.dtype == torch.bool else -1
    return torch.where(padding, torch.tensor(pad, dtype=repeated.dtype), repeated)


def toy_groups() -> ScoredGroups:
    """Return a cross-encoder's scores of four queries' own passages: 5, 3, 1 and 2 of them."""
    draw = torch.Generator().manual_seed(4)
    scores, teacher = torch.randn(4, 5, generator=draw).requires_grad_(), torch.randn(4, 5, generator=draw)
    mask = torch.arange(5) < torch.tensor([5, 3, 1, 2])[:, None]
    return ScoredGroups(scores=scores, mask=mask, columns={TEACHER: teacher.masked_fill(~mask, float("nan"))})


@frozen
class Examples:
    """What parts that read texts are tried on. source: where they are from, in words."""

    texts: tuple[str, ...]
    queries: tuple[Query, ...]
    passages: tuple[Passage, ...]
    source: str = "toy texts"

    def items(self, scope: str) -> list[Any]:
        """Return what a column of a scope has values for: queries, passages, or pairs of both."""
        pairs = [(query, passage) for query in self.queries for passage in self.passages]
        found: Mapping[str, list[Any]] = {QUERY: [*self.queries], PASSAGE: [*self.passages], PAIR: pairs}
        return found[scope]


def toy_examples(given: Sequence[str] = ()) -> Examples:
    """Return toy texts, queries and passages; given: texts that take their place, as a spec's `example` has them."""
    if given:
        queries = tuple(Query(f"q{row}", text) for row, text in enumerate(given[:5]))
        passages = tuple(Passage(f"d{row}", text) for row, text in enumerate(given[:3]))
        return Examples(tuple(given), queries, passages)
    queries = tuple(Query(one.query_id, one.text) for one in toy_requests(5))
    return Examples(tuple(toy_texts()), queries, tuple(ToyCorpus())[:3])


class ToyCorpus:
    """Forty passages; passage i is about topics i and i + 1."""

    def __init__(self) -> None:
        self._passages = {f"d{i}": Passage(f"d{i}", f"topic{i} and topic{i + 1} in passage") for i in range(40)}

    def __len__(self) -> int:
        return len(self._passages)

    def __iter__(self) -> Iterator[Passage]:
        return iter(self._passages.values())

    def find(self, doc_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the index of each id, i64[n], or -1 if it is unknown."""
        indices = {doc_id: index for index, doc_id in enumerate(self._passages)}
        return np.array([indices.get(doc_id, -1) for doc_id in doc_ids], np.int64)

    def get_many(self, doc_ids: Sequence[str]) -> list[Passage]:
        """Return the passages with these ids, as a run's corpus does. Raises DrkitError for an unknown id."""
        if unknown := [doc_id for doc_id in doc_ids if doc_id not in self._passages]:
            raise DrkitError(f"unknown passage {unknown[0]!r}; corpus.find(doc_ids) is -1 for ids that it lacks")
        return [self._passages[doc_id] for doc_id in doc_ids]


def toy_requests(count: int) -> Iterator[MiningRequest]:
    """Yield queries on topic 0, 1, ..; each has one or two judged positives among the best hits."""
    for number in range(count):
        topic = number % 40
        positives = frozenset({f"d{topic}"} if number % 2 else {f"d{topic}", f"d{(topic + 1) % 40}"})
        yield MiningRequest(f"q{number}", f"topic{topic} passage", positives, answers=(f"topic{topic + 3} and",))


class ToyRetriever:
    """Ranks the toy corpus by shared words."""

    def search(self, texts: Sequence[str], depth: int) -> list[tuple[tuple[str, ...], tuple[float, ...]]]:
        """Return (doc_ids, scores) for each text, best first."""
        return [self._one(set(text.split()), depth) for text in texts]

    def _one(self, words: set[str], depth: int) -> tuple[tuple[str, ...], tuple[float, ...]]:
        scored = [(-len(words & set(passage.content.split())), passage.doc_id) for passage in ToyCorpus()]
        best = sorted(scored)[:depth]
        return tuple(doc_id for _, doc_id in best), tuple(-float(score) for score, _ in best)


class ToyReranker:
    """Scores pairs of texts by the words they share."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Return how many words each pair shares."""
        shared = [len(set(query.split()) & set(passage.split())) for query, passage in pairs]
        return np.array(shared, dtype=np.float32)
