"""What AMQP values look like as bytes: field tables and message properties.

Owns: pure functions between bytes and Python values. A leaf: it imports nothing of HoltMQ, so that rules
which must look inside a message (dead letters, headers exchanges) can use it as well as the AMQP edge.
Must not touch: frames, methods, sockets; those are ``amqp/``.
"""
