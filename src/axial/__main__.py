"""`python -m axial` is the command `axial`, so that torchrun can start it."""

import os

from axial.cli.main import main

main()
if os.environ.get("WORLD_SIZE", "1") != "1":
    # torch's own threads may still let go of what was sent between ranks. That takes the
    # interpreter: while it ends they would abort the process (pytorch issue 190489).
    os._exit(0)
