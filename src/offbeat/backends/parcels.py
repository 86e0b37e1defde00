"""Responses on their way between lanes, as files of the run directory: one each, read once.

A parcel is written whole before its lane announces it. What is left behind (its lane died, its trajectory was
aborted meanwhile) is swept by the main process; nothing is ever recovered from here after a restart.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from offbeat.errors import EngineError
from offbeat.ports import Parcel

_PARCEL = msgspec.msgpack.Decoder(Parcel)


def parcel_file(run_directory: Path, trajectory_id: int, attempt: int) -> Path:
    return run_directory / "parcels" / f"{trajectory_id}-{attempt}.msgpack"


def write_parcel(run_directory: Path, attempt: int, parcel: Parcel) -> None:
    file = parcel_file(run_directory, parcel.request.request_id, attempt)
    file.parent.mkdir(exist_ok=True)
    aside = file.with_suffix(f".{os.getpid()}")
    aside.write_bytes(msgspec.msgpack.encode(parcel))
    aside.replace(file)


def take_parcel(run_directory: Path, trajectory_id: int, attempt: int) -> Parcel:
    """Read a parcel and remove it. Raises EngineError where it is missing or damaged."""
    file = parcel_file(run_directory, trajectory_id, attempt)
    try:
        parcel = _PARCEL.decode(file.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise EngineError(f"the parcel of trajectory {trajectory_id} cannot be read ({error})") from None
    finally:
        file.unlink(missing_ok=True)
    return parcel


def sweep_parcels(run_directory: Path) -> None:
    """Remove all that is left when no lane is there any more, or not yet."""
    shutil.rmtree(run_directory / "parcels", ignore_errors=True)
