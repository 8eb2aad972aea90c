"""Labels by hand with a trained model beside: same as ``lmbm annotate``, whose ``--help`` says more."""

from __future__ import annotations

from lmbm_torch.cli.annotate import main

if __name__ == "__main__":
    main()
