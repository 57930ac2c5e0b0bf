"""The runtime of flows: commands, drivers for threads and asyncio, the flow loop, wake-ups, calls of user code."""
