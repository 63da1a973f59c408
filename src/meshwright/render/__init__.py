"""What the library found, as text and files. Nothing here computes a number that is not in its input."""
