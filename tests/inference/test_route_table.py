"""The table of routes: every kind of energy and quantity has a way, and everybody takes the same one."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from strategies.bipartite import random_bipartite_energy
from strategies.chain import random_chain_energy
from strategies.directed import random_directed_energy
from strategies.factor import random_factor_energy
from strategies.pairwise import random_clique_energy, random_pairwise_energy
from strategies.semi_chain import random_semi_chain_energy
from strategies.sequential import random_sequential_energy
from strategies.tree import random_tree_energy
from sweeps import slow

import lmbm_torch
from lmbm_torch import energies, inference
from lmbm_torch.constraints import Constraints
from lmbm_torch.estimators import (
    LMBMClassifier,
    LMSBNClassifier,
    StructuralSVMClassifier,
)
from lmbm_torch.inference.common import limits
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.routes import table
from lmbm_torch.inference.routes.table import QUANTITIES, ROUTES, Query
from lmbm_torch.inference.under_rules import constrained

ROOT = Path(lmbm_torch.__file__).parent
LABELS = 4
RULES = Constraints.of(["a -> b"], list("abcd"))
OF_STATES = (
    random_chain_energy(0),
    random_tree_energy(0),
    random_factor_energy(0, num_states=(2, 2, 3, 2)),
)
BINARY = (
    random_directed_energy(0, LABELS),
    random_pairwise_energy(0, LABELS),
    random_clique_energy(0, LABELS),
    random_bipartite_energy(0, LABELS, 3),
)
KINDS = {
    type(energy).__name__: energy
    for energy in (
        *BINARY,
        *OF_STATES,
        random_semi_chain_energy(0),
        random_sequential_energy(0, num_states=(2,) * LABELS),
        constrained.restricted(BINARY[1], RULES),
    )
}
OF_SEVERAL_VALUES = ("ChainEnergy", "TreeEnergy", "SemiChainEnergy", "SequentialEnergy")
REFUSED = {
    *((kind, "decode_hinge", False) for kind in (*OF_SEVERAL_VALUES, "BipartiteEnergy")),
    *((kind, "decode_hinge", True) for kind in (*OF_SEVERAL_VALUES, "BipartiteEnergy")),
    *((kind, quantity, True) for kind in OF_SEVERAL_VALUES for quantity in table.SUMS),
    *((kind, "decode", True) for kind in OF_SEVERAL_VALUES[:3]),
    ("TreeEnergy", "sample", False),
    ("SemiChainEnergy", "sample", False),
    ("SequentialEnergy", "log_partition", False),
}


def route_names() -> set[str]:
    return {
        row.routine.format(quantity=quantity)
        for each in ROUTES
        for quantity in each.quantities
        for row in each.rows
        if row.routine is not None
    }


@pytest.mark.parametrize("name", sorted(route_names()))
def test_every_routine_of_the_table_exists_and_takes_what_it_is_given(name):
    routine = table._routine(name)
    first, *others = inspect.signature(routine).parameters.values()
    needed = {
        each.name for each in others if each.default is each.empty and each.kind is not each.VAR_KEYWORD
    }
    assert first.name in ("energy", "energies", "query")
    assert needed <= {*table.OPTIONS}


def test_every_list_of_routes_ends():
    for each in ROUTES:
        *before, last = each.rows
        assert all(route.when is not table.ALWAYS for route in before)
        assert last.when in (table.ALWAYS, table.HAS_MARGINS)


def test_every_kind_of_energy_has_a_name_in_the_table():
    listed = {kind for each in ROUTES for kind in each.kinds}
    public = {getattr(energies, name) for name in energies.__all__}
    kinds = {each for each in public if isinstance(each, type) and issubclass(each, energies.BaseEnergy)}
    assert kinds <= listed | {energies.BaseEnergy}
    assert {type(energy) for energy in KINDS.values()} == listed - {energies.BaseEnergy}


@pytest.mark.parametrize(("kind", "quantity", "rules"), [*product(KINDS, QUANTITIES, (None, RULES))])
def test_every_kind_and_quantity_ends_in_a_route_or_a_refusal_with_words(kind, quantity, rules):
    energy = KINDS[kind]
    given = {"num_samples": 2} if quantity == "sample" else {}
    ask = partial(getattr(inference, quantity), energy, constraints=rules, **given)
    if (kind, quantity, rules is not None) in REFUSED:
        with pytest.raises(TypeError, match=r"energy: expected (one|a kind) .*, got "):
            ask()
        return
    found = ask()
    if quantity == "marginals":
        assert found.method


def test_every_limit_says_what_it_is_and_which_script_measured_it():
    source = inspect.getsource(limits.Limits)
    for name in limits.Limits.__dataclass_fields__:
        found = re.search(rf"((?:    # .*\n)+)    {name}: ", source)
        assert found, f"{name} has a comment"
        (script,) = re.findall(r"scripts/bench/\w+\.py", found[1].replace("\n    # ", " "))
        assert (ROOT.parent / script).is_file()
        units = r"(labels|labellings|nodes?|units|bytes|width|draws|probability)"
        assert re.match(rf"    # .*\b{units}\b", found[1], re.IGNORECASE), name


@pytest.mark.parametrize("measure", ["exact_match", "hamming", "f1", "jaccard"])
@pytest.mark.parametrize("rules", [None, RULES])
@pytest.mark.parametrize("kind", ["DirectedEnergy", "SequentialEnergy"])
def test_every_expected_measure_has_a_route(kind, rules, measure):
    found = inference.decode_expected([KINDS[kind]] * 2, measure, constraints=rules)
    assert found.labels.shape == (3, LABELS)
    if rules is not None:
        assert not rules.violated(found.labels.numpy()).any()


def test_expected_measures_refuse_other_energies_and_names():
    with pytest.raises(TypeError, match="energy: expected one of DirectedEnergy, SequentialEnergy, got Pair"):
        table.answer(Query(quantity="decode_expected", energy=[BINARY[1]], measure="f1"))
    with pytest.raises(ValueError, match=r"measure: expected one of exact_match, .*, got 'f2'"):
        inference.decode_expected([BINARY[0]], "f2")


MODELS = {
    "network": (LMSBNClassifier(random_state=0), "decode_hinge", {}),
    "machine": (LMBMClassifier(C=1.0, coupling_penalty=0.5, random_state=0), "decode_hinge", {}),
    "structural": (StructuralSVMClassifier(C=1.0, max_iter=5, random_state=0), "decode", {}),
}


def assert_same(found: inference.Decoding, other: inference.Decoding) -> None:
    assert torch.equal(found.labels, other.labels)
    assert torch.equal(found.objective, other.objective)
    for name in ("exact", "converged", "num_iters", "residual"):
        assert torch.equal(getattr(found.status, name), getattr(other.status, name)), name
    assert (found.nodes is None) == (other.nodes is None)
    if found.nodes is not None and other.nodes is not None:
        assert torch.equal(found.nodes, other.nodes)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("labels", [4, 12, 26])
def test_an_estimator_decodes_by_the_search_of_inference(name, labels):
    generator = np.random.default_rng(0)
    features = generator.normal(size=(40, 3))
    noise = generator.normal(size=(40, labels))
    targets = (features @ generator.normal(size=(3, labels)) + 2 * noise > 0).astype(int)
    model, quantity, given = MODELS[name]
    model.fit(features, targets)
    rows = generator.normal(size=(5, 3))
    known = np.full((5, labels), np.nan)
    known[1, 1], known[2, 2] = 1, 0
    energy = model.energy(rows)
    routine = getattr(inference, quantity)
    assert_same(model.decode(rows), routine(energy, **given))
    assert_same(model.decode(rows, known=known), routine(energy, known=torch.from_numpy(known), **given))


def test_one_limit_of_nodes_holds_for_a_kind_of_energy():
    """What meets the limit by the estimator meets it after as many nodes by inference."""
    energy = random_pairwise_energy(0, 40, 1, coupling=0.3)
    found = inference.decode_hinge(energy)
    assert not found.status.converged.any()
    limited = inference.decode_hinge(energy, node_limit=LIMITS.machine_nodes)
    assert_same(found, limited)
    assert_same(LMBMClassifier()._decoder(2)(energy), found)
    network = random_directed_energy(0, 40, 1)
    assert_same(inference.decode(network), inference.decode(network, node_limit=LIMITS.network_nodes))


ENTERED = """
import sys
from pathlib import Path
import torch
import lmbm_torch
from lmbm_torch import inference
from lmbm_torch.energies import DirectedEnergy
root, quantity, examples = Path(lmbm_torch.__file__).parent, sys.argv[1], int(sys.argv[2])
generator = torch.Generator().manual_seed(0)
parents = torch.randn(6, 6, generator=generator).tril(-1)
energy = DirectedEnergy(torch.randn(examples, 6, generator=generator), parents, torch.arange(6))
files = set()
def note(frame, event, _):
    if event == "call" and frame.f_code.co_filename.startswith(str(root)):
        files.add(frame.f_code.co_filename)
getattr(inference, quantity)(energy)
sys.setprofile(note)
getattr(inference, quantity)(energy)
sys.setprofile(None)
print(*sorted(files), sep="\\n")
"""


@pytest.mark.parametrize("quantity", ["decode", "decode_hinge"])
@pytest.mark.parametrize("examples", [slow(1), 300])
def test_a_small_network_is_decoded_by_eight_files(examples, quantity):
    """By the files whose functions a second call enters, in a process of its own."""
    run = [sys.executable, "-c", ENTERED, quantity, str(examples)]
    said = subprocess.run(run, capture_output=True, text=True, check=True, timeout=120)
    files = said.stdout.split()
    assert 1 < len(files) <= 8, files


def test_the_manual_has_the_table():
    """The manual lists the routes as ``table.described()`` has them."""
    page = (ROOT.parent / "docs" / "guide" / "energies.md").read_text()
    assert table.described() in page
