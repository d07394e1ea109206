"""Reading: the datasets of the package, the order of a loader's epochs, and the end of a process that has read."""
