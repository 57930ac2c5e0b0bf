"""The shop in Django's admin: what is changed there is announced, too."""

from typing import Any

from django.contrib import admin
from django.db import transaction
from django.http import HttpRequest, HttpResponse

import txcore
from shop.models import Order
from txcore.integrations.django.transactions import atomic


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    """`atomic` is the outermost block of a view, so the admin's own one is a savepoint in it."""

    @transaction.non_atomic_requests
    def add_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Let `save_model` publish."""
        with atomic() as request.outgoing:
            return super().add_view(request, *args, **kwargs)

    @transaction.non_atomic_requests
    def change_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Let `save_model` publish."""
        with atomic() as request.outgoing:
            return super().change_view(request, *args, **kwargs)

    def save_model(self, request: HttpRequest, obj: Order, form: Any, change: bool) -> None:
        """Save the order, and announce it."""
        super().save_model(request, obj, form, change)
        topic = "orders.changed" if change else "orders.created"
        request.outgoing.publish(txcore.Message(topic, b"%d" % obj.pk))
