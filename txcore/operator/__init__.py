"""The common part of every operator's tool: ids, filters, texts, JSON, the journey, the plan.

The command line and the sidecar's console show and refuse the same things because both use these modules.
"""
