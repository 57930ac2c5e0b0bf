"""The cost of a transactional message: each style on each broker, beside raw yardsticks measured in the same run."""
