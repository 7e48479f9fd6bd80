"""What all stands on."""
