"""Collections of objects that are known only as long as somebody else refers to them."""

from __future__ import annotations

import sys
import weakref
from types import FrameType

from headrace._weak_collections import WeakBag, WeakKeyMap


class Item:
    pass


def test_it_holds_what_is_alive_each_once() -> None:
    bag: WeakBag[Item] = WeakBag()
    kept, dropped = Item(), Item()
    for item in (kept, dropped, kept):
        bag.add(item)
    assert sorted(map(id, bag)) == sorted(map(id, (kept, dropped)))
    assert kept in bag
    assert Item() not in bag
    del item, dropped
    assert list(bag) == [kept]
    assert len(bag._references) == 1
    bag.clear()
    assert list(bag) == []


def test_what_goes_while_the_bag_is_read_is_left_out() -> None:
    bag: WeakBag[Item] = WeakBag()
    items = [Item() for _ in range(3)]
    for item in items:
        bag.add(item)
    del item
    items_seen = 0
    for _ in bag:
        items.clear()
        items_seen += 1
    assert items_seen in (1, 2)  # the loop itself refers to one of them


def test_a_map_forgets_the_values_of_what_goes() -> None:
    values: WeakKeyMap[Item, Item] = WeakKeyMap()
    kept, dropped, value = Item(), Item(), Item()
    assert values.get(kept) is None
    assert values.setdefault(kept, value) is value
    assert values.setdefault(kept, Item()) is value
    assert values.get(kept) is value
    of_dropped = Item()
    watched = weakref.ref(of_dropped)
    values.setdefault(dropped, of_dropped)
    del of_dropped
    assert watched() is not None
    del dropped
    assert watched() is None
    assert len(values._values) == 1
    values.clear()
    assert values.get(kept) is None


def test_no_interrupt_is_lost_when_an_object_goes() -> None:
    bag: WeakBag[Item] = WeakBag()
    values: WeakKeyMap[Item, int] = WeakKeyMap()
    seen: list[str] = []

    def trace(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.append(frame.f_code.co_name)

    item = Item()
    bag.add(item)
    values.setdefault(item, 1)
    sys.setprofile(trace)
    try:
        del item
    finally:
        sys.setprofile(None)
    assert seen == []  # a signal's handler runs where Python code does
    assert list(bag) == []
    assert len(values._values) == 0
