"""The doctor: compares a live broker and a live database with what durable operation needs."""
