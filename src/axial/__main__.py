"""`python -m axial` is the command `axial`, so that torchrun can start it."""

from axial.cli import main

main()
