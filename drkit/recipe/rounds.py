"""The check of fine-tuning: losses, miners and teachers of each round, and the re-ranker between them.

A round may use what earlier rounds have trained: its miners search with the previous retriever, and its teacher may be
the run's re-ranker, which is itself trained on the results of a retriever.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from drkit.core.protocols import NamesModel, ReadsVectors, RefreshesNegatives
from drkit.core.quantities import counted
from drkit.core.registry import Registry
from drkit.core.spec import (
    BATCHING,
    FINETUNING,
    PAIRS,
    RERANKING,
    TEACHER,
    VECTOR_VALUES,
    Choice,
    Kind,
    is_stage_output,
    provided_by,
)
from drkit.data.column_sources import GIVEN, RERANKER, ModelConfig, is_scored, source_name
from drkit.data.splits import PSEUDO
from drkit.encoders.architectures import check_start_model
from drkit.encoders.cross_encoder_folder import check_scorer, check_trainable
from drkit.errors import DrkitError, did_you_mean
from drkit.recipe.evaluation import PROVEN
from drkit.recipe.parts import (
    batch_columns,
    columns_of,
    join_names,
    losses_that_fit,
    missing_extras,
    received_columns,
    vector_problems,
    with_nested,
)
from drkit.recipe.schema import JUDGED, ROUND_STARTS, Finetune, Pretrain, Recipe, RerankerTraining, Round, similarity_of

RETRIEVER = "retriever"
_OR_A_TEACHER = "; or set the round's teacher to reranker, or to a cross-encoder's path or hub id"
_ROUND_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def rounds_problems(recipe: Recipe, registry: Registry) -> list[str]:
    """Return every combination of rounds, losses, miners and the re-ranker that cannot work."""
    problems = []
    if recipe.finetune:
        problems += _finetune_losses_problems(recipe, recipe.finetune, registry)
        problems += _name_problems([current.name for current in recipe.finetune.rounds])
        kept = recipe.pretrain.kept if recipe.pretrain else {}
        problems += _start_problems(recipe.finetune, [*kept])
        problems += _pairs_problems(recipe, recipe.finetune)
        problems += _query_source_problems(recipe, registry)
        problems += _miners_and_teachers_problems(recipe, recipe.finetune, registry)
        problems += _model_path_problems(recipe, recipe.finetune, registry)
        problems += _batches_problems(recipe.finetune, registry)
        problems += _fold_problems(recipe, recipe.finetune)
    problems += _proven_problems(recipe)
    if recipe.reranker:
        problems += _reranker_problems(recipe.reranker, recipe.finetune, registry)
    return problems


def _finetune_losses_problems(recipe: Recipe, finetune: Finetune, registry: Registry) -> list[str]:
    problems = _loss_problems("finetune.loss", finetune.loss, FINETUNING, registry)
    for index, current in enumerate(finetune.rounds):
        path, loss = f"finetune.rounds.{index}", finetune.for_round(current).loss
        if current.loss:
            problems += _loss_problems(f"{path}.loss", loss, FINETUNING, registry)
        columns = finetune.columns_for(current)
        problems += [
            problem
            for where, one in with_nested(loss, f"{path}.loss" if current.loss else "finetune.loss")
            for problem in vector_problems(
                registry.get(Kind.LOSS, one.use), one.config, where, recipe.pooling_of(current), registry
            )
        ]
        problems += [
            f"loss {one.use!r} receives the column {name!r}, which the round does not have (columns: "
            f"{', '.join(columns) or 'none'}). Add it, as in {_column_line(name, one)}"
            f"{_OR_A_TEACHER * (name == TEACHER)} @ {path}"
            for _, one in with_nested(loss)
            for name in columns_of(registry.get(Kind.LOSS, one.use), one.config)
            if name not in columns
        ]
        problems += [
            f"{problem} @ {path}"
            for _, one in with_nested(loss)
            for problem in _vector_problems(one, columns, registry)
        ]
        similarities = {similarity_of(one) for one in (finetune.loss, loss)}
        if len(similarities) > 1:
            problems.append(
                f"the round trains for a different similarity than finetune.loss ({', '.join(sorted(similarities))}), "
                f"but an encoder has only one: set both to the same @ {path}.loss"
            )
    return problems


def _vector_problems(loss: Choice, columns: Mapping[str, Choice], registry: Registry) -> Iterator[str]:
    """Yield why a loss cannot read its columns: numbers for vectors, vectors for scores, or those of another side."""
    expected = loss.config.vector_columns if isinstance(loss.config, ReadsVectors) else {}
    for name in columns_of(registry.get(Kind.LOSS, loss.use), loss.config):
        source = columns.get(name)
        if source is None:
            continue
        spec = registry.get(Kind.COLUMN, source.use)
        holds_vectors = VECTOR_VALUES in spec.provides_of(source.config)
        if name in expected and not holds_vectors:
            yield (
                f"loss {loss.use!r} compares vectors, but the column {name!r} ({source_name(source)}) holds numbers: "
                f"use vectors:PATH or encoder:PATH"
            )
        elif name in expected and (per := spec.scope_of(source.config)) != expected[name]:
            yield (
                f"loss {loss.use!r} compares the vectors of each {expected[name]} with the column {name!r}, which "
                f'holds those of each {per}: set of = "{expected[name]}"'
            )
        elif name == TEACHER and holds_vectors:
            yield (
                f"loss {loss.use!r} reads a teacher's scores in the column 'teacher', but {source_name(source)} holds "
                f"vectors, which the losses vector-cosine, vector-mse and vector-relation read"
            )


def _column_line(name: str, loss: Choice) -> str:
    """Return the option that adds a column which a loss receives: a file, or an encoder if the loss reads vectors."""
    per = loss.config.vector_columns.get(name) if isinstance(loss.config, ReadsVectors) else None
    if per is None:
        return f"--set finetune.columns.{name}=file:PATH"
    return f'--set \'finetune.columns.{name}={{use="encoder", path="PATH", of="{per}"}}\''


def _batches_problems(finetune: Finetune, registry: Registry) -> list[str]:
    """Return unmet needs of the batches of every round."""
    problems: dict[str, None] = {}
    for index, current in enumerate(finetune.rounds):
        path = f"finetune.rounds.{index}.batches" if current.batches else "finetune.batches"
        settings, columns = finetune.for_round(current), finetune.columns_for(current)
        spec = registry.get(Kind.BATCHES, settings.batches.use)
        lines = missing_extras(spec)
        if unmet := sorted({*spec.signals_of(settings.batches.config), *spec.requires_of(settings.batches.config)}):
            lines.append(
                f"batches {spec.name!r} need {join_names(unmet)}; batches have neither signals nor requirements, only "
                f"names that they receive: {', '.join(provided_by(BATCHING))}, or columns of queries"
            )
        lines += [
            f"batches {spec.name!r} receive the column {name!r}, which the round does not have (columns: "
            f"{', '.join(columns) or 'none'}). Add it, as in --set finetune.columns.{name}=file:PATH"
            for name in batch_columns(settings, registry)
            if name not in columns
        ]
        problems |= dict.fromkeys(f"{line} @ {path}" for line in lines)
    return list(problems)


def _loss_problems(path: str, loss: Choice, source: str, registry: Registry) -> list[str]:
    """Return unmet needs of a loss, and of each loss that it wraps; source: what its training provides."""
    return [
        problem
        for where, one in with_nested(loss, path)
        for problem in _one_loss_problems(where, one, source, registry)
    ]


def _one_loss_problems(path: str, loss: Choice, source: str, registry: Registry) -> list[str]:
    spec, offered = registry.get(Kind.LOSS, loss.use), provided_by(source)
    receives = spec.receives_of(loss.config)
    problems = []
    takes_pairs = source == FINETUNING and PAIRS in receives  # every other name is a column
    if not takes_pairs and (not receives or not receives <= {*offered}):
        is_of_pretraining = not receives & {*provided_by(FINETUNING, RERANKING)}
        added = f"; --pretrain-loss {loss.use} adds it to pre-training" if is_of_pretraining else ""
        problems.append(
            f"loss {spec.name!r} needs {join_names(sorted(receives))}; {source} provides {join_names(offered)}. "
            f"{losses_that_fit(registry, offered)}{added} @ {path}"
        )
    if signals := sorted(spec.signals_of(loss.config)):
        problems.append(
            f"loss {spec.name!r} reads the signal {join_names(signals)}, but {source} has no signals; only the parts "
            f"of [pretrain] can read them @ {path}"
        )
    if required := sorted(spec.requires_of(loss.config)):
        problems.append(
            f"loss {spec.name!r} requires {join_names(required)}, which no loss of {source} can; leave it out of "
            f"`requires` @ {path}"
        )
    return problems


def _name_problems(names: list[str]) -> list[str]:
    problems = [
        f"two rounds are named {name!r}; rename one of them @ finetune.rounds"
        for name in sorted({*names})
        if names.count(name) > 1
    ]
    for name in dict.fromkeys(names):
        if name in ROUND_STARTS or not _ROUND_NAME.fullmatch(name):
            problems.append(
                f"a round cannot be named {name!r}: use letters, digits, '.', '_' and '-', and none of "
                f"{', '.join(ROUND_STARTS)} @ finetune.rounds"
            )
    return problems


def _start_problems(finetune: Finetune, kept: list[str]) -> list[str]:
    """Check where rounds take their weights from, and the steps they keep; kept: checkpoints of pre-training."""
    problems, allowed = [], [*ROUND_STARTS, *kept]
    for index, current in enumerate(finetune.rounds):
        path, start = f"finetune.rounds.{index}", current.start
        if start not in allowed:
            problems.append(
                f"a round cannot start from {start!r}{did_you_mean(start, allowed)} allowed: {', '.join(allowed)} "
                f"(earlier rounds by name; keep_steps of [pretrain] or [finetune] adds NAME@STEP) @ {path}.start"
            )
        problems += kept_problems(finetune.for_round(current), path)
        if finetune.kept(current) and finetune.validation.patience:
            problems.append(
                f"a training that stops early may not reach the steps to keep: set finetune.validation.patience = 0 "
                f"@ {path}.keep_steps"
            )
        allowed += [current.name, *finetune.kept(current)]
    return problems


def kept_problems(settings: Pretrain | Finetune, path: str) -> list[str]:
    """Return why a training at `path` does not reach the steps that it keeps; of epochs, that shows when it runs."""
    last = max(settings.keep_steps or (0,))
    if not last > settings.max_steps > 0:
        return []
    return [
        f"cannot keep the checkpoint of step {last:,}: the training has {counted(settings.max_steps, 'step')} "
        f"({path}.max_steps) @ {path}.keep_steps"
    ]


def _pairs_problems(recipe: Recipe, finetune: Finetune) -> list[str]:
    """Check that pseudo-queries are made if, and only if, a round trains on them."""
    wanting = [index for index, current in enumerate(finetune.rounds) if current.pairs == PSEUDO]
    if wanting and not recipe.pseudo_queries:
        return [
            f"the round trains on pseudo-queries, but the recipe makes none: add a table [pseudo_queries], or set "
            f"pairs to {JUDGED!r} @ finetune.rounds.{wanting[0]}.pairs"
        ]
    if recipe.evaluation.split == PSEUDO and not (recipe.pseudo_queries and recipe.pseudo_queries.held_out):
        return [
            "evaluates on queries made from held-out passages, but the recipe holds none out: set "
            "pseudo_queries.held_out, or evaluate on judged queries @ evaluation.split"
        ]
    if recipe.pseudo_queries and not wanting:
        return [f"no round trains on pseudo-queries: give one pairs = {PSEUDO!r}, or remove the table @ pseudo_queries"]
    return []


def _query_source_problems(recipe: Recipe, registry: Registry) -> Iterator[str]:
    """Yield why training queries cannot be made by a source."""
    for index, source in enumerate(recipe.pseudo_queries.sources if recipe.pseudo_queries else ()):
        spec, path = registry.get(Kind.QUERIES, source.use), f"pseudo_queries.sources.{index}"
        yield from (f"{problem} @ {path}" for problem in missing_extras(spec))
        if spec.shorthand and not getattr(source.config, spec.shorthand):
            yield f"the source {source.use!r} of queries needs {spec.shorthand!r}: {source.use}:VALUE @ {path}"


def _fold_problems(recipe: Recipe, finetune: Finetune) -> list[str]:
    """Return what would learn from queries of a fold before they are ranked."""
    if recipe.evaluation.folds is None:
        return []
    problems, judged = [], [one for one in finetune.rounds if one.pairs == JUDGED]
    if len(judged) > 1:
        problems.append(
            f"cross-validation needs a recipe with one round that learns from labels, but this one has {len(judged)}: "
            f"remove the others, or --set evaluation.folds=none @ evaluation.folds"
        )
    if recipe.reranker or any(source.use == RERANKER for source in finetune.column_sources()):
        problems.append("with cross-validation, the re-ranker would learn from the evaluated queries @ reranker")
    for one in judged:
        settings = finetune.for_round(one)
        for name, is_set in (("draws", one.draws > 1), ("keep_steps", settings.keep_steps)):
            if is_set:
                problems.append(
                    f"with cross-validation, a round cannot have {name}: remove it, or --set evaluation.folds=none "
                    f"@ finetune.rounds"
                )
    if finetune.baselines:
        problems.append("with cross-validation, set baselines = [] @ finetune.baselines")
    return problems


def _proven_problems(recipe: Recipe) -> list[str]:
    """Return why the exported retriever cannot be compared with the encoder as it is."""
    if recipe.evaluation.export != PROVEN:
        return []
    problems = []
    if recipe.encoder.pretrained is None:
        problems.append(
            f"the choice {PROVEN!r} compares with an existing encoder: name one (--encoder), or --set "
            f"evaluation.export=best @ evaluation.export"
        )
    if not recipe.evaluation.start:
        problems.append(f"the choice {PROVEN!r} evaluates the encoder as it is: set start = true @ evaluation.start")
    if recipe.reranker:
        problems.append(f"the choice {PROVEN!r} is between retrievers: --set reranker=none @ reranker")
    return problems


def _miners_and_teachers_problems(recipe: Recipe, finetune: Finetune, registry: Registry) -> list[str]:
    """Return models that a round's miners or teacher need and no earlier round trains."""
    problems, has_reranker = [], False
    starts_from_retriever = recipe.encoder.pretrained is not None and recipe.pretrain is None
    for index, current in enumerate(finetune.rounds):
        path = f"finetune.rounds.{index}"
        for name, column in _used_columns(finetune, current, registry).items():
            where = f"{path}.teacher" if name == TEACHER and current.teacher else f"finetune.columns.{name}"
            problems += _source_problems(recipe, index, column, where)
            problems += _column_part_problems(name, column, registry, where)
            has_reranker = has_reranker or column.use == RERANKER
        has_retriever = index > 0 or starts_from_retriever
        trained = (*([RETRIEVER] if has_retriever else []), *([RERANKER] if has_reranker else []))
        problems += _chain_problems(current.miners, trained, registry, f"{path}.miners")
    return problems


def _used_columns(finetune: Finetune, current: Round, registry: Registry) -> dict[str, Choice]:
    """Return the columns of a round that its loss receives, and its teacher."""
    settings = finetune.for_round(current)
    received = {*received_columns(settings.loss, registry), *batch_columns(settings, registry)}
    columns = finetune.columns_for(current)
    return {name: one for name, one in columns.items() if name in received or (name == TEACHER and current.teacher)}


def _source_problems(recipe: Recipe, index: int, column: Choice, path: str) -> list[str]:
    """Return why a round cannot have a column from its source."""
    assert recipe.finetune is not None
    current, problems = recipe.finetune.rounds[index], []
    if column.use == RERANKER and recipe.reranker is None:
        problems.append(
            f"the source 'reranker' needs a table [reranker]: add it, or name a cross-encoder's path or hub id @ {path}"
        )
    elif column.use == RERANKER and not index:
        problems.append(
            f"the re-ranker cannot teach the first round, because it is trained on the results of an earlier one: put "
            f"a round before it @ {path}"
        )
    if is_scored(column) and any(isinstance(m.config, RefreshesNegatives) for m in current.miners):
        problems.append(
            f"a model scores the negatives that are mined before the round, but 'refresh' mines new ones during it: "
            f"use dense instead @ finetune.rounds.{index}.miners"
        )
    if column.use == GIVEN and (current.pairs != JUDGED or [one.use for one in current.miners[:1]] != [GIVEN]):
        problems.append(
            f"the source 'given' has scores of the passages in the training rows: set miners = [{{use = \"given\"}}] "
            f'and pairs = "judged" @ finetune.rounds.{index}'
        )
    return problems


def _column_part_problems(name: str, column: Choice, registry: Registry, path: str) -> Iterator[str]:
    """Yield why a round cannot have a column from a part."""
    spec = registry.get(Kind.COLUMN, column.use)
    yield from (f"{problem} @ {path}" for problem in missing_extras(spec))
    if VECTOR_VALUES in spec.provides_of(column.config) and column.default is not None:
        yield (
            f"the column {name!r} holds vectors, which a default number cannot stand for: leave `default` out, and "
            f'leave out what has no vector (unknown = "drop") @ {path}'
        )
    if spec.shorthand and not getattr(column.config, spec.shorthand):
        yield f"the source {column.use!r} of the column {name!r} needs {spec.shorthand!r} @ {path}"


def _reranker_problems(reranker: RerankerTraining, finetune: Finetune | None, registry: Registry) -> list[str]:
    if finetune is None or not finetune.rounds:
        return [
            "the re-ranker is trained on the results of a retriever: add a round to [finetune], or leave the re-ranker "
            "out: --set reranker=none @ reranker"
        ]
    return [
        *_loss_problems("reranker.loss", reranker.loss, RERANKING, registry),
        *_chain_problems(reranker.miners, (RETRIEVER,), registry, "reranker.miners"),
    ]


def _chain_problems(miners: tuple[Choice, ...], trained: tuple[str, ...], registry: Registry, path: str) -> list[str]:
    """Check a chain of a source of negatives and filters; trained: the models that exist by then."""
    problems = []
    for index, choice in enumerate(miners):
        miner, where = registry.get(Kind.MINER, choice.use), f"{path}.{index}"
        requires = miner.requires_of(choice.config)
        problems += missing_extras(miner)
        is_filter = "candidates" in miner.receives_of(choice.config)
        if is_filter and not index:
            problems.append(
                f"miner {miner.name!r} only filters what another miner found; put a source such as bm25 or dense "
                f"before it @ {where}"
            )
        if index and not is_filter:
            problems.append(f"miner {miner.name!r} is a source of negatives; it must be first in its chain @ {where}")
        if RETRIEVER in requires and RETRIEVER not in trained:
            problems.append(
                f"miner {miner.name!r} searches with the retriever of the previous round, but this is the first "
                f"round; put a round with bm25 or random before it, or start from a fine-tuned encoder (--encoder PATH "
                f"--set pretrain=none) @ {where}"
            )
        if RERANKER in requires and RERANKER not in trained:
            problems.append(
                f"miner {miner.name!r} scores with the run's re-ranker, which is not trained yet; "
                f"set its `model` to a cross-encoder's path or hub id @ {where}"
            )
    return problems


def _models_of_filters(finetune: Finetune, registry: Registry) -> dict[str, str]:
    """Return the model of every filter that names one instead of the run's re-ranker, by the path of its setting."""
    found = {}
    for index, current in enumerate(finetune.rounds):
        for number, choice in enumerate(current.miners):
            miner, config = registry.get(Kind.MINER, choice.use), choice.config
            if RERANKER in miner.requires_of(miner.config()) and isinstance(config, NamesModel):
                found[f"finetune.rounds.{index}.miners.{number}.model"] = config.model
    return found


def _model_path_problems(recipe: Recipe, finetune: Finetune, registry: Registry) -> list[str]:
    """Check the paths of models now that would otherwise fail late in the run, when they are first loaded."""
    sources = {f"finetune.rounds.{index}.teacher": one.teacher for index, one in enumerate(finetune.rounds)}
    sources |= {f"finetune.columns.{name}": column for name, column in (finetune.columns or {}).items()}
    models = {path: one.config.path for path, one in sources.items() if one and isinstance(one.config, ModelConfig)}
    models |= _models_of_filters(finetune, registry)
    if recipe.reranker:
        models["reranker.pretrained"] = recipe.reranker.pretrained or ""
    problems = []
    for path, model in models.items():
        if model and not is_stage_output(model):
            try:
                if path == "reranker.pretrained":
                    check_trainable(model)
                    check_start_model(model)
                else:
                    check_scorer(model)
            except DrkitError as error:
                problems.append(f"{error} @ {path}")
    return problems
