"""
Proofs of decodings
===================

Branch and bound searches for the label set of least loss, and ends when no other label set can have a
smaller loss. The number of visited nodes shows how hard an instance was. The proof can be written into a
file, and checked without this library.
"""

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from lmbm_torch import certificates
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference.search import branch_and_bound
from lmbm_torch.viz.quality import node_histogram

generator = torch.Generator().manual_seed(0)
energy = DirectedEnergy(
    unary=2 * torch.randn(400, 20, generator=generator),
    parents=torch.randn(20, 20, generator=generator).tril(-1) / 20**0.5,
    ordering=torch.arange(20),
)
decoding = branch_and_bound.decode_hinge(energy)
print(f"{decoding.status.exact.float().mean():.0%} proven, of {2**20:,} labellings each")

# %%
# The number of visited nodes of the search tree, of 2,097,150.
node_histogram(decoding.nodes)

# %%
# With a limit of nodes, the bound still says how much better another answer could be at most.
hurried = branch_and_bound.decode_hinge(energy, node_limit=40)
gap = hurried.objective - hurried.bound
print(f"within 40 nodes {hurried.status.exact.float().mean():.0%} proven, all within {gap.max():.2f}")

# %%
# A certificate is a file with the problem, the answers and the proof. ``scripts/certificate_checker`` checks
# the file with NumPy alone.
with TemporaryDirectory() as folder:
    path = Path(folder) / "tags.jsonl"
    name = certificates.write(decoding, path, energy, margin=1.0)
    print(f"problem {name[:16]}…, {path.stat().st_size / 1024:.0f} kB for {len(decoding.labels)} proofs")
