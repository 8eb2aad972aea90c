"""
A sudoku
========

Eighty-one labels of nine states, and tables that forbid equal digits in a row, a column or a box. States that
no labelling can take are removed first, and the answer is proven.
"""

# %%
from itertools import combinations

import matplotlib.pyplot as plt
import torch

from lmbm_torch import FactorEnergy, decode

PUZZLE = [
    *("53..7....", "6..195...", ".98....6."),
    *("8...6...3", "4..8.3..1", "7...2...6"),
    *(".6....28.", "...419..5", "....8..79"),
]

# %%
cells = [(row, column) for row in range(9) for column in range(9)]
edges = [
    (one, other)
    for (one, a), (other, b) in combinations(enumerate(cells), 2)
    if a[0] == b[0] or a[1] == b[1] or (a[0] // 3, a[1] // 3) == (b[0] // 3, b[1] // 3)
]
differ = torch.zeros(9, 9).fill_diagonal_(-torch.inf)
energy = FactorEnergy.from_edges(torch.zeros(1, 81, 9), torch.tensor(edges), differ)
known = torch.tensor([[float(digit) - 1 if digit != "." else torch.nan for digit in "".join(PUZZLE)]])
found = decode(energy, known=known)
digits = found.labels.view(9, 9) + 1
print(digits, "proven:", found.status.exact.item())

# %%
figure, axis = plt.subplots(figsize=(4, 4))
for row, column in cells:
    given = PUZZLE[row][column] != "."
    axis.text(
        column + 0.5,
        row + 0.5,
        int(digits[row, column]),
        ha="center",
        va="center",
        color="k" if given else "C0",
    )
for line in range(10):
    for draw in (axis.axhline, axis.axvline):
        draw(line, color="k", linewidth=2 if line % 3 == 0 else 0.5)
axis.set(xlim=(0, 9), ylim=(9, 0), aspect="equal", xticks=[], yticks=[])
plt.show()
