-- Every SQL text of Penstock: the schema as numbered steps, then the statements by name. It is written once for all
-- databases; the words in braces are the differences, which each store gives (the `dialect` of its class).
--
--   penstock_queue    a queue and its settings (JSON)
--                       floor_at, floor_number   where the last of its runs (below) ends; at -1 if it has none
--   penstock_message  a message that is in a queue
--                       visible_at  hidden until then; negative: blocked behind its group's first, and then hidden until -visible_at
--                       state       0 queued, 1 consumed, 4 damaged
--                       receives    how often it was received in this queue
--                       delivery    by which its last receipt is known: the instant of that claim, or one more than the one before
--                       holder      who has received it, if it said so; null once it was given back or moved
--                       head        what is rarely there, as JSON: content type, attributes, own visibility, death
--                       checksum    CRC-32 of all that does not change
--   penstock_gone     on SQLite: the numbers of messages that have left their queue, and are removed by whoever opens the next batch;
--                     until then, whoever only looks takes them away by {present}
--   penstock_mark     what makes the next equal message a duplicate; expires_at 2^62: while the message is in the queue
--   penstock_settled  the history: processed (2) and failed (3) messages
--   penstock_reader   how far a reader of named claims has settled
--   penstock_claim    a named claim: tentative until confirmed
--                       asleep      its messages are hidden for good, although it is tentative: whoever finds that it has lapsed wakes them
--                       run_at      when it was made, if it is a run: all messages between two places (begin, end), which are not
--                                   touched and stand in no list; else null. With no reader it is settled, to be removed
--   penstock_held     its messages in order, each with the delivery that it was claimed under
--   penstock_meta     'version' of this schema, 'salt' of the ids, 'number' up to which messages may have one
--   penstock_session  what a connection to a server has committed last: by this, a commit whose answer was lost is resolved
--   penstock_consumer who consumes a queue, in the order of birth (number), and when it last said so
--   penstock_staged   segments that writers have staged for a batch (SQLite keeps them in files beside the database)
--   penstock_writer   the last batch that each writer has published
--
-- Where a message is sought by its number, the statements see to it that no database finds it cheaper to go through the whole
-- queue: its statistics are always old, and may say that there is nothing (hence = ANY(…), queue + 0, and {message_held}; and on
-- PostgreSQL penstock_ready serves only those statements that name it, by {ready}).
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

-- name: meta
SELECT value FROM penstock_meta WHERE name = :name

-- name: set_meta
{insert_new} penstock_meta (name, value) VALUES (:name, :value) {unless_there}

-- name: change_meta
UPDATE penstock_meta SET value = :value WHERE name = :name

-- name: reserve_numbers
UPDATE penstock_meta SET value = value + :count WHERE name = 'number' RETURNING value

-- name: add_to_meta
UPDATE penstock_meta SET value = value + :count WHERE name = :name

-- name: queues
SELECT name FROM penstock_queue

-- name: queue
SELECT number, settings FROM penstock_queue WHERE name = :name

-- name: keep_queue
SELECT number, settings FROM penstock_queue WHERE name = :name {keep}

-- name: lock_queue
SELECT number, settings FROM penstock_queue WHERE name = :name {for_update}

-- name: add_queue
{insert_new} penstock_queue (name, settings) VALUES (:name, :settings) {unless_there}

-- name: change_queue
UPDATE penstock_queue SET settings = :settings WHERE number = :queue

-- name: drop_queue
DELETE FROM penstock_queue WHERE number = :queue

-- name: drop_messages
DELETE FROM penstock_message WHERE queue = :queue {ready}

-- name: drop_marks
DELETE FROM penstock_mark WHERE queue = :queue

-- name: drop_settled
DELETE FROM penstock_settled WHERE queue = :queue

-- name: drop_readers
DELETE FROM penstock_reader WHERE queue = :queue

-- name: drop_held
DELETE FROM penstock_held WHERE claim IN (SELECT number FROM penstock_claim WHERE queue = :queue)

-- name: drop_consumers
DELETE FROM penstock_consumer WHERE queue = :queue

-- name: drop_claims
DELETE FROM penstock_claim WHERE queue = :queue

-- name: insert
INSERT INTO penstock_message (number, queue, visible_at, state, receives, delivery, sent_at, expires_at, deadline_at, grp, mark, head, checksum, body)
VALUES (:number, :queue, :visible_at, 0, 0, 0, :sent_at, :expires_at, :deadline_at, :grp, :mark, :head, :checksum, :body)

-- name: insert_alone
INSERT INTO penstock_message (number, queue, visible_at, state, receives, delivery, sent_at, expires_at, deadline_at, grp, mark, head, checksum, body)
SELECT :number, :queue, MAX(:visible_at, floor_at), 0, 0, 0, :sent_at, :expires_at, :deadline_at, :grp, :mark, :head, :checksum, :body
FROM penstock_queue
WHERE number = :queue AND settings = :settings AND floor_at <= :earliest
    AND (SELECT value FROM penstock_meta WHERE name = 'number') = :reserved

-- name: insert_together
INSERT INTO penstock_message (number, queue, visible_at, state, receives, delivery, sent_at, expires_at, deadline_at, grp, mark, head, checksum, body)
SELECT column1, penstock_queue.number, MAX(column3, floor_at), 0, 0, 0, column4, column5, column6, column7, column8, column9, column10, column11
FROM (VALUES :rows) CROSS JOIN penstock_queue
WHERE column1 IS NOT NULL AND number = :queue AND settings = :settings AND floor_at <= :earliest
    AND (SELECT value FROM penstock_meta WHERE name = 'number') = :reserved

-- name: insert_told
WITH home AS (SELECT number FROM penstock_queue WHERE name = :name AND settings = :settings {keep}), told AS (
    UPDATE penstock_session SET token = :token WHERE number = :session AND EXISTS (SELECT number FROM home) RETURNING number
)
INSERT INTO penstock_message (number, queue, visible_at, state, receives, delivery, sent_at, expires_at, deadline_at, grp, head, checksum, body)
SELECT :number, home.number, :visible_at, 0, 0, 0, :sent_at, :expires_at, :deadline_at{as_integer}, :grp{as_blob}, :head{as_blob}, :checksum, :body
FROM home, told

-- name: insert_batch_told
WITH home AS (SELECT number FROM penstock_queue WHERE name = :name AND settings = :settings {keep}), told AS (
    UPDATE penstock_session SET token = :token WHERE number = :session AND EXISTS (SELECT number FROM home) RETURNING number
)
INSERT INTO penstock_message (number, queue, visible_at, state, receives, delivery, sent_at, expires_at, checksum, body)
SELECT :first + place, home.number, :visible_at, 0, 0, 0, :sent_at, :expires_at, checksum, body
FROM home, told, unnest(:checksums, :bodies) WITH ORDINALITY AS plain (checksum, body, place)

-- name: mark
SELECT number, expires_at FROM penstock_mark WHERE queue = :queue AND mark = :mark

-- name: unmark
DELETE FROM penstock_mark WHERE queue = :queue AND mark = :mark

-- name: add_mark
INSERT INTO penstock_mark (queue, mark, number, expires_at) VALUES (:queue, :mark, :number, :expires_at)

-- name: unmark_gone
DELETE FROM penstock_mark WHERE queue = :queue AND mark = :mark AND number = :number AND expires_at = :forever

-- name: count_marked
SELECT COUNT(*) FROM penstock_mark WHERE queue = :queue AND expires_at = :forever

-- name: in_group
SELECT number FROM penstock_message WHERE queue = :queue AND grp = :grp AND state <> 4 LIMIT 1

-- name: next_in_group
SELECT number FROM penstock_message WHERE queue = :queue AND grp = :grp AND state <> 4 ORDER BY number LIMIT 1

-- name: leaderless
SELECT MIN(number) FROM penstock_message WHERE queue = :queue AND grp IS NOT NULL AND state <> 4
GROUP BY grp HAVING MAX(visible_at) < 0

-- name: unblock
UPDATE penstock_message SET visible_at = -visible_at WHERE number = :number AND visible_at < 0

-- name: visible
SELECT {columns} FROM penstock_message {by_ready}
WHERE queue = :queue {ready} AND visible_at >= 0 AND visible_at <= :now
ORDER BY visible_at, number LIMIT :limit {skip_locked}

-- name: visible_share
SELECT {columns} FROM penstock_message {by_ready}
WHERE queue = :queue {ready} AND visible_at >= 0 AND visible_at <= :now AND number % :of = :place
ORDER BY visible_at, number LIMIT :limit {skip_locked}

-- name: claim
UPDATE penstock_message
SET visible_at = :until, state = 1, receives = receives + 1, delivery = {later}(delivery + 1, :now), received_at = :now,
    first_received_at = COALESCE(first_received_at, :now), holder = :holder
WHERE number = :number

-- name: claim_all
UPDATE {chosen}
SET visible_at = :until, state = 1, receives = receives + 1, delivery = {later}(delivery + 1, :now), received_at = :now,
    first_received_at = COALESCE(first_received_at, :now), holder = :holder
WHERE number {among}

-- name: claim_at_once
WITH picked AS (
    SELECT ctid AS spot, visible_at, state, delivery AS before FROM penstock_message
    WHERE queue = COALESCE(:queue, (SELECT number FROM penstock_queue WHERE name = :name AND settings = :settings))
    {ready} AND visible_at >= 0 AND visible_at <= :now AND number % :of = :place
    ORDER BY visible_at, number LIMIT :limit {skip_locked}
)
UPDATE penstock_message
SET visible_at = :until, state = 1, receives = receives + 1, delivery = {later}(delivery + 1, :now), received_at = :now,
    first_received_at = COALESCE(first_received_at, :now), holder = :holder
FROM picked WHERE penstock_message.ctid = picked.spot
RETURNING {columns_before}

-- name: one
SELECT {columns} FROM penstock_message WHERE queue = :queue AND number = :number {for_update}

-- name: extend
UPDATE penstock_message SET visible_at = :until, state = :state, holder = CASE :state WHEN 1 THEN holder END
WHERE number = :number AND queue = :queue AND state = 1 AND delivery = COALESCE(:delivery, delivery)

-- name: extend_all
UPDATE {chosen} SET visible_at = :until, state = :state, holder = CASE :state WHEN 1 THEN holder END WHERE number {among}

-- name: set_aside
UPDATE penstock_message SET visible_at = :forever, state = 4, holder = NULL WHERE number = :number

-- name: delete
DELETE FROM penstock_message
WHERE number = :number AND queue = :queue AND delivery = COALESCE(:delivery, delivery)
RETURNING number, delivery, visible_at, state, grp, mark

-- name: delete_alone
{insert_new} penstock_gone SELECT number FROM penstock_message
WHERE number = :number AND delivery = :delivery AND delivery > 0 AND grp IS NULL AND mark IS NULL
AND queue = (SELECT number FROM penstock_queue WHERE number = :queue AND settings = :settings)

-- name: delete_plain
{insert_new} penstock_gone SELECT number FROM penstock_message
WHERE number = :number AND queue = :queue AND delivery = :delivery AND delivery > 0 AND grp IS NULL AND mark IS NULL

-- name: remove_gone
DELETE FROM penstock_message WHERE number IN (SELECT number FROM penstock_gone)

-- name: forget_gone
DELETE FROM penstock_gone

-- name: found
SELECT number, delivery, visible_at, state, grp, mark, queue FROM {chosen} WHERE number {among} ORDER BY number {for_update}

-- name: delete_told
WITH gone AS (
    DELETE FROM penstock_message WHERE number = ANY(:numbers) AND delivery = :delivery AND grp IS NULL AND mark IS NULL
    AND queue + 0 = (SELECT number FROM penstock_queue WHERE name = :name AND settings = :settings)
    AND EXISTS (SELECT number FROM penstock_session WHERE number = :session)
    RETURNING number
), told AS (
    UPDATE penstock_session SET token = CASE (SELECT COUNT(*) FROM gone) WHEN :count THEN :token ELSE -:token END
    WHERE number = :session RETURNING token
)
SELECT CASE (SELECT token FROM told) WHEN :token THEN NULL ELSE ARRAY(SELECT number FROM gone) END

-- name: archive_all
INSERT INTO penstock_settled ({columns}, queue, settled_at, keep_until, reason)
SELECT {columns_settled}, queue, :settled_at, :keep_until, :reason FROM {chosen} WHERE number {among}

-- name: delete_all
DELETE {penstock_message} FROM {chosen} WHERE number {among}

-- name: archive
INSERT INTO penstock_settled ({columns}, queue, settled_at, keep_until, reason)
SELECT {columns_settled}, queue, :settled_at, :keep_until, :reason FROM penstock_message
WHERE number = :number AND queue = :queue AND delivery = COALESCE(:delivery, delivery)

-- name: amend
UPDATE penstock_settled SET state = :state, reason = :reason
WHERE number = :number AND queue = :queue AND delivery = COALESCE(:delivery, delivery)

-- name: move
UPDATE penstock_message
SET queue = :queue, visible_at = :visible_at, state = 0, receives = 0, expires_at = :expires_at, moved_at = :now,
    deadline_at = :deadline_at, mark = :mark, head = :head, checksum = :checksum, holder = NULL
WHERE number = :number

-- name: browse
SELECT {columns} FROM {present}
WHERE queue = :queue {ready} AND visible_at >= 0 AND visible_at <= :now AND (visible_at, number) > (:after_at, :after_number)
AND state = COALESCE(:state, state)
ORDER BY visible_at, number LIMIT :limit

-- name: browse_blocked
SELECT {columns} FROM {present}
WHERE queue = :queue {ready} AND visible_at < 0 AND state = COALESCE(:state, state)
ORDER BY visible_at DESC, number LIMIT :limit

-- name: settled
SELECT {columns}, settled_at, reason FROM penstock_settled WHERE queue = :queue ORDER BY settled_at, number LIMIT :limit

-- name: span
SELECT COUNT(*), MIN(number), MAX(number) FROM {present} WHERE queue = :queue {ready}

-- name: span_settled
SELECT COUNT(*), MIN(number), MAX(number) FROM penstock_settled WHERE queue = :queue

-- name: scan
SELECT {columns} FROM {present}
WHERE queue = :queue {ready} AND number >= :start AND number < :stop ORDER BY number LIMIT :limit

-- name: scan_settled
SELECT {columns}, settled_at, reason FROM penstock_settled
WHERE queue = :queue AND number >= :start AND number < :stop ORDER BY number LIMIT :limit

-- name: count
SELECT 'visible', COUNT(*), MIN(number) FROM {present}
WHERE queue = :queue {ready} AND visible_at >= 0 AND visible_at <= :now HAVING COUNT(*) > 0
UNION ALL
SELECT 'blocked', COUNT(*), MIN(number) FROM {present} WHERE queue = :queue {ready} AND visible_at < 0 HAVING COUNT(*) > 0
UNION ALL
SELECT CASE state WHEN 0 THEN 'delayed' WHEN 1 THEN 'in_flight' ELSE 'damaged' END, COUNT(*), MIN(number) FROM {present}
WHERE queue = :queue {ready} AND visible_at > :now GROUP BY state

-- name: count_settled
SELECT COUNT(*) FROM penstock_settled WHERE queue = :queue

-- name: sent_at
SELECT sent_at FROM penstock_message WHERE number = :number

-- name: due
SELECT visible_at FROM {present} WHERE queue = :queue {ready} AND visible_at >= 0 AND visible_at < :forever
ORDER BY visible_at LIMIT 1

-- name: due_of
SELECT penstock_queue.number, (
    SELECT visible_at FROM penstock_message
    WHERE queue = penstock_queue.number {ready} AND visible_at >= 0 AND visible_at < :forever ORDER BY visible_at LIMIT 1
) FROM penstock_queue WHERE penstock_queue.name = :name

-- name: purgeable
SELECT number, delivery FROM penstock_message
WHERE queue = :queue {ready} AND (number, delivery) NOT IN (
    SELECT penstock_held.message, penstock_held.delivery FROM penstock_held, penstock_claim
    WHERE penstock_held.claim = penstock_claim.number AND penstock_claim.queue = :queue
)
LIMIT :limit

-- name: purgeable_above
SELECT number, delivery FROM penstock_message
WHERE queue = :queue AND (visible_at < 0 OR (visible_at, number) > (:floor_at, :floor_number)) AND (number, delivery) NOT IN (
    SELECT penstock_held.message, penstock_held.delivery FROM penstock_held, penstock_claim
    WHERE penstock_held.claim = penstock_claim.number AND penstock_claim.queue = :queue
)
LIMIT :limit

-- name: sweepable
SELECT 1 FROM penstock_settled WHERE queue = :queue AND keep_until <= :now
UNION ALL SELECT 1 FROM penstock_mark WHERE queue = :queue AND expires_at <= :now LIMIT 1

-- name: sweep_settled_until
SELECT keep_until FROM penstock_settled WHERE queue = :queue AND keep_until <= :now ORDER BY keep_until LIMIT 1 OFFSET :most

-- name: sweep_marks_until
SELECT expires_at FROM penstock_mark WHERE queue = :queue AND expires_at <= :now ORDER BY expires_at LIMIT 1 OFFSET :most

-- name: sweep_settled
DELETE FROM penstock_settled WHERE queue = :queue AND keep_until <= :now

-- name: sweep_marks
DELETE FROM penstock_mark WHERE queue = :queue AND expires_at <= :now

-- name: reader
SELECT settled FROM penstock_reader WHERE queue = :queue AND name = :reader

-- name: readers
SELECT name FROM penstock_reader WHERE queue = :queue

-- name: add_reader
{insert_new} penstock_reader (queue, name) VALUES (:queue, :reader) {unless_there}

-- name: settle_reader
UPDATE penstock_reader SET settled = :epoch WHERE queue = :queue AND name = :reader AND COALESCE(settled, :epoch) <= :epoch

-- name: drop_reader
DELETE FROM penstock_reader WHERE queue = :queue AND name = :reader

-- name: claims
SELECT number, epoch, size, confirmed, lapses_at, asleep, run_at FROM penstock_claim WHERE queue = :queue AND reader = :reader ORDER BY epoch

-- name: add_claim
INSERT INTO penstock_claim (queue, reader, epoch, confirmed, lapses_at, size)
VALUES (:queue, :reader, :epoch, 0, :lapses_at, :size)

-- name: add_held
INSERT INTO penstock_held (claim, place, message, delivery) VALUES (:claim, :place, :message, :delivery)

-- name: confirm
UPDATE penstock_claim SET confirmed = 1, lapses_at = :forever, asleep = 0 WHERE number = :claim

-- name: floor
SELECT floor_at, floor_number, EXISTS (
    SELECT 1 FROM penstock_claim WHERE penstock_claim.queue = penstock_queue.number AND asleep = 1 AND lapses_at <= :now
) FROM penstock_queue WHERE number = :queue

-- name: set_floor
UPDATE penstock_queue SET
    floor_at = COALESCE((SELECT MAX(end_at) FROM penstock_claim WHERE queue = :queue AND run_at IS NOT NULL), -1),
    floor_number = COALESCE((
        SELECT end_number FROM penstock_claim WHERE queue = :queue AND run_at IS NOT NULL ORDER BY end_at DESC, end_number DESC LIMIT 1
    ), 0)
WHERE number = :queue

-- name: in_run
SELECT visible_at, number FROM penstock_message WHERE number {among} AND queue = :queue
AND visible_at >= 0 AND (visible_at, number) <= (:floor_at, :floor_number)

-- name: visible_above
SELECT * FROM (
    SELECT {columns} FROM penstock_message
    WHERE queue = :queue AND visible_at = :floor_at AND :floor_at <= :now AND number > :floor_number AND number % :of = :place
    ORDER BY number LIMIT :limit
) AS at_floor UNION ALL SELECT * FROM (
    SELECT {columns} FROM penstock_message
    WHERE queue = :queue AND visible_at > :floor_at AND visible_at <= :now AND number % :of = :place
    ORDER BY visible_at, number LIMIT :limit
) AS above LIMIT :limit

-- name: due_above
SELECT COALESCE(
    (SELECT visible_at FROM {present} WHERE queue = :queue AND visible_at = :floor_at AND number > :floor_number LIMIT 1),
    (SELECT MIN(visible_at) FROM {present} WHERE queue = :queue AND visible_at > :floor_at AND visible_at < :forever)
)

-- name: place_above
SELECT visible_at, number FROM penstock_message WHERE queue = :queue AND visible_at = :floor_at AND number > :floor_number
UNION ALL SELECT visible_at, number FROM penstock_message WHERE queue = :queue AND visible_at > :floor_at
ORDER BY visible_at, number LIMIT 1 OFFSET :place

-- name: count_visible
SELECT COUNT(*) FROM (
    SELECT 1 FROM penstock_message
    WHERE queue = :queue AND visible_at = :floor_at AND :floor_at <= :visible_by AND number > :floor_number
    UNION ALL SELECT 1 FROM penstock_message WHERE queue = :queue AND visible_at > :floor_at AND visible_at <= :visible_by
    LIMIT :limit
) AS picked

-- name: count_early
SELECT COUNT(*) FROM {present}
WHERE queue = :queue AND visible_at > :now AND visible_at <= :floor_at AND (visible_at, number) <= (:floor_at, :floor_number)

-- name: weigh
SELECT COUNT(*), COALESCE(SUM(CASE WHEN delivery = 0 AND grp IS NULL AND mark IS NULL THEN 1 ELSE 0 END), 0)
FROM (
    SELECT visible_at, number FROM penstock_message
    WHERE queue = :queue AND visible_at = :floor_at AND :floor_at <= :visible_by AND number > :floor_number
    UNION ALL SELECT visible_at, number FROM penstock_message
    WHERE queue = :queue AND visible_at > :floor_at AND visible_at <= :visible_by
    ORDER BY visible_at, number LIMIT :limit
) AS picked CROSS JOIN penstock_message
WHERE penstock_message.number = picked.number
AND receives < :most AND expires_at > :now AND COALESCE(moved_at, sent_at) > :since AND COALESCE(deadline_at, :forever) > :now

-- name: hold_between
INSERT INTO penstock_held (claim, place, message, delivery)
SELECT :claim, ROW_NUMBER() OVER (ORDER BY visible_at, number) - 1, number, {later}(delivery + 1, :run_at) FROM penstock_message
WHERE queue = :queue AND visible_at >= 0 AND visible_at <= :end_at
AND (visible_at, number) > (:begin_at, :begin_number) AND (visible_at, number) <= (:end_at, :end_number)
ORDER BY visible_at, number

-- name: hide_held
UPDATE penstock_message
SET visible_at = :until, state = 1, receives = receives + 1, delivery = {later}(delivery + 1, :now), received_at = :now,
    first_received_at = COALESCE(first_received_at, :now), holder = :holder
WHERE number IN (SELECT message FROM penstock_held WHERE claim = :claim)

-- name: show_run
UPDATE penstock_message
SET visible_at = :until, state = 0, receives = receives + 1, delivery = {later}(delivery + 1, :run_at), received_at = :run_at,
    first_received_at = COALESCE(first_received_at, :run_at)
WHERE number IN (
    SELECT number FROM penstock_message
    WHERE queue = :queue AND visible_at >= 0 AND visible_at <= :end_at
    AND (visible_at, number) > (:begin_at, :begin_number) AND (visible_at, number) <= (:end_at, :end_number)
)

-- name: fall_asleep
UPDATE penstock_claim SET asleep = 1 WHERE number = :claim

-- name: begin_run
UPDATE penstock_claim SET run_at = :run_at, begin_at = :begin_at, begin_number = :begin_number, end_at = :end_at, end_number = :end_number
WHERE number = :claim

-- name: runs
SELECT number, reader, epoch, size, run_at, begin_at, begin_number, end_at, end_number, lapses_at FROM penstock_claim
WHERE queue = :queue AND run_at IS NOT NULL ORDER BY end_at, end_number

-- name: end_run
UPDATE penstock_claim SET run_at = NULL WHERE number = :claim

-- name: read_run
SELECT {columns} FROM penstock_message
WHERE queue = :queue AND visible_at >= 0 AND visible_at <= :end_at
AND (visible_at, number) > (:begin_at, :begin_number) AND (visible_at, number) <= (:end_at, :end_number)
ORDER BY visible_at, number LIMIT :count OFFSET :start

-- name: settle_run
UPDATE penstock_claim SET reader = '', epoch = number, confirmed = 1, asleep = 0, lapses_at = :forever WHERE number = :claim

-- name: remove_of_run
DELETE FROM penstock_message WHERE number IN (
    SELECT number FROM penstock_message
    WHERE queue = :queue AND visible_at >= 0 AND visible_at <= :end_at
    AND (visible_at, number) > (:begin_at, :begin_number) AND (visible_at, number) <= (:end_at, :end_number)
    ORDER BY visible_at, number LIMIT :limit
)

-- name: is_all
SELECT NOT EXISTS (SELECT 1 FROM penstock_message WHERE queue < :queue) AND NOT EXISTS (SELECT 1 FROM penstock_message WHERE queue > :queue)
AND NOT EXISTS (SELECT 1 FROM penstock_message WHERE queue = :queue AND visible_at < 0)
AND NOT EXISTS (SELECT 1 FROM penstock_message WHERE queue = :queue AND visible_at > :end_at)
AND NOT EXISTS (SELECT 1 FROM penstock_message WHERE queue = :queue AND visible_at = :end_at AND number > :end_number)
AND NOT EXISTS (SELECT 1 FROM penstock_claim WHERE queue = :queue AND run_at IS NOT NULL AND number <> :claim)

-- name: delete_each
DELETE FROM penstock_message

-- name: shorten_run
UPDATE penstock_claim SET size = size - :gone WHERE number = :claim

-- name: scan_unsettled
SELECT {columns} FROM {present}
WHERE queue = :queue AND number >= :start AND number < :stop AND NOT EXISTS (
    SELECT 1 FROM penstock_claim WHERE penstock_claim.queue = :queue AND reader = '' AND run_at IS NOT NULL AND visible_at >= 0
    AND (visible_at, penstock_message.number) > (begin_at, begin_number) AND (visible_at, penstock_message.number) <= (end_at, end_number)
) ORDER BY number LIMIT :limit

-- name: first_unsettled
SELECT MIN(number) FROM {present} WHERE queue = :queue AND NOT EXISTS (
    SELECT 1 FROM penstock_claim WHERE penstock_claim.queue = :queue AND reader = '' AND run_at IS NOT NULL AND visible_at >= 0
    AND (visible_at, penstock_message.number) > (begin_at, begin_number) AND (visible_at, penstock_message.number) <= (end_at, end_number)
)

-- name: sleepers
SELECT number, lapses_at FROM penstock_claim WHERE queue = :queue AND asleep = 1 AND lapses_at <= :now

-- name: asleep
SELECT {asleep_columns} FROM penstock_claim, penstock_held, {present}
WHERE penstock_claim.queue = :queue AND asleep = 1 AND penstock_held.claim = penstock_claim.number
AND penstock_message.number = penstock_held.message AND penstock_message.delivery = penstock_held.delivery
ORDER BY penstock_claim.lapses_at, penstock_message.number LIMIT :limit

-- name: hidden_for_good
SELECT number FROM penstock_message WHERE number {among} AND queue = :queue AND state = 1 AND visible_at = :forever

-- name: sleepers_of
SELECT DISTINCT penstock_claim.number, lapses_at FROM penstock_claim, penstock_held
WHERE queue = :queue AND asleep = 1 AND claim = penstock_claim.number AND message {among}

-- name: wakes_at
SELECT MIN(lapses_at) FROM penstock_claim WHERE queue = :queue AND asleep = 1

-- name: wake
UPDATE penstock_claim SET asleep = 0 WHERE number = :claim

-- name: all_plain
SELECT NOT EXISTS (
    SELECT 1 FROM penstock_held LEFT JOIN penstock_message ON penstock_message.number = penstock_held.message
    WHERE claim = :claim AND NOT (
        queue = :queue AND penstock_message.delivery = penstock_held.delivery AND grp IS NULL AND mark IS NULL AND state <> 4
    ) IS TRUE
)

-- name: delete_held
DELETE FROM penstock_message WHERE number IN (SELECT message FROM penstock_held WHERE claim = :claim)

-- name: held
SELECT message, delivery FROM penstock_held WHERE claim = :claim ORDER BY place

-- name: read
SELECT {held_columns} FROM penstock_held, {message_held}
WHERE penstock_held.claim = :claim AND penstock_held.place >= :start AND penstock_held.place < :stop
AND penstock_message.number = penstock_held.message AND penstock_message.delivery = penstock_held.delivery
ORDER BY penstock_held.place

-- name: release_claim
DELETE FROM penstock_claim WHERE number = :claim

-- name: release_held
DELETE FROM penstock_held WHERE claim = :claim

-- name: open_session
INSERT INTO penstock_session (number, token, opened_at) VALUES (:session, :token, :now)

-- name: tell
UPDATE penstock_session SET token = :token WHERE number = :session

-- name: told
SELECT token FROM penstock_session WHERE number = :session

-- name: close_session
DELETE FROM penstock_session WHERE number = :session

-- name: sweep_sessions
DELETE FROM penstock_session WHERE opened_at < :before

-- name: enroll
INSERT INTO penstock_consumer (queue, name, beat_at) VALUES (:queue, :consumer, :now)

-- name: beat
UPDATE penstock_consumer SET beat_at = :now WHERE queue = :queue AND name = :consumer

-- name: living
SELECT consumer.name FROM penstock_queue AS home LEFT JOIN penstock_consumer AS consumer ON consumer.queue = home.number
WHERE home.name = :name ORDER BY consumer.number

-- name: strike
DELETE FROM penstock_consumer WHERE queue = :queue AND beat_at < :before

-- name: leave
DELETE FROM penstock_consumer WHERE queue = :queue AND name = :consumer

-- name: stage
INSERT INTO penstock_staged (writer, batch, name, staged_at, segment) VALUES (:writer, :batch, :name, :now, :segment)

-- name: staged
SELECT writer, batch, name, staged_at FROM penstock_staged

-- name: fetch
SELECT segment FROM penstock_staged WHERE writer = :writer AND batch = :batch AND name = :name

-- name: unstage
DELETE FROM penstock_staged WHERE writer = :writer AND batch = :batch AND name = :name

-- name: unstage_all
DELETE FROM penstock_staged WHERE writer = :writer AND batch <= :batch

-- name: enter_writer
{insert_new} penstock_writer (name, batch, keep_until) VALUES (:writer, -1, :forever) {unless_there}

-- name: lock_writer
SELECT batch FROM penstock_writer WHERE name = :writer {for_update}

-- name: note_published
UPDATE penstock_writer SET batch = :batch, keep_until = :keep_until WHERE name = :writer

-- name: forgettable
SELECT 1 FROM penstock_writer WHERE keep_until <= :now LIMIT 1

-- name: forget_writers
DELETE FROM penstock_writer WHERE keep_until <= :now
