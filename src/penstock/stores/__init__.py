"""The stores, one package or module each. `penstock.stores.ports` is their interface."""
