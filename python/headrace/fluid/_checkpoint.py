"""Checkpoints from which training continues exactly: variables, and the positions of readers and loaders.

A checkpoint is a folder, ``checkpoint_<serial>``, with a file of tensors and one, ``state.json``, that describes it and
has the checksum of the other. The folder is written under another name, reaches the disk, and is then renamed: whatever
happens, including a crash or a power cut, a checkpoint under its name is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from headrace import errors
from headrace._warnings import warn
from headrace.fluid import core
from headrace.fluid._feed_source import FeedSource, sources_of
from headrace.fluid._persistables import persistables, put, values_of
from headrace.fluid.compiler import AnyProgram, program_of
from headrace.fluid.core import Scope
from headrace.fluid.executor import Executor, check_executor, global_scope
from headrace.fluid.framework import Operator, Program, Variable

__all__ = ["load_checkpoint", "save_checkpoint"]

_FORMAT = 1
_TENSORS, _STATE = "tensors", "state.json"
_NAME = re.compile(r"checkpoint_(\d+)")
#: The prefix of checkpoints that are being written, or removed.
_UNFINISHED = ".unfinished-"


class Loader(Protocol):
    """An object with a state, such as a headrace.DataLoader."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> None: ...


def save_checkpoint(
    executor: Executor,
    checkpoint_dir: str | os.PathLike[str],
    main_program: AnyProgram | None = None,
    loaders: Mapping[str, Loader] | None = None,
    extra: Any = None,
    max_num_checkpoints: int = 3,
    scope: Scope | None = None,
) -> int:
    """Saves everything that training needs to continue bit for bit: all persistable variables (parameters,
    the state of optimizers, counters of learning rates and of random operators), and the position of the readers that
    ``decorate_loader`` has given a headrace.DataLoader. Batches that are in a queue or a double buffer count as not yet
    read.

    ::

        reader.decorate_loader(loader)
        done = fluid.io.load_checkpoint(executor, "checkpoints") or {"step": 0}
        ...
            executor.run(program)
            done["step"] += 1
            if done["step"] % 100 == 0:
                fluid.io.save_checkpoint(executor, "checkpoints", extra=done)

    Random operators repeat only if the programs had a ``random_seed`` when layers added them; others draw afresh in
    every run. What Python generators feed has no place that could be saved; nor have readers of files and of random
    data, which begin again. A RuntimeWarning tells of such operators and readers.

    Args:
        checkpoint_dir: a folder for checkpoints, which is made if need be.
        loaders: others whose state belongs to it, under names: those that are iterated over, ``headrace.DataLoader`` or
            loaders of ``fluid.io`` that have one as their source.
        extra: any data of your own that JSON can hold; ``load_checkpoint`` returns it, with keys of dicts as strings
            and tuples as lists.
        max_num_checkpoints: only this many are kept; older ones are removed.

    Returns:
        The serial number of the checkpoint: 0, 1, …

    Raises:
        NotFound: a variable has no value: has the startup program been run?
        FailedPrecondition: a reader has no position that could be saved, because a shuffle or batch reader wraps it.
        InvalidArgument: ``checkpoint_dir`` is a file.
        TypeMismatch: ``extra``, or a loader's state, is nothing that JSON can hold.
        OSError: it cannot be written; then the others are as before.
    """
    check_executor(executor)
    if not isinstance(max_num_checkpoints, int) or max_num_checkpoints < 1:
        raise errors.InvalidArgument(
            f"save_checkpoint: max_num_checkpoints has to be a positive number, got {max_num_checkpoints!r}"
        )
    root = os.fspath(checkpoint_dir)
    if os.path.exists(root) and not os.path.isdir(root):
        raise errors.InvalidArgument(f"save_checkpoint: {root} is not a folder")
    program = program_of(main_program)
    variables = persistables(program)
    scope = global_scope() if scope is None else scope
    values = values_of(variables, scope)
    _warn_of_positions(program, scope)
    _warn_of_random_numbers(program)
    state = _state(program, variables, scope, loaders or {}, extra)
    os.makedirs(root, exist_ok=True)
    with core.FileSetLock(root, exclusive=True):
        serials = _serials(root)
        serial = serials[-1] + 1 if serials else 0
        _write(root, serial, list(values.values()), state)
        _remove(root, [*serials, serial][:-max_num_checkpoints])
    return serial


def load_checkpoint(
    executor: Executor,
    checkpoint_dir: str | os.PathLike[str],
    main_program: AnyProgram | None = None,
    loaders: Mapping[str, Loader] | None = None,
    serial: int | None = None,
    scope: Scope | None = None,
) -> Any:
    """Loads what save_checkpoint has saved: variables into the scope, and the position of readers, whose next ``start``
    continues there, and of loaders. The number of their workers may differ.

    Args:
        loaders: those that were given when it was saved.
        serial: of the checkpoint; None: the last one.

    Returns:
        The ``extra`` of save_checkpoint, or an empty dict instead of None; None if there is no checkpoint.

    Raises:
        NotFound: there is no checkpoint of that serial number.
        DataLoss: the checkpoint is damaged: its checksums are others. Nothing has been changed; earlier ones may be
            loaded by their serial numbers.
        InvalidArgument: it belongs to another program, readers or loaders: the error names the differences. Nothing has
            been changed, unless a loader has refused its state. Or ``checkpoint_dir`` is a file.
    """
    check_executor(executor)
    root = os.fspath(checkpoint_dir)
    if not os.path.exists(root):
        if serial is not None:
            raise errors.NotFound(f"there is no checkpoint {serial} in {root}")
        return None
    if not os.path.isdir(root):
        raise errors.InvalidArgument(f"load_checkpoint: {root} is not a folder")
    program = program_of(main_program)
    variables = persistables(program)
    scope = global_scope() if scope is None else scope
    with core.FileSetLock(root):
        serials = _serials(root)
        if serial is None and not serials:
            return None
        if serial is not None and serial not in serials:
            raise errors.NotFound(f"there is no checkpoint {serial} in {root}, only {serials}")
        chosen = serials[-1] if serial is None else serial
        folder = os.path.join(root, f"checkpoint_{chosen}")
        saved = _verified(folder, [other for other in serials if other != chosen])
        sources = _sources(program, scope)
        _check_same(folder, "variable", saved["variables"], _described(variables))
        _check_same(folder, "reader", dict.fromkeys(saved["readers"]), dict.fromkeys(sources))
        _check_same(folder, "loader", dict.fromkeys(saved["loaders"]), dict.fromkeys(loaders or {}))
        values = core.read_tensors(os.path.join(folder, _TENSORS), sorted(saved["variables"]))
    for name, source in sources.items():
        source.load_loader_state(saved["readers"][name])
    for name, loader in (loaders or {}).items():
        loader.load_state_dict(saved["loaders"][name])
    put(dict(zip(sorted(saved["variables"]), values)), scope)
    return {} if saved["extra"] is None else saved["extra"]


def remove_checkpoints(root: str) -> None:
    """Removes all checkpoints from a folder, and nothing else."""
    if os.path.isdir(root):
        with core.FileSetLock(root, exclusive=True):
            _remove(root, _serials(root))


def _warn_of_positions(program: Program, scope: Scope) -> None:
    """Warns of readers that will begin their data again when the checkpoint is loaded."""
    for name in sorted(program._readers_read()):
        variable = scope.find_var(name)
        if variable is not None and variable.is_initialized() and variable.reader_can_rewind():
            warn(
                f"save_checkpoint: the position of reader '{name}', which reads files or random data, is not saved: "
                "it will begin again. For exact resumption, feed the program from a headrace.DataLoader"
            )


def _warn_of_random_numbers(program: Program) -> None:
    """Warns of operators that draw afresh in every run, of a program that has a seed to repeat its training."""
    if program.random_seed == 0:
        return
    ops = [op for block in program.blocks for op in block.ops if op.has_attr("seed") and not op.attr("seed")]
    types = {op.type for op in ops if not op.input("Seed") and _draws(op)}
    if types:
        warn(
            f"save_checkpoint: {', '.join(map(repr, sorted(types)))} will draw other numbers after the checkpoint is "
            "loaded, although the program has a random_seed: a run that is resumed will differ from one that was not"
        )


def _draws(op: Operator) -> bool:
    """Whether an operator that may draw random numbers draws any."""
    return not (op.has_attr("is_test") and op.attr("is_test")) and not (  # dropout
        op.has_attr("use_random") and not op.attr("use_random")  # those that choose among boxes may take the first ones
    )


def _sources(program: Program, scope: Scope) -> dict[str, FeedSource]:
    """The readers whose position is that of a loader, by name."""
    return {source.name: source for source in sources_of(program._reader_names(), scope) if source.loader is not None}


def _state(
    program: Program, variables: Sequence[Variable], scope: Scope, loaders: Mapping[str, Loader], extra: Any
) -> str:
    """All of a checkpoint but its tensors."""
    state = {
        "variables": _described(variables),
        "readers": {name: source.loader_state(program) for name, source in _sources(program, scope).items()},
        "loaders": {name: loader.state_dict() for name, loader in loaders.items()},
        "extra": extra,
    }
    try:
        return json.dumps(state)
    except (TypeError, ValueError) as error:
        raise errors.TypeMismatch(
            f"save_checkpoint: extra and states have to be what JSON can hold: {error}"
        ) from error


def _write(root: str, serial: int, tensors: Sequence[core.LoDTensor], state: str) -> None:
    """Writes a checkpoint, which is complete once it has its name."""
    _remove_unfinished(root)
    folder = os.path.join(root, f"{_UNFINISHED}{serial}")
    core.replace_files(folder, {_TENSORS: tensors})
    description = {"format": _FORMAT, "tensors": _checksum(os.path.join(folder, _TENSORS)), "state": state}
    core.replace_files(folder, {_STATE: json.dumps({**description, "checksum": _of_text(description)}).encode()})
    os.rename(folder, os.path.join(root, f"checkpoint_{serial}"))
    _sync(root)


def _described(variables: Sequence[Variable]) -> dict[str, str]:
    return {var.name: f"{core.dtype_name(var.dtype)} {list(var.shape)}" for var in variables}


def _check_same(folder: str, what: str, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    differences = [f"it lacks {what} '{name}'" for name in wanted if name not in saved]
    differences += [f"it has a {what} '{name}', which this program lacks" for name in saved if name not in wanted]
    differences += [
        f"{what} '{name}' is {wanted[name]} in the program, {saved[name]} in the checkpoint"
        for name in wanted
        if name in saved and wanted[name] != saved[name]
    ]
    if differences:
        raise errors.InvalidArgument(f"{folder} is a checkpoint of another program: {'; '.join(differences[:5])}")


def _serials(root: str) -> list[int]:
    found = (_NAME.fullmatch(name) for name in os.listdir(root))
    return sorted(int(match[1]) for match in found if match is not None)


def _remove(root: str, serials: Sequence[int]) -> None:
    """Each is complete until it is gone under its name."""
    for serial in serials:
        os.rename(os.path.join(root, f"checkpoint_{serial}"), os.path.join(root, f"{_UNFINISHED}{serial}"))
    _remove_unfinished(root)


def _remove_unfinished(root: str) -> None:
    for name in os.listdir(root):
        if name.startswith(_UNFINISHED):
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)


def _checksum(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _of_text(description: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()


def _verified(folder: str, others: Sequence[int]) -> dict[str, Any]:
    """The state of a checkpoint. DataLoss, which names the others, if a checksum is another one."""
    with _damage_of(folder, others):
        with open(os.path.join(folder, _STATE), encoding="utf-8") as file:
            description = json.load(file)
        checksum = description.pop("checksum")
        if description["format"] != _FORMAT:
            raise errors.DataLoss(f"{folder} has format {description['format']}, expected {_FORMAT}")
        if checksum != _of_text(description):
            raise ValueError("the checksum of its state does not match")
        if _checksum(os.path.join(folder, _TENSORS)) != description["tensors"]:
            raise ValueError("the checksum of its tensors does not match")
        state: dict[str, Any] = json.loads(description["state"])
        return state


@contextlib.contextmanager
def _damage_of(folder: str, others: Sequence[int]) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise errors.DataLoss(
            f"the checkpoint {folder} is damaged, or was not written by Headrace ({error}); "
            + (f"load another with load_checkpoint(serial=…): {others}" if others else "there is no other")
        ) from error


def _sync(folder: str) -> None:
    """Has the names in a folder reach the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
