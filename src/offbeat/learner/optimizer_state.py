"""An optimizer's state dict as named tensors and a JSON text, and back: what safetensors can hold, no pickle.

Works for whatever `state_dict` an optimizer returns, as long as it is made of tensors, numbers, strings, lists,
tuples and dicts. Tensors are named after the parameter they belong to; those of a sharded policy are shards. Knows no
file and no learning rule.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.errors import InvariantError, WeightsError
from offbeat.learner.sharding import is_shard, like, local, rows


def parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Names of the optimizer's parameters in the order in which its state dict numbers them."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]


def encode_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], str]:
    """Tensors by name, e.g. "state/model.norm.weight/exp_avg", and the JSON of everything else.

    Raises InvariantError where the state holds something that is neither tensor nor plain value.
    """
    names = parameter_names(model, optimizer)
    state = optimizer.state_dict()
    state["state"] = {names[index]: entry for index, entry in state["state"].items()}
    tensors: dict[str, Tensor] = {}

    def encode(value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            tensors[path] = value.detach() if is_shard(value) else value.detach().contiguous()
            return {"tensor": path}
        if isinstance(value, dict):
            return {"dict": [[key, encode(entry, f"{path}/{key}")] for key, entry in value.items()]}
        if isinstance(value, list | tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [encode(entry, f"{path}/{index}") for index, entry in enumerate(value)]}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise InvariantError(f"optimizer state {path} is a {type(value).__name__}: it cannot be stored without pickle")

    entries = [[key, encode(entry, key)] for key, entry in state.items()]
    return tensors, json.dumps({"parameters": names, "state": {"dict": entries}})


def decode_state(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], text: str) -> None:
    """Load what `encode_state` returned into `optimizer`. Raises WeightsError where it does not fit."""
    try:
        stored = json.loads(text)
        names = parameter_names(model, optimizer)
        if stored["parameters"] != names:
            raise WeightsError("optimizer state belongs to other parameters than the model's")
        state = _decoder(tensors)(stored["state"])
        parameters = dict(model.named_parameters())
        for name, entry in state["state"].items():
            _check_shapes(name, entry, parameters[name].shape)
            state["state"][name] = {key: _placed(value, parameters[name]) for key, value in entry.items()}
        state["state"] = {names.index(name): entry for name, entry in state["state"].items()}
        optimizer.load_state_dict(state)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WeightsError(f"optimizer state does not fit this optimizer ({type(error).__name__}: {error})") from error


def _placed(value: Any, parameter: Tensor) -> Any:
    """An entry of a parameter's state as the parameter is: sharded or whole."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape or is_shard(value) == is_shard(parameter):
        return value
    return like(local(value)[rows(parameter)].clone(), parameter)


def _decoder(tensors: Mapping[str, Tensor]) -> Callable[[Any], Any]:
    def decode(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "tensor":
            return tensors[content].clone()
        if kind == "dict":
            return {key: decode(entry) for key, entry in content}
        if kind == "tuple":
            return tuple(decode(entry) for entry in content)
        return [decode(entry) for entry in content]

    return decode


def _check_shapes(name: str, entry: Mapping[str, Any], shape: torch.Size) -> None:
    for key, value in entry.items():
        if isinstance(value, Tensor) and value.dim() == len(shape) and value.shape != shape:
            raise WeightsError(f"optimizer state {key} of {name} has shape {tuple(value.shape)}, not {tuple(shape)}")
