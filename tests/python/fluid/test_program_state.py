"""fluid.save and fluid.load: a program with all that persists, under one path."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers

FEED = {"x": np.ones((4, 3), np.float32)}


def value(name: str) -> np.ndarray:
    return np.array(fluid.global_scope().find_var(name).get_tensor())


def model() -> Any:
    loss = layers.reduce_mean(layers.square(layers.fc(fluid.data("x", [None, 3]), 2, param_attr="w", bias_attr="b")))
    fluid.optimizer.Adam(0.1).minimize(loss)
    return loss


def state() -> dict[str, np.ndarray]:
    return {v.name: value(v.name) for v in fluid.default_main_program().list_vars() if v.persistable}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_training_goes_on_where_it_was(exe: fluid.Executor, tmp_path: Path) -> None:
    loss = model()
    main = fluid.default_main_program()
    exe.run(fluid.default_startup_program())
    for _ in range(2):
        exe.run(feed=FEED)
    fluid.save(main, tmp_path / "models" / "step2")
    before = state()
    want = [exe.run(feed=FEED, fetch_list=[loss])[0] for _ in range(2)]
    assert not same(state(), before)
    with fluid.scope_guard(fluid.Scope()):
        fluid.load(main, str(tmp_path / "models" / "step2"), exe)
        assert same(state(), before)
        assert [exe.run(feed=FEED, fetch_list=[loss])[0] for _ in range(2)] == want
    names = {path.name for path in (tmp_path / "models").iterdir() if not path.name.startswith(".")}
    assert names == {"step2.pdparams", "step2.pdopt", "step2.pdmodel"}
    stored = fluid.Program.parse_from_string((tmp_path / "models" / "step2.pdmodel").read_bytes())
    assert [op.type for op in stored.global_block().ops] == [op.type for op in main.global_block().ops]


def test_a_persistable_result_is_loaded_whatever_its_shape_was(exe: fluid.Executor, tmp_path: Path) -> None:
    out = layers.fc(fluid.data("x", [None, 3]), 2, param_attr="w", bias_attr=False)
    out.persistable = True
    main, scope = fluid.default_main_program(), fluid.global_scope()
    exe.run(fluid.default_startup_program())
    scope.find_var("w").get_tensor().set(np.full((3, 2), 7, np.float32))
    scope.var(out.name).get_tensor().set(np.zeros((1, 1, 1), np.float32))
    fluid.save(main, tmp_path / "all")
    scope.find_var("w").get_tensor().set(np.zeros((3, 2), np.float32))
    with fluid.scope_guard(scope.new_scope()):  # the parameters are the outer scope's, and stay there
        fluid.load(main, tmp_path / "all")
    assert (value("w") == 7).all()
    with pytest.raises(errors.InvalidArgument, match=r"'w' has shape \[3, 2\], but \[1, 1\] was given"):
        fluid.io.set_program_state(main, {"w": np.zeros((1, 1), np.float32)})


def test_states_are_arrays_by_name(exe: fluid.Executor, tmp_path: Path) -> None:
    model()
    main = fluid.default_main_program()
    exe.run(fluid.default_startup_program())
    fluid.io.save(main, tmp_path / "m")
    loaded = fluid.load_program_state(tmp_path / "m")
    assert same(loaded, state())
    assert set(fluid.io.load_program_state(tmp_path / "m", [main.global_block().var("w")])) == {"w"}
    for suffix in (".pdparams", ".pdopt", ".pdmodel"):
        assert same(fluid.io.load_program_state(f"{tmp_path}/m{suffix}"), loaded)
    loaded["w"] = loaded["w"] + 1
    with pytest.warns(UserWarning, match="other"):
        fluid.io.set_program_state(main, {"w": loaded["w"], "other": np.zeros(1)})
    assert same(state(), loaded)
    before = state()
    for name, wrong, error in (("w", np.zeros((3, 3), np.float32), ValueError), ("w", np.zeros((3, 2)), TypeError)):
        with pytest.raises(error, match="'w'"):
            fluid.io.set_program_state(main, {"b": before["b"] + 1, name: wrong})
        assert same(state(), before)
    assert (pickle.loads((tmp_path / "m.pdparams").read_bytes())["b"] == value("b")).all()  # as Fluid reads it


class Bad:
    def __reduce__(self) -> Any:
        return os.mkdir, ("should not be there",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"w": Bad()}),
        pickle.dumps({"w": np.array([Bad()], object)}, 2),
        pickle.dumps([1]),
        pickle.dumps({"w": "text"}),
        b"",
        b"\x80\x02}q\x00X\x01",
        pickle.dumps({"w": np.zeros((3, 2), np.float32), "b": np.zeros(2, np.float32)}, 2) + b"\0",
    ],
)
def test_a_file_of_something_else_runs_no_code(
    exe: fluid.Executor, tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    model()
    exe.run(fluid.default_startup_program())
    before = state()
    (tmp_path / "m.pdparams").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.DataLoss, match=r"m\.pdparams"):
        fluid.load(fluid.default_main_program(), tmp_path / "m")
    assert same(state(), before)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["m.pdparams"]


def test_what_is_missing_is_named(exe: fluid.Executor, tmp_path: Path) -> None:
    model()
    main = fluid.default_main_program()
    with pytest.raises(errors.NotFound, match="startup"):
        fluid.save(main, tmp_path / "m")
    exe.run(fluid.default_startup_program())
    with pytest.raises(errors.NotFound, match=r"m\.pdparams"):
        fluid.load(main, tmp_path / "m")
    fluid.save(main, tmp_path / "m")
    (tmp_path / "m.pdopt").unlink()
    with pytest.raises(errors.NotFound, match="has no value of"):
        fluid.load(main, tmp_path / "m")
    with pytest.raises(errors.TypeMismatch, match="var_list takes Variables, got 'w'"):
        fluid.io.load_program_state(tmp_path / "m", ["w"])  # type: ignore[list-item]
    with pytest.raises(errors.InvalidArgument, match="model_path"):
        fluid.save(main, f"{tmp_path}/")
