"""What programs import from Fluid's framework.proto: the dtypes and kinds of variables, and the header of a tensor."""

from __future__ import annotations

from headrace import errors
from headrace.fluid.core import VarDesc

__all__ = ["VarType"]


class _TensorDesc:
    """The dtype and the dims of a tensor, as its file has them, after the version and the LoD."""

    def __init__(self) -> None:
        self.data_type = 0
        self.dims: list[int] = []

    def ParseFromString(self, serialized: bytes) -> int:
        """Reads the message; returns how long it is. DataLoss if it is not one."""
        numbers = iter(_varints(serialized))
        self.data_type, self.dims = 0, []
        for key in numbers:
            value = next(numbers, None)
            if key == _DATA_TYPE and value is not None:
                self.data_type = value
            elif key == _DIM and value is not None:
                self.dims.append(value - 2**64 if value >= 2**63 else value)
            else:
                raise errors.DataLoss("expected a tensor's description: its dtype and its dims")
        return len(serialized)


# Field number and wire type (varint): https://protobuf.dev/programming-guides/encoding
_DATA_TYPE, _DIM = 1 << 3, 2 << 3


def _varints(serialized: bytes) -> list[int]:
    numbers, value, shift = [], 0, 0
    for byte in serialized:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(value)
            value = shift = 0
    if shift:
        raise errors.DataLoss("a tensor's description is cut off")
    return numbers


class VarType:
    """``core.VarDesc.VarType``'s dtypes and kinds, as numbers."""

    TensorDesc = _TensorDesc


for _name, _member in VarDesc.VarType.__members__.items():
    setattr(VarType, _name, int(_member))
