"""Print the table of docs/objectives.md: `python -m offbeat.objectives`."""

from __future__ import annotations

from offbeat.objectives import OBJECTIVES, Objective

ON_POLICY = {
    "token": "A ∇log target, / tokens",
    "sequence": "A ∇log target, / (L × trajectories)",
    "constant": "A ∇log target, / (longest × trajectories)",
}


def parameters(name: str, kind: type[Objective]) -> str:
    found = kind.model_validate({"name": name}).model_dump()
    return ", ".join(f"`{key} = {value}`" for key, value in found.items() if key != "name") or "none"


def row(name: str, kind: type[Objective]) -> str:
    cost = " + ".join(
        words
        for words, pays in (
            ("proximal pass¹", kind.USES_PROXIMAL),
            ("survey pass²", kind.SURVEYS),
        )
        if pays
    )
    return (
        f"| `{name}` | {kind.TITLE}: {kind.FORMULA} | {ON_POLICY[kind.AGGREGATION]} | {parameters(name, kind)} |"
        f" {kind.SOURCE} | {kind.READING}{'; ' if kind.READING and cost else ''}{cost} |"
    )


def table() -> str:
    """A row an objective: name, surrogate of a token, gradient where all ratios are 1, settings, source, reading."""
    columns = ("`learner.objective`", "J of a token, to be maximised", "gradient at ratio 1", "own settings")
    head = f"| {' | '.join((*columns, 'source', 'reading and cost'))} |"
    return "\n".join([head, "|---|---|---|---|---|---|", *(row(*item) for item in OBJECTIVES.items())])


if __name__ == "__main__":
    print(table())
