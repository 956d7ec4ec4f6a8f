"""Where messages are kept: each module is one kind of store, `penstock.stores.ports` says what it must do."""
