"""The encoding of AMQP values: field tables and message properties.

Owns: pure functions between bytes and Python values. It imports nothing else of HoltMQ, so that broker rules
which look inside a message (dead letters, headers exchanges) can use it as well as ``amqp/``.
Must not touch: frames, methods, sockets; those are in ``amqp/``.
"""
