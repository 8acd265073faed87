"""Nameserver: the route registry. Its state is soft: brokers tell it again after a restart."""
