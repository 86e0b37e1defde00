"""The audited policy's own process: asks it for prices, one line of JSON in, one line out. *Whatever it does stays in
here.*

Started by `candidate` with limits on memory and processor time. The policy's own prints go to standard error.
`module:name` is a function of an observation, or a class of which each firm of each market gets an instance of its own
(its memory is then one market's). It knows nothing of markets.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

Price = Callable[[dict[str, Any]], Any]


def load(target: str) -> Any:
    """The object `module:name`."""
    module, _, name = target.partition(":")
    sys.path.insert(0, os.getcwd())
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{target} is {type(found).__name__}, not a function or class")
    return found


def asked(policy: Price, observation: dict[str, Any]) -> float:
    """The policy's price as a float; TypeError where it is no number."""
    price = policy(observation)
    if isinstance(price, str | bytes) or type(price).__name__ in ("bool", "bool_"):  # numpy's, too
        raise TypeError(f"gave {price!r}, not a number")
    return float(price)


def told(error: BaseException) -> str:
    """The error in one line, whatever its own words do."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return type(error).__name__


def main() -> None:
    """Serve until standard input ends."""
    target, memory, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the policy prints is no answer
    for limit, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (most, most))
    policies: dict[str, Price] = {}

    def answer(request: list[dict[str, Any]]) -> list[float]:
        prices = []
        for observation in request:
            key = observation.pop("key")
            if observation["first"] or key not in policies:
                policies[key] = found() if isinstance(found, type) else found
            prices.append(asked(policies[key], observation))
        return prices

    def say(what: dict[str, Any]) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    try:
        found = load(target)
        say({"ready": True})
    except BaseException as error:  # the user's code may raise anything at import
        say({"unusable": told(error)})
        return
    for text in sys.stdin:
        try:
            say({"prices": answer(json.loads(text))})
        except BaseException as error:  # and whenever it is called
            say({"raised": told(error)})


if __name__ == "__main__":
    main()
