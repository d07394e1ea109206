"""Objects that are known only as long as somebody else refers to them."""

from __future__ import annotations

from headrace._weak_bag import WeakBag


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
