"""Ready-made pipelines around queues, each a plain function: `docs/pipelines.md` shows them, `penstock pipeline` runs them."""
