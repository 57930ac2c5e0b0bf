"""The checker as a process of its own: many groups, many brokers, several sources of answers, figures and health.

`process` holds the groups, `life` the signals, `answers` the sources, `web` the HTTP endpoint.
The protocol is in `txcore.Checker`; no code here decides about a message.
"""
