import unittest

from shelf.stock import OutOfStock, Stock


class StockTest(unittest.TestCase):
    def test_counts_add_up(self):
        stock = Stock()
        stock.add("nails", 10)
        stock.add("nails")
        self.assertEqual(stock.items(), [("nails", 11)])

    def test_the_last_piece_can_be_taken(self):
        stock = Stock()
        stock.add("hammer")
        stock.take("hammer")
        self.assertEqual(stock.items(), [])

    def test_more_than_there_is_cannot_be_taken(self):
        stock = Stock()
        stock.add("nails", 2)
        with self.assertRaises(OutOfStock):
            stock.take("nails", 3)
        self.assertEqual(stock.items(), [("nails", 2)])
