"""The dialect of Amazon SQS: its 23 operations in both of its protocols, JSON 1.0 and Query with XML answers."""
