"""How many processor cores this process may use."""

import math
import os
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""What a container may use, as Linux tells it inside: microseconds (or ``max``) of so many."""


def usable_cores(quota: Path = QUOTA) -> int:
    """The cores that the process is bound to, or fewer where its container has less time than that.

    Args:
        quota: the file of version 2 control groups; one that cannot be read limits nothing.
    """
    bound_to = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        granted, period = map(float, quota.read_text("ascii").split())
    except (OSError, ValueError):
        return bound_to or 1
    return max(1, min(bound_to or 1, math.ceil(granted / period)))
