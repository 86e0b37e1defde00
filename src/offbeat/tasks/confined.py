"""What untrusted code runs in: a Python that has given up everything but computing and its scratch directory.

Started as a script of its own by `sandbox`, with nothing imported but the standard library. Before the code is read it
bounds its memory, time and files (rlimit), may read the standard library and write below its scratch directory only
(Landlock), and loses the calls that make sockets, processes and threads or touch other processes (seccomp).
Exit codes: 0 done, 1 the code raised, 71 this machine cannot confine it.
"""

from __future__ import annotations

import ast
import ctypes
import json
import os
import resource
import struct
import sys
import traceback

UNAVAILABLE = 71
EPERM = 1
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ = 0b1101  # execute, read a file, read a directory
_BY_ABI = {1: 1 << 13, 2: 1 << 14, 3: 1 << 15, 4: 1 << 15}
"""The rights Landlock handles, as the first bit beyond them; from ABI 5 on one more."""

_DENIED = {
    "x86_64": (
        0xC000003E,
        (
            *(41, 42, 49, 53, 44, 46, 307),  # socket, connect, bind, socketpair, sendto, sendmsg, sendmmsg
            *(56, 57, 58, 59, 322, 435),  # clone, fork, vfork, execve, execveat, clone3
            *(
                62,
                200,
                234,
                129,
                297,
                424,
            ),  # kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal
            *(101, 310, 311, 434, 438),  # ptrace, process_vm_readv, process_vm_writev, pidfd_open, pidfd_getfd
            *(160, 302),  # setrlimit, prlimit64
            *(272, 308, 165, 166, 161, 155),  # unshare, setns, mount, umount2, chroot, pivot_root
            *(321, 298, 323, 425, 426, 427),  # bpf, perf_event_open, userfaultfd, io_uring_setup, _enter, _register
            *(248, 249, 250, 29, 68, 64),  # add_key, request_key, keyctl, shmget, msgget, semget
        ),
    ),
    "aarch64": (
        0xC00000B7,
        (
            *(198, 203, 200, 199, 206, 211, 269),  # as above, without what this architecture does not have
            *(220, 221, 281, 435),
            *(129, 130, 131, 138, 240, 424),
            *(117, 270, 271, 434, 438),
            *(164, 261),
            *(97, 268, 40, 39, 51, 41),
            *(280, 241, 282, 425, 426, 427),
            *(217, 218, 219, 194, 186, 190),
        ),
    ),
}
"""Architecture as the audit subsystem numbers it, and the calls that fail, by group."""


def confine(scratch: str, limits: dict[str, int]) -> None:
    """Give up everything else. Raises OSError where this machine cannot."""
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    if os.uname().machine not in _DENIED:
        raise OSError(f"no list of calls for {os.uname().machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _bound_files(libc, scratch)
    _bound_calls(libc)


def _bound_files(libc: ctypes.CDLL, scratch: str) -> None:
    abi = _checked(libc.syscall(_CREATE_RULESET, None, 0, 1), "landlock")
    every = _BY_ABI.get(abi, 1 << 16) - 1
    rules = _checked(libc.syscall(_CREATE_RULESET, struct.pack("Q", every), 8, 0), "landlock")
    library = os.path.dirname(os.__file__)
    readable = {library, "/usr/lib", "/lib", "/lib64", os.path.join(sys.base_prefix, "lib")}
    for path, access in [(scratch, every), *((path, _READ) for path in sorted(readable) if os.path.isdir(path))]:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        _checked(libc.syscall(_ADD_RULE, rules, 1, struct.pack("=Qi", access, opened), 0), "landlock")
        os.close(opened)
    _checked(libc.syscall(_RESTRICT_SELF, rules, 0), "landlock")
    os.close(rules)


def _bound_calls(libc: ctypes.CDLL) -> None:
    """A classic BPF program: another architecture's calls end the process, those named fail with EPERM."""
    architecture, denied = _DENIED[os.uname().machine]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    allow, refuse, end = 0x7FFF0000, 0x00050000 | EPERM, 0x80000000
    steps = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, end), (load, 0, 0, 0)]
    if architecture == _DENIED["x86_64"][0]:
        steps += [(at_least, 0, 1, 0x40000000), (give, 0, 0, end)]  # calls of the x32 interface
    steps += [(equal, len(denied) - i, 0, number) for i, number in enumerate(denied)]
    steps += [(give, 0, 0, allow), (give, 0, 0, refuse)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    filter_ = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
    _checked(libc.prctl(_SET_SECCOMP, _FILTER, ctypes.create_string_buffer(filter_), 0, 0), "seccomp")


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def execute(code: str) -> None:
    """Run a program; what its last line is worth is printed, as at a prompt."""
    tree = ast.parse(code, "<code>")
    names: dict[str, object] = {"__name__": "__main__"}
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<code>", "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "<code>", "eval"), names)
        if value is not None:
            print(value)


def main() -> int:
    scratch, limits = sys.argv[1], json.loads(sys.argv[2])
    code = sys.stdin.buffer.read().decode("utf-8", "replace")
    os.chdir(scratch)
    try:
        confine(scratch, limits)
    except OSError as error:
        print(error, file=sys.stderr)
        return UNAVAILABLE
    try:
        execute(code)
    except BaseException as error:  # the code's own failure is what its author wants to read
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return 0
        print(traceback.format_exception_only(error)[-1].strip())
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)
