"""The other process of `check_reproducible`: task settings as JSON on standard input, one fingerprint out."""

from __future__ import annotations

import sys

import msgspec

from offbeat.settings import settings_from
from offbeat.tasks import make_task
from offbeat.tasks.reproducible import fingerprint, sample_of


def main() -> None:
    asked = msgspec.json.decode(sys.stdin.buffer.read())
    task = make_task(settings_from({"task": asked["task"]}).task, asked["seed"])
    print(fingerprint(sample_of(task, asked["count"])))


if __name__ == "__main__":
    main()
