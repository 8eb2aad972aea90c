"""Models and evidence in the file format of the UAI inference competitions.

Most solvers for graphical models read this format. A model is a Markov network, p(y) ∝ Π_c table_c(y_c), with
tables over sets c of variables, in which the last variable changes fastest; or a Bayesian network, whose
tables are P(last variable | the other variables). A zero forbids labellings: the log-potential is −∞.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_shape
from lmbm_torch.energies import FactorEnergy, FactorScopes, to_factors
from lmbm_torch.energies.factor_views import AsFactors
from lmbm_torch.files import Mode, reading, write_text
from lmbm_torch.incoming import UNREADABLE, lines
from lmbm_torch.shapes import Float, Known

__all__ = ["read_evidence", "read_uai", "write_evidence", "write_uai"]

# The largest |log-potential| in a file: its exponential neither overflows nor underflows.
LARGEST = 700.0
_COMMENT = re.compile(r"(#|//|^\s*c\s).*", re.DOTALL)
# Largest number of entries in all tables of a file; an entry takes about 25 bytes.
MAX_ENTRIES = 10**7


def read_uai(path: str | PathLike, evidence: str | PathLike | None = None) -> FactorEnergy:
    """Read a Markov or Bayesian network, whose variables may have any number of values, in float64.

    Args:
        evidence: a file of observed values, see :func:`read_evidence`. Labellings that disagree with the
            observations are forbidden, and the log partition is log P(evidence), the task PR of the
            competitions. A file with several sets of observations gives one example for each set.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: the file is not valid; the network is neither MARKOV nor BAYES; or a value is negative or
            not finite. The message names the file.

    Examples:
        >>> import tempfile, pathlib
        >>> from lmbm_torch.data import read_uai
        >>> path = pathlib.Path(tempfile.mkdtemp(), "toy.uai")
        >>> count = path.write_text("MARKOV 2 2 3 1 2 0 1 6 1 2 2 1 0 4")
        >>> read_uai(path).structure
        FactorScopes(num_states=(2, 3), scopes=((0, 1),), start=())
    """
    with reading(path, *UNREADABLE) as file:
        energy = _network(_Tokens(_words(file)))
    if evidence is None:
        return energy
    known = read_evidence(evidence, energy.structure.num_states)
    return FactorEnergy(energy.table.repeat(len(known), 1), energy.structure).given(known)


def _network(tokens: _Tokens) -> FactorEnergy:
    """Return the energy that the words of a file describe."""
    if (kind := tokens.next("the kind of network")).upper() not in ("MARKOV", "BAYES"):
        raise ValueError(f"network: expected MARKOV or BAYES, got {kind[:20]!r}")
    num_labels = tokens.count("the number of variables")
    num_states = tokens.counts("the variables' numbers of values", num_labels)
    if not num_labels or min(num_states) < 1:
        raise ValueError(
            f"variables: expected at least one variable, each with at least one value, got {num_states[:9]}"
        )
    num_tables = tokens.count("the number of tables")
    scopes = [tokens.variables(f"the variables of table {table}", num_labels) for table in range(num_tables)]
    structure = FactorScopes(tuple(num_states), tuple(scope for scope in scopes if len(scope) != 1))
    unary, tables = np.zeros(structure.num_unary), []
    for number, scope in enumerate(scopes):
        table = tokens.table(number, prod(num_states[variable] for variable in scope))
        if len(scope) == 1:
            unary[slice(*structure.first[scope[0] : scope[0] + 2])] += table
        else:
            tables.append(table)
    tokens.end()
    table = torch.from_numpy(np.concatenate([unary, *tables]))
    return FactorEnergy(table[None], structure)


def write_uai(path: str | PathLike, energy: AsFactors, mode: Mode = "x") -> None:
    """Write one example as a Markov network: a table for each label, and a table for each scope.

    A constant is added to the table of the first label; −∞ is written as 0. If the file is read again, the
    scores are the same up to round-off of about 1e-16 times the number of tables.

    Args:
        mode: see :func:`lmbm_torch.files.replacing`.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        TypeError: the energy cannot be converted, see :func:`lmbm_torch.energies.to_factors`.
        ValueError: there is more than one example; log-potentials are NaN, infinite or beyond ±700, where the
            exponential overflows; or all tables together have more than ten million entries.

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
    sizes = [len(clique) for clique in getattr(energy, "cliques", ())]
    if (entries := sum(2**size for size in sizes)) > MAX_ENTRIES:
        raise ValueError(f"energy: expected tables of at most {MAX_ENTRIES} entries in all, got {entries}")
    (graph,) = to_factors(energy).without_constants().examples()
    structure, values = graph.structure, graph.table[0].detach().cpu().double().numpy()
    finite = np.abs(values[np.isfinite(values)])
    if finite.size and finite.max() > LARGEST:
        raise ValueError(f"energy: expected log-potentials within ±{LARGEST:g}, got {finite.max():g}")
    scopes = structure.every_scope
    lines = [
        "MARKOV",
        str(structure.num_variables),
        " ".join(map(str, structure.num_states)),
        str(len(scopes)),
    ]
    lines += [" ".join(map(str, (len(scope), *scope))) for scope in scopes]
    for table in np.split(values, structure.first[1:-1]):
        lines += ["", str(len(table)), " ".join(map(repr, np.exp(table).tolist()))]
    write_text(path, "\n".join([*lines, ""]), mode)


def read_evidence(path: str | PathLike, num_states: Sequence[int]) -> Float[Tensor, "samples labels"]:
    """Read observed values as the argument ``known`` of inference routines: NaN for unobserved variables.

    Files of 2014 and later hold one set of observations and start with its size; older files start with the
    number of sets. A file that is valid in both forms is read in the newer form.

    Args:
        num_states: the number of values of each variable.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is not valid, a variable is unknown or observed twice, or a variable has no such
            value. The message names the file.

    Examples:
        >>> import tempfile, pathlib
        >>> from lmbm_torch.data import read_evidence
        >>> path = pathlib.Path(tempfile.mkdtemp(), "toy.evid")
        >>> count = path.write_text("1 2 0")
        >>> read_evidence(path, (2, 2, 3)).tolist()
        [[nan, nan, 0.0]]
    """
    with reading(path, *UNREADABLE) as file:
        words, num_labels = _words(file), len(num_states)
        tokens = _Tokens(words)
        first = tokens.count("the number of observations")
        is_new = len(words) == 1 + 2 * first
        if not is_new and first >= len(words):
            raise ValueError(f"expected {first} sets of observations, got fewer before the end of the file")
        known = torch.full((1 if is_new else first, num_labels), torch.nan, dtype=torch.float64, device="cpu")
        for row in known:
            for _ in range(first if is_new else tokens.count("the number of observations")):
                variable = tokens.variable("an observed variable", num_labels)
                value = tokens.count("an observed value")
                if (most := num_states[variable] - 1) < value or not row[variable].isnan():
                    got = f"a value of {value}" if most < value else "a second value"
                    raise ValueError(
                        f"evidence: expected one value, 0 to {most}, of variable {variable}, got {got}"
                    )
                row[variable] = value
        tokens.end()
        return known


def write_evidence(path: str | PathLike, known: Known, mode: Mode = "x") -> None:
    r"""Write the known labels of one example, shape (1, labels), NaN if unknown, in the form of 2014.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        ValueError: the shape is not (1, labels), or values are not whole numbers of at least 0.

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
    observed = [(label, value) for label, value in enumerate(known[0].tolist()) if value == value]
    if strange := [value for _, value in observed if value < 0 or value % 1]:
        raise ValueError(f"known: expected states 0, 1, … or NaN, got {strange[0]:g}")
    numbers = [len(observed), *(int(number) for pair in observed for number in pair)]
    write_text(path, " ".join(map(str, numbers)) + "\n", mode)


def _words(file: Path) -> list[str]:
    """Return the words of a file without comments: ``# …`` and ``// …``, and lines that begin with ``c``."""
    with lines(file) as found:
        return [word for line in found for word in _COMMENT.sub("", line).split()]


def _number(what: str, word: str) -> float:
    """Return a number in the notation of C; Python's ``float`` would accept underscores and other digits."""
    if word.isascii() and "_" not in word:
        with suppress(ValueError):
            return float(word)
    raise ValueError(f"{what}: expected a number, got {word[:20]!r}")


class _Tokens:
    """A reader of the words of a file, with errors that name the expected content."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._next = 0

    def next(self, what: str) -> str:
        if self._next >= len(self._words):
            raise ValueError(f"expected {what}, got the end of the file")
        self._next += 1
        return self._words[self._next - 1]

    def count(self, what: str) -> int:
        word = self.next(what)
        # int() would also accept underscores and signs.
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
            raise ValueError(f"{what}: expected distinct numbers, got {clique[:20]}")
        return clique

    def table(self, number: int, size: int) -> np.ndarray:
        """Return the logarithms of a table of ``size`` entries."""
        what = f"table {number}"
        if (entries := self.count(f"the size of {what}")) != size:
            raise ValueError(f"expected the size of {what} to be {size}, got {entries}")
        words = self._words[self._next : self._next + entries]
        if len(words) < entries:
            raise ValueError(f"expected {entries} values of {what}, got fewer before the end of the file")
        self._next += entries
        values = np.array([_number(what, word) for word in words])
        if (wrong := values[~((values >= 0) & (values < np.inf))]).size:
            raise ValueError(f"{what}: expected finite values of at least 0, got {wrong[0]:g}")
        with np.errstate(divide="ignore"):
            return np.log(values)

    def end(self) -> None:
        if self._next < len(self._words):
            raise ValueError(f"expected the end of the file, got {self._words[self._next][:20]!r}")
