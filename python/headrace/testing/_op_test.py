"""Tests of single operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Union

import numpy as np

import headrace.fluid as fluid
from headrace import _core
from headrace.fluid import core
from headrace.fluid.framework import EMPTY_VAR_NAME, Program, Variable, grad_var_name

__all__ = ["OpTest"]

#: An array, or an array with the lengths of its sequences, the outermost level first.
Tensor = Union[np.ndarray, tuple[np.ndarray, Sequence[Sequence[int]]]]
#: The contents of a slot: one variable or several. None stands for a variable that is not given, or not compared.
SlotTensors = Union[Tensor, None, Sequence[Union[Tensor, None]]]

#: Which dimensions of the inputs a program does not know.
_UNKNOWN = ("none", "first", "all")
#: How far results and derivatives may lie apart, relative to those above 1, in a dtype of 16 bits: float16 has 11
#: significant bits, bfloat16 8.
_NARROW_TOLERANCES = {"float16": 1e-2, "bfloat16": 8e-2}


class OpTest:
    """One use of an operator, with the results that it should have.

    ::

        x = np.array([[1.0, -2.0]])
        test = OpTest("scale", {"X": x}, {"scale": 3.0}, {"Out": 3 * x})
        test.check_outputs()
        test.check_gradients(["X"])
        OpTest("scale", {"X": x}, {"scale": "3"}, {"Out": None}).check_refused(TypeError, "attribute 'scale'")

    Each check builds programs of its own and runs them on a scope of its own; the default programs are left alone.

    Args:
        op_type: the operator, which has to be registered.
        inputs: the variables of each input slot. A list is a slot of several variables; None in it leaves an item
            empty.
        attrs: the attributes.
        outputs: the expected contents of each output slot. None: it is written, but not compared. Slots that are not
            named are not given to the operator.
        known: input slots whose dimensions are always known, such as those of parameters: they are never declared as
            -1.
        fixed: input slots whose dtype is always the same: a check that changes dtypes does not change it.
    """

    __test__ = False  # pytest: a tool, not a test

    def __init__(
        self,
        op_type: str,
        inputs: Mapping[str, SlotTensors],
        attrs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, SlotTensors] | None = None,
        known: Sequence[str] = (),
        fixed: Sequence[str] = (),
    ) -> None:
        self.op_type = op_type
        self._known = frozenset(known)
        self._fixed = frozenset(fixed)
        self.attrs = dict(attrs or {})
        self._inputs = {slot: _items(value) for slot, value in inputs.items()}
        self._expected = {slot: _items(value) for slot, value in (outputs or {"Out": None}).items()}

    def run(self, dtype: Any = None) -> dict[str, list[core.LoDTensor]]:
        """Runs the operator once. ``dtype``: that of the floating-point inputs, if not their own."""
        program = _OpProgram(self, dtype)
        return program.run()

    def gradients(
        self, inputs: Sequence[str], outputs: Sequence[str] | None = None, dtype: Any = np.float64
    ) -> dict[str, np.ndarray]:
        """The derivatives that check_gradients checks, as the operator gives them: by the variables of the input slots
        (``X_0`` is the first one of slot X), in ``dtype``. For operators that do not give the true ones.
        """
        slots = list(self._expected) if outputs is None else list(outputs)
        program = _OpProgram(self, dtype)
        results = program.differentiate(inputs, slots)
        tensors = program.gradients()
        values = {name: np.array(tensor) for name, tensor in tensors.items()}
        _check_memory(program.gradient_ops, program.tensors(results))
        for unknown in _UNKNOWN:
            inferred = _OpProgram(self, dtype, unknown)
            inferred.differentiate(inputs, slots, results)
            for name, variable in inferred.derivatives.items():
                self._check_inferred(f"the gradient of {name}", variable, tensors[name])
        if any(tensor.lod() for slot in slots for tensor in results[slot]):
            bare = _OpProgram(self, dtype)
            bare.differentiate(inputs, slots, results, with_lod=False)
            for name, tensor in bare.gradients().items():
                _expect(
                    np.array(tensor).tobytes() == values[name].tobytes(),
                    f"{self.op_type}: the gradient of {name} needs the LoD of an output's gradient, which may lack it",
                )
        return values

    def check_outputs(self, rtol: float | None = None, atol: float | None = None) -> None:
        """Compares values, shapes, dtypes and LoDs of the outputs with the expected ones, and the result of shape
        inference before the run, with known and with unknown (-1) dimensions, with the result of the run. Also tests
        what the operator declares about its memory: it is run with each output in the memory of the input that it may
        be written in place of, and without the elements of inputs of which it reads only the shape.

        Args:
            rtol: largest difference allowed, relative to the expected element; None: 1e-5, or 1e-2 for float16.
            atol: the difference allowed in addition; None: 1e-6, or 1e-2 for float16.

        Raises:
            AssertionError: they differ; the message names operator and variable.
        """
        program = _OpProgram(self)
        actual = program.run()
        for slot, tensors in self._expected.items():
            for i, expected in enumerate(tensors):
                if expected is not None:
                    self._compare(f"{slot}[{i}]", actual[slot][i], expected, rtol, atol)
        for unknown in _UNKNOWN:
            self._check_inference(_OpProgram(self, unknown=unknown), actual)
        _check_memory([program.op], program.tensors())

    def check_gradients(
        self,
        inputs: Sequence[str],
        outputs: Sequence[str] | None = None,
        tolerance: float = 1e-6,
        float32_tolerance: float | None = 1e-3,
        step: float = 1e-5,
        dtypes: Sequence[Any] = (),
    ) -> None:
        """Compares the derivatives of a fixed linear combination of the output slots, by each element of the input
        slots, with central differences, in float64; those in float32 with those in float64; and the result of shape
        inference for them, with known and with unknown (-1) dimensions, with the gradients themselves. The declarations
        of the gradient operators about their memory are checked as by :meth:`check_outputs`. Only the operator under
        test and those of its gradient are run.

        Args:
            inputs: slots to differentiate by.
            outputs: slots whose floating-point variables are combined; None: all.
            tolerance: largest difference allowed, relative to derivatives above 1.
            float32_tolerance: the same for float32; None if the operator takes float64 only.
            step: half the distance of the two points of a central difference.
            dtypes: further dtypes that the operator and its gradient have kernels for, such as "float16". Their
                derivatives are compared with those in float64 of the same inputs, rounded; 1e-2 is allowed for float16,
                8e-2 for bfloat16 (whose dtype is that of ml_dtypes), and ``float32_tolerance`` for others.

        Raises:
            AssertionError: the derivatives differ; the message names operator, variable and element.
        """
        slots = list(self._expected) if outputs is None else list(outputs)
        gradients = self.gradients(inputs, slots)
        forward = _OpProgram(self, np.float64)
        for name, gradient in gradients.items():
            value = forward.feed[name][0]
            _expect(gradient.shape == value.shape, f"{self.op_type}: the gradient of {name} has dims {gradient.shape}")
            expected = np.empty(value.shape)
            for at in np.ndindex(value.shape):
                kept = value[at]
                value[at] = kept + step
                above = forward.objective(slots)
                value[at] = kept - step
                below = forward.objective(slots)
                value[at] = kept
                expected[at] = (above - below) / (2 * step)
            self._compare_gradient(name, gradient, expected, tolerance, "central differences")
        if float32_tolerance is not None:
            self._compare_gradients(inputs, slots, np.float32, gradients, float32_tolerance)
        for dtype in map(np.dtype, dtypes):
            allowed = _NARROW_TOLERANCES.get(dtype.name, float32_tolerance or 1e-3)
            self._compare_gradients(inputs, slots, dtype, self._rounded(dtype).gradients(inputs, slots), allowed)

    def _compare_gradients(
        self,
        inputs: Sequence[str],
        slots: Sequence[str],
        dtype: Any,
        expected: Mapping[str, np.ndarray],
        tolerance: float,
    ) -> None:
        for name, gradient in self.gradients(inputs, slots, dtype).items():
            _expect(gradient.dtype == dtype, f"{self.op_type}: the gradient of {name} is {gradient.dtype}")
            self._compare_gradient(name, gradient, expected[name], tolerance, "float64")

    def _rounded(self, dtype: np.dtype[Any]) -> OpTest:
        """The same test with inputs that ``dtype`` can hold."""

        def rounded(tensor: Tensor | None) -> Tensor | None:
            if tensor is None:
                return None
            value, lengths = _split(tensor)
            return (value.astype(dtype).astype(value.dtype) if _is_floating(value.dtype) else value), lengths

        inputs = {slot: [rounded(tensor) for tensor in tensors] for slot, tensors in self._inputs.items()}
        return OpTest(self.op_type, inputs, self.attrs, self._expected, sorted(self._known), sorted(self._fixed))

    def check_refused(self, error: type[Exception], *parts: str, when: str = "build") -> None:
        """Checks that the operator is refused with ``error``, in a message that contains its type and each of
        ``parts``.

        Args:
            when: "build": when it is added to a program that declares the shapes, and, if it can be added to one that
                does not, at the latest when that is run. "run": not before it is run.
        """
        if when == "build":
            self._expect(error, parts, lambda: _OpProgram(self))
            self._expect(error, parts, lambda: _OpProgram(self, unknown="all").run())
        else:
            program = _OpProgram(self)
            self._expect(error, parts, program.run)

    def _expect(self, error: type[Exception], parts: Sequence[str], function: Callable[[], object]) -> None:
        message = None
        try:
            function()
        except error as raised:
            message = str(raised)
        if message is None:
            raise AssertionError(f"{self.op_type} was not refused; {error.__name__} was expected")
        for part in (self.op_type, *parts):
            _expect(part in message, f"'{message}' does not contain '{part}'")

    def _compare(
        self, what: str, actual: core.LoDTensor, expected: Tensor, rtol: float | None, atol: float | None
    ) -> None:
        value, lengths = _split(expected)
        array = np.asarray(actual)
        _expect(
            list(array.shape) == list(value.shape),
            f"{self.op_type}: {what} has dims {list(array.shape)}, expected {list(value.shape)}",
        )
        _expect(array.dtype == value.dtype, f"{self.op_type}: {what} is {array.dtype}, expected {value.dtype}")
        _expect(
            actual.recursive_sequence_lengths() == lengths,
            f"{self.op_type}: {what} has sequence lengths {actual.recursive_sequence_lengths()}, expected {lengths}",
        )
        allowed = _NARROW_TOLERANCES.get(value.dtype.name)
        if allowed is not None:
            array, value = array.astype(np.float32), value.astype(np.float32)
        rtol = rtol if rtol is not None else allowed or 1e-5
        atol = atol if atol is not None else allowed or 1e-6
        np.testing.assert_allclose(array, value, rtol=rtol, atol=atol, err_msg=f"{self.op_type}: {what}")

    def _compare_gradient(self, name: str, actual: np.ndarray, expected: np.ndarray, tolerance: float, of: str) -> None:
        difference = np.abs(actual.astype(np.float64) - expected) / np.maximum(1, np.abs(expected))
        wrong = ~(difference <= tolerance)
        if wrong.any():
            at = tuple(int(i[0]) for i in np.nonzero(wrong))
            raise AssertionError(
                f"{self.op_type}: d/d{name}{list(at)} in {actual.dtype} is {actual[at]}, expected {expected[at]} by "
                f"{of}; {int(wrong.sum())} of {wrong.size} differ"
            )

    def _check_inference(self, program: _OpProgram, actual: Mapping[str, Sequence[core.LoDTensor]]) -> None:
        for slot, tensors in actual.items():
            for i, tensor in enumerate(tensors):
                self._check_inferred(f"{slot}[{i}]", program.outputs[slot][i], tensor)

    def _check_inferred(self, what: str, variable: Variable, tensor: core.LoDTensor) -> None:
        what = f"{self.op_type}: {what}, inferred"
        dims = tensor.shape()
        fits = len(dims) == len(variable.shape) and all(d in (-1, a) for d, a in zip(variable.shape, dims))
        _expect(fits, f"{what} with dims {list(variable.shape)}, has dims {dims}")
        inferred = core.dtype_name(variable.dtype)
        _expect(inferred == tensor.dtype(), f"{what} as {inferred}, is {tensor.dtype()}")
        levels = len(tensor.lod())
        _expect(variable.lod_level == levels, f"{what} with LoD level {variable.lod_level}, has {levels}")


class _OpProgram:
    """A program with the operator of a test, and its feeds.

    Args:
        dtype: that of the floating-point inputs; None: their own.
        unknown: which dimensions of the inputs are declared as -1: none, the "first", or "all".
    """

    def __init__(self, test: OpTest, dtype: Any = None, unknown: str = "none") -> None:
        self.program = Program()
        block = self.program.global_block()
        #: Value and sequence lengths by variable.
        self.feed: dict[str, tuple[np.ndarray, list[list[int]]]] = {}
        self.inputs: dict[str, list[str]] = {}
        self.outputs: dict[str, list[Variable]] = {}
        #: Variables of the inputs → those of their gradients.
        self.derivatives: dict[str, Variable] = {}
        self._scope = fluid.Scope()
        self._executor = fluid.Executor()
        for slot, tensors in test._inputs.items():
            names = self.inputs[slot] = []
            for tensor in tensors:
                if tensor is None:
                    names.append(EMPTY_VAR_NAME)
                    continue
                value, lengths = _split(tensor)
                follows = dtype is not None and slot not in test._fixed and _is_floating(value.dtype)
                value = np.array(value, dtype if follows else None)
                name = f"{slot}_{len(names)}"
                hidden = 0 if slot in test._known or unknown == "none" else 1 if unknown == "first" else value.ndim
                shape = [-1] * min(hidden, value.ndim) + list(value.shape[hidden:])
                block.create_var(name, shape, value.dtype, len(lengths), stop_gradient=False)
                self.feed[name] = (value, lengths)
                names.append(name)
        for slot, tensors in test._expected.items():
            self.outputs[slot] = [block.create_var(f"{slot}_out_{i}") for i in range(len(tensors))]
        self.op = block.append_op(test.op_type, self.inputs, self.outputs, test.attrs).desc
        self.gradient_ops: list[core.OpDesc] = []

    def run(self) -> dict[str, list[core.LoDTensor]]:
        flat = [variable for variables in self.outputs.values() for variable in variables]
        fetched = iter(self._run(flat))
        return {slot: [next(fetched) for _ in variables] for slot, variables in self.outputs.items()}

    def _run(self, fetches: Sequence[Variable]) -> list[core.LoDTensor]:
        return self._executor.run(self.program, self._fed(), list(fetches), scope=self._scope, return_numpy=False)

    def _fed(self) -> dict[str, core.LoDTensor]:
        return {name: _lod_tensor(value, lengths) for name, (value, lengths) in self.feed.items()}

    def tensors(self, results: Mapping[str, Sequence[core.LoDTensor]] | None = None) -> dict[str, core.LoDTensor]:
        """The values of the variables that operators read: feeds, the outputs if ``results`` are given, and
        those that one operator of the gradient passes to the next.
        """
        tensors = self._fed()
        for slot, variables in self.outputs.items():
            if results is not None:
                tensors.update((variable.name, tensor) for variable, tensor in zip(variables, results[slot]))
        read = {name for op in self.gradient_ops for name in op.input_arg_names()}
        block = self.program.global_block()
        between = [block.var(name) for name in sorted(read - set(tensors) - {EMPTY_VAR_NAME})]
        if between:
            tensors.update((variable.name, tensor) for variable, tensor in zip(between, self._run(between)))
        return tensors

    def differentiate(
        self,
        inputs: Sequence[str],
        outputs: Sequence[str],
        results: Mapping[str, Sequence[core.LoDTensor]] | None = None,
        with_lod: bool = True,
    ) -> Mapping[str, Sequence[core.LoDTensor]]:
        """Adds the operators that compute the derivatives of the objective, Σ weight · element over ``outputs``, by
        ``inputs``. The gradients of the outputs, the weights, are fed, so that no other operator takes part.

        Args:
            results: the known values of the outputs; None: the program is run to get them.
            with_lod: whether the gradients of the outputs have the LoDs of these.

        Returns:
            ``results``.
        """
        results = self.run() if results is None else results
        self._feed_weights(outputs, results, with_lod)
        wanted = {grad_var_name(name): name for slot in inputs for name in self.inputs[slot] if name != EMPTY_VAR_NAME}
        parts = self._append_gradient_ops(wanted)
        block = self.program.global_block()
        for name in wanted.keys() & parts.keys():
            variable = parts[name][0]
            if len(parts[name]) > 1:
                variable = block.create_var(f"{name}@SUM")
                block.append_op("sum", {"X": parts[name]}, {"Out": variable})
            self.derivatives[wanted[name]] = variable
        missing = sorted(set(wanted.values()) - set(self.derivatives))
        _expect(not missing, f"{self.op.type} gives no gradient of {', '.join(missing)}")
        return results

    def _feed_weights(
        self, outputs: Sequence[str], results: Mapping[str, Sequence[core.LoDTensor]], with_lod: bool
    ) -> None:
        """Declares and feeds the gradients of the outputs."""
        block = self.program.global_block()
        for variable, tensor in self._floating(outputs, results):
            name = grad_var_name(variable.name)
            value = np.asarray(tensor)
            lengths = tensor.recursive_sequence_lengths() if with_lod else []
            lengths = lengths if all(lengths) else []  # a level without sequences cannot be fed
            block.create_var(name, variable.shape, variable.dtype, len(lengths), stop_gradient=True)
            self.feed[name] = (_weights(variable.name, value.shape).astype(value.dtype), lengths)

    def _append_gradient_ops(self, wanted: Collection[str]) -> dict[str, list[Variable]]:
        """Adds the operators that are needed for the ``wanted`` gradients of the inputs.

        Returns:
            The parts that each gradient is the sum of.
        """
        block = self.program.global_block()
        of_inputs = {grad_var_name(name) for names in self.inputs.values() for name in names}
        # Gradients that there may be: where one is missing, an operator that takes no other one computes zero.
        gradients = {grad_var_name(name) for name in self.op.output_arg_names()}
        parts: dict[str, list[Variable]] = {}
        for op in self.op.gradient_ops():
            reads = [name for name in op.input_arg_names() if name in gradients]
            if reads and not any(block.has_var(name) for name in reads):
                gradients.update(name for name in op.output_arg_names() if name not in of_inputs)
                continue
            given = {
                slot: [n if block.has_var(n) else EMPTY_VAR_NAME for n in op.input(slot)] for slot in op.input_names()
            }
            given = {slot: names for slot, names in given.items() if any(name != EMPTY_VAR_NAME for name in names)}
            made = {
                slot: [name if name in wanted or name not in of_inputs else EMPTY_VAR_NAME for name in op.output(slot)]
                for slot in op.output_names()
            }
            names = [name for slot in made.values() for name in slot if name != EMPTY_VAR_NAME]
            if not names:
                continue
            own = {name: f"{name}@{len(parts[name])}" if name in parts else name for name in names}
            made = {slot: [own.get(name, name) for name in slot_names] for slot, slot_names in made.items()}
            for name in names:
                parts.setdefault(name, []).append(block.create_var(own[name]))
            self.gradient_ops.append(block.append_op(op.type, given, made, op.attrs()).desc)
            if reads:
                gradients.update(name for name in names if name not in of_inputs)
        return parts

    def _floating(
        self, outputs: Sequence[str], results: Mapping[str, Sequence[core.LoDTensor]]
    ) -> Iterator[tuple[Variable, core.LoDTensor]]:
        for slot in outputs:
            for variable, tensor in zip(self.outputs[slot], results[slot]):
                if "float" in tensor.dtype():
                    yield variable, tensor

    def gradients(self) -> dict[str, core.LoDTensor]:
        """The derivative of the objective by each variable of the inputs."""
        return dict(zip(self.derivatives, self._run(list(self.derivatives.values()))))

    def objective(self, outputs: Sequence[str]) -> float:
        """Σ weight · element over ``outputs``."""
        total = 0.0
        for variable, tensor in self._floating(outputs, self.run()):
            value = np.asarray(tensor)
            total += float((value * _weights(variable.name, value.shape)).sum())
        return total


def _expect(holds: bool, otherwise: str) -> None:
    """As ``assert``, which ``python -O`` leaves out."""
    if not holds:
        raise AssertionError(otherwise)


def _check_memory(ops: Sequence[core.OpDesc], tensors: Mapping[str, core.LoDTensor]) -> None:
    faults = []
    for op in ops:
        inputs = {name: tensors[name] for name in op.input_arg_names() if name != EMPTY_VAR_NAME}
        faults += _core.broken_memory_declarations(op, inputs)
    _expect(not faults, "\n".join(faults))


def _weights(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The weights of an output's elements: the same for the same arguments."""
    return np.random.default_rng(sum(map(ord, name))).uniform(-1, 1, shape)


def _is_floating(dtype: np.dtype[Any]) -> bool:
    return np.issubdtype(dtype, np.floating) or dtype.name == "bfloat16"


def _items(value: SlotTensors) -> list[Tensor | None]:
    return list(value) if isinstance(value, list) else [value]  # type: ignore[list-item]


def _split(tensor: Tensor) -> tuple[np.ndarray, list[list[int]]]:
    value, lengths = tensor if isinstance(tensor, tuple) else (tensor, [])
    return np.asarray(value), [list(level) for level in lengths]


def _lod_tensor(value: np.ndarray, lengths: list[list[int]]) -> core.LoDTensor:
    return fluid.create_lod_tensor(value, lengths) if lengths else core.LoDTensor.from_numpy(value)
