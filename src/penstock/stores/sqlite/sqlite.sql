-- The statements of SQLite alone: mostly those of runs (see runs.py).

-- name: reserve_numbers
UPDATE penstock_meta SET value = value + :count WHERE name = 'number' RETURNING value

-- name: queue
SELECT number, settings, floor_at, floor_number,
    (SELECT MIN(lapses_at) FROM penstock_claim WHERE queue = penstock_queue.number AND asleep = 1),
    (SELECT value FROM penstock_meta WHERE name = 'number')
FROM penstock_queue WHERE name = :name

-- name: due_of
SELECT number, (
    SELECT MIN(at) FROM (
        SELECT MIN(lapses_at) AS at FROM penstock_claim WHERE queue = penstock_queue.number AND asleep = 1
        UNION ALL SELECT * FROM (
            SELECT visible_at FROM penstock_message
            WHERE queue = penstock_queue.number AND visible_at = floor_at AND number > floor_number LIMIT 1
        ) UNION ALL SELECT * FROM (
            SELECT visible_at FROM penstock_message
            WHERE queue = penstock_queue.number AND visible_at > floor_at AND visible_at < :forever ORDER BY visible_at LIMIT 1
        )
    )
) FROM penstock_queue WHERE name = :name

-- name: insert_1
INSERT INTO penstock_message (number, queue, visible_at, state, receives, delivery, sent_at, expires_at, deadline_at, grp, mark, head, checksum, body)
SELECT :number, penstock_queue.number, MAX(:visible_at, floor_at), 0, 0, 0, :sent_at, :expires_at, :deadline_at, :grp, :mark, :head, :checksum, :body
FROM penstock_queue
WHERE name = :name AND settings = :settings AND floor_at <= :earliest
AND (SELECT value FROM penstock_meta WHERE name = 'number') = :reserved

-- name: insert_together
INSERT INTO penstock_message (number, queue, visible_at, state, receives, delivery, sent_at, expires_at, deadline_at, grp, mark, head, checksum, body)
SELECT column1, number, MAX(column3, floor_at), 0, 0, 0, column4, column5, column6, column7, column8, column9, column10, column11
FROM (VALUES :rows) CROSS JOIN penstock_queue
WHERE column1 IS NOT NULL AND name = :name AND settings = :settings AND floor_at <= :earliest
AND (SELECT value FROM penstock_meta WHERE name = 'number') = :reserved

-- name: delete_alone
DELETE FROM penstock_message
WHERE number = :number AND delivery = :delivery AND delivery > 0 AND grp IS NULL AND mark IS NULL
AND queue = (SELECT number FROM penstock_queue WHERE name = :name AND settings = :settings)

-- name: delete_alike
DELETE FROM penstock_message WHERE number IN (SELECT value FROM json_each(:numbers))
AND :count = (
    SELECT COUNT(*) FROM penstock_message
    WHERE number IN (SELECT value FROM json_each(:numbers)) AND delivery = :delivery AND delivery > 0
    AND grp IS NULL AND mark IS NULL AND queue + 0 = (SELECT number FROM penstock_queue WHERE name = :name AND settings = :settings)
)

-- name: delete
DELETE FROM penstock_message
WHERE number = :number AND queue = :queue AND delivery = COALESCE(:delivery, delivery)
RETURNING number, delivery, visible_at, state, grp, mark

-- name: set_floor
UPDATE penstock_queue SET
    floor_at = COALESCE((SELECT MAX(end_at) FROM penstock_claim WHERE queue = :queue AND run_at IS NOT NULL), -1),
    floor_number = COALESCE((
        SELECT end_number FROM penstock_claim WHERE queue = :queue AND run_at IS NOT NULL ORDER BY end_at DESC, end_number DESC LIMIT 1
    ), 0)
WHERE number = :queue

-- name: in_run
SELECT visible_at, number FROM penstock_message WHERE number IN (SELECT value FROM json_each(:numbers)) AND queue + 0 = :queue
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
SELECT COUNT(*) FROM penstock_message
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
AND receives < :max_receives AND expires_at > :now AND COALESCE(moved_at, sent_at) > :came_after AND COALESCE(deadline_at, :forever) > :now

-- name: hold_between
INSERT INTO penstock_held (claim, place, message, delivery)
SELECT :claim, ROW_NUMBER() OVER (ORDER BY visible_at, number) - 1, number, MAX(delivery + 1, :run_at) FROM penstock_message
WHERE queue = :queue AND visible_at >= 0 AND visible_at <= :end_at
AND (visible_at, number) > (:begin_at, :begin_number) AND (visible_at, number) <= (:end_at, :end_number)
ORDER BY visible_at, number

-- name: show_run
UPDATE penstock_message
SET visible_at = :until, state = 0, receives = receives + 1, delivery = MAX(delivery + 1, :run_at), received_at = :run_at,
    first_received_at = COALESCE(first_received_at, :run_at)
WHERE number IN (
    SELECT number FROM penstock_message
    WHERE queue = :queue AND visible_at >= 0 AND visible_at <= :end_at
    AND (visible_at, number) > (:begin_at, :begin_number) AND (visible_at, number) <= (:end_at, :end_number)
)

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
ORDER BY penstock_message.visible_at, number LIMIT :count OFFSET :start

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
SELECT {columns} FROM penstock_message
WHERE {by_queue} = :queue AND number >= :start AND number < :stop AND NOT {in_settled_run} {first_of_these}

-- name: first_unsettled
SELECT MIN(number) FROM penstock_message WHERE queue = :queue AND NOT {in_settled_run}

-- name: sleepers_of
SELECT DISTINCT penstock_claim.number, lapses_at FROM penstock_claim, penstock_held
WHERE queue = :queue AND asleep = 1 AND claim = penstock_claim.number AND message IN (SELECT value FROM json_each(:numbers))

-- name: purgeable_above
SELECT number, delivery FROM penstock_message
WHERE queue = :queue AND (visible_at < 0 OR (visible_at, number) > (:floor_at, :floor_number)) AND (number, delivery) NOT IN (
    SELECT penstock_held.message, penstock_held.delivery FROM penstock_held, penstock_claim
    WHERE penstock_held.claim = penstock_claim.number AND penstock_claim.queue = :queue
)
LIMIT :limit

-- name: unmark_held
DELETE FROM penstock_mark WHERE queue = :queue AND expires_at = :forever AND (mark, number) IN (
    SELECT mark, number FROM penstock_message WHERE {as_claimed} AND queue + 0 = :queue AND state <> 4 AND mark IS NOT NULL
)
