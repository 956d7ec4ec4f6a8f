-- The statements that look at the whole database: for backups (all_…, load_…, void_…) and for checks (bad_…, drop_…).
--
-- A table is read in parts, in the order of its key: `after` is where the last part ended. `parent` is the queue or the claim.

-- name: all_queues
SELECT number, name, settings, floor_at, floor_number FROM penstock_queue WHERE number > :after ORDER BY number LIMIT :limit

-- name: load_queues
INSERT INTO penstock_queue (number, name, settings, floor_at, floor_number)
VALUES (:number, :name, :settings, :floor_at, :floor_number)

-- name: all_messages
SELECT {columns}, queue FROM penstock_message WHERE number > :after ORDER BY number LIMIT :limit

-- name: load_messages
INSERT INTO penstock_message ({columns}, queue) VALUES ({given}, :queue)

-- name: all_settled
SELECT {columns}, queue, settled_at, keep_until, reason FROM penstock_settled WHERE number > :after ORDER BY number LIMIT :limit

-- name: load_settled
INSERT INTO penstock_settled ({columns}, queue, settled_at, keep_until, reason)
VALUES ({given}, :queue, :settled_at, :keep_until, :reason)

-- name: all_marks
SELECT mark, queue, number, expires_at FROM penstock_mark WHERE queue = :parent AND mark > :after ORDER BY mark LIMIT :limit

-- name: load_marks
INSERT INTO penstock_mark (mark, queue, number, expires_at) VALUES (:mark, :queue, :number, :expires_at)

-- name: all_readers
SELECT name, queue, settled FROM penstock_reader WHERE queue = :parent AND name > :after ORDER BY name LIMIT :limit

-- name: load_readers
INSERT INTO penstock_reader (name, queue, settled) VALUES (:name, :queue, :settled)

-- name: all_claims
SELECT number, queue, reader, epoch, confirmed, lapses_at, size, asleep, run_at, begin_at, begin_number, end_at, end_number
FROM penstock_claim WHERE number > :after ORDER BY number LIMIT :limit

-- name: load_claims
INSERT INTO penstock_claim (number, queue, reader, epoch, confirmed, lapses_at, size, asleep, run_at, begin_at, begin_number, end_at, end_number)
VALUES (:number, :queue, :reader, :epoch, :confirmed, :lapses_at, :size, :asleep, :run_at, :begin_at, :begin_number, :end_at, :end_number)

-- name: all_held
SELECT place, claim, message, delivery FROM penstock_held WHERE claim = :parent AND place > :after ORDER BY place LIMIT :limit

-- name: load_held
INSERT INTO penstock_held (place, claim, message, delivery) VALUES (:place, :claim, :message, :delivery)

-- name: all_writers
SELECT name, batch, keep_until, digest FROM penstock_writer WHERE name > :after ORDER BY name LIMIT :limit

-- name: load_writers
INSERT INTO penstock_writer (name, batch, keep_until, digest) VALUES (:name, :batch, :keep_until, :digest)

-- name: void_visible
UPDATE penstock_message
SET visible_at = CASE WHEN visible_at > :now THEN :now WHEN visible_at < -:now THEN -:now ELSE visible_at END, holder = NULL
WHERE state = 1 AND (number, delivery) NOT IN (SELECT message, delivery FROM penstock_held)

-- name: void_held
UPDATE penstock_held SET delivery = {later}(delivery + 1, :now)
WHERE (message, delivery) IN (SELECT number, delivery FROM penstock_message WHERE state = 1)

-- name: void_messages
UPDATE penstock_message SET delivery = {later}(delivery + 1, :now) WHERE state = 1

-- name: void_runs
UPDATE penstock_claim SET run_at = {later}(run_at + 1, :now) WHERE run_at IS NOT NULL

-- name: bad_places
SELECT queue, COUNT(*) FROM penstock_message WHERE queue NOT IN (SELECT number FROM penstock_queue) GROUP BY queue

-- name: bad_settled
SELECT queue, COUNT(*) FROM penstock_settled WHERE queue NOT IN (SELECT number FROM penstock_queue) GROUP BY queue

-- name: bad_marks
SELECT COUNT(*) FROM penstock_mark WHERE expires_at = :forever AND NOT EXISTS (
    SELECT 1 FROM penstock_message WHERE penstock_message.number = penstock_mark.number AND penstock_message.queue = penstock_mark.queue
)

-- name: drop_bad_marks
DELETE FROM penstock_mark WHERE expires_at = :forever AND NOT EXISTS (
    SELECT 1 FROM penstock_message WHERE penstock_message.number = penstock_mark.number AND penstock_message.queue = penstock_mark.queue
)

-- name: bad_held
SELECT COUNT(*) FROM penstock_held WHERE claim NOT IN (SELECT number FROM penstock_claim)

-- name: drop_bad_held
DELETE FROM penstock_held WHERE claim NOT IN (SELECT number FROM penstock_claim)

-- name: bad_claims
SELECT penstock_queue.name, reader, epoch FROM penstock_claim, penstock_queue
WHERE penstock_queue.number = penstock_claim.queue AND confirmed = 1 AND run_at IS NULL AND size > 0 AND reader <> '' AND NOT EXISTS (
    SELECT 1 FROM penstock_held, penstock_message
    WHERE penstock_held.claim = penstock_claim.number
    AND penstock_message.number = penstock_held.message AND penstock_message.delivery = penstock_held.delivery
) ORDER BY penstock_queue.name, reader, epoch

-- name: bad_hidden
SELECT queue, number FROM penstock_message
WHERE state <> 4 AND (visible_at > :far OR visible_at < -:far) AND (number, delivery) NOT IN (SELECT message, delivery FROM penstock_held)
ORDER BY number LIMIT :limit

-- name: show_hidden
UPDATE penstock_message SET visible_at = CASE WHEN visible_at < 0 THEN -:now ELSE :now END
WHERE number = :number AND state <> 4 AND (visible_at > :far OR visible_at < -:far)
AND (number, delivery) NOT IN (SELECT message, delivery FROM penstock_held)

-- name: bad_blocked
SELECT queue, COUNT(*) FROM penstock_message WHERE visible_at < 0 AND grp IS NULL AND state <> 4 GROUP BY queue

-- name: show_blocked
UPDATE penstock_message SET visible_at = :now WHERE visible_at < 0 AND grp IS NULL AND state <> 4
