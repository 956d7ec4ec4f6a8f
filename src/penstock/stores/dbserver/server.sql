-- The statements that PostgreSQL and MySQL share.

-- name: queue
SELECT number, settings, (SELECT MIN(lapses_at) FROM penstock_claim WHERE queue = penstock_queue.number AND asleep = 1)
FROM penstock_queue WHERE name = :name

-- name: keep_queue
SELECT number, settings FROM penstock_queue WHERE name = :name {keep}

-- name: due_of
SELECT penstock_queue.number, NULLIF(LEAST(
    COALESCE((SELECT MIN(lapses_at) FROM penstock_claim WHERE queue = penstock_queue.number AND asleep = 1), :forever),
    COALESCE((
        SELECT visible_at FROM penstock_message
        WHERE queue = penstock_queue.number {ready} AND visible_at >= 0 AND visible_at < :forever ORDER BY visible_at LIMIT 1
    ), :forever)
), :forever) FROM penstock_queue WHERE penstock_queue.name = :name

-- name: first_doubtful
SELECT visible_at, number FROM (
    SELECT visible_at, number, receives, expires_at, COALESCE(moved_at, sent_at) AS came_at, deadline_at
    FROM penstock_message {by_ready}
    WHERE queue = :queue {ready} AND visible_at >= 0 AND visible_at <= :visible_by ORDER BY visible_at, number LIMIT :limit
) AS firsts
WHERE receives >= :max_receives OR expires_at <= :now OR came_at <= :came_after OR deadline_at <= :now
ORDER BY visible_at, number LIMIT 1

-- name: hold_first
INSERT INTO penstock_held (claim, place, message, delivery)
SELECT :claim, :start + ROW_NUMBER() OVER (ORDER BY visible_at, number) - 1, number, {later}(delivery + 1, :now) FROM (
    SELECT visible_at, number, delivery FROM penstock_message {by_ready}
    WHERE queue = :queue {ready} AND visible_at >= 0 AND visible_at <= :visible_by
    AND (visible_at, number) < (:end_at, :end_number) AND receives < :max_receives AND expires_at > :now
    AND COALESCE(moved_at, sent_at) > :came_after AND COALESCE(deadline_at, :forever) > :now
    ORDER BY visible_at, number LIMIT :limit {skip_locked}
) AS picked

-- name: now
SELECT {now}

-- name: open_session
INSERT INTO penstock_session (number, token, opened_at) VALUES (:session, :token, {now})

-- name: write_token
UPDATE penstock_session SET token = :token WHERE number = :session

-- name: read_token
SELECT token FROM penstock_session WHERE number = :session

-- name: close_session
DELETE FROM penstock_session WHERE number = :session

-- name: sweep_sessions
DELETE FROM penstock_session WHERE opened_at < {now} - :age

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
