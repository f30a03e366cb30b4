"""A load generator for AMQP 0-9-1 brokers that costs less than any broker it measures.

Owns: raw connections, named workloads, one measured round, and the comparison of two brokers.
Must not touch: HoltMQ's own broker and protocol code. It knows only AMQP, like any client, and works against
RabbitMQ just as well.
"""
