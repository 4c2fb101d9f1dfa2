"""How much of each item there is."""


class OutOfStock(Exception):
    """More was asked for than there is."""


class Stock:
    def __init__(self):
        self._items = {}

    def add(self, name, count=1):
        """Put `count` pieces of an item on the shelf."""
        if count < 1:
            raise ValueError("count must be at least 1")
        self._items[name] = self._items.get(name, 0) + count

    def take(self, name, count=1):
        """Take pieces off the shelf. Raises OutOfStock and changes nothing if there are too few."""
        have = self._items.get(name, 0)
        if have <= count:
            raise OutOfStock(f"{have} of {name}, {count} asked for")
        self._items[name] = have - count
        if not self._items[name]:
            del self._items[name]

    def items(self):
        """Names and counts, in the order of the names."""
        return sorted(self._items.items())
