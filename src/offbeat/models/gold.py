"""Gold answers as training material: a task's prompts with their answers, encoded, drawn and laid out in batches.

Invariant: validation texts and training texts are told apart by a hash of the text, so neither sample contains a
text of the other; held-out prompts are in neither, since a task never draws them. Knows no model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice

import torch
from torch import Tensor

from offbeat.errors import TaskError
from offbeat.models.tokens import Tokenizer, decode_response, encode_prompt, encode_response
from offbeat.ports import Task
from offbeat.records import Prompt

FIRST_PROMPT = 1 << 40
"""Where in the task's endless source warm start begins to draw: far from where a run does."""
VALIDATION_SHARE = 4
"""One text in so many belongs to validation."""
PATIENCE = 4096
"""Prompts drawn in vain before the task is called unusable."""
WORTHWHILE_PADDING = 384
"""Tokens of padding in a micro-batch that are cheaper than another pass over the model."""
IGNORED = -100
"""The target of a position that predicts no response token."""


@dataclass(frozen=True, slots=True)
class Example:
    """Prompt ids [P] and gold response ids [L], EOS included. `said` [L] is False at tokens that are given to the
    policy within an episode: context, nothing to learn. None: it says them all."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    said: tuple[bool, ...] | None = None

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)

    @property
    def learned(self) -> int:
        """Response tokens to learn from."""
        return len(self.response_ids) if self.said is None else sum(self.said)


@dataclass(frozen=True, slots=True)
class Limits:
    """What fits a rollout, in tokens: prompt + response, and response alone."""

    context: int
    response: int


@dataclass(frozen=True, slots=True)
class Padded:
    """Examples side by side: inputs [B, T] right-padded, targets [B, T] with IGNORED wherever no response token is
    predicted. Right padding needs no mask: under causal attention no real token sees it.
    """

    inputs: Tensor
    targets: Tensor


class GoldAnswers:
    """Examples of a task that a policy could give: encodable without loss and within the limits."""

    def __init__(self, task: Task, tokenizer: Tokenizer, limits: Limits) -> None:
        self._task = task
        self._tokenizer = tokenizer
        self._limits = limits

    def training(self) -> Iterator[Example]:
        """Endless examples. Raises TaskError after PATIENCE prompts without one."""
        barren = 0
        for prompt in self._source():
            example = None if _for_validation(prompt.text) else self.encode(prompt)
            barren = 0 if example else barren + 1
            if example:
                yield example
            elif barren >= PATIENCE:
                raise TaskError(
                    f"task {self._task.name}: none of {PATIENCE} prompts can be learned from within rollout.context ="
                    f" {self._limits.context} and rollout.max_new_tokens = {self._limits.response} in the model's"
                    " characters; raise the limits or give a model.path"
                )

    def validation(self, size: int) -> tuple[list[Example], int]:
        """Examples among `size` validation prompts, and how many prompts they were drawn from: what cannot be
        answered at all counts as missed. Fewer prompts where the task is small; TaskError where it has none.
        """
        drawn = islice(self._source(), max(PATIENCE, VALIDATION_SHARE * size))
        prompts = list(islice((prompt for prompt in drawn if _for_validation(prompt.text)), size))
        if not prompts:
            raise TaskError(
                f"task {self._task.name}: too few different prompts to keep some for validation; add prompts"
            )
        return [example for example in map(self.encode, prompts) if example], len(prompts)

    def encode(self, prompt: Prompt) -> Example | None:
        """The example of a prompt; None where its gold answer is beyond the tokenizer or the limits."""
        prompt_ids = tuple(encode_prompt(self._tokenizer, prompt.text))
        response_ids, said = self._response(prompt)
        example = Example(prompt_ids, response_ids, said)
        fits = len(response_ids) <= self._limits.response and len(example) <= self._limits.context
        if not fits or decode_response(self._tokenizer, response_ids) != prompt.answer:
            return None
        return example

    def _response(self, prompt: Prompt) -> tuple[tuple[int, ...], tuple[bool, ...] | None]:
        """Ids of the gold response and, for one in parts, which of them the policy says."""
        if not hasattr(self._task, "parts"):
            return tuple(encode_response(self._tokenizer, prompt.answer)), None
        *before, (last, says_last) = self._task.parts(prompt)
        ids, said = list[int](), list[bool]()
        for text, says in before:
            ids += self._tokenizer.encode(text, add_special_tokens=False)
            said += [says] * (len(ids) - len(said))
        ids += encode_response(self._tokenizer, last)
        return tuple(ids), tuple(said + [says_last] * (len(ids) - len(said)))

    def _source(self) -> Iterator[Prompt]:
        return (self._task.prompt(prompt_id) for prompt_id in count(FIRST_PROMPT))


def micro_batches(examples: Iterable[Example], tokens: int) -> list[list[Example]]:
    """Split examples by length: each part holds at most `tokens` padded tokens (or one example), and at most
    WORTHWHILE_PADDING of them are padding, about what a forward and backward pass of its own would cost.
    """
    parts: list[list[Example]] = []
    longest = padding = 0
    for example in sorted(examples, key=len, reverse=True):
        padding += longest - len(example)
        if not parts or padding > WORTHWHILE_PADDING or longest * (len(parts[-1]) + 1) > tokens:
            parts.append([])
            longest, padding = len(example), 0
        parts[-1].append(example)
    return parts


def pad(examples: list[Example]) -> Padded:
    """Inputs and next-token targets of some examples; the last token is a target only."""
    width = max(len(example) for example in examples) - 1
    inputs = torch.zeros(len(examples), width, dtype=torch.long)
    targets = torch.full((len(examples), width), IGNORED, dtype=torch.long)
    for row, example in enumerate(examples):
        ids = torch.tensor(example.prompt_ids + example.response_ids)
        inputs[row, : len(ids) - 1] = ids[:-1]
        first = len(example.prompt_ids) - 1
        targets[row, first : len(ids) - 1] = ids[first + 1 :]
        if example.said is not None:
            targets[row, first : len(ids) - 1][~torch.tensor(example.said)] = IGNORED
    return Padded(inputs, targets)


def _for_validation(text: str) -> bool:
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8, person=b"warm start").digest()
    return int.from_bytes(digest, "big") % VALIDATION_SHARE == 0
