"""How a config class declares a setting: its default, what is allowed, and one line of meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs


def setting(default: Any, allowed: Callable[..., Any] | None, help: str) -> Any:
    """An attrs field with a default, a validator (or None) and the meaning that `drkit show` prints."""
    return attrs.field(default=default, validator=allowed, metadata={"help": help})


def shares(_instance: Any, attribute: attrs.Attribute[Any], value: tuple[float, ...]) -> None:
    """Validator: three shares, none negative, that sum to 1."""
    if len(value) != 3 or min(value) < 0 or abs(sum(value) - 1) > 1e-6:
        raise ValueError(f"'{attribute.name}' takes three shares that sum to 1, got {value}")


def optional(validator: Callable[..., Any]) -> Callable[..., Any]:
    """Validator: None, or what `validator` allows."""
    return attrs.validators.optional(validator)
