"""Where Triton kernels are tested: on a GPU, or by Triton's interpreter.

Triton reads its setting when it is imported, so this comes before anything that may do so.
"""

import os

import torch

KERNEL_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if KERNEL_DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
