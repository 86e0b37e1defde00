"""Forward and backward through a small Llama, Qwen2 or Qwen3 model over a tree of tokens, in compiled loops.

Same function as `transformers` has, in float32 (tested against it, values and gradients); no padding, prompts once a
group, no graph. The model stays the Hugging Face module: its parameters go in, their gradients come out through
autograd. Invariant: one pass at a time; going back through a pass that a later one overwrote is refused.
Knows no objective, no batch and no optimizer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from offbeat.compiled import add_bias, gate
from offbeat.errors import InvariantError
from offbeat.learner import pass_kernels as kernels
from offbeat.learner.layout import Tree
from offbeat.learner.matmul import matmul_precision

CLASSES = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
ROPE = {"default", "linear", "llama3"}
"""Rotary frequencies that do not depend on how long the text is."""
ROLES = (
    "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.o_proj.weight",
    "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
    "input_layernorm.weight", "post_attention_layernorm.weight",
    "self_attn.q_norm.weight", "self_attn.k_norm.weight",
    "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias", "self_attn.o_proj.bias",
    "mlp.gate_proj.bias", "mlp.up_proj.bias", "mlp.down_proj.bias",
)  # fmt: skip
"""A decoder layer's parameters, in the order in which they go in and their gradients come out."""
Ints = NDArray[np.int64]


def can_pass(model: Any) -> bool:
    """Whether `CompiledPass` computes exactly this model: class, parameters, activation, rotation, float32."""
    config = model.config
    if type(model).__name__ not in CLASSES or getattr(config, "hidden_act", "silu") != "silu":
        return False
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    rope = getattr(config, "rope_parameters", None) or {}
    if kinds != {"full_attention"} or rope.get("rope_type", "default") not in ROPE:
        return False
    if rope.get("partial_rotary_factor") not in (None, 1.0):
        return False
    known = {name for layer in model.model.layers for name in _names(layer)}
    ours = 2 + len(model.model.layers) * len(known) + (not config.tie_word_embeddings)
    given = list(model.parameters())
    return len(given) == ours and all(p.dtype == torch.float32 and p.device.type == "cpu" for p in given)


def _names(layer: nn.Module) -> list[str]:
    there = dict(layer.named_parameters())
    return [name for name in ROLES if name in there]


class Room:
    """Arrays by name that grow and are used again; what was there before is left there."""

    def __init__(self) -> None:
        self._all: dict[str, Tensor] = {}

    def rows(self, name: str, count: int, *widths: int) -> Tensor:
        size = count
        for width in widths:
            size *= width
        if name not in self._all or self._all[name].numel() < size:
            self._all[name] = torch.empty(size * 5 // 4)
        return self._all[name][:size].view(count, *widths)

    def zeros(self, name: str, count: int, *widths: int) -> Tensor:
        return self.rows(name, count, *widths).zero_()


class CompiledPass:
    """Logits of a model's chosen token rows, with a backward pass of its own."""

    def __init__(self, model: Any) -> None:
        """`model` must be one that `can_pass`."""
        config, first = model.config, model.model.layers[0].self_attn
        self.eps = float(config.rms_norm_eps)
        self.dim = int(first.head_dim)
        self.heads = first.q_proj.weight.shape[0] // self.dim
        self.parts = self.heads + first.k_proj.weight.shape[0] // self.dim
        self.parameters: list[nn.Parameter] = []
        self._layers: list[dict[str, int]] = []
        for layer in model.model.layers:
            there = dict(layer.named_parameters())
            names = _names(layer)
            self._layers.append({name: len(self.parameters) + i for i, name in enumerate(names)})
            self.parameters += [there[name] for name in names]
        self._embed, self._last = len(self.parameters), len(self.parameters) + 1
        self.parameters += [model.model.embed_tokens.weight, model.model.norm.weight]
        self._head = self._embed
        if not config.tie_word_embeddings:
            self._head = len(self.parameters)
            self.parameters.append(model.lm_head.weight)
        self._rotary = model.model.rotary_emb
        self._angles = (torch.empty(0, 0), torch.empty(0, 0))
        self.room = Room()
        self.passes = 0

    def logits(self, tree: Tree, predicting: Tensor) -> Tensor:
        """Logits [M, V] at the rows `predicting` [M] of the tree; they carry the gradient."""
        logits: Tensor = _Pass.apply(self, tree, predicting.numpy(), *self.parameters)  # type: ignore[no-untyped-call]
        return logits

    def forward(self, tree: Tree, chosen: Ints, weights: tuple[Tensor, ...]) -> Tensor:
        self.passes += 1
        room, count = self.room, len(tree.tokens)
        x = room.rows("x0", count, weights[self._embed].shape[1])
        kernels.gather_rows(weights[self._embed].numpy(), tree.tokens, x.numpy())
        turns = self._turns(tree.positions)
        for index, layer in enumerate(self._layers):
            x = self._layer_forward(index, {name: weights[i] for name, i in layer.items()}, tree, turns, x)
        picked = room.rows("picked", len(chosen), x.shape[1])
        kernels.gather_rows(x.numpy(), chosen, picked.numpy())
        unit = room.rows("picked unit", *picked.shape)
        scales = room.rows("picked scales", len(chosen))
        kernels.norm(picked.numpy(), weights[self._last].numpy(), self.eps, unit.numpy(), scales.numpy())
        return unit @ weights[self._head].T

    def backward(self, tree: Tree, chosen: Ints, weights: tuple[Tensor, ...], d_logits: Tensor) -> list[Tensor]:
        """Gradients in the order of `parameters`."""
        room, count = self.room, len(tree.tokens)
        grads = [torch.zeros_like(w) for w in weights]
        unit = room.rows("picked unit", len(chosen), weights[self._embed].shape[1])
        grads[self._head] += d_logits.T @ unit
        d_unit = d_logits @ weights[self._head]
        picked, scales = room.rows("picked", *unit.shape), room.rows("picked scales", len(chosen))
        d_picked = room.zeros("d picked", *unit.shape)
        gain = weights[self._last].numpy()
        kernels.norm_back(
            d_unit.numpy(), picked.numpy(), gain, scales.numpy(), d_picked.numpy(), grads[self._last].numpy()
        )
        d_x = room.zeros("d x", count, unit.shape[1])
        kernels.scatter_rows(d_picked.numpy(), chosen, d_x.numpy())
        turns = self._turns(tree.positions)
        for index in reversed(range(len(self._layers))):
            layer = self._layers[index]
            own = {name: weights[i] for name, i in layer.items()}
            self._layer_backward(index, own, tree, turns, d_x, {name: grads[i] for name, i in layer.items()})
        kernels.scatter_rows(d_x.numpy(), tree.tokens, grads[self._embed].numpy())
        return grads

    def _layer_forward(
        self, index: int, w: dict[str, Tensor], tree: Tree, turns: tuple[Tensor, Tensor], x: Tensor
    ) -> Tensor:
        room, (count, width) = self.room, x.shape
        qkv_weight, qkv_bias, gains, both_weight, both_bias = _joined(w, self.heads, self.parts)
        unit, scales = room.rows(f"unit {index}", count, width), room.rows(f"scales {index}", count)
        kernels.norm(x.numpy(), w["input_layernorm.weight"].numpy(), self.eps, unit.numpy(), scales.numpy())
        qkv = torch.mm(unit, qkv_weight.T, out=room.rows(f"qkv {index}", count, len(qkv_weight)))
        _add(qkv, qkv_bias)
        qk, qk_scales = (
            self._rows(index, "qk", count, self.parts, self.dim),
            self._rows(index, "qk scales", count, self.parts),
        )
        kernels.turn(
            qkv.numpy(), gains.numpy(), self.eps, turns[0].numpy(), turns[1].numpy(), qk.numpy(), qk_scales.numpy()
        )
        out, logs = self._rows(index, "out", count, self.heads, self.dim), self._rows(index, "logs", count, self.heads)
        kernels.attend(qk.numpy(), qkv.numpy(), self.heads, tree.root, tree.stem, tree.begin, out.numpy(), logs.numpy())
        middle = room.rows(f"middle {index}", count, width)
        torch.addmm(x, out.view(count, -1), w["self_attn.o_proj.weight"].T, out=middle)
        _add(middle, w.get("self_attn.o_proj.bias"))
        unit, scales = room.rows(f"unit' {index}", count, width), room.rows(f"scales' {index}", count)
        gain = w["post_attention_layernorm.weight"].numpy()
        kernels.norm(middle.numpy(), gain, self.eps, unit.numpy(), scales.numpy())
        both = torch.mm(unit, both_weight.T, out=room.rows(f"both {index}", count, len(both_weight)))
        _add(both, both_bias)
        hidden = room.rows(f"hidden {index}", count, len(both_weight) // 2)
        gate(both.numpy(), hidden.numpy())
        onward = room.rows(f"x{index + 1}", count, width)
        torch.addmm(middle, hidden, w["mlp.down_proj.weight"].T, out=onward)
        _add(onward, w.get("mlp.down_proj.bias"))
        return onward

    def _layer_backward(
        self, index: int, w: dict[str, Tensor], tree: Tree, turns: tuple[Tensor, Tensor], d_x: Tensor,
        d: dict[str, Tensor],
    ) -> None:  # fmt: skip
        """`d_x` comes as the gradient behind the layer and leaves as the one before it; `d` grows."""
        room, (count, width) = self.room, d_x.shape
        qkv_weight, _, gains, both_weight, _ = _joined(w, self.heads, self.parts)
        hidden_width = len(both_weight) // 2
        hidden, both = (
            self._rows(index, "hidden", count, hidden_width),
            self._rows(index, "both", count, 2 * hidden_width),
        )
        d["mlp.down_proj.weight"] += d_x.T @ hidden
        _sum(d, "mlp.down_proj.bias", d_x)
        d_hidden = torch.mm(d_x, w["mlp.down_proj.weight"], out=room.rows("d hidden", count, hidden_width))
        d_both = room.rows("d both", count, 2 * hidden_width)
        kernels.gate_back(d_hidden.numpy(), both.numpy(), d_both.numpy())
        unit, scales = self._rows(index, "unit'", count, width), self._rows(index, "scales'", count)
        _split(d, ("mlp.gate_proj", "mlp.up_proj"), d_both, unit)
        d_unit = torch.mm(d_both, both_weight, out=room.rows("d unit", count, width))
        middle = self._rows(index, "middle", count, width)
        kernels.norm_back(
            d_unit.numpy(), middle.numpy(), w["post_attention_layernorm.weight"].numpy(), scales.numpy(),
            d_x.numpy(), d["post_attention_layernorm.weight"].numpy(),
        )  # fmt: skip
        out, logs = self._rows(index, "out", count, self.heads, self.dim), self._rows(index, "logs", count, self.heads)
        d["self_attn.o_proj.weight"] += d_x.T @ out.view(count, -1)
        _sum(d, "self_attn.o_proj.bias", d_x)
        d_out = torch.mm(d_x, w["self_attn.o_proj.weight"], out=room.rows("d out", count, self.heads * self.dim))
        qk, qkv = self._rows(index, "qk", count, self.parts, self.dim), self._rows(index, "qkv", count, len(qkv_weight))
        d_qk, d_qkv = room.zeros("d qk", *qk.shape), room.zeros("d qkv", *qkv.shape)
        kernels.attend_back(
            d_out.view(out.shape).numpy(), qk.numpy(), qkv.numpy(), self.heads, tree.root, tree.stem, tree.begin,
            out.numpy(), logs.numpy(), d_qk.numpy(), d_qkv.numpy(),
        )  # fmt: skip
        d_gains = torch.zeros_like(gains)
        kernels.turn_back(
            d_qk.numpy(), qkv.numpy(), gains.numpy(), turns[0].numpy(), turns[1].numpy(),
            self._rows(index, "qk scales", count, self.parts).numpy(), d_qkv.numpy(), d_gains.numpy(),
        )  # fmt: skip
        if len(gains):
            d["self_attn.q_norm.weight"] += d_gains[: self.heads].sum(0)
            d["self_attn.k_norm.weight"] += d_gains[self.heads :].sum(0)
        unit, scales = self._rows(index, "unit", count, width), self._rows(index, "scales", count)
        _split(d, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), d_qkv, unit)
        d_unit = torch.mm(d_qkv, qkv_weight, out=room.rows("d unit", count, width))
        kernels.norm_back(
            d_unit.numpy(), room.rows(f"x{index}", count, width).numpy(), w["input_layernorm.weight"].numpy(),
            scales.numpy(), d_x.numpy(), d["input_layernorm.weight"].numpy(),
        )  # fmt: skip

    def _rows(self, index: int, name: str, count: int, *widths: int) -> Tensor:
        return self.room.rows(f"{name} {index}", count, *widths)

    def _turns(self, positions: Ints) -> tuple[Tensor, Tensor]:
        """Cosine and sine [N, dim / 2] as the model's own rotary embedding gives them."""
        longest = int(positions.max()) + 1
        if longest > len(self._angles[0]):
            with matmul_precision("float32"):  # they are kept, for passes of any precision
                cosine, sine = self._rotary(torch.empty(1), torch.arange(2 * longest).unsqueeze(0))
            self._angles = tuple(each[0, :, : self.dim // 2].contiguous() for each in (cosine, sine))
        index = torch.from_numpy(positions)
        return self._angles[0][index], self._angles[1][index]


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, owner: CompiledPass, tree: Tree, chosen: Ints, *weights: Tensor) -> Tensor:
        logits = owner.forward(tree, chosen, tuple(w.detach() for w in weights))
        ctx.owner, ctx.tree, ctx.chosen, ctx.number = owner, tree, chosen, owner.passes
        ctx.save_for_backward(*weights)
        return logits

    @staticmethod
    def backward(ctx: Any, d_logits: Tensor) -> tuple[Tensor | None, ...]:
        owner: CompiledPass = ctx.owner
        if owner.passes != ctx.number:
            raise InvariantError("a backward pass came after a later forward pass; go back first")
        weights = tuple(w.detach() for w in ctx.saved_tensors)
        return (None, None, None, *owner.backward(ctx.tree, ctx.chosen, weights, d_logits.contiguous()))


def _joined(
    w: dict[str, Tensor], heads: int, parts: int
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None]:
    """Matrices that share their input as one, their biases (None: the model has none), query and key gains."""

    def cat(part: str, *names: str) -> Tensor:
        return torch.cat([w[f"{name}.{part}"] for name in names])

    qkv, both = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")
    gains = torch.empty(0, 0)
    if "self_attn.q_norm.weight" in w:
        q, k = w["self_attn.q_norm.weight"], w["self_attn.k_norm.weight"]
        gains = torch.cat([q.expand(heads, -1), k.expand(parts - heads, -1)])
    qkv_bias = cat("bias", *qkv) if f"{qkv[0]}.bias" in w else None
    both_bias = cat("bias", *both) if f"{both[0]}.bias" in w else None
    return cat("weight", *qkv), qkv_bias, gains, cat("weight", *both), both_bias


def _add(x: Tensor, bias: Tensor | None) -> None:
    if bias is not None:
        add_bias(x.numpy(), bias.numpy())


def _sum(d: dict[str, Tensor], name: str, d_out: Tensor) -> None:
    if name in d:
        d[name] += d_out.sum(0)


def _split(d: dict[str, Tensor], names: tuple[str, ...], d_out: Tensor, unit: Tensor) -> None:
    """Gradients of the joined matrices and biases, each its own rows."""
    joined, first = d_out.T @ unit, 0
    for name in names:
        own = d[f"{name}.weight"]
        own += joined[first : first + len(own)]
        _sum(d, f"{name}.bias", d_out[:, first : first + len(own)])
        first += len(own)
