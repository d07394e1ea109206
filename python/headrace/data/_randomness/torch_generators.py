"""torch's generators: the numbers that a loader draws from them, and their states as strings that JSON can hold.

Nothing here imports torch before a program has.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

from headrace.data._argument_checks import integer, is_torch_generator


def draw_torch_seed(generator: Any) -> int:
    """The int64 that torch's loader draws from a generator, or the global one (None), for each epoch."""
    torch = importlib.import_module("torch")
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def check_torch_seed(seed: Any) -> None:
    """Raises TypeError or ValueError unless it is what :func:`draw_torch_seed` may give."""
    integer("torch_seed of the state", seed, -(1 << 63), (1 << 63) - 1)


def encode_generator(generator: Any) -> str:
    """The state of a generator; None: of the global one."""
    return _encode(_or_global(generator).get_state())


def set_generator(generator: Any, state: str) -> None:
    """Sets a generator, None: the global one, to what :func:`encode_generator` gave."""
    _or_global(generator).set_state(_decode(state))


def copy_generator(generator: Any) -> Any:
    """A generator that draws what that one, None: the global one, would draw."""
    copy = importlib.import_module("torch").Generator()
    copy.set_state(_or_global(generator).get_state())
    return copy


def check_generator_state(name: str, state: Any) -> None:
    """Raises ValueError unless :func:`set_generator` accepts ``state``."""
    try:
        importlib.import_module("torch").Generator().set_state(_decode(state))
    except Exception as error:
        raise ValueError(f"{name} of the state is not a state of torch's generator: {error}") from None


def generator_of(sampler: Any) -> Any:
    """The torch.Generator that a sampler, or the sampler that it wraps, was given; None if there is none."""
    for _ in range(8):  # a chain may be a circle
        generator = getattr(sampler, "generator", None)
        if is_torch_generator(generator):
            return generator
        sampler = getattr(sampler, "sampler", None)
    return None


class SamplerDraws:
    """The numbers that a sampler draws from torch's generators when its iteration begins.

    torch's samplers draw all that they need with the first index, from the generator that they were given, or from the
    global one.
    """

    KEYS = ("torch_generator", "torch_global")

    def __init__(self, sampler: Any) -> None:
        self.generator = generator_of(sampler)

    def check(self, state: dict[str, Any]) -> None:
        """Raises TypeError or ValueError unless :meth:`repeated` accepts the ``KEYS`` of ``state``."""
        for key in self.KEYS:
            if key in state:
                check_generator_state(key, state[key])
        if "torch_generator" in state and self.generator is None:
            raise ValueError(
                "the state is one of a sampler with a torch.Generator: the sampler of this loader has none"
            )

    @contextlib.contextmanager
    def repeated(self, state: dict[str, Any]) -> Iterator[dict[str, str]]:
        """Within the block, the same numbers are drawn as when ``state`` was taken; {}: new ones.

        Gives a dict that holds such a state at the block's end, also if an exception ends it.
        """
        found: dict[str, str] = {}
        if self.generator is not None:
            if "torch_generator" in state:
                set_generator(self.generator, state["torch_generator"])
            found["torch_generator"] = encode_generator(self.generator)
            yield found
        elif "torch" in sys.modules:
            own = encode_generator(None)
            begin = state.get("torch_global", own)
            try:
                if begin is not own:
                    set_generator(None, begin)
                found["torch_global"] = begin
                yield found
                if encode_generator(None) == begin:
                    del found["torch_global"]
            finally:
                if begin is not own:  # the program's own draws continue where they were
                    set_generator(None, own)
        else:
            yield found


def _or_global(generator: Any) -> Any:
    return importlib.import_module("torch").default_generator if generator is None else generator


def _encode(state: Any) -> str:
    return base64.b64encode(bytes(state.numpy())).decode("ascii")


def _decode(state: str) -> Any:
    torch = importlib.import_module("torch")
    return torch.frombuffer(bytearray(base64.b64decode(state, validate=True)), dtype=torch.uint8)
