"""Kernels as operators: checked by PyTorch, compiled, exported with and without this library, and mapped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
import torch
from sweeps import slow

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.messages import matrix_bp
from lmbm_torch.kernels.matrix_bp import choosing as bp
from lmbm_torch.kernels.search.operator import branch_and_bound

# Checks of shapes, which tests install, cannot be compiled: programs of their own. `drawn` begins each.
DRAWN = """
import sys
import torch
from lmbm_torch.energies import BipartiteEnergy, ChainEnergy, DirectedEnergy, PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.messages import matrix_bp
from lmbm_torch.inference.search import branch_and_bound
from lmbm_torch.inference.trees import chain_dp
from lmbm_torch.kernels.operators import in_exports

torch.manual_seed(0)
a, b, w = (torch.randn(size).double() for size in ((3, 5), (3, 4), (5, 4)))
known = torch.full((3, 5), torch.nan).double()
known[0, 1], known[2, 3] = 1, 0
ordering, cliques = torch.tensor([2, 0, 3, 1, 4]), ((0, 1, 2), (1, 2, 3, 4))
place = torch.argsort(ordering)
parents = torch.randn(5, 5).double() * (place[None] < place[:, None])
clique_weight = torch.randn(2).double()

def log_partition(num_iters, known=None):
    def function(a, b, w):
        energy = BipartiteEnergy(a, b, w)
        return matrix_bp.marginals(energy, num_iters=num_iters, tol=0.0, known=known).log_partition
    return function

def searched(a, parents, clique_weight, known):
    energy = DirectedEnergy(a, parents, ordering, cliques, clique_weight)
    hinge, best = branch_and_bound.decode_hinge(energy, known=known, top_k=2), branch_and_bound.decode(energy)
    return hinge.labels, hinge.objective, hinge.bound, hinge.status.exact, best.labels, best.objective

class Decoders(torch.nn.Module):
    def forward(self, a, b, w):
        bipartite, coupling = BipartiteEnergy(a, b, w), torch.triu(parents + parents.mT, 1)
        found = matrix_bp.marginals(bipartite, num_iters=4)
        best = exact.decode(PairwiseEnergy(a, coupling + coupling.mT))
        chains = ChainEnergy(torch.stack([b, b + 1, -b], 1), w[:4])
        return found.visible, found.log_partition, best.labels, best.objective, chain_dp.decode(chains).labels

def nodes(program):
    graphs = [each.graph for each in program.graph_module.modules() if hasattr(each, "graph")]
    return {str(node.target) for graph in graphs for node in graph.nodes if "lmbm" in str(node.target)}

def gradients(function, weights):
    tensors = [each.clone().requires_grad_() for each in (a, b, w)]
    (function(*tensors) * weights).sum().backward()
    return [each.grad for each in tensors]
"""

COMPILED = """
from lmbm_torch.kernels.matrix_bp.choosing import matrix_bp as operator, matrix_bp_pairs

for pairs in (True, False):
    tensors = [each.clone().requires_grad_(pairs) for each in (a, b, w)]
    given = *tensors, known, None, 2, 0.0, 0.0, "SUM", not pairs, pairs, None, "plain", None
    torch.library.opcheck(operator, given)
torch.library.opcheck(matrix_bp_pairs, (torch.ones(3).double(), w, *given))

weights, eager = torch.tensor([1.0, 2.0, 3.0]), log_partition(1, known)
found = gradients(torch.compile(eager, fullgraph=True, backend="aot_eager"), weights)
torch.testing.assert_close(found, gradients(eager, weights), rtol=0, atol=0)
"""

# More iterations, and PyTorch's own operators, as for CUDA devices.
DECOMPOSED = """
weights, eager = torch.ones(3), log_partition(3, known)
expected = gradients(eager, weights)
found = gradients(torch.compile(eager, fullgraph=True, backend="aot_eager"), weights)
torch.testing.assert_close(found, expected, rtol=0, atol=0)
torch._dynamo.reset()
matrix_bp.is_kept = lambda device: False
found = gradients(torch.compile(eager, fullgraph=True, backend="aot_eager"), weights)
torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
"""

SEARCHED = """
from lmbm_torch.kernels.search.operator import branch_and_bound as operator

given = a, parents, clique_weight, known
fast = torch.compile(searched, fullgraph=True, backend="aot_eager")
torch.testing.assert_close(fast(*given), searched(*given), rtol=0, atol=0)
try:
    fast(a, parents, clique_weight, torch.zeros(3, 5).double())
except RuntimeError as error:
    assert "top_k: expected at most the labellings of an example" in str(error)
else:
    raise AssertionError("two labellings of no free label")
places = torch.tensor([[0, 1]]), torch.tensor([2]), torch.ones(1, 1).double(), torch.zeros(1, 5).double()
torch.library.opcheck(operator, (a, parents.mT[None].triu(1), *places, 1.0, 0.0, 1e-12, 9.0, 2**62, 2))
"""

EXPORTED = """
other = torch.randn(3, 5).double(), b, w
# With gradients, PyTorch saves a program that it does not load.
with torch.no_grad():
    program = torch.export.export(Decoders(), (a, b, w))
assert not nodes(program), nodes(program)
torch.testing.assert_close(program.module()(*other), Decoders()(*other))
with in_exports(), torch.no_grad():
    kept = torch.export.export(Decoders(), (a, b, w))
assert nodes(kept) == {"lmbm.matrix_bp.default"}, nodes(kept)
torch.testing.assert_close(kept.module()(*other), Decoders()(*other))
torch.save((other, Decoders()(*other)), sys.argv[1] + "/answers.pt")
torch.export.save(program, sys.argv[1] + "/alone.pt2")
torch.export.save(kept, sys.argv[1] + "/kept.pt2")
"""

AHEAD = """
from torch._inductor import aoti_compile_and_package
aoti_compile_and_package(program, package_path=sys.argv[1] + "/machine.pt2")
"""

REGISTERED = """
import sys
import torch
from lmbm_torch.inference.messages import matrix_bp

tensors, expected = torch.load(sys.argv[1] + "/answers.pt", weights_only=True)
found = torch.export.load(sys.argv[1] + "/kept.pt2").module()(*tensors)
torch.testing.assert_close(tuple(found), tuple(expected))
"""

# With neither this library nor the folder that holds its source.
ALONE = """
import sys
import torch

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "lmbm_torch":
            raise ImportError(name)

sys.meta_path.insert(0, Refused())
tensors, expected = torch.load(sys.argv[1] + "/answers.pt", weights_only=True)
if sys.argv[2] == "alone":
    found = torch.export.load(sys.argv[1] + "/alone.pt2").module()(*tensors)
else:
    found = torch._inductor.aoti_load_package(sys.argv[1] + "/machine.pt2")(*tensors)
torch.testing.assert_close(tuple(found), tuple(expected))
assert "lmbm_torch" not in sys.modules
"""


def run(*arguments: object) -> None:
    command = [sys.executable, "-W", "ignore", "-c", *map(str, arguments)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", [COMPILED, slow(DECOMPOSED), slow(SEARCHED)])
def test_compiled_code_has_the_answers_and_gradients_of_eager_code(program):
    run(DRAWN + program)


def test_an_exported_program_runs_without_the_library_or_with_its_operators(tmp_path):
    run(DRAWN + EXPORTED, tmp_path)
    run(ALONE, tmp_path, "alone")


@pytest.mark.slow
def test_exported_programs_are_compiled_ahead_or_run_after_an_import(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("no g++, by which PyTorch compiles ahead: install GCC")
    run(DRAWN + EXPORTED + AHEAD, tmp_path)
    run(ALONE, tmp_path, "machine")
    run(REGISTERED, tmp_path)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def bp_arguments(*tensors: torch.Tensor, pairs: bool) -> tuple:
    settings = 4, 0.0, 0.0, "SUM", False, pairs, None, "plain", None
    return *tensors, None, None, *settings


def bb_arguments(fields: torch.Tensor) -> tuple:
    """A network of own weights of each instance, a clique, and shared known labels."""
    batch, labels = fields.shape
    children = random(batch, labels, labels).triu(1)
    clique = torch.tensor([[0, 1]]), torch.tensor([2]), random(1, 1)
    known = torch.zeros(1, labels, dtype=torch.float64)
    known[0, 1] = 1
    return fields, children, *clique, known, 1.0, 0.0, 1e-12, torch.inf, 2**62, 2


def assert_mapped(function, in_dims: tuple[int | None, ...], *tensors: torch.Tensor) -> None:
    found = torch.vmap(function, in_dims)(*tensors)
    for place in range(3):
        chosen = [
            each if axis is None else each.select(axis, place)
            for each, axis in zip(tensors, in_dims, strict=True)
        ]
        for one, own in zip(found, function(*chosen), strict=True):
            if own.numel():
                torch.testing.assert_close(one[place], own)


@pytest.mark.parametrize("pairs", [False, True])
def test_vmap_of_belief_propagation(pairs):
    def function(*tensors):
        return bp.matrix_bp(*bp_arguments(*tensors, pairs=pairs))

    visible, hidden, coupling = random(3, 2, 5), random(2, 3, 4), random(5, 4)
    assert_mapped(function, (0, 1, None), visible, hidden, coupling)
    assert_mapped(function, (0, None, 1), visible, hidden[:, 0], random(5, 3, 4))


def test_vmap_of_branch_and_bound():
    own = bb_arguments(random(2, 4))
    assert_mapped(lambda fields: branch_and_bound(fields, *own[1:]), (0,), random(3, 2, 4))
    mapped = random(2, 4), random(3, 1, 4, 4).triu(1)
    assert_mapped(lambda *two: branch_and_bound(*two, *own[2:]), (None, 0), *mapped)
    # A single row, mapped by its own weights.
    mapped = random(1, 4), random(3, 1, 4, 4).triu(1)
    assert_mapped(lambda *two: branch_and_bound(*two, *own[2:]), (None, 0), *mapped)


def test_gradients_of_unequal_weights_repeat_propagation():
    tensors = [random(*shape).requires_grad_() for shape in ((2, 3), (2, 4), (3, 4))]

    def gradient(weights: torch.Tensor) -> torch.Tensor:
        total = matrix_bp.marginals(BipartiteEnergy(*tensors), num_iters=2).log_partition
        return torch.autograd.grad((total * weights).sum(), tensors[2])[0]

    own = [gradient(torch.eye(2, dtype=torch.float64)[row]) for row in range(2)]
    torch.testing.assert_close(gradient(torch.tensor([2.0, 3.0]).double()), 2 * own[0] + 3 * own[1])
