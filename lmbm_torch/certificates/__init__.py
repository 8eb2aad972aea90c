"""Certificates: decodings with proofs that a stranger can check, without this library.

* ``write(decoding, path, energy)`` proves a finished decoding by a search tree and writes it as JSON lines;
* ``digest(energy)`` names the problem that a certificate is about;
* ``write_training(problem, state, path)`` writes a training's duals, which bound what it is short of.

``scripts/certificate_checker`` checks them, ``docs/certificates.md`` tells the format.
"""

from lmbm_torch.certificates.decodings import digest, write
from lmbm_torch.certificates.trainings import write_training

__all__ = ["digest", "write", "write_training"]
