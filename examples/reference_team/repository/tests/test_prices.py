import unittest

from shelf.prices import discounted, text, total


class PricesTest(unittest.TestCase):
    def test_total(self):
        self.assertEqual(total([(250, 2), (99, 1)]), 599)

    def test_discounts_are_rounded_half_up(self):
        self.assertEqual(discounted(999, 50), 500)
        self.assertEqual(discounted(1000, 25), 750)
        self.assertEqual(discounted(1, 60), 0)

    def test_cents_have_two_digits(self):
        self.assertEqual(text(1234), "12.34")
        self.assertEqual(text(1205), "12.05")
