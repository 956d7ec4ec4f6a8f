-- The statements of MySQL alone.

-- name: add_to_meta
UPDATE penstock_meta SET value = value + :count WHERE name = :name
