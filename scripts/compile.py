"""Compile the kernels beforehand: same as ``lmbm compile``, whose ``--help`` says more."""

from __future__ import annotations

from lmbm_torch.cli.compile import main

if __name__ == "__main__":
    main()
