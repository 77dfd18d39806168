"""Settings of config classes: declare them with default, validator and meaning, check them, and describe them.

Also the settings of what a part requires of the run: candidate queries and a generator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from drkit.core.schedules import at_both_ends
from drkit.core.spec import Choice, part_name
from drkit.core.types import EncoderSizes

# The value of `absent_when` of a setting that is never absent.
NEVER_ABSENT = object()


def setting(
    default: Any,
    allowed: Callable[..., Any] | None,
    help: str,
    *,
    observes: bool = False,
    absent_when: Any = NEVER_ABSENT,
    schedulable: bool = False,
) -> Any:
    """Return an attrs field with a default, a validator (or None) and the meaning that `drkit show` prints.

    observes: the setting affects only what is logged or saved along the way, never a result, so changing it does not
    invalidate a finished stage. absent_when: the value at which stages are what they were before there was such a
    setting, so that those of earlier versions stay valid; a function decides this from all settings of the class.
    schedulable: a float of a masker or loss that a recipe may let change over a training (`drkit.core.schedules`). What
    is allowed holds at both ends, and parts see the current number.
    """
    metadata = {"help": help, "observes": observes, "absent_when": absent_when, "schedulable": schedulable}
    validator = at_both_ends(allowed) if schedulable else allowed
    return attrs.field(default=default, validator=validator, metadata=metadata)


def is_lasting(attribute: attrs.Attribute[Any], settings: Any) -> bool:
    """Return whether a setting affects a result: it does not only observe, and is not absent (see `setting`).

    >>> @attrs.frozen
    ... class Probes:
    ...     every: int = setting(100, at_least(1), "steps between two probes", observes=True)
    ...     texts: int | None = setting(None, None, "texts of a probe", absent_when=None)
    >>> every, texts = attrs.fields(Probes)
    >>> is_lasting(every, Probes()), is_lasting(texts, Probes()), is_lasting(texts, Probes(texts=5))
    (False, False, True)
    """
    absent = attribute.metadata.get("absent_when", NEVER_ABSENT)
    is_absent = absent(settings) if callable(absent) else getattr(settings, attribute.name) == absent
    return not is_absent and not attribute.metadata.get("observes", False)


# More than any number of texts, tokens or steps of a run.
MOST = 10**9


def at_least(least: float, most: float = MOST) -> Callable[..., Any]:
    """Return a validator of a number from `least` to `most`, both included; infinite numbers and NaN are refused."""
    return attrs.validators.and_(attrs.validators.ge(least), attrs.validators.le(most))


def more_than(bound: float, most: float = MOST) -> Callable[..., Any]:
    """Return a validator of a number above `bound`, up to `most`; infinite numbers and NaN are refused."""
    return attrs.validators.and_(attrs.validators.gt(bound), attrs.validators.le(most))


def training_steps(_instance: Any, attribute: attrs.Attribute[Any], value: int) -> None:
    """Validate a number of steps, or -1 for as many as the epochs give."""
    if value != -1 and not 1 <= value <= MOST:
        raise ValueError(f"'{attribute.name}' must be -1, or from 1 to {MOST:,}, got {value}")


def local_name(_instance: Any, attribute: attrs.Attribute[Any], value: str) -> None:
    """Validate a name that becomes a folder: it must stay within its parent folder on every file system."""
    if not value.isprintable() or len(value.encode()) > 200 or value != value.strip(" .") or set(value) & set("/\\:"):
        raise ValueError(
            f"'{attribute.name}' must be the name of a folder, not a path: at most 200 bytes, no slashes, colons or "
            f"control characters, and no dot or space at either end; got {value!r:.80}"
        )
    if not value:
        raise ValueError(f"'{attribute.name}' is empty; give a name")


def shares(_instance: Any, attribute: attrs.Attribute[Any], value: tuple[float, ...]) -> None:
    """Validate three non-negative shares that sum to 1."""
    if len(value) != 3 or min(value) < 0 or abs(sum(value) - 1) > 1e-6:
        raise ValueError(f"'{attribute.name}' must be three shares that sum to 1, got {value}")


def config_problems(config: type) -> list[str]:
    """Return the problems of a config class: it must be frozen, and every setting needs a default.

    >>> @attrs.define
    ... class Loose:
    ...     size: int
    >>> config_problems(Loose)
    ['settings class Loose is not frozen (use attrs.frozen)', "settings without a default: 'size'"]
    """
    problems = []
    if not _is_frozen(config):
        problems.append(f"settings class {config.__name__} is not frozen (use attrs.frozen)")
    required = [repr(a.name) for a in attrs.fields(config) if a.default is attrs.NOTHING]
    if required:
        problems.append(f"settings without a default: {', '.join(required)}")
    return problems


def _is_frozen(config: type) -> bool:
    """Return whether an attrs class is frozen, by setting an attribute of an uninitialised instance."""
    instance: Any = object.__new__(config)
    try:
        instance.changed = True
    except attrs.exceptions.FrozenInstanceError:
        return True
    except Exception:  # a plugin's own __setattr__ may fail in any way
        return False
    return False


def describe_settings(config: type) -> list[tuple[str, str, str, str]]:
    """Return (name, default, allowed values, meaning) of each setting of a config class, in its order."""
    rows = []
    for a in attrs.fields(config):
        default = "required" if a.default is attrs.NOTHING else _default(a.default)
        allowed = [allowed_values(a.validator), "or a schedule" if a.metadata.get("schedulable") else ""]
        rows.append((a.name, default, ", ".join(filter(None, allowed)), str(a.metadata.get("help", ""))))
    return rows


def _default(value: Any) -> str:
    made = value.factory() if isinstance(value, attrs.Factory) else value  # type: ignore[arg-type]
    if isinstance(made, Choice):
        return repr(made.use)
    if isinstance(made, tuple) and any(isinstance(one, Choice) for one in made):
        return repr(tuple(map(part_name, made)))
    return "none" if made is None else repr(made)


def allowed_values(validator: Any) -> str:
    """Describe what a validator allows; empty for an unknown validator.

    >>> from attrs.validators import and_, ge, in_, lt
    >>> allowed_values(and_(ge(0), lt(1))), allowed_values(in_(("cls", "mean")))
    ('>= 0, < 1', 'cls or mean')
    """
    if (inner := getattr(validator, "_validators", None)) is not None:
        return ", ".join(filter(None, map(allowed_values, inner)))
    if (options := getattr(validator, "options", None)) is not None:
        return " or ".join(map(str, options))
    if (bound := getattr(validator, "bound", None)) is not None:
        return f"{validator.compare_op} {bound}"
    if (inner := getattr(validator, "validator", None)) is not None:
        return f"none, or {allowed_values(inner)}"
    if (member := getattr(validator, "member_validator", None)) is not None:
        return f"each {allowed_values(member)}"
    if (length := getattr(validator, "min_length", None)) is not None:
        return f"at least {length} long"
    return {shares: "three shares that sum to 1", training_steps: "-1, or >= 1"}.get(validator, "")


def query_source(_instance: Any, attribute: attrs.Attribute[Any], value: str) -> None:
    """Validate a source of queries: `extractive`, `file:PATH`, `stage:NAME/FILE` or `model:PATH_OR_ID`."""
    kind, colon, rest = value.partition(":")
    if value != "extractive" and not (kind in ("file", "stage", "model") and colon and rest.strip()):
        raise ValueError(
            f"'{attribute.name}' must be extractive, file:PATH, stage:NAME/FILE or model:PATH_OR_ID, got {value!r}"
        )


@attrs.frozen
class QuerySettings:
    """Settings of the candidate queries that a part requires for every text (`generated-queries`).

    origin: `extractive`, `file:PATH`, `stage:NAME/FILE` or `model:PATH_OR_ID`; count: maximum number of queries per
    text; prefix: put before each text for the model.
    """

    origin: str = attrs.field(default="extractive", validator=query_source)
    count: int = 5
    prefix: str = ""


@attrs.frozen
class GeneratorSettings(EncoderSizes):
    """Settings of the masked LM that a part requires of the run (`generator`), as to fill masked positions.

    A class of its own, because plugins write it.

    model: path or hub id; empty: the run makes one of these sizes. random: it starts from random weights; otherwise the
    run trains the one it makes for `steps` steps (0: a third of the steps of pre-training). weight: of its own loss, if
    it is trained beside the encoder; None: it is frozen.
    """

    model: str = ""
    random: bool = False
    weight: float | None = None
    layers: int = 1
    hidden: int = 128
    heads: int = 4
    intermediate: int = 256
    steps: int = 0

    @property
    def is_trained_first(self) -> bool:
        """Whether the run trains the generator on its own, before pre-training."""
        return not self.model and not self.random
