"""Routing of calls inside the cluster: who leads, one hop to the leader, the other nodes, nameservers.

Owns forwarding and its lanes, members' addresses, slaves of a broker group with a master, registration. Must
not: serve a call, or forward one twice.

Begin with `leader_calls.py`. Then: `known_leader.py`, `forwarding.py`, `lane.py`, `lane_server.py`,
`registration.py`.
"""
