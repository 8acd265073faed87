"""`apache.rocketmq.v2.MessagingService`, as official clients of RocketMQ 5 use it.

Owns send, receive, acknowledge and the answers to the telemetry stream, at the leader and at a follower. Must
not: decide what is delivered; `leader/selection.py` does.

Begin with `messaging_service.py`. Then: `send.py`, `receive_at_leader.py`, `receive_at_follower.py`,
`give_backs.py`, `acknowledge.py`, `topic_answers.py`.
"""
