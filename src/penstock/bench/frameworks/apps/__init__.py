"""One application in each framework: an empty task, which its worker runs. A sender imports it too, and calls `send`."""
