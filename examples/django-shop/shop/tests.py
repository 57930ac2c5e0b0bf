"""The shop's tests: Django's database for tests, and a broker in memory for each test."""

from django.test import TransactionTestCase

from shop.models import Order, place_order
from txcore import HalfUnknownError, NotSentError
from txcore.testing import Kit


class OrderTests(TransactionTestCase):
    """Orders and their messages."""

    def setUp(self) -> None:
        """Give the test a broker of its own."""
        self.kit = self.enterContext(Kit())
        self.enterContext(self.settings(TXCORE={"broker": self.kit.url, "group": "shop"}))

    def test_an_order_is_announced(self) -> None:
        """Both are there."""
        number = place_order("tea")
        self.kit.assert_published("orders.created", body=b"%d" % number, count=1)

    def test_without_a_broker_there_is_no_order(self) -> None:
        """Neither is there."""
        place_order("tea")
        self.kit.broker.down = True
        with self.assertRaises((NotSentError, HalfUnknownError)):
            place_order("cake")
        self.assertEqual(["tea"], [order.item for order in Order.objects.all()])
