"""Whether raw steps fit into the memory of the devices, told before any of it is taken."""

from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

from shards.text import format_bytes

HOST = "/job:localhost/replica:0/task:0/device:CPU:0"
Free = Callable[[str], int | None]  # device -> free bytes, None if nobody can tell


def misfit(needed: Sequence[int], devices: Sequence[str], free: Free | None = None) -> str | None:
    """None if each device has the bytes that it needs, else what to say and to do.

    CPUs share their memory; GPUs are filled from it.
    """
    free = free_bytes if free is None else free
    on_host = [nbytes for nbytes, device in zip(needed, devices, strict=True) if _is_cpu(device)]
    least: dict[str, int] = {HOST: max(sum(on_host), max(needed))}
    least |= {device: nbytes for nbytes, device in zip(needed, devices, strict=True) if not _is_cpu(device)}
    for device, nbytes in least.items():
        there = free(device)
        if there is not None and nbytes > there:
            return too_large(needed, device, f"has {format_bytes(there)} free")
    return None


def free_bytes(device: str) -> int | None:
    """Free memory of a GPU, as far as TensorFlow may use it, or of this host; None if nobody can tell."""
    if _is_cpu(device):
        try:
            lines = Path("/proc/meminfo").read_text().splitlines()
        except OSError:  # another system than Linux
            return None
        free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
        return min((n for n in (free, _free_of_container()) if n is not None), default=None)
    short = ":".join(device.split(":")[-2:])  # GPU:0
    try:
        from tensorflow.python.client import device_lib  # nothing public knows the limit

        limits = {known.name: known.memory_limit for known in device_lib.list_local_devices()}
        return int(limits[f"/device:{short}"]) - int(tf.config.experimental.get_memory_info(short)["current"])
    except (ImportError, KeyError, ValueError, RuntimeError, tf.errors.OpError):
        return None  # then it shows when the steps are placed


def _free_of_container() -> int | None:
    """What is left of the memory that a container may use; None where there is no limit."""
    try:
        most, used = (Path("/sys/fs/cgroup", f"memory.{name}").read_text() for name in ("max", "current"))
        return max(0, int(most) - int(used))
    except (OSError, ValueError):  # no second version of control groups; "max"
        return None


def _is_cpu(device: str) -> bool:
    return "CPU:" in device.upper()


def too_large(needed: Sequence[int], device: str, there: str) -> str:
    """What to say and to do when a device has not the bytes that each replica needs."""
    each = f"{format_bytes(max(needed))} on each of {len(needed)} replicas" if needed[1:] else format_bytes(needed[0])
    return (
        f"raw steps take {each}, and {device} {there}: with resident=True, more replicas share them; or choose fewer"
        " features, or build with --dtype float16"
    )
