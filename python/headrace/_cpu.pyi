"""What this processor lacks of the instruction set that the kernels were compiled for."""

MARCH: str

def missing() -> str: ...
