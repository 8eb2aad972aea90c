"""Models and evidence in the format of the UAI inference competitions, which most solvers of graphical models
read.

A model is a Markov network: p(y) ∝ Π_c table_c(y_c), with tables over sets c of variables, the last variable
running fastest. Logarithms of tables are decomposed into parities, the features of a Boltzmann machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_known, check_shape
from lmbm_torch.energies import CliqueEnergy, PairwiseEnergy
from lmbm_torch.files import Mode, reading, write_text
from lmbm_torch.incoming import UNREADABLE, lines
from lmbm_torch.shapes import Float, Known

__all__ = ["read_evidence", "read_uai", "write_evidence", "write_uai"]

# The exponential of a log-potential up to this size is a normal float64.
LARGEST = 700.0
_COMMENT = re.compile(r"(#|//|^\s*c\s).*", re.DOTALL)
# Entries of all tables of a file, about 25 bytes each.
MAX_ENTRIES = 10**7

Tables = dict[tuple[int, ...], float]


def read_uai(path: str | PathLike) -> CliqueEnergy:
    """Read a Markov network of binary variables, as a batch of one example in float64.

    The cliques are all subsets of the variables of the tables, each once. ``to_pairwise`` gives the usual
    form if no table has more than two variables.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: no valid file; another kind of network than MARKOV; variables of other than two values;
            zeros (forbidden labellings) or values without a finite logarithm. The message names the
            file.

    Examples:
        >>> import tempfile, pathlib
        >>> from lmbm_torch.data import read_uai
        >>> path = pathlib.Path(tempfile.mkdtemp(), "toy.uai")
        >>> count = path.write_text("MARKOV 2 2 2 1 2 0 1 4 1 2 2 1")
        >>> sorted(read_uai(path).cliques)
        [(0,), (0, 1), (1,)]
    """
    with reading(path, *UNREADABLE) as file:
        tokens = _Tokens(_words(file))
        if (kind := tokens.next("the kind of network")).upper() != "MARKOV":
            raise ValueError(f"network: expected MARKOV, got {kind[:20]!r}")
        num_labels = tokens.count("the number of variables")
        sizes = tokens.counts("the variables' numbers of values", num_labels)
        if others := sorted({*sizes} - {2}):
            raise ValueError(f"variables: expected two values each, got some of {others[:5]}")
        num_tables = tokens.count("the number of tables")
        cliques = [
            tokens.variables(f"the variables of table {table}", num_labels) for table in range(num_tables)
        ]
        weights: Tables = {}
        for number, clique in enumerate(cliques):
            _add(weights, clique, tokens.table(number, len(clique)))
        tokens.end()
        constant = weights.pop((), 0.0)
        return CliqueEnergy(
            tuple(weights),
            torch.tensor([*weights.values()], dtype=torch.float64, device="cpu"),
            torch.tensor([constant], dtype=torch.float64, device="cpu"),
            num_labels,
        )


def write_uai(path: str | PathLike, energy: PairwiseEnergy | CliqueEnergy, mode: Mode = "x") -> None:
    """Write one example as a Markov network: a table for each label, and for each clique with a weight.

    The constant goes into the table of the first label. The energy read back has the same scores, up
    to round-off of about 1e-16 times the number of tables.

    Args:
        mode: see :func:`lmbm_torch.files.replacing`.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        ValueError: more than one example; NaN, infinity, or log-potentials beyond ±700, with exponentials no
            float64 holds; cliques whose tables have more than ten million entries.

    Examples:
        >>> import tempfile, pathlib
        >>> import torch
        >>> from lmbm_torch.data import write_uai
        >>> from lmbm_torch.energies import PairwiseEnergy
        >>> path = pathlib.Path(tempfile.mkdtemp(), "toy.uai")
        >>> pairwise = torch.tensor([[0.0, 2.0], [2.0, 0.0]])
        >>> write_uai(path, PairwiseEnergy(torch.tensor([[0.5, -1.0]]), pairwise))
        >>> path.read_text().split()[:2]
        ['MARKOV', '2']
    """
    energy.check_values()
    if energy.batch_size != 1:
        raise ValueError(f"energy: expected one example, got {energy.batch_size}; try energy.select([0])")
    cliques = CliqueEnergy.from_pairwise(energy) if isinstance(energy, PairwiseEnergy) else energy
    weights: Tables = {(label,): 0.0 for label in range(energy.num_labels)}
    for clique, weight in zip(cliques.cliques, cliques.weight.detach().flatten().tolist(), strict=True):
        own = tuple(sorted(clique))
        weights[own] = weights.get(own, 0.0) + weight
    weights = {clique: weight for clique, weight in weights.items() if weight or len(clique) == 1}
    entries = sum(2 ** len(clique) for clique in weights)
    if entries > MAX_ENTRIES:
        raise ValueError(f"energy: expected tables of at most {MAX_ENTRIES} entries, got {entries}")
    lines = ["MARKOV", str(energy.num_labels), " ".join(["2"] * energy.num_labels), str(len(weights))]
    lines += [" ".join(map(str, (len(clique), *clique))) for clique in weights]
    for number, (clique, weight) in enumerate(weights.items()):
        values = weight * _parity(len(clique)) + (float(cliques.constant) if number == 0 else 0.0)
        if (largest := np.abs(values).max()) > LARGEST:
            raise ValueError(f"energy: expected log-potentials within ±{LARGEST:g}, got {largest:g}")
        lines += ["", str(len(values)), " ".join(map(repr, np.exp(values).tolist()))]
    write_text(path, "\n".join([*lines, ""]), mode)


def read_evidence(path: str | PathLike, num_labels: int) -> Float[Tensor, "samples labels"]:
    """Read observed values as ``known`` of the inference routines: {0, 1}, NaN where unobserved.

    Files of 2014 and later hold a set of observations, the size first; older files start with the number of
    sets. A file that can be read as either is taken for a newer file.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: no valid file; an unknown variable, or a variable observed twice; a value other than
            0 or 1. The message names the file.

    Examples:
        >>> import tempfile, pathlib
        >>> from lmbm_torch.data import read_evidence
        >>> path = pathlib.Path(tempfile.mkdtemp(), "toy.evid")
        >>> count = path.write_text("1 2 0")
        >>> read_evidence(path, 3).tolist()
        [[nan, nan, 0.0]]
    """
    with reading(path, *UNREADABLE) as file:
        words = _words(file)
        tokens = _Tokens(words)
        first = tokens.count("the number of observations")
        is_new = len(words) == 1 + 2 * first
        if not is_new and first >= len(words):
            raise ValueError(f"expected {first} sets of observations, but the file ends")
        known = torch.full((1 if is_new else first, num_labels), torch.nan, dtype=torch.float64, device="cpu")
        for row in known:
            for _ in range(first if is_new else tokens.count("the number of observations")):
                variable = tokens.variable("an observed variable", num_labels)
                value = tokens.count("an observed value")
                if value > 1 or not row[variable].isnan():
                    got = f"a value of {value}" if value > 1 else "a second value"
                    raise ValueError(
                        f"evidence: expected one value, 0 or 1, of variable {variable}, got {got}"
                    )
                row[variable] = value
        tokens.end()
        return known


def write_evidence(path: str | PathLike, known: Known, mode: Mode = "x") -> None:
    r"""Write the known labels of one example, {0, 1, NaN} of shape (1, labels), in the form of 2014.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        ValueError: another shape or other values.

    Examples:
        >>> import tempfile, pathlib
        >>> import torch
        >>> from lmbm_torch.data import write_evidence
        >>> path = pathlib.Path(tempfile.mkdtemp(), "toy.evid")
        >>> write_evidence(path, torch.tensor([[torch.nan, 1.0]]))
        >>> path.read_text()
        '1 1 1\n'
    """
    check_shape("known", known, 1, None)
    check_known(known, known.device, 1, known.shape[1])
    observed = [(label, int(value)) for label, value in enumerate(known[0].tolist()) if value == value]
    numbers = [len(observed), *(number for pair in observed for number in pair)]
    write_text(path, " ".join(map(str, numbers)) + "\n", mode)


def _parity(size: int) -> np.ndarray:
    """Return Π_i s_i of each labelling of ``size`` labels, the last label running fastest."""
    parity = np.ones(1)
    for _ in range(size):
        parity = np.concatenate([-parity, parity])
    return parity


def _add(weights: Tables, clique: tuple[int, ...], log_table: np.ndarray) -> None:
    """Add the weights of a table's parities: w_S = 2^−|c| Σ_y log table(y) Π_{i ∈ S} s_i for all S ⊆ c."""
    coefficients = log_table.reshape((2,) * len(clique))
    for axis in range(len(clique)):
        low, high = np.moveaxis(coefficients, axis, 0)
        coefficients = np.stack([(high + low) / 2, (high - low) / 2], axis)
    for index, weight in np.ndenumerate(coefficients):
        subset = tuple(sorted(label for label, inside in zip(clique, index, strict=True) if inside))
        weights[subset] = weights.get(subset, 0.0) + float(weight)


def _words(file: Path) -> list[str]:
    """Return the words of a file without comments: ``# …`` and ``// …``, and lines that begin with ``c``."""
    with lines(file) as found:
        return [word for line in found for word in _COMMENT.sub("", line).split()]


def _number(what: str, word: str) -> float:
    """Return a number in the notation of C; Python's own notation also has underscores and other digits."""
    if word.isascii() and "_" not in word:
        with suppress(ValueError):
            return float(word)
    raise ValueError(f"{what}: expected numbers, got {word[:20]!r}")


class _Tokens:
    """The words of a file in order, with errors that name the expected content."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._next = 0

    def next(self, what: str) -> str:
        if self._next >= len(self._words):
            raise ValueError(f"expected {what}, but the file ends")
        self._next += 1
        return self._words[self._next - 1]

    def count(self, what: str) -> int:
        word = self.next(what)
        # Not int() alone, which accepts underscores and signs.
        if not (word.isascii() and word.isdigit() and len(word) < 10):
            raise ValueError(f"expected {what}, got {word[:20]!r}")
        return int(word)

    def counts(self, what: str, size: int) -> list[int]:
        return [self.count(what) for _ in range(size)]

    def variable(self, what: str, num_labels: int) -> int:
        number = self.count(what)
        if number >= num_labels:
            raise ValueError(f"expected {what} below {num_labels}, got {number}")
        return number

    def variables(self, what: str, num_labels: int) -> tuple[int, ...]:
        clique = tuple(self.variable(what, num_labels) for _ in range(self.count(what)))
        if len({*clique}) < len(clique):
            raise ValueError(f"expected {what} once each, got {clique[:20]}")
        return clique

    def table(self, number: int, size: int) -> np.ndarray:
        """Return the logarithms of a table of ``size`` variables."""
        what = f"table {number}"
        if (entries := self.count(f"the size of {what}")) != 2**size:
            raise ValueError(f"expected the size of {what} to be 2^{size}, got {entries}")
        words = self._words[self._next : self._next + entries]
        if len(words) < entries:
            raise ValueError(f"expected {entries} values of {what}, but the file ends")
        self._next += entries
        values = np.array([_number(what, word) for word in words])
        if (wrong := values[~((values > 0) & (values < np.inf))]).size:
            forbids = ": a labelling that is forbidden has no log-potential" if (wrong == 0).any() else ""
            raise ValueError(f"{what}: expected finite values above 0, got {wrong[0]:g}{forbids}")
        return np.log(values)

    def end(self) -> None:
        if self._next < len(self._words):
            raise ValueError(f"expected the end of the file, got {self._words[self._next][:20]!r}")
