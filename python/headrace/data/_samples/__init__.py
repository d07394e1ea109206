"""From samples to batches and back.

What a sample consists of, how samples are collated, how a batch is taken apart as a tree and leaves for its slot in
shared memory, and how the consumer gets it back, on a GPU if it likes (``device_copies``). Runs on both sides of the
arena. Knows nothing of loaders, workers or order.
"""
