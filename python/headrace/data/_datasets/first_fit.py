"""First-fit packing of sequences into rows."""

from __future__ import annotations

from collections.abc import Sequence


class FirstFit:
    """Rows and their free room; finds the first row with enough in O(log n).

    A binary tree over the rows holds, for each feature, the maximum of the free room below each node.
    """

    def __init__(self, row_lengths: Sequence[int]) -> None:
        self._row_lengths = row_lengths
        self._size = 1
        self._trees = [[0, length] for length in row_lengths]  # node i has the children 2 i and 2 i + 1

    def place(self, lengths: Sequence[int]) -> int:
        """Puts a sample into the first row where it fits, and says which."""
        row = self._find(lengths)
        if row is None:
            row = self._size
            self._grow()
        for tree, length in zip(self._trees, lengths):
            node = row + self._size
            tree[node] -= length
            node //= 2
            while node:
                left, right = tree[2 * node], tree[2 * node + 1]
                most = left if left > right else right
                if tree[node] == most:
                    break
                tree[node] = most
                node //= 2
        return row

    def _find(self, lengths: Sequence[int]) -> int | None:
        size, trees = self._size, self._trees
        if len(trees) == 1:
            tree, length = trees[0], lengths[0]
            if tree[1] < length:
                return None
            node = 1
            while node < size:
                node *= 2
                if tree[node] < length:
                    node += 1
            return node - size
        # The maxima of several trees need not belong to one row, so this may have to backtrack.
        nodes = [1]
        while nodes:
            node = nodes.pop()
            while all(tree[node] >= length for tree, length in zip(trees, lengths)):
                if node >= size:
                    return node - size
                nodes.append(2 * node + 1)
                node *= 2
        return None

    def _grow(self) -> None:
        """Doubles the rows."""
        for i, (tree, length) in enumerate(zip(self._trees, self._row_lengths)):
            grown = [0, length]
            width = 1
            while width <= self._size:
                grown += tree[width : 2 * width] + [length] * width
                width *= 2
            self._trees[i] = grown
        self._size *= 2
