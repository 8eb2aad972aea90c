"""Roof duality, and labellings that flips improve, compiled for the CPU."""

from lmbm_torch.kernels.jit import compiled
from lmbm_torch.kernels.search.plain import flips, roof_duality

__all__ = ["climbed", "messages", "persistent"]

climbed = compiled(flips.climbed)
messages = compiled(roof_duality.messages)
persistent = compiled(roof_duality.persistent)
