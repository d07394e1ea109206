"""Whether the installation works."""

from __future__ import annotations

import numpy as np

from headrace import errors
from headrace.fluid import layers, optimizer, unique_name
from headrace.fluid.core import CPUPlace, Scope
from headrace.fluid.executor import Executor, scope_guard
from headrace.fluid.framework import Program, program_guard

__all__ = ["run_check"]


def run_check() -> None:
    """Trains a linear model on this machine and says on standard output that it works.

    Raises:
        FailedPrecondition: the losses are not as expected.
    """
    main, startup = Program(), Program()
    with program_guard(main, startup), unique_name.guard(), scope_guard(Scope()):
        x = layers.data("x", [2])
        loss = layers.reduce_mean(layers.square(layers.fc(x, size=1)))
        optimizer.SGD(learning_rate=0.1).minimize(loss)
        executor = Executor(CPUPlace())
        executor.run(startup)
        feed = {"x": np.array([[0.1, 0.2], [0.3, 0.4]], np.float32)}
        losses = [float(executor.run(main, feed=feed, fetch_list=[loss])[0].reshape(-1)[0]) for _ in range(20)]
    if not np.isfinite(losses).all() or losses[-1] > losses[0]:
        raise errors.FailedPrecondition(f"headrace.fluid does not work here: training gave the losses {losses}")
    print("headrace.fluid is installed and works: a model was trained on the CPU.")
