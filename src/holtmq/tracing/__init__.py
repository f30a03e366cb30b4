"""OpenTelemetry spans of publish, deliver and settle, for messages that carry a trace context.

Owns: classes that take the place of the AMQP and HTTP ones when ``tracing.enabled`` is set. Without it,
nothing of this package is imported, and nothing asks for each message whether it is traced.
Must not touch: what the broker does with a message.
"""
