"""Layers that bring data into a program. Their operators are in the folder ``reader``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from headrace import errors
from headrace._warnings import warn
from headrace._wording import counted
from headrace.fluid import core
from headrace.fluid._feed_source import FeedSource, init_queue
from headrace.fluid._names import free_name
from headrace.fluid.core import CPUPlace, VarType
from headrace.fluid.executor import global_scope
from headrace.fluid.framework import Block, Variable, default_main_program, default_startup_program
from headrace.fluid.layer_helper import LayerHelper, check_list, check_number, check_variable
from headrace.fluid.reader_variable import ReaderVariable

__all__ = [
    "Preprocessor",
    "batch",
    "create_py_reader_by_data",
    "data",
    "double_buffer",
    "load",
    "multi_pass",
    "open_files",
    "open_recordio_file",
    "parallel",
    "py_reader",
    "random_data_generator",
    "read_file",
    "shuffle",
]


#: Shape, dtype and LoD level of a tensor.
Spec = tuple[list[int], int, int]


def _dims(shape: Sequence[int | None]) -> list[int]:
    """Dimensions as a program declares them: None and, as in Fluid, anything below 0 are -1, which fits any extent."""
    if not isinstance(shape, Iterable):
        raise errors.TypeMismatch(f"a shape has to be a list or tuple of integers, got {shape!r}")
    return [-1 if d is None else max(int(d), -1) for d in shape]


def data(
    name: str,
    shape: Sequence[int],
    append_batch_size: bool = True,
    dtype: Any = "float32",
    lod_level: int = 0,
    type: VarType = VarType.LOD_TENSOR,
    stop_gradient: bool = True,
) -> Variable:
    """A variable whose value is fed. That may have other extents, another rank or LoD than is declared here, and be of
    integers, where the operators that use it can work with that.

    Args:
        shape: with ``append_batch_size`` that of a sample: the batch's dimension, -1, is put before it unless it has a
            -1 itself. None and negative values count as -1.
    """
    if not isinstance(name, str):
        raise errors.TypeMismatch(f"layers.data: name has to be a string, got {name!r}")
    if not isinstance(shape, (list, tuple)):
        raise errors.TypeMismatch(f"layers.data: the shape of '{name}' has to be a list or tuple, got {shape!r}")
    given: Any = append_batch_size
    if isinstance(given, str):
        warn(
            f"layers.data: {given!r} is given for append_batch_size of '{name}', whose dtype is "
            f"{core.dtype_name(dtype)}; was dtype={given!r} meant?",
            UserWarning,
        )
    shape = _dims(shape)
    if append_batch_size and all(d >= 0 for d in shape):
        shape = [-1, *shape]
    return (
        default_main_program()
        .global_block()
        .create_var(
            name=name,
            shape=shape,
            dtype=dtype,
            lod_level=lod_level,
            type=type,
            stop_gradient=stop_gradient,
            is_data=True,
        )
    )


def py_reader(
    capacity: int,
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[Any],
    lod_levels: Sequence[int] | None = None,
    name: str | None = None,
    use_double_buffer: bool = True,
) -> ReaderVariable:
    """A reader that Python feeds.

    Makes the queue in the present global scope; the startup program makes the reader, so it has to run, on that scope,
    before the main program does.

    Args:
        capacity: how many batches the queue holds at most.
        shapes: of the tensors of a batch; -1, or anything below 0, fits anything. As with ``layers.data``, batches may
            differ from the declaration as far as the operators can work with them.
        dtypes: one for each shape.
        lod_levels: one for each shape; None: 0 for all.
        name: of the reader; None: numbered.
        use_double_buffer: read ahead of the program, in a thread.

    Raises:
        InvalidArgument: the capacity is not positive, or the lists differ in length.
        AlreadyExists: ``name`` is taken, in the program or in the scope.
    """
    return _py_reader(capacity, shapes, dtypes, lod_levels, name, use_double_buffer, [])


def create_py_reader_by_data(
    capacity: int, feed_list: Sequence[Variable], name: str | None = None, use_double_buffer: bool = True
) -> ReaderVariable:
    """A py_reader with the shapes, dtypes, LoD levels and names of the variables in ``feed_list``."""
    feed_list = check_list(feed_list, "feed_list", "create_py_reader_by_data")
    for item in feed_list:
        if not isinstance(item, Variable):
            raise errors.TypeMismatch(f"feed_list takes Variables, got {type(item).__name__}")
    return _py_reader(
        capacity,
        [item.shape for item in feed_list],
        [item.dtype for item in feed_list],
        [item.lod_level for item in feed_list],
        name,
        use_double_buffer,
        [item.name for item in feed_list],
    )


def _counts(shapes: Sequence[Any], dtypes: Sequence[Any], lod_levels: Sequence[Any]) -> str:
    return f"{counted(shapes, 'shape')}, {counted(dtypes, 'dtype')} and {counted(lod_levels, 'LoD level')}"


def _has_queue(scope: core.Scope, base: str) -> bool:
    existing = scope.find_var(f"{base}.queue")
    return existing is not None and existing.is_initialized()


def _free_name(scope: core.Scope) -> str:
    """For a reader: two programs that share parameters, built in guards of unique_name, do not share readers."""
    while True:
        base = free_name("create_py_reader", default_startup_program(), suffix=".queue").removesuffix(".queue")
        if not _has_queue(scope, base):
            return base


def _py_reader(
    capacity: int,
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[Any],
    lod_levels: Sequence[int] | None,
    name: str | None,
    use_double_buffer: bool,
    tensor_names: list[str],
) -> ReaderVariable:
    if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity <= 0:
        raise errors.InvalidArgument(f"the capacity of a py_reader is a positive number of batches, got {capacity!r}")
    shapes, dtypes = check_list(shapes, "shapes", "py_reader"), check_list(dtypes, "dtypes", "py_reader")
    if lod_levels is None:
        lod_levels = [0] * len(shapes)
    if not shapes or not len(shapes) == len(dtypes) == len(lod_levels):
        raise errors.InvalidArgument(
            f"a py_reader needs a dtype and a LoD level for each shape, got {_counts(shapes, dtypes, lod_levels)}"
        )
    specs = [
        (_dims(shape), int(core.convert_dtype(dtype)), int(lod_level))
        for shape, dtype, lod_level in zip(shapes, dtypes, lod_levels)
    ]
    startup = default_startup_program()
    main = default_main_program()
    scope = global_scope()
    base = _free_name(scope) if name is None else name
    reader_name = f"{base}.reader" if use_double_buffer else base
    queue_name = f"{base}.queue"
    for program in (startup, main):
        for taken in (base, reader_name):
            if program.global_block().has_var(taken):
                raise errors.AlreadyExists(f"py_reader '{base}': the name is taken by another variable of the program")
    if _has_queue(scope, base):
        raise errors.AlreadyExists(f"py_reader '{base}': the scope already has one of this name")
    is_named = bool(tensor_names)
    if not is_named:  # errors about feeds name the variables that read_file will return
        tensor_names = _read_names(len(specs))

    queue = init_queue(scope, queue_name, capacity, specs, tensor_names)
    source = FeedSource(
        base,
        queue_name,
        queue,
        scope,
        [(n, *spec) for n, spec in zip(tensor_names, specs)],
        is_named,
    )
    block = startup.global_block()
    block.create_var(name=queue_name, type=VarType.RAW, persistable=True)
    block.create_var(name=reader_name, type=VarType.READER, persistable=True)
    block.append_op(
        "create_py_reader",
        {"blocking_queue": queue_name},
        {"Out": reader_name},
        {**_contract(specs), "need_check_feed": [0] * len(specs)},
    )
    reader = _reader_in_main(reader_name, specs, source)
    return double_buffer(reader, name=base) if use_double_buffer else reader


def _reader_in_main(name: str, specs: list[Spec], source: FeedSource | None) -> ReaderVariable:
    """Declares in the main program the reader that the startup program makes."""
    main = default_main_program()
    block = main.global_block()
    block.create_var(name=name, type=VarType.READER, persistable=True, stop_gradient=True).desc.reader_specs = specs
    reader = ReaderVariable(block, name, source)
    block.vars[name] = reader
    if source is not None:
        source.reader_names.append(name)
    return reader


def double_buffer(reader: Variable, place: CPUPlace | None = None, name: str | None = None) -> ReaderVariable:
    """A reader that reads ahead of the program, in a thread: two batches."""
    return _decorated_reader("create_double_buffer_reader", reader, {}, name)


def shuffle(reader: Variable, buffer_size: int) -> ReaderVariable:
    """A reader of the batches of ``reader``, shuffled within runs of ``buffer_size``. The order follows from the
    program's ``random_seed``.
    """
    attrs = {"buffer_size": buffer_size, "seed": default_main_program()._next_seed()}
    return _decorated_reader("create_shuffle_reader", reader, attrs, None)


def batch(reader: Variable, batch_size: int) -> ReaderVariable:
    """A reader that joins ``batch_size`` tensors of ``reader`` to one; the last one may have fewer."""
    return _decorated_reader("create_batch_reader", reader, {"batch_size": batch_size}, None)


def multi_pass(reader: Variable, pass_num: int) -> ReaderVariable:
    """A reader that reads ``reader``, which must be able to begin again, ``pass_num`` times in each pass."""
    return _decorated_reader("create_multi_pass_reader", reader, {"pass_num": pass_num}, None)


def parallel(reader: Variable) -> ReaderVariable:
    """A reader of the batches of ``reader``, each to whichever of several threads asks first."""
    return _decorated_reader("create_threaded_reader", reader, {}, None)


def random_data_generator(
    low: float,
    high: float,
    shapes: Sequence[Sequence[int]],
    lod_levels: Sequence[int] | None = None,
    for_parallel: bool = True,
) -> ReaderVariable:
    """A reader of float32 tensors of random numbers from [low, high), without end. They follow from the ``random_seed``
    of the startup program. ``for_parallel`` makes no difference.
    """
    layer = "random_data_generator"
    shapes = [check_list(shape, "each of shapes", layer) for shape in check_list(shapes, "shapes", layer)]
    if lod_levels is not None and (len(lod_levels) != len(shapes) or any(level != 0 for level in lod_levels)):
        raise errors.Unimplemented("layers.random_data_generator: the tensors have no LoD")
    specs = [([int(d) for d in shape], int(VarType.FP32), 0) for shape in shapes]
    name = free_name("create_random_data_generator", default_main_program(), default_startup_program())
    block = default_startup_program().global_block()
    block.create_var(name=name, type=VarType.READER, persistable=True)
    bounds = {"low": check_number(low, "low", layer), "high": check_number(high, "high", layer)}
    attrs = {**bounds, "seed": block.program._next_seed(), **_contract(specs)}
    block.append_op("create_random_data_generator", outputs={"Out": name}, attrs=attrs)
    return _reader_in_main(name, specs, None)


def open_recordio_file(
    filename: str,
    shapes: Sequence[Sequence[int]],
    lod_levels: Sequence[int],
    dtypes: Sequence[Any],
    pass_num: int = 1,
    for_parallel: bool = True,
) -> ReaderVariable:
    """A reader of the batches in a RecordIO file; see ``recordio_writer``. One chunk of it is in memory at a time.

    A damaged chunk raises a DataLoss, when it is read, that names the file and the record; the next run continues after
    it. Through a ``double_buffer`` it is raised until the reader is reset.

    Args:
        shapes: of the tensors of a record; -1 fits anything. Records may differ from the declaration, in dtypes and
            LoD levels, as far as the operators can work with them.
        lod_levels, dtypes: one for each shape.
        pass_num: how often the file is read in a pass.
        for_parallel: makes no difference.
    """
    return _file_reader("create_recordio_file_reader", {"filename": filename}, shapes, lod_levels, dtypes, pass_num)


def open_files(
    filenames: Sequence[str] | str,
    shapes: Sequence[Sequence[int]],
    lod_levels: Sequence[int],
    dtypes: Sequence[Any],
    thread_num: int | None = None,
    buffer_size: int | None = None,
    pass_num: int = 1,
    is_test: bool | None = None,
) -> ReaderVariable:
    """A reader of the batches in several RecordIO files, which threads read at the same time.

    Args:
        shapes, lod_levels, dtypes, pass_num: as in ``open_recordio_file``.
        thread_num: None: one for each file, four at most.
        buffer_size: batches that are read ahead; None: three for each thread.
        is_test: one thread reads the files in their order, so that every pass is the same.
    """
    filenames = [filenames] if isinstance(filenames, str) else check_list(filenames, "filenames", "open_files")
    if thread_num is None:
        thread_num = max(min(len(filenames), 4), 1)
    attrs = {
        "file_names": filenames,
        "thread_num": thread_num,
        "buffer_size": 3 * thread_num if buffer_size is None else buffer_size,
        "is_test": bool(is_test),
    }
    return _file_reader("open_files", attrs, shapes, lod_levels, dtypes, pass_num)


def _file_reader(
    op_type: str,
    attrs: dict[str, Any],
    shapes: Sequence[Sequence[int]],
    lod_levels: Sequence[int],
    dtypes: Sequence[Any],
    pass_num: int,
) -> ReaderVariable:
    shapes, dtypes = check_list(shapes, "shapes", op_type), check_list(dtypes, "dtypes", op_type)
    lod_levels = check_list(lod_levels, "lod_levels", op_type)
    if not len(shapes) == len(dtypes) == len(lod_levels):
        raise errors.InvalidArgument(
            f"layers.{op_type}: a dtype and a LoD level are needed for each shape, "
            f"got {_counts(shapes, dtypes, lod_levels)}"
        )
    specs = [
        (_dims(shape), int(core.convert_dtype(dtype)), int(level))
        for shape, dtype, level in zip(shapes, dtypes, lod_levels)
    ]
    name = free_name(op_type, default_main_program(), default_startup_program())
    block = default_startup_program().global_block()
    block.create_var(name=name, type=VarType.READER, persistable=True)
    attrs = {**attrs, **_contract(specs), "need_check_feed": [0] * len(specs)}
    block.append_op(op_type, outputs={"Out": name}, attrs=attrs)
    reader = _reader_in_main(name, specs, None)
    return reader if pass_num == 1 else multi_pass(reader, pass_num)


def _contract(specs: Sequence[Spec]) -> dict[str, list[int]]:
    """The attributes by which operators that make readers say what these yield."""
    return {
        "shape_concat": [d for shape, _, _ in specs for d in shape],
        "ranks": [len(shape) for shape, _, _ in specs],
        "dtypes": [dtype for _, dtype, _ in specs],
        "lod_levels": [lod_level for _, _, lod_level in specs],
    }


#: Readers that give other batches than they read, or in another order.
_REGROUPING = ("create_batch_reader", "create_multi_pass_reader", "create_shuffle_reader")


def _decorated_reader(
    op_type: str, reader: Variable, attrs: dict[str, Any], name: str | None, specs: list[Spec] | None = None
) -> ReaderVariable:
    """``specs``: None: those of ``reader``."""
    if not isinstance(reader, ReaderVariable):
        raise errors.TypeMismatch(f"a reader was expected, got {reader!r}")
    block = default_main_program().global_block()
    name = free_name(op_type, block.program) if name is None else name
    if block.has_var(name):
        raise errors.AlreadyExists(f"reader '{name}': the name is taken by another variable of the program")
    decorated = _reader_in_main(name, reader.specs if specs is None else specs, reader._source)
    block.append_op(op_type, {"UnderlyingReader": reader}, {"Out": decorated}, attrs)
    if reader._source is not None and op_type in _REGROUPING:
        reader._source.regrouped_by = op_type
    return decorated


class Preprocessor:
    """A reader that runs layers on each batch of ``reader``.

    ::

        preprocessor = layers.Preprocessor(reader)
        with preprocessor.block():
            image, label = preprocessor.inputs()
            preprocessor.outputs(image / 255, label + 1)
        reader = layers.double_buffer(preprocessor())
        image, label = layers.read_file(reader)

    Under a ``double_buffer`` the layers run in its thread, while the program works on the batch before. Parameters and
    other persistable variables that they use have the values that the program's last run found at its beginning; other
    variables of the program cannot be used.
    """

    def __init__(self, reader: Variable, name: str | None = None) -> None:
        if not isinstance(reader, ReaderVariable):
            raise errors.TypeMismatch(f"layers.Preprocessor takes a reader, got {reader!r}")
        self._underlying = reader
        self._name = name
        self._block: Block | None = None
        self._inside = False
        self._sources: list[Variable] = []
        self._sinks: list[Variable] = []
        self._reader: ReaderVariable | None = None

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Within it, layers define how a batch is processed.

        Raises:
            FailedPrecondition: there has been a block already, it is not in the main block of the program, or
                ``inputs`` or ``outputs`` has not been called in it.
        """
        program = default_main_program()
        if self._block is not None or program.current_block_idx != 0:
            raise errors.FailedPrecondition(
                "layers.Preprocessor: only one block is allowed, in the main block of the program"
            )
        self._inside = True
        try:
            with program._new_block() as self._block:
                self._block._runs_in_reader = True
                yield
                if not self._sources or not self._sinks:
                    raise errors.FailedPrecondition(
                        "layers.Preprocessor: inputs() and outputs() have to be called in the block"
                    )
        except BaseException:
            self._block, self._sources, self._sinks = None, [], []
            raise
        finally:
            self._inside = False

    def inputs(self) -> list[Variable]:
        """The batch: a variable for each one that the reader yields."""
        block = self._current("inputs")
        if not self._sources:
            self._sources = [
                block.create_var(
                    free_name("preprocessor_source", block.program), shape, dtype, lod_level=level, stop_gradient=True
                )
                for shape, dtype, level in self._underlying.specs
            ]
        return list(self._sources)

    def outputs(self, *outs: Variable) -> None:
        """The results for the batch: variables of the block."""
        block = self._current("outputs")
        for out in outs:
            if check_variable(out, "outs", "Preprocessor.outputs").block is not block:
                raise errors.InvalidArgument(
                    f"Preprocessor.outputs: '{out.name}' is not a variable of the block; layers.assign makes it one"
                )
        self._sinks = list(outs)

    def __call__(self) -> ReaderVariable:
        """The reader."""
        if self._block is None or self._inside or not self._sinks:
            raise errors.FailedPrecondition("layers.Preprocessor: the reader is available after the block")
        if self._reader is None:
            attrs = {
                "sub_block": self._block,
                "source_var_names": [source.name for source in self._sources],
                "sink_var_names": [sink.name for sink in self._sinks],
            }
            specs = [(list(sink.shape), int(core.convert_dtype(sink.dtype)), sink.lod_level) for sink in self._sinks]
            self._reader = _decorated_reader("create_custom_reader", self._underlying, attrs, self._name, specs)
        return self._reader

    def _current(self, what: str) -> Block:
        if self._block is None or not self._inside:
            raise errors.FailedPrecondition(f"layers.Preprocessor: {what}() must be called in its block")
        return self._block


def _read_names(count: int, users: Sequence[str] = ()) -> list[str]:
    """Names for the variables that are read in one place; with those that the user has for them, if there are any."""
    suffixes = users if len(users) == count else [f"tmp_{i}" for i in range(count)]
    first = f".{suffixes[0]}"
    name = free_name("read_file", default_main_program(), suffix=first).removesuffix(first)
    return [f"{name}.{suffix}" for suffix in suffixes]


def read_file(reader: Variable) -> Any:
    """Takes the next batch from ``reader`` in each run.

    Returns:
        The variable that is read, or a list if the reader yields several.
    """
    if not isinstance(reader, ReaderVariable):
        raise errors.TypeMismatch(f"read_file takes a reader, got {reader!r}")
    block = default_main_program().current_block()
    names = reader._source.take_read_names(len(reader.specs)) if reader._source is not None else None
    if names is None or any(block._find_var_recursive(name) is not None for name in names):
        names = _read_names(len(reader.specs), reader._source.users_names if reader._source is not None else ())
    out = [
        block.create_var(name=name, shape=shape, dtype=dtype, lod_level=lod_level, stop_gradient=True, is_data=True)
        for name, (shape, dtype, lod_level) in zip(names, reader.specs)
    ]
    block.append_op("read", {"Reader": reader}, {"Out": out})
    return out[0] if len(out) == 1 else out


def load(out: Variable, file_path: str, load_as_fp16: bool | None = None) -> None:
    """Reads ``out`` from a file that the operator ``save`` has written, here or in Fluid, whenever the program runs.

    The file has to have the shape and dtype that ``out`` is declared with, if that declares a shape.

    Args:
        load_as_fp16: Fluid's; True is refused.
    """
    attrs = {"file_path": file_path, "load_as_fp16": bool(load_as_fp16)}
    LayerHelper("load").append_op({}, {"Out": check_variable(out, "out", "load")}, attrs)
