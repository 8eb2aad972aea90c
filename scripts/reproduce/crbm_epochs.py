"""Epochs of plain steps of a conditional RBM over images: resumable, and little but the steps.

The steps are those of :class:`~lmbm_torch.training.latent.LatentModule` under plain stochastic gradient
descent, centred or not; gradients come in closed form and go straight into the weights. On a CUDA device an
epoch is one step, captured as a graph, as often as there are batches: the host does no more than launch it.

An epoch serves whole batches alone, in an order that the seed and the number of the epoch fix.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmbm_torch.data.dataset import MultilabelData
from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.losses.latent import METHODS
from lmbm_torch.models import ConditionalRBM
from lmbm_torch.verdicts import supposing
from reproduce.gradients import gradient

WEIGHTS = "visible_bias", "visible_weight", "hidden_bias", "hidden_weight", "coupling"
HIDDEN_RATE = 0.04
"""Of the running mean of the hidden units, as in :class:`~lmbm_torch.training.callbacks.latent`."""


@dataclass(frozen=True)
class Images:
    """Corrupted images, as features, and clean ones, as labels, on a device as bytes."""

    features: Tensor
    labels: Tensor

    @classmethod
    def part(cls, data: MultilabelData, rows: Any, device: torch.device) -> Images:
        """Return a data set of some rows."""
        whole = (torch.from_numpy(values[rows]).byte() for values in (data.features, data.labels))
        return cls(*(values.to(device) for values in whole))

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        return self.features[rows].float(), self.labels[rows].float()


class Steps:
    """A conditional RBM and its steps.

    Args:
        images: to train with.
        hidden: number of hidden units; None for logistic regression, which has none.
        method: one of :data:`~lmbm_torch.losses.latent.METHODS`.
        num_steps: of Gibbs sampling, where the method samples.
        learning_rate, batch_size: of a step along the mean of the batch's gradients.
        is_centred: whether pixels and hidden units are taken less their means; see
            :mod:`~lmbm_torch.training.callbacks.latent`.
        seed: of the weights, the order of the images and sampling.
        tol: of inference in training.
        warm_tol: the same from the second epoch on, whose inference then starts from the hidden units'
            beliefs of the epoch before: two bytes an image and hidden unit are kept, on the CPU alone. None:
            inference starts from nothing in every epoch. No matter to a method that samples.
        init_std: see :class:`~lmbm_torch.models.ConditionalRBM`.
        penalty: each step also shrinks the couplings by ``learning_rate`` times as much, the gradient of
            ½ penalty ‖couplings‖² for each image.

    Raises:
        ValueError: fewer images than a batch has; ``warm_tol`` for images on another device.
    """

    def __init__(
        self,
        images: Images,
        *,
        hidden: int | None,
        method: str,
        num_steps: int,
        learning_rate: float,
        batch_size: int,
        is_centred: bool,
        seed: int,
        init_std: float,
        tol: float = 1e-3,
        warm_tol: float | None = None,
        penalty: float = 0.0,
    ) -> None:
        if len(images) < batch_size:
            raise ValueError(f"batch_size: expected at most {len(images)} images, got {batch_size}")
        if warm_tol is not None and images.labels.device.type != "cpu":
            raise ValueError(f"warm_tol: expected None for images on {images.labels.device}, got {warm_tol}")
        self.images, self.batch_size, self.seed = images, batch_size, seed
        self.hidden, self.method, self.num_steps, self.is_centred = hidden, method, num_steps, is_centred
        self.scale, self.tol, self.warm_tol = -learning_rate / batch_size, tol, warm_tol
        self.kept = 1 - learning_rate * penalty
        device, (_, features), (_, labels) = images.labels.device, images.features.shape, images.labels.shape
        generator = torch.Generator().manual_seed(seed)
        self.model = (
            ConditionalRBM.logistic_regression(features, labels)
            if hidden is None
            else ConditionalRBM(features, labels, hidden, init_std=init_std, generator=generator)
        ).to(device)
        self.model.requires_grad_(False)
        self.feature_mean = images.features.float().mean(0)
        self.label_mean = images.labels.float().mean(0)
        self.hidden_mean = torch.zeros(self.model.num_hidden, device=device)
        self.chains = images.labels.clone() if method == "pcd" else None
        # NaN where there has been no inference yet.
        infers = hidden is not None and METHODS[method].num_steps is None
        self.beliefs = (
            torch.full((len(images), self.model.num_hidden), math.nan, dtype=torch.float16)
            if infers and warm_tol is not None
            else None
        )
        self.is_warm = False
        self.converged = torch.zeros((), device=device)
        # Iterations that some image has needed; a graph need not hold many more.
        self.most_iters = math.inf

    @torch.no_grad()
    def epoch(self, number: int, num_iters: int) -> float:
        """Return one pass; the share of images on which inference converged.

        Args:
            number: of the epoch, counted from 0.
            num_iters: of inference, at most.
        """
        seed = self.seed * 1_000_003 + number
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.images), generator=generator)
        batches = order[: len(order) // self.batch_size * self.batch_size].view(-1, self.batch_size)
        batches = batches.to(self.images.labels.device)
        self.converged.zero_()
        self.is_warm = self.beliefs is not None and number > 0
        if batches.device.type == "cuda":
            self._replay(batches, num_iters, seed)
        else:
            torch.manual_seed(seed)
            for rows in batches:
                self._step(rows, num_iters)
        return float(self.converged) / batches.numel()

    def _replay(self, batches: Tensor, num_iters: int, seed: int) -> None:
        """Replay one captured graph for every step; run steps one by one where no graph can be captured."""
        num_iters = int(min(num_iters, self.most_iters + 2))
        place = torch.zeros(1, dtype=torch.long, device=batches.device)

        def step() -> None:
            self._step(batches.index_select(0, place)[0], num_iters)
            place.add_(1)

        largest = float(self.model.coupling.abs().amax())
        # Couplings grow within an epoch; what odds can hold is asked for at its start.
        supposed = min(3 * largest + 3, max(34.0, 1.2 * largest))
        with supposing({"largest message": supposed, "couplings that are not 0": math.inf}):
            torch.manual_seed(seed)
            repeat = _captured(step, lambda: self._gradient(batches[0], num_iters)) or step
            torch.manual_seed(seed)
            for _ in range(len(batches)):
                repeat()
            # The graph's memory is free for others once it is gone.
            torch.cuda.synchronize()

    def _energy(self, features: Tensor) -> BipartiteEnergy:
        model = self.model
        visible, hidden = (
            torch.addmm(bias, features, weight.mT)
            for bias, weight in (
                (model.visible_bias, model.visible_weight),
                (model.hidden_bias, model.hidden_weight),
            )
        )
        return BipartiteEnergy(visible, hidden, model.coupling.detach())

    def _gradient(self, rows: Tensor, num_iters: int) -> tuple[Tensor, BipartiteEnergy, Tensor, Any]:
        features, labels = self.images.batch(rows)
        energy = self._energy(features)
        if self.hidden is None:
            return features, energy, labels, torch.sigmoid(energy.visible) - labels
        chains = None if self.chains is None else self.chains[rows]
        options: dict[str, Any] = {"num_iters": num_iters, "num_steps": self.num_steps, "chains": chains}
        options["tol"] = self.warm_tol if self.is_warm else self.tol
        if self.is_warm and self.beliefs is not None:
            before = self.beliefs[rows].float()
            options["init"] = torch.where(before.isnan(), torch.sigmoid(energy.hidden), before)
        found = gradient(self.method, energy, labels, **options)
        return features, energy, labels, found

    def _step(self, rows: Tensor, num_iters: int) -> None:
        features, energy, labels, found = self._gradient(rows, num_iters)
        if self.is_centred:
            features = features - self.feature_mean
        if self.hidden is None:
            self._move(features, found, self.model.visible_weight, self.model.visible_bias, None)
            self.converged += len(labels)
            return
        if found.converged is not None:
            self.converged += found.converged.sum()
        if found.reached is not None and self.chains is not None:
            self.chains[rows] = found.reached.to(self.chains.dtype)
        if self.beliefs is not None:
            self.beliefs[rows] = found.beliefs.to(self.beliefs.dtype)
        model, by_coupling = self.model, found.coupling
        by_means = None, None
        if self.is_centred:
            mean_hidden = energy.hidden_given_visible(labels).mean(0)
            by_coupling = torch.addr(by_coupling, found.visible.sum(0), self.hidden_mean, alpha=-1)
            by_coupling = by_coupling.addr_(self.label_mean, found.hidden.sum(0), alpha=-1)
            by_means = by_coupling @ self.hidden_mean, by_coupling.mT @ self.label_mean
            self.hidden_mean.lerp_(mean_hidden, HIDDEN_RATE)
        self._move(features, found.visible, model.visible_weight, model.visible_bias, by_means[0])
        self._move(features, found.hidden, model.hidden_weight, model.hidden_bias, by_means[1])
        model.coupling.mul_(self.kept).add_(by_coupling, alpha=self.scale)

    def _move(
        self, features: Tensor, by_field: Tensor, weight: Tensor, bias: Tensor, by_means: Tensor | None
    ) -> None:
        """Move the weights and the bias of one side's units by a step.

        Args:
            features: less their means in centred steps.
            by_field: the gradient in each example's log-potentials.
            by_means: what the centred couplings' gradient adds up to at the other side's means.
        """
        by_bias = by_field.sum(0)
        if self.is_centred:
            by_bias = by_bias - by_field.mT @ (features @ self.feature_mean)
        if by_means is not None:
            by_bias = by_bias - by_means
        weight.addmm_(by_field.mT, features, alpha=self.scale)
        bias.add_(by_bias, alpha=self.scale)

    def weights(self) -> dict[str, Tensor]:
        """Return a copy on the host."""
        return {name: self.model.get_parameter(name).detach().cpu().clone() for name in WEIGHTS}

    def state(self) -> dict[str, Any]:
        """Return a copy of what the next epoch goes on from, on the host."""
        chains = None if self.chains is None else _packed(self.chains.cpu())
        kept = {"weights": self.weights(), "hidden_mean": self.hidden_mean.cpu().clone(), "chains": chains}
        return kept if self.beliefs is None else {**kept, "beliefs": self.beliefs.clone()}

    @torch.no_grad()
    def load(
        self,
        weights: dict[str, Tensor],
        hidden_mean: Tensor,
        chains: Tensor | None,
        beliefs: Tensor | None = None,
    ) -> None:
        """Load a state."""
        for name, value in weights.items():
            self.model.get_parameter(name).copy_(value)
        self.hidden_mean.copy_(hidden_mean)
        if chains is not None and self.chains is not None:
            self.chains.copy_(_unpacked(chains, self.chains.shape[1]))
        if beliefs is not None and self.beliefs is not None:
            self.beliefs.copy_(beliefs)

    def is_finite(self) -> bool:
        """Return whether the weights are."""
        return all(bool(self.model.get_parameter(name).isfinite().all()) for name in WEIGHTS)

    @torch.no_grad()
    def restored(self, images: Images, num_iters: int) -> Tensor:
        """Return the images as the model restores them, as bytes, by the inference of the method."""
        inference = MatchedInference(METHODS[self.method].routine, num_iters)
        size = 500 if images.labels.device.type == "cpu" else 2000
        found, most = [], 0
        for first in range(0, len(images), size):
            features = images.features[first : first + size].float()
            decoding = inference.decode(self._energy(features))
            found.append(decoding.labels.byte())
            most = max(most, int(decoding.status.num_iters.max()))
        self.most_iters = most
        return torch.cat(found)


def error(restored: Tensor, images: Images) -> float:
    """Return the share of wrong pixels."""
    return float((restored != images.labels).float().mean())


def changed_error(restored: Tensor, images: Images) -> float:
    """Return the share of wrong pixels among those that the corruption changed."""
    changed = images.features != images.labels
    return float(((restored != images.labels) & changed).sum() / changed.sum())


def _captured(step: Callable[[], None], dry_run: Callable[[], Any]) -> Callable[[], None] | None:
    """Return a replay of the step as a CUDA graph, or None, with a warning, where it cannot be captured.

    Args:
        dry_run: what the step computes, without a change of any state; compiles what is not compiled yet.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        dry_run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step()
    except RuntimeError as refused:
        warnings.warn(f"steps run one by one, not as a CUDA graph: {refused}", RuntimeWarning, stacklevel=2)
        torch.cuda.synchronize()
        return None
    return graph.replay


def _packed(bits: Tensor) -> Tensor:
    """Return bytes of {0, 1}, eight in one."""
    places = torch.arange(8, dtype=torch.uint8)
    padded = torch.nn.functional.pad(bits, (0, -bits.shape[1] % 8))
    return (padded.view(len(bits), -1, 8) << places).sum(-1, dtype=torch.uint8)


def _unpacked(packed: Tensor, width: int) -> Tensor:
    places = torch.arange(8, dtype=torch.uint8)
    return ((packed[..., None] >> places) & 1).flatten(1)[:, :width]
