"""What runs flows: commands, drivers for threads and asyncio, the loop for many flows, wake-ups, calls of user code."""
