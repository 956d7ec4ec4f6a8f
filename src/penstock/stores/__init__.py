"""Where messages are kept: each module is one kind of store, `penstock.stores.base` says what it must do."""
