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

import re
from collections.abc import Iterable
from importlib.util import find_spec

from drkit.core.recipe import RERANKER, Choice, Finetune, Pretrain, Recipe
from drkit.core.registry import Registry
from drkit.core.spec import ComponentSpec, Kind
from drkit.errors import ProblemsError

# What a stage of the run can make from texts alone.
MADE_FROM_TEXTS = {
    "importance": "statistics",
    "idf": "frequencies",
    "spans": "spans",
    "generated-queries": "queries",
    "generator": "generator",
}
# Folders of a run that a round's own folder must not be taken for.
STAGE_NAMES = (
    "collection",
    "vocabulary",
    "tokens",
    "spans",
    "statistics",
    "frequencies",
    "queries",
    "generator",
    "initial",
    "pretrained",
    "no-pretraining",
    "encoder",
    "index",
    "runs",
    "evaluation",
    "report",
    "bm25",
    "reranker",
)
STAGE_FAMILIES = ("index-", "negatives-", "teacher-")
_ROUND_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
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
    if recipe.finetune:
        problems += _finetune_problems(recipe.finetune, registry)
        problems += _round_problems(recipe, recipe.finetune, registry)
    if recipe.reranker:
        problems += _reranker_problems(recipe, registry)
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
    return []


def _pretrain_problems(pretrain: Pretrain, registry: Registry) -> list[str]:
    masker = registry.get(Kind.MASKER, pretrain.masker.use)
    decoder = registry.get(Kind.DECODER, pretrain.decoder.use)
    problems = [*_missing_extras(masker), *_missing_extras(decoder)]
    masker_needs, decoder_needs = masker.needs_of(pretrain.masker.config), decoder.needs_of(pretrain.decoder.config)
    for need in sorted(masker_needs - MADE_FROM_TEXTS.keys()):
        problems.append(f"masker {masker.name!r} needs {need}, which no stage of a run makes @ pretrain.masker")
    views = masker.provides_of(pretrain.masker.config)
    lacking = sorted(decoder_needs - MADE_FROM_TEXTS.keys() - views)
    if lacking:
        problems.append(
            f"decoder {decoder.name!r} needs {_and(lacking)}; masker {masker.name!r} provides "
            f"{_and(sorted(views))}. {_fitting(registry, Kind.MASKER, decoder_needs)} @ pretrain.decoder"
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
                f"loss {loss.use!r} needs {_and(lacking)}; {source} provides {_and(provided)}. "
                f"{_losses_for(registry, provided)} @ pretrain.losses.{name}"
            )
    return problems


def _finetune_problems(finetune: Finetune, registry: Registry) -> list[str]:
    """Losses, and the names of rounds, which become folders."""
    problems = _fine_tuning_loss("finetune.loss", finetune.loss, ("pairs", "teacher"), registry)
    for place, current in enumerate(finetune.rounds):
        loss = finetune.of(current).loss
        if current.loss:
            problems += _fine_tuning_loss(f"finetune.rounds.{place}.loss", loss, ("pairs", "teacher"), registry)
        if "teacher" in registry.get(Kind.LOSS, loss.use).needs_of(loss.config) and not current.teacher:
            problems.append(
                f"loss {loss.use!r} learns from a teacher's scores, and the round has none: set teacher to reranker, "
                f"or to a cross-encoder's path or hub id @ finetune.rounds.{place}"
            )
        similarities = {getattr(one.config, "similarity", "dot") for one in (finetune.loss, loss)}
        if len(similarities) > 1:
            problems.append(
                f"the round trains for another similarity than finetune.loss ({', '.join(sorted(similarities))}), and "
                f"one encoder has one: set both to the same @ finetune.rounds.{place}.loss"
            )
    return [*problems, *_name_problems([r.name for r in finetune.rounds])]


def _fine_tuning_loss(path: str, loss: Choice, provided: tuple[str, ...], registry: Registry) -> list[str]:
    spec = registry.get(Kind.LOSS, loss.use)
    needs = spec.needs_of(loss.config)
    if needs and needs <= {*provided}:
        return []
    return [
        f"loss {spec.name!r} needs {_and(sorted(needs))}; this training provides {_and(provided)}. "
        f"{_losses_for(registry, provided)} @ {path}"
    ]


def _name_problems(names: list[str]) -> list[str]:
    problems = [
        f"two rounds are named {name!r} @ finetune.rounds" for name in sorted({*names}) if names.count(name) > 1
    ]
    for name in dict.fromkeys(names):
        if name in STAGE_NAMES or name.startswith(STAGE_FAMILIES) or not _ROUND_NAME.fullmatch(name):
            problems.append(
                f"a round cannot be named {name!r}: it becomes a folder beside the run's other stages. Use letters, "
                f"digits, '.', '_' and '-', and none of "
                f"{', '.join(STAGE_NAMES)}, {', '.join(f'{f}*' for f in STAGE_FAMILIES)} @ finetune.rounds"
            )
    return problems


def _round_problems(recipe: Recipe, finetune: Finetune, registry: Registry) -> list[str]:
    """What a round's miners and teacher want of the rounds before it."""
    problems, trained = [], False
    for place, current in enumerate(finetune.rounds):
        path = f"finetune.rounds.{place}"
        if current.teacher == RERANKER:
            problems += _teacher_problems(recipe, place, path)
            trained = True
        present = (*(["retriever"] if place else []), *([RERANKER] if trained else []))
        problems += _chain_problems(current.miners, present, registry, f"{path}.miners")
    return problems


def _teacher_problems(recipe: Recipe, place: int, path: str) -> list[str]:
    if recipe.reranker is None:
        return [f"the teacher 'reranker' wants a table [reranker], and the recipe has none @ {path}.teacher"]
    if not place:
        return [f"the re-ranker is trained on what the round before finds, and there is none @ {path}.teacher"]
    return []


def _reranker_problems(recipe: Recipe, registry: Registry) -> list[str]:
    assert recipe.reranker is not None
    if recipe.finetune is None:
        return ["the re-ranker is trained on what a retriever finds: [finetune] is missing @ reranker"]
    return [
        *_fine_tuning_loss("reranker.loss", recipe.reranker.loss, ("groups",), registry),
        *_chain_problems(recipe.reranker.miners, ("retriever",), registry, "reranker.miners"),
    ]


def _chain_problems(miners: tuple[Choice, ...], present: tuple[str, ...], registry: Registry, path: str) -> list[str]:
    """A chain is a source of negatives, then filters; each needs what the run has by then."""
    problems = []
    for place, choice in enumerate(miners):
        miner = registry.get(Kind.MINER, choice.use)
        needs = miner.needs_of(choice.config)
        problems += _missing_extras(miner)
        if ("candidates" in needs) != bool(place):
            what = "only filters what another miner found" if not place else "finds negatives itself"
            where = "put a source such as bm25 or dense before it" if not place else "a chain begins with it"
            problems.append(f"miner {miner.name!r} {what}; {where} @ {path}.{place}")
        if "retriever" in needs and "retriever" not in present:
            problems.append(
                f"miner {miner.name!r} searches with the retriever of the round before, and there is none; "
                f"put a round with bm25 or random before it @ {path}.{place}"
            )
        if RERANKER in needs and RERANKER not in present:
            problems.append(
                f"miner {miner.name!r} scores with the run's re-ranker, which is not trained by then; "
                f"give its `model` a cross-encoder's path or hub id @ {path}.{place}"
            )
    return problems


def _fitting(registry: Registry, kind: Kind, needs: Iterable[str]) -> str:
    wanted = set(needs) - MADE_FROM_TEXTS.keys()
    names = [spec.name for spec in registry.specs(kind) if wanted <= set(spec.provides)]
    return f"{kind}s that fit: {', '.join(names) or 'none'}"


def _losses_for(registry: Registry, provided: Iterable[str]) -> str:
    wanted = ((spec.name, {*spec.needs} - MADE_FROM_TEXTS.keys()) for spec in registry.specs(Kind.LOSS))
    names = [name for name, needs in wanted if needs and needs <= {*provided}]
    return f"losses that fit: {', '.join(names) or 'none'}"


def _missing_extras(spec: ComponentSpec) -> list[str]:
    absent = [extra for extra in spec.extras if find_spec(extra) is None]
    return [f"{spec.kind} {spec.name!r} needs the package {name!r}, which is not installed" for name in absent]


def _and(names: Iterable[str]) -> str:
    return " and ".join(names) or "nothing"
