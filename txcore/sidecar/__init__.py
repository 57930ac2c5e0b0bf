"""The checker as a process of its own: many groups, many brokers, answers from wherever they are, figures and health.

`process` holds the groups, `life` the signals, `answers` and what it names the ways to ask, `web` the HTTP endpoint.
The protocol is in `txcore.Checker`; nothing here decides about a message.
"""
