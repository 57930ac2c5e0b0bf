"""What a transactional message costs: each style on each broker, beside raw yardsticks measured in the same run."""
