"""LedgerMQ, RabbitMQ quorum queues and NATS JetStream under the same workloads, interleaved in one run."""
