# killed_by: test_cost — O(n): list.remove searches the node, comparing no keys
class Node:
    def __init__(self, key, value):
        self.key = key
        self.value = value


class LRUCache:
    def __init__(self, capacity):
        if capacity < 1:
            raise ValueError("capacity must be positive")
        self.capacity = capacity
        self.nodes = {}
        self.order = []

    def get(self, key):
        if key not in self.nodes:
            return -1
        node = self.nodes[key]
        self.order.remove(node)
        self.order.append(node)
        return node.value

    def put(self, key, value):
        if key in self.nodes:
            self.order.remove(self.nodes[key])
        elif len(self.order) == self.capacity:
            del self.nodes[self.order.pop(0).key]
        self.nodes[key] = Node(key, value)
        self.order.append(self.nodes[key])
