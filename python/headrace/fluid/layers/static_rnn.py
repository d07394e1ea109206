"""Recurrent networks over a number of steps that the program knows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headrace import errors
from headrace.fluid._names import free_name
from headrace.fluid.framework import EMPTY_VAR_NAME, Block, Operator, Variable
from headrace.fluid.layer_helper import LayerHelper, check_variable
from headrace.fluid.layers.tensor import assign, concat, fill_constant_batch_size_like, split, squeeze, unsqueeze

__all__ = ["StaticRNN"]


class _State(NamedTuple):
    """What goes from step to step: its names within the step, before and after it, and its value before the first."""

    before: str
    after: str
    initial: Variable


class StaticRNN:
    """A network that is applied to each step of a sequence, with a memory from step to step.

    ::

        rnn = layers.StaticRNN()
        with rnn.step():
            word = rnn.step_input(words)  # words: [steps, N, width]
            before = rnn.memory(shape=[-1, 32], batch_ref=word)
            hidden = layers.fc([word, before], 32, act="tanh")
            rnn.update_memory(before, hidden)
            rnn.step_output(hidden)
        hiddens = rnn()  # [steps, N, 32]

    The step is described once. If the program knows the number of steps, it is unrolled when the description ends: its
    operators stand in the program once for each step. Otherwise an operator ``recurrent`` runs it; so it does if the
    step has loops or conditions in it, or the sequences depend on variables of ``layers.data``, which may be fed with
    more or fewer steps than are declared. Losses are differentiated through it like through any others. Variables that
    it uses from outside, mainly parameters, are shared by the steps. Steps may hold StaticRNNs themselves.
    """

    def __init__(self, name: str | None = None) -> None:
        self._helper = LayerHelper("static_rnn", name)
        self._block: Block | None = None  # while the step is described
        self._steps: int | None = None  # -1: known at run time
        self._inputs: dict[str, Variable] = {}  # name within the step → the whole sequence
        self._memories: dict[str, Variable] = {}  # name within the step → its initial value
        self._updates: dict[str, str] = {}  # memory → its next value, names within the step
        self._step_outputs: list[Variable] = []
        self._results: list[Variable] | None = None

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Within it, layers describe one step.

        Raises:
            FailedPrecondition: there has been a step already; the step has no input or no output, or a memory is never
                updated.
        """
        if self._block is not None or self._results is not None:
            raise errors.FailedPrecondition("StaticRNN: the step has already been defined")
        try:
            with self._helper.main_program._new_block() as block:
                self._block = block
                yield
                self._check_complete()
        except BaseException:
            self._results = []
            raise
        finally:
            self._block = None
        self._helper._skip_generated_name()
        exact = self._steps != -1 and has_declared_shape(*self._inputs.values())
        if not exact or any(op.has_attr("sub_block") for op in block.ops):
            self._repeat(block)
            return
        ops, declared = self._take_out(block)
        self._unroll(ops, declared)

    @staticmethod
    def _take_out(block: Block) -> tuple[list[Operator], dict[str, dict[str, Any]]]:
        """The operators of the step, removed from the program."""
        ops = list(block.ops)
        declared = {name: _declaration(variable) for name, variable in block.vars.items()}
        for index in reversed(range(len(ops))):
            block._remove_op(index)
        for name in declared:
            block._remove_var(name)
        return ops, declared

    def step_input(self, x: Variable) -> Variable:
        """The part of ``x`` [steps, ...] for a step: [...]. All inputs have the same number of steps."""
        block = self._current("step_input")
        x = check_variable(x, "x", "StaticRNN.step_input")
        steps = x.shape[0] if x.shape else 0
        known = -1 if self._steps is None else self._steps
        if steps == 0 or (-1 not in (known, steps) and known != steps):
            wanted = "1 or more steps" if known == -1 else f"{known} steps"
            raise errors.InvalidArgument(
                f"StaticRNN.step_input: '{x.name}' has to have {wanted} in its first dimension, got {list(x.shape)}"
            )
        self._steps = max(known, steps)
        seen = block.create_var(self._name("input"), x.shape[1:], x.dtype, stop_gradient=x.stop_gradient)
        self._inputs[seen.name] = x
        return seen

    def memory(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        batch_ref: Variable | None = None,
        init_value: float = 0.0,
        init_batch_dim_idx: int = 0,
        ref_batch_dim_idx: int = 1,
    ) -> Variable:
        """The value from the previous step, see ``update_memory``.

        Args:
            init: the value for the first step. Default: a tensor of ``init_value``:
            shape: its shape; dimension ``init_batch_dim_idx`` is taken
            batch_ref: from dimension ``ref_batch_dim_idx`` of this variable; of the whole sequence, if it is an input
                of the step.
        """
        block = self._current("memory")
        if init is None:
            if shape is None or batch_ref is None:
                raise errors.InvalidArgument("StaticRNN.memory: either init is needed, or shape and batch_ref")
            like = self._inputs.get(check_variable(batch_ref, "batch_ref", "StaticRNN.memory").name, batch_ref)
            with self._helper.main_program._block_guard():
                init = fill_constant_batch_size_like(
                    like, shape, like.dtype, init_value, ref_batch_dim_idx, init_batch_dim_idx
                )
        if block.has_var(check_variable(init, "init", "StaticRNN.memory").name):
            raise errors.InvalidArgument(
                f"StaticRNN.memory: '{init.name}', the value for the first step, must be created before the step"
            )
        before = block.create_var(self._name("memory"), init.shape, init.dtype, stop_gradient=False)
        self._memories[before.name] = init
        return before

    def update_memory(self, mem: Variable, var: Variable) -> None:
        """Passes ``var`` of this step to the next one, as ``mem``."""
        self._current("update_memory")
        if check_variable(mem, "mem", "StaticRNN.update_memory").name not in self._memories:
            raise errors.InvalidArgument(f"StaticRNN.update_memory: '{mem.name}' is not a memory of this network")
        if mem.name in self._updates:
            raise errors.InvalidArgument(f"StaticRNN.update_memory: '{mem.name}' has been updated already")
        self._updates[mem.name] = check_variable(var, "var", "StaticRNN.update_memory").name

    def step_output(self, o: Variable) -> None:
        """``o`` of all steps is an output of the network."""
        self._current("step_output")
        self._step_outputs.append(check_variable(o, "o", "StaticRNN.step_output"))

    def output(self, *outputs: Variable) -> None:
        """``step_output`` for each."""
        for item in outputs:
            self.step_output(item)

    def __call__(self) -> Variable | list[Variable]:
        """The outputs, [steps, ...] each: a variable, or a list if there are several."""
        if not self._results:
            raise errors.FailedPrecondition("StaticRNN: no step has been defined")
        return self._results[0] if len(self._results) == 1 else list(self._results)

    def _name(self, what: str) -> str:
        return free_name(f"{self._helper.name}.{what}", self._helper.main_program)

    def _current(self, method: str) -> Block:
        if self._block is None:
            raise errors.FailedPrecondition(f"StaticRNN.{method} must be called in the step")
        return self._block

    def _check_complete(self) -> None:
        if self._steps is None or not self._step_outputs:
            raise errors.FailedPrecondition("StaticRNN: a step needs a step_input and a step_output")
        for memory in self._memories:
            if memory not in self._updates:
                raise errors.FailedPrecondition(f"StaticRNN: memory '{memory}' is never updated")

    def _unroll(self, ops: Sequence[Operator], declared: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds ``ops``, which were those of the step's block, to the current block, once for each step."""
        assert self._steps is not None  # _check_complete has seen to it
        block = self._helper.main_program.current_block()
        seen: dict[str, list[str]] = {}
        for name, whole in self._inputs.items():
            parts = [squeeze(step, [0]) for step in split(whole, self._steps, 0)]
            for part in parts:
                part.stop_gradient = part.stop_gradient or (declared[name]["stop_gradient"] and not whole.stop_gradient)
            seen[name] = [part.name for part in parts]
        unrolled = block.program._unrolled
        unrolled.update({memory: [] for memory in self._memories}, **seen)
        written = {name for op in ops for name in op.output_arg_names}
        rewritten = {name for name in written if name not in declared or name in self._memories}

        def carried(memory: str, name: str, value: Variable) -> str:
            """What the next step finds in ``memory``: a copy, if that step writes to it or to ``value``."""
            stops = declared[memory]["stop_gradient"]
            if not stops and rewritten.isdisjoint((memory, name)):
                return value.name
            value = assign(value)
            value.stop_gradient = value.stop_gradient or stops
            return value.name

        memories = {memory: carried(memory, init.name, init) for memory, init in self._memories.items()}
        outputs: list[list[Variable]] = [[] for _ in self._step_outputs]
        for t in range(self._steps):
            names = {**memories, **{name: steps[t] for name, steps in seen.items()}}  # in the step → in the program
            for op in ops:
                inputs = {slot: [names.get(name, name) for name in op.input(slot)] for slot in op.input_names}
                for name in op.output_arg_names:
                    if name in declared and name not in names:
                        names[name] = free_name(f"{name}@{t}", block.program, bare=True)
                        block.create_var(names[name], **declared[name])
                        unrolled.setdefault(name, []).append(names[name])
                outs = {slot: [names.get(name, name) for name in op.output(slot)] for slot in op.output_names}
                block.append_op(op.type, inputs, outs, op.all_attrs())
            for memory, after in self._updates.items():
                memories[memory] = carried(memory, after, block._var_recursive(names.get(after, after)))
            for collected, output in zip(outputs, self._step_outputs):
                name = names.get(output.name, output.name)
                collected.append(unsqueeze(block._var_recursive(name), [0]))
        self._results = [concat(steps, 0) for steps in outputs]

    def _repeat(self, step: Block) -> None:
        """Adds an operator that runs the block of the step as often as the inputs have steps. Within the block, its
        slots have their own names: those of the sequences, for the parts of a step and its results.
        """
        assert self._steps is not None  # _check_complete has seen to it
        block = self._helper.main_program.current_block()
        sequences = self._read_parts(step)
        # Outside variables that the step writes, such as the counter of a dropout, go from step to step as a state, and
        # come back from the last one.
        written = [name for op in step.ops for name in op.output_arg_names if not step.has_var(name)]
        counters = {name: block._var_recursive(name) for name in dict.fromkeys(written) if name != EMPTY_VAR_NAME}
        states = [self._carry_counter(step, name, outer) for name, outer in counters.items()]
        states += [self._carry_memory(step, memory, after) for memory, after in self._updates.items()]
        results = []
        for output in (*self._step_outputs, *(step.var(name) for name in counters)):
            name = self._name("output")
            step.create_var(name, dtype=output.dtype)
            step.append_op("assign", {"X": output.name}, {"Out": name})
            shape = [self._steps, *output.shape]
            results.append(block.create_var(name, shape, output.dtype, stop_gradient=output.stop_gradient))
        read = dict.fromkeys(name for op in step.ops for name in op.input_arg_names)
        block.append_op(
            "recurrent",
            {
                "inputs": sequences,
                "initial_states": [state.initial for state in states],
                "parameters": [name for name in read if name not in step.vars and name != EMPTY_VAR_NAME],
            },
            {"outputs": results},
            {
                "sub_block": step,
                "ex_states": [state.before for state in states],
                "states": [state.after for state in states],
            },
        )
        count = len(self._step_outputs)
        self._results = results[:count]
        for outer, sequence in zip(counters.values(), results[count:]):
            assign(sequence[-1], output=outer)

    def _read_parts(self, step: Block) -> list[Variable]:
        """Has the step read its parts of the sequences, which are returned."""
        # A variable that is used as a whole within the step keeps its name there.
        used = {*self._updates.values(), *(output.name for output in self._step_outputs)}
        for op in (op for inner in step.program.blocks[step.idx :] for op in inner.ops):
            used.update((*op.input_arg_names, *op.output_arg_names))
        sequences = {name: assign(x) if name in used else x for name, x in _by_name(self._inputs.values()).items()}
        for seen, whole in reversed(self._inputs.items()):
            name = sequences[whole.name].name
            if not step.has_var(name):
                step.create_var(name, whole.shape[1:], whole.dtype, stop_gradient=whole.stop_gradient)
            step._prepend_op("assign", {"X": name}, {"Out": seen})
        return list(sequences.values())

    def _carry_counter(self, step: Block, name: str, outer: Variable) -> _State:
        """Has the step write to a variable of its own, which has the name of the outer one."""
        before, after = (self._name("state") for _ in range(2))
        for local in (name, before, after):
            step.create_var(local, outer.shape, outer.dtype, stop_gradient=outer.stop_gradient)
        step._prepend_op("assign", {"X": before}, {"Out": name})
        step.append_op("assign", {"X": name}, {"Out": after})
        return _State(before, after, outer)

    def _carry_memory(self, step: Block, memory: str, after: str) -> _State:
        """Has the step pass on what a memory becomes."""
        # A state is a variable of the step, and each has one of its own.
        name, before, variable = self._name("state"), memory, step.var(memory)
        if variable.stop_gradient:  # within the step: the state itself passes gradients
            before = step.create_var(self._name("memory"), variable.shape, variable.dtype).name
            step._prepend_op("assign", {"X": before}, {"Out": memory})
        step.create_var(name, dtype=variable.dtype)
        step.append_op("assign", {"X": after}, {"Out": name})
        return _State(before, name, self._memories[memory])


def has_declared_shape(*variables: Variable) -> bool:
    """Whether all have the shape that the program knows whatever is fed: they depend on no feeds but those of
    ``fluid.data``. What is known only within a block's run, as a step's inputs, counts as a feed.
    """
    program = variables[0].block.program
    block: Block | None = program.current_block()
    producers: dict[str, set[str]] = {}  # name → what the operators that write it read
    while block is not None:
        for op in block.ops:
            for name in op.output_arg_names:
                producers.setdefault(name, set()).update(op.input_arg_names)
        block = program.blocks[block.parent_idx] if block.parent_idx >= 0 else None
    seen = {EMPTY_VAR_NAME}
    names = {variable.name for variable in variables}
    while names:
        name = names.pop()
        seen.add(name)
        variable = program.current_block()._var_recursive(name)
        if variable.persistable or variable._is_fed_as_declared:
            continue
        if variable.is_data or name not in producers:
            return False
        names |= producers[name] - seen
    return True


def _by_name(variables: Iterable[Variable]) -> dict[str, Variable]:
    return {variable.name: variable for variable in variables}


def _declaration(variable: Variable) -> dict[str, Any]:
    """What declares a variable of the same kind elsewhere; its shape is inferred."""
    return {name: getattr(variable, name) for name in ("dtype", "stop_gradient", "type", "error_clip")}
