"""``Executor``: prepares programs, keeps what it has prepared, feeds, runs and fetches."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, Union, overload

import numpy as np

from headrace import errors
from headrace._warnings import warn
from headrace._weak_collections import WeakKeyMap
from headrace.fluid import core
from headrace.fluid._checks import check_list
from headrace.fluid._feed_source import sources_of
from headrace.fluid.compiler import AnyProgram, CompiledProgram, Feed, merge_feeds
from headrace.fluid.core import CPUPlace, LoDTensor, Scope
from headrace.fluid.framework import Program, Variable, default_main_program

__all__ = ["Executor", "as_numpy", "global_scope", "scope_guard"]

FetchList = Union[Variable, str, Sequence[Union[Variable, str]], None]

_MAX_THREADS = 1024

_scope = Scope()


def global_scope() -> Scope:
    """The scope in which programs run unless another is given."""
    return _scope


@contextlib.contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    """Within it, ``scope`` is the global scope, for all threads."""
    global _scope
    if not isinstance(scope, Scope):
        raise errors.TypeMismatch(f"scope_guard takes a Scope, got {type(scope).__name__}")
    before, _scope = _scope, scope
    try:
        yield
    finally:
        _scope = before


@overload
def as_numpy(tensor: LoDTensor) -> np.ndarray: ...
@overload
def as_numpy(tensor: list[LoDTensor]) -> list[np.ndarray]: ...
def as_numpy(tensor: LoDTensor | list[LoDTensor]) -> np.ndarray | list[np.ndarray]:
    """The elements as an array, without a copy; of a list of tensors, those of each.

    Raises:
        FailedPrecondition: a tensor has a LoD, which an array would lose, or no memory yet.
        TypeMismatch: it is given something else.
    """
    if isinstance(tensor, list):
        return [as_numpy(each) for each in tensor]
    if not isinstance(tensor, LoDTensor):
        raise errors.TypeMismatch(f"as_numpy takes a LoDTensor or a list of them, got {type(tensor).__name__}")
    if tensor.lod():
        raise errors.FailedPrecondition(
            f"{tensor!r} has a LoD, which an array cannot hold: fetch it with return_numpy=False"
        )
    return core.array_of(tensor)


def _fetch_var(name: str | Variable, scope: Scope | None = None, return_numpy: bool = True) -> np.ndarray | LoDTensor:
    """The value of a scope's variable. Fluid's programs use it.

    Args:
        scope: None: the global one.

    Raises:
        NotFound: the scope has no such variable.
    """
    name = name.name if isinstance(name, Variable) else name
    variable = (global_scope() if scope is None else scope).find_var(name)
    if variable is None:
        raise errors.NotFound(
            f"the scope has no variable '{name}': run a program that computes it, and make it persistable"
        )
    tensor = variable.get_tensor()
    return as_numpy(tensor) if return_numpy else tensor


def _as_lodtensor(data: Any, place: CPUPlace | None = None) -> LoDTensor:
    """A tensor of what ``np.asarray`` makes an array of. Fluid's programs use it."""
    return LoDTensor.from_numpy(np.asarray(data), copy=True)


class _Entry:
    """The last revision of a program that was prepared on a scope, what came of it, and the names of its readers."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # to write the others; those of other programs and scopes are not held up
        self.revision: int | None = None
        self.prepared: core.PreparedProgram | None = None
        self.readers: frozenset[str] = frozenset()


class _Cache:
    """Prepared programs, by the properties that they depend on. Keeps neither programs nor scopes alive, and of each
    program only the latest revision. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the maps, not their entries
        self._entries: WeakKeyMap[Program, WeakKeyMap[Scope, _Entry]] = WeakKeyMap()

    def get(
        self, executor: core.Executor, program: Program, scope: Scope
    ) -> tuple[core.PreparedProgram, frozenset[str]]:
        """The program as it is now, prepared, and the names of its readers."""
        with self._lock:
            of_program = self._entries.get(program)
            entry = None if of_program is None else of_program.get(scope)
            if entry is None:
                entry = self._entries.setdefault(program, WeakKeyMap()).setdefault(scope, _Entry())
        revision = program.desc.revision
        if entry.revision != revision:
            with entry.lock:
                if entry.revision != revision:
                    entry.prepared = core.PreparedProgram(executor, program.desc, scope)
                    entry.readers = program._reader_names()
                    entry.revision = revision  # last: who finds it looks up the others without the lock
        assert entry.prepared is not None
        return entry.prepared, entry.readers

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()


class Executor:
    """Runs programs on a place.

    A program is prepared when it is first run on a scope, and again after it has been changed; otherwise what was
    prepared is used again, whatever is fetched. A variable that is fetched for the first time has the temporaries find
    their places again, which takes one slower run.

    Thread-safety: any number of threads may use one Executor. The same program on the same scope is run by one thread
    at a time, the others wait; different ones run at the same time, as far as they do not write the same variables.

    Args:
        place: where programs run.
        cpu_num: threads among which operators share their work, the caller of ``run`` included; None: as many as the
            environment variable ``CPU_NUM`` says, 1 if there is none. The results have the same bits for any number.
            The threads are the Executor's: they sleep between the runs and end with it.

    Raises:
        InvalidArgument: ``cpu_num`` or ``CPU_NUM`` is not a number from 1 to 1024.
    """

    def __init__(self, place: CPUPlace | None = None, cpu_num: int | None = None) -> None:
        if place is not None and not isinstance(place, CPUPlace):
            raise errors.TypeMismatch(f"an Executor runs on a CPUPlace, got {type(place).__name__}")
        if cpu_num is not None and (isinstance(cpu_num, bool) or not isinstance(cpu_num, int)):
            raise errors.TypeMismatch(f"cpu_num is a number of threads, got {type(cpu_num).__name__}")
        if cpu_num is not None and not 1 <= cpu_num <= _MAX_THREADS:
            raise errors.InvalidArgument(f"cpu_num is a number of threads from 1 to {_MAX_THREADS}, got {cpu_num}")
        self.place = CPUPlace() if place is None else place
        self._executor = core.Executor(cpu_num or 0)
        self._cache = _Cache()
        self._closed = False

    def __repr__(self) -> str:
        return f"Executor({self.place!r})"

    def run(
        self,
        program: AnyProgram | None = None,
        feed: Feed = None,
        fetch_list: FetchList = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = True,
    ) -> list[Any]:
        """Runs a program once, without the GIL.

        Args:
            program: a program, or a CompiledProgram; None: the default main program.
            feed: values of variables: LoDTensors, a loader's ``Ragged``, or arrays (not copied where that is possible).
                Variables of ``fluid.data`` must be fed with their declared shape and dtype. Others may differ in dims
                and LoD from the declaration, and integers be given for anything but bool, as far as the operators take
                them. Names that the program does not declare are passed over, with a warning for each name: a program
                for testing may need less than is fed. Or a list of one such mapping; with a CompiledProgram of several,
                which are joined, but for persistable variables: the first one counts.
            fetch_list: variables, or their names, whose values are wanted; also of those that the scope holds and the
                program does not declare.
            scope: where persistable variables live; None: the global scope.
            return_numpy: give the values as arrays, else as LoDTensors.
            feed_var_name, fetch_var_name, use_program_cache: Fluid's; they make no difference.

        Returns:
            The fetched values in order. They belong to the caller: neither later runs nor changes of the feeds change
            them.

        Raises:
            EOFException: a reader has no next batch; no persistable variable has been changed.
            FailedPrecondition: a reader was not started; the Executor was closed.
            NotFound, InvalidArgument, TypeMismatch: a feed or a fetch does not fit the program.
            KeyboardInterrupt: between operators, and during a wait for data.
            Whatever the source of a reader raised, as it was raised.
        """
        if self._closed:
            raise errors.FailedPrecondition("the Executor has been closed")
        if isinstance(program, CompiledProgram):
            program = program.program
            feed = merge_feeds(program, feed)
        elif isinstance(feed, (list, tuple)) and len(feed) == 1:  # for each place one, as iterable loaders give it
            feed = feed[0]
        program = default_main_program() if program is None else program
        scope = global_scope() if scope is None else scope
        if not isinstance(program, Program):
            raise errors.TypeMismatch(f"an Executor runs a Program, got {type(program).__name__}")
        if not isinstance(scope, Scope):
            raise errors.TypeMismatch(f"a program runs on a Scope, got {type(scope).__name__}")
        if feed is not None and not isinstance(feed, Mapping):
            raise errors.TypeMismatch(f"feed has to map names to values, got {type(feed).__name__}")
        prepared, readers = self._cache.get(self._executor, program, scope)
        sources = sources_of(readers, scope) if readers else []
        for source in sources:
            source.check_fed(program, scope)
        declared = program.global_block().vars
        values = {}
        for name, value in (feed or {}).items():
            if name in declared or _must_be_declared(name, program):
                values[name] = _fed(name, value)
        names = _fetch_names(fetch_list)
        # Fluid looks for what is fetched in the scope alone: a clone for tests gives the optimizer's learning rate.
        held = {name for name in names if name not in declared and _holds_tensor(scope, name)}
        inside = [name for name in names if name not in held] if held else names
        try:
            tensors = prepared.run(values, inside)
        except errors.EOFException:
            for source in sources:
                source.note_end(program)
            raise
        except errors.NotFound:
            _expect_of(program, fetch_list, inside)
            raise
        if held:
            found = dict(zip(inside, tensors))
            tensors = [_copy_of(scope, name) if name in held else found[name] for name in names]
        if not return_numpy:
            return tensors
        for name, tensor in zip(names, tensors):
            if tensor.lod():
                raise errors.FailedPrecondition(
                    f"'{name}' is fetched as an array, but has a LoD, which an array cannot hold: fetch it with "
                    f"return_numpy=False"
                )
        return [core.array_of(tensor) for tensor in tensors]

    @property
    def cpu_num(self) -> int:
        """Threads among which operators share their work."""
        return self._executor.cpu_num

    def train_from_dataset(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises Unimplemented, as infer_from_dataset does: Fluid's datasets are not here."""
        raise errors.Unimplemented(
            "Executor.train_from_dataset and infer_from_dataset: feed programs with layers.py_reader or io.DataLoader, "
            "with a headrace.DataLoader as source"
        )

    infer_from_dataset = train_from_dataset

    def close(self) -> None:
        """Releases all prepared programs. The Executor cannot run programs afterwards."""
        self._closed = True
        self._cache.clear()


def check_executor(executor: Any) -> None:
    """Raises TypeMismatch if it is none. Not by its class: programs reload this module to have a scope of their own."""
    if not callable(getattr(executor, "run", None)):
        raise errors.TypeMismatch(f"an Executor was expected, got {type(executor).__name__}")


def _must_be_declared(name: Any, program: Program) -> bool:
    """False for the name of a feed that the program does not declare; warns when it is the first time."""
    if not isinstance(name, str):
        raise errors.TypeMismatch(f"feed has to map names to values, got {type(name).__name__} for a name")
    if name not in program._ignored_feeds:
        program._ignored_feeds.add(name)
        warn(f"'{name}' is fed, but the program declares no such variable", UserWarning)
    return False


def _fed(name: Any, value: Any) -> Any:
    """``value``; a list or tuple as an array, so that an error can say which variable it is for."""
    if not isinstance(value, (list, tuple)):
        return value
    try:
        return np.asarray(value)
    except ValueError as error:
        raise errors.InvalidArgument(
            f"'{name}' is fed with a {type(value).__name__} that cannot be converted to an array ({error}); for "
            "sequences of different "
            f"lengths, feed fluid.create_lod_tensor(rows, [lengths])"
        ) from error


def _holds_tensor(scope: Scope, name: str) -> bool:
    """Whether a scope has a tensor of that name that has a value."""
    variable = scope.find_var(name)
    if variable is None or not variable.is_initialized():
        return False
    try:
        return variable.get_tensor()._is_initialized()
    except errors.TypeMismatch:
        return False


def _copy_of(scope: Scope, name: str) -> core.LoDTensor:
    variable = scope.find_var(name)
    assert variable is not None
    tensor = variable.get_tensor()
    copy = core.LoDTensor.from_numpy(np.array(tensor))
    copy.set_lod(tensor.lod())
    return copy


def _fetch_names(fetch_list: FetchList) -> list[str]:
    if fetch_list is None:
        return []
    if isinstance(fetch_list, (Variable, str)):
        fetch_list = [fetch_list]
    names = []
    for item in check_list(fetch_list, "fetch_list"):
        if not isinstance(item, (Variable, str)):
            raise errors.TypeMismatch(f"fetch_list takes Variables or their names, got {type(item).__name__}")
        names.append(item.name if isinstance(item, Variable) else item)
    return names


def _expect_of(program: Program, fetch_list: FetchList, names: Sequence[str]) -> None:
    """Raises NotFound if one of ``names`` is wanted that only another program declares."""
    for item in [fetch_list] if isinstance(fetch_list, Variable) else fetch_list or []:
        if not isinstance(item, Variable) or item.block.program is program or item.name not in names:
            continue
        if not any(item.name in block.vars for block in program.blocks):
            raise errors.NotFound(
                f"cannot fetch '{item.name}': it belongs to another program than the one that is run, which does not "
                f"declare it"
            )
