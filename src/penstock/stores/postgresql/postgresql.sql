-- The statements of PostgreSQL alone.

-- name: reserve_numbers
UPDATE penstock_meta SET value = value + :count WHERE name = 'number' RETURNING value

-- name: insert_with_token
WITH wanted AS (SELECT number FROM penstock_queue WHERE name = :name AND settings = :settings FOR KEY SHARE), noted AS (
    UPDATE penstock_session SET token = :token WHERE number = :session AND EXISTS (SELECT number FROM wanted) RETURNING number
)
INSERT INTO penstock_message (number, queue, visible_at, state, receives, delivery, sent_at, expires_at, deadline_at, grp, head, checksum, body)
SELECT :number, wanted.number, :visible_at, 0, 0, 0, :sent_at, :expires_at, :deadline_at::bigint, :grp::bytea, :head::bytea, :checksum, :body
FROM wanted, noted

-- name: insert_many_with_token
WITH wanted AS (SELECT number FROM penstock_queue WHERE name = :name AND settings = :settings FOR KEY SHARE), noted AS (
    UPDATE penstock_session SET token = :token WHERE number = :session AND EXISTS (SELECT number FROM wanted) RETURNING number
)
INSERT INTO penstock_message (number, queue, visible_at, state, receives, delivery, sent_at, expires_at, checksum, body)
SELECT :first + place, wanted.number, :visible_at, 0, 0, 0, :sent_at, :expires_at, checksum, body
FROM wanted, noted, unnest(:checksums, :bodies) WITH ORDINALITY AS plain (checksum, body, place)

-- name: claim_at_once
WITH picked AS (
    SELECT ctid AS spot, visible_at, state, delivery AS before FROM penstock_message
    WHERE queue = COALESCE(:queue, (
        SELECT number FROM penstock_queue WHERE name = :name AND settings = :settings AND NOT EXISTS (
            SELECT 1 FROM penstock_claim WHERE penstock_claim.queue = penstock_queue.number AND asleep = 1 AND lapses_at <= :now
        )
    ))
    AND queue >= 0 AND visible_at >= 0 AND visible_at <= :now AND number % :of = :place
    ORDER BY visible_at, number LIMIT :limit FOR UPDATE SKIP LOCKED
)
UPDATE penstock_message
SET visible_at = :until, state = 1, receives = receives + 1, delivery = GREATEST(delivery + 1, :now), received_at = :now,
    first_received_at = COALESCE(first_received_at, :now), holder = :holder
FROM picked WHERE penstock_message.ctid = picked.spot
RETURNING {columns_before}

-- name: delete_with_token
WITH gone AS (
    DELETE FROM penstock_message WHERE number = ANY(:numbers) AND delivery = :delivery AND grp IS NULL AND mark IS NULL
    AND queue + 0 = (SELECT number FROM penstock_queue WHERE name = :name AND settings = :settings)
    AND EXISTS (SELECT number FROM penstock_session WHERE number = :session)
    RETURNING number
), noted AS (
    UPDATE penstock_session SET token = CASE (SELECT COUNT(*) FROM gone) WHEN :count THEN :token ELSE -:token END
    WHERE number = :session RETURNING token
)
SELECT CASE (SELECT token FROM noted) WHEN :token THEN NULL ELSE ARRAY(SELECT number FROM gone) END

-- name: unmark_held
DELETE FROM penstock_mark USING (
    SELECT mark, number FROM penstock_message WHERE {as_claimed} AND queue + 0 = :queue AND state <> 4 AND mark IS NOT NULL OFFSET 0
) AS gone
WHERE penstock_mark.queue = :queue AND penstock_mark.mark = gone.mark AND penstock_mark.number = gone.number
AND penstock_mark.expires_at = :forever
