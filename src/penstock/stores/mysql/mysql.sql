-- The statements of MySQL alone.

-- name: add_to_meta
UPDATE penstock_meta SET value = value + :count WHERE name = :name

-- name: unmark_held
DELETE penstock_mark FROM {chosen_held}
STRAIGHT_JOIN penstock_mark FORCE INDEX (PRIMARY) ON penstock_mark.mark = penstock_message.mark AND penstock_mark.queue = :queue
WHERE penstock_message.number = chosen AND penstock_message.delivery = claimed AND penstock_message.queue + 0 = :queue
AND penstock_message.state <> 4 AND penstock_mark.number = penstock_message.number AND penstock_mark.expires_at = :forever
