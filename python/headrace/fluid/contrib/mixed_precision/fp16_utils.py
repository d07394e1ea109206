"""Whatever here is called raises Unimplemented."""

from __future__ import annotations

from headrace.fluid.contrib.mixed_precision.decorator import decorate

__all__ = [
    "append_cast_op",
    "copy_to_master_param",
    "create_master_params_grads",
    "master_param_to_train_param",
    "rewrite_program",
    "update_loss_scaling",
]

append_cast_op = copy_to_master_param = create_master_params_grads = decorate
master_param_to_train_param = rewrite_program = update_loss_scaling = decorate
