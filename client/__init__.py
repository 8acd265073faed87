"""Producers, consumers, admin and the command line."""
