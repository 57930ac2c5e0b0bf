"""Messages that wait in the database: the message table, the relay that publishes them, and foreign outbox tables."""
