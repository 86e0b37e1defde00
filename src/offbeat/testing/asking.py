"""How a law asks a generator: submit, step until all is answered once, and what must be refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from offbeat.ports import Completion, Generator, Request


def finish(generator: Generator, requests: Sequence[Request], law: str) -> dict[int, Completion]:
    """Submit, step until all are answered, return completions by id. Each must be answered exactly once."""
    for request in requests:
        generator.submit(request)
    return answered(generator, requests, law)


def answered(generator: Generator, requests: Sequence[Request], law: str) -> dict[int, Completion]:
    """Step until these requests, the only ones there, are all answered, each exactly once."""
    answers: dict[int, Completion] = {}
    patience = 16 + 4 * sum(request.max_new_tokens + 1 for request in requests)
    while generator.decoded():
        patience -= 1
        assert patience > 0, f"{law}: requests {sorted(generator.decoded())} are never answered"
        for done in generator.step():
            assert done.request_id not in answers, f"{law}: request {done.request_id} is answered twice"
            answers[done.request_id] = done
    asked = sorted(request.request_id for request in requests)
    assert sorted(answers) == asked, f"{law}: asked {asked}, answered {sorted(answers)}"
    assert generator.step() == [], f"{law}: an idle step returns completions"
    return answers


def refuses(
    error: type[Exception] | tuple[type[Exception], ...], act: Callable[[], object], law: str, what: str
) -> None:
    """`act` must raise one of these errors."""
    try:
        act()
    except error:
        return
    raise AssertionError(f"{law}: {what} is accepted")
