"""What all else stands on: atomic files, ranks, devices, CUDA graphs, progress, checksums."""
