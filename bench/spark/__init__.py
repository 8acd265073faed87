"""Rates of the Spark source and sink, and of Spark's Kafka connector beside them."""
