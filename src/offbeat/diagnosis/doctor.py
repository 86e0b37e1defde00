"""What is wrong with a machine or an installation, and the remedy of each problem. Pure: facts in, findings out.

An `error` makes training impossible; a `warning` will be met by a run; a `note` concerns what is optional.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from offbeat.backends.vllm.interpreter import REMEDY
from offbeat.diagnosis.finding import Evidence, Finding, Severity, worst_first
from offbeat.diagnosis.machine import DEFAULT_PORTS, Machine
from offbeat.diagnosis.servers import Answer

GIB = 1 << 30
LEAST_PYTHON = (3, 11)
LEAST_DESCRIPTORS = 256
FEW_DESCRIPTORS = 1024


def _version(text: str) -> tuple[int, ...]:
    """The release numbers: 2.13.0+cpu -> (2, 13, 0)."""
    numbers = []
    for part in text.split("+")[0].split("."):
        digits = "".join(c for c in part if c.isdigit())
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def versions(m: Machine) -> Iterator[Finding]:
    if m.python < LEAST_PYTHON:
        found = ".".join(map(str, m.python))
        yield Finding("python", "error", f"Python {found} is too old.", "install Python 3.11 or newer")
    for package in m.packages:
        remedy = f"pip install '{package.name}>={package.least}'"
        if package.found is None:
            yield Finding("package-missing", "error", f"{package.name} is not installed.", remedy)
        elif _version(package.found) < _version(package.least):
            sentence = f"{package.name} {package.found} is too old."
            yield Finding("package-old", "error", sentence, remedy)
    if not m.packages:
        sentence = "offbeat is not installed as a package, so what it needs is not known."
        yield Finding("not-installed", "warning", sentence, "pip install -e . in its directory")
    if m.system != "Linux":
        sentence = f"On {m.system} workers notice the end of their parent later than on Linux."
        yield Finding("system", "note", sentence, "after a crash wait some seconds before you resume")


def devices(m: Machine) -> Iterator[Finding]:
    if m.gpus and m.torch_cuda == "":
        sentence = f"{m.gpus} GPUs are here, but torch is a build without CUDA."
        yield Finding("torch-without-cuda", "warning", sentence, "install torch from pytorch.org for your CUDA")
    allowed = m.cores_allowed
    if m.cores < 2 or (allowed is not None and allowed < 2):
        sentence = f"Only {min(m.cores, allowed or m.cores):g} core: rollout and learner take turns on it."
        yield Finding("cores", "warning", sentence, "give it 2 cores or more; keep run.threads = 1")
    elif allowed is not None and allowed < 0.75 * m.cores:
        sentence = f"{m.cores} cores are seen, a control group allows {allowed:g}."
        yield Finding(
            "core-quota", "note", sentence, f"count {allowed:g} when you choose rollout.lanes and run.threads"
        )
    if m.threads_wanted is not None and m.threads_wanted.isdigit() and int(m.threads_wanted) > 1:
        sentence = f"OMP_NUM_THREADS = {m.threads_wanted} in the environment; workers use run.threads instead."
        yield Finding("threads", "note", sentence, "two threads a core collapse: set run.threads, and lanes, by cores")
    if m.memory_bytes is not None and m.memory_bytes < 2 * GIB:
        seen = (_size("available", m.memory_bytes),)
        severity: Severity = "error" if m.memory_bytes < GIB // 2 else "warning"
        yield Finding("memory", severity, "Memory is short: a default run takes about 1 GiB.", "end something", seen)


def room(m: Machine) -> Iterator[Finding]:
    if m.directory_problem:
        sentence = f"No run can lie in {m.here}: {m.directory_problem}."
        yield Finding("directory", "error", sentence, "give --out on a local, writable disk")
    if m.free_bytes < GIB:
        severity: Severity = "error" if m.free_bytes < GIB // 16 else "warning"
        seen = (_size(f"free in {m.here}", m.free_bytes),)
        yield Finding("disk", severity, "The disk is almost full.", "make room, or lower run.keep_versions", seen)
    if m.scratch_bytes < GIB // 16:
        seen = (_size("free for temporary files", m.scratch_bytes),)
        yield Finding("scratch", "warning", "There is no room for temporary files.", "make room or set TMPDIR", seen)
    if m.shared_memory_bytes is not None and m.shared_memory_bytes < GIB // 2 and (m.ray or m.vllm):
        seen = (_size("free in /dev/shm", m.shared_memory_bytes),)
        remedy = "start the container with --shm-size=8g (Kubernetes: an emptyDir of medium Memory)"
        sentence = "Shared memory is short for Ray's objects and vLLM's workers."
        yield Finding("shared-memory", "warning", sentence, remedy, seen)
    if m.cache_problem:
        sentence = f"Warm-started policies cannot be kept: {m.cache_problem}."
        yield Finding("policy-cache", "error", sentence, "make it writable or set XDG_CACHE_HOME")


def limits(m: Machine) -> Iterator[Finding]:
    if 0 <= m.descriptors < FEW_DESCRIPTORS:
        severity: Severity = "error" if m.descriptors < LEAST_DESCRIPTORS // 4 else "warning"
        sentence = f"A process may open {m.descriptors} files."
        yield Finding("descriptors", severity, sentence, f"ulimit -n {4 * FEW_DESCRIPTORS}")
    if 0 <= m.processes < FEW_DESCRIPTORS:
        sentence = f"This user may have {m.processes} processes and threads."
        yield Finding("processes", "warning", sentence, f"ulimit -u {4 * FEW_DESCRIPTORS}")
    if m.loopback_problem:
        sentence = f"127.0.0.1 cannot be used ({m.loopback_problem}): Ray, vLLM and sharded learning need it."
        yield Finding("loopback", "warning", sentence, "bring up the loopback device (ip link set lo up)")


def servers(m: Machine) -> Iterator[Finding]:
    """What is asked for and is not there: vLLM's Python, servers that do not answer; default ports that something else
    may hold."""
    if m.vllm_problem:
        sentence = f"A run on vLLM would be refused: {m.vllm_problem}."
        yield Finding("vllm-python", "warning", sentence, REMEDY)
    asked = (("ray", m.ray, m.ray_answer, "start it (ray start --head), or mend the address"),
             ("vllm", m.vllm, m.vllm_answer, "start the server, or mend the URL"))  # fmt: skip
    for name, installed, answer, remedy in asked:
        if answer is not None and answer.problem:
            sentence = f"{name} at {answer.address} cannot be used: {answer.problem}."
            yield Finding(f"{name}-unreachable", "warning", sentence, remedy)
        if answer is not None and installed is None and name == "ray":
            sentence = f"{name} is asked for at {answer.address} and not installed here."
            yield Finding("ray-missing", "warning", sentence, "pip install 'ray[default]'")
    unasked = {"ray": m.ray and not m.ray_answer, "vllm": m.vllm and not m.vllm_answer}
    for port in m.ports_taken:
        if unasked[DEFAULT_PORTS[port]]:
            sentence = f"Port {port}, where {DEFAULT_PORTS[port]} listens by default, is taken."
            yield Finding("port-taken", "note", sentence, "give the server another port, or end what holds it")


CHECKS: tuple[Callable[[Machine], Iterator[Finding]], ...] = (versions, devices, room, limits, servers)


def examine(machine: Machine) -> tuple[Finding, ...]:
    """All that is wrong, the worst first."""
    return worst_first(finding for check in CHECKS for finding in check(machine))


def facts_in_words(m: Machine) -> Iterator[str]:
    """What was found, right or wrong, a line each."""
    named = ("torch", "transformers", "numpy", "numba")
    found = {package.name: package.found or "missing" for package in m.packages}
    libraries = ", ".join(f"{name} {found[name]}" for name in named if name in found)
    yield f"offbeat {m.offbeat}, Python {'.'.join(map(str, m.python))} on {m.system}" + (f", {libraries}" * bool(found))
    cuda = {None: "torch not found", "": "torch without CUDA"}.get(m.torch_cuda, f"torch for CUDA {m.torch_cuda}")
    quota = f" ({m.cores_allowed:g} allowed)" if m.cores_allowed is not None else ""
    memory = f", {m.memory_bytes / GIB:.1f} GiB of memory" if m.memory_bytes is not None else ""
    yield f"{m.cores} cores{quota}{memory}, {m.gpus} GPUs, {cuda}"
    shared = f", {m.shared_memory_bytes / GIB:.1f} GiB in /dev/shm" if m.shared_memory_bytes is not None else ""
    yield f"{m.free_bytes / GIB:.1f} GiB free in {m.here}{shared}, {m.descriptors} files a process"
    yield f"policy cache {m.cache}: {m.cache_bytes / (1 << 20):.0f} MiB"
    vllm = f"{m.vllm or 'none'} at {m.vllm_python}{_asked(m.vllm_answer)}"
    servers = f"Ray {f'{m.ray} installed' if m.ray else 'not installed'}{_asked(m.ray_answer)}; vLLM {vllm}"
    yield f"optional: {servers}; browser {m.browser or 'none'}"


def _asked(answer: Answer | None) -> str:
    if answer is None:
        return ""
    return f", {'not usable' if answer.problem else 'answers'} at {answer.address}"


def _size(what: str, count: int) -> Evidence:
    return Evidence(f"{count / GIB:.2f} GiB {what}", float(count))
