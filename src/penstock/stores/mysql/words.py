"""What MySQL puts for the words in braces in the SQL texts, and where its texts are."""

TEXTS = [("penstock.stores.dbserver", "server.sql"), ("penstock.stores.mysql", "mysql.sql")]
WORDS = {
    "serial": "BIGINT AUTO_INCREMENT PRIMARY KEY",
    "integer": "BIGINT",
    "name": "VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "text": "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "key": "VARBINARY(512)",
    "blob": "LONGBLOB",
    "where_grouped": "",
    "skip_locked": "FOR UPDATE SKIP LOCKED",
    "for_update": "FOR UPDATE",
    "keep": "LOCK IN SHARE MODE",
    "passing": "",
    "insert_new": "INSERT IGNORE INTO",
    "unless_there": "",
    # With IGNORE the server locks a row that is there for sharing, and two that want it alone then are a deadlock.
    "or_lock": "ON DUPLICATE KEY UPDATE batch = batch",
    # `chosen` looks up each number: given a list, the server scans, and locks rows that others hold.
    "removed_later": "",
    "removed_at_once": "",
    "chosen": "JSON_TABLE(:numbers, '$[*]' COLUMNS (chosen BIGINT PATH '$')) AS chosen "
    "STRAIGHT_JOIN penstock_message FORCE INDEX (PRIMARY)",
    "among": "= chosen",
    "chosen_held": "(SELECT message AS chosen, delivery AS claimed FROM penstock_held "
    "WHERE claim = :claim AND place >= :start AND place < :stop) AS chosen "
    "STRAIGHT_JOIN penstock_message FORCE INDEX (PRIMARY)",
    "among_held": "number = chosen",
    "as_claimed": "number = chosen AND delivery = claimed",
    "later": "GREATEST",
    "now": "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)",
    "by_ready": "FORCE INDEX (penstock_ready)",
    "by_group": "FORCE INDEX (penstock_group)",
    "ready": "",
    "only_by_name": "",
    "message_held": "penstock_message",
    "penstock_message": "penstock_message",
}
