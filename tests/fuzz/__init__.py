"""Fuzzing of every decoder of bytes from outside: seeded mutations of real encodings (`make fuzz`)."""
