"""What a loader delivers is compared whatever the order and the batches are, and nothing else is overlooked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

DATA = np.arange(24, dtype=np.float32).reshape(6, 4)
LABELS = np.arange(6)


def batches(order: list[int], size: int, data: Any = DATA, labels: Any = LABELS) -> list[Any]:
    return [(data[part], labels[part]) for part in (order[i : i + size] for i in range(0, len(order), size))]


def test_neither_the_order_nor_the_batches_matter(harness: Any) -> None:
    digest = harness.content.digest
    expected = digest(batches([0, 1, 2, 3, 4, 5], 3))
    assert expected["samples"] == 6
    assert digest(batches([4, 1, 5, 0, 2, 3], 2)) == expected
    assert digest([{"data": DATA, "label": LABELS}]) == expected


@pytest.mark.parametrize(
    ("order", "data", "labels"),
    [
        ([0, 1, 2, 3, 4], DATA, LABELS),  # one is missing
        ([0, 1, 2, 3, 4, 4], DATA, LABELS),  # one comes twice, another not
        ([0, 1, 2, 3, 4, 5], DATA + (DATA == 23), LABELS),  # one number
        ([0, 1, 2, 3, 4, 5], DATA.astype(np.float64), LABELS),
        ([0, 1, 2, 3, 4, 5], DATA.reshape(6, 2, 2), LABELS),
        ([0, 1, 2, 3, 4, 5], DATA, LABELS[::-1]),  # with another label
        ([0, 1, 2, 3, 4, 5], DATA.view(np.int32), LABELS),
    ],
)
def test_whatever_else_is_different_is_seen(harness: Any, order: list[int], data: Any, labels: Any) -> None:
    digest = harness.content.digest
    assert digest(batches(order, 3, data, labels)) != digest(batches([0, 1, 2, 3, 4, 5], 3))


def test_samples_of_padded_batches(harness: Any) -> None:
    """A row may say what its samples are."""

    def words(batch: Any) -> Any:
        return [(row[:length],) for row, length in zip(*batch)]

    short = (np.array([[1, 0]]), np.array([1]))
    long = (np.array([[1, 0, 0]]), np.array([1]))
    assert harness.content.digest([short], words) == harness.content.digest([long], words)
    assert harness.content.digest([short]) != harness.content.digest([long])


def test_a_batch_that_lacks_a_label_is_an_error(harness: Any) -> None:
    with pytest.raises(ValueError, match=r"arrays of \[6, 5\] rows"):
        harness.content.digest([(DATA, LABELS[:5])])
