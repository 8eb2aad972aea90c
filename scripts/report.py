"""A report on a trained model and labelled rows: same as ``lmbm report``, whose ``--help`` says more."""

from __future__ import annotations

from lmbm_torch.cli.report import main

if __name__ == "__main__":
    main()
