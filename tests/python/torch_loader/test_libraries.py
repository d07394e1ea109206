"""Loaders of other libraries that inherit from PyTorch's, on top of the drop-in: as if it were the class in torch."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from headrace.torch import DataLoader  # noqa: E402

both = pytest.mark.parametrize("workers", [0, 2])


def library(name: str) -> Any:
    pytest.importorskip(name.partition(".")[0], reason=f"{name.partition('.')[0]} is not installed")
    return importlib.import_module(name)


def on_top(cls: Any) -> Any:
    """A library's loader whose next base is the drop-in, as if it stood in torch under its name."""
    return type(cls.__name__, (cls, DataLoader), {})


def graph() -> Any:
    following = (torch.arange(10) + 1) % 10
    data = library("torch_geometric.data").Data
    return data(x=torch.arange(20.0).view(10, 2), edge_index=torch.stack([torch.arange(10), following]))


def neighbours() -> Any:
    """A sampler that gives each node its successor."""
    sampling = library("torch_geometric.sampler")

    class Successors(sampling.BaseSampler):  # type: ignore[misc, name-defined]
        edge_permutation = None

        def _of(self, nodes: Any, metadata: Any) -> Any:
            count = torch.arange(len(nodes))
            found = torch.cat([nodes, (nodes + 1) % 10])
            return sampling.SamplerOutput(node=found, row=count, col=count, edge=None, metadata=metadata)

        def sample_from_nodes(self, inputs: Any, **kwargs: Any) -> Any:
            return self._of(inputs.node, (inputs.input_id, inputs.time))

        def sample_from_edges(self, inputs: Any, neg_sampling: Any = None) -> Any:
            pairs = torch.stack([inputs.row, inputs.col])
            return self._of(pairs.flatten(), (inputs.input_id, pairs, inputs.label, inputs.time))

    return Successors()


def batches_of_graphs(name: str, wrap: Any, **arguments: Any) -> list[Any]:
    cls = wrap(getattr(library("torch_geometric.loader"), name))
    given: tuple[Any, ...] = ([graph()] * 6,)
    if name != "DataLoader":
        given = (graph(), neighbours())
    torch.manual_seed(3)
    loader = cls(*given, shuffle=True, batch_size=4, **arguments)
    epochs = [list(loader), list(loader)]
    return [{key: str(value) for key, value in batch.to_dict().items()} for epoch in epochs for batch in epoch]


@both
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", ["DataLoader", "NodeLoader", "LinkLoader"])
def test_torch_geometric(name: str, workers: int) -> None:
    for persistent in {False, workers > 0}:
        arguments = {"num_workers": workers, "persistent_workers": persistent}
        found = batches_of_graphs(name, on_top, **arguments)
        assert found == batches_of_graphs(name, lambda cls: cls, **arguments)
        assert all("x" in batch for batch in found)


@both
def test_torchdata(workers: int) -> None:
    stateful = library("torchdata.stateful_dataloader").StatefulDataLoader
    results = []
    for cls in (on_top(stateful), stateful):
        torch.manual_seed(3)
        loader = cls(list(range(10)), batch_size=3, shuffle=True, num_workers=workers)
        batches = iter(loader)
        first = next(batches).tolist()
        state = loader.state_dict()
        rest = [batch.tolist() for batch in batches]
        resumed = cls(list(range(10)), batch_size=3, shuffle=True, num_workers=workers)
        resumed.load_state_dict(state)
        assert [batch.tolist() for batch in resumed] == rest
        results.append((len(loader), first, rest))
    assert results[0] == results[1]
