"""The bottlenecked auto-encoder: one encoder view, one decoder view, one vector between them, weighted losses.

The module takes and returns plain dicts of tensors: data parallelism finds no tensors inside bundles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor, nn

from drkit.core.protocols import CountsItems, Decoder, LearningReplacer, Loss, Replacer
from drkit.core.spec import keyword
from drkit.core.types import DecoderInput, Encoded, MaskedView, StepOutput, TextStates, TokenBatch
from drkit.decoders.replaced_token_detection import replaced_targets
from drkit.encoders import MaskedLmEncoder
from drkit.encoders.heads import token_states
from drkit.runs.training.gathering import Rows
from drkit.runs.training.gradients import FIGURE, ITEMS, LOSS, ROWS

TOKENS = ("ids", "attention", "maskable", "words", "keys")
VIEW = ("ids", "labels", "attention", "visible", "noise")
# The generator's own loss stands beside the recipe's terms; its weight is the masker's business.
GENERATOR = "generator"
# Before the name of a signal, among a batch's tensors and the outputs that losses receive.
SIGNAL = "signal."


@frozen(eq=False)
class Term:
    """One term of the loss: what it receives, by name, from the outputs of `on` (encoder or decoder), and its weight.

    scope: `batch` where it compares rows of the batch with each other, else `rows`. signals: those that its call
    receives, of the text that `on` reads or rebuilds.
    """

    loss: Loss
    receives: Sequence[str]
    on: str
    weight: float = 1.0
    scope: str = "rows"
    signals: Sequence[str] = ()

    @property
    def arguments(self) -> dict[str, str]:
        """Its call's keywords, each with the name of what it receives among the outputs."""
        named = {keyword(name): f"{SIGNAL}{name}" for name in self.signals}
        return {**{name: name for name in self.receives}, **named}

    @property
    def compares(self) -> bool:
        """Whether it compares rows of the batch with each other."""
        return self.scope == "batch"

    def given(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """What its call receives, of what its side provides."""
        return {name: outputs[output] for name, output in self.arguments.items()}

    def items(self, given: Mapping[str, Any], rows: Tensor) -> Tensor:
        """How many items its mean runs over: the rows of the batch, where it does not say."""
        return self.loss.items(**given) if isinstance(self.loss, CountsItems) else rows


@frozen(eq=False)
class Reading:
    """A batch, read: the view of it (a generator's words in place), its clean text, the encoder's output.

    learned: the generator's own loss, where it is trained.
    """

    view: MaskedView
    source: TokenBatch
    encoded: Encoded
    learned: StepOutput | None = None


class AutoEncoder(nn.Module):
    """`loss = sum of weight * loss(output)` over the encoder's and the decoder's outputs.

    The tensors it takes are those of `drkit.runs.pretraining.masking.MaskingCollator`; what it returns is what
    `drkit.runs.training.gradients` takes gradients of.
    """

    numbering: Mapping[str, str] = {}
    # What a signal has at the padding of a longer text, in another process.
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
        """The weight of each loss that needs no comparing; the generator's, where it learns."""
        own = {name: term.weight for name, term in self.terms.items() if not term.compares}
        return {**own, GENERATOR: 1.0} if learns(self.replacer) else own

    def compares(self) -> bool:
        """Whether any loss compares rows."""
        return any(term.compares for term in self.terms.values())

    def paired(self) -> bool:
        """Whether any loss receives partners, so that texts come in pairs."""
        return bool(self.numbering)

    def forward(self, *, local: bool = True, **tensors: Tensor) -> dict[str, Tensor]:
        """Local losses with their items and figures, and the rows to compare; without the losses if not `local`."""
        reading = self.read(tensors)
        outputs = self.outputs(reading, tensors)
        rows = torch.tensor(len(reading.view.ids), device=reading.view.ids.device)
        made: dict[str, Tensor] = {}
        for name, term in self.terms.items():
            given = term.given(outputs[term.on])
            if term.compares:
                made |= {f"{ROWS}{term.on}.{name}": value for name, value in given.items()}
                continue
            made[ITEMS + name] = term.items(given, rows)
            if local:
                made |= _figures(name, term.loss(**given))
        if reading.learned is not None:
            made[ITEMS + GENERATOR] = reading.learned.metrics["targets"]
            made |= _figures(GENERATOR, reading.learned)
        return made

    def compare(self, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted losses that compare rows, and their figures."""
        figures: dict[str, Tensor] = {}
        losses = []
        for name, term in self.terms.items():
            if term.compares:
                step = term.loss(**{name: rows[f"{term.on}.{name}"] for name in term.arguments})
                losses.append(term.weight * step.loss)
                figures[f"{name}_loss"] = step.loss.detach()
                figures |= {f"{name}_{key}": value for key, value in step.metrics.items()}
        return torch.stack(losses).sum(), figures

    def chunks(self, tensors: Mapping[str, Tensor], size: int) -> list[dict[str, Tensor]]:
        """A batch in parts of at most `size` rows."""
        rows = len(next(iter(tensors.values())))
        return [{name: t[start : start + size] for name, t in tensors.items()} for start in range(0, rows, size)]

    def read(self, tensors: Mapping[str, Tensor]) -> Reading:
        """Replace what a generator is to replace, and encode."""
        view, source, learned = _view("encoder", tensors), _tokens("source", tensors), None
        if self.replacer is not None and view.noise is not None:
            view, learned = self.replacer(view, source, learn=self.training)
        encoded = self.encoder.encode(view.ids, view.attention, tuple(self.decoder.needs_layers))
        return Reading(view, source, encoded, learned)

    def outputs(self, reading: Reading, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
        """What the encoder and the decoder provide, by name."""
        heads, encoded = self.encoder.heads(), reading.encoded
        partners = {"partners": tensors["partners"]} if "partners" in tensors else {}
        encoder: dict[str, Any] = {
            "token_states": token_states(encoded.hidden, reading.view.labels, heads),
            "text_states": TextStates(encoded.hidden, reading.source, heads),
            "bottleneck": encoded.bottleneck,
        }
        if reading.view.noise is not None:
            encoder["replaced"] = replaced_targets(reading.view, reading.source)
        encoder |= _signals(reading.source)
        return {"encoder": {**encoder, **partners}, "decoder": {**self.decode(reading, tensors), **partners}}

    def decode(self, reading: Reading, tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
        """What the decoder makes of a reading and the decoder's view, and the signals of the text that it rebuilds."""
        inputs = self.decoder_input(reading, tensors)
        output: Mapping[str, Any] = self.decoder(inputs, self.encoder.heads())
        return {**output, **_signals(inputs.tokens)}

    def decoder_input(self, reading: Reading, tensors: Mapping[str, Tensor]) -> DecoderInput:
        """Return what the decoder is called with: the decoder's view, its masked positions filled, and a reading."""
        view, tokens = _view("decoder", tensors), _tokens("tokens", tensors)
        if self.replacer is not None and view.noise is not None:
            view, _ = self.replacer(view, tokens, learn=False)
        return DecoderInput(reading.encoded, tokens, view, reading.view)


def learns(replacer: Any) -> bool:
    """Whether a masker's replacer is trained beside the encoder."""
    return isinstance(replacer, LearningReplacer) and replacer.learns


def collated(views_source: TokenBatch, views: Any) -> dict[str, Tensor]:
    """The tensors of a batch and its views, by name, for `AutoEncoder.forward`; a text that is read twice goes once."""
    tensors = _named("tokens", views.context)
    if views.context is not views_source:
        tensors |= _named("source", views_source)
    for side, view in (("encoder", views.encoder), ("decoder", views.decoder)):
        found = {f"{side}.{name}": getattr(view, name) for name in VIEW}
        tensors |= {name: tensor for name, tensor in found.items() if tensor is not None}
    return tensors


def with_bottleneck_of(reading: Reading, bottleneck: Tensor) -> Reading:
    """The same reading with another vector f[B,D] for each text: what the decoder gains from the right one."""
    return evolve(reading, encoded=evolve(reading.encoded, bottleneck=bottleneck))


def _figures(name: str, step: StepOutput) -> dict[str, Tensor]:
    return {LOSS + name: step.loss, **{f"{FIGURE}{name}.{key}": value for key, value in step.metrics.items()}}


def _view(side: str, tensors: Mapping[str, Tensor]) -> MaskedView:
    return MaskedView(**{name: tensors.get(f"{side}.{name}") for name in VIEW})  # type: ignore[arg-type]


def _tokens(side: str, tensors: Mapping[str, Tensor]) -> TokenBatch:
    prefix = side if f"{side}.ids" in tensors else "tokens"
    start = f"{prefix}.{SIGNAL}"
    signals = {name[len(start) :]: tensor for name, tensor in tensors.items() if name.startswith(start)}
    return TokenBatch(**{name: tensors[f"{prefix}.{name}"] for name in TOKENS}, signals=signals)  # type: ignore[arg-type]


def _named(side: str, tokens: TokenBatch) -> dict[str, Tensor]:
    """The tensors of a text, for `_tokens` to read."""
    signals = {f"{side}.{SIGNAL}{name}": values for name, values in tokens.signals.items()}
    return {**{f"{side}.{name}": getattr(tokens, name) for name in TOKENS}, **signals}


def _signals(tokens: TokenBatch) -> dict[str, Tensor]:
    return {f"{SIGNAL}{name}": values for name, values in tokens.signals.items()}
