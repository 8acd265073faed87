"""Verification of replicas on Spark, over dumps of their logs."""
