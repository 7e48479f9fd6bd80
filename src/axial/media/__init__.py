"""What people look at: sheets, maps of bits, curves, GIF and MP4."""
