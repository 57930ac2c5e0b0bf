"""The producer's side: transactions in three styles, blocking and asyncio, and the protocol's steps that they share."""
