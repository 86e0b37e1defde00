"""Policies to start from and the tokenizers they speak through. Importing this room loads no torch."""

from offbeat.models.prepare import prepare_policy

__all__ = ["prepare_policy"]
