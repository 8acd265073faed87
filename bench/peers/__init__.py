"""LedgerMQ beside RabbitMQ quorum queues, NATS JetStream, Kafka and RocketMQ with DLedger.

All of them under the same workloads, interleaved in one run.
"""
