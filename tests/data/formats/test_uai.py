"""Markov networks in the UAI format."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from strategies.pairwise import random_pairwise_energy

from lmbm_torch.data import read_evidence, read_uai, write_evidence, write_uai
from lmbm_torch.energies import CliqueEnergy, FactorEnergy, to_clique
from lmbm_torch.inference.enumeration import exact

# The competition's own example, but for its variable of three values.
EXAMPLE = """MARKOV
3
2 2 2
3
1 0
2 0 1
2 2 1

2
 0.436 0.564

4
 0.128 0.872
 0.920 0.080

4
 0.210 0.333
 0.457 0.811
"""


def labellings(num_labels):
    return torch.tensor(list(product((0, 1), repeat=num_labels)))


def scores(energy):
    """Those of all labellings, (labellings,)."""
    return energy.score(labellings(energy.num_labels)[:, None])[:, 0]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.uai"


def test_scores_are_logarithms_of_the_product_of_tables(path):
    path.write_text(EXAMPLE)
    first, second, third = [0.436, 0.564], [[0.128, 0.872], [0.920, 0.080]], [[0.210, 0.333], [0.457, 0.811]]
    expected = [np.log(first[a] * second[a][b] * third[c][b]) for a, b, c in product((0, 1), repeat=3)]
    energy = read_uai(path)
    torch.testing.assert_close(scores(energy), torch.tensor(expected))
    torch.testing.assert_close(scores(to_clique(energy).to_pairwise()), torch.tensor(expected))


def test_a_table_of_many_variables_in_any_order(path):
    generator = np.random.default_rng(0)
    cliques = [(3, 0, 2, 1), (2,), (1, 4, 0), (0, 4, 1), ()]
    tables = [generator.uniform(0.1, 5, (2,) * len(clique)) for clique in cliques]
    lines = ["markov 5 2 2 2 2 2 5", *(f"{len(c)} " + " ".join(map(str, c)) for c in cliques)]
    lines += [f"{table.size} " + " ".join(map(repr, table.ravel().tolist())) for table in tables]
    path.write_text("\n".join(lines))
    expected = [
        sum(np.log(table[tuple(y[i] for i in clique)]) for clique, table in zip(cliques, tables, strict=True))
        for y in product((0, 1), repeat=5)
    ]
    torch.testing.assert_close(scores(read_uai(path)), torch.tensor(expected))


def test_a_bayesian_network_with_zeros_and_evidence(path, tmp_path):
    # P(a) P(b | a), b of three values, of which the last is impossible for a = 0.
    path.write_text("BAYES 2 2 3 2 1 0 2 0 1 2 0.4 0.6 6 0.5 0.5 0 0.2 0.3 0.5")
    (tmp_path / "seen.evid").write_text("1 1 2")
    energy = read_uai(path)
    found = scores_of(energy)
    assert found[2] == -torch.inf
    torch.testing.assert_close(found.exp().sum(), torch.tensor(1.0).double())
    seen = scores_of(read_uai(path, evidence=tmp_path / "seen.evid"))
    torch.testing.assert_close(seen.exp(), torch.tensor([0, 0, 0, 0, 0, 0.3]).double())
    write_uai(tmp_path / "again.uai", energy)
    torch.testing.assert_close(scores_of(read_uai(tmp_path / "again.uai")), found)


def test_several_sets_of_evidence_are_examples(path, tmp_path):
    path.write_text("MARKOV 2 2 3 1 2 0 1 6 1 2 3 4 5 6")
    (tmp_path / "seen.evid").write_text("2\n1 0 0\n2 0 1 1 2")
    energy = read_uai(path, evidence=tmp_path / "seen.evid")
    labels = torch.tensor([*product(range(2), range(3))])[:, None]
    total = energy.score(labels).exp().sum(0)
    torch.testing.assert_close(total, torch.tensor([6.0, 6.0]).double())


def scores_of(energy: FactorEnergy):
    """Those of all labellings, (labellings,)."""
    labels = torch.tensor([*product(*map(range, energy.structure.num_states))])
    return energy.score(labels[:, None])[:, 0]


def test_variables_without_tables(path):
    path.write_text("MARKOV 2 2 2 0")
    torch.testing.assert_close(scores(read_uai(path)), torch.zeros(4, dtype=torch.float64))


def test_pairwise_energies_are_read_back(path):
    for seed in range(5):
        energy = random_pairwise_energy(seed, 1 + 2 * seed, 1, coupling=2.0, density=0.5)
        write_uai(path, energy, "w")
        back = to_clique(read_uai(path)).to_pairwise()
        for name in ("unary", "pairwise", "constant"):
            own = getattr(energy, name)
            torch.testing.assert_close(getattr(back, name).view_as(own), own, rtol=0, atol=1e-13)
        torch.testing.assert_close(
            exact.marginals(back).log_partition, exact.marginals(energy).log_partition, rtol=1e-12, atol=1e-12
        )


def test_a_solver_reads_what_is_written(path):
    toulbar2 = pytest.importorskip("pytoulbar2", reason="the optional extra wcsp is not installed")
    for seed in range(5):
        energy = random_pairwise_energy(seed, 8, 1)
        write_uai(path, energy, "w")
        toulbar2.pytb2.init()
        network = toulbar2.CFN(resolution=6)
        network.Read(str(path))
        assert network.Solve()[0] == exact.decode(energy).labels[0].tolist()


def test_clique_energies_are_read_back(path):
    weight = torch.tensor([0.3, -1.2, 5.0, 0.25, -0.5], dtype=torch.float64)
    cliques = ((2, 0, 1), (3,), (0, 1, 2), (1, 3), (2, 0))
    energy = CliqueEnergy(cliques, weight, torch.tensor([4.0], dtype=torch.float64), 5)
    write_uai(path, energy)
    torch.testing.assert_close(scores(read_uai(path)), scores(energy))
    assert "\n3 0 1 2\n" in path.read_text(encoding="utf-8")


def test_an_existing_file_is_kept(path):
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"path: expected a path without a file"):
        write_uai(path, random_pairwise_energy(0, 3, 1))
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("MARKOV", "MAR\xffKOV", "network: expected MARKOV or BAYES"),
        ("2 2 2", "2 0 2", r"variables: expected at least one variable, .*, got \[2, 0, 2\]"),
        ("2 2 2", "2 3 2", r"the size of table 1 to be 6, got 4"),
        ("2 0 1", "2 0 3", "table 1 below 3, got 3"),
        ("2 0 1", "2 1 1", r"table 1: expected distinct numbers, got \(1, 1\)"),
        ("0.436", "-1", "table 0: expected finite values of at least 0, got -1"),
        ("0.436", "nan", "table 0: expected finite values of at least 0, got nan"),
        ("0.436", "inf", "table 0: expected finite values of at least 0, got inf"),
        ("0.436", "much", "table 0: expected a number, got 'much'"),
        ("0.436", "0.4_36", "table 0: expected a number, got '0.4_36'"),
        ("\n4\n 0.128", "\n5\n 0.128", "the size of table 1 to be 4, got 5"),
        (" 0.811", "", "expected 4 values of table 2, got fewer before the end of the file"),
        ("0.811", "0.811 7", "expected the end of the file, got '7'"),
        ("3\n2", "-3\n2", "expected the number of variables, got '-3'"),
        ("3\n2", "999999999999\n2", "expected the number of variables, got '999999999999'"),
        (EXAMPLE, "", "expected the kind of network, got the end of the file"),
    ],
)
def test_other_models_are_refused(path, old, new, message):
    assert old in EXAMPLE
    path.write_text(EXAMPLE.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ValueError, match=r"path: .*model\.uai: .*" + message):
        read_uai(path)


def test_what_has_no_table_is_refused(path):
    energy = random_pairwise_energy(0, 3, 2)
    with pytest.raises(ValueError, match="energy: expected one example, got 2"):
        write_uai(path, energy)
    with pytest.raises(ValueError, match=r"energy: expected log-potentials within ±700, got 1000"):
        write_uai(path, CliqueEnergy(((0,),), torch.tensor([1000.0])))
    with pytest.raises(ValueError, match="energy: expected tables of at most 10000000 entries in all, got"):
        write_uai(path, CliqueEnergy((tuple(range(30)),), torch.tensor([1.0])))
    with pytest.raises(ValueError, match="weight: expected finite"):
        write_uai(path, CliqueEnergy(((0,),), torch.tensor([torch.nan])))
    assert not path.exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 0 1 2 0", [[1, None, 0]]),
        ("0", [[None, None, None]]),
        ("1\n2 0 1 2 0", [[1, None, 0]]),
        ("3\n1 1 1\n0\n2 2 1 0 0\n", [[None, 1, None], [None, None, None], [0, None, 1]]),
    ],
)
def test_evidence(path, text, expected):
    path.write_text(text)
    known = torch.tensor([[torch.nan if value is None else value for value in row] for row in expected])
    torch.testing.assert_close(read_evidence(path, (2, 2, 2)), known.double(), equal_nan=True)


def test_evidence_is_read_back(path):
    known = torch.tensor([[1, torch.nan, 0, 0, torch.nan]])
    write_evidence(path, known)
    assert path.read_text() == "3 0 1 2 0 3 0\n"
    torch.testing.assert_close(read_evidence(path, (2,) * 5), known.double(), equal_nan=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 3 0", "expected an observed variable below 3, got 3"),
        ("1 0 2", "expected one value, 0 to 1, of variable 0, got a value of 2"),
        ("2 0 1 0 1", "expected one value, 0 to 1, of variable 0, got a second value"),
        ("2 1 0 1 1 1", "got the end of the file"),
        ("1 1 0 1 7", "expected the end of the file, got '7'"),
        ("999999999 0", "expected 999999999 sets of observations, got fewer before the end of the file"),
        ("x", "expected the number of observations, got 'x'"),
    ],
)
def test_bad_evidence_is_refused(path, text, message):
    path.write_text(text)
    with pytest.raises(ValueError, match=r"path: .*model\.uai: .*" + message):
        read_evidence(path, (2, 2, 2))


def test_evidence_of_several_examples_is_refused(path):
    with pytest.raises(ValueError, match=r"known: expected shape \(1, at least 1\), got \(2, 3\)"):
        write_evidence(path, torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"known: expected"):
        write_evidence(path, torch.full((1, 3), 0.5))
