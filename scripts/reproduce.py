"""Compute one of the tables: same as ``lmbm reproduce``, whose ``--help`` says more."""

from __future__ import annotations

from lmbm_torch.cli.reproduce import main

if __name__ == "__main__":
    main()
