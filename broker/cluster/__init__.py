"""How a call gets to where it belongs: who leads, one hop to the leader, the other nodes, nameservers.

Owns forwarding and its lanes, addresses of members, slaves of a group with a master, registration. Must not: serve a call,
or hop twice.

Begin with `leader_calls.py`. Then: `known_leader.py`, `forwarding.py`, `lane.py`, `lane_server.py`,
`registration.py`.
"""
