"""Optimality certificates: files with proofs that can be checked without the library.

* ``write(decoding, path, energy)`` proves by a search tree that a decoding is optimal, and writes the proof;
* ``digest(energy)`` returns the name of a decoding problem, a hash that certificates repeat;
* ``write_training(problem, state, path)`` writes the dual variables of a training, which bound the gap.

``scripts/certificate_checker`` checks certificates; ``docs/certificates.md`` describes the format.
"""

from lmbm_torch.certificates.decodings import digest, write
from lmbm_torch.certificates.trainings import write_training

__all__ = ["digest", "write", "write_training"]
