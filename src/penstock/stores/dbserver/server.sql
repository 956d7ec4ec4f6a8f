-- The statements that PostgreSQL and MySQL share.

-- name: queue
SELECT number, settings FROM penstock_queue WHERE name = :name

-- name: keep_queue
SELECT number, settings FROM penstock_queue WHERE name = :name {keep}

-- name: due_of
SELECT penstock_queue.number, (
    SELECT visible_at FROM penstock_message
    WHERE queue = penstock_queue.number {ready} AND visible_at >= 0 AND visible_at < :forever ORDER BY visible_at LIMIT 1
) FROM penstock_queue WHERE penstock_queue.name = :name

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
