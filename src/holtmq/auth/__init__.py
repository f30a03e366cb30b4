"""Authentication and authorization: users and passwords, permissions, tokens.

Owns: the decisions. Must not touch: connections and the journal. The broker applies user records to the
``UserStore``; ``amqp`` and ``http`` query it and translate a refusal into their protocol.
"""
