"""Python objects as attributes of variables, by which they are stored with a program: regularizers and clips."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from headrace import errors

__all__ = ["from_attributes", "stored", "to_attributes"]

_Class = TypeVar("_Class", bound=type)

#: By the name of a class: itself, and the arguments of its objects.
_KINDS: dict[str, tuple[type, tuple[str, ...]]] = {}


def stored(*fields: str) -> Callable[[_Class], _Class]:
    """Has the objects of a class stored: ``fields`` are attributes of theirs, and arguments of the class by the same
    names. These objects are immutable, since changes would not be stored. Those of a subclass may be anything, and are
    not stored.
    """

    def decorate(cls: _Class) -> _Class:
        def set_once(self: object, name: str, value: object) -> None:
            if type(self) is cls and hasattr(self, name):
                raise AttributeError(f"{name} of {cls.__name__} objects cannot be changed; create a new one")
            object.__setattr__(self, name, value)

        cls.__setattr__ = set_once  # type: ignore[method-assign, assignment]
        _KINDS[cls.__name__] = (cls, fields)
        return cls

    return decorate


def to_attributes(key: str, value: object | None) -> dict[str, Any]:
    """The attributes that describe ``value`` under ``key``: none for None; only the class of objects that are not
    stored.
    """
    if value is None:
        return {}
    kind = type(value)
    cls, fields = _KINDS.get(kind.__name__, (None, ()))
    if cls is not kind:
        return {key: f"{kind.__module__}.{kind.__qualname__}"}
    return {key: kind.__name__, **{f"{key}.{field}": getattr(value, field) for field in fields}}


def from_attributes(key: str, attributes: Mapping[str, Any], owner: str) -> Any:
    """The inverse of ``to_attributes``.

    Raises:
        FailedPrecondition: it was something that is not stored; ``owner`` says whose it was.
        DataLoss: the attributes make no object.
    """
    if key not in attributes:
        return None
    name = attributes[key]
    if name not in _KINDS:
        raise errors.FailedPrecondition(
            f"the {key} of {owner} was of class {name}, which is not stored with a program: set it again, or to None, "
            f"before the program is trained"
        )
    cls, fields = _KINDS[name]
    try:
        return cls(**{field: attributes[f"{key}.{field}"] for field in fields})
    except (KeyError, TypeError, ValueError) as error:
        raise errors.DataLoss(f"the {key} of {owner} is a damaged {name}: {error}") from error
