"""How torch's threads on a CPU wait for each other; to be decided before torch is imported."""

import os


def wait_asleep() -> None:
    """Let idle threads sleep, unless the user's environment says how they wait.

    By default they spin, on cores that other processes need: beside one that computes, each
    call then waits for the rest of a time slice.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
