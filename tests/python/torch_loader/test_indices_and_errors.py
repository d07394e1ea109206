"""What reaches the dataset from a sampler, and the program from a worker that fails, is as with PyTorch."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils import data as torch_data  # noqa: E402

from headrace.data import WorkerTraceback  # noqa: E402
from headrace.torch import DataLoader  # noqa: E402

CLASSES = (DataLoader, torch_data.DataLoader)
both = pytest.mark.parametrize("workers", [0, 2])


class Kinds(torch_data.Dataset):  # type: ignore[misc, type-arg, unused-ignore]
    """Samples that say what the index was."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: Any) -> str:
        return f"{type(index).__name__} {index}"


class BulkKinds(Kinds):
    def __getitems__(self, indices: Any) -> list[str]:
        return [f"bulk {self[index]}" for index in indices]


def samplers() -> dict[str, Any]:
    return {
        "tensors": {"sampler": torch.arange(9, -1, -1)},
        "NumPy": {"sampler": np.arange(10)},
        "NumPy int32": {"sampler": list(np.arange(10, dtype=np.int32))},
        "bools": {"sampler": [True, False, True]},
        "mixed": {"sampler": [1, torch.tensor(2), np.int64(3), "four", 5, 6]},
        "integers": {"sampler": [3, 1, 2]},
        "lists of tensors": {"batch_sampler": list(torch.arange(10).view(5, 2))},
        "lists": {"batch_sampler": [[np.int64(1), 2], (3, 4)]},
    }


@both
@pytest.mark.parametrize("dataset", [Kinds(), BulkKinds()], ids=["single", "bulk"])
@pytest.mark.parametrize("name", sorted(samplers()))
def test_indices_are_the_objects_that_the_sampler_gives(name: str, dataset: Any, workers: int) -> None:
    arguments = samplers()[name]
    if "sampler" in arguments:
        arguments["batch_size"] = 3
    mine, theirs = (list(cls(dataset, num_workers=workers, **arguments)) for cls in CLASSES)
    assert mine == theirs


class Selective(torch_data.Dataset):  # type: ignore[misc, type-arg, unused-ignore]
    """Leaves out some of the samples, and gives others twice."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [index for index in indices for _ in range(2 if index == 9 else index % 3 > 0)]


@both
@pytest.mark.parametrize("arguments", [{}, {"shuffle": True}, {"collate_fn": list}], ids=str)
def test_bulk_may_give_fewer_samples_than_were_asked_for(arguments: dict[str, Any], workers: int) -> None:
    seen: list[Any] = []
    for cls in CLASSES:
        torch.manual_seed(4)
        batches = cls(Selective(), batch_size=4, num_workers=workers, **arguments)
        seen.append([batch if isinstance(batch, list) else batch.tolist() for batch in batches])
    assert seen[0] == seen[1]


class NeedsTwo(Exception):
    def __init__(self, first: Any, second: Any) -> None:
        super().__init__(first, second)


class Failing(torch_data.Dataset):  # type: ignore[misc, type-arg, unused-ignore]
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        raise self.error


ERRORS = [
    KeyError("name"),
    ValueError("one\nand two"),
    OSError(2, "no such thing"),
    UnicodeDecodeError("utf-8", b"a", 0, 1, "bad"),
    NeedsTwo("first", "second"),
]


def raised(cls: Any, error: BaseException, **arguments: Any) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        list(cls(Failing(error), **arguments))
    return caught.value


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_of_workers_are_in_the_words_of_pytorch(error: BaseException) -> None:
    mine, theirs = (raised(cls, error, batch_size=2, num_workers=1) for cls in CLASSES)
    assert type(mine) is type(theirs)
    (head, *lines), (their_head, *their_lines) = (str(each).splitlines() for each in (mine, theirs))
    assert head == their_head == f"Caught {type(error).__name__} in DataLoader worker process 0."
    assert lines[0] == their_lines[0] == "Original Traceback (most recent call last):"
    last = [line for line in their_lines if line][-1]
    assert last in lines
    assert str(mine).endswith("The sample with index 0 could not be made.\n")
    # What PyTorch loses: the exception itself.
    assert type(mine.__cause__) is type(error)
    assert mine.__cause__.args == error.args
    assert not isinstance(mine.__cause__.__cause__, WorkerTraceback)


class HoldsAFunction(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.function = lambda: text


class HasAMessage(Exception):
    """PyTorch passes the text to the ``message`` of such a class, which this one lacks."""

    message = "always the same"


def with_a_function(error: Exception) -> Exception:
    error.function = lambda: 0  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    "error",
    [HoldsAFunction("one"), with_a_function(KeyError("one")), ValueError(lambda: 0, "one")],
    ids=lambda error: type(error).__name__,
)
def test_what_cannot_be_pickled_is_raised_from_its_text_as_by_pytorch(error: Exception) -> None:
    arguments = {"batch_size": 2, "num_workers": 1, "multiprocessing_context": "fork"}
    mine, theirs = (raised(cls, error, **arguments) for cls in CLASSES)
    assert type(mine) is type(theirs) is type(error)
    assert str(mine).splitlines()[:2] == str(theirs).splitlines()[:2]
    assert "one" in str(mine)
    assert type(mine.__cause__) is RuntimeError


def test_what_cannot_be_made_of_its_text_is_a_runtime_error_with_all_of_it() -> None:
    """PyTorch raises the TypeError of its attempt alone."""
    group = getattr(builtins, "ExceptionGroup", None)
    for error in (HasAMessage("one"), *([] if group is None else [group("several", [ValueError("one")])])):
        mine = raised(DataLoader, error, batch_size=2, num_workers=1)
        assert type(mine) is RuntimeError
        assert str(mine).startswith(f"Caught {type(error).__name__} in DataLoader worker process 0.")
        assert "one" in str(mine)
        assert type(mine.__cause__) is type(error)


def fail_at_start(worker: int) -> None:
    if worker == 1:
        raise ValueError("at the start")
    torch.manual_seed(0)


def fail_to_collate(samples: Any) -> None:
    raise ValueError("not collated")


def test_errors_name_the_worker_and_what_failed() -> None:
    arguments = {"batch_size": 1, "num_workers": 2, "worker_init_fn": fail_at_start}
    with pytest.raises(
        ValueError, match=r"Caught ValueError in DataLoader worker process 1\.(.|\n)*worker_init_fn failed"
    ):
        list(DataLoader(Kinds(), **arguments))
    with pytest.raises(ValueError, match=r"Caught ValueError in DataLoader worker process 0\.(.|\n)*not collated"):
        list(DataLoader(Kinds(), num_workers=1, collate_fn=fail_to_collate))


def test_without_workers_it_is_the_exception_itself() -> None:
    error = ValueError("here")
    assert raised(DataLoader, error) is error


class Circles(Kinds):
    """Samples that contain themselves from the fourth on."""

    def __getitem__(self, index: int) -> Any:
        sample: dict[str, Any] = {"index": index}
        sample["rest"] = sample if index >= 3 else {}
        return sample


@both
@pytest.mark.parametrize("batch_size", [3, None])
@pytest.mark.usefixtures("no_collection")
def test_a_sample_that_contains_itself_is_an_error_that_names_it(workers: int, batch_size: int | None) -> None:
    batches = iter(DataLoader(Circles(), batch_size, num_workers=workers))
    for _ in range(1 if batch_size else 3):
        next(batches)
    with pytest.raises(ValueError, match=r"sample 3 cannot be collated: its element \['rest'\] contains itself\. "):
        next(batches)
