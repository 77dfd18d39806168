"""Recipes as TOML: read strictly into frozen attrs, every problem reported at once; written back complete."""

from __future__ import annotations

import json
import logging
import math
import re
import reprlib
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import attrs
import tomli_w
from cattrs import BaseValidationError, ClassValidationError, Converter, transform_error
from cattrs.errors import ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn, make_mapping_structure_fn, override

from drkit.core.files import local_path, write_text
from drkit.core.registry import Registry
from drkit.core.schedules import Scheduled
from drkit.core.settings import allowed_values
from drkit.core.spec import Choice, Kind, brief, is_stage_output
from drkit.data.column_sources import COLUMN_SOURCES, MODEL
from drkit.data.query_sources import QUERY_FILE
from drkit.errors import DrkitError, ProblemsError, UnknownNameError, did_you_mean
from drkit.recipe.encoder_settings import FROM_SCRATCH, MEAN, EncoderSettings
from drkit.recipe.familiar import own_setting
from drkit.recipe.pseudo_queries import QueriesChoice
from drkit.recipe.schema import ITSELF, NONE, DataSet, DecoderTask, EncoderTask, Recipe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


_LOGGER = logging.getLogger(__name__)
# Prompts are a line, paths at most 4,096 bytes.
_LONGEST_TEXT = 8192
# Another place for the settings of the pooling.
_POOLING_SETTINGS = "pooling_settings"
# Tables and lists in one another; recipes have at most five.
_DEEPEST = 50


def read_recipe(path: Path, registry: Registry) -> Recipe:
    """Read a recipe. Raises DrkitError (unreadable, not TOML) or ProblemsError (with every problem in it)."""
    return recipe_from_table(read_table(path), registry, subject=str(path))


def read_table(path: Path) -> dict[str, Any]:
    """Read a TOML file as a table, without checking it. Raises DrkitError if it is unreadable or not TOML."""
    _LOGGER.info("reading the recipe %s", path)
    try:
        return parse_toml(path.read_text(encoding="utf-8-sig"), str(path))
    except FileNotFoundError:
        raise DrkitError(f"no recipe at {path}; write one with `drkit compose -o {path} --dry-run`") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DrkitError(f"cannot read the recipe {path}: {error}") from error


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Parse TOML text. Raises DrkitError if it is malformed, with line and column, or nested more than 50 deep."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a ValueError for numbers of thousands of digits, too
        raise DrkitError(f"{where} is not valid TOML: {error}") from None
    level: list[Any] = [table]
    for _ in range(_DEEPEST):
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for values in inner for value in values if isinstance(value, (dict, list))]
    if level:
        raise DrkitError(f"{where} is nested more than {_DEEPEST} deep; a recipe has at most five levels of tables")
    return table


def recipe_from_table(table: Mapping[str, Any], registry: Registry, *, subject: str = "recipe") -> Recipe:
    """Build a recipe from plain data. Raises ProblemsError that lists every problem with its path."""
    try:
        return recipe_converter(registry).structure(table, Recipe)
    except (BaseValidationError, DrkitError, ValueError, TypeError) as error:
        raise ProblemsError(subject, problems_of(error)) from None


def part_from_table(kind: Kind, table: Mapping[str, Any], registry: Registry) -> Choice:
    """Build the choice of a part from plain data. Raises ProblemsError that lists every problem with its path."""
    try:
        return Choice(*_part(recipe_converter(registry), registry, kind, table))
    except (BaseValidationError, DrkitError, ValueError, TypeError) as error:
        raise ProblemsError(str(kind), problems_of(error)) from None


def problems_of(error: BaseException) -> list[str]:
    """Return one line per problem: what is wrong, then `@` and the dotted path."""
    lines = []
    for line in transform_error(error, path="recipe", format_exception=_message):
        what, _, path = line.rpartition(" @ ")
        dotted = re.sub(r"\['([^']+)'\]", r".\1", path)  # as `--set` takes it
        dotted = re.sub(r"^(recipe\.collections\.[^.]+)\.collection\b", r"\1", dotted)
        lines.append(f"{what} @ {dotted.removeprefix('recipe.')}" if what else line)
    return lines


def _message(error: BaseException, _expected: type | None) -> str:
    if isinstance(error, ForbiddenExtraKeysError):
        known = [a.name for a in attrs.fields(error.cl)] if attrs.has(error.cl) else []
        own = {key: own_setting(key) for key in sorted(error.extra_fields)}
        meant = {key: _further_in(error.cl, name) or did_you_mean(name, known) for key, name in own.items()}
        return "; ".join(f"no setting named {key!r}{said} known: {', '.join(known)}" for key, said in meant.items())
    if isinstance(error, KeyError):
        return f"required setting {error.args[0]!r} is missing"
    if isinstance(error, ValueError) and error.args and isinstance(error.args[0], str):
        return error.args[0]  # validators add the attribute and its class after the message
    return str(error) or type(error).__name__


def _further_in(cls: type, key: str) -> str:
    """Return the clause `; did you mean 'TABLE.key'?` for the tables of a class that have this setting, or nothing."""
    hints = get_type_hints(cls) if attrs.has(cls) else {}
    inner = {name: [one for one in (hint, *get_args(hint)) if attrs.has(one)] for name, hint in hints.items()}
    paths = [f"{name}.{key}" for name, found in inner.items() if any(key in attrs.fields_dict(one) for one in found)]
    return f"; did you mean {' or '.join(map(repr, paths))}?" if paths else ""


@lru_cache(maxsize=8)  # cattrs compiles a function for every table, which takes longer than a recipe's values
def recipe_converter(registry: Registry) -> Converter:
    """Return a cattrs converter for the parts of a registry: extra keys are forbidden, scalars strict."""
    converter = Converter(forbid_extra_keys=True, detailed_validation=True)
    converter.register_structure_hook_factory(attrs.has, lambda cls: _table(converter, cls))
    for scalar in (bool, int, float, str):
        converter.register_structure_hook(scalar, _strict(scalar))
    converter.register_structure_hook_func(lambda t: t is Any, lambda value, _: value)
    converter.register_structure_hook_func(_is_made_of(Union, types.UnionType), _union(converter))
    converter.register_structure_hook_func(_is_choice, _choice(converter, registry))
    converter.register_structure_hook(EncoderSettings, _encoder(converter))
    converter.register_structure_hook(Recipe, _recipe(converter))
    converter.register_structure_hook(DataSet, _data_set(converter, registry))
    converter.register_structure_hook(EncoderTask, _task(converter, registry, EncoderTask))
    converter.register_structure_hook(DecoderTask, _task(converter, registry, DecoderTask))
    converter.register_structure_hook_func(_is_made_of(tuple), _tuple(converter))
    converter.register_structure_hook_factory(_is_made_of(dict, Mapping), lambda cls: _names(converter, cls))
    return converter


def _table(converter: Converter, cls: type) -> Callable[[Any, Any], Any]:
    """Structure an attrs class from a table; settings are validated one by one, so that no problem hides another."""
    attrs.resolve_types(cls)
    hooks: dict[str, Any] = {a.name: override(struct_hook=_setting(converter, a)) for a in attrs.fields(cls)}
    inner: Callable[[Any, Any], Any] = make_dict_structure_fn(
        cls, converter, _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=True, **hooks
    )

    return _only_tables(inner)


def _names(converter: Converter, cls: Any) -> Callable[[Any, Any], Any]:
    """Structure a table whose keys are names of the user's own, such as those of columns and losses."""
    return _only_tables(make_mapping_structure_fn(cls, converter, detailed_validation=True))


def _only_tables(inner: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def structure(value: Any, target: Any) -> Any:
        if not isinstance(value, Mapping):
            raise TypeError(f"expected a table of settings, got {shortened(value)}")
        return inner(value, target)

    return structure


def _setting(converter: Converter, attribute: attrs.Attribute[Any]) -> Callable[[Any, Any], Any]:
    allowed, default = allowed_values(attribute.validator), attribute.default
    example = f"default: {toml_value(plain(default))}" if isinstance(default, (bool, int, float, tuple)) else ""
    advice = "".join(f"; {one}" for one in (allowed and f"allowed: {allowed}", example) if one)

    def structure(value: Any, target: Any) -> Any:
        if "absent" in attribute.metadata and value == attribute.metadata["absent"]:
            return None
        try:
            if isinstance(value, Mapping) and _is_number(target):
                made = _schedule(value, attribute)
            else:
                made = converter.structure(value, target)
            if attribute.validator is not None:
                attribute.validator(None, attribute, made)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{_message(error, None)}{advice}") from None
        return made

    return structure


def _schedule(table: Mapping[str, Any], attribute: attrs.Attribute[Any]) -> Scheduled:
    """Return the schedule of a table. Raises ValueError if it is not one, or the setting cannot change."""
    if attribute.metadata.get("schedulable"):
        return Scheduled.from_table(table)
    raise ValueError(
        f"{attribute.name!r} must be one number, got {shortened(table)}: it has no schedule; settings of maskers and "
        f"losses may have one where `drkit show KIND NAME` says so"
    )


def _is_number(target: Any) -> bool:
    return bool({target, *get_args(target)} & {int, float}) and get_origin(target) in (None, Union, types.UnionType)


def _strict(scalar: type) -> Callable[[Any, Any], Any]:
    allowed = (int, float) if scalar is float else (scalar,)

    def structure(value: Any, _: Any) -> Any:
        if isinstance(value, bool) is not (scalar is bool) or not isinstance(value, allowed):
            raise TypeError(f"expected {scalar.__name__}, got {shortened(value)}")
        _check_scalar(value)
        return scalar(value)

    return structure


def _check_scalar(value: Any) -> None:
    """Raise ValueError for a number or text that no setting allows, before its own validator runs."""
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError("the number is too large; expected at most 64 bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {value}")
    if isinstance(value, str):
        if len(value) > _LONGEST_TEXT:
            raise ValueError(f"the text has {len(value):,} characters; expected at most {_LONGEST_TEXT:,}")
        if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
            raise ValueError(f"{shortened(value)} contains a NUL or an unpaired surrogate; remove it")


def shortened(value: Any) -> str:
    """Return the `repr` of a value, cut to about 80 characters.

    >>> shortened([1, [2]]), len(shortened("x" * 5000))
    ('[1, [2]]', 80)
    """
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 80
    return short.repr(value)


def _is_made_of(*origins: Any) -> Callable[[Any], bool]:
    return lambda target: get_origin(target) in origins


def _union(converter: Converter) -> Callable[[Any, Any], Any]:
    def structure(value: Any, target: Any) -> Any:
        inner = next(t for t in get_args(target) if t is not type(None))  # every union here is `X | None`
        return None if value is None or value == NONE else converter.structure(value, inner)

    return structure


def _tuple(converter: Converter) -> Callable[[Any, Any], Any]:
    def structure(value: Any, target: Any) -> Any:
        items = get_args(target)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        takes_text = items in ((str, ...), (QueriesChoice, ...))
        if (isinstance(value, str) and takes_text) or (is_number and items == (float, ...)):
            value = [value]
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"expected a list, got {shortened(value)}")
        if items[-1] is not Ellipsis and len(value) != len(items):
            raise TypeError(f"expected {len(items)} values, got {len(value)}")
        return tuple(converter.structure(value, list[items[0]]))  # type: ignore[valid-type]

    return structure


def _is_choice(target: Any) -> bool:
    return get_origin(target) is Annotated and get_args(target)[0] is Choice


def _choice(converter: Converter, registry: Registry) -> Callable[[Any, Any], Choice]:
    def structure(value: Any, target: Any) -> Choice:
        _, kind, *beside = get_args(target)
        table = as_table(value, kind, registry)
        own = {key: table[key] for slot in beside for key in attrs.fields_dict(slot) if key in table}
        numbers = [converter.structure(own, slot) for slot in beside]
        use, config = _part(converter, registry, kind, {key: item for key, item in table.items() if key not in own})
        return Choice(use, config, **{key: item for one in numbers for key, item in attrs.asdict(one).items()})

    return structure


def as_table(value: Any, kind: Kind, registry: Registry) -> Mapping[str, Any]:
    """Return the table of a part that a recipe names in short.

    `"NAME"` is `{ use = "NAME" }`; `"NAME:VALUE"` fills the setting that the part's `shorthand` is; any other text in
    the slot of a column is the path or hub id of a cross-encoder. `"stage:NAME/FILE"`, the output of a stage, is a file
    of a column or of queries. Raises TypeError for anything else than text or a
    table, and KeyError for a table without `use`.
    """
    table = {"use": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping):
        several = (
            f"; a recipe has one {kind}, or several data sets as tables [collections.NAME]"
            if isinstance(value, list) and kind is Kind.COLLECTION
            else ""
        )
        raise TypeError(f"expected a {kind} as {{ use = NAME, .. }}, got {shortened(value)}{several}")
    if "use" not in table:
        raise KeyError("use")
    text, known = table["use"], registry.names(kind)
    if not isinstance(text, str) or text in known:
        return table
    if is_stage_output(text) and kind in (Kind.COLUMN, Kind.QUERIES):
        return {**table, "use": QUERY_FILE, "path": text}
    name, colon, given = text.partition(":")
    if colon and name in known and (setting := registry.get(kind, name).shorthand):
        return {**table, "use": name, setting: given}
    if kind is Kind.COLUMN and {*table} <= {"use", "default"}:
        if not text:
            raise ValueError(
                f"the source of a column is empty; expected {COLUMN_SOURCES}, or a part of the kind column"
            )
        if _is_misspelt(text, known):  # rather than the id of a model
            raise UnknownNameError("column", text, known, advice="see `drkit list column`")
        return {**table, "use": MODEL, "path": text}
    return table


def _is_misspelt(text: str, known: Iterable[str]) -> bool:
    """Return whether a text is nearly a known name, and not the path of anything."""
    return "/" not in text and not local_path(text).exists() and bool(get_close_matches(text, known, cutoff=0.8))


def _recipe(converter: Converter) -> Callable[[Any, Any], Recipe]:
    """Structure a recipe, which has either a table [collection] or tables [collections.NAME]."""
    made: Callable[[Any, Any], Recipe] = _table(converter, Recipe)

    def structure(value: Any, target: Any) -> Recipe:
        if isinstance(value, Mapping):
            if "collections" in value and "collection" in value:
                raise ValueError(
                    "a recipe has either one [collection], or several labelled data sets [collections.NAME]: remove one"
                )
            if value.get("collection") is None and value.get("collections") is None:
                raise _missing_collection(made, value)
            value = _with_batches(value)
        return made(value, target)

    return structure


def _missing_collection(made: Callable[[Any, Any], Recipe], value: Any) -> ClassValidationError:
    """Return the error of a recipe without a collection, with all else that is wrong."""
    problems: list[Exception] = [KeyError("collection")]
    try:
        made(value, Recipe)
    except ClassValidationError as error:
        problems += error.exceptions
    return ClassValidationError("a recipe without a collection", problems, Recipe)


def _with_batches(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a recipe with several data sets whose batches are of one of them each, unless it names others."""
    sets, finetune = recipe.get("collections"), recipe.get("finetune")
    if not isinstance(sets, Mapping) or len(sets) < 2 or not isinstance(finetune, Mapping) or "batches" in finetune:
        return recipe
    return {**recipe, "finetune": {**finetune, "batches": "one-data-set"}}


def _data_set(converter: Converter, registry: Registry) -> Callable[[Any, Any], DataSet]:
    """Structure a data set, whose collection's settings are written beside its own."""
    made: Callable[[Any, Any], DataSet] = _table(converter, DataSet)
    names = [a.name for a in attrs.fields(DataSet) if a.name != "collection"]

    def structure(value: Any, target: Any) -> DataSet:
        table = as_table(value, Kind.COLLECTION, registry)
        own = {name: table[name] for name in names if name in table}
        return made({"collection": {key: item for key, item in table.items() if key not in own}, **own}, target)

    return structure


def _encoder(converter: Converter) -> Callable[[Any, Any], EncoderSettings]:
    made: Callable[[Any, Any], EncoderSettings] = _table(converter, EncoderSettings)
    return lambda value, target: made(pooling_as_part(value), target)


def pooling_as_part(encoder: Any) -> Any:
    """Return a table [encoder] whose `pooling_settings` are settings of `pooling`, as those of every part.

    >>> pooling_as_part({"pooling": "lexical", "pooling_settings": {"top_k": 64}})
    {'pooling': {'use': 'lexical', 'top_k': 64}}
    """
    if not isinstance(encoder, Mapping) or not isinstance(encoder.get(_POOLING_SETTINGS), Mapping):
        return encoder
    table = {key: value for key, value in encoder.items() if key != _POOLING_SETTINGS}
    chosen = table.get("pooling", MEAN.use)
    named = chosen if isinstance(chosen, Mapping) else {"use": chosen}
    return {**table, "pooling": {**named, **encoder[_POOLING_SETTINGS]}}


def _task(converter: Converter, registry: Registry, cls: type) -> Callable[[Any, Any], Any]:
    """Structure a task whose masker may bring a context: the task gets both, and the masker becomes its base."""
    made = _table(converter, cls)

    def structure(value: Any, target: Any) -> Any:
        slot = value.get("masker") if isinstance(value, Mapping) else None
        use = slot.get("use") if isinstance(slot, Mapping) else slot
        context = registry.get(Kind.MASKER, use).context if use in registry.names(Kind.MASKER) else ""
        if not context:
            return made(value, target)
        if cls is EncoderTask:
            raise ValueError(f"the masker {use!r} hides tokens of a decoder's context; name its base for the encoder")
        chosen = value.get("context", ITSELF.use)
        other = chosen.get("use") if isinstance(chosen, Mapping) else chosen
        if other not in (context, ITSELF.use):
            raise ValueError(f"the masker {use!r} has the context {context!r}, so `context` cannot be another one")
        base = _part(converter, registry, Kind.MASKER, slot)[1].base
        return made({**value, "context": chosen if other == context else context, "masker": plain(base)}, target)

    return structure


def _part(converter: Converter, registry: Registry, kind: Kind, value: Any) -> tuple[str, Any]:
    """Return (name, config) of a part written as `"name"` or `{ use = "name", setting = value }`."""
    value = as_table(value, kind, registry)
    spec = registry.get(kind, converter.structure(value["use"], str))
    settings = {key: item for key, item in value.items() if key != "use"}
    if settings and not attrs.fields(spec.config):
        raise ValueError(f"the {kind} {spec.name!r} has no settings: leave out {', '.join(map(repr, settings))}")
    return spec.name, converter.structure(settings, spec.config)


def recipe_table(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain data of TOML's types.

    Settings that are None are left out, for TOML has no null. So are the sizes of an encoder made from scratch if the
    recipe has an existing encoder and no sizes of its own.
    """
    table: dict[str, Any] = plain(recipe)
    if recipe.encoder.pretrained is not None:
        default = EncoderSettings()
        for name in FROM_SCRATCH:
            if getattr(recipe.encoder, name) == getattr(default, name):
                table["encoder"].pop(name, None)
    return {"schema": table.pop("schema"), **table}


def recipe_toml(recipe: Recipe) -> str:
    """Return a recipe as TOML text; `read_recipe` gives an equal recipe back."""
    return tomli_w.dumps(recipe_table(recipe))


def write_recipe(recipe: Recipe, path: Path) -> None:
    """Write a recipe as a TOML file that `read_recipe` reads; atomically."""
    write_text(path, recipe_toml(recipe))


def typed(attribute: attrs.Attribute[Any], value: Any) -> Any:
    """Return a setting's value as it is written: whole numbers in it as floats, if its type is float (0 is 0.0)."""
    if value is None:
        return attribute.metadata.get("absent")
    if written := attribute.metadata.get("written"):
        return written(value)
    return _as_floats(value) if "float" in str(attribute.type) else value


def _as_floats(value: Any) -> Any:
    if isinstance(value, Scheduled):
        return value
    if isinstance(value, Mapping):
        return {key: _as_floats(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_as_floats, value))
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value + 0.0 if is_number else value  # -0.0, too


def plain(value: Any) -> Any:
    """Return any piece of a recipe as plain data; a chosen part becomes its table."""
    if isinstance(value, Scheduled):
        return value.table
    if isinstance(value, Choice):
        beside = {name: _as_floats(one) for name in ("weight", "default") if (one := getattr(value, name)) is not None}
        beside = plain(beside)
        if isinstance(short := brief(value), str):
            return {"use": short, **beside}
        return {"use": value.use, **beside, **plain(value.config)}
    if attrs.has(type(value)):
        read = {a.name: typed(a, getattr(value, a.name)) for a in attrs.fields(type(value))}
        made = {name: plain(v) for name, v in read.items() if v is not None}
        if isinstance(value, DataSet):
            return {**made.pop("collection"), **made}
        return {key: one for key, one in made.items() if key not in derived_settings(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def derived_settings(value: Any) -> tuple[str, ...]:
    """Return the settings of a recipe that follow from others, and are not written: that of all its data sets."""
    return ("collection",) if isinstance(value, Recipe) and value.collections is not None else ()


def changed_settings(config: Any) -> dict[str, Any]:
    """Return the settings of a part that differ from its defaults, as plain data."""
    default = type(config)()
    names = [a.name for a in attrs.fields(type(config))]
    return {name: plain(value) for name in names if (value := getattr(config, name)) != getattr(default, name)}


_Table = dict[str, Any]


def assign(table: _Table, assignment: str) -> None:
    """Apply `dotted.path=VALUE` in place; VALUE is TOML, or a bare word for a string. Lists are indexed from 0.

    Raises DrkitError if the text is not an assignment, or the path leads through a single value or past a list's end.
    """
    path, equals, text = assignment.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys) or len(keys) > _DEEPEST or keys == ["use"]:
        raise DrkitError(f"--set expects PATH=VALUE, as in pretrain.learning_rate=1e-4; got {shortened(assignment)}")
    node: Any = table
    for depth, key in enumerate(keys[:-1]):
        node = _step(node, key, ".".join(keys[: depth + 1]))
    _put(node, keys[-1], parse_value(text.strip()), path)


def _step(node: Any, key: str, path: str) -> Any:
    """Return the table or list under `key`; a part given by its name alone becomes its table, a missing one is made."""
    at: Any = _index(node, key, path) if isinstance(node, list) else key
    inner = node[at] if isinstance(node, list) else node.setdefault(at, {})
    if isinstance(inner, str):
        inner = node[at] = {"use": inner}
    if not isinstance(inner, (dict, list)):
        raise DrkitError(f"--set {path}: {path} is a single value ({shortened(inner)}), not a table of settings")
    return inner


def _put(node: Any, key: str, value: Any, path: str) -> None:
    if isinstance(node, list):
        node[_index(node, key, path)] = value
    elif key == "use" and node.get("use") != value:
        node.clear()
        node["use"] = value
    else:
        node[key] = value


def _index(items: list[Any], key: str, path: str) -> int:
    if key not in map(str, range(len(items))):
        raise DrkitError(f"--set {path}: {key!r} is not an index of a list of {len(items)}; use 0 to {len(items) - 1}")
    return int(key)


def parse_value(text: str) -> Any:
    """Return a value as `--set` takes it: TOML, or a bare word for a string."""
    try:
        return parse_toml(f"value = {text}", "value")["value"]
    except DrkitError:
        return text


def toml_value(value: Any) -> str:
    """Return plain data as a value of TOML on one line, as `--set` takes it; None as `none`, which removes a table.

    >>> toml_value({"use": "pmi", "ratio": 0.5}), toml_value(None), toml_value([1, True])
    ('{use = "pmi", ratio = 0.5}', 'none', '[1, true]')
    """
    if value is None:
        return "none"
    if isinstance(value, Scheduled):
        value = value.table
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_toml_key(key)} = {toml_value(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
