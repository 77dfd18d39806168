"""Which parts go together: typed data flow, checked before torch is imported.

A part *needs* and *provides* names; the check follows a recipe from the collection to the losses and says of
every gap who needs what, who offers what, and which other parts would fit.

    collection   texts, queries, judgements
    data         importance (PMI statistics; a stage of the run makes them from texts)
    masker       view (masked positions of the decoder's text), rows (a visibility pattern per row)
    encoder      token_states (states at target positions), bottleneck (one vector a text)
    decoder      token_states, vocab_logits
    fine-tuning  pairs (query and passage vectors), retriever (the round before)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.util import find_spec

from drkit.core.recipe import Finetune, Pretrain, Recipe
from drkit.core.registry import Registry
from drkit.core.spec import ComponentSpec, Kind
from drkit.errors import ProblemsError

# What a stage of the run can make from texts alone.
MADE_FROM_TEXTS = {"importance": "statistics"}
# Folders of a run that a round's own folder must not be taken for.
STAGE_NAMES = (
    "collection",
    "vocabulary",
    "tokens",
    "statistics",
    "initial",
    "pretrained",
    "no-pretraining",
    "encoder",
    "index",
    "runs",
    "evaluation",
    "bm25",
)
_ROUND_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
ENCODER_PROVIDES = ("token_states", "bottleneck")


def check(recipe: Recipe, registry: Registry) -> None:
    """Raise ProblemsError, listing every combination in the recipe that cannot work."""
    problems = [*_collection_problems(recipe, registry), *_encoder_problems(recipe)]
    if recipe.pretrain:
        problems += _pretrain_problems(recipe.pretrain, registry)
    if recipe.finetune:
        problems += _finetune_problems(recipe.finetune, registry)
    if problems:
        raise ProblemsError(f"recipe {recipe.name!r} cannot work", problems)


def data_needs(recipe: Recipe, registry: Registry) -> tuple[str, ...]:
    """What the recipe's maskers, decoders and losses need from the data beyond texts, e.g. `importance`."""
    if recipe.pretrain is None:
        return ()
    uses = [(Kind.MASKER, recipe.pretrain.masker.use), (Kind.DECODER, recipe.pretrain.decoder.use)]
    uses += [(Kind.LOSS, loss.use) for loss in recipe.pretrain.losses.values()]
    needed = {need for kind, use in uses for need in registry.get(kind, use).needs}
    return tuple(sorted(needed & MADE_FROM_TEXTS.keys()))


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
    return []


def _pretrain_problems(pretrain: Pretrain, registry: Registry) -> list[str]:
    masker = registry.get(Kind.MASKER, pretrain.masker.use)
    decoder = registry.get(Kind.DECODER, pretrain.decoder.use)
    problems = [*_missing_extras(masker), *_missing_extras(decoder)]
    for need in sorted(set(masker.needs) - MADE_FROM_TEXTS.keys()):
        problems.append(f"masker {masker.name!r} needs {need}, which no stage of a run makes @ pretrain.masker")
    lacking = sorted(set(decoder.needs) - MADE_FROM_TEXTS.keys() - set(masker.provides))
    if lacking:
        problems.append(
            f"decoder {decoder.name!r} needs {_and(lacking)}; masker {masker.name!r} provides "
            f"{_and(masker.provides)}. {_fitting(registry, Kind.MASKER, decoder.needs)} @ pretrain.decoder"
        )
    for name, loss in pretrain.losses.items():
        provided = ENCODER_PROVIDES if loss.on == "encoder" else decoder.provides
        spec = registry.get(Kind.LOSS, loss.use)
        lacking = sorted(set(spec.needs) - set(provided))
        if lacking:
            source = "the encoder" if loss.on == "encoder" else f"decoder {decoder.name!r}"
            problems.append(
                f"loss {loss.use!r} needs {_and(lacking)}; {source} provides {_and(provided)}. "
                f"{_losses_for(registry, provided)} @ pretrain.losses.{name}"
            )
    return problems


def _finetune_problems(finetune: Finetune, registry: Registry) -> list[str]:
    problems = []
    loss = registry.get(Kind.LOSS, finetune.loss.use)
    if set(loss.needs) - {"pairs"}:
        problems.append(
            f"loss {loss.name!r} needs {_and(loss.needs)}; fine-tuning provides pairs. "
            f"{_losses_for(registry, ('pairs',))} @ finetune.loss"
        )
    names = [r.name for r in finetune.rounds]
    for name in sorted({n for n in names if names.count(n) > 1}):
        problems.append(f"two rounds are named {name!r} @ finetune.rounds")
    for name in dict.fromkeys(names):
        if name in STAGE_NAMES or name.startswith(("index-", "negatives-")) or not _ROUND_NAME.fullmatch(name):
            problems.append(
                f"a round cannot be named {name!r}: it becomes a folder beside the run's other stages. Use letters, "
                f"digits, '.', '_' and '-', and none of "
                f"{', '.join(STAGE_NAMES)}, index-*, negatives-* @ finetune.rounds"
            )
    for place, current in enumerate(finetune.rounds):
        if current.miner is None:
            continue
        miner = registry.get(Kind.MINER, current.miner.use)
        problems += _missing_extras(miner)
        if "retriever" in miner.needs and place == 0:
            problems.append(
                f"miner {miner.name!r} searches with the retriever of the round before, and there is none; "
                f"put a round with bm25 or random before it @ finetune.rounds.0.miner"
            )
    return problems


def _fitting(registry: Registry, kind: Kind, needs: Iterable[str]) -> str:
    wanted = set(needs) - MADE_FROM_TEXTS.keys()
    names = [spec.name for spec in registry.specs(kind) if wanted <= set(spec.provides)]
    return f"{kind}s that fit: {', '.join(names) or 'none'}"


def _losses_for(registry: Registry, provided: Iterable[str]) -> str:
    names = [spec.name for spec in registry.specs(Kind.LOSS) if set(spec.needs) <= set(provided)]
    return f"losses that fit: {', '.join(names) or 'none'}"


def _missing_extras(spec: ComponentSpec) -> list[str]:
    absent = [extra for extra in spec.extras if find_spec(extra) is None]
    return [f"{spec.kind} {spec.name!r} needs the package {name!r}, which is not installed" for name in absent]


def _and(names: Iterable[str]) -> str:
    return " and ".join(names) or "nothing"
