"""Tensors are made on a named device, so that ``torch.set_default_device`` changes no routine."""

from __future__ import annotations

import ast

from test_file_writes import SOURCES

MAKERS = {
    *("arange", "as_tensor", "asarray", "empty", "eye", "full", "linspace", "logspace", "normal", "ones"),
    *("rand", "randint", "randn", "randperm", "scalar_tensor", "sparse_coo_tensor", "sparse_csr_tensor"),
    *("tensor", "tril_indices", "triu_indices", "zeros"),
}
# Modules of torch are made where the default device says, as torch's own are.
MODULES = ("lmbm_torch/models/", "lmbm_torch/metrics/", "lmbm_torch/nn/")


def unplaced(source: str) -> list[str]:
    """The calls that make a tensor and name no device, nor pass one in ``**`` arguments."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == "torch"
        and node.func.attr in MAKERS
        and not {keyword.arg for keyword in node.keywords} & {"device", None}
    ]


def test_every_new_tensor_names_its_device():
    found = {
        path: calls
        for path, source in SOURCES.items()
        if path.startswith("lmbm_torch/") and not path.startswith(MODULES) and (calls := unplaced(source))
    }
    assert found == {}


def test_a_tensor_without_device_is_seen():
    assert unplaced("torch.zeros(2)\ntorch.ones(2, device=x.device)\ntorch.rand(2, **like)") == [
        "torch.zeros(2)"
    ]
