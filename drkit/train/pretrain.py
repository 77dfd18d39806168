"""Pre-training: a bottlenecked auto-encoder, and batches of texts with new masks in every epoch.

One encoder with a view of a text, and any number of decoders, each with a view of its own; one vector between them;
weighted losses. The module takes and returns plain dicts of tensors, because data parallelism does not find tensors
inside bundles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import evolve, field, frozen
from torch import Tensor, nn

from drkit.core.draws import Draws
from drkit.core.protocols import Context, CountsItems, CountsTargets, Decoder, LearningReplacer, Loss, Masker, Replacer
from drkit.core.schedules import settings_at
from drkit.core.spec import keyword, vector_name
from drkit.core.types import DecoderInput, Encoded, MaskedView, StepOutput, TextStates, TokenBatch
from drkit.data.contexts import PretrainingTexts, stacked
from drkit.decoders.layers import layers_read
from drkit.encoders import MaskedLmEncoder
from drkit.encoders.heads import preceding_states, token_states
from drkit.maskers.views import NO_TARGET, keep_targets, replaced_targets, unmasked_view
from drkit.recipe.schema import ENCODER_SIDE
from drkit.train.batches import Example
from drkit.train.gradients import ITEMS, LOSS, METRIC, ROWS, Rows

_TOKENS = ("ids", "attention", "maskable", "words", "keys")
VIEW = ("ids", "labels", "attention", "visible", "noise", "ratios")
# The side of the encoder among those that have a text, a view and losses; the others are the decoders, by name.
# The name of a replacer's own loss among the recipe's terms, with its weight already applied, and of its folder in a
# checkpoint.
REPLACER = "generator"
# Prefix of signals among a batch's tensors and the outputs that losses receive.
_SIGNAL = "signal."
# Added to a text's key to draw its partner's masks: keys are indices in a store, and no store is this long.
PARTNER = 1 << 40


@frozen(eq=False)
class Term:
    """One weighted term of the loss.

    receives: names of the outputs that the loss is called with; on: the side that they come from, `encoder` or the
    name of a decoder. weight: may be a `Scheduled`. scope: `batch` if the loss compares rows of the batch with each
    other, else `rows`. signals: names of the signals that it is called with, for the text that `on` reads or rebuilds.
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
        named = {keyword(name): f"{_SIGNAL}{name}" for name in self.signals}
        return {**{keyword(name): name for name in self.receives}, **named}

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
    """The encoder's pass over a batch: its view (filled, if there is a replacer), clean text and output."""

    view: MaskedView
    source: TokenBatch
    encoded: Encoded


class AutoEncoder(nn.Module):
    """An encoder and its decoders, by name, with `loss = sum of weight * loss(outputs)` over the outputs of all.

    The module takes the tensors of `MaskingCollator` and returns the losses and rows of which `drkit.train.gradients`
    computes the gradients.
    """

    row_indices: Mapping[str, str] = {}
    marks = ("encoder.attention",)
    # The padding value of signals, for texts that are longer in another process.
    padding: Mapping[str, float] = {}

    def __init__(
        self,
        encoder: MaskedLmEncoder,
        decoders: Mapping[str, Decoder],
        terms: Mapping[str, Term],
        replacer: Replacer | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoders = nn.ModuleDict(decoders)  # type: ignore[arg-type]
        self.replacer: Any = replacer
        self.terms = dict(terms)
        self._progress = 0.0
        self.losses = nn.ModuleDict({n: term.loss for n, term in terms.items() if isinstance(term.loss, nn.Module)})
        paired = [term for term in terms.values() if "partners" in term.receives]
        self.row_indices = {f"{term.on}.partners": f"{term.on}.partners" for term in paired}
        self.padding = {f"{term.on}.{keyword(name)}": 0.0 for term in terms.values() for name in term.signals}

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each local loss, including a replacer's own if it is trained."""
        terms = self.terms.items()
        local = {name: settings_at(term.weight, self._progress) for name, term in terms if not term.compares}
        return {**local, REPLACER: 1.0} if trains_replacer(self.replacer) else local

    def set_progress(self, progress: float) -> None:
        """Take the weights of losses at a progress in [0, 1]; each loss takes its own settings."""
        self._progress = progress

    def compares(self) -> bool:
        """Return whether any loss compares rows."""
        return any(term.compares for term in self.terms.values())

    def paired(self) -> bool:
        """Return whether any loss receives partners, so that texts must come in pairs."""
        return bool(self.row_indices)

    def forward(self, *, local: bool = True, **tensors: Tensor) -> dict[str, Tensor]:
        """Return local losses with items and metrics, and the rows to compare; without losses if not `local`."""
        views, replacer_step = self.filled_views(tensors)
        encoder_pass = self.encode(views, tensors)
        outputs = self.outputs(encoder_pass, views, tensors)
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
        if replacer_step is not None:
            out[ITEMS + REPLACER] = replacer_step.metrics["targets"]
            out |= _loss_tensors(REPLACER, replacer_step)
        return out

    def count(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Return the number of items of each local loss in a batch that nothing has read; None if a part cannot say."""
        if trains_replacer(self.replacer):
            return None
        views = {side: _view(side, tensors) for side in (ENCODER_SIDE, *self.decoders)}
        ids, tokens = views[ENCODER_SIDE].ids, _tokens(ENCODER_SIDE, tensors)
        nothing = Encoded(bottleneck=torch.zeros(len(ids), 0), hidden=torch.zeros(*ids.shape, 0))
        encoder_pass = EncoderPass(views[ENCODER_SIDE], tokens, nothing)
        outputs: dict[str, Mapping[str, Any]] = {ENCODER_SIDE: self._encoder_outputs(encoder_pass)}
        for name, decoder in self.decoders.items():
            if isinstance(decoder, CountsTargets):
                inputs = DecoderInput(nothing, _tokens(name, tensors), views[name], views[ENCODER_SIDE])
                outputs[name] = {**decoder.targets(inputs), **_signals(inputs.tokens)}
        counts, rows = {}, torch.tensor(len(ids))
        for name, term in self.terms.items():
            known = outputs.get(term.on, {})
            if term.compares:
                continue
            if not isinstance(term.loss, CountsItems):
                counts[ITEMS + name] = rows
            elif {*term.arguments.values()} <= known.keys():
                counts[ITEMS + name] = term.items(term.inputs(known), rows)
            else:
                return None
        return counts

    def compare(self, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted losses that compare rows, and their metrics."""
        metrics: dict[str, Tensor] = {}
        losses = []
        for name, term in self.terms.items():
            if term.compares:
                step = term.loss(**{name: rows[f"{term.on}.{name}"] for name in term.arguments})
                losses.append(settings_at(term.weight, self._progress) * step.loss)
                metrics[f"{name}_loss"] = step.loss.detach()
                metrics |= {f"{name}_{key}": value for key, value in step.metrics.items()}
        return torch.stack(losses).sum(), metrics

    def chunks(self, tensors: Mapping[str, Tensor], size: int) -> list[dict[str, Tensor]]:
        """Cut a batch into chunks of at most `size` rows."""
        rows = len(next(iter(tensors.values())))
        return [{name: t[start : start + size] for name, t in tensors.items()} for start in range(0, rows, size)]

    def filled_views(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, MaskedView], StepOutput | None]:
        """Return the view of each side, its masked positions filled by the replacer, and the replacer's own loss.

        It learns from the first view that it fills.
        """
        views, replacer_step = {}, None
        for side in (ENCODER_SIDE, *self.decoders):
            view = _view(side, tensors)
            if self.replacer is not None and view.noise is not None:
                learn = self.training and replacer_step is None
                view, step = self.replacer(view, _tokens(side, tensors), learn=learn)
                replacer_step = replacer_step or step
            views[side] = view
        return views, replacer_step

    def encode(self, views: Mapping[str, MaskedView], tensors: Mapping[str, Tensor]) -> EncoderPass:
        """Encode the encoder's view."""
        view, layers = views[ENCODER_SIDE], self._layers()
        return EncoderPass(view, _tokens(ENCODER_SIDE, tensors), self.encoder.encode(view.ids, view.attention, layers))

    def _layers(self) -> tuple[int, ...]:
        """Return the encoder's layers that any decoder reads."""
        decoders: Any = self.decoders.values()
        return tuple(sorted({layer for decoder in decoders for layer in layers_read(decoder)}))

    def outputs(
        self, encoder_pass: EncoderPass, views: Mapping[str, MaskedView], tensors: Mapping[str, Tensor]
    ) -> dict[str, dict[str, Any]]:
        """Return the outputs of the encoder and of each decoder, by name."""
        partners = {"partners": tensors["partners"]} if "partners" in tensors else {}
        outputs = {ENCODER_SIDE: self._encoder_outputs(encoder_pass), **self.decode(encoder_pass, views, tensors)}
        return {side: {**found, **partners} for side, found in outputs.items()}

    def _encoder_outputs(self, encoder_pass: EncoderPass) -> dict[str, Any]:
        heads, encoded = self.encoder.heads(), encoder_pass.encoded
        outputs: dict[str, Any] = {
            "token_states": token_states(encoded.hidden, encoder_pass.view.labels, heads),
            "text_states": TextStates(encoded.hidden, encoder_pass.source, heads),
            "bottleneck": encoded.bottleneck,
            **{vector_name(name): vector for name, vector in encoded.vectors.items()},
        }
        view = encoder_pass.view
        if any("preceding_states" in term.receives for term in self.terms.values()):
            outputs["preceding_states"] = preceding_states(encoded.hidden, view.labels, heads)
        if view.noise is not None:
            outputs["replaced"] = replaced_targets(view, encoder_pass.source)
        if view.ratios is not None:
            outputs["ratios"] = view.ratios[:, None].expand_as(view.labels)[view.labels != NO_TARGET]
        return outputs | _signals(encoder_pass.source)

    def decode(
        self, encoder_pass: EncoderPass, views: Mapping[str, MaskedView], tensors: Mapping[str, Tensor]
    ) -> dict[str, dict[str, Any]]:
        """Return the outputs of each decoder, by name, and the signals of the text that it rebuilds."""
        outputs = {}
        for name, decoder in self.decoders.items():
            inputs = self.decoder_input(name, encoder_pass, views, tensors)
            outputs[name] = {**decoder(inputs, self.encoder.heads()), **_signals(inputs.tokens)}
        return outputs

    def decoder_input(
        self, name: str, encoder_pass: EncoderPass, views: Mapping[str, MaskedView], tensors: Mapping[str, Tensor]
    ) -> DecoderInput:
        """Return a decoder's input: its text and view, and the encoder's pass with the layers that it reads."""
        layers = dict(zip(self._layers(), encoder_pass.encoded.layers, strict=True))
        needed = tuple(layers[layer] for layer in layers_read(self.decoders[name]))
        encoded = evolve(encoder_pass.encoded, layers=needed)
        return DecoderInput(encoded, _tokens(name, tensors), views[name], encoder_pass.view)


def trains_replacer(replacer: Any) -> bool:
    """Return whether a masker's replacer is trained beside the encoder."""
    return isinstance(replacer, LearningReplacer) and replacer.learns


def side_tensors(side: str, view: MaskedView, text: TokenBatch | None) -> dict[str, Tensor]:
    """Return a view and its text as tensors by name, for `AutoEncoder.forward`; text: None for the encoder's text."""
    found = {f"{side}.{name}": getattr(view, name) for name in VIEW}
    return {name: tensor for name, tensor in found.items() if tensor is not None} | (
        {} if text is None else _token_tensors(side, text)
    )


def swap_vectors(encoder_pass: EncoderPass) -> EncoderPass:
    """Return the pass with the vectors of another text for each text, to measure what the right ones are worth."""
    encoded = encoder_pass.encoded
    vectors = {name: vector.roll(1, 0) for name, vector in encoded.vectors.items()}
    return evolve(encoder_pass, encoded=evolve(encoded, bottleneck=encoded.bottleneck.roll(1, 0), vectors=vectors))


def _loss_tensors(name: str, step: StepOutput) -> dict[str, Tensor]:
    return {LOSS + name: step.loss, **{f"{METRIC}{name}.{key}": value for key, value in step.metrics.items()}}


def _view(side: str, tensors: Mapping[str, Tensor]) -> MaskedView:
    return MaskedView(**{name: tensors.get(f"{side}.{name}") for name in VIEW})  # type: ignore[arg-type]


def _tokens(side: str, tensors: Mapping[str, Tensor]) -> TokenBatch:
    prefix = f"{side if f'{side}.tokens.ids' in tensors else ENCODER_SIDE}.tokens."
    start = f"{prefix}{_SIGNAL}"
    signals = {name[len(start) :]: tensor for name, tensor in tensors.items() if name.startswith(start)}
    return TokenBatch(**{name: tensors[f"{prefix}{name}"] for name in _TOKENS}, signals=signals)


def _token_tensors(side: str, tokens: TokenBatch) -> dict[str, Tensor]:
    """Return a text as tensors by name, from which `_tokens` makes it again."""
    signals = {f"{side}.tokens.{_SIGNAL}{name}": values for name, values in tokens.signals.items()}
    return {**{f"{side}.tokens.{name}": getattr(tokens, name) for name in _TOKENS}, **signals}


def _signals(tokens: TokenBatch) -> dict[str, Tensor]:
    return {f"{_SIGNAL}{name}": values for name, values in tokens.signals.items()}


@frozen(eq=False)
class DecoderText:
    """What a decoder rebuilds: its context (None: the encoder's text), and how that is masked (None: not at all).

    rows: returns the number of visibility rows that the decoder needs for a length. nested: its view hides what the
    encoder's view of the same text hides.
    """

    masker: Masker | None
    rows: Callable[[int], int]
    context: Context | None = None
    nested: bool = False


@frozen(eq=False)
class MaskingCollator:
    """Turns (epoch, example) pairs into the tensors of `AutoEncoder.forward`, with new masks in every epoch.

    masker: the encoder's; decoders: the decoders' texts, by name. partner: if losses compare two texts, chooses the
    partner of each one (row B + b belongs to row b); if that is the text itself, its mask is drawn separately. A
    decoder with a context of its own rebuilds it from the text, and the text from its partner. progress: that of the
    training, which maskers find in their random numbers.
    """

    texts: PretrainingTexts
    masker: Masker
    seed: int
    decoders: Mapping[str, DecoderText] = field(factory=dict)
    partner: Context | None = None
    progress: float = 0.0

    def at_progress(self, progress: float) -> MaskingCollator:
        """Return the collator at a progress in [0, 1]."""
        return evolve(self, progress=progress)

    def __call__(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Return the tensors of a batch; all examples of a batch belong to one epoch."""
        epoch = examples[0][0]
        indices = np.array([example for _, example in examples], dtype=np.int64)
        tokens = self.texts.batch(indices)
        partner = None if self.partner is None else self._chosen(self.partner, tokens, epoch)
        both = tokens if partner is None else self._stacked(tokens, evolve(partner, keys=tokens.keys + PARTNER))
        rng = Draws(self.seed, epoch, both.keys.numpy(), self.progress)
        view = self.masker(both, rng)
        tensors = side_tensors(ENCODER_SIDE, view, both)
        for name, decoder in self.decoders.items():
            text = tokens if decoder.context is None else self._chosen(decoder.context, tokens, epoch)
            if text is tokens:
                text = both
            elif partner is not None:
                text = self._stacked(text, text if partner is tokens else tokens)
            tensors |= side_tensors(name, _decoder_view(decoder, text, view, rng), None if text is both else text)
        if partner is not None:
            tensors["partners"] = torch.arange(2 * len(indices)).roll(len(indices))
        return tensors

    def _chosen(self, context: Context, tokens: TokenBatch, epoch: int) -> TokenBatch:
        return context(tokens, self.texts, seed=self.seed, epoch=epoch)

    def _stacked(self, first: TokenBatch, second: TokenBatch) -> TokenBatch:
        return stacked(first, second, self.texts.store.pad_id)


def _decoder_view(decoder: DecoderText, text: TokenBatch, encoder_view: MaskedView, rng: Draws) -> MaskedView:
    """Return a decoder's view of its text, with at most as many targets as it has rows."""
    if decoder.masker is None:
        return unmasked_view(text)
    length = text.ids.shape[1]
    rows = decoder.rows(length)
    view = decoder.masker(text, rng, rows=rows, nested=encoder_view if decoder.nested else None)
    return keep_targets(view, decoder.rows, rng) if 0 < rows < length else view
