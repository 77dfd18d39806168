"""Pre-training: a bottlenecked auto-encoder, and batches of texts with new masks in every epoch.

One encoder view, one decoder view, one vector between them, weighted losses. The module takes and returns plain dicts
of tensors, because data parallelism does not find tensors inside bundles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import evolve, field, frozen
from numpy.typing import NDArray
from torch import Tensor, nn

from drkit.core.draws import Draws
from drkit.core.protocols import CountsItems, Decoder, LearningReplacer, Loss, Masker, Replacer
from drkit.core.spec import keyword
from drkit.core.types import DecoderInput, Encoded, MaskedView, StepOutput, TextStates, TokenBatch, Views
from drkit.data.arrays import SignalValues
from drkit.data.contexts import Contexts, stacked
from drkit.data.store import TokenStore
from drkit.encoders import MaskedLmEncoder
from drkit.encoders.heads import token_states
from drkit.maskers.views import keep_targets, replaced_targets
from drkit.train.batches import Example
from drkit.train.gradients import ITEMS, LOSS, METRIC, ROWS, Rows

TOKENS = ("ids", "attention", "maskable", "words", "keys")
VIEW = ("ids", "labels", "attention", "visible", "noise")
# The name of the generator's own loss among the recipe's terms; the masker applies its weight.
GENERATOR = "generator"
# Prefix of signals among a batch's tensors and the outputs that losses receive.
SIGNAL = "signal."
# Lengths are padded to multiples of this: few shapes, so the allocator can reuse its blocks.
BUCKET = 16
# Added to a text's key to draw its partner's masks: keys are indices in a store, and no store is this long.
PARTNER = 1 << 40


@frozen(eq=False)
class Term:
    """One weighted term of the loss.

    receives: names of the outputs that the loss is called with; on: the side that they come from, `encoder` or
    `decoder`. scope: `batch` if the loss compares rows of the batch with each other, else `rows`. signals: names of the
    signals that it is called with, for the text that `on` reads or rebuilds.
    """

    loss: Loss
    receives: Sequence[str]
    on: str
    weight: float = 1.0
    scope: str = "rows"
    signals: Sequence[str] = ()

    @property
    def arguments(self) -> dict[str, str]:
        """The name of the output for each keyword of the loss's call."""
        named = {keyword(name): f"{SIGNAL}{name}" for name in self.signals}
        return {**{name: name for name in self.receives}, **named}

    @property
    def compares(self) -> bool:
        """Whether the loss compares rows of the batch with each other."""
        return self.scope == "batch"

    def inputs(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of the loss's call, taken from the outputs of its side."""
        return {name: outputs[output] for name, output in self.arguments.items()}

    def items(self, inputs: Mapping[str, Any], rows: Tensor) -> Tensor:
        """Return the number of items that the loss is a mean over; by default the number of rows."""
        return self.loss.items(**inputs) if isinstance(self.loss, CountsItems) else rows


@frozen(eq=False)
class EncoderPass:
    """The encoder's pass over a batch: its view (with a generator's words filled in), clean text and output.

    generator_step: the generator's own loss, if it is trained.
    """

    view: MaskedView
    source: TokenBatch
    encoded: Encoded
    generator_step: StepOutput | None = None


class AutoEncoder(nn.Module):
    """An encoder and a decoder with `loss = sum of weight * loss(outputs)` over the outputs of both.

    The module takes the tensors of `MaskingCollator` and returns the losses and rows of which `drkit.train.gradients`
    computes the gradients.
    """

    numbering: Mapping[str, str] = {}
    marks = ("encoder.attention",)
    # The padding value of signals, for texts that are longer in another process.
    padding: Mapping[str, float] = {}

    def __init__(
        self,
        encoder: MaskedLmEncoder,
        decoder: Decoder,
        terms: Mapping[str, Term],
        replacer: Replacer | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder: Any = decoder
        self.replacer: Any = replacer
        self.terms = dict(terms)
        self.losses = nn.ModuleDict({n: term.loss for n, term in terms.items() if isinstance(term.loss, nn.Module)})
        paired = [term for term in terms.values() if "partners" in term.receives]
        self.numbering = {f"{term.on}.partners": f"{term.on}.partners" for term in paired}
        self.padding = {f"{term.on}.{keyword(name)}": 0.0 for term in terms.values() for name in term.signals}

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each local loss, including the generator's own if it is trained."""
        local = {name: term.weight for name, term in self.terms.items() if not term.compares}
        return {**local, GENERATOR: 1.0} if trains_generator(self.replacer) else local

    def compares(self) -> bool:
        """Return whether any loss compares rows."""
        return any(term.compares for term in self.terms.values())

    def paired(self) -> bool:
        """Return whether any loss receives partners, so that texts must come in pairs."""
        return bool(self.numbering)

    def forward(self, *, local: bool = True, **tensors: Tensor) -> dict[str, Tensor]:
        """Return local losses with items and metrics, and the rows to compare; without losses if not `local`."""
        encoder_pass = self.encode(tensors)
        outputs = self.outputs(encoder_pass, tensors)
        rows = torch.tensor(len(encoder_pass.view.ids), device=encoder_pass.view.ids.device)
        out: dict[str, Tensor] = {}
        for name, term in self.terms.items():
            inputs = term.inputs(outputs[term.on])
            if term.compares:
                out |= {f"{ROWS}{term.on}.{name}": value for name, value in inputs.items()}
                continue
            out[ITEMS + name] = term.items(inputs, rows)
            if local:
                out |= _loss_tensors(name, term.loss(**inputs))
        if encoder_pass.generator_step is not None:
            out[ITEMS + GENERATOR] = encoder_pass.generator_step.metrics["targets"]
            out |= _loss_tensors(GENERATOR, encoder_pass.generator_step)
        return out

    def compare(self, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted losses that compare rows, and their metrics."""
        metrics: dict[str, Tensor] = {}
        losses = []
        for name, term in self.terms.items():
            if term.compares:
                step = term.loss(**{name: rows[f"{term.on}.{name}"] for name in term.arguments})
                losses.append(term.weight * step.loss)
                metrics[f"{name}_loss"] = step.loss.detach()
                metrics |= {f"{name}_{key}": value for key, value in step.metrics.items()}
        return torch.stack(losses).sum(), metrics

    def chunks(self, tensors: Mapping[str, Tensor], size: int) -> list[dict[str, Tensor]]:
        """Cut a batch into chunks of at most `size` rows."""
        rows = len(next(iter(tensors.values())))
        return [{name: t[start : start + size] for name, t in tensors.items()} for start in range(0, rows, size)]

    def encode(self, tensors: Mapping[str, Tensor]) -> EncoderPass:
        """Encode the encoder's view, after a generator filled its masked positions if the masker has one."""
        view, source, generator_step = _view("encoder", tensors), _tokens("source", tensors), None
        if self.replacer is not None and view.noise is not None:
            view, generator_step = self.replacer(view, source, learn=self.training)
        encoded = self.encoder.encode(view.ids, view.attention, tuple(self.decoder.needs_layers))
        return EncoderPass(view, source, encoded, generator_step)

    def outputs(self, encoder_pass: EncoderPass, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
        """Return the outputs of the encoder and of the decoder, by name."""
        heads, encoded = self.encoder.heads(), encoder_pass.encoded
        partners = {"partners": tensors["partners"]} if "partners" in tensors else {}
        encoder: dict[str, Any] = {
            "token_states": token_states(encoded.hidden, encoder_pass.view.labels, heads),
            "text_states": TextStates(encoded.hidden, encoder_pass.source, heads),
            "bottleneck": encoded.bottleneck,
        }
        if encoder_pass.view.noise is not None:
            encoder["replaced"] = replaced_targets(encoder_pass.view, encoder_pass.source)
        encoder |= _signals(encoder_pass.source)
        return {"encoder": {**encoder, **partners}, "decoder": {**self.decode(encoder_pass, tensors), **partners}}

    def decode(self, encoder_pass: EncoderPass, tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
        """Return the outputs of the decoder, by name, and the signals of the text that it rebuilds."""
        inputs = self.decoder_input(encoder_pass, tensors)
        output: Mapping[str, Any] = self.decoder(inputs, self.encoder.heads())
        return {**output, **_signals(inputs.tokens)}

    def decoder_input(self, encoder_pass: EncoderPass, tensors: Mapping[str, Tensor]) -> DecoderInput:
        """Return the decoder's input: its view, with masked positions filled by a generator, and the encoder's pass."""
        view, tokens = _view("decoder", tensors), _tokens("tokens", tensors)
        if self.replacer is not None and view.noise is not None:
            view, _ = self.replacer(view, tokens, learn=False)
        return DecoderInput(encoder_pass.encoded, tokens, view, encoder_pass.view)


def trains_generator(replacer: Any) -> bool:
    """Return whether a masker's replacer has a generator that is trained beside the encoder."""
    return isinstance(replacer, LearningReplacer) and replacer.learns


def batch_tensors(source: TokenBatch, views: Views) -> dict[str, Tensor]:
    """Return a batch and its views as tensors by name, for `AutoEncoder.forward`; a text used twice is kept once."""
    tensors = _token_tensors("tokens", views.context)
    if views.context is not source:
        tensors |= _token_tensors("source", source)
    for side, view in (("encoder", views.encoder), ("decoder", views.decoder)):
        found = {f"{side}.{name}": getattr(view, name) for name in VIEW}
        tensors |= {name: tensor for name, tensor in found.items() if tensor is not None}
    return tensors


def replace_bottleneck(encoder_pass: EncoderPass, bottleneck: Tensor) -> EncoderPass:
    """Return the pass with another vector f[B,D] for each text, to measure what the right one is worth."""
    return evolve(encoder_pass, encoded=evolve(encoder_pass.encoded, bottleneck=bottleneck))


def _loss_tensors(name: str, step: StepOutput) -> dict[str, Tensor]:
    return {LOSS + name: step.loss, **{f"{METRIC}{name}.{key}": value for key, value in step.metrics.items()}}


def _view(side: str, tensors: Mapping[str, Tensor]) -> MaskedView:
    return MaskedView(**{name: tensors.get(f"{side}.{name}") for name in VIEW})  # type: ignore[arg-type]


def _tokens(side: str, tensors: Mapping[str, Tensor]) -> TokenBatch:
    prefix = side if f"{side}.ids" in tensors else "tokens"
    start = f"{prefix}.{SIGNAL}"
    signals = {name[len(start) :]: tensor for name, tensor in tensors.items() if name.startswith(start)}
    return TokenBatch(**{name: tensors[f"{prefix}.{name}"] for name in TOKENS}, signals=signals)  # type: ignore[arg-type]


def _token_tensors(side: str, tokens: TokenBatch) -> dict[str, Tensor]:
    """Return a text as tensors by name, from which `_tokens` makes it again."""
    signals = {f"{side}.{SIGNAL}{name}": values for name, values in tokens.signals.items()}
    return {**{f"{side}.{name}": getattr(tokens, name) for name in TOKENS}, **signals}


def _signals(tokens: TokenBatch) -> dict[str, Tensor]:
    return {f"{SIGNAL}{name}": values for name, values in tokens.signals.items()}


@frozen(eq=False)
class MaskingCollator:
    """Turns (epoch, example) pairs into the tensors of `AutoEncoder.forward`, with new masks in every epoch.

    rows: returns the number of visibility rows that the decoder needs for a length. signals: signals of the store's
    tokens and texts, by name. contexts: the source of the texts' contexts. paired: each text gets a partner (row B + b
    belongs to row b): its context, or the text itself with a separately drawn mask.
    """

    store: TokenStore
    masker: Masker
    rows: Callable[[int], int]
    seed: int
    signals: Mapping[str, SignalValues] = field(factory=dict)
    contexts: Contexts | None = None
    paired: bool = False

    def __call__(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Return the tensors of a batch; all examples of a batch belong to one epoch."""
        epoch = examples[0][0]
        indices = np.array([example for _, example in examples], dtype=np.int64)
        tokens = self._tokens(indices, epoch)
        tensors = self._masked(tokens, Draws(self.seed, epoch, tokens.keys.numpy()))
        if self.paired:
            rows = torch.arange(2 * len(indices))
            tensors["partners"] = rows.roll(len(indices))
        return tensors

    def _tokens(self, indices: NDArray[np.int64], epoch: int) -> TokenBatch:
        tokens = self.store.batch(indices, pad_to=BUCKET, signals=self.signals)
        context = None if self.contexts is None else self.contexts.batch(indices, epoch, self.seed, pad_to=BUCKET)
        if not self.paired:
            return evolve(tokens, context=context)
        partner = evolve(tokens if context is None else context, keys=tokens.keys + PARTNER)
        both = stacked(tokens, partner, self.store.pad_id)
        return both if context is None else evolve(both, context=stacked(partner, tokens, self.store.pad_id))

    def _masked(self, tokens: TokenBatch, rng: Draws) -> dict[str, Tensor]:
        length = (tokens.context or tokens).ids.shape[1]
        rows = self.rows(length)
        views = self.masker(tokens, rng, rows=rows)
        if 0 < rows < length:
            views = evolve(views, decoder=keep_targets(views.decoder, self.rows, rng))
        return batch_tensors(tokens, views)
