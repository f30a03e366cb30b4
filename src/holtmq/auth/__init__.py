"""Who may do what: users and passwords, permissions, tokens.

Owns: the decisions. Must not touch: connections and the journal. The broker folds user records into the
``UserStore``; the edges ask it and translate a refusal into their own words.
"""
