"""Django: messages that share the fate of a `transaction.atomic` block. Names are imported from `transactions`.

    INSTALLED_APPS = [..., "txcore.integrations.django"]
    TXCORE = {"broker": "kafka://127.0.0.1:9092", "group": "shop"}          # and "database": "default"

`manage.py migrate` makes the fence's tables, `manage.py txcore_checker` runs the checker.
"""
