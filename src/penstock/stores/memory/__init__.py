"""Queues in this process's memory: the executable specification. Every other store must give the same answers.

store.py    the store: its queues by name
queue.py    the verbs of one queue, each for many messages
table.py    what one queue holds, and the transitions of one message
tables.py   all tables behind one lock; what an interrupted verb has left is repaired
readers.py  named claims
outbox.py   staging and publishing

Named claims and the history are `penstock.stores.parts`, what a verb does to one message is `penstock.stores.messages`.
"""

from penstock.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
