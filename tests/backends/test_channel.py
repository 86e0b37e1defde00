"""Frames arrive whole and in order, whatever the sizes; sending never blocks; the end of the peer is seen."""

from __future__ import annotations

import socket
import threading

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.backends.channel import Channel


class Note(msgspec.Struct, frozen=True, tag=True):
    body: bytes


def pair() -> tuple[Channel, Channel]:
    left, right = socket.socketpair()
    return Channel(left, Note), Channel(right, Note)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=5000), max_size=20))
def test_frames_arrive_whole_and_in_order(bodies: list[bytes]) -> None:
    left, right = pair()
    for body in bodies:
        left.send(Note(body))
    heard: list[bytes] = []
    while len(heard) < len(bodies):
        left.flush()
        heard += [note.body for note in right.receive()]
    assert heard == bodies
    left.close()
    right.close()


def test_sending_never_blocks_on_a_peer_that_does_not_read() -> None:
    left, right = pair()
    big = b"x" * (8 << 20)
    done = threading.Event()

    def send() -> None:
        left.send(Note(big))
        done.set()

    threading.Thread(target=send, daemon=True).start()
    assert done.wait(20)
    assert left.wants_to_write
    heard: list[Note] = []
    while not heard:
        left.flush()
        heard = right.receive()
    assert heard[0].body == big
    assert not left.wants_to_write


def test_the_end_of_the_peer_is_seen_after_its_last_words() -> None:
    left, right = pair()
    left.send(Note(b"last"))
    left.close()
    assert [note.body for note in right.receive()] == [b"last"]
    assert right.closed
    right.send(Note(b"nobody hears"))
    assert not right.wants_to_write


@pytest.mark.parametrize("unread", [0, 3])
def test_last_words_are_heard_after_a_send_that_failed(unread: int) -> None:
    """The kernel tells a sender first that its peer is gone; what the peer had to say still lies there."""
    left, right = pair()
    for _ in range(unread):
        left.send(Note(b"too late"))
    right.send(Note(b"why"))
    right.close()
    left.send(Note(b"work"))
    assert not left.wants_to_write
    assert not left.closed
    assert [note.body for note in left.receive()] == [b"why"]
    assert left.closed


def test_a_foreign_frame_is_refused() -> None:
    left, right = socket.socketpair()
    channel = Channel(right, Note)
    left.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(msgspec.ValidationError):
        channel.receive()
