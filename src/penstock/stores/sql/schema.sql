-- The schema, as numbered steps for all databases. The words in braces differ: each database gives its own (`WORDS`).
-- The statements are in common.sql, and in the package of each database those that it alone has.
--
--   penstock_queue    a queue and its settings (JSON)
--                       floor_at, floor_number   where the last of its runs (below) ends; at -1 if it has none
--   penstock_message  a message that is in a queue
--                       visible_at  hidden until then; negative: blocked behind its group's first, and then hidden until -visible_at
--                       state       0 queued, 1 consumed, 4 damaged
--                       receives    how often it was received in this queue
--                       delivery    identifies its last receipt: the instant of that claim, or one more than the delivery before
--                       holder      the receiver, if it gave its name; null once the message was given back or moved
--                       head        what is rarely there, as JSON: content type, attributes, own visibility, death
--                       checksum    CRC-32 of all that does not change
--   penstock_mark     makes the next equal message a duplicate; expires_at 2^62: as long as the message is in the queue
--   penstock_settled  the history: processed (2) and failed (3) messages
--   penstock_reader   the last epoch that a reader of named claims has settled
--   penstock_claim    a named claim: tentative until confirmed
--                       asleep      its messages are hidden for good although it is tentative; a search that finds it lapsed wakes it
--                       run_at      when it was made, if it is a run: all messages between two positions (begin, end), whose rows
--                                   are not changed and which are in no list; else null. A run without a reader is settled
--   penstock_held     the messages of a claim in order, each with the delivery under which it was claimed
--   penstock_meta     the 'version' of this schema, the 'salt' of the ids, the last 'number' that was reserved for a message
--   penstock_session  the last commit of each connection to a server: it resolves a commit whose answer was lost
--   penstock_consumer the consumers of a queue in the order in which they registered, and when each was last alive
--   penstock_staged   segments that writers have staged for a batch (SQLite keeps them in files beside the database)
--   penstock_writer   the last batch that each writer has published
--
-- Statements that look up a message by its number make sure that no query planner scans the whole queue instead: its statistics
-- are always outdated, and may say that the queue is empty (hence = ANY(…), queue + 0 and {message_held}; on PostgreSQL, only
-- statements with {ready} can use the index penstock_ready).
--
-- To change the schema: add a step with the next number; never edit one that was released.

-- step: 1
CREATE TABLE penstock_queue (
    number {serial},
    name {name} NOT NULL UNIQUE,
    settings {text} NOT NULL
);
CREATE TABLE penstock_message (
    number {integer} NOT NULL PRIMARY KEY,
    queue {integer} NOT NULL,
    visible_at {integer} NOT NULL,
    state {integer} NOT NULL,
    receives {integer} NOT NULL,
    delivery {integer} NOT NULL,
    sent_at {integer} NOT NULL,
    expires_at {integer} NOT NULL,
    deadline_at {integer},
    moved_at {integer},
    first_received_at {integer},
    received_at {integer},
    grp {key},
    mark {key},
    head {blob},
    checksum {integer} NOT NULL,
    body {blob} NOT NULL
);
CREATE INDEX penstock_ready ON penstock_message (queue, visible_at, number);
CREATE INDEX penstock_group ON penstock_message (queue, grp, number) {where_grouped};
CREATE TABLE penstock_mark (
    queue {integer} NOT NULL,
    mark {key} NOT NULL,
    number {integer} NOT NULL,
    expires_at {integer} NOT NULL,
    PRIMARY KEY (queue, mark)
);
CREATE INDEX penstock_mark_end ON penstock_mark (queue, expires_at);
CREATE TABLE penstock_settled (
    number {integer} NOT NULL PRIMARY KEY,
    queue {integer} NOT NULL,
    visible_at {integer} NOT NULL,
    state {integer} NOT NULL,
    receives {integer} NOT NULL,
    delivery {integer} NOT NULL,
    sent_at {integer} NOT NULL,
    expires_at {integer} NOT NULL,
    deadline_at {integer},
    moved_at {integer},
    first_received_at {integer},
    received_at {integer},
    grp {key},
    mark {key},
    head {blob},
    checksum {integer} NOT NULL,
    body {blob} NOT NULL,
    settled_at {integer} NOT NULL,
    keep_until {integer} NOT NULL,
    reason {text}
);
CREATE INDEX penstock_settled_order ON penstock_settled (queue, settled_at, number);
CREATE INDEX penstock_settled_end ON penstock_settled (queue, keep_until);
CREATE TABLE penstock_reader (
    queue {integer} NOT NULL,
    name {name} NOT NULL,
    settled {integer},
    PRIMARY KEY (queue, name)
);
CREATE TABLE penstock_claim (
    number {serial},
    queue {integer} NOT NULL,
    reader {name} NOT NULL,
    epoch {integer} NOT NULL,
    confirmed {integer} NOT NULL,
    lapses_at {integer} NOT NULL,
    size {integer} NOT NULL,
    UNIQUE (queue, reader, epoch)
);
CREATE TABLE penstock_held (
    claim {integer} NOT NULL,
    place {integer} NOT NULL,
    message {integer} NOT NULL,
    delivery {integer} NOT NULL,
    PRIMARY KEY (claim, place)
);

-- step: 2
CREATE TABLE penstock_session (
    number {integer} NOT NULL PRIMARY KEY,
    token {integer} NOT NULL,
    opened_at {integer} NOT NULL
);
CREATE TABLE penstock_consumer (
    number {serial},
    queue {integer} NOT NULL,
    name {name} NOT NULL UNIQUE,
    beat_at {integer} NOT NULL
);
CREATE INDEX penstock_consumer_queue ON penstock_consumer (queue, number);

-- step: 3
CREATE {passing} TABLE penstock_staged (
    writer {name} NOT NULL,
    batch {integer} NOT NULL,
    name {name} NOT NULL,
    staged_at {integer} NOT NULL,
    segment {blob} NOT NULL,
    PRIMARY KEY (writer, batch, name)
);
CREATE TABLE penstock_writer (
    name {name} NOT NULL PRIMARY KEY,
    batch {integer} NOT NULL,
    keep_until {integer} NOT NULL
);

-- step: 4
ALTER TABLE penstock_claim ADD COLUMN asleep {integer} NOT NULL DEFAULT 0;
{only_by_name};

-- step: 5
ALTER TABLE penstock_queue ADD COLUMN floor_at {integer} NOT NULL DEFAULT -1;
ALTER TABLE penstock_queue ADD COLUMN floor_number {integer} NOT NULL DEFAULT 0;
ALTER TABLE penstock_claim ADD COLUMN run_at {integer};
ALTER TABLE penstock_claim ADD COLUMN begin_at {integer};
ALTER TABLE penstock_claim ADD COLUMN begin_number {integer};
ALTER TABLE penstock_claim ADD COLUMN end_at {integer};
ALTER TABLE penstock_claim ADD COLUMN end_number {integer};

-- step: 6
{removed_later};

-- step: 7
ALTER TABLE penstock_message ADD COLUMN holder {key};
ALTER TABLE penstock_settled ADD COLUMN holder {key};

-- step: 8
{removed_at_once};

-- step: 9
ALTER TABLE penstock_writer ADD COLUMN digest {name};
