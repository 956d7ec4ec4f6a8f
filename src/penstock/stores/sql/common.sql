-- The statements that all databases share.

-- name: meta
SELECT value FROM penstock_meta WHERE name = :name

-- name: set_meta
{insert_new} penstock_meta (name, value) VALUES (:name, :value) {unless_there}

-- name: change_meta
UPDATE penstock_meta SET value = :value WHERE name = :name

-- name: queues
SELECT name FROM penstock_queue

-- name: home
SELECT name FROM penstock_queue WHERE number = (SELECT queue FROM penstock_message WHERE number = :number)

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

-- name: mark
SELECT number, expires_at FROM penstock_mark WHERE queue = :queue AND mark = :mark

-- name: unmark
DELETE FROM penstock_mark WHERE queue = :queue AND mark = :mark

-- name: add_mark
INSERT INTO penstock_mark (queue, mark, number, expires_at) VALUES (:queue, :mark, :number, :expires_at)

-- name: unmark_gone
DELETE FROM penstock_mark WHERE queue = :queue AND mark = :mark AND number = :number AND expires_at = :forever

-- name: forget_marks
DELETE FROM penstock_mark WHERE queue = :queue AND expires_at < :forever

-- name: count_marked
SELECT COUNT(*) FROM penstock_mark WHERE queue = :queue AND expires_at = :forever

-- name: in_group
SELECT number FROM penstock_message WHERE queue = :queue AND grp = :grp AND state <> 4 LIMIT 1

-- name: next_in_group
SELECT number, moved_at IS NOT NULL AND receives = 0 FROM penstock_message
WHERE queue = :queue AND grp = :grp AND state <> 4 ORDER BY number LIMIT 1

-- name: received_in_group
SELECT number FROM penstock_message WHERE queue = :queue AND grp = :grp AND state = 1 ORDER BY number LIMIT 1

-- name: behind
SELECT {columns} FROM penstock_message {by_group}
WHERE queue = :queue AND grp = :grp AND state <> 4 AND visible_at < 0 ORDER BY number LIMIT :limit

-- name: leaderless
SELECT grp FROM penstock_message WHERE queue = :queue AND grp IS NOT NULL AND state <> 4
GROUP BY grp HAVING MAX(visible_at) < 0

-- name: unblock
UPDATE penstock_message SET visible_at = -visible_at WHERE number = :number AND visible_at < 0

-- name: visible
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
SET visible_at = CASE WHEN visible_at < 0 THEN -:until ELSE :until END, state = 1, receives = receives + 1, delivery = {later}(delivery + 1, :now), received_at = :now,
    first_received_at = COALESCE(first_received_at, :now), holder = :holder
WHERE number {among}

-- name: one
SELECT {columns} FROM penstock_message WHERE queue = :queue AND number = :number {for_update}

-- name: extend
UPDATE penstock_message
SET visible_at = CASE WHEN visible_at < 0 THEN -:until ELSE :until END, state = :state, holder = CASE :state WHEN 1 THEN holder END
WHERE number = :number AND queue = :queue AND state = 1 AND delivery = COALESCE(:delivery, delivery)

-- name: note_failure
UPDATE penstock_message SET head = :head, checksum = :checksum WHERE number = :number

-- name: hide_held
UPDATE {chosen_held}
SET visible_at = :until, state = 1, receives = receives + 1, delivery = {later}(delivery + 1, :now), received_at = :now,
    first_received_at = COALESCE(first_received_at, :now), holder = :holder
WHERE {among_held}

-- name: extend_held
UPDATE {chosen_held} SET visible_at = :until, state = :state, holder = CASE :state WHEN 1 THEN holder END
WHERE {as_claimed} AND queue + 0 = :queue AND state = 1

-- name: set_aside
UPDATE penstock_message SET visible_at = :forever, state = 4, holder = NULL WHERE number = :number

-- name: found
SELECT number, delivery, visible_at, state, grp, mark, queue FROM {chosen} WHERE number {among} ORDER BY number {for_update}

-- name: archive_all
INSERT INTO penstock_settled ({columns}, queue, settled_at, keep_until, reason)
SELECT {columns_settled}, queue, :settled_at, :keep_until, :reason FROM {chosen} WHERE number {among}

-- name: delete_all
DELETE {penstock_message} FROM {chosen} WHERE number {among}

-- name: lock_held
SELECT COUNT(mark) FROM (
    SELECT mark FROM {chosen_held} WHERE {as_claimed} AND queue + 0 = :queue AND state <> 4 {for_update}
) AS found

-- name: archive_held
INSERT INTO penstock_settled ({columns}, queue, settled_at, keep_until, reason)
SELECT {columns_settled}, queue, :settled_at, :keep_until, :reason FROM {chosen_held}
WHERE {as_claimed} AND queue + 0 = :queue AND state <> 4

-- name: delete_held
DELETE {penstock_message} FROM {chosen_held} WHERE {as_claimed} AND queue + 0 = :queue AND state <> 4

-- name: amend
UPDATE penstock_settled SET state = :state, reason = :reason
WHERE number = :number AND queue = :queue AND delivery = COALESCE(:delivery, delivery)

-- name: move
UPDATE penstock_message
SET queue = :queue, visible_at = :visible_at, state = 0, receives = 0, expires_at = :expires_at, moved_at = :now,
    deadline_at = :deadline_at, mark = :mark, head = :head, checksum = :checksum, holder = NULL
WHERE number = :number

-- name: browse
SELECT {columns} FROM penstock_message
WHERE queue = :queue {ready} AND visible_at >= 0 AND visible_at <= :now AND (visible_at, number) > (:after_at, :after_number)
AND state = COALESCE(:state, state)
ORDER BY visible_at, number LIMIT :limit

-- name: browse_blocked
SELECT {columns} FROM penstock_message
WHERE queue = :queue {ready} AND visible_at < 0 AND (-visible_at, number) > (:after_at, :after_number)
AND state = COALESCE(:state, state)
ORDER BY visible_at DESC, number LIMIT :limit

-- name: settled
SELECT {columns}, settled_at, reason FROM penstock_settled
WHERE queue = :queue AND (settled_at, number) > (:after_at, :after_number) ORDER BY settled_at, number LIMIT :limit

-- name: span
SELECT COUNT(*), MIN(number), MAX(number) FROM penstock_message WHERE queue = :queue {ready}

-- name: span_settled
SELECT COUNT(*), MIN(number), MAX(number) FROM penstock_settled WHERE queue = :queue

-- name: scan
SELECT {columns} FROM penstock_message WHERE {by_queue} = :queue {ready} AND number >= :start AND number < :stop {first_of_these}

-- name: scan_few
SELECT {columns} FROM penstock_message WHERE queue + 0 = :queue {ready} AND number >= :start AND number < :stop {first_of_these}

-- name: scan_settled
SELECT {all_settled_columns} FROM penstock_settled WHERE {by_queue} = :queue AND number >= :start AND number < :stop {first_of_these}

-- name: count
SELECT 'visible', COUNT(*), MIN(number) FROM penstock_message
WHERE queue = :queue {ready} AND visible_at >= 0 AND visible_at <= :now HAVING COUNT(*) > 0
UNION ALL
SELECT 'blocked', COUNT(*), MIN(number) FROM penstock_message
WHERE queue = :queue {ready} AND visible_at < 0 AND visible_at >= -:now HAVING COUNT(*) > 0
UNION ALL
SELECT CASE state WHEN 1 THEN 'in_flight' ELSE 'blocked' END, COUNT(*), MIN(number) FROM penstock_message
WHERE queue = :queue {ready} AND visible_at < -:now GROUP BY state
UNION ALL
SELECT CASE state WHEN 0 THEN 'delayed' WHEN 1 THEN 'in_flight' ELSE 'damaged' END, COUNT(*), MIN(number) FROM penstock_message
WHERE queue = :queue {ready} AND visible_at > :now GROUP BY state

-- name: count_settled
SELECT COUNT(*) FROM penstock_settled WHERE queue = :queue

-- name: sent_at
SELECT sent_at FROM penstock_message WHERE number = :number

-- name: purgeable
SELECT number, delivery FROM penstock_message
WHERE queue = :queue {ready} AND (number, delivery) NOT IN (
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

-- name: held
SELECT message, delivery FROM penstock_held WHERE claim = :claim ORDER BY place

-- name: more_held
SELECT 1 FROM penstock_held WHERE claim = :claim AND place >= :start LIMIT 1

-- name: read
SELECT {held_columns} FROM penstock_held, {message_held}
WHERE penstock_held.claim = :claim AND penstock_held.place >= :start AND penstock_held.place < :stop
AND penstock_message.number = penstock_held.message AND penstock_message.delivery = penstock_held.delivery
ORDER BY penstock_held.place

-- name: grow_claim
UPDATE penstock_claim SET size = :size WHERE number = :claim

-- name: fall_asleep
UPDATE penstock_claim SET asleep = 1 WHERE number = :claim

-- name: sleepers
SELECT number, lapses_at FROM penstock_claim WHERE queue = :queue AND asleep = 1 AND lapses_at <= :now

-- name: wake
UPDATE penstock_claim SET asleep = 0 WHERE number = :claim

-- name: asleep
SELECT {asleep_columns} FROM penstock_claim, penstock_held, {message_held}
WHERE penstock_claim.queue = :queue AND asleep = 1 AND penstock_held.claim = penstock_claim.number
AND penstock_message.number = penstock_held.message AND penstock_message.delivery = penstock_held.delivery
AND (penstock_claim.lapses_at, penstock_message.number) > (:after_at, :after_number)
ORDER BY penstock_claim.lapses_at, penstock_message.number LIMIT :limit

-- name: hidden_for_good
SELECT number FROM {chosen} WHERE number {among} AND queue + 0 = :queue AND state = 1 AND visible_at = :forever

-- name: release_claim
DELETE FROM penstock_claim WHERE number = :claim

-- name: release_held
DELETE FROM penstock_held WHERE claim = :claim

-- name: enroll
INSERT INTO penstock_consumer (queue, name, beat_at) VALUES (:queue, :consumer, :now)

-- name: beat
UPDATE penstock_consumer SET beat_at = :now WHERE queue = :queue AND name = :consumer

-- name: living
SELECT consumer.name FROM penstock_queue AS queue LEFT JOIN penstock_consumer AS consumer ON consumer.queue = queue.number
WHERE queue.name = :name ORDER BY consumer.number

-- name: strike
DELETE FROM penstock_consumer WHERE queue = :queue AND beat_at < :before

-- name: leave
DELETE FROM penstock_consumer WHERE queue = :queue AND name = :consumer

-- name: enter_writer
INSERT INTO penstock_writer (name, batch, keep_until) VALUES (:writer, -1, :forever) {or_lock}

-- name: lock_writer
SELECT batch, digest FROM penstock_writer WHERE name = :writer {for_update}

-- name: note_published
UPDATE penstock_writer SET batch = :batch, digest = :digest, keep_until = :keep_until WHERE name = :writer

-- name: forgettable
SELECT 1 FROM penstock_writer WHERE keep_until <= :now LIMIT 1

-- name: forget_writers
DELETE FROM penstock_writer WHERE keep_until <= :now
