"""A joint distribution of labels as the last layer of a neural network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmbm_torch.checks import check_count, check_finite, check_labels, check_shape
from lmbm_torch.shapes import Float, Int, Shaped

__all__ = ["JointHeadLayer"]


class JointHeadLayer(nn.Module):
    """Score label vectors by logits of a neural network and learned weights of the number of labels.

        score(y) = Σ_l (slope_l logit_l + offset_l) y_l + count_weight_{min(|y|, K)}

    with P(y) ∝ exp(score(y)): the structure ``"cardinality"`` of
    :class:`~lmbm_torch.estimators.joint.head.JointHead`. A dynamic programme over the number of labels makes
    the likelihood, the marginals and the decoding exact for hundreds of labels. At first the layer leaves
    logits unchanged and labels independent. It can be trained together with the network of the logits or
    afterwards, and is saved by ``state_dict``.

    Args:
        num_labels: the number L of labels.
        largest: K, at least 1; label vectors with K or more labels share a weight. None for K = L.

    Attributes:
        slope, offset: (labels,).
        count_weight: (K + 1,).

    Examples:
        >>> import torch
        >>> from lmbm_torch.nn import JointHeadLayer
        >>> head, logits = JointHeadLayer(3), torch.tensor([[-0.2, -1.0, -0.1]])
        >>> head.decode(logits)
        tensor([[0, 0, 0]])
        >>> with torch.no_grad():
        ...     head.count_weight[1] = 2.0
        >>> head.decode(logits)
        tensor([[0, 0, 1]])
        >>> head(logits, torch.tensor([[0, 0, 1]])).shape
        torch.Size([])
    """

    def __init__(self, num_labels: int, largest: int | None = None) -> None:
        super().__init__()
        check_count("num_labels", num_labels)
        if largest is not None:
            check_count("largest", largest)
        self.num_labels = num_labels
        self.slope = nn.Parameter(torch.ones(num_labels))
        self.offset = nn.Parameter(torch.zeros(num_labels))
        self.count_weight = nn.Parameter(torch.zeros(1 + min(largest or num_labels, num_labels)))

    def forward(
        self, logits: Float[Tensor, "batch labels"], labels: Shaped[Tensor, "batch labels"]
    ) -> Float[Tensor, ""]:
        """Return the loss of a batch: the mean negative log-likelihood, see :meth:`log_prob`."""
        return -self.log_prob(logits, labels).mean()

    def log_prob(
        self, logits: Float[Tensor, "batch labels"], labels: Shaped[Tensor, "batch labels"]
    ) -> Float[Tensor, " batch"]:
        """Return log P(labels) of each example, with gradients.

        Args:
            labels: {0, 1}, or NaN for missing labels; the probability is summed over their values.

        Raises:
            ValueError: a shape does not fit, a label has another value, or a logit is infinite.
        """
        fields = self._fields(logits)
        check_shape("labels", labels, *logits.shape)
        check_labels("labels", labels, allow_missing=True)
        return self._log_sum(fields, labels) - self._log_sum(fields, None)

    def marginals(self, logits: Float[Tensor, "batch labels"]) -> Float[Tensor, "batch labels"]:
        """Return the exact P(y_l = 1) of each label, as the gradient of the log-partition function."""
        with torch.enable_grad():
            fields = self._fields(logits).detach().requires_grad_()
            total = self._log_sum(fields, None).sum()
            (found,) = torch.autograd.grad(total, fields)
        return found

    @torch.no_grad()
    def decode(
        self, logits: Float[Tensor, "batch labels"], known: Shaped[Tensor, "batch labels"] | None = None
    ) -> Int[Tensor, "batch labels"]:
        """Return the most probable labelling of each example; of equally probable ones, the smallest.

        Args:
            known: {0, 1} for known labels, NaN for free labels.

        Raises:
            ValueError: a shape does not fit, a known label has another value, or a logit is infinite.
        """
        fields = self._fields(logits)
        given = torch.full_like(fields, torch.nan) if known is None else known.to(fields)
        check_shape("known", given, *logits.shape)
        check_labels("known", given, allow_missing=True)
        on, off = given == 1, given == 0
        order = fields.masked_fill(on, torch.inf).masked_fill(off, -torch.inf).argsort(1, descending=True)
        sums = nn.functional.pad(fields.gather(1, order).cumsum(1), (1, 0))
        sizes = torch.arange(self.num_labels + 1, device=fields.device)
        scores = sums + self.count_weight[sizes.clamp(max=len(self.count_weight) - 1)]
        allowed = (sizes >= on.sum(1, keepdim=True)) & (sizes <= self.num_labels - off.sum(1, keepdim=True))
        best = scores.masked_fill(~allowed, -torch.inf).argmax(1, keepdim=True)
        return torch.zeros_like(order).scatter(1, order, (sizes[:-1] < best).long())

    def _fields(self, logits: Tensor) -> Float[Tensor, "batch labels"]:
        check_shape("logits", logits, None, self.num_labels)
        check_finite("logits", logits)
        return logits * self.slope + self.offset

    def _log_sum(self, fields: Tensor, labels: Tensor | None) -> Float[Tensor, " batch"]:
        """Return log Σ exp(score(y)) over the labellings with the known labels."""
        # Entry k: the log-sum over the current and all later labels if k of the earlier labels are 1.
        after = self.count_weight.expand(len(fields), -1)
        for label in reversed(range(self.num_labels)):
            more = fields[:, label, None] + torch.cat([after[:, 1:], after[:, -1:]], 1)
            both = torch.logaddexp(after, more)
            if labels is None:
                after = both
                continue
            own = labels[:, label, None]
            after = torch.where(own == 1, more, torch.where(own == 0, after, both))
        return after[:, 0]
