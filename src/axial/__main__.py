"""The command `axial`, and `python -m axial`, so that torchrun can start it."""

import os
import signal

from axial.cli.main import main
from axial.system.openmp import wait_asleep


def run() -> None:
    """Run the command line, as a process of its own."""
    wait_asleep()
    try:
        main()
    finally:  # from here on a handler would only disturb the end of the interpreter
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # torch's own threads may still let go of what was sent between ranks. That takes the
        # interpreter: while it ends they would abort the process (pytorch issue 190489).
        os._exit(0)


if __name__ == "__main__":
    run()
