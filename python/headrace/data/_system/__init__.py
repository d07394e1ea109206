"""Operating system services for the engine.

Memory files, life lines between processes, descriptors, deferred signals, the interpreter's end, control groups, kills
by the kernel. Knows nothing of datasets or loaders. Whoever starts or ends a process, or shares a file with one, uses
it.
"""
