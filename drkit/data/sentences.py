"""Sentences, by nltk's Punkt: its English model where it is installed, else one learnt from the texts themselves.

Punkt learns abbreviations, collocations and words that begin sentences without supervision (Kiss and Strunk 2006).
Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from drkit.errors import DrkitError

# Enough for Punkt's counts to settle, and some 100 MB while it learns.
_TEXTS, _CHARACTERS, _LONGEST = 5000, 2_000_000, 100_000


class SentenceSplitter(Protocol):
    """Where the sentences of a text are."""

    def __call__(self, text: str) -> list[tuple[int, int]]:
        """(first, last + 1) character of every sentence, in order, without the white space between them."""


class Punkt:
    """Sentences by a trained Punkt tokenizer; `source` says where its model is from. Picklable."""

    def __init__(self, tokenizer: Any, source: str) -> None:
        self._tokenizer, self.source = tokenizer, source

    def __call__(self, text: str) -> list[tuple[int, int]]:
        """(first, last + 1) character of every sentence, in order, without the white space between them."""
        return list(self._tokenizer.span_tokenize(text))


def installed_punkt(language: str = "english") -> Punkt | None:
    """The model of a language that nltk brings, where its data are installed (`punkt_tab`), else None."""
    import nltk.data
    from nltk.tokenize.punkt import PunktTokenizer

    try:
        nltk.data.find(f"tokenizers/punkt_tab/{language}/")
        return Punkt(PunktTokenizer(language), f"nltk's {language} model")
    except LookupError:
        return None


def train_punkt(texts: Iterable[str]) -> Punkt:
    """A model learnt from these texts, all of which are held: give a sample. The same texts give the same model.

    Raises DrkitError where there is no word in them.
    """
    from nltk.tokenize.punkt import PunktSentenceTokenizer, PunktTrainer

    kept = [text for text in texts if text.strip()]
    if not kept:
        raise DrkitError("no sentence model can be learnt: the texts have no words")
    trainer = PunktTrainer()
    # As paragraphs of one text: abbreviations are judged by the counts of all of them.
    trainer.train("\n\n".join(kept))
    return Punkt(PunktSentenceTokenizer(trainer.get_params()), f"learnt from {len(kept):,} texts of the collection")


def sample(texts: Iterable[str]) -> Iterator[str]:
    """The texts up to 2 million characters in all, longer ones cut short."""
    left = _CHARACTERS
    for text in texts:
        yield text[: min(left, _LONGEST)]
        left -= min(len(text), _LONGEST)
        if left <= 0:
            return


def sampled_places(count: int, seed: int) -> list[int]:
    """At most 5,000 of `count` places, drawn by `seed`."""
    return np.random.default_rng([seed, 0x5E]).permutation(count)[:_TEXTS].tolist()  # type: ignore[no-any-return]
