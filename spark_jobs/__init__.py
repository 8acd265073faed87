"""Spark over log dumps (replica verification) and topics."""
