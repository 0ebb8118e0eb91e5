"""Run a network again from the layer on that has changed: what stands below gives what it gave the first time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.arch import attention_sites


class UpperLayers:
    """Hidden states of a network for inputs that come again and again; `run` with `below` = 0 must come first.

    Keeps what every layer gave for every input. Where layers cannot be told apart, or a network of which the lower ones
    are left out gives something else, all are run each time.
    """

    def __init__(self, network: PreTrainedModel) -> None:
        self.network = network
        self.layers = layers_of(network)
        self._given: dict[int, list[Any]] = {}  # by input, what each layer gave

    def run(self, number: int, below: int, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Last hidden states [batch, token, hidden] of input `number`, whose layers up to `below` are as before."""
        if not self.layers:
            return self._hidden(input_ids, attention_mask)
        if number not in self._given:
            with self._recorded(number):
                hidden = self._hidden(input_ids, attention_mask)
            with self._left_out(number, len(self.layers) - 1):
                again = self._hidden(input_ids, attention_mask)
            real = attention_mask.bool()  # where there is padding, some families give NaN, which equals nothing
            if not again[real].equal(hidden[real]):
                self.layers = []
            return hidden
        with self._left_out(number, below):
            return self._hidden(input_ids, attention_mask)

    def _hidden(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.network(input_ids, attention_mask=attention_mask).last_hidden_state
        assert isinstance(hidden, Tensor)
        return hidden

    @contextmanager
    def _recorded(self, number: int) -> Iterator[None]:
        given: list[Any] = []
        with ExitStack() as stack:
            for layer in self.layers:
                handle = layer.register_forward_hook(lambda _layer, _inputs, output: given.append(output))
                stack.callback(handle.remove)
            yield
        self._given[number] = given

    @contextmanager
    def _left_out(self, number: int, below: int) -> Iterator[None]:
        with ExitStack() as stack:
            for layer, output in zip(self.layers[:below], self._given[number], strict=False):
                stack.enter_context(giving(layer, output))
            yield


@contextmanager
def giving(module: nn.Module, output: Any) -> Iterator[None]:
    """Within this context `module` computes nothing and gives `output`, whatever it is called with."""
    own = module.__dict__.get("forward")
    module.forward = partial(_give, output)
    try:
        yield
    finally:
        _put_back(module, own)


def layers_of(network: PreTrainedModel) -> list[nn.Module]:
    """The module of each layer, in order; none where one serves several layers, or something else stands there."""
    sites = attention_sites(network)
    found = [_layer_of(network, site.name) for site in sites]
    if any(site.is_shared or site.stack != sites[0].stack for site in sites) or None in found:
        return []
    layers = [layer for layer in found if layer is not None]
    return layers if len({id(layer) for layer in layers}) == len(layers) else []


def _give(output: Any, *_: Any, **__: Any) -> Any:
    return output


def _put_back(layer: nn.Module, own: Any) -> None:
    if own is None:
        del layer.forward
    else:
        layer.forward = own


def _layer_of(network: PreTrainedModel, name: str) -> nn.Module | None:
    """The outermost entry of a list of modules that holds the module of this name."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        if isinstance(network.get_submodule(".".join(parts[:end])), nn.ModuleList):
            return network.get_submodule(".".join(parts[: end + 1]))
    return None
