"""Run a network without some of its heads, as cheaply as can be.

What a head adds to its layer's output is z_h W_O,h (z_h: its context). Without it the output projection gives the
intact result minus that, plus what stands in for it; so the attention of that layer, and all layers below, need not run
again. Everything above runs as it always does. Several heads of a layer go through together, one copy of the batch
each.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.arch import Site, attention_sites, is_transposed, output_projection
from headlens.behaviour.upper_layers import giving, layers_of
from headlens.capture import capture
from headlens.errors import UnsupportedModel
from headlens.importance.inputs import TextBatch
from headlens.importance.units import Unit, plan_now

ROW_TOKENS = 1024  # of all copies of a batch that go through the layers at once: they should stay in a core's cache

# What stands in for the contexts of all heads of a layer: [head * dim], [batch, token, head * dim], or nothing
Fill = Tensor | None


@dataclass(eq=False)
class Intact:
    """What one batch gave in the network as it is, layer by layer."""

    batch: TextBatch
    hidden: Tensor  # [batch, token, hidden], the last ones
    layers: list[Any] = field(default_factory=list)
    attended: list[Any] = field(default_factory=list)  # by the attention modules
    context: list[Tensor] = field(default_factory=list)  # [batch, token, head * dim], what W_O gets
    projected: list[Tensor] = field(default_factory=list)  # [batch, token, hidden], what W_O gives


class Runner(ABC):
    """One network and where its output projections are. Nothing of the network is changed between two calls."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.network = network
        self.sites = attention_sites(network)
        stacks = sorted({site.stack for site in self.sites})
        if len(stacks) > 1:
            raise UnsupportedModel(
                f"{type(network).__name__} has the stacks {', '.join(stacks)}, and heads are judged in one: pass its "
                f"encoder, `model.get_encoder()`."
            )
        self.layers = layers_of(network)
        self.projections = [output_projection(network, site) for site in self.sites]
        self.heads = [len(kept) for kept in plan_now(network).kept]
        takes_cache = "use_cache" in inspect.signature(network.forward).parameters
        self._options = {"use_cache": False} if takes_cache else {}

    def intact(self, batch: TextBatch) -> Intact:
        """One pass of the network as it is."""
        batch = batch.to(self.network.device)
        found = Intact(batch, batch.input_ids)
        with self._recorded(found):
            found.hidden = self.hidden(batch)
        return found

    @abstractmethod
    def without(
        self, intact: Intact, layer: int, units: Sequence[Unit], fill: Fill
    ) -> Float[Tensor, "row token hidden"]:
        """Last hidden states without each unit of a layer in turn, what stands in for it in its place.

        Row u * batch + b is row b of the batch without unit u.
        """

    def hidden(self, batch: TextBatch) -> Float[Tensor, "row token hidden"]:
        hidden = self.network(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, **self._options
        ).last_hidden_state
        assert isinstance(hidden, Tensor)
        return hidden

    def columns(self, unit: Unit) -> Tensor:
        """Which inputs of W_O belong to a unit."""
        width = in_features(self.projections[unit.layer]) // self.heads[unit.layer]
        return torch.cat([torch.arange(place * width, (place + 1) * width) for place in unit.places])

    def moved(self, intact: Intact, unit: Unit, fill: Fill) -> Float[Tensor, "batch token hidden"]:
        """How the result of W_O changes: (fill - z_h) W_O,h."""
        columns = self.columns(unit)
        context = intact.context[unit.layer][..., columns]
        change = -context if fill is None else fill[..., columns].to(context) - context
        return change @ weight_in_out(self.projections[unit.layer])[columns]

    @contextmanager
    def _recorded(self, found: Intact) -> Iterator[None]:
        with ExitStack() as stack:
            for projection in _each_once(self.projections):
                stack.callback(projection.register_forward_hook(_keep_projection(found)).remove)
            for modules, given in (([site.module for site in self.sites], found.attended), (self.layers, found.layers)):
                for module in _each_once(modules):
                    stack.callback(module.register_forward_hook(_keep_output(given)).remove)
            yield


class UpperRunner(Runner):
    """Runs what stands above the ablated heads only."""

    def __init__(self, network: PreTrainedModel) -> None:
        super().__init__(network)
        pairs = zip(self.projections, self.sites, strict=True)
        self._holds = [_is_inside(projection, site) for projection, site in pairs]

    def without(self, intact: Intact, layer: int, units: Sequence[Unit], fill: Fill) -> Tensor:
        changed = torch.cat([intact.projected[layer] + self.moved(intact, unit, fill) for unit in units])
        return self._above(intact, layer, changed)

    def is_exact(self, intact: Intact) -> bool:
        """Whether the network gives the same if nothing is ablated: not where it reads more than its layers give."""
        real = intact.batch.attention_mask.bool().repeat(2, 1)
        whole = intact.hidden.repeat(2, 1, 1)[real]
        if not whole.isfinite().all():
            return False
        # rounding depends on the size of the batch
        tolerance = min(1e3 * torch.finfo(whole.dtype).eps, 0.1) * float(whole.abs().max())
        for layer, projected in enumerate(intact.projected):
            again = self._above(intact, layer, projected.repeat(2, 1, 1))[real]
            if not torch.allclose(again, whole, rtol=0, atol=tolerance):
                return False
        return True

    def _above(self, intact: Intact, layer: int, changed: Tensor) -> Tensor:
        copies = len(changed) // len(intact.batch)
        below = _copied(intact.layers[layer - 1], copies, len(intact.batch)) if layer else None
        with ExitStack() as stack:
            for module in self.layers[:layer]:
                stack.enter_context(giving(module, below))
            attended = _copied(intact.attended[layer], copies, len(intact.batch))
            if self._holds[layer]:
                attended = (changed, *attended[1:]) if isinstance(attended, tuple) else changed
            else:
                stack.enter_context(giving(self.projections[layer], changed))
            stack.enter_context(giving(self.sites[layer].module, attended))
            return self.hidden(copied(intact.batch, copies))


class WholeRunner(Runner):
    """Runs all layers each time: gates silence the heads, and what stands in for them is added behind W_O."""

    def without(self, intact: Intact, layer: int, units: Sequence[Unit], fill: Fill) -> Tensor:
        plan = plan_now(self.network)
        gates = torch.ones(len(units), len(self.sites), plan.heads)
        for place, unit in enumerate(units):
            gates[place, layer, list(unit.heads)] = 0
        size = len(intact.batch)
        with ExitStack() as stack:
            stack.enter_context(capture(self.network, gates=gates.repeat_interleave(size, dim=0), way="fast"))
            if fill is not None:
                added = torch.cat([self._stand_in(intact, unit, fill) for unit in units])
                stack.enter_context(self._adding(layer, added))
            return self.hidden(copied(intact.batch, len(units)))

    def _stand_in(self, intact: Intact, unit: Unit, fill: Tensor) -> Tensor:
        columns = self.columns(unit)
        added = fill[..., columns].to(intact.hidden) @ weight_in_out(self.projections[unit.layer])[columns]
        return added.expand(*intact.batch.input_ids.shape, -1)

    @contextmanager
    def _adding(self, layer: int, added: Tensor) -> Iterator[None]:
        """To the result of W_O in that layer, which may be one of several that a module serves."""
        projection = self.projections[layer]
        turn = sum(other is projection for other in self.projections[:layer])
        calls = iter(range(len(self.projections)))
        handle = projection.register_forward_hook(
            lambda _module, _inputs, out: out + added if next(calls) == turn else None
        )
        try:
            yield
        finally:
            handle.remove()


@torch.no_grad()
def runner_of(network: PreTrainedModel, batch: TextBatch) -> Runner:
    """The cheaper way where it gives the same, else the other; a few rows of `batch` tell."""
    if layers_of(network):
        upper = UpperRunner(network)
        if upper.is_exact(upper.intact(batch.take(torch.arange(min(2, len(batch)))))):
            return upper
    return WholeRunner(network)


def copied(batch: TextBatch, copies: int) -> TextBatch:
    """The whole batch several times, one behind the other."""
    return batch.take(torch.arange(len(batch), device=batch.example.device).repeat(copies))


def weight_in_out(projection: nn.Module) -> Float[Tensor, "in hidden"]:
    weight = projection.weight
    assert isinstance(weight, Tensor)
    return weight if is_transposed(projection) else weight.T


def in_features(projection: nn.Module) -> int:
    return int(weight_in_out(projection).shape[0])


def _keep_output(given: list[Any]) -> Any:
    return lambda _module, _inputs, output: given.append(output)


def _keep_projection(found: Intact) -> Any:
    def keep(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        found.context.append(inputs[0])
        found.projected.append(output)

    return keep


def _is_inside(projection: nn.Module, site: Site) -> bool:
    return any(part is projection for part in site.module.modules())


def _copied(output: Any, copies: int, size: int) -> Any:
    """Every tensor of a layer's output for several copies of the batch; what has no batch axis stays as it is."""
    if isinstance(output, Tensor):
        return output.repeat(copies, *[1] * (output.dim() - 1)) if output.dim() and len(output) == size else output
    if isinstance(output, tuple):
        return tuple(_copied(part, copies, size) for part in output)
    return output


def _each_once(modules: Sequence[nn.Module]) -> list[nn.Module]:
    return list({id(module): module for module in modules}.values())
