"""Which parts go together: typed data flow, checked before torch is imported.

A part *needs* and *provides* names; the check follows a recipe from the collection to the losses and says of
every gap who needs what, who offers what, and which other parts would fit.

    collection   texts, queries, judgements
    data         importance (PMI of every token), idf (of every token), spans, queries (contexts of a text),
                 generator (a masked LM that fills masked positions); stages of the run make them from texts
    masker       view (masked positions of the decoder's text), rows (a visibility pattern per row),
                 replaced (masked positions are filled by a generator), context (the decoder's text is another one)
    encoder      token_states (states at target positions), text_states (of whole texts), bottleneck (one vector a
                 text), partners (which rows of the batch belong together), and where the masker has words replaced,
                 replaced (at which targets)
    decoder      token_states, vocab_logits (scores of all words, one row a text), words (which words occur in it),
                 replaced_logits, replaced (which tokens a generator put there); and partners
    fine-tuning  pairs (query and passage vectors), teacher (scores of a cross-encoder, where the round has one),
                 groups (a cross-encoder's scores of each query's own passages)
    mining       retriever (of the round before), candidates (what the miner before it in the chain found), reranker
"""

from __future__ import annotations

from pathlib import Path

from drkit.core.compose_rounds import rounds_problems
from drkit.core.declared import declared
from drkit.core.loading import check_model_path
from drkit.core.reasons import MADE_FROM_TEXTS, fitting, listed, losses_for, missing_extras
from drkit.core.recipe import Pretrain, Recipe
from drkit.core.registry import Registry
from drkit.core.spec import Kind
from drkit.errors import DrkitError, ProblemsError

ENCODER_PROVIDES = ("token_states", "text_states", "bottleneck", "partners")
# What it provides beside, where the masker does.
FROM_MASKER = ("replaced",)
# What a decoder's output has beside its own: the run knows which rows belong together.
BESIDE_DECODER = ("partners",)


def check(recipe: Recipe, registry: Registry) -> None:
    """Raise ProblemsError, listing every combination in the recipe that cannot work."""
    problems = [*_collection_problems(recipe, registry), *_encoder_problems(recipe)]
    if recipe.pretrain:
        problems += _pretrain_problems(recipe.pretrain, registry)
    problems += rounds_problems(recipe, registry)
    if problems:
        raise ProblemsError(f"recipe {recipe.name!r} cannot work", problems)


def data_needs(recipe: Recipe, registry: Registry) -> tuple[str, ...]:
    """What the recipe's maskers, decoders and losses need from the data beyond texts, e.g. `importance`."""
    if recipe.pretrain is None:
        return ()
    pretrain = recipe.pretrain
    uses = [(Kind.MASKER, pretrain.masker), (Kind.DECODER, pretrain.decoder)]
    needed = [registry.get(kind, part.use).needs_of(part.config) for kind, part in uses]
    needed += [registry.get(Kind.LOSS, term.use).needs_of(term.config) for term in pretrain.losses.values()]
    return tuple(sorted(frozenset().union(*needed) & MADE_FROM_TEXTS.keys()))


def _collection_problems(recipe: Recipe, registry: Registry) -> list[str]:
    spec = registry.get(Kind.COLLECTION, recipe.collection.use)
    problems = []
    if spec.shorthand and not getattr(recipe.collection.config, spec.shorthand):
        problems.append(
            f"collection {spec.name!r} needs {spec.shorthand!r}: write `--collection {spec.name}:VALUE` @ collection"
        )
    if recipe.pretrain is None and recipe.finetune is None:
        problems.append("the recipe has neither [pretrain] nor [finetune]: there is nothing to train")
    if recipe.finetune and recipe.pretrain is None and "queries" not in spec.provides:
        problems.append(f"collection {spec.name!r} has no queries and judgements to fine-tune on @ finetune")
    return problems


def _encoder_problems(recipe: Recipe) -> list[str]:
    sizes = recipe.encoder
    if sizes.pretrained is None and sizes.hidden % sizes.heads:
        return [f"hidden ({sizes.hidden}) is no multiple of heads ({sizes.heads}) @ encoder"]
    if sizes.pretrained is None:
        return []
    try:
        check_model_path(sizes.pretrained)
    except DrkitError as error:
        return [f"{error} @ encoder.pretrained"]
    if sizes.declared == "ignore":
        return []
    told = declared(Path(sizes.pretrained).expanduser())
    return told.clashes(sizes) if told else []


def _pretrain_problems(pretrain: Pretrain, registry: Registry) -> list[str]:
    masker = registry.get(Kind.MASKER, pretrain.masker.use)
    decoder = registry.get(Kind.DECODER, pretrain.decoder.use)
    problems = [*missing_extras(masker), *missing_extras(decoder)]
    masker_needs, decoder_needs = masker.needs_of(pretrain.masker.config), decoder.needs_of(pretrain.decoder.config)
    for need in sorted(masker_needs - MADE_FROM_TEXTS.keys()):
        problems.append(f"masker {masker.name!r} needs {need}, which no stage of a run makes @ pretrain.masker")
    views = masker.provides_of(pretrain.masker.config)
    lacking = sorted(decoder_needs - MADE_FROM_TEXTS.keys() - views)
    if lacking:
        problems.append(
            f"decoder {decoder.name!r} needs {listed(lacking)}; masker {masker.name!r} provides "
            f"{listed(sorted(views))}. {fitting(registry, Kind.MASKER, decoder_needs)} @ pretrain.decoder"
        )
    rebuilt = decoder.provides_of(pretrain.decoder.config)
    for name, loss in pretrain.losses.items():
        encoded = (*ENCODER_PROVIDES, *(name for name in FROM_MASKER if name in views))
        provided = encoded if loss.on == "encoder" else tuple(sorted({*rebuilt, *BESIDE_DECODER}))
        spec = registry.get(Kind.LOSS, loss.use)
        lacking = sorted(spec.needs_of(loss.config) - MADE_FROM_TEXTS.keys() - set(provided))
        if lacking:
            source = "the encoder" if loss.on == "encoder" else f"decoder {decoder.name!r}"
            problems.append(
                f"loss {loss.use!r} needs {listed(lacking)}; {source} provides {listed(provided)}. "
                f"{losses_for(registry, provided)} @ pretrain.losses.{name}"
            )
    return problems
