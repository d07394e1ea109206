"""The arguments of a loader as its attributes, with their types."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value", covariant=True)


class Argument(Generic[Value]):
    """An argument as an attribute, to be read, of a loader that keeps them in ``_config``."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, loader: None, owner: type) -> Argument[Value]: ...

    @overload
    def __get__(self, loader: object, owner: type) -> Value: ...

    def __get__(self, loader: Any, owner: type) -> Any:
        return self if loader is None else getattr(loader._config, self._name)
