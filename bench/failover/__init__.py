"""Write gap when the leader ends, by way of its end and by client.   python -m bench.failover"""
