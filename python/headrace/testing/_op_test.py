"""Tests of single operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Union

import numpy as np

import headrace.fluid as fluid
from headrace.fluid import core
from headrace.fluid.framework import Program, Variable

__all__ = ["OpTest"]

#: An array, or an array with the lengths of its sequences, the outermost level first.
Tensor = Union[np.ndarray, tuple[np.ndarray, Sequence[Sequence[int]]]]
#: What a slot holds: one variable or several. None stands for a variable that is not given, or not compared.
SlotTensors = Union[Tensor, None, Sequence[Union[Tensor, None]]]

_EMPTY = "@EMPTY@"


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
        inputs: the variables of each input slot. A list is a slot of several; None in it leaves a place empty.
        attrs: the attributes.
        outputs: what each output slot should hold. None: it is written, but not compared. Slots that are not named are
            not given to the operator.
        known: input slots whose dimensions every program knows, such as those of parameters: they are never declared
            as -1.
    """

    __test__ = False  # pytest: a tool, not a test

    def __init__(
        self,
        op_type: str,
        inputs: Mapping[str, SlotTensors],
        attrs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, SlotTensors] | None = None,
        known: Sequence[str] = (),
    ) -> None:
        self.op_type = op_type
        self._known = frozenset(known)
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
        program = _OpProgram(self, dtype)
        program.differentiate(inputs, list(self._expected) if outputs is None else list(outputs))
        return program.gradients()

    def check_outputs(self, rtol: float = 1e-5, atol: float = 1e-6) -> None:
        """Compares values, shapes, dtypes and LoDs of the outputs with what they should be, and what shape inference
        says before the run, with known and with unknown (-1) dimensions, with what the run gives.

        Raises:
            AssertionError: they differ; the message names operator and variable.
        """
        program = _OpProgram(self)
        actual = program.run()
        for slot, tensors in self._expected.items():
            for i, expected in enumerate(tensors):
                if expected is not None:
                    self._compare(f"{slot}[{i}]", actual[slot][i], expected, rtol, atol)
        self._check_inference(program, actual)
        self._check_inference(_OpProgram(self, unknown="first"), actual)
        self._check_inference(_OpProgram(self, unknown="all"), actual)

    def check_gradients(
        self,
        inputs: Sequence[str],
        outputs: Sequence[str] | None = None,
        tolerance: float = 1e-6,
        float32_tolerance: float | None = 1e-3,
        step: float = 1e-5,
    ) -> None:
        """Compares the derivatives of a fixed linear combination of the output slots, by each element of the input
        slots, with central differences, in float64; and those in float32 with those in float64.

        Args:
            inputs: slots to differentiate by.
            outputs: slots whose floating-point variables are combined; None: all.
            tolerance: largest difference allowed, relative to derivatives above 1.
            float32_tolerance: the same for float32; None if the operator takes float64 only.
            step: half the distance of the two points of a central difference.

        Raises:
            AssertionError: the derivatives differ; the message names operator, variable and element.
        """
        slots = list(self._expected) if outputs is None else list(outputs)
        program = _OpProgram(self, np.float64)
        program.differentiate(inputs, slots)
        gradients = program.gradients()
        for name, gradient in gradients.items():
            value = program.feed[name][0]
            assert gradient.shape == value.shape, f"{self.op_type}: the gradient of {name} has dims {gradient.shape}"
            expected = np.empty(value.shape)
            for at in np.ndindex(value.shape):
                kept = value[at]
                value[at] = kept + step
                above = program.objective()
                value[at] = kept - step
                below = program.objective()
                value[at] = kept
                expected[at] = (above - below) / (2 * step)
            self._compare_gradient(name, gradient, expected, tolerance, "central differences")
        if float32_tolerance is not None:
            single = _OpProgram(self, np.float32)
            single.differentiate(inputs, slots)
            for name, gradient in single.gradients().items():
                assert gradient.dtype == np.float32, f"{self.op_type}: the gradient of {name} is {gradient.dtype}"
                self._compare_gradient(name, gradient, gradients[name], float32_tolerance, "float64")

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
            assert part in message, f"'{message}' does not contain '{part}'"

    def _compare(self, what: str, actual: core.LoDTensor, expected: Tensor, rtol: float, atol: float) -> None:
        value, lengths = _split(expected)
        array = np.asarray(actual)
        assert list(array.shape) == list(value.shape), (
            f"{self.op_type}: {what} has dims {list(array.shape)}, expected {list(value.shape)}"
        )
        assert array.dtype == value.dtype, f"{self.op_type}: {what} is {array.dtype}, expected {value.dtype}"
        assert actual.recursive_sequence_lengths() == lengths, (
            f"{self.op_type}: {what} has the sequence lengths {actual.recursive_sequence_lengths()}, expected {lengths}"
        )
        np.testing.assert_allclose(array, value, rtol=rtol, atol=atol, err_msg=f"{self.op_type}: {what}")

    def _compare_gradient(self, name: str, actual: np.ndarray, expected: np.ndarray, tolerance: float, of: str) -> None:
        difference = np.abs(actual - expected) / np.maximum(1, np.abs(expected))
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
                variable = program.outputs[slot][i]
                what = f"{self.op_type}: {slot}[{i}], inferred"
                dims = tensor.shape()
                fits = len(dims) == len(variable.shape) and all(d in (-1, a) for d, a in zip(variable.shape, dims))
                assert fits, f"{what} with dims {list(variable.shape)}, has dims {dims}"
                inferred = core.dtype_name(variable.dtype)
                assert inferred == tensor.dtype(), f"{what} as {inferred}, is {tensor.dtype()}"
                levels = len(tensor.lod())
                assert variable.lod_level == levels, f"{what} with LoD level {variable.lod_level}, has {levels}"


class _OpProgram:
    """A program with the operator of a test, and what it is fed with.

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
        self._gradients: dict[str, Variable] = {}
        self._weights: dict[str, str] = {}  # variable of an output → of its weights in the objective
        self._scope = fluid.Scope()
        self._executor = fluid.Executor()
        for slot, tensors in test._inputs.items():
            names = self.inputs[slot] = []
            for tensor in tensors:
                if tensor is None:
                    names.append(_EMPTY)
                    continue
                value, lengths = _split(tensor)
                floating = np.issubdtype(value.dtype, np.floating)
                value = np.array(value, dtype if floating and dtype is not None else None)
                name = f"{slot}_{len(names)}"
                hidden = 0 if slot in test._known or unknown == "none" else 1 if unknown == "first" else value.ndim
                shape = [-1] * min(hidden, value.ndim) + list(value.shape[hidden:])
                block.create_var(name, shape, value.dtype, len(lengths), stop_gradient=False)
                self.feed[name] = (value, lengths)
                names.append(name)
        for slot, tensors in test._expected.items():
            self.outputs[slot] = [block.create_var(f"{slot}_out_{i}") for i in range(len(tensors))]
        block.append_op(test.op_type, self.inputs, self.outputs, test.attrs)

    def run(self) -> dict[str, list[core.LoDTensor]]:
        flat = [variable for variables in self.outputs.values() for variable in variables]
        fetched = iter(self._run(flat))
        return {slot: [next(fetched) for _ in variables] for slot, variables in self.outputs.items()}

    def _run(self, fetches: Sequence[Variable]) -> list[core.LoDTensor]:
        feed = {name: _lod_tensor(value, lengths) for name, (value, lengths) in self.feed.items()}
        return self._executor.run(self.program, feed, list(fetches), scope=self._scope, return_numpy=False)

    def differentiate(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Adds the objective, Σ weight · element over ``outputs``, and its derivatives by ``inputs``."""
        block = self.program.global_block()
        parts = []
        for variable, value in self._floating(outputs):
            weights = block.create_var(f"{variable.name}_weights", value.shape, value.dtype, stop_gradient=True)
            seed = sum(map(ord, variable.name))
            self.feed[weights.name] = (np.random.default_rng(seed).uniform(-1, 1, value.shape).astype(value.dtype), [])
            self._weights[variable.name] = weights.name
            product, total = (block.create_var(f"{variable.name}_{what}") for what in ("product", "total"))
            block.append_op("elementwise_mul", {"X": variable, "Y": weights}, {"Out": product})
            block.append_op("reduce_sum", {"X": product}, {"Out": total}, {"reduce_all": True})
            parts.append(total)
        loss = block.create_var("objective")
        block.append_op("sum", {"X": parts}, {"Out": loss})
        names = [name for slot in inputs for name in self.inputs[slot] if name != _EMPTY]
        with fluid.program_guard(self.program, Program()):
            self._gradients = {x.name: gradient for x, gradient in fluid.backward.append_backward(loss, names)}

    def _floating(self, outputs: Sequence[str]) -> Iterator[tuple[Variable, np.ndarray]]:
        results = self.run()
        for slot in outputs:
            for variable, tensor in zip(self.outputs[slot], results[slot]):
                value = np.asarray(tensor)
                if np.issubdtype(value.dtype, np.floating):
                    yield variable, value

    def gradients(self) -> dict[str, np.ndarray]:
        """The derivative of the objective by each variable of the inputs."""
        values = [np.array(tensor) for tensor in self._run(list(self._gradients.values()))]
        for variable, value in zip(self._gradients.values(), values):
            fits = len(variable.shape) == value.ndim and all(d in (-1, n) for d, n in zip(variable.shape, value.shape))
            assert fits, f"{variable.name}: inferred with dims {list(variable.shape)}, has dims {list(value.shape)}"
        return dict(zip(self._gradients, values))

    def objective(self) -> float:
        names = list(self._weights)
        results = self._run([self.program.global_block().var(name) for name in names])
        return float(sum((np.asarray(r) * self.feed[self._weights[n]][0]).sum() for n, r in zip(names, results)))


def _items(value: SlotTensors) -> list[Tensor | None]:
    return list(value) if isinstance(value, list) else [value]  # type: ignore[list-item]


def _split(tensor: Tensor) -> tuple[np.ndarray, list[list[int]]]:
    value, lengths = tensor if isinstance(tensor, tuple) else (tensor, [])
    return np.asarray(value), [list(level) for level in lengths]


def _lod_tensor(value: np.ndarray, lengths: list[list[int]]) -> core.LoDTensor:
    return fluid.create_lod_tensor(value, lengths) if lengths else core.LoDTensor.from_numpy(value)
