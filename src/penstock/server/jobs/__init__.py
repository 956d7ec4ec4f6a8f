"""Jobs: changes to many messages of a queue that take a while, and survive the server that does them."""
