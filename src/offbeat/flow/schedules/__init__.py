"""Schedules by name. A new one is a file here, a line in `SCHEDULES` and its name in the settings."""

from __future__ import annotations

from offbeat.flow.schedules.in_flight import InFlight
from offbeat.flow.schedules.multi_version import MultiVersion
from offbeat.flow.schedules.one_step_off import OneStepOff
from offbeat.flow.schedules.partial import Partial
from offbeat.flow.schedules.repack import Repack
from offbeat.flow.schedules.schedule import Schedule
from offbeat.flow.schedules.sync import Sync

SCHEDULES: dict[str, type[Schedule]] = {
    "multi-version": MultiVersion,
    "sync": Sync,
    "one-step-off": OneStepOff,
    "partial": Partial,
    "in-flight": InFlight,
    "repack": Repack,
}
