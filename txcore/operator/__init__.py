"""What every operator's tool says and allows, whichever it is: ids, filters, words, JSON, the journey, the plan.

The command line and the sidecar's console show and refuse the same things because both take them from here.
"""
