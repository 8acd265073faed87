"""How long nobody can write when the leader ends: by way of its end, and by client.   python -m bench.failover"""
