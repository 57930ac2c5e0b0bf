"""The shop's one model, and how an order is placed."""

from django.db import models

import txcore
from txcore.integrations.django.transactions import atomic


class Order(models.Model):
    """One order."""

    item = models.CharField(max_length=200)

    def __str__(self) -> str:
        return f"{self.pk}: {self.item}"


def place_order(item: str) -> int:
    """Write the order and announce it, both or neither; return its number."""
    with atomic() as outgoing:
        order = Order.objects.create(item=item)
        outgoing.publish(txcore.Message("orders.created", b"%d" % order.pk))
    return int(order.pk)
