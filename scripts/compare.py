"""Compare families of models and their peers: same as ``lmbm compare``, whose ``--help`` says more."""

from __future__ import annotations

from lmbm_torch.cli.compare import main

if __name__ == "__main__":
    main()
