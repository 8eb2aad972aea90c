"""Where torch takes its private names away, all goes on but for what they alone can tell."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from lmbm_torch import torch_internals, verdicts

WITHOUT = """
import sys
import torch

taken = sys.argv[1]
if taken == "torch._C._functorch":
    del torch._C._functorch
    sys.modules["torch._C._functorch"] = None
elif taken == "its names":
    for name in ("peek_interpreter_stack", "is_functorch_wrapped_tensor"):
        delattr(torch._C._functorch, name)
elif taken == "torch._assert_async":
    del torch._assert_async
else:
    del torch.utils._pytree.register_pytree_node

from lmbm_torch import inference
from lmbm_torch.energies import PairwiseEnergy

unary, pairwise = torch.tensor([[1.0, -2.0, 0.5]]), torch.zeros(3, 3)
energy = PairwiseEnergy(unary, pairwise)
print(inference.decode(energy).labels.tolist())
try:
    inference.decode(PairwiseEnergy(unary * torch.nan, pairwise))
except ValueError as refused:
    print("NaN" in str(refused))
"""


@pytest.mark.parametrize(
    "taken", ["torch._C._functorch", "its names", "torch._assert_async", "register_pytree_node"]
)
def test_decoding_goes_on_without_names_that_torch_takes_away(taken):
    done = subprocess.run([sys.executable, "-c", WITHOUT, taken], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[[1, 0, 1]]", "True"]


def test_without_functorch_no_tensor_is_known_to_be_mapped(monkeypatch):
    seen = []

    def look(tensor):
        seen.append(torch_internals.is_mapped(tensor))
        return tensor

    torch.vmap(look)(torch.ones(2))
    monkeypatch.setattr(torch_internals, "_functorch", None)
    torch.vmap(look)(torch.ones(2))
    assert seen == [True, False]


def test_without_assertions_on_devices_traced_code_reads_its_verdict(monkeypatch):
    monkeypatch.setattr(verdicts, "assert_async", None)
    monkeypatch.setattr(verdicts, "is_traced", lambda: True)

    def refuse():
        raise ValueError("refused")

    tensor = torch.ones(1)
    verdicts.refuse_unless("a check", (tensor,), lambda: tensor.isfinite().all(), refuse)
    with pytest.raises(ValueError, match="refused"):
        verdicts.refuse_unless("a check", (tensor,), lambda: tensor.isnan().all(), refuse)
