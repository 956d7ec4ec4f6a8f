"""What SQLite puts for the words in braces in the SQL texts, and where its texts are."""

IN_RUN = """EXISTS (
    SELECT 1 FROM penstock_claim WHERE penstock_claim.queue = penstock_message.queue AND run_at IS NOT NULL AND reader {reader}
    AND penstock_message.visible_at >= 0
    AND (penstock_message.visible_at, penstock_message.number) > (begin_at, begin_number)
    AND (penstock_message.visible_at, penstock_message.number) <= (end_at, end_number)
)"""
"""Whether a message belongs to a run: a settled one (whose reader is ''), so that it is gone, or one that holds it."""
AS_CLAIMED = """number IN (
    SELECT penstock_held.message FROM penstock_held CROSS JOIN penstock_message
    WHERE claim = :claim AND place >= :start AND place < :stop
    AND penstock_message.number = penstock_held.message AND penstock_message.delivery = penstock_held.delivery
)"""
"""Whether a message is in a claim's list, and as it was claimed. A CROSS JOIN goes through the list."""
TEXTS = [("penstock.stores.sqlite", "sqlite.sql")]
WORDS = {
    "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "integer": "INTEGER",
    "name": "TEXT",
    "text": "TEXT",
    "key": "BLOB",
    "blob": "BLOB",
    "where_grouped": "WHERE grp IS NOT NULL",
    "skip_locked": "",
    "for_update": "",
    "passing": "",
    "insert_new": "INSERT OR IGNORE INTO",
    "unless_there": "",
    "or_lock": "ON CONFLICT DO NOTHING",
    "among": "IN (SELECT value FROM json_each(:numbers))",
    "later": "MAX",
    "by_ready": "",
    "by_group": "INDEXED BY penstock_group",
    "ready": "",
    "only_by_name": "",
    "message_held": "penstock_message",
    "removed_later": """
        CREATE TABLE penstock_gone (number INTEGER PRIMARY KEY);
        CREATE VIEW penstock_present AS SELECT * FROM penstock_message
        WHERE NOT EXISTS (SELECT 1 FROM penstock_gone) OR number NOT IN (SELECT number FROM penstock_gone)
    """,
    "removed_at_once": """
        DELETE FROM penstock_message WHERE number IN (SELECT number FROM penstock_gone);
        DROP VIEW penstock_present;
        DROP TABLE penstock_gone
    """,
    "chosen": "penstock_message",
    "chosen_held": "penstock_message",
    "among_held": "number IN (SELECT message FROM penstock_held WHERE claim = :claim AND place >= :start AND place < :stop)",
    "as_claimed": AS_CLAIMED,
    "penstock_message": "",
    "in_settled_run": IN_RUN.format(reader="= ''"),
    "in_held_run": IN_RUN.format(reader="<> ''"),
}
