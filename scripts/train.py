"""Train a model: same as ``lmbm train``, whose ``--help`` says more."""

from __future__ import annotations

from lmbm_torch.cli.train import main

if __name__ == "__main__":
    main()
